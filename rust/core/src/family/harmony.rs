//! Harmony: gpt-oss.
//!
//! ```text
//! <|start|>developer<|message|># Instructions\n\n{text}<|end|>
//! <|start|>user<|message|>{text}<|end|>
//! <|start|>assistant<|channel|>analysis<|message|>{reasoning}<|end|>
//! <|start|>assistant<|channel|>commentary<|message|>{text beside calls}<|end|>
//! <|start|>assistant to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>{arguments}<|call|>
//! <|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{output}<|end|>
//! <|start|>assistant<|channel|>final<|message|>{text}<|end|>
//! ```
//!
//! Behind the header, the reference is OpenAI's own renderer and not the template, which loses calls
//! and texts (decision 0014). Reasoning stays while the model calls tools, and is lost once it has
//! answered. How answers are read: [`output::harmony`](super::output::harmony).

use std::ops::Range;

use super::generic::Generic;
use super::marker::Marker;
use super::output::harmony::{self, HarmonyMarkers, HarmonyReader};
use super::render::{Group, IdSink, Message, NOT_SHOWN, Sink};
use super::{Answer, Before, Calls, End, Family, Format, OutputParser, Showing, Shown};
use crate::chain::Dropped;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::item::Role;
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

/// The format in one vocabulary.
#[derive(Debug, Clone)]
pub struct Harmony {
    markers: HarmonyMarkers,
    /// `<|start|>assistant`.
    opening: Vec<TokenId>,
    /// Whether texts steer the template (`trust = "compat"`), which refuses channels in them.
    text_steers: bool,
}

/// What follows a message's role.
#[derive(Debug, Clone, Copy, Default)]
struct Head<'a> {
    /// Whom it is for: ` to=` and a name.
    recipient: &'a str,
    channel: &'a str,
    json: bool,
}

impl Harmony {
    /// The format, where the template asks for an answer in it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] where it does not, or the vocabulary lacks a marker.
    pub fn detect(generic: &Generic, vocabulary: &Vocabulary, compat: bool) -> Result<Self> {
        let markers = generic.harmony().ok_or_else(|| {
            Error::profile("no answer begins with <|start|>assistant and harmony's markers")
        })?;
        let markers = markers.clone();
        let mut found = Self { markers, opening: Vec::new(), text_steers: compat };
        let mut sink = IdSink::new(vocabulary, false);
        found.opening(Before::default(), &mut sink);
        found.opening = sink.take()?;
        Ok(found)
    }

    fn say(&self, role: &str, head: Head<'_>, text: &str, close: &Marker, sink: &mut dyn Sink) {
        sink.marker(&self.markers.start);
        sink.text(role);
        sink.text(head.recipient);
        if !head.channel.is_empty() {
            sink.marker(&self.markers.channel);
            sink.text(head.channel);
        }
        if head.json {
            sink.text(" ");
            sink.marker(&self.markers.constrain);
            sink.text("json");
        }
        sink.marker(&self.markers.message);
        sink.text(text);
        sink.marker(close);
    }

    /// A message of the model's.
    fn utter(&self, channel: &str, text: &str, sink: &mut dyn Sink) {
        let head = Head { channel, ..Head::default() };
        self.say("assistant", head, text, &self.markers.end, sink);
    }
}

impl Format for Harmony {
    fn name(&self) -> &'static str {
        "harmony"
    }

    fn stop_ids(&self) -> Vec<TokenId> {
        [&self.markers.ret, &self.markers.call].into_iter().filter_map(Marker::id).collect()
    }

    fn parser(&self, _thinking: bool, calls: Calls, _header: &Header) -> Box<dyn OutputParser> {
        Box::new(HarmonyReader::of_turn(self.markers.clone(), calls))
    }

    fn describe_calls(&self) -> Option<String> {
        Some(harmony::DESCRIBED.to_owned())
    }

    fn drops_reasoning(&self) -> bool {
        true
    }

    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        harmony::write(answer, &self.markers, sink);
        Ok(())
    }
}

impl Family for Harmony {
    /// A header is words: a function's name must be one, or it would say something else. What the
    /// template refuses it is to refuse itself.
    fn takes(&self, groups: &[Group], _before: Before) -> bool {
        let is_word = |name: &String| {
            let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
            !name.is_empty() && name.bytes().all(letter)
        };
        let channels = ["analysis", "final"].map(|name| format!("<|channel|>{name}<|message|>"));
        let is_plain = |text: &Option<String>| {
            let holds = |text: &String| channels.iter().any(|channel| text.contains(channel));
            !(self.text_steers && text.as_ref().is_some_and(holds))
        };
        groups.iter().all(|group| match &group.message {
            Message::Plain { .. } => true,
            Message::Assistant { reasoning, text, calls } => {
                calls.iter().all(|(name, _)| is_word(name)) && is_plain(reasoning) && is_plain(text)
            }
            Message::Outputs(outputs) => outputs.iter().all(|output| is_word(&output.name)),
        })
    }

