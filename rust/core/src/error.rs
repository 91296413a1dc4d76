//! Every way the core can refuse, and whose fault it is.
//!
//! The wall maps each [`ErrorKind`] to one class of `turnwire.errors`; nothing here knows that.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// Whose fault an error is, and what the client may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A parameter has a value or a type that the API does not allow.
    InvalidValue,
    /// A required parameter is absent.
    MissingParameter,
    /// The parameter is legal in the API, and this server does not serve it.
    Unsupported,
    /// The request names a call, an output or an item that the chain does not hold.
    Unpaired,
    /// A tokenizer, template or model file cannot be used; the detail says why.
    Profile,
    /// A law of the core was broken: our bug, never the client's.
    Invariant,
}

/// An error of the core: a kind, a sentence for a person, and the parameter it is about.
#[derive(Debug)]
pub struct Error(Box<Repr>);

#[derive(Debug)]
struct Repr {
    kind: ErrorKind,
    detail: String,
    param: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// How many characters of a client's value an error repeats.
const EXCERPT: usize = 64;

/// A client's value as an error repeats it: not all of a long one.
#[must_use]
pub fn excerpt(value: &str) -> Cow<'_, str> {
    shortened(value, EXCERPT)
}

/// At most `most` characters of `value`, and a sign where there were more.
#[must_use]
pub fn shortened(value: &str, most: usize) -> Cow<'_, str> {
    match value.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(format!("{}…", &value[..end])),
        None => Cow::Borrowed(value),
    }
}

/// `Result` with the core's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn new(kind: ErrorKind, detail: impl Into<String>, param: Option<String>) -> Self {
        Self(Box::new(Repr { kind, detail: detail.into(), param, source: None }))
    }

    /// A parameter's value or type is not allowed.
    pub fn invalid_value(param: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidValue, detail, Some(param.into()))
    }

    /// A required parameter is absent. Worded as OpenAI words it.
    pub fn missing_parameter(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::new(
            ErrorKind::MissingParameter,
            format!("Missing required parameter: '{param}'."),
            Some(param),
        )
    }

    /// The API allows the parameter; this server does not serve it.
    pub fn unsupported(param: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, detail, Some(param.into()))
    }

    /// An output without its call, or a call without its output.
    pub fn unpaired(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unpaired, detail, Some("input".to_owned()))
    }

    /// A model's files cannot be used.
    pub fn profile(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Profile, detail, None)
    }

    /// A law was broken.
    pub fn invariant(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invariant, detail, None)
    }

    /// The same error, with what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Whose fault it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The sentence for a person, without the cause.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The request parameter the error is about, as a path (`input[3].call_id`).
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        self.0.param.as_deref()
    }
}

impl fmt::Display for Error {
    /// The detail; with `{:#}`, the chain of causes too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.detail)?;
        if f.alternate() {
            let mut cause = self.source();
            while let Some(error) = cause {
                write!(f, ": {error}")?;
                cause = error.source();
            }
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_ends_at_a_character() {
        assert_eq!(excerpt("short"), "short");
        assert_eq!(excerpt(&"é".repeat(64)), "é".repeat(64));
        assert_eq!(excerpt(&"é".repeat(65)), format!("{}…", "é".repeat(64)));
    }
}
