//! Reads harmony, the format of gpt-oss: messages in channels, calls as messages to a recipient.
//!
//! ```text
//! <|channel|>analysis<|message|>{reasoning}<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>
//! <|start|>assistant<|channel|>final<|message|>{text}<|return|>
//! ```
//!
//! The generation prompt ends in `<|start|>assistant`, so an answer begins within a header. A header
//! says where its message goes: to a tool (a call), into the analysis channel (reasoning), and
//! anywhere else it is text. Models write the recipient on either side of the channel, and now
//! and then twice. The markers are special tokens, so no letters are markers.
//!
//! Some recipients are no functions: tools that a model was trained with (`python`,
//! `browser.search`), or functions without their namespace. A JSON object for one is a call by the
//! recipient's whole name, and anything else is text, in whatever channel: the client is told what
//! the model waits for.

use std::mem;
use std::ops::Range;

use super::body::{Flow, Raw};
use super::prose::append;
use super::{Delta, MintCallId, OutputParser};
use crate::family::marker::Marker;
use crate::family::render::Sink;
use crate::family::{Answer, Calls, mint_call_id};
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

/// A header that is longer is none: what a model says without one is text.
const LONGEST_HEADER: usize = 256;

/// Where calls of functions go.
const FUNCTIONS: &str = "functions.";

/// The form of calls, for people.
pub(crate) const DESCRIBED: &str = "harmony: messages to functions.name";

/// The format's markers in a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HarmonyMarkers {
    /// Begins a message.
    pub start: Marker,
    /// In a header, before the channel.
    pub channel: Marker,
    /// Between a header and its message.
    pub message: Marker,
    /// In a header, before the type of the content.
    pub constrain: Marker,
    /// Ends a message.
    pub end: Marker,
    /// Ends an answer.
    pub ret: Marker,
    /// Ends a call.
    pub call: Marker,
}

impl HarmonyMarkers {
    /// The markers, where the vocabulary has all of them.
    #[must_use]
    pub fn of(vocabulary: &Vocabulary) -> Option<Self> {
        let token = |content: &str| Marker::token(content, vocabulary).ok();
        Some(Self {
            start: token("<|start|>")?,
            channel: token("<|channel|>")?,
            message: token("<|message|>")?,
            constrain: token("<|constrain|>")?,
            end: token("<|end|>")?,
            ret: token("<|return|>")?,
            call: token("<|call|>")?,
        })
    }

    fn is_end(&self, id: TokenId) -> bool {
        [&self.end, &self.ret, &self.call].iter().any(|marker| marker.id() == Some(id))
    }
}

/// Whom a call of `name` is for. No function's name has a dot in it, so what has is a recipient.
pub(crate) fn recipient(name: &str) -> String {
    if name.contains('.') { name.to_owned() } else { format!("{FUNCTIONS}{name}") }
}

/// Writes an answer as gpt-oss would sample it, behind `<|start|>assistant`.
pub(crate) fn write(answer: &Answer, markers: &HarmonyMarkers, sink: &mut dyn Sink) {
    let mut begun = false;
    let mut message = |header: &str, json: bool, body: &str, close: &Marker| {
        if mem::replace(&mut begun, true) {
            sink.marker(&markers.start);
            sink.text("assistant");
        }
        sink.marker(&markers.channel);
        sink.text(header);
        if json {
            sink.marker(&markers.constrain);
            sink.text("json");
        }
        sink.marker(&markers.message);
        sink.text(body);
        sink.marker(close);
    };
    if let Some(reasoning) = &answer.reasoning {
        message("analysis", false, reasoning, &markers.end);
    }
    let calls = !answer.calls.is_empty();
    if let Some(text) = &answer.text {
        let (channel, close) =
            if calls { ("commentary", &markers.end) } else { ("final", &markers.ret) };
        message(channel, false, text, close);
    }
    for (name, arguments) in &answer.calls {
        let header = format!("commentary to={} ", recipient(name));
        message(&header, true, arguments, &markers.call);
    }
}

/// Where the output stands.
#[derive(Debug)]
enum At {
    /// In a header, of which this has come; and whether it has a marker.
    Header(String, bool),
    Reasoning,
    Text,
    /// In a message to `name`, which is no function: a call if an object follows the `blanks`.
    Addressed {
        name: String,
        blanks: String,
    },
    /// In a call, whose arguments may have ended.
    Call {
        raw: Raw,
        begun: bool,
        complete: bool,
    },
}

