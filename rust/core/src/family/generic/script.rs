//! A printed conversation, read: its text, the control tokens in it, and where it may be cut.
//!
//! The text is kept as bytes in which a control token is one *atom*: a byte that no text has, and
//! the token's id. So two scripts are the same bytes exactly when they stand for the same tokens
//! and texts, and what ids spell can be compared with what a template printed, whatever either is
//! made of.

use std::ops::Range;

use super::marks::{ControlTokens, Found, Mark, decoded, text_number};
use super::python;
use super::template::{OUTPUT_PER_BYTE, prints_too_much};
use crate::chain::Imprint;
use crate::detokenize::{Decoded, Detokenizer};
use crate::error::Result;
use crate::family::marker::Marker;
use crate::family::render::Sink;
use crate::token::TokenId;
use crate::tokenizer::{Place, Vocabulary};

/// Begins an atom; UTF-8 has no such byte.
const ATOM: u8 = 0xff;
const ATOM_LEN: usize = 1 + size_of::<TokenId>();

/// A control token in a script.
#[derive(Debug, Clone)]
struct Atom {
    /// Where its bytes begin.
    at: usize,
    id: TokenId,
    /// Its place in the printed text, with the white space that it swallows.
    printed: Range<usize>,
}

/// See the module.
#[derive(Debug)]
pub struct Script {
    bytes: Vec<u8>,
    atoms: Vec<Atom>,
    /// Where the script may be cut (law 4), in order; its start and end are among them.
    cuts: Vec<usize>,
    /// (place, item number) of each text of a client, in order; empty under compat.
    marks: Vec<(usize, usize)>,
    /// The text as printed: what compat encodes, since there the reference's own scan decides what
    /// is a control token.
    printed: Option<String>,
}

impl Script {
    /// Reads a printed text, and puts `texts` where their marks stand: each with the number of its
    /// item. With `compat` it is encoded as the reference would.
    ///
    /// # Errors
    /// `invalid_value` at `input` when the template prints texts again and again.
    pub fn read(
        printed: String,
        texts: &[(&str, usize)],
        control: &ControlTokens,
        vocabulary: &Vocabulary,
        compat: bool,
    ) -> Result<Self> {
        let given: usize = printed.len() + texts.iter().map(|(text, _)| text.len()).sum::<usize>();
        let mut script = Self {
            bytes: Vec::with_capacity(given),
            atoms: Vec::new(),
            cuts: vec![0],
            marks: Vec::new(),
            printed: None,
        };
        let mut from = 0;
        for found in control.finder.find_iter(&printed) {
            if found.start() < from {
                continue;
            }
            let (before, rest) = (&printed[from..found.start()], &printed[found.end()..]);
            match control.found(found.pattern().as_usize()) {
                Some(Found::Mark(mark)) => {
                    script.bytes.extend_from_slice(before.as_bytes());
                    from = found.end() + script.put(mark, rest, texts);
                    if script.bytes.len() > OUTPUT_PER_BYTE * given {
                        return Err(prints_too_much());
                    }
                }
                Some(Found::Token(token)) => {
                    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                    let beside =
                        [printed[..found.start()].chars().next_back(), rest.chars().next()];
                    if token.single_word && beside.into_iter().any(word) {
                        continue;
                    }
                    script.bytes.extend_from_slice(before.as_bytes());
                    let mut start = found.start();
                    if token.lstrip {
                        let floor = script.atoms.last().map_or(0, |atom| atom.at + ATOM_LEN);
                        let run = String::from_utf8_lossy(&script.bytes[floor..]);
                        let kept = run.trim_end().len();
                        start -= (run.len() - kept).min(before.len());
                        script.bytes.truncate(floor + kept);
                    }
                    from = found.end();
                    if token.rstrip {
                        from += rest.len() - rest.trim_start().len();
                    }
                    let at = script.bytes.len();
                    script.bytes.push(ATOM);
                    script.bytes.extend_from_slice(&token.id.to_le_bytes());
                    script.atoms.push(Atom { at, id: token.id, printed: start..from });
                    let (before, after) =
                        (vocabulary.cuts.before(token.id), vocabulary.cuts.after(token.id));
                    script.cuts.extend(before.then_some(at));
                    script.cuts.extend(after.then_some(at + ATOM_LEN));
                }
                None => {}
            }
        }
        script.bytes.extend_from_slice(&printed.as_bytes()[from..]);
        script.cuts.push(script.bytes.len());
        script.cuts.dedup();
        script.printed = compat.then_some(printed);
        Ok(script)
    }

