//! The forms of reasoning and of calls.

use std::sync::Arc;

use super::body::begins_name;
use crate::family::Calls;
use crate::family::marker::{Marker, Markers};
use crate::header::{Header, ParameterTypes};
use crate::token::TokenId;

/// What a model's template and vocabulary make of the family's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFormat {
    /// Around reasoning; none for a model that does not reason.
    pub think: Option<Markers>,
    /// How a call is written; none when calls are forbidden, or their form is not known, so that all
    /// of the answer is text.
    pub call: Option<CallForm>,
    /// What the tools take.
    pub tools: Arc<ParameterTypes>,
    /// Whether the call markers' letters count although the vocabulary has the tokens: so when a
    /// grammar forces calls, since engines spell a grammar's literals in any tokens that fit.
    pub text_markers: bool,
}

impl OutputFormat {
    /// The format in a turn whose output may be `calls` of the `header`'s tools.
    #[must_use]
    pub fn of_turn(
        think: Option<&Markers>,
        form: Option<&CallForm>,
        calls: Calls,
        header: &Header,
    ) -> Self {
        Self {
            think: think.cloned(),
            call: form.filter(|_| calls != Calls::Forbidden).cloned(),
            tools: header.parameter_types(),
            text_markers: calls == Calls::Forced,
        }
    }
}

/// The form of one family's calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallForm {
    /// Opens a call.
    pub open: Marker,
    /// Closes it; none where its body says when it ends.
    pub close: Option<Marker>,
    /// Markers around all calls of an answer, which say nothing.
    pub around: Vec<Marker>,
    /// What stands between.
    pub body: BodyForm,
    /// Tokens that are part of the body's scaffold.
    pub parts: Vec<(TokenId, String)>,
    /// Whether nothing need open a call (Llama 3.1 writes bare JSON): then it is only what an answer
    /// begins with, under the name of a tool that was declared.
    pub bare: bool,
}

/// What stands in a call. White space in literals counts for nothing: models are free with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyForm {
    /// `{"name": …, "arguments": …}`; with `list`, a JSON list of them.
    Object {
        /// Whether several stand in one pair of markers.
        list: bool,
    },
    /// Such an object, or calls in Python's spelling: `[f(a=1), g(b="x")]`, `f.call(a=1)`.
    Python,
    /// A name, and arguments in JSON: `functions.f:0<|tool_call_argument_begin|>{…}`.
    Named {
        /// Before the name.
        before: String,
        /// Behind the arguments, before the closing marker.
        after: String,
    },
    /// A name, and each argument between tags of its own.
    Tagged(Tags),
    /// A name, and JSON whose keys are bare: `call:f{key:<|"|>value<|"|>,more:[1]}`.
    Braced {
        /// Before the name.
        before: String,
        /// Around a string, in which nothing is escaped.
        quote: Marker,
    },
    /// A name, and the arguments as elements, one in the other.
    Elements(Elements),
}

/// `mark<key>value mark</key>`: an element for each argument, for each member of an object in it, and
/// for each item of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elements {
    /// Before the name: `<invoke name="`.
    pub before: String,
    /// Between the name and the first element: `">`.
    pub behind: String,
    /// Before every tag, which is text without it.
    pub mark: Marker,
    /// The element of a list's item.
    pub item: String,
    /// Behind the last element, with a mark: `</invoke>`.
    pub end: String,
}

/// `<function=f><parameter=key>value</parameter></function>`, and its like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tags {
    /// Before the name: `<function=`.
    pub before: String,
    /// Before a key: `<parameter=`, `<arg_key>`.
    pub key: String,
    /// The end of what stands between a key and its value: `>`, `<arg_value>`.
    pub value: String,
    /// Behind a value: `</parameter>`.
    pub value_end: String,
    /// Whether a value stands on lines of its own: the newlines around it are scaffold.
    pub lines: bool,
    /// Behind the last value: `</function>`; empty where only the closing marker ends a call.
    pub end: String,
}

impl BodyForm {
    /// Whether this token is markup within the body.
    pub(super) fn marks(&self, id: TokenId) -> bool {
        match self {
            Self::Braced { quote: mark, .. } | Self::Elements(Elements { mark, .. }) => {
                mark.id() == Some(id)
            }
            _ => false,
        }
    }
}

impl CallForm {
    /// A JSON object between two markers, as Qwen and Hermes write calls.
    #[must_use]
    pub fn hermes(markers: Markers) -> Self {
        Self {
            open: markers.open,
            close: Some(markers.close),
            around: Vec::new(),
            body: BodyForm::Object { list: false },
            parts: Vec::new(),
            bare: false,
        }
    }

    /// The form for people: what opens a call, what stands in it, what closes it.
    #[must_use]
    pub fn describe(&self) -> String {
        let body = match &self.body {
            BodyForm::Object { list: false } => "{name, arguments}".to_owned(),
            BodyForm::Object { list: true } => "[{name, arguments}, …]".to_owned(),
            BodyForm::Python => "{name, parameters} or [name(key=value), …]".to_owned(),
            BodyForm::Named { before, after } => format!("{before}name … {{arguments}}{after}"),
            BodyForm::Tagged(Tags { before, key, value, value_end, end, .. }) => {
                format!("{before}name {key}key{value}value{value_end} {end}")
            }
            BodyForm::Braced { before, quote } => {
                let quote = quote.content();
                format!("{before}name{{key:{quote}value{quote}, …}}")
            }
            BodyForm::Elements(Elements { before, behind, mark, end, .. }) => {
                let mark = mark.content();
                format!("{before}name{behind}{mark}<key>value{mark}</key>{mark}{end}")
            }
        };
        let open = if self.bare { "" } else { self.open.content() };
        let close = self.close.as_ref().map_or("", Marker::content);
        let around: String = self.around.iter().map(Marker::content).collect();
        let around = if around.is_empty() { around } else { format!(" (within {around})") };
        format!("{open}{body}{close}{around}")
    }

    /// What a call begins with that nothing opens.
    pub(super) fn beginnings(&self) -> &'static [&'static str] {
        match &self.body {
            _ if !self.bare => &[],
            BodyForm::Python => &["{", "["],
            _ => &["{"],
        }
    }

    /// What `c` is behind a call and `held`.
    pub(super) fn goes_on(&self, held: &str, c: char) -> Next {
        let squeezed = |text: &str| -> String { text.split_whitespace().collect() };
        let part = |is_part: bool| if is_part { Next::Part } else { Next::Text };
        match &self.body {
            BodyForm::Object { list: true } | BodyForm::Python if c == '{' => Next::Call,
            BodyForm::Object { list } => part(*list && c == ','),
            BodyForm::Python if squeezed(held) == "," && begins_name(c) => Next::Call,
            BodyForm::Python => part(matches!(c, ',' | ';') && squeezed(held).is_empty()),
            BodyForm::Named { after, .. } => {
                let mut seen = squeezed(held);
                seen.push(c);
                part(squeezed(after).starts_with(&seen))
            }
            BodyForm::Tagged(_) | BodyForm::Braced { .. } | BodyForm::Elements(_) => Next::Text,
        }
    }
}

/// What a character behind a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The first of another call, perhaps.
    Call,
    /// Part of what stands around calls.
    Part,
    /// Text.
    Text,
}
