//! Sampled ids to text, one id at a time.
//!
//! A table gives the bytes of every id; the only state is the unfinished character at the end of
//! what has been seen (at most three bytes). So the text does not depend on how the ids were cut
//! into pushes (law 6), and an id costs the same at any length of output.

use crate::error::{Error, Result};
use crate::token::TokenId;
use crate::tokenizer::Piece;

/// Bytes of an unfinished UTF-8 character: one less than its longest form.
const HELD: usize = 3;

/// A piece of decoded output, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// Whole characters, never empty.
    Text(&'a str),
    /// An added token.
    Added {
        /// Its id.
        id: TokenId,
        /// Its text.
        content: &'a str,
        /// Whether the vocabulary calls it special.
        special: bool,
    },
}

/// Turns ids into [`Decoded`] pieces.
///
/// The texts between two added tokens, joined, equal `String::from_utf8_lossy` of the joined bytes
/// of the ids between them: a sequence that is not UTF-8 becomes U+FFFD once it can no longer
/// become a character, and at the latest when the output ends or an added token follows.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    /// The bytes of a character that is not complete yet.
    held: [u8; HELD],
    held_len: usize,
    /// Kept between calls for its memory only.
    bytes: Vec<u8>,
    text: String,
}

impl Detokenizer {
    /// With nothing held back.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes one id by the table of its vocabulary ([`Vocabulary::pieces`]).
    ///
    /// [`Vocabulary::pieces`]: crate::tokenizer::Vocabulary::pieces
    ///
    /// # Errors
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for `ids`: the vocabulary has no such id.
    /// Nothing is lost: what was held back stays held back.
    pub fn push(
        &mut self,
        pieces: &[Piece],
        id: TokenId,
        sink: &mut impl FnMut(Decoded<'_>),
    ) -> Result<()> {
        match pieces.get(id as usize) {
            Some(Piece::Bytes(bytes)) => {
                self.push_bytes(bytes, sink);
                Ok(())
            }
            Some(Piece::Added(content, special)) => {
                self.flush(sink);
                sink(Decoded::Added { id, content, special: *special });
                Ok(())
            }
            Some(Piece::Unknown) | None => {
                Err(Error::invalid_value("ids", format!("The vocabulary has no token {id}.")))
            }
        }
    }

    /// The output has ended: an unfinished character becomes U+FFFD.
    pub fn flush(&mut self, sink: &mut impl FnMut(Decoded<'_>)) {
        if self.held_len > 0 {
            // What is held is always one prefix of one character, hence one U+FFFD.
            self.held_len = 0;
            sink(Decoded::Text("\u{fffd}"));
        }
    }

    fn push_bytes(&mut self, piece: &[u8], sink: &mut impl FnMut(Decoded<'_>)) {
        if self.held_len == 0
            && let Ok(text) = std::str::from_utf8(piece)
        {
            if !text.is_empty() {
                sink(Decoded::Text(text));
            }
            return;
        }
        self.bytes.clear();
        self.bytes.extend(self.held.iter().take(self.held_len));
        self.bytes.extend_from_slice(piece);
        self.held_len = 0;
        self.text.clear();
        let mut chunks = self.bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if chunks.peek().is_none() && is_unfinished(invalid) {
                for (held, &byte) in self.held.iter_mut().zip(invalid) {
                    *held = byte;
                }
                self.held_len = invalid.len().min(HELD);
            } else {
                self.text.push('\u{fffd}');
            }
        }
        if !self.text.is_empty() {
            sink(Decoded::Text(&self.text));
        }
    }
}

/// Whether more bytes could still make a character of these, which end the input.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// The whole text of `ids`, added tokens by their content.
///
/// # Errors
/// As [`Detokenizer::push`].
pub fn decode(pieces: &[Piece], ids: &[TokenId]) -> Result<String> {
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new();
    let mut sink = |decoded: Decoded<'_>| match decoded {
        Decoded::Text(run) => text.push_str(run),
        Decoded::Added { content, .. } => text.push_str(content),
    };
    for &id in ids {
        detokenizer.push(pieces, id, &mut sink)?;
    }
    detokenizer.flush(&mut sink);
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;

    fn bytes(piece: &[u8]) -> Piece {
        Piece::Bytes(piece.into())
    }

    /// What comes out, one line per piece.
    fn run(pieces: &[Piece], ids: &[TokenId]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut detokenizer = Detokenizer::new();
        let mut sink = |decoded: Decoded<'_>| match decoded {
            Decoded::Text(text) => lines.push(text.to_owned()),
            Decoded::Added { id, content, special } => {
                lines.push(format!("[{id} {content} {special}]"));
            }
        };
        for &id in ids {
            detokenizer.push(pieces, id, &mut sink).unwrap();
        }
        detokenizer.flush(&mut sink);
        lines
    }

