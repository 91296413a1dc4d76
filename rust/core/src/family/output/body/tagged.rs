//! A name, and each argument between tags: read as the JSON object that it means.
//!
//! A value that its tool's schema calls a string is one, and streams as it comes. Any other is held
//! to its end: it is JSON if it reads as JSON, and a string if not. Where the tags say which it is
//! (`string="true"`), they are believed. A model that writes all of its arguments as one JSON object
//! instead, right behind the name, is taken at its word.

use std::mem;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::object::{Flow, Malformed, Progress, Raw};
use super::{Body, Gained, Head, LONGEST_KEY, Step, begun_marker, escape};
use crate::family::output::form::Tags;
use crate::header::ParameterTypes;
use crate::json;

#[derive(Debug)]
enum At {
    Head(Head),
    /// Between elements: what has come since the last one.
    Between(String),
    Key(String),
    /// Behind a key, before its value.
    Behind {
        key: String,
        seen: String,
    },
    Value(Value),
    /// All arguments as one object.
    Object(Raw),
    Done,
}

#[derive(Debug)]
struct Value {
    /// Whether it streams as a string; else it is decided at its end.
    string: bool,
    /// Whether it must be a string, whatever it looks like; or must not.
    surely: Option<bool>,
    /// What has come and is not out: all of it, or what may belong to the closing tag.
    held: String,
    begun: bool,
}

/// The body of one call.
#[derive(Debug)]
pub(crate) struct TaggedBody {
    tags: Tags,
    types: Arc<ParameterTypes>,
    at: At,
    called: String,
    gained: Gained,
    count: usize,
    complete: bool,
}

impl TaggedBody {
    pub(super) fn new(tags: &Tags, types: Arc<ParameterTypes>) -> Self {
        Self {
            at: At::Head(Head::new(&tags.before)),
            tags: tags.clone(),
            types,
            called: String::new(),
            gained: Gained::default(),
            count: 0,
            complete: false,
        }
    }

    fn finish(&mut self) {
        if self.count > 0 && !self.complete {
            self.gained.ready.push('}');
        }
        self.complete = true;
    }

    fn object(&mut self, mut raw: Raw, c: char) -> Result<At, Malformed> {
        let flow = raw.push(c)?;
        self.gained.ready.push(c);
        if flow == Flow::Within {
            return Ok(At::Object(raw));
        }
        self.complete = true;
        Ok(At::Between(String::new()))
    }

    fn between(&mut self, mut seen: String, c: char) -> Result<At, Malformed> {
        let behind_name = self.count == 0 && matches!(seen.as_str(), ">" | "\">");
        if c == '{' && behind_name && !self.complete {
            return self.object(Raw::default(), c);
        }
        if !c.is_whitespace() {
            seen.push(c);
        }
        let squeezed = |tag: &str| tag.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        if seen.ends_with(&squeezed(&self.tags.key)) {
            return if self.complete { Err(Malformed) } else { Ok(At::Key(String::new())) };
        }
        if !self.tags.end.is_empty() && seen.ends_with(&squeezed(&self.tags.end)) {
            self.finish();
            return Ok(At::Done);
        }
        // Only the end of it can become a tag.
        let longest = self.tags.key.len().max(self.tags.end.len());
        while seen.len() > 4 * longest {
            seen.remove(0);
        }
        Ok(At::Between(seen))
    }

    fn behind(&mut self, key: String, mut seen: String, c: char) -> Result<At, Malformed> {
        if seen.len() > LONGEST_KEY {
            return Err(Malformed);
        }
        seen.push(c);
        if !seen.ends_with(&self.tags.value) {
            return Ok(At::Behind { key, seen });
        }
        let key = key.trim();
        self.gained.ready.push_str(if self.count == 0 { "{" } else { ", " });
        json::write_string(key, &mut self.gained.ready);
        self.gained.ready.push_str(": ");
        self.count += 1;
        let said = |word: &str| seen.contains(&format!("string=\"{word}\""));
        let typed = self.types.is_string(&self.called, key);
        let string = said("true") || typed == Some(true) && !said("false");
        let surely = if said("false") { Some(false) } else { typed };
        let surely = if string { Some(true) } else { surely };
        Ok(At::Value(Value { string, surely, held: String::new(), begun: false }))
    }

