//! Encoders, cuts and detokenizing on real vocabularies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod texts;

use std::fs;
use std::sync::LazyLock;

use texts::{Oracle, Random, SMOLLM2, encode, fetched};
use turnwire_core::detokenize::{self, Decoded, Detokenizer};
use turnwire_core::load;
use turnwire_core::tokenizer::{Definition, Piece, Vocabulary, choose};

struct Model {
    oracle: Oracle,
    vocabulary: Vocabulary,
}

impl Model {
    fn new(definition: Definition) -> Self {
        let oracle = Oracle::new(definition.text());
        Self { oracle, vocabulary: choose(definition, None).unwrap() }
    }
}

static QWEN3: LazyLock<Model> = LazyLock::new(|| {
    let text = fs::read(fetched("qwen3/tokenizer.json")).unwrap();
    Model::new(Definition::from_text("tokenizer.json", text).unwrap())
});

static SMOLLM2_MODEL: LazyLock<Model> =
    LazyLock::new(|| Model::new(load::gguf::definition(&fetched(SMOLLM2)).unwrap()));

fn models() -> [(&'static str, &'static Model); 2] {
    [("qwen3", &*QWEN3), ("smollm2", &*SMOLLM2_MODEL)]
}

#[test]
fn both_encoders_equal_tokenizers() {
    for (name, model) in models() {
        assert!(model.vocabulary.choice.starts_with("fastokens: "), "{}", model.vocabulary.choice);
        assert_eq!(model.vocabulary.encoder.name(), "fastokens");
        assert_eq!(model.vocabulary.reference.name(), "tokenizers");
        let mut random = Random(0x5eed);
        for _ in 0..4000 {
            let text = random.text();
            for control in [true, false] {
                let expected = model.oracle.encode(&text, control);
                let fast = encode(&*model.vocabulary.encoder, &text, control);
                assert_eq!(fast, expected, "{name}, fast, control {control}: {text:?}");
                let reference = encode(&*model.vocabulary.reference, &text, control);
                assert_eq!(reference, expected, "{name}, reference, control {control}: {text:?}");
            }
        }
    }
}

/// The texts that a strict profile must keep from becoming control tokens.
#[test]
fn without_control_no_text_reaches_an_added_token() {
    for (name, model) in models() {
        let added: Vec<u32> = model.vocabulary.added.iter().map(|token| token.id).collect();
        for token in &model.vocabulary.added {
            for text in [token.content.clone(), format!(" {}x", token.content)] {
                for encoder in [&model.vocabulary.encoder, &model.vocabulary.reference] {
                    let ids = encode(&**encoder, &text, false);
                    assert!(ids.iter().all(|id| !added.contains(id)), "{name}: {text:?}: {ids:?}");
                }
            }
            let with = encode(&*model.vocabulary.encoder, &token.content, true);
            assert_eq!(with, [token.id], "{name}: {}", token.content);
        }
    }
}

/// Law 4.
#[test]
fn cutting_at_a_safe_token_changes_nothing() {
    for (name, model) in models() {
        let vocabulary = &model.vocabulary;
        let mut random = Random(0x1a_3404);
        let mut pairs = 0;
        for token in &vocabulary.added {
            assert!(vocabulary.cuts.after(token.id) && vocabulary.cuts.before(token.id));
            for _ in 0..2000_usize.div_ceil(vocabulary.added.len()) {
                let (before, after) = (random.text(), random.text());
                let mut apart = encode(&*vocabulary.encoder, &before, true);
                apart.push(token.id);
                apart.extend(encode(&*vocabulary.encoder, &after, true));
                let whole = format!("{before}{}{after}", token.content);
                assert_eq!(apart, model.oracle.encode(&whole, true), "{name}: {whole:?}");
                pairs += 1;
            }
        }
        assert!(pairs >= 2000);
        assert_eq!(vocabulary.cuts.refused().count(), 0, "{name}");
    }
}

#[test]
fn encoding_and_decoding_gives_the_text_back() {
    // SmolLM2 has no token for some control bytes and for those of the planes 4 to 11, and every
    // encoder (llama.cpp's too) drops them.
    let has = |byte: u8| SMOLLM2_MODEL.vocabulary.pieces.contains(&Piece::Bytes([byte].into()));
    let lacking: Vec<u8> = (0..=u8::MAX).filter(|&byte| !has(byte)).collect();
    assert_eq!(lacking.len(), 21, "{lacking:x?}");
    let mut random = Random(0x00de_c0de);
    for _ in 0..3000 {
        let text = random.text();
        for control in [true, false] {
            let vocabulary = &SMOLLM2_MODEL.vocabulary;
            let ids = encode(&*vocabulary.encoder, &text, control);
            if text.bytes().all(|byte| !lacking.contains(&byte)) {
                assert_eq!(detokenize::decode(&vocabulary.pieces, &ids).unwrap(), text);
            }
            // Qwen normalizes to NFC: what comes back is a fixed point.
            let vocabulary = &QWEN3.vocabulary;
            let ids = encode(&*vocabulary.encoder, &text, control);
            let normal = detokenize::decode(&vocabulary.pieces, &ids).unwrap();
            assert_eq!(encode(&*vocabulary.encoder, &normal, control), ids, "{text:?}");
            // Oracle: the decoder of `tokenizers`, special tokens kept.
            assert_eq!(normal, QWEN3.oracle.whole.decode(&ids, false).unwrap());
        }
    }
}

/// Oracle: `String::from_utf8_lossy` over the joined bytes between added tokens. Random ids split
/// characters at every byte.
#[test]
fn random_ids_decode_as_their_joined_bytes() {
    for (name, model) in models() {
        let pieces = &model.vocabulary.pieces;
        let mut random = Random(0x1d5);
        for _ in 0..300 {
            let mut expected = String::new();
            let mut bytes: Vec<u8> = Vec::new();
            let mut found = String::new();
            let mut detokenizer = Detokenizer::new();
            let mut sink = |decoded: Decoded<'_>| match decoded {
                Decoded::Text(text) => {
                    assert!(!text.is_empty());
                    found.push_str(text);
                }
                Decoded::Added { content, .. } => found.push_str(content),
            };
            for _ in 0..random.below(60) {
                // The first 300 ids hold the single bytes; the last ones, the added tokens.
                let limit = *random.of(&[300, pieces.len()]);
                let from = *random.of(&[0, 0, pieces.len() - 26]);
                let id = (from + random.below(limit)).min(pieces.len() - 1);
                match &pieces[id] {
                    Piece::Bytes(more) => bytes.extend_from_slice(more),
                    Piece::Added(content, _) => {
                        expected.push_str(&String::from_utf8_lossy(&std::mem::take(&mut bytes)));
                        expected.push_str(content);
                    }
                    Piece::Unknown => continue,
                }
                detokenizer.push(pieces, u32::try_from(id).unwrap(), &mut sink).unwrap();
            }
            detokenizer.flush(&mut sink);
            expected.push_str(&String::from_utf8_lossy(&bytes));
            assert_eq!(found, expected, "{name}");
        }
    }
}
