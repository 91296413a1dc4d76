//! Keeping what clients wrote apart from what the template wrote, through the template.
//!
//! Under `trust = "strict"` no text may spell a control token, and none may steer the template. So
//! every text of a client goes into the template *marked*: a mark before it that also says which
//! item it is from, a mark behind it, and a code in place of one character of every control token
//! that it spells. A template prints marks like any other character; [`super::script`] takes them
//! out again. Marks are noncharacters (U+FDD0 to U+FDEF), and those that a client sends are coded
//! too.
//!
//! White space at both ends stays outside the marks, because templates trim. Words (`[A-Za-z0-9_-]+`)
//! in schemas and names go unmarked, because templates compare them (`type == "string"`), unless a
//! control token is that word between punctuation: then a template that prints `<` and the word and
//! `>` would make it one.

use std::borrow::Cow;
use std::collections::HashSet;

use aho_corasick::{AhoCorasick, MatchKind};

use super::python::is_space;
use crate::error::{Error, Result};
use crate::tokenizer::{AddedToken, Vocabulary};

/// Begins a client's text; the item's number in digits follows.
pub(super) const OPEN: char = '\u{fdd0}';
/// Ends it.
pub(super) const CLOSE: char = '\u{fdd1}';
/// Begins a coded character: six digits follow.
pub(super) const CODE: char = '\u{fdd2}';
const DIGITS: std::ops::RangeInclusive<char> = '\u{fde0}'..='\u{fdef}';
const CODE_DIGITS: u32 = 6;

/// Whether a client's character must be coded.
pub(super) fn is_reserved(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&c)
}

fn is_word_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn digit(nibble: u32) -> char {
    char::from_u32(u32::from(*DIGITS.start()) + (nibble & 0xf)).unwrap_or(*DIGITS.start())
}

/// The number that the digits at the start of `text` write, at most `most` of them, and their
/// length in bytes.
pub(super) fn number(text: &str, most: usize) -> (u32, usize) {
    let mut number = 0_u32;
    let mut length = 0;
    for c in text.chars().take(most).take_while(|c| DIGITS.contains(c)) {
        number = (number << 4) | (u32::from(c) & 0xf);
        length += c.len_utf8();
    }
    (number, length)
}

/// A coded character at the start of `text` (behind [`CODE`]), and the length of its code.
pub(super) fn decoded(text: &str) -> (Option<char>, usize) {
    let (code, length) = number(text, CODE_DIGITS as usize);
    (char::from_u32(code), length)
}

/// The control tokens of a vocabulary, as they are looked for in printed text and in what clients
/// write.
pub struct ControlTokens {
    tokens: Vec<AddedToken>,
    /// Leftmost-longest; under strict, the marks come first.
    pub(super) finder: AhoCorasick,
    /// None under compat, where nothing is marked.
    strict: Option<Strict>,
}

struct Strict {
    /// Finds every token, also within another, in any case: a template may change it.
    speller: AhoCorasick,
    /// Words that a control token is, between punctuation; in lower case.
    words: HashSet<String>,
}

/// What the finder found.
pub(super) enum Found<'a> {
    Open,
    Close,
    Code,
    Token(&'a AddedToken),
}

impl ControlTokens {
    /// The control tokens of `vocabulary`; `strict` to mark what clients write.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] when they are too many to search for.
    pub fn new(vocabulary: &Vocabulary, strict: bool) -> Result<Self> {
        let too_many = |error| {
            Error::profile("the control tokens are too many to search for").with_source(error)
        };
        let control = vocabulary.added.iter().filter(|token| vocabulary.is_control(token.id));
        let tokens: Vec<AddedToken> = control.cloned().collect();
        let contents = || tokens.iter().map(|token| token.content.clone());
        let marks = if strict { vec![OPEN, CLOSE, CODE] } else { Vec::new() };
        let patterns = marks.iter().map(char::to_string).chain(contents());
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns)
            .map_err(too_many)?;
        let strict = if strict {
            let mut builder = AhoCorasick::builder();
            let speller = builder.ascii_case_insensitive(true).build(contents());
            let words = tokens.iter().filter_map(|token| word_of(&token.content)).collect();
            Some(Strict { speller: speller.map_err(too_many)?, words })
        } else {
            None
        };
        Ok(Self { tokens, finder, strict })
    }

    /// What the pattern of the finder with this number is.
    pub(super) fn found(&self, pattern: usize) -> Option<Found<'_>> {
        let marks = if self.strict.is_some() { 3 } else { 0 };
        Some(match pattern.checked_sub(marks) {
            Some(index) => Found::Token(self.tokens.get(index)?),
            None if pattern == 0 => Found::Open,
            None if pattern == 1 => Found::Close,
            None => Found::Code,
        })
    }

    /// A client's text as the template is given it; `item` is its number in the conversation, 0 for
    /// the header.
    pub(super) fn text<'t>(&self, text: &'t str, item: usize) -> Cow<'t, str> {
        let core = text.trim_matches(is_space);
        let Some(strict) = self.strict.as_ref().filter(|_| !core.is_empty()) else {
            return Cow::Borrowed(text);
        };
        let lead = text.len() - text.trim_start_matches(is_space).len();
        let mut out = String::with_capacity(text.len() + 24);
        out.push_str(&text[..lead]);
        out.push(OPEN);
        let item = u32::try_from(item).unwrap_or(u32::MAX);
        let nibbles = (32 - item.leading_zeros()).div_ceil(4).max(1);
        out.extend((0..nibbles).rev().map(|place| digit(item >> (4 * place))));
        let coded = strict.speller.find_overlapping_iter(core).map(|found| {
            let spelled = &core[found.range()];
            // Not one that JSON would escape: the template may print the text as JSON.
            let plain = |c: char| c >= ' ' && c != '"' && c != '\\';
            found.start() + spelled.find(plain).unwrap_or(0)
        });
        let mut places: Vec<usize> = coded.collect();
        let noncharacters = memchr::memmem::find_iter(core.as_bytes(), b"\xef\xb7");
        places.extend(noncharacters.filter(|&at| {
            core.get(at..).and_then(|rest| rest.chars().next()).is_some_and(is_reserved)
        }));
        places.sort_unstable();
        places.dedup();
        let mut from = 0;
        for at in places {
            let Some(c) = core.get(at..).and_then(|rest| rest.chars().next()) else { continue };
            out.push_str(&core[from..at]);
            out.push(CODE);
            let number = u32::from(c);
            out.extend((0..CODE_DIGITS).rev().map(|place| digit(number >> (4 * place))));
            from = at + c.len_utf8();
        }
        out.push_str(&core[from..]);
        out.push(CLOSE);
        out.push_str(&text[lead + core.len()..]);
        Cow::Owned(out)
    }

    /// A name, a key or a string of a schema.
    pub(super) fn word<'t>(&self, text: &'t str, item: usize) -> Cow<'t, str> {
        let plain = !text.is_empty() && text.chars().all(is_word_character);
        let harmless = |strict: &Strict| !strict.words.contains(&text.to_ascii_lowercase());
        if plain && self.strict.as_ref().is_none_or(harmless) {
            return Cow::Borrowed(text);
        }
        self.text(text, item)
    }
}

/// The word that a control token is between punctuation.
fn word_of(content: &str) -> Option<String> {
    let inner = content.trim_matches(|c: char| !is_word_character(c));
    let lead = content.find(is_word_character)?;
    let plain =
        lead > 0 && lead + inner.len() < content.len() && inner.chars().all(is_word_character);
    plain.then(|| inner.to_ascii_lowercase())
}
