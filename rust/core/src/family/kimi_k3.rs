//! Kimi K3, whose messages are elements with attributes.
//!
//! ```text
//! <|open|>message role="user"<|sep|>{text}<|close|>message<|sep|><|end_of_msg|>
//! <|open|>message role="assistant"<|sep|><|open|>think<|sep|>{reasoning}<|close|>think<|sep|><|open|>response<|sep|>{text}<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="k" type="number"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>
//! <|open|>message role="tool" tool="f" index="1"<|sep|>{output}<|close|>message<|sep|><|end_of_msg|>
//! ```
//!
//! A model that may think shows all of its reasoning, always, and an empty block where there is none;
//! one that may not shows none. Calls are counted within their message, and so are outputs, which stand
//! in the order of their calls.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::chain::Dropped;
use crate::error::Result;
use crate::family::generic::{Generic, Ways, is_space};
use crate::family::marker::Marker;
use crate::family::output::xtml::{self, TagIds, Within, XtmlReader};
use crate::family::render::{Answered, Group, Message, NOT_SHOWN, Sink};
use crate::family::{
    Answer, Before, Calls, End, Family, Format, News, OutputParser, Showing, Shown,
};
use crate::header::Header;
use crate::item::Role;
use crate::json::{self, Style};
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

const PARAM: &str = "arguments";

/// Kimi K3's format in a vocabulary.
#[derive(Debug, Clone)]
pub struct KimiK3 {
    open: Marker,
    close: Marker,
    tag_end: Marker,
    end: Marker,
    ids: TagIds,
    end_id: TokenId,
    stops: Vec<TokenId>,
    ways: Ways,
}

impl KimiK3 {
    /// The format as the template prints it; the probe decides whether it does.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`], naming the first token that is missing.
    pub fn detect(generic: &Generic, vocabulary: &Vocabulary) -> Result<Self> {
        let token = |content: &str| Marker::token(content, vocabulary);
        let [open, close] = [token("<|open|>")?, token("<|close|>")?];
        let [tag_end, end] = [token("<|sep|>")?, token("<|end_of_msg|>")?];
        let id = |marker: &Marker| marker.id().unwrap_or_default();
        let ids = TagIds { open: id(&open), close: id(&close), end: id(&tag_end) };
        let end_id = id(&end);
        let stops = [Some(end_id), vocabulary.added_id("[EOS]"), vocabulary.added_id("[EOT]")];
        Ok(Self {
            open,
            close,
            tag_end,
            end,
            ids,
            end_id,
            stops: stops.into_iter().flatten().collect(),
            ways: generic.ways().clone(),
        })
    }

    fn open(&self, name: &str, attributes: &[(&str, &str)], sink: &mut dyn Sink) {
        sink.marker(&self.open);
        sink.text(name);
        for (key, value) in attributes {
            sink.text(&format!(" {key}=\""));
            sink.text(&value.replace('&', "&amp;").replace('"', "&quot;"));
            sink.text("\"");
        }
        sink.marker(&self.tag_end);
    }

    fn close(&self, name: &str, sink: &mut dyn Sink) {
        sink.marker(&self.close);
        sink.text(name);
        sink.marker(&self.tag_end);
    }

    fn end_message(&self, sink: &mut dyn Sink) {
        self.close("message", sink);
        sink.marker(&self.end);
    }

    /// A response, of which everything before its text is there, and calls.
    fn respond(&self, text: &str, calls: &[(String, String)], sink: &mut dyn Sink) {
        sink.text(text);
        self.close("response", sink);
        if !calls.is_empty() {
            self.open("tools", &[], sink);
            for (index, (name, arguments)) in (1..).zip(calls) {
                self.call(name, index, arguments, sink);
            }
            self.close("tools", sink);
        }
    }

    fn call(&self, name: &str, index: usize, arguments: &str, sink: &mut dyn Sink) {
        self.open("call", &[("tool", name), ("index", &index.to_string())], sink);
        match members(arguments) {
            Some(members) => {
                for (key, kind, value) in members {
                    self.open("argument", &[("key", &key), ("type", kind)], sink);
                    sink.text(&value);
                    self.close("argument", sink);
                }
            }
            None if arguments.chars().all(is_space) => {}
            None => {
                self.open("json", &[("type", "object")], sink);
                sink.text(arguments);
                self.close("json", sink);
            }
        }
        self.close("call", sink);
    }

    /// Whether these outputs are all of calls of the message right before them.
    fn resolves(outputs: &[Answered], before: Before) -> bool {
        let last = u32::from(before.last_calls);
        let first = before.calls.saturating_sub(last);
        let known = |output: &Answered| {
            !output.name.is_empty() && (first..before.calls).contains(&output.number)
        };
        before.last_calls < u16::MAX
            && matches!(before.last, crate::family::Last::Model)
            && outputs.iter().all(known)
    }
}

