//! What a model would say: for a scripted engine, which samples what a family's model would.

use serde::Deserialize;

use crate::error::{Error, Result};

/// An answer, as a model of the family would sample it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// What it thinks first.
    pub reasoning: Option<String>,
    /// What it says.
    pub text: Option<String>,
    /// (name, raw arguments) of the functions that it calls.
    pub calls: Vec<(String, String)>,
}

impl Answer {
    /// From `{"reasoning": str?, "text": str?, "calls": [{"name": str, "arguments": str}]?}`.
    ///
    /// # Errors
    /// `invalid_value` at `output` for anything else.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let Written { reasoning, text, calls } = serde_json::from_slice(json)
            .map_err(|error| Error::invalid_value("output", format!("Not an answer: {error}.")))?;
        let calls = calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        Ok(Self { reasoning, text, calls })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    reasoning: Option<String>,
    text: Option<String>,
    #[serde(default)]
    calls: Vec<WrittenCall>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCall {
    name: String,
    arguments: String,
}