    /// From all that decision 0014 lists: calls, what stands beside them, and outputs; a late word
    /// of the operator's; an answer at the very end, which the template closes as for training.
    fn departs(&self, groups: &[Group], generate: bool) -> bool {
        let last_says = groups
            .last()
            .is_some_and(|group| matches!(group.message, Message::Assistant { .. }) && !generate);
        last_says
            || groups.iter().any(|group| match &group.message {
                Message::Plain { role, .. } => *role != Role::User,
                Message::Assistant { .. } => !group.message.is_answer(),
                Message::Outputs(_) => true,
            })
    }

    /// An empty text beside calls, or an empty reasoning, is no message.
    fn message(&self, message: &Message, shown: Shown, _before: Before, sink: &mut dyn Sink) {
        let end = &self.markers.end;
        match message {
            Message::Plain { role: Role::User, text } => {
                self.say("user", Head::default(), text, end, sink);
            }
            // Only the header's first message is the system's.
            Message::Plain { text, .. } => {
                let text = format!("# Instructions\n\n{text}");
                self.say("developer", Head::default(), &text, end, sink);
            }
            Message::Assistant { reasoning, text, calls } => {
                let thought = reasoning.as_deref().unwrap_or_default();
                if shown == Shown::Reasoning && !thought.is_empty() {
                    self.utter("analysis", thought, sink);
                }
                match text.as_deref() {
                    Some(text) if calls.is_empty() => self.utter("final", text, sink),
                    None | Some("") => {}
                    Some(text) => self.utter("commentary", text, sink),
                }
                for (name, arguments) in calls {
                    let recipient = format!(" to={}", harmony::recipient(name));
                    let head = Head { recipient: &recipient, channel: "commentary", json: true };
                    self.say("assistant", head, arguments, &self.markers.call, sink);
                }
            }
            Message::Outputs(outputs) => {
                let head = Head { recipient: " to=assistant", channel: "commentary", json: false };
                for output in outputs {
                    self.say(&harmony::recipient(&output.name), head, &output.text, end, sink);
                }
            }
        }
    }

    fn opening(&self, _before: Before, sink: &mut dyn Sink) {
        sink.marker(&self.markers.start);
        sink.text("assistant");
    }

    fn closer(&self, end: End, sink: &mut dyn Sink) {
        if matches!(end, End::Open | End::Thinking) {
            sink.marker(&self.markers.end);
        }
    }

    /// Only the end of a call is the same in history; a stop within reasoning is no end of it.
    fn close_of(&self, stop: TokenId, thinking: bool) -> Option<TokenId> {
        let [end, call] = [&self.markers.end, &self.markers.call].map(Marker::id);
        if call == Some(stop) { call } else { end }.filter(|_| !thinking)
    }

    fn closes(&self, id: TokenId) -> bool {
        self.markers.end.id() == Some(id)
    }

    fn control_ids(&self) -> Vec<TokenId> {
        let HarmonyMarkers { start, channel, message, constrain, end, ret: _, call } =
            &self.markers;
        let written = [start, channel, message, constrain, end, call];
        written.into_iter().filter_map(Marker::id).collect()
    }

    /// A last text shows what led to it: calls may still follow.
    fn shows(&self, groups: &[Group], _before: Before) -> Vec<Showing> {
        let followed = groups.len().saturating_sub(1);
        let answer = groups[..followed].iter().rposition(|group| group.message.is_answer());
        let shown = |(index, group): (usize, &Group)| match &group.message {
            Message::Assistant { reasoning: Some(_), .. } if answer.is_none_or(|at| index > at) => {
                (Shown::Reasoning, Dropped::OnAnswer)
            }
            _ => NOT_SHOWN,
        };
        groups.iter().enumerate().map(shown).collect()
    }

    fn reasoning_dropped(&self, _before: Before) -> Dropped {
        Dropped::OnAnswer
    }

    /// Whole messages, so that what follows has one opening: the lost message's where that was the
    /// prompt's, or where the model went on without one.
    fn lost(&self, ids: &[TokenId], reasoning: Range<usize>) -> Range<usize> {
        let Range { mut start, mut end } = reasoning;
        let opens = |at: usize| ids.get(at..).unwrap_or_default().starts_with(&self.opening);
        if start == 0 && opens(end) {
            end += self.opening.len();
        } else if opens(start)
            && end < ids.len()
            && ids.get(end).copied() != self.markers.start.id()
        {
            start += self.opening.len();
        }
        start..end
    }

    fn loses_whole(&self) -> bool {
        true
    }
}
