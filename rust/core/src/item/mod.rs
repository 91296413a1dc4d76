//! Items of a conversation, from the raw JSON that a client sent.
//!
//! This is the only place where `input` is parsed (D1). What the model cannot see (ids, status,
//! encrypted content) is dropped here; what it would have to see and we cannot show it is refused.

mod careful;
mod quick;

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::Result;
use crate::header::{Added, INPUT, Offered};
use crate::json;

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The person, or the agent on their behalf.
    User,
    /// The model.
    Assistant,
    /// The operator, in the words of chat templates.
    System,
    /// The operator, in the words of the Responses API.
    Developer,
}

impl Role {
    /// The role of that name.
    fn of(name: &str) -> Option<Self> {
        match name {
            "user" => Some(Self::User),
            "assistant" => Some(Self::Assistant),
            "system" => Some(Self::System),
            "developer" => Some(Self::Developer),
            _ => None,
        }
    }

    /// The types of the parts that its messages may have. The easy form lets any role use
    /// `input_text`; an assistant's own output comes back as `output_text` or `refusal`.
    fn parts(self) -> &'static [&'static str] {
        if self == Self::Assistant {
            &["output_text", "refusal", "input_text"]
        } else {
            &["input_text"]
        }
    }

    /// The API's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::System => "system",
            Self::Developer => "developer",
        }
    }
}

/// One item, reduced to what a model is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Text from one of the roles.
    Message {
        /// Who speaks.
        role: Role,
        /// The text parts, joined.
        text: String,
    },
    /// What the model thought.
    Reasoning {
        /// The reasoning text, else the summary.
        text: String,
    },
    /// The model called a function, or a custom tool, which to it is a function of one text.
    Call {
        /// Pairs the call with its output.
        call_id: String,
        /// The name by which the model calls it: that of its namespace is part of it.
        name: String,
        /// Raw JSON, byte for byte as sampled or as the client sent it.
        arguments: String,
    },
    /// What the function returned.
    Output {
        /// The call that it answers.
        call_id: String,
        /// The text parts, joined.
        text: String,
    },
}

impl Item {
    /// The API's name of the type.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Message { .. } => "message",
            Self::Reasoning { .. } => "reasoning",
            Self::Call { .. } => "function_call",
            Self::Output { .. } => "function_call_output",
        }
    }

    /// Its text: for a call, the arguments.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Message { text, .. } | Self::Reasoning { text } | Self::Output { text, .. } => {
                text
            }
            Self::Call { arguments, .. } => arguments,
        }
    }

    /// Arguments without the white space of their spelling, where they are JSON.
    #[must_use]
    pub fn canonical(arguments: &str) -> Cow<'_, str> {
        let mut compact = String::with_capacity(arguments.len());
        let written = json::value(arguments.as_bytes(), "arguments")
            .and_then(|raw| json::write(raw, json::Style::Compact, "arguments", &mut compact));
        if written.is_ok() { Cow::Owned(compact) } else { Cow::Borrowed(arguments) }
    }

    /// Bytes that it takes in memory, roughly.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let names = match self {
            Self::Call { call_id, name, .. } => call_id.len() + name.len(),
            Self::Output { call_id, .. } => call_id.len(),
            Self::Message { .. } | Self::Reasoning { .. } => 0,
        };
        size_of::<Self>() + self.text().len() + names
    }

    /// Whether a system or a developer message.
    #[must_use]
    pub fn is_instruction(&self) -> bool {
        matches!(self, Self::Message { role: Role::System | Role::Developer, .. })
    }
}

/// What a request's `input` holds.
#[derive(Debug, Default)]
pub struct Input {
    items: Vec<Arc<Item>>,
    offers: Vec<Offer>,
}

/// Tools that an item brings.
#[derive(Debug, PartialEq, Eq)]
struct Offer {
    /// How many items stand before it.
    at: usize,
    /// Whether an item is yet to be made that tells the model of them: what a search has found, its output
    /// tells.
    is_untold: bool,
    offered: Offered,
}

impl Input {
    fn of(items: Vec<Item>) -> Self {
        Self { items: items.into_iter().map(Arc::new).collect(), offers: Vec::new() }
    }

    /// The items, and the tools that they add. With `is_front` they begin their conversation, and tools that
    /// stand before its first question or answer are no item: its header declares them. To others, a
    /// message tells of them.
    #[must_use]
    pub fn settled(self, is_front: bool) -> (Vec<Arc<Item>>, Added) {
        let Self { mut items, offers } = self;
        let mut added = Added::default();
        let mut told = 0;
        for Offer { at, is_untold, offered } in offers {
            let leads = || items.iter().take(at + told).all(|item| item.is_instruction());
            if is_untold && is_front && leads() {
                added.front.extend(offered.tools);
            } else {
                if is_untold {
                    let text = format!("{MORE_TOOLS}\n{}", offered.declarations());
                    let message = Item::Message { role: Role::Developer, text };
                    items.insert(at + told, Arc::new(message));
                    told += 1;
                }
                added.loaded.extend(offered.tools);
            }
            added.left_out.extend(offered.left_out);
        }
        (items, added)
    }
}

/// What a model is told before tools that come later than the first message.
const MORE_TOOLS: &str = "From now on you can call these tools as well:";

/// What `input` holds: a string is one user message, an array is a list of items.
///
/// # Errors
/// `invalid_value`, `missing_required_parameter` or `unsupported_parameter`, with the path of the
/// field at fault (`input[3].content[0].type`).
pub fn parse_input(bytes: &[u8]) -> Result<Input> {
    let array = std::str::from_utf8(bytes).ok().filter(|text| text.starts_with('['));
    match array.and_then(quick::read) {
        Some(items) => Ok(Input::of(items)),
        None => careful::read(bytes),
    }
}

/// The arguments with which a model calls a custom tool on `input`: to it, such a tool is a function.
fn custom_arguments(input: &str) -> String {
    let mut arguments = String::with_capacity(input.len() + 16);
    arguments.push('{');
    json::write_string(INPUT, &mut arguments);
    arguments.push(':');
    json::write_string(input, &mut arguments);
    arguments.push('}');
    arguments
}
