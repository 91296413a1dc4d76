//! Keeping what clients wrote apart from what the template wrote, through the template.
//!
//! Under `trust = "strict"` no text may spell a control token, and none may steer the template. So
//! the template is not given a client's *texts* (messages, reasoning, outputs, raw arguments) but a
//! mark with a number for each, and [`super::script`] puts the texts where the marks were printed.
//! White space at both ends stays outside, because templates trim.
//!
//! *Words* (names, ids, and whatever is inside schemas and argument objects) templates compare,
//! split and escape, so they stay visible: bounded by marks, and with a mark inside every control
//! token that they spell. Those of only `[A-Za-z0-9_-]` go as they are, unless a control token is that
//! word between punctuation: then a template that prints `<` and the word and `>` would make it one.
//!
//! Marks are noncharacters (U+FDD0 to U+FDEF), which templates print like any other character; those
//! that a client sends in a word are coded.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashSet;

use aho_corasick::{AhoCorasick, MatchKind};

use super::python::is_space;
use crate::error::{Error, Result};
use crate::tokenizer::{AddedToken, Vocabulary};

/// Begins the number of a text, which [`CLOSE`] ends.
pub(super) const TEXT: char = '\u{fdd0}';
/// Ends the number of a text.
pub(super) const CLOSE: char = '\u{fdd1}';
/// The same as [`TEXT`], of a text that a template printed as JSON.
pub(super) const JSON_TEXT: char = '\u{fdd2}';
/// The same as [`TEXT`], of a text that a template printed as JSON in ASCII.
pub(super) const ASCII_TEXT: char = '\u{fdd5}';
/// At both ends of a word, and within the control tokens that it spells.
const EDGE: char = '\u{fdd3}';
/// Begins a coded character: six digits follow.
const CODE: char = '\u{fdd4}';
/// In the order of [`Mark`].
const MARKS: [(char, Mark); 6] = [
    (TEXT, Mark::Text),
    (CLOSE, Mark::Nothing),
    (JSON_TEXT, Mark::JsonText),
    (EDGE, Mark::Nothing),
    (CODE, Mark::Code),
    (ASCII_TEXT, Mark::AsciiText),
];
const DIGITS: std::ops::RangeInclusive<char> = '\u{fde0}'..='\u{fdef}';
const NUMBER_DIGITS: u32 = 8;
const CODE_DIGITS: u32 = 6;

/// Whether a character may be a mark: a client's must be coded.
pub(super) fn is_reserved(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&c)
}

fn is_word_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// `number` in so many digits, at least.
fn digits(number: u32, at_least: u32) -> impl Iterator<Item = char> {
    let digit = |nibble: u32| char::from_u32(u32::from(*DIGITS.start()) + (nibble & 0xf));
    let count = (u32::BITS - number.leading_zeros()).div_ceil(4).max(at_least);
    (0..count).rev().filter_map(move |place| digit(number >> (4 * place)))
}

/// The number that at most `most` digits at the start of `text` write, and their length in bytes.
fn number(text: &str, most: u32) -> (u32, usize) {
    let mut number = 0_u32;
    let mut length = 0;
    for c in text.chars().take(most as usize).take_while(|c| DIGITS.contains(c)) {
        number = (number << 4) | (u32::from(c) & 0xf);
        length += c.len_utf8();
    }
    (number, length)
}

/// The number of a text at the start of `text` (behind its mark), and the length of it.
pub(super) fn text_number(text: &str) -> (usize, usize) {
    let (number, length) = number(text, NUMBER_DIGITS);
    (number as usize, length)
}

/// A coded character at the start of `text` (behind its mark), and the length of its code.
pub(super) fn decoded(text: &str) -> (Option<char>, usize) {
    let (code, length) = number(text, CODE_DIGITS);
    (char::from_u32(code), length)
}

/// What a mark stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Text,
    JsonText,
    AsciiText,
    Code,
    Nothing,
}

