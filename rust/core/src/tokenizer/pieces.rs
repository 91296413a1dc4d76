//! From the spelling of a token in `tokenizer.json` to the bytes it stands for.
//!
//! The spelling is decided by the file's `decoder`: byte-level vocabularies write every byte as one
//! printable character, SPM vocabularies write a space as `▁` and a lone byte as `<0xXX>`.

use serde_json::Value;

use crate::error::{Error, Result};

/// Characters of the byte-level alphabet end before this code point (256 bytes, of which 68 are
/// moved up from 0x100).
const ALPHABET_END: usize = 0x100 + 68;

/// How a vocabulary spells bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's alphabet: one character per byte.
    ByteLevel,
    /// Literal text after these replacements, in order; with `byte_fallback`, `<0xXX>` is one
    /// byte.
    Text {
        /// Literal pattern and its replacement.
        replacements: Vec<(String, String)>,
        /// Whether `<0xXX>` spells a byte.
        byte_fallback: bool,
    },
}

impl Spelling {
    /// Reads the `decoder` of a `tokenizer.json`.
    ///
    /// A `Strip` at the start of the joined text is not applied: it drops the space that the
    /// encoder puts before a whole text, and sampled output is never the start of a text.
    ///
    /// # Errors
    /// A decoder that is not a function of one token at a time, or one not known here.
    pub(super) fn from_decoder(decoder: Option<&Value>) -> Result<Self> {
        let Some(decoder) = decoder.filter(|value| !value.is_null()) else {
            return Err(Error::profile(
                "it has no decoder: what its tokens stand for is not defined",
            ));
        };
        let mut found = Found::default();
        found.add(decoder)?;
        if found.byte_level {
            if !found.replacements.is_empty() || found.byte_fallback {
                return Err(Error::profile("its decoder mixes ByteLevel with text replacements"));
            }
            return Ok(Self::ByteLevel);
        }
        if found.replacements.is_empty() && !found.byte_fallback {
            return Err(Error::profile(
                "its decoder has no ByteLevel, Metaspace, Replace or ByteFallback step",
            ));
        }
        Ok(Self::Text { replacements: found.replacements, byte_fallback: found.byte_fallback })
    }

    /// The bytes that `token` stands for.
    pub(super) fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            // A token with a character outside the alphabet stands for itself, as in `tokenizers`.
            Self::ByteLevel => token
                .chars()
                .map(byte_of)
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| token.as_bytes().to_vec()),
            Self::Text { replacements, byte_fallback } => {
                if *byte_fallback && let Some(byte) = fallback_byte(token) {
                    return vec![byte];
                }
                replaced(token, replacements).into_bytes()
            }
        }
    }

    /// What an added token reads as in output. Only the replacements apply: a byte-level decoder
    /// leaves the text of an added token alone.
    pub(super) fn added_text(&self, content: &str) -> String {
        match self {
            Self::ByteLevel => content.to_owned(),
            Self::Text { replacements, .. } => replaced(content, replacements),
        }
    }
}

/// The steps of a decoder, flattened.
#[derive(Default)]
struct Found {
    byte_level: bool,
    byte_fallback: bool,
    replacements: Vec<(String, String)>,
    fused: bool,
}

