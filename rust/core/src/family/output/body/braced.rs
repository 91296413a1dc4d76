//! A name, and its arguments in braces, as Gemma 4 writes them: JSON whose keys are bare, and whose
//! strings stand between quotes of their own, in which nothing is escaped.
//!
//! ```text
//! call:f{deep:true,more:{key:<|"|>x<|"|>},path:<|"|>a "b"<|"|>,ranges:[1,2]}
//! ```
//!
//! Strings stream as they come, and so do brackets; a number or a word is held to its end, and is a
//! string if it is no JSON. Where the vocabulary has the quote as a token, only the token is one.

use std::mem;

use super::object::{Flow, Malformed, Progress, Raw, is_blank};
use super::{Body, Gained, Head, LONGEST_KEY, Step, begun_marker, escape};
use crate::family::marker::Marker;
use crate::json;
use crate::token::TokenId;

/// Brackets that may be open at once, as in an [object](super::object).
const DEPTH: usize = 512;

#[derive(Debug)]
enum At {
    Head(Head),
    /// Behind the name, before its brace.
    Named(String),
    /// Before a key, or the end of an object.
    Member,
    Key {
        text: String,
        quoted: bool,
    },
    /// Before a value, or the end of a list.
    Value,
    /// A string; what may belong to the closing quote is held.
    String(String),
    /// A number, a word, or the beginning of a quote in letters.
    Scalar(String),
    /// A value that the model spells as JSON does.
    Json(Raw),
    After,
    Done,
}

/// A bracket that is open.
#[derive(Debug)]
struct Frame {
    closer: char,
    empty: bool,
}

/// The body of one call.
#[derive(Debug)]
pub(crate) struct BracedBody {
    quote: Marker,
    at: At,
    frames: Vec<Frame>,
    gained: Gained,
    arguments: Progress,
}

impl BracedBody {
    pub(super) fn new(before: &str, quote: &Marker) -> Self {
        Self {
            quote: quote.clone(),
            at: At::Head(Head::new(before)),
            frames: Vec::new(),
            gained: Gained::default(),
            arguments: Progress::Absent,
        }
    }

    /// The quote, where it is letters.
    fn letters(&self) -> Option<&str> {
        Some(self.quote.content()).filter(|_| self.quote.id().is_none())
    }

    fn named(&mut self, name: String, c: char) -> Result<At, Malformed> {
        if is_blank(c) {
            return Ok(At::Named(name));
        }
        if c != '{' {
            return Err(Malformed);
        }
        self.gained.name = Some(name);
        self.arguments = Progress::Open;
        self.open(c, '}')
    }

    fn open(&mut self, c: char, closer: char) -> Result<At, Malformed> {
        if self.frames.len() >= DEPTH {
            return Err(Malformed);
        }
        self.frames.push(Frame { closer, empty: true });
        self.gained.ready.push(c);
        Ok(if closer == '}' { At::Member } else { At::Value })
    }

    /// What stands between two members or items.
    fn separate(&mut self) {
        if let Some(frame) = self.frames.last_mut()
            && !mem::replace(&mut frame.empty, false)
        {
            self.gained.ready.push_str(", ");
        }
    }

    fn in_list(&self) -> bool {
        self.frames.last().is_some_and(|frame| frame.closer == ']')
    }

    fn begin_value(&mut self) {
        if self.in_list() {
            self.separate();
        }
    }

    fn end_key(&mut self, text: &str) -> At {
        let key = text.trim();
        let bare = |quote: &str| key.strip_prefix(quote)?.strip_suffix(quote);
        let key = bare(self.quote.content()).or_else(|| bare("\"")).unwrap_or(key);
        self.separate();
        json::write_string(key, &mut self.gained.ready);
        self.gained.ready.push_str(": ");
        At::Value
    }

    fn value(&mut self, c: char) -> Result<At, Malformed> {
        match c {
            ']' if self.in_list() => return self.close(c),
            ',' | '}' | ']' | ':' => return Err(Malformed),
            _ => self.begin_value(),
        }
        match c {
            '{' => self.open(c, '}'),
            '[' => self.open(c, ']'),
            '"' => {
                let mut raw = Raw::default();
                raw.push(c)?;
                self.gained.ready.push(c);
                Ok(At::Json(raw))
            }
            _ => Ok(At::Scalar(c.to_string())),
        }
    }

