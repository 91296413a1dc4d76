//! Folders without a `tokenizer.json`: what is wrong with a file is said, and no file is too odd to read.
//! (That the ids are right is held to `tiktoken` and `sentencepiece` in `tests/native`.)

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod folder;

use std::fs;

use folder::Folder;
use proptest::prelude::*;
use serde_json::{Value, json};
use turnwire_core::{ErrorKind, Result, load};

const KIMI: &str = "tokenization_kimi.TikTokenTokenizer";

fn load(file: &str, bytes: &[u8], config: &Value) -> Result<load::Source> {
    let folder = Folder::new(&[
        ("chat_template.jinja", json!("x")),
        ("tokenizer_config.json", config.clone()),
    ]);
    fs::write(folder.0.join(file), bytes).unwrap();
    load::hf::load(&folder.0)
}

fn refusal(file: &str, bytes: &[u8], config: &Value) -> String {
    let error = load(file, bytes, config).err().unwrap_or_else(|| panic!("loaded: {file}"));
    assert_eq!(error.kind(), ErrorKind::Profile);
    error.detail().to_owned()
}

/// Every byte, and `ab`.
fn tokens() -> Vec<Vec<u8>> {
    (0..=u8::MAX).map(|byte| vec![byte]).chain([b"ab".to_vec()]).collect()
}

fn tekken() -> Value {
    let vocab: Vec<Value> = tokens()
        .iter()
        .enumerate()
        .map(|(rank, token)| {
            json!({"rank": rank, "token_bytes": base64::encode(token), "token_str": null})
        })
        .collect();
    let special =
        |rank: usize, name: &str| json!({"rank": rank, "token_str": name, "is_control": true});
    json!({
        "config": {"pattern": r"\p{L}+|[^\p{L}]", "num_vocab_tokens": 257, "version": "v11",
            "default_vocab_size": 261, "default_num_special_tokens": 4},
        "vocab": vocab,
        "special_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
    })
}

fn ranks() -> String {
    let lines = tokens().into_iter().enumerate();
    let lines = lines.map(|(rank, token)| base64::encode(token) + " " + &rank.to_string() + "\n");
    lines.collect()
}

fn kimi() -> Value {
    json!({"auto_map": {"AutoTokenizer": [KIMI, null]}, "eos_token": "[EOS]",
        "added_tokens_decoder": {"258": {"content": "[EOS]", "special": true}}})
}

/// A field of a protobuf message: bytes, or a number below 128.
fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    assert!(length < 128);
    [&[number << 3 | 2, length], content].concat()
}

fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let score = [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
    bytes(1, &[bytes(1, text.as_bytes()), score, vec![3 << 3, kind]].concat())
}

/// BPE with bytes, two control pieces and these, and the normalizer of Llama 2.
fn sentencepiece(pieces: &[Vec<u8>], trainer: &[u8]) -> Vec<u8> {
    let mut file = [piece("<unk>", 0.0, 2), piece("<s>", 0.0, 3), piece("</s>", 0.0, 3)].concat();
    file.extend((0..=u8::MAX).flat_map(|byte| piece(&format!("<0x{byte:02X}>"), 0.0, 6)));
    file.extend(pieces.concat());
    let byte_fallback = [35_u8 << 3 | 0x80, 2, 1];
    file.extend(bytes(2, &[&[3 << 3, 2], &byte_fallback[..], trainer].concat()));
    file.extend(bytes(3, &[3 << 3, 1, 4 << 3, 0]));
    file
}

/// Oracle: the files, read by eye.
#[test]
fn small_files_load() {
    let source = load("tekken.json", tekken().to_string().as_bytes(), &json!({})).unwrap();
    assert_eq!((source.bos_token.as_str(), source.eos_token.as_str()), ("<s>", "</s>"));
    assert_eq!(source.stop_token_ids, [2]);
    let mut ids = Vec::new();
    source.vocabulary.encoder.encode("ab<SPECIAL_3>", true, &mut ids).unwrap();
    assert_eq!(ids, [260, 3]);

    let source = load("tiktoken.model", ranks().as_bytes(), &kimi()).unwrap();
    assert_eq!(source.stop_token_ids, [258]);
    let mut ids = Vec::new();
    source.vocabulary.encoder.encode("ab[EOS]<|reserved_token_257|>", true, &mut ids).unwrap();
    assert_eq!(ids, [256, 258, 257]);

    let pieces = [piece("a", -2.0, 1), piece("▁", -3.0, 1), piece("▁a", -1.0, 1)];
    let source = load("tokenizer.model", &sentencepiece(&pieces, b""), &json!({})).unwrap();
    assert_eq!((source.bos_token.as_str(), source.stop_token_ids), ("<s>", vec![2]));
    let mut ids = Vec::new();
    source.vocabulary.encoder.encode("aa<s>a", true, &mut ids).unwrap();
    assert_eq!(ids, [261, 259, 1, 261]);
}