impl Format for KimiK3 {
    fn name(&self) -> &'static str {
        "kimi-k3"
    }

    fn stop_ids(&self) -> Vec<TokenId> {
        self.stops.clone()
    }

    fn parser(&self, thinking: bool, calls: Calls, _header: &Header) -> Box<dyn OutputParser> {
        Box::new(XtmlReader::of_turn(self.ids, thinking, calls))
    }

    fn describe_calls(&self) -> Option<String> {
        Some(xtml::DESCRIBED.to_owned())
    }

    fn drops_reasoning(&self) -> bool {
        false
    }

    /// As one that was asked to think, where there is reasoning.
    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        if let Some(reasoning) = &answer.reasoning {
            sink.text(reasoning);
            self.close("think", sink);
            self.open("response", &[], sink);
        }
        self.respond(answer.text.as_deref().unwrap_or_default(), &answer.calls, sink);
        self.end_message(sink);
        Ok(())
    }
}

impl Family for KimiK3 {
    fn takes(&self, groups: &[Group], mut before: Before) -> bool {
        self.ways.place(groups, before)
            && groups.iter().all(|Group { message, .. }| {
                let taken = match message {
                    Message::Outputs(outputs) => Self::resolves(outputs, before),
                    _ => true,
                };
                before = before.and(message, self.asks(message));
                taken
            })
    }

    /// All of its messages say whether the model may think.
    fn rewrites(&self, was: Before, now: Before, _news: News) -> bool {
        was.spoke && was.thinking != now.thinking
    }

    fn message(&self, message: &Message, shown: Shown, before: Before, sink: &mut dyn Sink) {
        match message {
            Message::Plain { role, text } => {
                let role = if *role == Role::User { "user" } else { "system" };
                self.open("message", &[("role", role)], sink);
                sink.text(text);
                self.end_message(sink);
            }
            Message::Assistant { reasoning, text, calls } => {
                self.open("message", &[("role", "assistant")], sink);
                if before.thinking {
                    self.open("think", &[], sink);
                    let reasoning = reasoning.as_deref().filter(|_| shown == Shown::Reasoning);
                    sink.text(reasoning.unwrap_or_default());
                    self.close("think", sink);
                }
                self.open("response", &[], sink);
                self.respond(text.as_deref().unwrap_or_default(), calls, sink);
                self.end_message(sink);
            }
            Message::Outputs(outputs) => {
                let mut outputs: Vec<&Answered> = outputs.iter().collect();
                outputs.sort_by_key(|output| output.number);
                for (index, output) in (1_usize..).zip(outputs) {
                    let index = index.to_string();
                    let attributes =
                        [("role", "tool"), ("tool", output.name.as_str()), ("index", &index)];
                    self.open("message", &attributes, sink);
                    sink.text(&output.text);
                    self.end_message(sink);
                }
            }
        }
    }

    fn opening(&self, before: Before, sink: &mut dyn Sink) {
        self.open("message", &[("role", "assistant")], sink);
        self.open(if before.thinking { "think" } else { "response" }, &[], sink);
    }

    fn closer(&self, end: End, sink: &mut dyn Sink) {
        let within = match end {
            End::Closed => return,
            End::Thinking | End::Lost => {
                self.close("think", sink);
                Within::Message
            }
            End::Open => Within::Response,
            End::Within(place) => {
                Within::ALL.get(usize::from(place)).copied().unwrap_or(Within::Response)
            }
        };
        match within {
            Within::Argument => self.close("argument", sink),
            Within::Json => self.close("json", sink),
            Within::Message => self.open("response", &[], sink),
            _ => {}
        }
        if within >= Within::Call {
            self.close("call", sink);
        }
        match within {
            Within::Message | Within::Response => self.close("response", sink),
            Within::Nothing | Within::Answered => {}
            _ => self.close("tools", sink),
        }
        if within != Within::Nothing {
            self.close("message", sink);
        }
        sink.marker(&self.end);
    }

    fn close_of(&self, _stop: TokenId, within: bool) -> Option<TokenId> {
        (!within).then_some(self.end_id)
    }

    fn control_ids(&self) -> Vec<TokenId> {
        let all = [&self.open, &self.close, &self.tag_end, &self.end];
        all.into_iter().filter_map(Marker::id).collect()
    }

    fn shows(&self, groups: &[Group], before: Before) -> Vec<Showing> {
        let shown = |group: &Group| match &group.message {
            Message::Assistant { reasoning: Some(text), .. }
                if before.thinking && !text.chars().all(is_space) =>
            {
                (Shown::Reasoning, Dropped::Never)
            }
            _ => NOT_SHOWN,
        };
        groups.iter().map(shown).collect()
    }

    fn reasoning_dropped(&self, _before: Before) -> Dropped {
        Dropped::Never
    }
}

/// The members of arguments that are an object: each key, its value's type, and its value.
fn members(arguments: &str) -> Option<Vec<(Cow<'_, str>, &'static str, String)>> {
    let raw = json::value(arguments.as_bytes(), PARAM).ok()?;
    let members = json::object(raw, PARAM).ok()?.0.into_iter();
    let member = |(key, raw)| {
        let (kind, value) = typed(raw)?;
        Some((key, kind, value))
    };
    members.map(member).collect()
}

fn typed(raw: &RawValue) -> Option<(&'static str, String)> {
    let kind = match raw.get().as_bytes().first()? {
        b'"' => return Some(("string", json::string(raw, PARAM).ok()?.into_owned())),
        b'{' => "object",
        b'[' => "array",
        b't' | b'f' => "boolean",
        b'n' => "null",
        _ => "number",
    };
    let mut value = String::new();
    json::write(raw, Style::Python, PARAM, &mut value).ok()?;
    Some((kind, value))
}