    fn open_string(&mut self) -> At {
        // Letters have begun as a scalar, whose separator is written.
        if self.letters().is_none() {
            self.begin_value();
        }
        self.gained.ready.push('"');
        At::String(String::new())
    }

    fn close_string(&mut self, rest: &str) -> At {
        escape(rest, &mut self.gained.ready);
        self.gained.ready.push('"');
        At::After
    }

    fn end_scalar(&mut self, text: &str) {
        let text = text.trim();
        let is_json = serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok();
        if is_json {
            self.gained.ready.push_str(text);
        } else {
            json::write_string(text, &mut self.gained.ready);
        }
    }

    fn after(&mut self, c: char) -> Result<At, Malformed> {
        match c {
            ',' if self.in_list() => Ok(At::Value),
            ',' => Ok(At::Member),
            _ => self.close(c),
        }
    }

    fn close(&mut self, c: char) -> Result<At, Malformed> {
        if self.frames.pop_if(|frame| frame.closer == c).is_none() {
            return Err(Malformed);
        }
        self.gained.ready.push(c);
        if self.frames.is_empty() {
            self.arguments = Progress::Complete;
            return Ok(At::Done);
        }
        Ok(At::After)
    }
}

impl Body for BracedBody {
    fn gained(&mut self) -> &mut Gained {
        &mut self.gained
    }

    fn arguments(&self) -> Progress {
        self.arguments
    }

    fn is_done(&self) -> bool {
        matches!(self.at, At::Done)
    }

    fn in_string(&self) -> bool {
        match &self.at {
            At::String(_) | At::Key { quoted: true, .. } => true,
            At::Json(raw) => raw.in_string(),
            _ => false,
        }
    }

    fn push(&mut self, c: char) -> Result<(), Malformed> {
        self.at = match mem::replace(&mut self.at, At::Done) {
            At::Head(head) => match head.push(c)? {
                Step::Within(head) => At::Head(head),
                Step::Behind(name) => self.named(name, c)?,
            },
            At::Named(name) => self.named(name, c)?,
            At::Member if is_blank(c) => At::Member,
            At::Value if is_blank(c) => At::Value,
            At::After if is_blank(c) => At::After,
            At::Member if c == '}' => self.close(c)?,
            At::Member if !is_bracket(c) => At::Key { text: c.to_string(), quoted: false },
            At::Key { text, quoted: false } if c == ':' => self.end_key(&text),
            At::Key { mut text, quoted }
                if text.len() < LONGEST_KEY && (quoted || !is_bracket(c)) =>
            {
                text.push(c);
                At::Key { text, quoted }
            }
            At::Value => self.value(c)?,
            At::String(mut held) => {
                held.push(c);
                if let Some(quote) = self.letters().filter(|quote| held.ends_with(quote)) {
                    held.truncate(held.len() - quote.len());
                    self.close_string(&held)
                } else {
                    let keep = self.letters().map_or(0, |quote| begun_marker(&held, quote));
                    let rest = held.split_off(held.len() - keep);
                    escape(&held, &mut self.gained.ready);
                    At::String(rest)
                }
            }
            At::Scalar(text) if matches!(c, ',' | '}' | ']') => {
                self.end_scalar(&text);
                self.after(c)?
            }
            At::Scalar(mut text) => {
                text.push(c);
                if self.letters() == Some(&text) { self.open_string() } else { At::Scalar(text) }
            }
            At::Json(mut raw) => {
                let flow = raw.push(c)?;
                self.gained.ready.push(c);
                if flow == Flow::Within { At::Json(raw) } else { At::After }
            }
            At::After => self.after(c)?,
            At::Member | At::Key { .. } | At::Done => return Err(Malformed),
        };
        Ok(())
    }

    /// Takes a token, if it is the quote and one may stand here.
    fn token(&mut self, id: TokenId) -> bool {
        if self.quote.id() != Some(id) {
            return false;
        }
        self.at = match mem::replace(&mut self.at, At::Done) {
            At::Member => At::Key { text: String::new(), quoted: true },
            At::Key { text, quoted: true } => At::Key { text, quoted: false },
            At::Value => self.open_string(),
            At::String(held) => self.close_string(&held),
            other => {
                self.at = other;
                return false;
            }
        };
        true
    }
}

fn is_bracket(c: char) -> bool {
    matches!(c, '{' | '}' | '[' | ']' | ',')
}
