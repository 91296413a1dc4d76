//! What stands in a call, read one character at a time.

use std::fmt::Debug;
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

/// What has become certain of a call, until it is taken.
#[derive(Debug, Default)]
pub(super) struct Gained {
    /// Its name, once, when that is complete.
    pub(super) name: Option<String>,
    /// The JSON of its arguments.
    pub(super) ready: String,
}

/// The body of one call.
pub(super) trait Body: Debug + Send {
    /// What has become certain since the last time.
    fn gained(&mut self) -> &mut Gained;

    /// How far the arguments have come.
    fn arguments(&self) -> Progress;

    /// Nothing more of the call comes, but its closing marker.
    fn is_done(&self) -> bool;

    /// The next character is inside a string, where a marker is only letters.
    fn in_string(&self) -> bool;

    /// One more character.
    ///
    /// # Errors
    /// [`Malformed`] when it cannot stand here. It is then not part of the body, and the body takes
    /// no more.
    fn push(&mut self, c: char) -> Result<(), Malformed>;

    /// Takes a token that is markup within the body, where it may stand.
    fn token(&mut self, _id: TokenId) -> bool {
        false
    }

    /// A marker has come: what only that ends is complete now.
    fn close(&mut self) {}
}

impl dyn Body {
    /// One of this form.
    pub(super) fn of(form: &BodyForm, types: &Arc<ParameterTypes>) -> Box<Self> {
        match form {
            BodyForm::Object { list } => Box::new(ObjectBody::new(*list)),
            BodyForm::Python => Box::new(PythonBody::new()),
            BodyForm::Named { before, .. } => Box::new(NamedBody::new(before)),
            BodyForm::Tagged(tags) => Box::new(TaggedBody::new(tags, Arc::clone(types))),
            BodyForm::Braced { before, quote } => Box::new(BracedBody::new(before, quote)),
            BodyForm::Elements(form) => Box::new(ElementsBody::new(form, Arc::clone(types))),
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
