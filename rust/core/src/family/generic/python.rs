//! What chat templates expect of jinja2 and Python, where minijinja does otherwise.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error as TemplateError, ErrorKind, Output, State, escape_formatter};
use minijinja_contrib::pycompat;

use super::marks;
use crate::json;

type Outcome<T> = Result<T, TemplateError>;

/// Deepest nesting that `tojson` follows.
const MAX_DEPTH: usize = 128;

/// Gives `environment` Python's methods, filters and ways to print. `marked`: texts may be marked.
pub(super) fn install(environment: &mut Environment<'static>, marked: bool) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(move |output, state, value| print(output, state, value, marked));
    environment.add_filter("tojson", move |value: &Value, options: Kwargs| {
        tojson(value, &options, marked)
    });
    environment.add_filter("string", move |value: &Value| -> Outcome<Value> {
        match value.kind() {
            ValueKind::String => Ok(value.clone()),
            ValueKind::Number => Ok(Value::from(number(value))),
            ValueKind::Seq | ValueKind::Map => repr(value, 0, marked).map(Value::from),
            _ => Ok(Value::from(value.to_string())),
        }
    });
    for name in ["e", "escape"] {
        environment.add_filter(name, |value: &Value| {
            let escaped = escape(&value.to_string());
            if value.is_safe() { value.clone() } else { Value::from_safe_string(escaped) }
        });
    }
    environment.add_filter(
        "indent",
        |text: &str, width: Option<usize>, first: Option<bool>, options: Kwargs| {
            indent(text, &options, width, first)
        },
    );
    // Of anything: jinja2 makes a string of it first, and nothing of what is undefined.
    for name in ["number", "float"] {
        environment.add_test(name, move |value: &Value| {
            let is_float = value.is_number() && (name == "number" || !value.is_integer());
            is_float || value.downcast_object_ref::<OddFloat>().is_some()
        });
    }
    environment.add_filter("trim", |value: &Value, chars: Option<&str>| {
        let text = value.to_string();
        match chars {
            Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
            None => text.trim_matches(is_space).to_owned(),
        }
    });
}

/// What `str.strip` takes away: white space, and the four separators that Unicode does not call so.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Outcome<Value> {
    if let (Some(text), []) = (value.as_str(), args) {
        let stripped = match method {
            "strip" => Some(text.trim_matches(is_space)),
            "lstrip" => Some(text.trim_start_matches(is_space)),
            "rstrip" => Some(text.trim_end_matches(is_space)),
            _ => None,
        };
        if let Some(stripped) = stripped {
            return Ok(Value::from(stripped));
        }
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

/// `json.dumps` with the options that templates use, as Hugging Face's own filter: no HTML escapes.
fn tojson(value: &Value, options: &Kwargs, marked: bool) -> Outcome<Value> {
    let indent = options.get::<Option<usize>>("indent")?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (between, after_key) = match separators.as_deref() {
        Some([between, after_key]) => (between.as_str(), after_key.as_str()),
        Some(_) => return Err(refuse("tojson takes two separators")),
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let writer = Dumps {
        between,
        after_key,
        indent,
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        marked,
    };
    options.assert_all_used()?;
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

/// `json.dumps(value, ensure_ascii=False)`; `marked`: texts in it may be marked.
///
/// # Errors
/// When `value` holds something that JSON has no form for.
pub(super) fn dumps(value: &Value, marked: bool) -> Outcome<String> {
    let writer =
        Dumps { between: ", ", after_key: ": ", indent: None, sort: false, ascii: false, marked };
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(out)
}

fn refuse(detail: impl Into<String>) -> TemplateError {
    TemplateError::new(ErrorKind::InvalidOperation, detail.into())
}

struct Dumps<'a> {
    between: &'a str,
    after_key: &'a str,
    indent: Option<usize>,
    sort: bool,
    ascii: bool,
    marked: bool,
}

impl Dumps<'_> {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Outcome<()> {
        if depth > MAX_DEPTH {
            return Err(refuse("tojson: nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items(('[', ']'), items.iter(), depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                self.items(('{', '}'), keys.iter(), depth, out, |key, out| {
                    match key.as_str() {
                        Some(text) => self.string(text, out),
                        None => self.string(&key.to_string(), out),
                    }
                    out.push_str(self.after_key);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            _ if value.downcast_object_ref::<OddFloat>().is_some() => {
                out.push_str(&value.to_string());
            }
            kind => return Err(refuse(format!("tojson: {kind} has no JSON"))),
        }
        Ok(())
    }

    fn items<'v>(
        &self,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = &'v Value>,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Outcome<()>,
    ) -> Outcome<()> {
        let empty = items.len() == 0;
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent.filter(|_| !empty) {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        out.push(open);
        for (index, item) in items.enumerate() {
            if index > 0 {
                out.push_str(self.between);
            }
            line(depth + 1, out);
            write(item, out)?;
        }
        line(depth, out);
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        let mark = if self.ascii { marks::ASCII_TEXT } else { marks::JSON_TEXT };
        if self.marked && text.contains(marks::TEXT) {
            let text = text.replace(marks::TEXT, mark.encode_utf8(&mut [0; 4]));
            return out.push_str(&self.quoted(&text));
        }
        out.push_str(&self.quoted(text));
    }

    fn quoted(&self, text: &str) -> String {
        let quoted = quoted(text, false);
        if !self.ascii {
            return quoted;
        }
        let keep = |c: char| (' '..='~').contains(&c) || self.marked && marks::is_reserved(c);
        ascii(&quoted, keep)
    }
}

/// A JSON string.
pub(super) fn quoted(text: &str, in_ascii: bool) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    json::write_string(text, &mut out);
    if in_ascii { ascii(&out, |c| (' '..='~').contains(&c)) } else { out }
}

/// JSON in ASCII, but for what is kept.
fn ascii(quoted: &str, keep: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        if keep(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

/// HTML, as markupsafe escapes it.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// A number that Rust writes otherwise than Python does. minijinja would write it as Rust does,
/// wherever it becomes text, so templates are given this.
#[derive(Debug)]
struct OddFloat(f64);

impl Object for OddFloat {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&float(self.0))
    }
}

/// A number of JSON as a template is given it.
pub(super) fn given_float(number: f64) -> Value {
    let plain = Value::from(number);
    if plain.to_string() == float(number) { plain } else { Value::from_object(OddFloat(number)) }
}

/// A double as Python's `repr` writes it.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    let mut out = String::new();
    json::write_number(&format!("{number:?}"), &mut out);
    out
}

