//! Every target over its seeds, and over inputs made of them: so that no target rots, and a coarse
//! fault is found before `make fuzz` is run.

use turnwire_fuzz::{TARGETS, seeds};

/// Inputs of each target: a debug build does them all in a few seconds.
const MADE: [(&str, usize); 4] =
    [("items", 600), ("push", 400), ("detokenize", 20_000), ("gguf", 150)];

#[test]
fn seeds_and_their_mutations_pass() {
    for ((name, run), (made_for, count)) in TARGETS.into_iter().zip(MADE) {
        assert_eq!(name, made_for);
        let seeds = seeds::of(name);
        for seed in &seeds {
            run(seed);
        }
        let mut random = Random(0x5eed);
        for _ in 0..count {
            let input = mutated(&seeds, &mut random);
            let passed = std::panic::catch_unwind(|| run(&input));
            assert!(passed.is_ok(), "{name}: {:?}", String::from_utf8_lossy(&input));
        }
    }
}

/// A seed with some of its bytes changed, moved, or taken from another.
fn mutated(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(input.len() + 1);
        let end = (at + random.below(12)).min(input.len());
        match random.below(6) {
            0 => drop(input.drain(at..end)),
            1 => input.insert(at, u8::try_from(random.below(256)).unwrap_or_default()),
            2 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            3 => input.extend_from_within(at..end),
            4 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                let until = (from + random.below(60)).min(other.len());
                drop(input.splice(at..at, other[from..until].iter().copied()));
            }
            _ => {
                let copied = input[at..end].to_vec();
                let to = random.below(input.len() + 1);
                drop(input.splice(to..to, copied));
            }
        }
    }
    input
}

/// Knuth's MMIX generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % bound
    }
}