/// The parser.
pub struct HarmonyReader {
    markers: HarmonyMarkers,
    /// None where whatever the model says is text.
    mint: Option<MintCallId>,
    at: At,
    /// What the last message was, to keep two of a kind apart.
    last: Option<fn(String) -> Delta>,
    /// Where the message begins whose header this is, or was.
    begins: usize,
    reasoning: Vec<Range<usize>>,
    answered: bool,
    thinking: bool,
    closed: usize,
    incomplete: bool,
}

impl HarmonyReader {
    /// The parser of a turn whose output may be `calls`.
    #[must_use]
    pub fn of_turn(markers: HarmonyMarkers, calls: Calls) -> Self {
        let mint: MintCallId = Box::new(mint_call_id);
        Self::new(markers, Some(mint).filter(|_| calls != Calls::Forbidden))
    }

    /// A parser for one turn's output, behind a prompt that ends in `<|start|>assistant`. Without
    /// `mint`, calls are read as text.
    #[must_use]
    pub fn new(markers: HarmonyMarkers, mint: Option<MintCallId>) -> Self {
        Self {
            markers,
            mint,
            at: At::Header(String::new(), false),
            last: None,
            begins: 0,
            reasoning: Vec::new(),
            answered: false,
            thinking: false,
            closed: 0,
            incomplete: false,
        }
    }

    fn say(&mut self, kind: fn(String) -> Delta, out: &mut Vec<Delta>) {
        let same = |last: fn(String) -> Delta| {
            mem::discriminant(&last(String::new())) == mem::discriminant(&kind(String::new()))
        };
        if self.last.is_some_and(same) {
            append(out, kind, "\n\n");
        }
        self.last = Some(kind);
    }

    /// The header is whole: its message begins.
    fn open(&mut self, header: &str, index: usize, out: &mut Vec<Delta>) {
        let words = || header.split(|c: char| c.is_whitespace() || c == '|');
        let recipient = words().find_map(|word| word.strip_prefix("to="));
        let analysis = words().any(|word| word == "analysis");
        let tool = recipient.filter(|name| *name != "assistant").filter(|_| self.mint.is_some());
        self.at = match tool.map(|name| name.strip_prefix(FUNCTIONS).ok_or(name)) {
            Some(Ok(name)) if !name.is_empty() => self.call(name, out),
            Some(Err(name)) if !name.is_empty() => {
                At::Addressed { name: name.to_owned(), blanks: String::new() }
            }
            None if analysis => {
                self.say(Delta::Reasoning, out);
                self.answered = false;
                match self.reasoning.last_mut().filter(|block| block.end == self.begins) {
                    Some(block) => block.end = index,
                    None => self.reasoning.push(self.begins..index),
                }
                At::Reasoning
            }
            _ => {
                self.say(Delta::Text, out);
                // Commentary is a preamble of calls, though they may not come.
                self.answered |= !words().any(|word| word == "commentary");
                At::Text
            }
        };
    }

    /// A text of which so much has come before it was known to be one.
    fn begin_text(&mut self, said: &str, out: &mut Vec<Delta>) {
        self.say(Delta::Text, out);
        append(out, Delta::Text, said);
        self.answered |= matches!(self.at, At::Header(..));
        self.at = At::Text;
    }

    fn call(&mut self, name: &str, out: &mut Vec<Delta>) -> At {
        if let Some(mint) = &mut self.mint {
            self.last = None;
            out.push(Delta::Call { call_id: mint(), name: name.to_owned() });
        }
        At::Call { raw: Raw::default(), begun: false, complete: false }
    }

