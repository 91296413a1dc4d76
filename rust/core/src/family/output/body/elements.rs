//! A name, and its arguments as elements that nest, as `MiniMax` M3 writes them.
//!
//! ```text
//! <invoke name="f">]<]minimax[>[<path>a b]<]minimax[>[</path>]<]minimax[>[<ranges>
//! ]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[</ranges>]<]minimax[>[</invoke>
//! ```
//!
//! A mark stands before every tag; a tag without one is text, so nothing need be escaped. What an
//! element holds its first tag says: a list if that is an item's, else an object. One that holds text is a string
//! if its tool's schema says so, and streams then; else it is JSON if it reads as JSON, and a string if
//! not.

use std::mem;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::object::{Malformed, Progress};
use super::{Body, Gained, Head, LONGEST_KEY, Literal, Step, begun_marker, escape};
use crate::family::output::form::Elements;
use crate::header::ParameterTypes;
use crate::json;
use crate::token::TokenId;

/// Elements that may be open at once.
const DEPTH: usize = 512;

#[derive(Debug)]
enum At {
    Head(Head),
    /// Behind the name.
    Behind(Literal),
    /// Within an element, or between two; what may be the beginning of a mark is held.
    Content(String),
    /// Behind a mark.
    Tag(String),
    Done,
}

/// What an element holds, as far as it has shown.
#[derive(Debug)]
enum Holds {
    /// Text so far, from which it will be told.
    Unknown(String),
    /// A string, by the schema.
    String,
    /// Other elements, and whether there was one.
    Elements { close: char, empty: bool },
}

#[derive(Debug)]
struct Element {
    tag: String,
    holds: Holds,
}

/// The body of one call.
#[derive(Debug)]
pub(crate) struct ElementsBody {
    form: Elements,
    types: Arc<ParameterTypes>,
    at: At,
    /// Those that are open; the first is the call itself.
    open: Vec<Element>,
    called: String,
    gained: Gained,
    arguments: Progress,
}

impl ElementsBody {
    pub(super) fn new(form: &Elements, types: Arc<ParameterTypes>) -> Self {
        Self {
            at: At::Head(Head::new(&form.before)),
            form: form.clone(),
            types,
            open: Vec::new(),
            called: String::new(),
            gained: Gained::default(),
            arguments: Progress::Absent,
        }
    }

    fn behind(&mut self, mut literal: Literal, c: char) -> Result<At, Malformed> {
        if !literal.take(c) {
            return Err(Malformed);
        }
        if !literal.is_met() {
            return Ok(At::Behind(literal));
        }
        self.gained.name = Some(self.called.clone());
        self.arguments = Progress::Open;
        self.gained.ready.push('{');
        let holds = Holds::Elements { close: '}', empty: true };
        self.open.push(Element { tag: String::new(), holds });
        Ok(At::Content(String::new()))
    }

    /// Text in the innermost element; between elements it is nothing.
    fn content(&mut self, text: &str) {
        match self.open.last_mut().map(|element| &mut element.holds) {
            Some(Holds::Unknown(held)) => held.push_str(text),
            Some(Holds::String) => escape(text, &mut self.gained.ready),
            Some(Holds::Elements { .. }) | None => {}
        }
    }

    fn tag(&mut self, tag: &str) -> Result<At, Malformed> {
        let tag = tag.strip_prefix('<').unwrap_or(tag);
        match tag.strip_prefix('/') {
            Some(name) => self.close(name),
            None => self.open(tag),
        }
    }

