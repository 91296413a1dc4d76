//! Long texts in pieces that know nothing of each other, as Kimi's code cuts them for tiktoken.
//!
//! The cuts move token boundaries, so they must be the same. A piece ends after 400,000 characters, and
//! where a run of white space, or of anything else, gets longer than 25,000. Both are counted from where
//! the code's text begins: through `transformers` that is the last token of a few that it looks for
//! itself, and not every added token.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, MatchKind};

use super::{AddedToken, Encoder, SafeCuts};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// The longest piece, in characters.
const PIECE: usize = 400_000;
/// The longest run of one kind in a piece, in characters.
const RUN: usize = 25_000;

/// A vocabulary's rule for long texts.
#[derive(Clone)]
pub struct Chunks {
    /// Behind these tokens counting begins anew.
    restarts: HashSet<String>,
}

impl Chunks {
    /// With the tokens at which counting begins anew.
    #[must_use]
    pub fn new(restarts: HashSet<String>) -> Self {
        Self { restarts }
    }

    /// The tokens, in a fixed order.
    pub(super) fn restarts(&self) -> Vec<&str> {
        let mut restarts: Vec<&str> = self.restarts.iter().map(String::as_str).collect();
        restarts.sort_unstable();
        restarts
    }

    /// Refuses the cuts at which the code goes on counting.
    pub(super) fn judge(&self, added: &[AddedToken], cuts: &mut SafeCuts) {
        for token in added.iter().filter(|token| !self.restarts.contains(&token.content)) {
            cuts.refuse_both(token, || {
                "long texts are cut by their length, which is counted on across it".to_owned()
            });
        }
    }
}

/// An encoder that is given long texts in pieces.
pub(super) struct Chunked {
    encoder: Box<dyn Encoder>,
    restarts: AhoCorasick,
}

impl Chunked {
    /// # Errors
    /// [`Profile`](crate::ErrorKind::Profile) when the tokens are too many to search for.
    pub(super) fn new(encoder: Box<dyn Encoder>, chunks: &Chunks) -> Result<Self> {
        let restarts = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(chunks.restarts())
            .map_err(|error| {
                Error::profile("the added tokens are too many to search for").with_source(error)
            })?;
        Ok(Self { encoder, restarts })
    }

    fn encode_stretch(&self, text: &str, control: bool, out: &mut Vec<TokenId>) -> Result<()> {
        let mut rest = text;
        for length in pieces(text) {
            let (piece, behind) = rest.split_at(length);
            self.encoder.encode(piece, control, out)?;
            rest = behind;
        }
        self.encoder.encode(rest, control, out)
    }
}

/// The lengths in bytes of all pieces but the last.
fn pieces(text: &str) -> Vec<usize> {
    let mut lengths = Vec::new();
    let (mut start, mut run, mut kind) = (0, 0, false);
    for (number, (at, character)) in text.char_indices().enumerate() {
        let blank = is_space(character);
        run = if blank == kind { run + 1 } else { 1 };
        if at > 0 && (number % PIECE == 0 || run > RUN) {
            lengths.push(at - start);
            (start, run) = (at, 1);
        }
        kind = blank;
    }
    lengths
}

/// White space as Python's `str.isspace` has it: Unicode's, and the four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

impl Encoder for Chunked {
    fn encode(&self, text: &str, control: bool, out: &mut Vec<TokenId>) -> Result<()> {
        // As many bytes are no more characters.
        if text.len() <= RUN {
            return self.encoder.encode(text, control, out);
        }
        let mut from = 0;
        if control {
            for found in self.restarts.find_iter(text) {
                self.encode_stretch(&text[from..found.start()], control, out)?;
                self.encoder.encode(&text[found.range()], control, out)?;
                from = found.end();
            }
        }
        self.encode_stretch(&text[from..], control, out)
    }

    fn name(&self) -> &'static str {
        self.encoder.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Oracle: the rule, worked by hand.
    #[test]
    fn pieces_end_where_a_run_or_the_text_gets_too_long() {
        let lengths = |text: &str| pieces(text);
        assert!(lengths("").is_empty());
        assert!(lengths(&"a".repeat(25_000)).is_empty());
        assert_eq!(lengths(&"a".repeat(75_001)), [25_000; 3]);
        assert_eq!(lengths(&"é".repeat(25_001)), [50_000]);
        assert_eq!(lengths(&format!("a{}", "\u{1c}\u{3000}".repeat(12_501))), [1 + 12_500 * 4]);
        assert!(lengths(&format!("{} {}", "a".repeat(25_000), "a".repeat(25_000))).is_empty());
        // The end of a piece ends a run too, and the next piece begins with what is there.
        let words = "a ".repeat(195_000);
        assert_eq!(lengths(&format!("{words}{}", "b".repeat(40_000))), [400_000, 25_000]);
        assert_eq!(lengths(&"a ".repeat(450_000)), [400_000, 400_000]);
    }
}