    #[test]
    fn characters_come_out_whole_and_as_soon_as_they_are() {
        let pieces = [
            bytes(b"a\xf0\x9f"),
            bytes(b"\x99"),
            bytes(b"\x82b\xe2"),
            bytes(b""),
            bytes(b"\x82\xac"),
        ];
        assert_eq!(run(&pieces, &[0, 1, 3, 2, 4]), ["a", "🙂b", "€"]);
    }

    #[test]
    fn an_added_token_ends_a_character() {
        let pieces = [bytes(b"\xe2\x82"), Piece::Added("<think>".into(), false), bytes(b"\xac")];
        assert_eq!(run(&pieces, &[0, 1, 2]), ["\u{fffd}", "[1 <think> false]", "\u{fffd}"]);
        assert_eq!(decode(&pieces, &[0, 2, 1]).unwrap(), "€<think>");
    }

    #[test]
    fn an_unknown_id_is_the_callers_mistake_and_loses_nothing() {
        let pieces = [bytes(b"\xc3"), Piece::Unknown, bytes(b"\xa9")];
        for id in [1, 3, TokenId::MAX] {
            let error = decode(&pieces, &[id]).unwrap_err();
            assert_eq!((error.kind(), error.param()), (ErrorKind::InvalidValue, Some("ids")));
        }
        let mut detokenizer = Detokenizer::new();
        let mut text = String::new();
        let mut sink = |decoded: Decoded<'_>| {
            if let Decoded::Text(run) = decoded {
                text.push_str(run);
            }
        };
        detokenizer.push(&pieces, 0, &mut sink).unwrap();
        assert!(detokenizer.push(&pieces, 1, &mut sink).is_err());
        detokenizer.push(&pieces, 2, &mut sink).unwrap();
        assert_eq!(text, "é");
    }

    /// Bytes that begin, continue or break characters, and a few that are neither.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            Just(b'a'),
            0x80..=0xbf_u8,
            0xc0..=0xff_u8,
            any::<u8>(),
            prop::sample::select(vec![0xe0, 0xed, 0xf0, 0xf4, 0x9f, 0xa0, 0x8f, 0x90]),
        ];
        prop_oneof![
            prop::collection::vec(byte, 0..6),
            any::<char>().prop_map(|character| character.to_string().into_bytes()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// Oracle: `String::from_utf8_lossy` over all the bytes (law 6: however they are cut).
        #[test]
        fn the_text_is_that_of_the_joined_bytes(cut in prop::collection::vec(piece(), 0..12)) {
            let pieces: Vec<Piece> = cut.iter().map(|piece| bytes(piece)).collect();
            let ids: Vec<TokenId> = (0..).take(pieces.len()).collect();
            let joined = cut.concat();
            prop_assert_eq!(run(&pieces, &ids).concat(), String::from_utf8_lossy(&joined));
            let single: Vec<Piece> = joined.iter().map(|&byte| bytes(&[byte])).collect();
            let ids: Vec<TokenId> = (0..).take(single.len()).collect();
            prop_assert_eq!(run(&single, &ids).concat(), String::from_utf8_lossy(&joined));
        }
    }
}
