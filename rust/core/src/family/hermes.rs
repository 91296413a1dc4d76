//! Writes tools, calls and outputs in the hermes form.
//!
//! The words are the ones that Qwen's templates print. A template without a tool branch is given
//! the same as text (D2).

use crate::family::marker::Markers;
use crate::family::render::Sink;
use crate::json::{self, Style};

const INTRO: &str = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
                     You are provided with function signatures within <tools></tools> XML tags:\n\
                     <tools>";
const OUTRO: &str = "\n</tools>\n\nFor each function call, return a json object with function name \
                     and arguments within ";
const FORM: &str = "\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n";

/// Arguments as `tojson` prints them: an object, or the text that is none; None when they are
/// nested too deep.
#[must_use]
pub fn dumped(arguments: &str) -> Option<String> {
    const PARAM: &str = "arguments";
    let mut out = String::new();
    match json::value(arguments.as_bytes(), PARAM) {
        Ok(raw) if raw.get().starts_with('{') => {
            json::write(raw, Style::Python, PARAM, &mut out).ok()?;
        }
        _ => json::write_string(arguments, &mut out),
    }
    Some(out)
}

/// Declares tools, each as a template's `tojson` prints it.
pub fn declare<'a>(
    declarations: impl IntoIterator<Item = &'a str>,
    call: &Markers,
    sink: &mut dyn Sink,
) {
    sink.text(INTRO);
    for declaration in declarations {
        sink.text("\n");
        sink.text(declaration);
    }
    sink.text(OUTRO);
    sink.marker(&call.open);
    sink.marker(&call.close);
    sink.text(" XML tags:\n");
    sink.marker(&call.open);
    sink.text(FORM);
    sink.marker(&call.close);
}

/// Calls, each by its name and raw arguments.
pub fn calls(calls: &[(String, String)], markers: &Markers, sink: &mut dyn Sink) {
    for (index, (name, arguments)) in calls.iter().enumerate() {
        if index > 0 {
            sink.text("\n");
        }
        sink.marker(&markers.open);
        sink.text("\n{\"name\": \"");
        sink.text(name);
        sink.text("\", \"arguments\": ");
        sink.text(arguments);
        sink.text("}\n");
        sink.marker(&markers.close);
    }
}

/// The outputs of adjacent calls, which together are one user's message.
pub fn outputs<'a>(
    outputs: impl IntoIterator<Item = &'a str>,
    response: &Markers,
    sink: &mut dyn Sink,
) {
    for (index, output) in outputs.into_iter().enumerate() {
        if index > 0 {
            sink.text("\n");
        }
        sink.marker(&response.open);
        sink.text("\n");
        sink.text(output);
        sink.text("\n");
        sink.marker(&response.close);
    }
}