    fn value(&mut self, mut value: Value, c: char) -> At {
        value.held.push(c);
        if value.held.ends_with(&self.tags.value_end) {
            let length = value.held.len() - self.tags.value_end.len();
            value.held.truncate(length);
            self.end_value(&value);
            return At::Between(String::new());
        }
        if value.string {
            // The first newline is the template's; the last may be, and so may the beginning of a tag.
            if !value.begun {
                self.gained.ready.push('"');
                value.begun = true;
                if self.tags.lines && value.held == "\n" {
                    value.held.clear();
                    return At::Value(value);
                }
            }
            let keep = self.possible_end(&value.held);
            let rest = value.held.split_off(value.held.len() - keep);
            escape(&value.held, &mut self.gained.ready);
            value.held = rest;
        }
        At::Value(value)
    }

    /// How many bytes at the end of `text` may be the last newline and the beginning of the closing
    /// tag.
    fn possible_end(&self, text: &str) -> usize {
        let tag = begun_marker(text, &self.tags.value_end);
        let before = &text[..text.len() - tag];
        tag + usize::from(self.tags.lines && before.ends_with('\n'))
    }

    fn end_value(&mut self, value: &Value) {
        let lines = self.tags.lines;
        let held = value.held.as_str();
        let text = held.strip_suffix('\n').filter(|_| lines).unwrap_or(held);
        if value.begun {
            escape(text, &mut self.gained.ready);
            self.gained.ready.push('"');
            return;
        }
        let text = text.strip_prefix('\n').filter(|_| lines).unwrap_or(text);
        let bare = match (text.trim(), value.surely) {
            // Templates that print a value as Python does have taught models to.
            ("True", Some(false)) => "true",
            ("False", Some(false)) => "false",
            ("None", Some(false)) => "null",
            (other, _) => other,
        };
        if value.surely != Some(true) && serde_json::from_str::<&RawValue>(bare).is_ok() {
            self.gained.ready.push_str(bare);
        } else {
            json::write_string(text, &mut self.gained.ready);
        }
    }
}

impl Body for TaggedBody {
    fn gained(&mut self) -> &mut Gained {
        &mut self.gained
    }

    fn arguments(&self) -> Progress {
        match &self.at {
            At::Value(_) | At::Key(_) | At::Behind { .. } | At::Object(_) => Progress::Open,
            At::Done | At::Between(_) if self.complete => Progress::Complete,
            _ if self.count > 0 => Progress::Open,
            _ => Progress::Absent,
        }
    }

    fn is_done(&self) -> bool {
        matches!(self.at, At::Done)
    }

    fn in_string(&self) -> bool {
        match &self.at {
            At::Value(_) => true,
            At::Object(raw) => raw.in_string(),
            _ => false,
        }
    }

    fn push(&mut self, c: char) -> Result<(), Malformed> {
        self.at = match mem::replace(&mut self.at, At::Done) {
            At::Head(head) => match head.push(c)? {
                Step::Within(head) => At::Head(head),
                Step::Behind(name) => {
                    self.called.clone_from(&name);
                    self.gained.name = Some(name);
                    self.between(String::new(), c)?
                }
            },
            At::Between(seen) => self.between(seen, c)?,
            At::Object(raw) => self.object(raw, c)?,
            At::Key(mut key) if !matches!(c, '<' | '>' | '"' | '\n') => {
                if key.len() > LONGEST_KEY {
                    return Err(Malformed);
                }
                key.push(c);
                At::Key(key)
            }
            At::Key(key) => self.behind(key, String::new(), c)?,
            At::Behind { key, seen } => self.behind(key, seen, c)?,
            At::Value(value) => self.value(value, c),
            At::Done => return Err(Malformed),
        };
        Ok(())
    }

    /// The call is over: between two elements, its object is too.
    fn close(&mut self) {
        match mem::replace(&mut self.at, At::Done) {
            At::Between(_) => self.finish(),
            At::Head(head) if !head.name.is_empty() => {
                self.called.clone_from(&head.name);
                self.gained.name = Some(head.name);
                self.finish();
            }
            at => self.at = at,
        }
    }
}
