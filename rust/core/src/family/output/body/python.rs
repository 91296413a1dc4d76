//! A call as Llama 3 may write it: a JSON object, or as Python spells it.
//!
//! ```text
//! {"name": "f", "parameters": {"a": 1}}      [f(a=1), g(b="x")]      f.call(a=1)
//! ```
//!
//! Every argument is passed on as JSON once its value is whole. The name is not before the first
//! keyword, or the closing parenthesis: until then it may be any text, such as a link in Markdown.

use std::mem;

use super::literal::Literal;
use super::object::{Malformed, ObjectBody, Progress};
use super::{Body, Gained, is_blank, is_name};

/// What Llama 3.1 writes behind the name of a tool of its own: `brave_search.call(query="…")`.
const METHOD: &str = ".call";

#[derive(Debug)]
enum At {
    /// Before the name; whether a list has been opened.
    Start {
        listed: bool,
    },
    Object(ObjectBody),
    Name(String),
    /// Before a keyword, which may be none.
    Open,
    Keyword(String),
    Value(Literal),
    Done,
}

/// The body of one call.
#[derive(Debug)]
pub(crate) struct PythonBody {
    at: At,
    /// Until it is certain.
    called: String,
    gained: Gained,
    arguments: Progress,
}

impl PythonBody {
    pub(super) fn new() -> Self {
        Self {
            at: At::Start { listed: false },
            called: String::new(),
            gained: Gained::default(),
            arguments: Progress::Absent,
        }
    }

    fn begin(&mut self) {
        if self.arguments == Progress::Absent {
            self.gained.name = Some(mem::take(&mut self.called));
        }
    }

    fn close(&mut self) -> At {
        self.begin();
        self.gained.ready.push_str(if self.arguments == Progress::Absent { "{}" } else { "}" });
        self.arguments = Progress::Complete;
        At::Done
    }
}

impl Body for PythonBody {
    fn gained(&mut self) -> &mut Gained {
        match &mut self.at {
            At::Object(body) => body.gained(),
            _ => &mut self.gained,
        }
    }

    fn arguments(&self) -> Progress {
        match &self.at {
            At::Object(body) => body.arguments(),
            _ => self.arguments,
        }
    }

    fn is_done(&self) -> bool {
        match &self.at {
            At::Object(body) => body.is_done(),
            at => matches!(at, At::Done),
        }
    }

    fn in_string(&self) -> bool {
        match &self.at {
            At::Object(body) => body.in_string(),
            At::Value(value) => value.in_string(),
            _ => false,
        }
    }

    fn push(&mut self, c: char) -> Result<(), Malformed> {
        self.at = match mem::replace(&mut self.at, At::Done) {
            At::Start { listed } if is_blank(c) => At::Start { listed },
            At::Start { listed: false } if c == '[' => At::Start { listed: true },
            At::Start { .. } if c == '{' => {
                let mut body = ObjectBody::new(false);
                body.push(c)?;
                At::Object(body)
            }
            At::Start { .. } if begins_name(c) => At::Name(c.to_string()),
            At::Object(mut body) => {
                let pushed = body.push(c);
                self.at = At::Object(body);
                return pushed;
            }
            At::Name(mut name) if is_name(c) => {
                name.push(c);
                At::Name(name)
            }
            At::Name(name) if c == '(' => {
                name.strip_suffix(METHOD).unwrap_or(&name).clone_into(&mut self.called);
                At::Open
            }
            At::Open if is_blank(c) => At::Open,
            At::Open if c == ')' => self.close(),
            At::Open if begins_name(c) => At::Keyword(c.to_string()),
            At::Keyword(mut word) if is_name(c) || is_blank(c) => {
                word.push(c);
                At::Keyword(word)
            }
            At::Keyword(word) if c == '=' => {
                self.begin();
                self.gained.ready.push_str(if self.arguments == Progress::Absent {
                    "{"
                } else {
                    ", "
                });
                self.arguments = Progress::Open;
                crate::json::write_string(word.trim_end(), &mut self.gained.ready);
                self.gained.ready.push_str(": ");
                At::Value(Literal::default())
            }
            At::Value(mut value) => {
                if value.take(c) {
                    At::Value(value)
                } else {
                    self.gained.ready.push_str(&value.into_json());
                    match c {
                        ',' => At::Open,
                        ')' => self.close(),
                        _ => return Err(Malformed),
                    }
                }
            }
            _ => return Err(Malformed),
        };
        Ok(())
    }
}

/// A character that may begin a name in Python.
pub(crate) fn begins_name(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}
