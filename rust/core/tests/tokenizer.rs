//! Encoders, cuts and detokenizing on real vocabularies. The oracle is the crate `tokenizers`
//! itself, called here and not through ours.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod texts;

use std::fs;
use std::sync::LazyLock;

use serde_json::{Value, json};
use texts::{Random, SMOLLM2, fetched};
use tokenizers::Tokenizer;
use turnwire_core::detokenize::{self, Decoded, Detokenizer};
use turnwire_core::load;
use turnwire_core::tokenizer::{Definition, Encoder, Piece, Vocabulary, choose};

/// `tokenizers` over a `tokenizer.json`, as it is and without its added tokens.
struct Oracle {
    whole: Tokenizer,
    ordinary: Tokenizer,
}

impl Oracle {
    fn new(json: &[u8]) -> Self {
        let whole = Tokenizer::from_bytes(json).unwrap();
        let mut value: Value = serde_json::from_slice(json).unwrap();
        value["added_tokens"] = json!([]);
        let ordinary = Tokenizer::from_bytes(serde_json::to_vec(&value).unwrap()).unwrap();
        Self { whole, ordinary }
    }

    fn encode(&self, text: &str, control: bool) -> Vec<u32> {
        let tokenizer = if control { &self.whole } else { &self.ordinary };
        tokenizer.encode(text, false).unwrap().get_ids().to_vec()
    }
}

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

