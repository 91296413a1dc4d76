//! Raw JSON as it came, and JSON as Python writes it.
//!
//! Chat templates print tools with `json.dumps(ensure_ascii=False)`; a model has seen those very
//! bytes in training, so `": "` against `":"`, or `1e+16` against `1e16`, matters. Numbers are
//! taken from the client's text, never through a float unless Python would.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{Error, Result};

/// Deepest nesting of a tool's schema. Python's own limit is near 1,000 frames; real schemas stay
/// below 30, and every level costs a scan of what is inside it.
pub(crate) const MAX_DEPTH: usize = 100;

/// How to separate items and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// `json.dumps(value, ensure_ascii=False)`: what templates print.
    Python,
    /// No white space: what events carry (an SSE line must not hold a newline).
    Compact,
}

impl Style {
    fn separators(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => (", ", ": "),
            Self::Compact => (",", ":"),
        }
    }
}

/// The members of a JSON object in order, values unparsed. A repeated key keeps its first place
/// and its last value, as a Python dict does.
pub struct Members<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut members: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some((BorrowedKey(key), value)) =
                    map.next_entry::<BorrowedKey<'de>, &'de RawValue>()?
                {
                    match members.iter_mut().find(|(seen, _)| *seen == key) {
                        Some((_, old)) => *old = value,
                        None => members.push((key, value)),
                    }
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[derive(Deserialize)]
struct BorrowedKey<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Members<'a> {
    /// The value of `key`; `null` counts as absent.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| *value)
            .filter(|value| value.get() != "null")
    }

    /// The value of `key` as a string.
    ///
    /// # Errors
    /// `invalid_value` at `param.key` when it is something else.
    pub fn string(&self, key: &str, param: &str) -> Result<Option<Cow<'a, str>>> {
        self.get(key).map(|raw| string(raw, &format!("{param}.{key}"))).transpose()
    }

    /// The value of `key` as a string that must be there.
    ///
    /// # Errors
    /// `missing_required_parameter` or `invalid_value` at `param.key`.
    pub fn required(&self, key: &str, param: &str) -> Result<Cow<'a, str>> {
        self.string(key, param)?.ok_or_else(|| Error::missing_parameter(format!("{param}.{key}")))
    }

    /// Whether `key` is `true`.
    #[must_use]
    pub fn is_true(&self, key: &str) -> bool {
        self.get(key).is_some_and(|raw| raw.get() == "true")
    }
}

/// What kind of JSON value `raw` is, in the words of an error message.
#[must_use]
pub fn kind(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// The error for a value of the wrong type, worded as OpenAI words it.
#[must_use]
pub fn wrong_type(param: &str, expected: &str, raw: &RawValue) -> Error {
    let found = kind(raw);
    Error::invalid_value(
        param,
        format!("Invalid type for '{param}': expected {expected}, but got {found} instead."),
    )
}

/// Raw bytes as one JSON value.
///
/// # Errors
/// `invalid_value` at `param` when they are not valid JSON or not UTF-8.
pub fn value<'a>(bytes: &'a [u8], param: &str) -> Result<&'a RawValue> {
    serde_json::from_slice(bytes).map_err(|error| invalid(param, error))
}

/// `raw` as an object.
///
/// # Errors
/// `invalid_value` at `param`.
pub fn object<'a>(raw: &'a RawValue, param: &str) -> Result<Members<'a>> {
    if !raw.get().starts_with('{') {
        return Err(wrong_type(param, "an object", raw));
    }
    serde_json::from_str(raw.get()).map_err(|error| invalid(param, error))
}

/// `raw` as an array of unparsed values.
///
/// # Errors
/// `invalid_value` at `param`.
pub fn array<'a>(raw: &'a RawValue, param: &str) -> Result<Vec<&'a RawValue>> {
    if !raw.get().starts_with('[') {
        return Err(wrong_type(param, "an array", raw));
    }
    serde_json::from_str(raw.get()).map_err(|error| invalid(param, error))
}

/// `raw` as a string.
///
/// # Errors
/// `invalid_value` at `param`, also for half of a surrogate pair.
pub fn string<'a>(raw: &'a RawValue, param: &str) -> Result<Cow<'a, str>> {
    if !raw.get().starts_with('"') {
        return Err(wrong_type(param, "a string", raw));
    }
    let BorrowedKey(text) =
        serde_json::from_str(raw.get()).map_err(|error| invalid(param, error))?;
    Ok(text)
}