    fn open(&mut self, tag: &str) -> Result<At, Malformed> {
        if self.open.len() >= DEPTH {
            return Err(Malformed);
        }
        let depth = self.open.len();
        let parent = self.open.last_mut().ok_or(Malformed)?;
        if let Holds::Unknown(text) = &parent.holds {
            if !text.trim().is_empty() {
                return Err(Malformed);
            }
            let (open, close) = if tag == self.form.item { ('[', ']') } else { ('{', '}') };
            self.gained.ready.push(open);
            parent.holds = Holds::Elements { close, empty: true };
        }
        let Holds::Elements { close, empty } = &mut parent.holds else { return Err(Malformed) };
        if !mem::replace(empty, false) {
            self.gained.ready.push_str(", ");
        }
        if *close == '}' {
            json::write_string(tag, &mut self.gained.ready);
            self.gained.ready.push_str(": ");
        }
        let is_string = depth == 1 && self.types.is_string(&self.called, tag) == Some(true);
        let holds = if is_string {
            self.gained.ready.push('"');
            Holds::String
        } else {
            Holds::Unknown(String::new())
        };
        self.open.push(Element { tag: tag.to_owned(), holds });
        Ok(At::Content(String::new()))
    }

    /// Closes the innermost element of this name, and what it holds; the call itself where that is
    /// what ends it, or where nothing else is open.
    fn close(&mut self, tag: &str) -> Result<At, Malformed> {
        let ends_call = self.form.end.trim_matches(['<', '/', '>']) == tag;
        let found = self.open.iter().skip(1).rposition(|element| element.tag == tag);
        let left = match found {
            Some(index) => index + 1,
            None if ends_call || self.open.len() == 1 => 0,
            None => return Err(Malformed),
        };
        for element in self.open.drain(left..).rev() {
            match element.holds {
                Holds::Elements { close, .. } => self.gained.ready.push(close),
                Holds::String => self.gained.ready.push('"'),
                Holds::Unknown(text) => {
                    if serde_json::from_str::<&RawValue>(text.trim()).is_ok() {
                        self.gained.ready.push_str(text.trim());
                    } else {
                        json::write_string(&text, &mut self.gained.ready);
                    }
                }
            }
        }
        if left > 0 {
            return Ok(At::Content(String::new()));
        }
        self.arguments = Progress::Complete;
        Ok(At::Done)
    }
}

impl Body for ElementsBody {
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
        self.open.len() > 1
    }

    fn push(&mut self, c: char) -> Result<(), Malformed> {
        self.at = match mem::replace(&mut self.at, At::Done) {
            At::Head(head) => match head.push(c)? {
                Step::Within(head) => At::Head(head),
                Step::Behind(name) => {
                    self.called = name;
                    self.behind(Literal::new(&self.form.behind), c)?
                }
            },
            At::Behind(literal) => self.behind(literal, c)?,
            At::Content(mut held) => {
                held.push(c);
                let mark = self.form.mark.content();
                let by_letters = self.form.mark.id().is_none();
                let is_met = by_letters && held.ends_with(mark);
                let kept = match (is_met, by_letters) {
                    (true, _) => mark.len(),
                    (false, true) => begun_marker(&held, mark),
                    (false, false) => 0,
                };
                let rest = held.split_off(held.len() - kept);
                self.content(&held);
                if is_met { At::Tag(String::new()) } else { At::Content(rest) }
            }
            At::Tag(tag) if c == '>' => self.tag(&tag)?,
            At::Tag(mut tag) if tag.len() < LONGEST_KEY && (!tag.is_empty() || c == '<') => {
                tag.push(c);
                At::Tag(tag)
            }
            At::Tag(_) | At::Done => return Err(Malformed),
        };
        Ok(())
    }

    /// Takes a token, if it is the mark and one may stand here.
    fn token(&mut self, id: TokenId) -> bool {
        if self.form.mark.id() != Some(id) {
            return false;
        }
        let At::Content(held) = &mut self.at else { return false };
        let held = mem::take(held);
        self.at = At::Tag(String::new());
        self.content(&held);
        true
    }

    /// The call is over: between two arguments, its object is too.
    fn close(&mut self) {
        if self.open.len() == 1 {
            self.open.clear();
            self.gained.ready.push('}');
            self.arguments = Progress::Complete;
            self.at = At::Done;
        }
    }
}