    /// What a mark stands for; `rest` is what was printed behind it. Returns the length of what of that
    /// belongs to the mark.
    fn put(&mut self, mark: Mark, rest: &str, texts: &[(&str, usize)]) -> usize {
        match mark {
            Mark::Nothing => 0,
            Mark::Code => {
                let (coded, length) = decoded(rest);
                self.bytes.extend(coded.into_iter().flat_map(|c| c.to_string().into_bytes()));
                length
            }
            Mark::Text | Mark::JsonText | Mark::AsciiText => {
                let (number, length) = text_number(rest);
                if let Some((text, item)) = texts.get(number) {
                    self.marks.push((self.bytes.len(), *item));
                    if mark == Mark::Text {
                        self.bytes.extend_from_slice(text.as_bytes());
                    } else {
                        let quoted = python::quoted(text, mark == Mark::AsciiText);
                        let inner = quoted.get(1..quoted.len() - 1).unwrap_or_default();
                        self.bytes.extend_from_slice(inner.as_bytes());
                    }
                }
                length
            }
        }
    }

    /// The script as people read it.
    #[must_use]
    pub fn shown(&self, vocabulary: &Vocabulary) -> String {
        shown(&self.bytes, vocabulary)
    }

    /// Where it ends, in bytes.
    #[must_use]
    pub fn end(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the script may be cut there.
    #[must_use]
    pub fn is_cut(&self, at: usize) -> bool {
        self.cuts.binary_search(&at).is_ok()
    }

    /// The last cut beside a control token.
    #[must_use]
    pub fn last_cut(&self) -> Option<usize> {
        let last = self.atoms.last()?.at + ATOM_LEN;
        self.cuts.iter().rev().copied().find(|&cut| cut <= last)
    }

    /// The first cut before a control token, at or behind `at`.
    #[must_use]
    pub fn next_opening(&self, at: usize) -> Option<usize> {
        let first = self.atoms.partition_point(|atom| atom.at < at);
        self.atoms[first..].iter().map(|atom| atom.at).find(|&at| self.is_cut(at))
    }

    /// Where the control tokens of `range` end, with their ids.
    pub fn atoms(&self, range: Range<usize>) -> impl Iterator<Item = (usize, TokenId)> {
        let first = self.atoms.partition_point(|atom| atom.at < range.start);
        let inside = self.atoms[first..].iter().take_while(move |atom| atom.at < range.end);
        inside.map(|atom| (atom.at + ATOM_LEN, atom.id))
    }

    /// (place, item number) of each client's text in `range`.
    #[must_use]
    pub fn marks(&self, range: &Range<usize>) -> &[(usize, usize)] {
        let first = self.marks.partition_point(|(at, _)| *at < range.start);
        let last = self.marks.partition_point(|(at, _)| *at < range.end);
        self.marks.get(first..last).unwrap_or_default()
    }

    /// Whether what clients wrote is marked in it.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.printed.is_none()
    }

    /// The bytes of `range`.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// Whether what `imprint` is of stands at `at`.
    #[must_use]
    pub fn holds(&self, at: usize, imprint: &Imprint) -> bool {
        let range = at..at.saturating_add(imprint.len());
        self.bytes.get(range).is_some_and(|bytes| Imprint::of(bytes) == *imprint)
    }

