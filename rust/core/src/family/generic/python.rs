//! What chat templates expect of jinja2 and Python, where minijinja does otherwise.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error as TemplateError, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::marks;
use crate::json;

type Outcome<T> = Result<T, TemplateError>;

/// Deepest nesting that `tojson` follows.
const MAX_DEPTH: usize = 128;

/// Gives `environment` Python's methods and filters.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", tojson);
    // Of anything: jinja2 makes a string of it first, and nothing of what is undefined.
    environment.add_filter("trim", |value: &Value, chars: Option<&str>| {
        let text = value.to_string();
        match chars {
            Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
            None => text.trim_matches(is_space).to_owned(),
        }
    });
}

/// What `str.strip` takes away: white space, and the four separators that Unicode does not call so.
pub(super) fn is_space(c: char) -> bool {
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
#[expect(clippy::needless_pass_by_value, reason = "minijinja calls filters by value")]
fn tojson(value: &Value, options: Kwargs) -> Outcome<Value> {
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
    };
    options.assert_all_used()?;
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

/// `json.dumps(value, ensure_ascii=False)`.
///
/// # Errors
/// When `value` holds something that JSON has no form for.
pub(super) fn dumps(value: &Value) -> Outcome<String> {
    let writer = Dumps { between: ", ", after_key: ": ", indent: None, sort: false, ascii: false };
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
        let mut plain = String::with_capacity(text.len() + 2);
        json::write_string(text, &mut plain);
        for c in plain.chars() {
            if c == marks::TEXT {
                out.push(marks::JSON_TEXT);
            } else if c.is_ascii() || !self.ascii || marks::is_reserved(c) {
                out.push(c);
            } else {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
}

/// A number as Python's `repr` writes it.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => "NaN".to_owned(),
        Ok(number) => {
            let mut out = String::new();
            json::write_number(&format!("{number:?}"), &mut out);
            out
        }
        Err(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Template;

    fn printed(expression: &str, value: &serde_json::Value) -> String {
        let template =
            Template::new(&format!("{{{{ messages[0]{expression} }}}}"), "", "").unwrap();
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
