//! From items to chunks: what every family's renderer stands on.
//!
//! A renderer writes into a [`Sink`]: text, and markers. The stretch of text between two control
//! tokens is one *run* and is encoded as one (D2), because a role header and the content behind it
//! share tokens (`user\n` + `\n\nhi`).

use std::ops::Range;
use std::sync::Arc;

use crate::chain::Dropped;
use crate::error::Result;
use crate::family::marker::{Marker, Markers};
use crate::family::{Before, Family, Last, Showing, Shown};
use crate::item::{Item, Role};
use crate::token::TokenId;
use crate::tokenizer::{Place, Vocabulary};

/// Where a renderer writes.
pub trait Sink {
    /// Text: scaffold or content, in which nothing is a control token.
    fn text(&mut self, text: &str);
    /// Markup.
    fn marker(&mut self, marker: &Marker);

    /// Text between two markers.
    fn between(&mut self, Markers { open, close }: &Markers, text: &str) {
        self.marker(open);
        self.text(text);
        self.marker(close);
    }
}

/// What a user says to find the end of a header.
pub const HEADER_QUESTION: &str = "probe_question";

/// Collects text, as a template would print it.
#[derive(Debug, Default)]
pub struct TextSink(pub String);

impl Sink for TextSink {
    fn text(&mut self, text: &str) {
        self.0.push_str(text);
    }

    fn marker(&mut self, marker: &Marker) {
        self.0.push_str(marker.content());
    }
}

/// What `write` renders, as text.
#[must_use]
pub fn text_of(write: impl FnOnce(&mut dyn Sink)) -> String {
    let mut sink = TextSink::default();
    write(&mut sink);
    sink.0
}

/// Collects ids: runs are encoded when a control token ends them.
pub struct IdSink<'a> {
    vocabulary: &'a Vocabulary,
    /// Whether added tokens are matched in text (`trust = "compat"`).
    control: bool,
    run: String,
    ids: Vec<TokenId>,
    /// Where the ids of the message that is being written begin.
    start: Option<usize>,
    failure: Result<()>,
}

impl<'a> IdSink<'a> {
    /// An empty sink.
    #[must_use]
    pub fn new(vocabulary: &'a Vocabulary, control: bool) -> Self {
        let (run, ids) = (String::new(), Vec::new());
        Self { vocabulary, control, run, ids, start: None, failure: Ok(()) }
    }

    /// Ends the current run and takes the ids written since the last call.
    ///
    /// # Errors
    /// When the encoder failed.
    pub fn take(&mut self) -> Result<Vec<TokenId>> {
        self.end_run();
        std::mem::replace(&mut self.failure, Ok(()))?;
        Ok(std::mem::take(&mut self.ids))
    }

    /// Writes a message, and says where its ids begin. One that `runs_on` goes on with the run of text
    /// before it, so its own ids begin with its first control token: nowhere if it has none.
    pub fn message(&mut self, runs_on: bool, write: impl FnOnce(&mut Self)) -> Option<usize> {
        self.start = None;
        if !runs_on {
            self.end_run();
            self.start = Some(self.ids.len());
        }
        write(self);
        self.start
    }

    fn end_run(&mut self) {
        if self.run.is_empty() {
            return;
        }
        // A message begins with a control token, so no run of it is the first of a prompt.
        let encoded =
            self.vocabulary.encode_run(&self.run, Place::Later, self.control, &mut self.ids);
        if self.failure.is_ok() {
            self.failure = encoded;
        }
        self.run.clear();
    }
}

impl Sink for IdSink<'_> {
    fn text(&mut self, text: &str) {
        self.run.push_str(text);
    }

    fn marker(&mut self, marker: &Marker) {
        match marker {
            Marker::Token(id, _) => {
                self.end_run();
                self.start.get_or_insert(self.ids.len());
                self.ids.push(*id);
            }
            Marker::Text(content) => self.run.push_str(content),
        }
    }
}

/// One message of a chat: what a template sees where the API has one item or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// From a user, or from the operator.
    Plain {
        /// Never the assistant.
        role: Role,
        /// Its text.
        text: String,
    },
    /// From the model: adjacent items in the order reasoning, text, calls.
    Assistant {
        /// One reasoning item; None when there was no such item.
        reasoning: Option<String>,
        /// One message item.
        text: Option<String>,
        /// (name, raw arguments) of each call.
        calls: Vec<(String, String)>,
    },
    /// Adjacent tool outputs.
    Outputs(Vec<Answered>),
}

impl Message {
    /// Whether it is an answer of the model's: a text without calls.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Assistant { text: Some(_), .. }) && self.calls_nothing()
    }

    /// Whether it is of the model's, without calls.
    #[must_use]
    pub fn calls_nothing(&self) -> bool {
        matches!(self, Self::Assistant { calls, .. } if calls.is_empty())
    }
}

/// One tool's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The call that it answers.
    pub call_id: String,
    /// The function that was called; empty where nobody knows.
    pub name: String,
    /// How many calls of the conversation stand before it.
    pub number: u32,
    /// What it returned.
    pub text: String,
}

impl Message {
    /// Who says it.
    #[must_use]
    pub fn speaker(&self) -> Last {
        match self {
            Self::Plain { role: Role::User, .. } => Last::User,
            Self::Plain { .. } => Last::Operator,
            Self::Assistant { .. } => Last::Model,
            Self::Outputs(_) => Last::Tools,
        }
    }
}

/// A call, as its output may name it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Called {
    /// The function.
    pub name: String,
    /// How many calls of the conversation stand before it.
    pub number: u32,
}

/// Finds the call with this id.
pub type CallOf<'a> = &'a dyn Fn(&str) -> Option<Called>;

