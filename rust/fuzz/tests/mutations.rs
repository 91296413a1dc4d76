//! Every target over its seeds, and over a few thousand inputs made of them.

#![allow(clippy::unwrap_used)]

use turnwire_fuzz::{TARGETS, seeds};

#[test]
fn seeds_pass() {
    for (name, run) in TARGETS {
        for seed in seeds::of(name) {
            println!("{name} {:?}", String::from_utf8_lossy(&seed));
            run(&seed);
        }
    }
}
