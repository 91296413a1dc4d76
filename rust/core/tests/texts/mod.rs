//! Vocabularies from `make vocab`, the oracle that encoders are compared with, and seeded texts
//! that tokenizers have disagreed on.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::PathBuf;

use serde_json::{Value, json};
use tokenizers::Tokenizer;
use turnwire_core::tokenizer::Encoder;

/// A file that `make vocab` fetched.
pub(crate) fn fetched(file: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.cache/vocab").join(file);
    assert!(path.exists(), "{} is not there: run `make vocab`", path.display());
    path
}

pub(crate) const SMOLLM2: &str = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

const PIECES: &[&str] = &[
    " ",
    "  ",
    "    ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\t\t's",
    "\u{a0}",
    "\u{3000}",
    "\u{2003}",
    "\u{200b}",
    "\u{85}",
    "\u{2028}",
    "a",
    "the",
    " The",
    "HTTPServer",
    "it's",
    "I'LL",
    "'re",
    "'ſ",
    "'",
    "n't",
    "x",
    "Z",
    "é",
    "e\u{301}",
    "a\u{30a}\u{323}",
    "\u{301}",
    "\u{1100}\u{1161}\u{11a8}",
    "ﬁ",
    "ß",
    "ſ",
    "İ",
    "ǅ",
    "ʰ",
    "1",
    "12",
    "007",
    "1234567",
    "3.14",
    " 1",
    "1 ",
    " 2 ",
    "½",
    "²",
    "Ⅷ",
    "١٢",
    "१",
    "你好",
    "世界",
    "こんにちは",
    "カー",
    "안녕",
    "Привет",
    "שלום",
    "مرحبا",
    "नमस्ते",
    "ไทย",
    "🙂",
    "👩\u{200d}👧",
    "🇫🇷",
    "👍🏽",
    "\u{fe0f}",
    "1\u{fe0f}\u{20e3}",
    "fn f(){}",
    "==",
    "->",
    "//",
    "/",
    "\"",
    "``",
    "{\"a\":",
    "</",
    ">",
    "<",
    "|",
    "_",
    "__",
    "#",
    "@",
    "$",
    "%",
    "...",
    "!",
    "—",
    "…",
    "<|",
    "|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_end|",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "<s>",
    "▁",
    "Ġ",
    "Ċ",
    "<0x0A>",
    "\0",
    "\u{1}",
    "\u{7f}",
    "\u{ad}",
    "\u{feff}",
    "\u{fffd}",
    "\u{e000}",
    "\u{10ffff}",
    "𝔘",
    "𐍈",
    "\u{378}",
];

/// Random numbers, the same on every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }

    pub(crate) fn of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Any character, the lower planes more often.
    pub(crate) fn character(&mut self) -> char {
        loop {
            let limit = *self.of(&[0x80, 0x250, 0x800, 0x3000, 0x1_0000, 0x11_0000]);
            let code = u32::try_from(self.below(limit)).unwrap();
            if let Some(character) = char::from_u32(code) {
                return character;
            }
        }
    }

    /// Up to a dozen pieces, now and then any character.
    pub(crate) fn text(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..self.below(13) {
            if self.below(6) == 0 {
                text.push(self.character());
            } else {
                text.push_str(self.of::<&str>(PIECES));
            }
        }
        text
    }
}

/// The crate `tokenizers` over a `tokenizer.json`, called here and not through ours: as the file
/// is, and without its added tokens.
pub(crate) struct Oracle {
    pub(crate) whole: Tokenizer,
    ordinary: Tokenizer,
}

impl Oracle {
    pub(crate) fn new(json: &[u8]) -> Self {
        let whole = Tokenizer::from_bytes(json).unwrap();
        let mut value: Value = serde_json::from_slice(json).unwrap();
        value["added_tokens"] = json!([]);
        let ordinary = Tokenizer::from_bytes(serde_json::to_vec(&value).unwrap()).unwrap();
        Self { whole, ordinary }
    }

    pub(crate) fn encode(&self, text: &str, control: bool) -> Vec<u32> {
        let tokenizer = if control { &self.whole } else { &self.ordinary };
        tokenizer.encode(text, false).unwrap().get_ids().to_vec()
    }
}

pub(crate) fn encode(encoder: &dyn Encoder, text: &str, control: bool) -> Vec<u32> {
    let mut ids = Vec::new();
    encoder.encode(text, control, &mut ids).unwrap();
    ids
}