/// A message and the items that it came from (indices into the chain).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// End exclusive.
    pub items: Range<usize>,
    /// What they form.
    pub message: Message,
}

impl Group {
    fn of(index: usize, item: &Item, call_of: CallOf<'_>) -> Self {
        let assistant = |reasoning, text, calls| Message::Assistant { reasoning, text, calls };
        let message = match item {
            Item::Message { role: Role::Assistant, text } => {
                assistant(None, Some(text.clone()), Vec::new())
            }
            Item::Message { role, text } => Message::Plain { role: *role, text: text.clone() },
            Item::Reasoning { text } => assistant(Some(text.clone()), None, Vec::new()),
            Item::Call { name, arguments, .. } => {
                assistant(None, None, vec![(name.clone(), arguments.clone())])
            }
            Item::Output { .. } => Message::Outputs(answered(item, call_of).into_iter().collect()),
        };
        Self { items: index..index + 1, message }
    }

    /// Adds the item if it belongs to the same message: reasoning, text and calls in that order,
    /// since a template has one place for each (D5; docs/decisions/0002).
    pub fn join(&mut self, item: &Item, call_of: CallOf<'_>) -> bool {
        match (&mut self.message, item) {
            (Message::Outputs(outputs), Item::Output { .. }) => {
                outputs.extend(answered(item, call_of));
            }
            (
                Message::Assistant { text: slot @ None, calls, .. },
                Item::Message { role: Role::Assistant, text },
            ) if calls.is_empty() => *slot = Some(text.clone()),
            (Message::Assistant { calls, .. }, Item::Call { name, arguments, .. }) => {
                calls.push((name.clone(), arguments.clone()));
            }
            _ => return false,
        }
        self.items.end += 1;
        true
    }
}

fn answered(item: &Item, call_of: CallOf<'_>) -> Option<Answered> {
    let Item::Output { call_id, text } = item else { return None };
    let Called { name, number } = call_of(call_id).unwrap_or_default();
    Some(Answered { call_id: call_id.clone(), name, number, text: text.clone() })
}

/// The messages that `items` form; `first` is the chain's index of the first of them.
#[must_use]
pub fn group(items: &[Arc<Item>], first: usize, call_of: CallOf<'_>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (offset, item) in items.iter().enumerate() {
        if !groups.last_mut().is_some_and(|last| last.join(item, call_of)) {
            groups.push(Group::of(first + offset, item, call_of));
        }
    }
    groups
}

/// The last call with this id among `items`, behind so many `calls`.
#[must_use]
pub fn call_among(items: &[Arc<Item>], calls: u32, id: &str) -> Option<Called> {
    let named = items.iter().filter_map(|item| match item.as_ref() {
        Item::Call { call_id, name, .. } => Some((call_id, name)),
        _ => None,
    });
    let named = named.zip(calls..).filter(|((call_id, _), _)| *call_id == id);
    named.last().map(|((_, name), number)| Called { name: name.clone(), number })
}

/// Where a header may end that begins with `items`, of which `leading` are the operator's: behind
/// those, or, where the template prints the header within the first question, behind that.
pub fn header_ends(items: &[Arc<Item>], leading: usize) -> impl Iterator<Item = usize> {
    let asks = |item: &Arc<Item>| matches!(**item, Item::Message { role: Role::User, .. });
    let question = items.get(leading).is_some_and(asks);
    [Some(leading), question.then_some(leading + 1)].into_iter().flatten()
}

/// Shows every answer's reasoning by what `rule` says of it: of the reasoning item, where there is
/// one, of whether the answer stands behind the last query, and of whether it is the last message.
#[must_use]
pub fn shows_in_cycle(
    family: &dyn Family,
    groups: &[Group],
    before: Before,
    rule: impl Fn(Option<&str>, bool, bool) -> Showing,
) -> Vec<Showing> {
    let last_query = groups.iter().rposition(|group| family.asks(&group.message));
    let shown = |(index, group): (usize, &Group)| {
        let Message::Assistant { reasoning, .. } = &group.message else {
            return NOT_SHOWN;
        };
        let in_cycle = last_query.map_or(before.asked, |query| index > query);
        rule(reasoning.as_deref(), in_cycle, index + 1 == groups.len())
    };
    groups.iter().enumerate().map(shown).collect()
}

/// As the family [shows](Family::shows) the messages; where the model is to `speak` behind them, without
/// what a last answer ends.
#[must_use]
pub fn shows(family: &dyn Family, groups: &[Group], before: Before, speaks: bool) -> Vec<Showing> {
    let mut shown = family.shows(groups, before);
    if speaks && groups.last().is_some_and(|group| group.message.is_answer()) {
        let ended = shown.iter_mut().filter(|(_, dropped)| *dropped == Dropped::OnAnswer);
        ended.for_each(|showing| *showing = NOT_SHOWN);
    }
    shown
}

/// Of a message without reasoning, or whose reasoning is not shown.
pub const NOT_SHOWN: Showing = (Shown::Nothing, Dropped::Never);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_assistant_items_form_one_message_in_order() {
        let reasoning = |text: &str| Item::Reasoning { text: text.into() };
        let text = |text: &str| Item::Message { role: Role::Assistant, text: text.into() };
        let call = |name: &str| Item::Call {
            call_id: "c".into(),
            name: name.into(),
            arguments: "{}".into(),
        };
        let items: Vec<Arc<Item>> = [
            reasoning("r"),
            text("a"),
            call("f"),
            call("g"),
            text("b"),
            reasoning("s"),
            text("c"),
            text("d"),
        ]
        .into_iter()
        .map(Arc::new)
        .collect();
        let ranges: Vec<_> =
            group(&items, 10, &|_| None).into_iter().map(|group| group.items).collect();
        assert_eq!(ranges, [10..14, 14..15, 15..17, 17..18]);
    }
}