impl Found {
    fn add(&mut self, step: &Value) -> Result<()> {
        match step.get("type").and_then(Value::as_str).unwrap_or_default() {
            "Sequence" => {
                let steps = step.get("decoders").and_then(Value::as_array);
                for step in steps.into_iter().flatten() {
                    self.add(step)?;
                }
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => self.fused = true,
            "Metaspace" => {
                let mark = step.get("replacement").and_then(Value::as_str).unwrap_or("▁");
                self.replacements.push((mark.to_owned(), " ".to_owned()));
            }
            "Replace" => {
                let pattern = step.get("pattern").and_then(|p| p.get("String"));
                let content = step.get("content").and_then(Value::as_str);
                let (Some(pattern), Some(content)) = (pattern.and_then(Value::as_str), content)
                else {
                    return Err(Error::profile(
                        "its decoder has a Replace step without a literal pattern",
                    ));
                };
                if pattern.is_empty() {
                    return Err(Error::profile(
                        "its decoder has a Replace step with an empty pattern",
                    ));
                }
                if self.fused {
                    return Err(Error::profile("its decoder replaces text across tokens"));
                }
                self.replacements.push((pattern.to_owned(), content.to_owned()));
            }
            "Strip" => {
                let at_end = step.get("stop").and_then(Value::as_u64).unwrap_or(0);
                if !self.fused || at_end != 0 {
                    return Err(Error::profile(
                        "its decoder strips every token, or the end of the text",
                    ));
                }
            }
            other => {
                return Err(Error::profile(format!("its decoder '{other}' is not supported")));
            }
        }
        Ok(())
    }
}

fn replaced(text: &str, replacements: &[(String, String)]) -> String {
    replacements
        .iter()
        .fold(text.to_owned(), |text, (pattern, content)| text.replace(pattern, content))
}

/// The byte of `<0xXX>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let all_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    all_hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The byte that a character of GPT-2's alphabet stands for.
///
/// Printable Latin-1 characters stand for themselves; the other 68 bytes are numbered upward from
/// U+0100 in order of value (`bytes_to_unicode` of GPT-2's `encoder.py`).
fn byte_of(character: char) -> Option<u8> {
    const TABLE: [Option<u8>; ALPHABET_END] = {
        let mut table = [None; ALPHABET_END];
        let mut moved = 0x100;
        let mut byte = 0_u8;
        loop {
            let itself = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
            if itself {
                table[byte as usize] = Some(byte);
            } else {
                table[moved] = Some(byte);
                moved += 1;
            }
            if byte == u8::MAX {
                break table;
            }
            byte += 1;
        }
    };
    TABLE.get(character as usize).copied().flatten()
}

/// The character that stands for a byte in GPT-2's alphabet.
pub(crate) fn character_of(byte: u8) -> Option<char> {
    (0..ALPHABET_END)
        .filter_map(|code| char::from_u32(u32::try_from(code).ok()?))
        .find(|&character| byte_of(character) == Some(byte))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn the_byte_alphabet_is_gpt2s() {
        let characters: Vec<char> = (0..=u8::MAX).map(|byte| character_of(byte).unwrap()).collect();
        // Oracle: `tokenizers`' own alphabet, as a set.
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert_eq!(alphabet.len(), 256);
        assert!(characters.iter().all(|character| alphabet.contains(character)));
        // Oracle: GPT-2's `encoder.json`, where these are known.
        assert_eq!(characters[usize::from(b' ')], 'Ġ');
        assert_eq!(characters[usize::from(b'\n')], 'Ċ');
        assert_eq!(characters[usize::from(b'\t')], 'ĉ');
        assert_eq!(characters[0x7f], 'ġ');
        assert_eq!(characters[0xad], 'Ń');
    }

    #[test]
    fn a_token_outside_the_alphabet_stands_for_itself() {
        assert_eq!(Spelling::ByteLevel.bytes("Ġé"), b" \xe9");
        assert_eq!(Spelling::ByteLevel.bytes("Ġ<｜User｜>"), "Ġ<｜User｜>".as_bytes());
        assert_eq!(Spelling::ByteLevel.bytes(""), b"");
    }

    #[test]
    fn spm_spells_spaces_and_lone_bytes() {
        let llama = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let spelling = Spelling::from_decoder(Some(&llama)).unwrap();
        assert_eq!(spelling.bytes("▁Hello"), b" Hello");
        assert_eq!(spelling.bytes("<0xE2>"), b"\xe2");
        assert_eq!(spelling.bytes("<0xZ2>"), b"<0xZ2>");
        assert_eq!(spelling.bytes("<0x+2>"), b"<0x+2>");
        assert_eq!(spelling.added_text("▁▁"), "  ");
        let metaspace =
            json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"});
        assert_eq!(Spelling::from_decoder(Some(&metaspace)).unwrap().bytes("_a"), b" a");
    }

    #[test]
    fn decoders_that_need_the_whole_text_are_refused() {
        let refused = [
            Value::Null,
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"}]}),
            json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"},
                {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"}]}),
            json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "c"}),
            json!({"type": "Replace", "pattern": {"String": ""}, "content": "c"}),
            json!({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "ByteFallback"}]}),
        ];
        for decoder in &refused {
            let error = Spelling::from_decoder(Some(decoder)).unwrap_err();
            assert!(error.detail().contains("decoder"), "{decoder}: {error}");
        }
    }
}
