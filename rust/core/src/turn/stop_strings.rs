//! Texts that end a turn, whatever tokens spell them (`stop_strings` of `generation_config.json`).
//!
//! Text and ids are cut at the same place: before the stop string. The ids in which it begins go with
//! it, and what they spell before it is encoded again, at most a token's worth (law 2 exempts that).

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::profile::Profile;
use crate::token::TokenId;
use crate::tokenizer::Place;

/// Looks for stop strings in what is sampled. It holds back what may become one.
#[derive(Debug)]
pub(super) struct StopStrings {
    strings: Arc<[String]>,
    /// Text that is not told yet.
    held: String,
    /// The sampled ids that spell stretches of it.
    spelled: Vec<Spelled>,
    /// How many sampled ids were seen.
    seen: usize,
}

#[derive(Debug)]
struct Spelled {
    ids: Range<usize>,
    /// The beginning of what they spell, which is told.
    told: String,
    /// The rest, in the held text.
    text: Range<usize>,
}

/// Where the ids of a turn are cut.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// How many of them stay as they were sampled.
    pub(super) keep: usize,
    /// What the next one spelled before the stop string.
    pub(super) rest: String,
}

impl Cut {
    /// The ids that stand for the rest, as text further on and not as a run of its own.
    pub(super) fn ids(&self, profile: &Profile) -> Result<Vec<TokenId>> {
        if self.rest.is_empty() {
            return Ok(Vec::new());
        }
        let encode = |text: &str| {
            let mut ids = Vec::new();
            profile.vocabulary().encode_run(text, Place::Later, false, &mut ids).map(|()| ids)
        };
        let plain = encode(&self.rest)?;
        if profile.decode(&plain)? == self.rest {
            return Ok(plain);
        }
        // A vocabulary that puts a blank before a run: it stands before the newline here.
        let (newline, behind) = (encode("\n")?, encode(&format!("\n{}", self.rest))?);
        Ok(behind.strip_prefix(newline.as_slice()).map(<[TokenId]>::to_vec).unwrap_or_default())
    }
}

impl StopStrings {
    pub(super) fn new(strings: Arc<[String]>) -> Self {
        Self { strings, held: String::new(), spelled: Vec::new(), seen: 0 }
    }

    /// Takes the text that the id with this number has completed, and gives what may be told; with a
    /// cut, it was the last.
    pub(super) fn push(&mut self, index: usize, text: &str) -> (String, Option<Cut>) {
        let start = self.held.len();
        self.held.push_str(text);
        let (ids, text) = (self.seen..index + 1, start..self.held.len());
        self.spelled.push(Spelled { ids, told: String::new(), text });
        self.seen = index + 1;
        let found = self.strings.iter().filter_map(|string| self.held.find(string.as_str())).min();
        if let Some(at) = found {
            let begins = self.spelled.iter().find(|spelled| spelled.text.end > at);
            let cut = begins.map(|Spelled { ids, told, text }| Cut {
                keep: ids.start,
                rest: format!("{told}{}", self.held.get(text.start..at).unwrap_or_default()),
            });
            self.held.truncate(at);
            return (self.flush(index), cut);
        }
        let may_begin = |at: &usize| {
            let rest = self.held.get(*at..).unwrap_or_default();
            !rest.is_empty() && self.strings.iter().any(|string| string.starts_with(rest))
        };
        let longest = self.strings.iter().map(String::len).max().unwrap_or_default();
        let first = self.held.len().saturating_sub(longest);
        let from = (first..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(may_begin)
            .unwrap_or(self.held.len());
        for Spelled { told, text, .. } in &mut self.spelled {
            told.push_str(self.held.get(text.start..from.min(text.end)).unwrap_or_default());
            *text = text.start.saturating_sub(from)..text.end.saturating_sub(from);
        }
        self.spelled.retain(|spelled| !spelled.text.is_empty());
        let rest = self.held.split_off(from);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// What is held back, because something else than text follows the id with this number, or nothing.
    pub(super) fn flush(&mut self, index: usize) -> String {
        self.spelled.clear();
        self.seen = index + 1;
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn stops(strings: &[&str]) -> StopStrings {
        StopStrings::new(strings.iter().map(|string| (*string).to_owned()).collect())
    }

    #[test]
    fn what_may_become_a_stop_string_is_held_back() {
        let mut stops = stops(&["User:", "###"]);
        assert_eq!(stops.push(0, "a U"), ("a ".to_owned(), None));
        assert_eq!(stops.push(1, "ser"), (String::new(), None));
        assert_eq!(stops.push(2, " b#"), ("User b".to_owned(), None));
        assert_eq!(stops.flush(2), "#");
    }

    #[test]
    fn ids_are_cut_where_the_text_is() {
        let cut = |keep, rest: &str| Some(Cut { keep, rest: rest.to_owned() });
        let mut one = stops(&["User:"]);
        assert_eq!(one.push(0, "a"), ("a".to_owned(), None));
        assert_eq!(one.push(1, "}\nUs"), ("}\n".to_owned(), None));
        // What the cut id spelled before it was told already.
        assert_eq!(one.push(2, "er:"), (String::new(), cut(1, "}\n")));
        let mut whole = stops(&["User:"]);
        assert_eq!(whole.push(0, "a\nUser: hi"), ("a\n".to_owned(), cut(0, "a\n")));
        // An id that ended within a character spells it with the next.
        let mut halves = stops(&["."]);
        assert_eq!(halves.push(0, "x"), ("x".to_owned(), None));
        assert_eq!(halves.push(2, "é."), ("é".to_owned(), cut(1, "é")));
    }

    proptest! {
        /// Told is everything before the first stop string, however the text was cut into ids.
        #[test]
        fn what_is_told_ends_where_the_first_one_begins(
            pieces in vec("[abé]{0,4}", 0..8),
            strings in vec("[abé]{1,3}", 1..3),
        ) {
            let mut stops = StopStrings::new(strings.clone().into());
            let (mut told, mut ended, mut seen) = (String::new(), false, String::new());
            for (index, piece) in pieces.iter().enumerate().filter(|(_, piece)| !piece.is_empty()) {
                seen.push_str(piece);
                let (text, cut) = stops.push(index, piece);
                told.push_str(&text);
                if let Some(cut) = cut {
                    let kept: String = pieces[..cut.keep].concat();
                    prop_assert_eq!(format!("{kept}{}", cut.rest), told.clone());
                    ended = true;
                    break;
                }
            }
            let first = strings.iter().filter_map(|string| seen.find(string.as_str())).min();
            prop_assert_eq!(first.is_some(), ended);
            if !ended {
                told.push_str(&stops.flush(pieces.len()));
            }
            prop_assert_eq!(&told, &seen[..first.unwrap_or(seen.len())]);
        }
    }
}