fn encode(encoder: &dyn Encoder, text: &str, control: bool) -> Vec<u32> {
    let mut ids = Vec::new();
    encoder.encode(text, control, &mut ids).unwrap();
    ids
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

/// A byte-level BPE of 256 bytes and a few merges, with these parts.
fn toy(added: &Value, normalizer: &Value, pre_tokenizer: &Value) -> Vec<u8> {
    // GPT-2's alphabet, by its rule.
    let plain = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut alphabet: Vec<String> = Vec::new();
    let mut moved = 0x100;
    for byte in 0..256 {
        let code = if plain(byte) { byte } else { moved };
        moved += u32::from(!plain(byte));
        alphabet.push(char::from_u32(code).unwrap().to_string());
    }
    let merges = [("a", "b"), ("Ġ", "a"), ("Ġ", "Ġ"), ("Ċ", "Ċ"), ("ab", "ab"), ("Ġa", "b")];
    let results = merges.iter().map(|(left, right)| format!("{left}{right}"));
    let tokens: Vec<String> = alphabet.into_iter().chain(results).collect();
    let vocab: Value = tokens.iter().enumerate().map(|(id, t)| (t.clone(), json!(id))).collect();
    let mut added = added.clone();
    let mut next = tokens.len();
    for token in added.as_array_mut().unwrap() {
        // As `tokenizers` numbers them: the model's id where the model has the text.
        let known = tokens.iter().position(|known| token["content"] == **known);
        token["id"] = json!(known.unwrap_or(next));
        next += usize::from(known.is_none());
        for flag in ["lstrip", "rstrip", "single_word", "normalized", "special"] {
            token[flag] = json!(token[flag].as_bool().unwrap_or(false));
        }
    }
    serde_json::to_vec(&json!({
        "version": "1.0",
        // Must never apply.
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "!"},
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": byte_level(),
        "model": {"type": "BPE", "vocab": vocab, "merges": merges.map(|(l, r)| format!("{l} {r}"))},
    }))
    .unwrap()
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

/// The toy as it is served, and `tokenizers` over the same file without what must never apply.
fn toy_model(json: Vec<u8>) -> (Vocabulary, Oracle) {
    let mut value: Value = serde_json::from_slice(&json).unwrap();
    value["truncation"] = Value::Null;
    value["padding"] = Value::Null;
    let oracle = Oracle::new(&serde_json::to_vec(&value).unwrap());
    let definition = Definition::from_text("toy", json).unwrap();
    (choose(definition, None).unwrap(), oracle)
}

/// Texts full of a toy's added tokens, their parts, and white space.
fn toy_text(random: &mut Random, contents: &[String]) -> String {
    let fill = [
        "a", "b", "ab", " ", "  ", "\n", "_", "<", "|", ">", "é", "e\u{301}", "\u{301}", "A", "1",
        "字", "\u{a0}",
    ];
    let mut text = String::new();
    for _ in 0..random.below(9) {
        match random.below(4) {
            0 => text.push_str(random.of::<String>(contents)),
            1 => {
                let content = random.of(contents);
                let cut = random.below(content.chars().count() + 1);
                text.extend(content.chars().take(cut));
            }
            2 => {
                let content = random.of(contents);
                let cut = random.below(content.chars().count() + 1);
                text.extend(content.chars().skip(cut));
            }
            _ => text.push_str(random.of::<&str>(&fill)),
        }
    }
    text
}

/// Random sets of added tokens with every flag, over normalizers and pre-tokenizers that matter:
/// whichever encoder serves gives the ids of `tokenizers`, and every cut that the audit calls safe
/// is. Oracle: `tokenizers` on the whole text.
#[test]
fn flags_and_overlaps_are_honoured_and_safe_cuts_are_safe() {
    let normalizers = [
        Value::Null,
        json!({"type": "NFC"}),
        json!({"type": "Lowercase"}),
        json!({"type": "Prepend", "prepend": "_"}),
        json!({"type": "Replace", "pattern": {"String": " "}, "content": "_"}),
        json!({"type": "Sequence", "normalizers": []}),
    ];
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": scheme, "split": true});
    let pre_tokenizers = [
        byte_level(),
        byte_level(),
        Value::Null,
        metaspace("always"),
        metaspace("first"),
        metaspace("never"),
    ];
    let contents = [
        "<|a|>",
        "<|ab|>",
        "<|",
        "|>",
        "|",
        "ab",
        "aba",
        "b",
        " ",
        "\n",
        "\n\n",
        "<|a|><|b|>",
        "a|>",
        "_",
        "_a",
        "é",
        "e\u{301}",
        "<A>",
        "<a>",
        " <s>",
        "<s> ",
        "aa",
    ];
    let mut random = Random(0xf1a6);
    let (mut served, mut safe, mut cuts) = (0, 0, 0);
    for round in 0..400 {
        let mut chosen: Vec<String> = Vec::new();
        for _ in 0..1 + random.below(4) {
            let content = (*random.of(&contents)).to_owned();
            if !chosen.contains(&content) {
                chosen.push(content);
            }
        }
        // Half of the rounds without flags: there the overlaps decide.
        let flagged = random.below(2) == 0;
        let flag = |random: &mut Random| flagged && random.below(4) == 0;
        let added: Vec<Value> = chosen
            .iter()
            .map(|content| {
                json!({"content": content, "lstrip": flag(&mut random), "rstrip": flag(&mut random),
                    "single_word": flag(&mut random), "normalized": flag(&mut random), "special": false})
            })
            .collect();
        let (normalizer, pre_tokenizer) = (random.of(&normalizers), random.of(&pre_tokenizers));
        let twin = |content: &str| {
            added.iter().any(|token| token["content"] == content && token["normalized"] == true)
        };
        if [["<A>", "<a>"], ["é", "e\u{301}"], [" <s>", "_<s>"], [" ", "_"]]
            .iter()
            .any(|[a, b]| twin(a) && twin(b))
        {
            continue; // `tokenizers` may take either, and loading refuses it.
        }
        let setting = format!("{added:?} {normalizer} {pre_tokenizer}");
        let strips = added.iter().any(|token| token["rstrip"] == true);
        if strips && chosen.iter().any(|content| content.starts_with([' ', '\n'])) {
            continue; // `tokenizers` panics on such a vocabulary, and loading refuses it.
        }
        let (vocabulary, oracle) = toy_model(toy(&json!(added), normalizer, pre_tokenizer));
        served += usize::from(vocabulary.encoder.name() == "fastokens");
        for _ in 0..60 {
            let text = toy_text(&mut random, &chosen);
            for control in [true, false] {
                let ids = encode(&*vocabulary.encoder, &text, control);
                let expected = oracle.encode(&text, control);
                assert_eq!(
                    ids, expected,
                    "round {round}, {control}: {text:?}\n{setting}\n{}",
                    vocabulary.choice
                );
            }
        }
        for token in &vocabulary.added {
            let (after, before) =
                (vocabulary.cuts.after(token.id), vocabulary.cuts.before(token.id));
            safe += usize::from(after) + usize::from(before);
            for _ in 0..40 {
                let (left, right) =
                    (toy_text(&mut random, &chosen), toy_text(&mut random, &chosen));
                let content = &token.content;
                let whole = oracle.encode(&format!("{left}{content}{right}"), true);
                if after && before {
                    let mut apart = oracle.encode(&left, true);
                    apart.push(token.id);
                    apart.extend(oracle.encode(&right, true));
                    assert_eq!(apart, whole, "{left:?} {content:?} {right:?}\n{setting}");
                    cuts += 1;
                } else if after && ends_with(&oracle, &format!("{left}{content}"), token.id) {
                    let mut apart = oracle.encode(&format!("{left}{content}"), true);
                    apart.extend(oracle.encode(&right, true));
                    assert_eq!(apart, whole, "after: {left:?} {content:?} {right:?}\n{setting}");
                    cuts += 1;
                } else if before {
                    let mut apart = oracle.encode(&left, true);
                    apart.extend(oracle.encode(&format!("{content}{right}"), true));
                    assert_eq!(apart, whole, "before: {left:?} {content:?} {right:?}\n{setting}");
                    cuts += 1;
                }
            }
        }
    }
    // The audit must not be safe by refusing everything, nor the choice by never choosing.
    assert!(served > 100 && safe > 300 && cuts > 10_000, "{served} {safe} {cuts}");
}

fn ends_with(oracle: &Oracle, text: &str, id: u32) -> bool {
    oracle.encode(text, true).last() == Some(&id)
}