    /// The ids of `range`, whose start is a cut, or the end of sampled ids that a control token
    /// follows.
    ///
    /// # Errors
    /// When an encoder fails.
    pub fn encode(&self, range: Range<usize>, vocabulary: &Vocabulary) -> Result<Vec<TokenId>> {
        let mut ids = Vec::new();
        let place = |at: usize| if at == 0 { Place::Start } else { Place::Later };
        if let Some(printed) = &self.printed {
            let text = &printed[self.place_of(range.start)..self.place_of(range.end)];
            vocabulary.encode_run(text, place(range.start), true, &mut ids)?;
            return Ok(ids);
        }
        let mut from = range.start;
        for (end, id) in self.atoms(range.clone()) {
            self.encode_run(from..end - ATOM_LEN, place(from), vocabulary, &mut ids)?;
            ids.push(id);
            from = end;
        }
        self.encode_run(from..range.end, place(from), vocabulary, &mut ids)?;
        Ok(ids)
    }

    fn encode_run(
        &self,
        range: Range<usize>,
        place: Place,
        vocabulary: &Vocabulary,
        ids: &mut Vec<TokenId>,
    ) -> Result<()> {
        // Between two atoms stands what was a string.
        let run = String::from_utf8_lossy(self.bytes(range));
        vocabulary.encode_run(&run, place, false, ids)
    }

    /// Where in the printed text the script's `at` is. Compat marks nothing, so only atoms differ.
    fn place_of(&self, at: usize) -> usize {
        let behind = self.atoms.partition_point(|atom| atom.at + ATOM_LEN <= at);
        let Some(atom) = behind.checked_sub(1).and_then(|last| self.atoms.get(last)) else {
            return at;
        };
        atom.printed.end + (at - atom.at - ATOM_LEN)
    }
}

/// Collects what a renderer writes as a script's bytes; no text in it spells a control token.
#[derive(Debug, Default)]
pub(super) struct ScriptSink(pub(super) Vec<u8>);

impl Sink for ScriptSink {
    fn text(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn marker(&mut self, marker: &Marker) {
        match marker {
            Marker::Token(id, _) => {
                self.0.push(ATOM);
                self.0.extend_from_slice(&id.to_le_bytes());
            }
            Marker::Text(content) => self.text(content),
        }
    }
}

/// What ids spell, as a script's bytes.
///
/// # Errors
/// `invalid_value` for an id that the vocabulary does not have.
pub fn spell(ids: &[TokenId], vocabulary: &Vocabulary) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut sink = |decoded: Decoded<'_>| match decoded {
        Decoded::Text(text) => bytes.extend_from_slice(text.as_bytes()),
        Decoded::Added { id, .. } if vocabulary.is_control(id) => {
            bytes.push(ATOM);
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        Decoded::Added { content, .. } => bytes.extend_from_slice(content.as_bytes()),
    };
    let mut detokenizer = Detokenizer::new();
    for &id in ids {
        detokenizer.push(&vocabulary.pieces, id, &mut sink)?;
    }
    detokenizer.flush(&mut sink);
    Ok(bytes)
}

/// A script's bytes as people read them.
#[must_use]
pub(crate) fn shown(bytes: &[u8], vocabulary: &Vocabulary) -> String {
    let mut text = String::new();
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|&byte| byte == ATOM) {
        let (before, atom) = rest.split_at(at);
        text.push_str(&String::from_utf8_lossy(before));
        let Some((atom, behind)) = atom.split_at_checked(ATOM_LEN) else { break };
        let id = atom[1..].iter().rev().fold(0, |id, &byte| id << 8 | TokenId::from(byte));
        let token = vocabulary.added.iter().find(|token| token.id == id);
        text.push_str(token.map_or("", |token| &token.content));
        rest = behind;
    }
    text + &String::from_utf8_lossy(rest)
}