#[test]
fn what_is_wrong_with_a_tekken_file_is_said() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut file = tekken();
        change(&mut file);
        refusal("tekken.json", file.to_string().as_bytes(), &json!({}))
    };
    assert!(refusal("tekken.json", b"{", &json!({})).starts_with("tekken.json: EOF"));
    assert!(with(&|f| f["config"]["pattern"] = Value::Null).contains("invalid type: null"));
    let ranks = with(&|f| f["vocab"][7]["rank"] = json!(8));
    assert_eq!(ranks, "tekken.json: the token 7 of 'vocab' has the rank 8");
    let base64 = with(&|f| f["vocab"][7]["token_bytes"] = json!("?"));
    assert!(base64.starts_with("tekken.json: the token of rank 7: "), "{base64}");
    let twice = with(&|f| f["vocab"][256]["token_bytes"] = json!("YQ=="));
    assert_eq!(twice, "tekken.json: the ranks 97 and 256 are one token");
    let short = with(&|f| f["config"]["default_vocab_size"] = json!(262));
    assert!(short.contains("'default_vocab_size' is 262, with 4 special tokens and 257 others"));
    let few = with(&|f| f["config"]["default_num_special_tokens"] = json!(2));
    assert!(few.contains("it names 3 special tokens, and has 2"));
    let many = with(&|f| f["config"]["default_num_special_tokens"] = json!(1_u64 << 40));
    assert!(many.contains("it has 1099511627776 special tokens"));
    let unlisted = with(&|f| f["special_tokens"] = Value::Null);
    assert!(unlisted.contains("it lists no 'special_tokens', as version v11 must"));
    let named = with(&|f| f["special_tokens"][1]["rank"] = json!(5));
    assert!(named.contains("the special token 1 has the rank 5"));
    let alike = with(&|f| f["special_tokens"][1]["token_str"] = json!("ab"));
    assert!(alike.contains("the tokens 1 and 260 both read 'ab'"));
    let pattern = with(&|f| f["config"]["pattern"] = json!("("));
    assert!(pattern.contains("tekken.json"), "{pattern}");
}

#[test]
fn what_is_wrong_with_ranks_is_said() {
    let with = |text: &str| refusal("tiktoken.model", text.as_bytes(), &kimi());
    assert_eq!(with("YQ=="), "tiktoken.model: line 1 is not a token and its rank");
    assert_eq!(with("\nYQ== 1 2"), "tiktoken.model: line 2 is not a token and its rank");
    assert_eq!(with("YQ== x"), "tiktoken.model: line 1: 'x' is no rank");
    assert!(with("Y 0").starts_with("tiktoken.model: line 1: "));
    assert_eq!(with(""), "tiktoken.model: it has no token for the byte 0x00");
    let gap = ranks() + "YWI= 300\n";
    assert_eq!(with(&gap), "tiktoken.model: the rank 257 is there twice or not at all");
    let twice = ranks() + "YWI= 3\n";
    assert_eq!(with(&twice), "tiktoken.model: the rank 3 is there twice or not at all");
    assert_eq!(refusal("tiktoken.model", b"\xff", &kimi()), "tiktoken.model: not text");
    let entry = json!({"auto_map": {"AutoTokenizer": KIMI}, "added_tokens_decoder": {"x": {}}});
    let entry = refusal("tiktoken.model", ranks().as_bytes(), &entry);
    assert_eq!(entry, "tiktoken.model: 'x' of added_tokens_decoder is not an added token");

    let folder = Folder::new(&[("a.tiktoken", json!("x")), ("b.tiktoken", json!("x"))]);
    let error = load::hf::load(&folder.0).err().unwrap();
    assert!(
        error.detail().ends_with("which of a.tiktoken, b.tiktoken is the vocabulary is not said")
    );
}

#[test]
fn what_is_wrong_with_a_sentencepiece_file_is_said() {
    let with = |pieces: &[Vec<u8>], trainer: &[u8]| {
        refusal("tokenizer.model", &sentencepiece(pieces, trainer), &json!({}))
    };
    assert!(with(&[], &[3 << 3, 3]).contains("its model is not BPE"));
    assert!(with(&[], &[24_u8 << 3 | 0x80, 1, 1]).contains("its spaces end words"));
    let twice = [piece("a", -1.0, 1), piece("a", -2.0, 1)];
    assert!(with(&twice, b"").contains("the pieces 259 and 260 both read 'a'"));
    let tied = [piece("ab", -1.0, 1), piece("ba", -1.0, 1)];
    assert!(with(&tied, b"").contains("the pieces 'ab' and 'ba' have one score"));
    assert!(with(&[piece("a", 0.0, 5)], b"").contains("the piece 'a' has the type 5"));
    let lacking = refusal("tokenizer.model", &bytes(2, &[3 << 3, 2]), &json!({}));
    assert_eq!(
        lacking,
        "tokenizer.model: it has unknown characters (no trainer_spec.byte_fallback), which is not \
         supported"
    );
    let text = refusal("tokenizer.model", b"YQ== 0\n", &json!({}));
    assert!(text.starts_with("tokenizer.model: not protobuf: "), "{text}");
    let not_utf8 = [bytes(1, &bytes(1, b"\xff"))];
    assert!(with(&not_utf8, b"").contains("a text is not UTF-8"));
}

/// A file with some bytes changed, and its end cut off.
fn broken(file: &[u8], changes: &[(usize, u8)], end: usize) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for &(at, byte) in changes {
        let at = at % bytes.len();
        bytes[at] = byte;
    }
    bytes.truncate(bytes.len() - end % bytes.len().min(64));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_file_makes_a_loader_panic(
        noise in proptest::collection::vec(any::<u8>(), 0..400),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        end in 0_usize..64,
    ) {
        let files = [
            ("tekken.json", tekken().to_string().into_bytes(), json!({})),
            ("tiktoken.model", ranks().into_bytes(), kimi()),
            ("tokenizer.model", sentencepiece(&[piece("a", -1.0, 1)], b""), json!({})),
        ];
        for (name, file, config) in files {
            for bytes in [noise.clone(), broken(&file, &changes, end)] {
                if let Err(error) = load(name, &bytes, &config) {
                    prop_assert_eq!(error.kind(), ErrorKind::Profile);
                }
            }
        }
    }
}