fn invalid(param: &str, error: serde_json::Error) -> Error {
    Error::invalid_value(param, format!("Invalid JSON in '{param}': {error}.")).with_source(error)
}

/// Appends `raw` to `out`, written in `style`.
///
/// # Errors
/// `invalid_value` at `param` when it is nested deeper than [`MAX_DEPTH`] levels, or holds a
/// string that is no text.
pub fn write(raw: &RawValue, style: Style, param: &str, out: &mut String) -> Result<()> {
    write_at(raw, style, param, 0, out)
}

fn write_at(
    raw: &RawValue,
    style: Style,
    param: &str,
    depth: usize,
    out: &mut String,
) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::invalid_value(
            param,
            format!("'{param}' is nested deeper than {MAX_DEPTH} levels."),
        ));
    }
    let (between, after_key) = style.separators();
    match raw.get().as_bytes().first() {
        Some(b'{') => {
            out.push('{');
            for (index, (key, value)) in object(raw, param)?.0.into_iter().enumerate() {
                if index > 0 {
                    out.push_str(between);
                }
                write_string(&key, out);
                out.push_str(after_key);
                write_at(value, style, param, depth + 1, out)?;
            }
            out.push('}');
        }
        Some(b'[') => {
            out.push('[');
            for (index, value) in array(raw, param)?.into_iter().enumerate() {
                if index > 0 {
                    out.push_str(between);
                }
                write_at(value, style, param, depth + 1, out)?;
            }
            out.push(']');
        }
        Some(b'"') => write_string(&string(raw, param)?, out),
        Some(b't' | b'f' | b'n') => out.push_str(raw.get()),
        _ => write_number(raw.get(), out),
    }
    Ok(())
}

/// Appends `text` as a JSON string, escaped as `json.dumps(ensure_ascii=False)` escapes it.
pub fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Integers keep their digits, of any length; anything else goes through a double and comes out as
/// Python's `repr` of it.
pub(crate) fn write_number(text: &str, out: &mut String) {
    if text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()) {
        out.push_str(if text == "-0" { "0" } else { text });
        return;
    }
    let Ok(number) = text.parse::<f64>() else {
        out.push_str(text);
        return;
    };
    if number.is_infinite() {
        out.push_str(if number < 0.0 { "-Infinity" } else { "Infinity" });
        return;
    }
    // Rust's `{:e}` gives the shortest digits that read back, as Python's repr does; only the
    // layout differs: Python writes an exponent below 1e-4 and from 1e16 on, with a sign and two
    // digits at least.
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{mantissa}e{sign}{:02}", exponent.abs());
        return;
    }
    let plain = format!("{number}");
    out.push_str(&plain);
    if !plain.contains('.') {
        out.push_str(".0");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, style: Style) -> String {
        let mut out = String::new();
        write(value(text.as_bytes(), "x").unwrap(), style, "x", &mut out).unwrap();
        out
    }

    /// Oracle: `json.dumps(json.loads(text), ensure_ascii=False)` of CPython 3.11.
    #[test]
    fn writes_as_python_does() {
        for (text, expected) in [
            (r#"{"b":1,"a":[1,2.0,true,null]}"#, r#"{"b": 1, "a": [1, 2.0, true, null]}"#),
            ("1e3", "1000.0"),
            ("1e16", "1e+16"),
            ("1E-7", "1e-07"),
            ("0.0001", "0.0001"),
            ("123456789012345.6", "123456789012345.6"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("1e400", "Infinity"),
            ("18446744073709551617", "18446744073709551617"),
            (r#""\u00e9\u2028\u007f\u0001\/""#, "\"é\u{2028}\u{7f}\\u0001/\""),
            (r#"{"a":1,"b":2,"a":3}"#, r#"{"a": 3, "b": 2}"#),
            ("[ ]", "[]"),
        ] {
            assert_eq!(written(text, Style::Python), expected, "{text}");
        }
        assert_eq!(written("{\n \"a\" : [1, 2] }", Style::Compact), r#"{"a":[1,2]}"#);
    }

    #[test]
    fn refuses_depth_and_half_surrogates() {
        let deep = format!("{}{}", "[".repeat(102), "]".repeat(102));
        let mut out = String::new();
        let error = write(value(deep.as_bytes(), "x").unwrap(), Style::Python, "tools", &mut out)
            .unwrap_err();
        assert_eq!(error.param(), Some("tools"));
        let half = value(br#""\ud800""#, "input");
        assert!(half.and_then(|raw| string(raw, "input").map(drop)).is_err());
    }
}