/// What `{{ value }}` prints, where minijinja prints otherwise than Python: numbers that Python
/// writes with an exponent, and whatever holds values.
fn print(output: &mut Output, state: &mut State, value: &Value, marked: bool) -> Outcome<()> {
    let text = match value.kind() {
        ValueKind::Number => number(value),
        ValueKind::Seq | ValueKind::Map => repr(value, 0, marked)?,
        _ => return escape_formatter(output, state, value),
    };
    output.write_str(&text).map_err(TemplateError::from)
}

/// Python's `repr`.
fn repr(value: &Value, depth: usize, marked: bool) -> Outcome<String> {
    if depth > MAX_DEPTH {
        return Err(refuse("nested too deeply"));
    }
    let inner = |value: &Value| repr(value, depth + 1, marked);
    Ok(match value.kind() {
        ValueKind::Number => number(value),
        ValueKind::String => repr_string(value.as_str().unwrap_or_default(), marked),
        ValueKind::Seq => {
            let items: Vec<String> =
                value.try_iter()?.map(|item| inner(&item)).collect::<Outcome<_>>()?;
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let member = |key: Value| -> Outcome<String> {
                Ok(format!("{}: {}", inner(&key)?, inner(&value.get_item(&key)?)?))
            };
            let members: Vec<String> = value.try_iter()?.map(member).collect::<Outcome<_>>()?;
            format!("{{{}}}", members.join(", "))
        }
        _ => value.to_string(),
    })
}

fn repr_string(text: &str, marked: bool) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) || marked && marks::is_reserved(c) => out.push(c),
            c => {
                let code = u32::from(c);
                // Writing to a String cannot fail.
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    out
}

/// `str.isprintable` of one character. Rust's escapes know the same categories; behind another
/// character they leave combining marks alone, as Python does.
fn is_printable(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || String::from_iter(['a', c]).escape_debug().eq(['a', c])
}

/// `indent` of jinja2, which keeps the last newline, and takes whatever Python takes for the end of a
/// line.
fn indent(
    text: &str,
    options: &Kwargs,
    width: Option<usize>,
    first: Option<bool>,
) -> Outcome<String> {
    let width = width.or(options.get("width")?).unwrap_or(4);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = options.get::<Option<bool>>("blank")?.unwrap_or(false);
    options.assert_all_used()?;
    let indention = " ".repeat(width);
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    for (index, line) in lines(text).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let indents = if index == 0 { first } else { blank || !line.is_empty() };
        if indents {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `(text + "\n").splitlines()`.
fn lines(text: &str) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        found.push(&rest[..at]);
        let end = &rest[at..];
        let length =
            if end.starts_with("\r\n") { 2 } else { end.chars().next().map_or(1, char::len_utf8) };
        rest = &end[length..];
    }
    found.push(rest);
    found
}

/// A number as Python's `repr` writes it.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) => float(number),
        Err(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Template;

    fn printed(expression: &str, value: &serde_json::Value) -> String {
        let template =
            Template::new(&format!("{{{{ messages[0]{expression} }}}}"), "", "", true).unwrap();
        template.render(&json!([value]), None, false, true).unwrap()
    }

    /// Oracle: `json.dumps` and `str` methods of CPython 3.11.
    #[test]
    fn writes_as_python_does() {
        let value = json!({"b": [1, 2.5, 1e16, null, true, "é<\"\n"], "a": {}, "c": []});
        assert_eq!(
            printed("|tojson", &value),
            "{\"b\": [1, 2.5, 1e+16, null, true, \"é<\\\"\\n\"], \"a\": {}, \"c\": []}"
        );
        assert_eq!(
            printed("|tojson(indent=2, sort_keys=true)", &json!({"b": [1], "a": {}})),
            "{\n  \"a\": {},\n  \"b\": [\n    1\n  ]\n}"
        );
        assert_eq!(
            printed("|tojson(separators=[',', ':'])", &json!({"a": [1, 2]})),
            "{\"a\":[1,2]}"
        );
        assert_eq!(
            printed("|tojson(ensure_ascii=true)", &json!("é🙂")),
            "\"\\u00e9\\ud83d\\ude42\""
        );
        for strip in ["|trim", ".strip()"] {
            assert_eq!(printed(strip, &json!(" \u{1c}\u{85}a\u{a0}\u{1f}\n")), "a");
        }
        assert_eq!(printed(".lstrip()", &json!("\u{1d} a ")), "a ");
        assert_eq!(printed(".rstrip()", &json!(" a \u{1e}")), " a");
    }
}
