//! Reads what Kimi K3 says: elements whose tags stand between control tokens.
//!
//! ```text
//! {reasoning}<|close|>think<|sep|><|open|>response<|sep|>{text}<|close|>response<|sep|>
//! <|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="k" type="string"<|sep|>{value}
//! <|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>
//! ```
//!
//! Only tokens make a tag, so whatever stands between two is content, to the letter. A tag that opens an
//! element ends those that cannot hold it; one that nobody knows says nothing. An argument whose type is
//! a string streams; any other is held to its end, and is a string if it is no JSON.

use std::ops::Range;

use serde_json::value::RawValue;

use super::MintCallId;
use super::body::escape;
use super::prose::{Kind, Prose, append};
use crate::family::{Calls, Delta, OutputParser, mint_call_id};
use crate::json;
use crate::token::TokenId;

/// A tag that is longer is none.
const LONGEST_TAG: usize = 4096;

/// How calls are written, for people.
pub const DESCRIBED: &str = "<|open|>call tool=\"name\"<|sep|><|open|>argument key=\"key\" \
     type=\"type\"<|sep|>value<|close|>argument<|sep|><|close|>call<|sep|>";

/// The tokens around tags.
#[derive(Debug, Clone, Copy)]
pub struct TagIds {
    /// Before one that opens an element.
    pub open: TokenId,
    /// Before one that closes it.
    pub close: TokenId,
    /// Behind both.
    pub end: TokenId,
}

/// The element in which an output ends, as [`OutputParser::within`] says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Within {
    /// None: the message is closed.
    Nothing,
    /// The message, before its response.
    Message,
    /// The response.
    Response,
    /// The message, behind its response.
    Answered,
    /// The calls.
    Tools,
    /// A call.
    Call,
    /// An argument of it.
    Argument,
    /// All arguments of it as one JSON text.
    Json,
}

impl Within {
    /// Every place, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Nothing,
        Self::Message,
        Self::Response,
        Self::Answered,
        Self::Tools,
        Self::Call,
        Self::Argument,
        Self::Json,
    ];
}

#[derive(Debug)]
enum Place {
    Thinking,
    Response,
    /// In the message, beside its elements.
    Message,
    Tools,
    Call,
    /// Whether it streams as a string; else it is held.
    Argument {
        string: bool,
        held: String,
    },
    Json,
}

/// What has come of the current call's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Given {
    Nothing,
    Members,
    /// All of them, as one text.
    Text,
}

/// A tag on its way.
struct Tag {
    closes: bool,
    text: String,
    index: usize,
}

/// The parser. See the module for its rules.
pub struct XtmlReader {
    ids: TagIds,
    calls: Calls,
    mint: MintCallId,
    place: Place,
    tag: Option<Tag>,
    reasoning: Prose,
    text: Prose,
    thought: Option<Range<usize>>,
    thinks_from: Option<usize>,
    responded: bool,
    ended: bool,
    given: Given,
    incomplete: bool,
    closed: usize,
}

impl XtmlReader {
    /// A parser for one turn; `thinking` where the prompt has opened reasoning, else a response.
    #[must_use]
    pub fn of_turn(ids: TagIds, thinking: bool, calls: Calls) -> Self {
        Self {
            ids,
            calls,
            mint: Box::new(mint_call_id),
            place: if thinking { Place::Thinking } else { Place::Response },
            tag: None,
            reasoning: Prose::at_start(Kind::Reasoning),
            text: Prose::at_start(Kind::Text),
            thought: None,
            thinks_from: thinking.then_some(0),
            responded: !thinking,
            ended: false,
            given: Given::Nothing,
            incomplete: false,
            closed: 0,
        }
    }

    fn content(&mut self, c: char, out: &mut Vec<Delta>) {
        match &mut self.place {
            Place::Thinking => self.reasoning.push(c, out),
            Place::Response => self.text.push(c, out),
            Place::Call if c.is_whitespace() => {}
            // Whatever is said between arguments ends them: what is said next is no call's.
            Place::Message | Place::Tools | Place::Call => {
                self.end_call(out);
                if !c.is_whitespace() || self.text.has_begun() {
                    self.text.push(c, out);
                }
            }
            Place::Argument { string: true, .. } => {
                let mut escaped = String::new();
                escape(c.encode_utf8(&mut [0; 4]), &mut escaped);
                append(out, Delta::Arguments, &escaped);
            }
            Place::Argument { held, .. } => held.push(c),
            Place::Json => {
                append(out, Delta::Arguments, c.encode_utf8(&mut [0; 4]));
            }
        }
    }

    /// What began as a tag was none.
    fn give_up_tag(&mut self, out: &mut Vec<Delta>) {
        if let Some(tag) = self.tag.take() {
            for c in tag.text.chars() {
                self.content(c, out);
            }
        }
    }

    /// Ends reasoning or text, before `index`.
    fn end_prose(&mut self, index: usize, out: &mut Vec<Delta>) {
        self.reasoning.end_before("", out);
        self.text.end_before("", out);
        self.reasoning = Prose::at_start(Kind::Reasoning);
        self.text = Prose::at_start(Kind::Text);
        if matches!(self.place, Place::Thinking) {
            self.place = Place::Message;
            if let Some(start) = self.thinks_from.take() {
                self.thought.get_or_insert(start..index);
            }
        }
    }