    fn character(&mut self, c: char, out: &mut Vec<Delta>) {
        let mut buffer = [0; 4];
        match &mut self.at {
            At::Addressed { blanks, .. } if c.is_whitespace() => blanks.push(c),
            At::Addressed { name, .. } if c == '{' => {
                let name = mem::take(name);
                self.at = self.call(&name, out);
                self.character(c, out);
            }
            At::Addressed { blanks, .. } => {
                blanks.push(c);
                let said = mem::take(blanks);
                self.begin_text(&said, out);
            }
            At::Header(header, marked) => {
                header.push(c);
                let plain = c == '\n' || header.len() > LONGEST_HEADER;
                if plain && !*marked {
                    let said = mem::take(header);
                    self.begin_text(&said, out);
                }
            }
            At::Reasoning => {
                append(out, Delta::Reasoning, c.encode_utf8(&mut buffer));
            }
            At::Text => {
                append(out, Delta::Text, c.encode_utf8(&mut buffer));
            }
            At::Call { raw, begun, complete } => {
                // Behind its object, a call has nothing to say.
                if *complete || (!*begun && c.is_whitespace()) {
                    return;
                }
                *begun = true;
                append(out, Delta::Arguments, c.encode_utf8(&mut buffer));
                *complete = raw.push(c) == Ok(Flow::Last);
            }
        }
    }

    /// A message has ended.
    fn close(&mut self, end: usize, out: &mut Vec<Delta>) {
        self.settle(out);
        match &self.at {
            At::Reasoning => self.reason_until(end),
            At::Call { begun, complete, .. } => {
                self.incomplete = *begun && !complete;
                self.closed += 1;
                if !begun {
                    append(out, Delta::Arguments, "{}");
                }
            }
            At::Header(..) | At::Text | At::Addressed { .. } => {}
        }
        self.begins = end;
        self.at = At::Header(String::new(), false);
    }

    /// A message to a tool that has said nothing is a call without arguments.
    fn settle(&mut self, out: &mut Vec<Delta>) {
        if let At::Addressed { name, .. } = &mut self.at {
            let name = mem::take(name);
            self.at = self.call(&name, out);
        }
    }

    fn reason_until(&mut self, end: usize) {
        if let Some(block) = self.reasoning.last_mut() {
            block.end = end;
        }
    }
}

impl OutputParser for HarmonyReader {
    fn text(&mut self, text: &str, out: &mut Vec<Delta>) {
        for c in text.chars() {
            self.character(c, out);
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
        let is = |marker: &Marker| marker.id() == Some(id);
        if is(&self.markers.message) {
            if let At::Header(header, _) = &mut self.at {
                let header = mem::take(header);
                self.open(&header, index, out);
            }
        } else if is(&self.markers.channel) || is(&self.markers.constrain) {
            // Parts what is on both sides of it.
            match &mut self.at {
                At::Header(header, marked) => {
                    header.push('|');
                    *marked = true;
                }
                _ if is(&self.markers.channel) => {
                    self.close(index, out);
                    self.at = At::Header("|".to_owned(), true);
                }
                _ => {}
            }
        } else if is(&self.markers.start) {
            if !matches!(self.at, At::Header(..)) {
                self.close(index, out);
            }
            self.begins = index;
            self.at = At::Header(String::new(), true);
        } else if self.markers.is_end(id) {
            self.close(index + 1, out);
        } else if !special {
            self.text(content, out);
        }
    }

    /// A header without a message says nothing, unless nothing marks it as one.
    fn finish(&mut self, count: usize, out: &mut Vec<Delta>) {
        self.settle(out);
        match &mut self.at {
            At::Header(header, false) if !header.trim().is_empty() => {
                let said = mem::take(header);
                self.begin_text(&said, out);
            }
            At::Reasoning => {
                self.thinking = true;
                self.reason_until(count);
            }
            At::Call { begun, complete, .. } => {
                // The marker that closes it is a stop token, which no parser sees.
                self.incomplete = *begun && !*complete;
                self.closed += usize::from(!self.incomplete);
                if !*begun {
                    append(out, Delta::Arguments, "{}");
                }
            }
            At::Header(..) | At::Text | At::Addressed { .. } => {}
        }
        self.at = At::Header(String::new(), true);
    }

    /// Whole messages: from `<|start|>`, or, where the prompt had that, from what follows it.
    fn reasoning(&self) -> Vec<Range<usize>> {
        self.reasoning.clone()
    }

    fn answered(&self) -> bool {
        self.answered
    }

    fn ends_thinking(&self) -> bool {
        self.thinking
    }

    fn closed_calls(&self) -> usize {
        self.closed
    }

    fn call_is_incomplete(&self) -> bool {
        self.incomplete
    }
}
