//! A `SentencePiece` vocabulary, from its own file or a GGUF, as a `tokenizer.json`.
//!
//! `sentencepiece` and llama.cpp join the neighbours whose token has the highest score; the files have
//! scores and no merges. Every way to make a token of two others is a merge, ranked by the token's score,
//! as `transformers` converts these vocabularies.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::tokenizer::{AddedToken, added_token_json};

/// What stands for a space.
const SPACE: &str = "▁";

/// Where a space is put before text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    Nowhere,
    /// Before a text that does not start with an added token.
    Start,
    /// Before each stretch between added tokens.
    Stretches,
}

/// The vocabulary as `tokenizers` would have saved it. `joined` tells which tokens, by index, others can
/// be joined to.
pub(super) fn tokenizer_json(
    tokens: Vec<String>,
    scores: &[f64],
    joined: impl Fn(usize) -> bool,
    added: &[AddedToken],
    unknown: Option<&str>,
    prefix: Prefix,
) -> Result<Value, String> {
    if scores.len() != tokens.len() {
        return Err("its scores and tokens differ in number".to_owned());
    }
    let merges = merges(&tokens, scores, joined);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let prepend = json!({"type": "Prepend", "prepend": SPACE});
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "normalizers": steps});
    let (normalizer, pre_tokenizer) = match prefix {
        Prefix::Nowhere => (sequence(vec![replace]), Value::Null),
        Prefix::Stretches => (sequence(vec![prepend, replace]), Value::Null),
        Prefix::Start => (
            Value::Null,
            json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first",
                "split": false}),
        ),
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix != Prefix::Nowhere {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let vocab: Map<String, Value> =
        tokens.into_iter().enumerate().map(|(id, token)| (token, Value::from(id))).collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.iter().map(added_token_json).collect::<Vec<_>>(),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": merges,
        },
    }))
}

/// Every pair of tokens that is a token, the highest score first; the order of `transformers` where
/// scores are equal.
fn merges(
    tokens: &[String],
    scores: &[f64],
    joined: impl Fn(usize) -> bool,
) -> Vec<(String, String)> {
    let candidates = || tokens.iter().zip(scores).enumerate().filter(|&(id, _)| joined(id));
    let ids: HashMap<&str, usize> =
        candidates().map(|(id, (token, _))| (token.as_str(), id)).collect();
    let mut found: Vec<(f64, usize, usize)> = Vec::new();
    for (_, (token, &score)) in candidates() {
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let pairs = cuts.filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?)));
        let mut pairs: Vec<(usize, usize)> = pairs.collect();
        pairs.sort_unstable();
        found.extend(pairs.into_iter().map(|(left, right)| (score, left, right)));
    }
    let length = |id: usize| tokens.get(id).map_or(0, |token| token.chars().count());
    found.sort_by(|a, b| {
        let of = |&(score, left, right): &(f64, usize, usize)| (score, length(left), length(right));
        let ((a, a_left, a_right), (b, b_left, b_right)) = (of(a), of(b));
        b.total_cmp(&a).then(b_left.cmp(&a_left)).then(b_right.cmp(&a_right))
    });
    let text = |id: usize| tokens.get(id).cloned().unwrap_or_default();
    found.into_iter().map(|(_, left, right)| (text(left), text(right))).collect()
}