/// What the finder found.
pub(super) enum Found<'a> {
    Mark(Mark),
    Token(&'a AddedToken),
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
    /// Control tokens of one character: a mark inside would not break those.
    single: HashSet<char>,
    /// Words that a control token is, between punctuation; in lower case.
    words: HashSet<String>,
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
        let marks = MARKS.iter().map(|(mark, _)| mark.to_string()).filter(|_| strict);
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(marks.chain(contents()))
            .map_err(too_many)?;
        let strict = if strict {
            let mut builder = AhoCorasick::builder();
            let speller = builder.ascii_case_insensitive(true).build(contents());
            let words = tokens.iter().filter_map(|token| word_of(&token.content)).collect();
            let alone = |token: &AddedToken| {
                let mut characters = token.content.chars();
                characters.next().filter(|_| characters.next().is_none())
            };
            let single = tokens.iter().filter_map(alone).collect();
            Some(Strict { speller: speller.map_err(too_many)?, single, words })
        } else {
            None
        };
        Ok(Self { tokens, finder, strict })
    }

    /// What the pattern of the finder with this number is.
    pub(super) fn found(&self, pattern: usize) -> Option<Found<'_>> {
        let marks = if self.strict.is_some() { MARKS.len() } else { 0 };
        match pattern.checked_sub(marks) {
            Some(index) => self.tokens.get(index).map(Found::Token),
            None => MARKS.get(pattern).map(|(_, mark)| Found::Mark(*mark)),
        }
    }

    /// A name, an id, or a string inside an object, as the template is given it.
    pub(super) fn word<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let core = text.trim_matches(is_space);
        let Some(strict) = self.strict.as_ref().filter(|_| !core.is_empty()) else {
            return Cow::Borrowed(text);
        };
        let plain = text.chars().all(is_word_character) && !strict.speller.is_match(text);
        if plain && !strict.words.contains(&text.to_ascii_lowercase()) {
            return Cow::Borrowed(text);
        }
        let lead = text.len() - text.trim_start_matches(is_space).len();
        let first = |at: usize| core.get(at..).and_then(|rest| rest.chars().next());
        // Where a mark goes: behind the first character of each control token.
        let mut breaks: Vec<usize> = strict
            .speller
            .find_overlapping_iter(core)
            .map(|found| found.start() + first(found.start()).map_or(1, char::len_utf8))
            .collect();
        breaks.sort_unstable();
        breaks.dedup();
        let mut breaks = breaks.into_iter().peekable();
        let mut out = String::with_capacity(text.len() + 16);
        out.push_str(&text[..lead]);
        out.push(EDGE);
        for (at, c) in core.char_indices() {
            if is_reserved(c) || strict.single.contains(&c) {
                out.push(CODE);
                out.extend(digits(u32::from(c), CODE_DIGITS));
            } else {
                out.push(c);
            }
            if breaks.next_if_eq(&(at + c.len_utf8())).is_some() {
                out.push(EDGE);
            }
        }
        out.push(EDGE);
        out.push_str(&text[lead + core.len()..]);
        Cow::Owned(out)
    }
}

/// The texts that a template was not given, by number; each with the number of its item.
pub(super) struct Texts<'t> {
    hide: bool,
    kept: RefCell<Vec<(&'t str, usize)>>,
}

impl<'t> Texts<'t> {
    /// None yet. Under compat none will be hidden.
    pub(super) fn new(control: &ControlTokens) -> Self {
        Self { hide: control.strict.is_some(), kept: RefCell::default() }
    }

    /// A client's text as the template is given it; `item` is its number in the conversation, 0 for
    /// the header.
    pub(super) fn give(&self, text: &'t str, item: usize) -> Cow<'t, str> {
        let core = text.trim_matches(is_space);
        if !self.hide || core.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut kept = self.kept.borrow_mut();
        let number = u32::try_from(kept.len()).unwrap_or(u32::MAX);
        kept.push((core, item));
        let (lead, rest) = text.split_at(text.len() - text.trim_start_matches(is_space).len());
        let mut out = String::with_capacity(lead.len() + 32);
        out.push_str(lead);
        out.push(TEXT);
        out.extend(digits(number, 1));
        out.push(CLOSE);
        out.push_str(&rest[core.len()..]);
        Cow::Owned(out)
    }

    /// Whether texts are hidden at all.
    pub(super) fn hides(&self) -> bool {
        self.hide
    }

    /// All of them.
    pub(super) fn into_kept(self) -> Vec<(&'t str, usize)> {
        self.kept.into_inner()
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
