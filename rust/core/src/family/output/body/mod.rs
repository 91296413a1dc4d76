//! What stands in a call, read one character at a time.

use std::sync::Arc;

use self::braced::BracedBody;
use self::elements::ElementsBody;
use self::named::NamedBody;
use self::object::ObjectBody;
pub(super) use self::object::{Flow, Malformed, Progress, Raw, is_blank};
use self::python::PythonBody;
pub(super) use self::python::begins_name;
use self::tagged::TaggedBody;
use super::form::BodyForm;
use crate::header::ParameterTypes;
use crate::json;
use crate::token::TokenId;

mod braced;
mod elements;
mod literal;
mod named;
mod object;
mod python;
mod tagged;

/// A key that is longer is none.
const LONGEST_KEY: usize = 256;

/// The body of one call.
#[derive(Debug)]
pub(super) enum Body {
    Object(ObjectBody),
    Python(PythonBody),
    Named(NamedBody),
    Tagged(TaggedBody),
    Braced(BracedBody),
    Elements(ElementsBody),
}

impl Body {
    pub(super) fn new(form: &BodyForm, types: &Arc<ParameterTypes>) -> Self {
        match form {
            BodyForm::Object { list } => Self::Object(ObjectBody::new(*list)),
            BodyForm::Python => Self::Python(PythonBody::new()),
            BodyForm::Named { before, .. } => Self::Named(NamedBody::new(before)),
            BodyForm::Tagged(tags) => Self::Tagged(TaggedBody::new(tags, Arc::clone(types))),
            BodyForm::Braced { before, quote } => Self::Braced(BracedBody::new(before, quote)),
            BodyForm::Elements(form) => Self::Elements(ElementsBody::new(form, Arc::clone(types))),
        }
    }

    /// The name, once, when it is complete.
    pub(super) fn take_name(&mut self) -> Option<String> {
        match self {
            Self::Object(body) => body.take_name(),
            Self::Python(body) => body.take_name(),
            Self::Named(body) => body.take_name(),
            Self::Tagged(body) => body.take_name(),
            Self::Braced(body) => body.take_name(),
            Self::Elements(body) => body.take_name(),
        }
    }

    /// The JSON of the arguments, as far as it is certain, since the last time.
    pub(super) fn take_ready(&mut self) -> String {
        match self {
            Self::Object(body) => body.take_ready(),
            Self::Python(body) => body.take_ready(),
            Self::Named(body) => body.take_ready(),
            Self::Tagged(body) => body.take_ready(),
            Self::Braced(body) => body.take_ready(),
            Self::Elements(body) => body.take_ready(),
        }
    }

    pub(super) fn arguments(&self) -> Progress {
        match self {
            Self::Object(body) => body.arguments(),
            Self::Python(body) => body.arguments(),
            Self::Named(body) => body.arguments(),
            Self::Tagged(body) => body.arguments(),
            Self::Braced(body) => body.arguments(),
            Self::Elements(body) => body.arguments(),
        }
    }

    /// Nothing more of the call comes, but its closing marker.
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Object(body) => body.is_done(),
            Self::Python(body) => body.is_done(),
            Self::Named(body) => body.is_done(),
            Self::Tagged(body) => body.is_done(),
            Self::Braced(body) => body.is_done(),
            Self::Elements(body) => body.is_done(),
        }
    }

    /// The next character is inside a string, where a marker is only letters.
    pub(super) fn in_string(&self) -> bool {
        match self {
            Self::Object(body) => body.in_string(),
            Self::Python(body) => body.in_string(),
            Self::Named(body) => body.in_string(),
            Self::Tagged(body) => body.in_string(),
            Self::Braced(body) => body.in_string(),
            Self::Elements(body) => body.in_string(),
        }
    }

    /// One more character.
    ///
    /// # Errors
    /// [`Malformed`] when it cannot stand here. It is then not part of the body, and the body takes
    /// no more.
    pub(super) fn push(&mut self, c: char) -> Result<(), Malformed> {
        match self {
            Self::Object(body) => body.push(c),
            Self::Python(body) => body.push(c),
            Self::Named(body) => body.push(c),
            Self::Tagged(body) => body.push(c),
            Self::Braced(body) => body.push(c),
            Self::Elements(body) => body.push(c),
        }
    }

    /// Takes a token that is markup within the body, where it may stand.
    pub(super) fn token(&mut self, id: TokenId) -> bool {
        match self {
            Self::Braced(body) => body.token(id),
            Self::Elements(body) => body.token(id),
            _ => false,
        }
    }

    /// A marker has come: what only that ends is complete now.
    pub(super) fn close(&mut self) {
        match self {
            Self::Tagged(body) => body.close(),
            Self::Elements(body) => body.end(),
            _ => {}
        }
    }
}

/// A literal that is met character by character, white space aside.
#[derive(Debug, Clone)]
struct Literal {
    rest: Vec<char>,
}

impl Literal {
    fn new(text: &str) -> Self {
        Self { rest: text.chars().rev().filter(|c| !c.is_whitespace()).collect() }
    }

    fn is_met(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes `c`, if it is white space or goes on with the literal.
    fn take(&mut self, c: char) -> bool {
        c.is_whitespace() || self.rest.pop_if(|next| *next == c).is_some()
    }
}

/// The beginning of a body: a literal, and a name behind it.
#[derive(Debug)]
struct Head {
    before: Literal,
    name: String,
}

/// What a character did to a [`Head`].
enum Step {
    /// It belongs to it.
    Within(Head),
    /// It is the first behind the name.
    Behind(String),
}

impl Head {
    fn new(before: &str) -> Self {
        Self { before: Literal::new(before), name: String::new() }
    }

    fn push(mut self, c: char) -> Result<Step, Malformed> {
        if self.before.is_met() && is_name(c) {
            self.name.push(c);
        } else if !self.name.is_empty() {
            return Ok(Step::Behind(self.name));
        } else if !self.before.take(c) {
            return Err(Malformed);
        }
        Ok(Step::Within(self))
    }
}

/// A character of a function's name.
fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Writes a piece of a string's inside as JSON has it.
pub(super) fn escape(text: &str, into: &mut String) {
    let mut quoted = String::with_capacity(text.len() + 2);
    json::write_string(text, &mut quoted);
    into.push_str(quoted.get(1..quoted.len() - 1).unwrap_or_default());
}

/// How many bytes at the end of `text` may begin `marker`.
fn begun_marker(text: &str, marker: &str) -> usize {
    (1..marker.len())
        .rev()
        .filter(|&length| marker.is_char_boundary(length))
        .find(|&length| text.ends_with(&marker[..length]))
        .unwrap_or(0)
}