    fn end_value(&mut self, out: &mut Vec<Delta>) {
        let Place::Argument { string, held } = &mut self.place else { return };
        let mut json = String::new();
        if *string {
            json.push('"');
        } else if serde_json::from_str::<&RawValue>(held.trim()).is_ok() {
            json.push_str(held.trim());
        } else {
            json::write_string(held, &mut json);
        }
        append(out, Delta::Arguments, &json);
        self.place = Place::Call;
    }

    fn end_call(&mut self, out: &mut Vec<Delta>) {
        self.end_value(out);
        if !matches!(self.place, Place::Call | Place::Json) {
            return;
        }
        let end = match self.given {
            Given::Nothing => "{}",
            Given::Members => "}",
            Given::Text => "",
        };
        append(out, Delta::Arguments, end);
        self.place = Place::Tools;
        self.incomplete = false;
        self.closed += 1;
    }

    fn opened(&mut self, tag: &Tag, out: &mut Vec<Delta>) {
        let in_call = matches!(self.place, Place::Call | Place::Argument { .. });
        match tag.text.split_whitespace().next().unwrap_or_default() {
            "argument" if in_call && self.given != Given::Text => {
                self.end_value(out);
                let mut json = String::from(if self.given == Given::Nothing { "{" } else { ", " });
                json::write_string(&attribute(&tag.text, "key"), &mut json);
                json.push_str(": ");
                let string = attribute(&tag.text, "type") == "string";
                json.push_str(if string { "\"" } else { "" });
                append(out, Delta::Arguments, &json);
                self.given = Given::Members;
                self.place = Place::Argument { string, held: String::new() };
            }
            "json" if in_call && self.given == Given::Nothing => {
                self.given = Given::Text;
                self.place = Place::Json;
            }
            "call" if self.calls != Calls::Forbidden => {
                self.end_call(out);
                self.end_prose(tag.index, out);
                let name = attribute(&tag.text, "tool");
                if !name.trim().is_empty() {
                    out.push(Delta::Call { call_id: (self.mint)(), name });
                    (self.given, self.incomplete) = (Given::Nothing, true);
                    self.place = Place::Call;
                }
            }
            name @ ("think" | "response" | "tools") => {
                self.end_call(out);
                self.end_prose(tag.index, out);
                self.place = match name {
                    "think" => {
                        self.thinks_from = Some(tag.index);
                        Place::Thinking
                    }
                    "response" => {
                        self.responded = true;
                        Place::Response
                    }
                    _ => Place::Tools,
                };
            }
            _ => {}
        }
    }

    /// `end` is the index behind the tag.
    fn closed(&mut self, tag: &Tag, end: usize, out: &mut Vec<Delta>) {
        match (tag.text.trim(), &self.place) {
            ("think", Place::Thinking) | ("response", Place::Response) => {
                self.end_prose(end, out);
                self.place = Place::Message;
            }
            ("argument", Place::Argument { .. }) => self.end_value(out),
            ("json", Place::Json) => self.place = Place::Call,
            ("call", _) => self.end_call(out),
            (name @ ("tools" | "message"), _) => {
                self.end_call(out);
                self.end_prose(tag.index, out);
                self.place = Place::Message;
                self.ended = name == "message";
            }
            _ => {}
        }
    }
}

impl OutputParser for XtmlReader {
    fn text(&mut self, text: &str, out: &mut Vec<Delta>) {
        for c in text.chars() {
            match &mut self.tag {
                Some(tag) if tag.text.len() < LONGEST_TAG => tag.text.push(c),
                _ => {
                    self.give_up_tag(out);
                    self.content(c, out);
                }
            }
        }
    }

    fn added(
        &mut self,
        id: TokenId,
        content: &str,
        special: bool,
        index: usize,
        out: &mut Vec<Delta>,
    ) {
        let TagIds { open, close, end } = self.ids;
        if id == open || id == close {
            self.give_up_tag(out);
            self.tag = Some(Tag { closes: id == close, text: String::new(), index });
        } else if id == end {
            match self.tag.take() {
                Some(tag) if tag.closes => self.closed(&tag, index.saturating_add(1), out),
                Some(tag) => self.opened(&tag, out),
                None => {}
            }
        } else if !special {
            self.text(content, out);
        }
    }

    fn finish(&mut self, count: usize, out: &mut Vec<Delta>) {
        self.reasoning.finish(out);
        self.text.finish(out);
        if let Some(start) = self.thinks_from {
            self.thought.get_or_insert(start..count);
        }
    }

    /// The first stretch of it.
    fn reasoning(&self) -> Vec<Range<usize>> {
        self.thought.iter().filter(|range| !range.is_empty()).cloned().collect()
    }

    fn ends_thinking(&self) -> bool {
        matches!(self.place, Place::Thinking)
    }

    fn closed_calls(&self) -> usize {
        self.closed
    }

    fn call_is_incomplete(&self) -> bool {
        self.incomplete
    }

    fn within(&self) -> u8 {
        let within = match self.place {
            _ if self.ended => Within::Nothing,
            Place::Thinking | Place::Message if !self.responded => Within::Message,
            Place::Thinking | Place::Message => Within::Answered,
            Place::Response => Within::Response,
            Place::Tools => Within::Tools,
            Place::Call => Within::Call,
            Place::Argument { .. } => Within::Argument,
            Place::Json => Within::Json,
        };
        within as u8
    }
}

/// The value of an attribute, unescaped; empty where there is none.
fn attribute(tag: &str, name: &str) -> String {
    let begins = format!(" {name}=\"");
    let value = tag.split_once(&begins).map_or("", |(_, rest)| rest);
    let value = value.split('"').next().unwrap_or_default();
    value.replace("&quot;", "\"").replace("&amp;", "&")
}
