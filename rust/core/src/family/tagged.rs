//! Writes calls whose arguments stand between tags, as Qwen's coders were taught them.
//!
//! ```text
//! <tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>
//! ```
//!
//! A string stands there as it is; everything else as JSON, or as Python prints it.

use std::borrow::Cow;

use crate::family::marker::Markers;
use crate::family::render::Sink;
use crate::json::{self, Style};

/// How a value that is neither a string, a list nor an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalars {
    /// As Python's `str` does: `True`, `None`.
    Python,
    /// As JSON: `true`, `null`.
    Json,
}

/// The arguments of a call, each as it stands between its tags; None when `arguments` is no JSON
/// object.
#[must_use]
pub fn arguments(arguments: &str, scalars: Scalars) -> Option<Vec<(Cow<'_, str>, String)>> {
    const PARAM: &str = "arguments";
    let raw = json::value(arguments.as_bytes(), PARAM).ok()?;
    let members = json::object(raw, PARAM).ok()?.0;
    let value = |raw: &serde_json::value::RawValue| -> Option<String> {
        Some(match (raw.get(), scalars) {
            (text, _) if text.starts_with('"') => json::string(raw, PARAM).ok()?.into_owned(),
            ("true", Scalars::Python) => "True".to_owned(),
            ("false", Scalars::Python) => "False".to_owned(),
            ("null", Scalars::Python) => "None".to_owned(),
            _ => {
                let mut out = String::new();
                json::write(raw, Style::Python, PARAM, &mut out).ok()?;
                out
            }
        })
    };
    members.into_iter().map(|(key, raw)| Some((key, value(raw)?))).collect()
}

/// Calls, each by its name and raw arguments; `scalars` as in [`arguments`].
pub fn calls(calls: &[(String, String)], scalars: Scalars, markers: &Markers, sink: &mut dyn Sink) {
    for (index, (name, raw)) in calls.iter().enumerate() {
        if index > 0 {
            sink.text("\n");
        }
        sink.marker(&markers.open);
        sink.text("\n<function=");
        sink.text(name);
        sink.text(">\n");
        for (key, value) in arguments(raw, scalars).unwrap_or_default() {
            sink.text("<parameter=");
            sink.text(&key);
            sink.text(">\n");
            sink.text(&value);
            sink.text("\n</parameter>\n");
        }
        sink.text("</function>\n");
        sink.marker(&markers.close);
    }
}
