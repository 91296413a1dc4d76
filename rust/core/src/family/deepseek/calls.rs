//! Writes calls and outputs as the generations of `DeepSeek` were taught them.

use std::borrow::Cow;

use serde_json::json;
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::family::generic::Generic;
use crate::family::hermes;
use crate::family::marker::{Marker, Markers};
use crate::family::render::Sink;
use crate::json::{self, Style};
use crate::tokenizer::{Place, Vocabulary};

/// Begins the tags of calls. Their letters, where the vocabulary has no such token.
const DSML: &str = "｜DSML｜";
const ARGUMENTS: &str = "arguments";

/// How calls and outputs are written.
pub(super) enum CallStyle {
    /// In text, for a template that declares no tools: a hermes block, and a user's outputs.
    Text,
    /// Between control tokens.
    Tokens(Box<Tokens>),
    /// In tags, all calls in one block.
    Tags {
        /// Opens each tag, behind `<` or `</`.
        dsml: Marker,
        /// What outputs and blocks are called.
        form: TagForm,
        /// What stands for no arguments.
        none: &'static str,
    },
}

/// The control tokens of V3.1.
pub(super) struct Tokens {
    calls: Markers,
    call: Markers,
    separator: Marker,
    output: Markers,
    /// Whether arguments are printed as they are, and not as Python spells them again.
    as_text: bool,
}

/// The two forms of tags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TagForm {
    /// `function_calls`, and outputs that an answer goes on from.
    V32,
    /// `tool_calls`, and outputs that a user brings.
    V4,
}

impl TagForm {
    fn block(self) -> &'static str {
        match self {
            Self::V32 => "function_calls",
            Self::V4 => "tool_calls",
        }
    }
}

impl CallStyle {
    /// The style that `generic`'s template prints.
    pub(super) fn detect(generic: &Generic, vocabulary: &Vocabulary) -> Result<Self> {
        if !generic.ways().tools {
            return Ok(Self::Text);
        }
        let called = generic.sample_call("");
        let tags = |form| {
            let none = if calls_blankly(generic) { "\n" } else { "" };
            Ok(Self::Tags { dsml: dsml(vocabulary)?, form, none })
        };
        if called.contains("<｜User｜><tool_result>probe_output</tool_result>") {
            return tags(TagForm::V4);
        }
        if called.contains("\n<result>probe_output</result>\n") {
            return tags(TagForm::V32);
        }
        if called.contains("<｜tool▁output▁begin｜>probe_output<｜tool▁output▁end｜>") {
            let token = |content: &str| Marker::token(content, vocabulary);
            let pair = |open: &str, close: &str| Markers::tokens(open, close, vocabulary);
            return Ok(Self::Tokens(Box::new(Tokens {
                calls: pair("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")?,
                call: pair("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")?,
                separator: token("<｜tool▁sep｜>")?,
                output: pair("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>")?,
                as_text: generic.ways().arguments_as_text,
            })));
        }
        Err(Error::profile("no output of a tool is printed as DeepSeek's"))
    }

    /// Whether these calls have a form: tags have one only for the members of an object.
    pub(super) fn writes(&self, calls: &[(String, String)]) -> bool {
        !matches!(self, Self::Tags { .. }) || calls.iter().all(|(_, raw)| arguments(raw).is_some())
    }

    /// What stands between an answer's text and its calls.
    pub(super) fn before_calls(&self) -> &'static str {
        match self {
            Self::Text => "\n",
            Self::Tokens(_) => "",
            Self::Tags { .. } => "\n\n",
        }
    }

    /// The calls of an answer, behind its `text`.
    pub(super) fn calls(&self, text: &str, calls: &[(String, String)], sink: &mut dyn Sink) {
        if calls.is_empty() {
            return;
        }
        match self {
            Self::Text => {
                sink.text(if text.is_empty() { "" } else { self.before_calls() });
                hermes::calls(calls, &Markers::letters("<tool_call>", "</tool_call>"), sink);
            }
            Self::Tokens(tokens) => {
                sink.marker(&tokens.calls.open);
                for (name, raw) in calls {
                    sink.marker(&tokens.call.open);
                    sink.text(name);
                    sink.marker(&tokens.separator);
                    sink.text(&if tokens.as_text { Cow::from(raw) } else { dumped(raw).into() });
                    sink.marker(&tokens.call.close);
                }
                sink.marker(&tokens.calls.close);
            }
            Self::Tags { dsml, form, none } => {
                sink.text(self.before_calls());
                tagged(form.block(), none, dsml, calls, sink);
            }
        }
    }

    /// The outputs of one answer's calls; `user` opens or goes on with what a user says.
    pub(super) fn outputs<'a>(
        &self,
        outputs: impl Iterator<Item = &'a str>,
        mut user: impl FnMut(&mut dyn Sink),
        sink: &mut dyn Sink,
    ) {
        match self {
            Self::Text => {
                user(sink);
                hermes::outputs(
                    outputs,
                    &Markers::letters("<tool_response>", "</tool_response>"),
                    sink,
                );
            }
            Self::Tokens(tokens) => {
                for output in outputs {
                    sink.between(&tokens.output, output);
                }
            }
            Self::Tags { form: TagForm::V32, .. } => {
                sink.text("\n\n<function_results>");
                for output in outputs {
                    sink.text("\n<result>");
                    sink.text(output);
                    sink.text("</result>");
                }
                sink.text("\n</function_results>");
            }
            Self::Tags { form: TagForm::V4, .. } => {
                for output in outputs {
                    user(sink);
                    sink.text("<tool_result>");
                    sink.text(output);
                    sink.text("</tool_result>");
                }
            }
        }
    }

    /// The tokens at which prompts are cut. That of tags is none: some vocabularies have another that
    /// ends as it begins, but not behind `<` and `</`, where it always stands.
    pub(super) fn markers(&self) -> Vec<&Marker> {
        let Self::Tokens(tokens) = self else { return Vec::new() };
        let pairs = [&tokens.calls, &tokens.call, &tokens.output];
        let ends = pairs.into_iter().flat_map(|pair| [&pair.open, &pair.close]);
        ends.chain([&tokens.separator]).collect()
    }
}

/// Whether the template prints a blank line for no arguments.
fn calls_blankly(generic: &Generic) -> bool {
    let function = json!({"name": "f", "arguments": {}});
    let call = json!([{"id": "c", "type": "function", "function": function}]);
    let messages = [
        json!({"role": "user", "content": "x"}),
        json!({"role": "assistant", "content": "", "tool_calls": call}),
        json!({"role": "tool", "tool_call_id": "c", "content": "y"}),
    ];
    generic.sample(&messages, false, true).contains("\"f\">\n\n</")
}

/// The marker of tags.
fn dsml(vocabulary: &Vocabulary) -> Result<Marker> {
    let Some(id) = vocabulary.added_id(DSML) else { return Ok(Marker::Text(DSML.to_owned())) };
    for before in ["<", "</"] {
        let mut ids = Vec::new();
        vocabulary.encode_run(&format!("{before}{DSML}x"), Place::Later, true, &mut ids)?;
        if !ids.contains(&id) {
            return Err(Error::profile(format!("{before}{DSML} is not read as a tag")));
        }
    }
    Ok(Marker::Token(id, DSML.to_owned()))
}

/// Each argument's tag says whether its value is a string, which stands there as it is.
fn tagged(block: &str, none: &str, dsml: &Marker, calls: &[(String, String)], sink: &mut dyn Sink) {
    let tag = |start: &str, parts: &[&str], sink: &mut dyn Sink| {
        sink.text(start);
        sink.marker(dsml);
        for part in parts {
            sink.text(part);
        }
    };
    tag("<", &[block, ">\n"], sink);
    for (name, raw) in calls {
        tag("<", &["invoke name=\"", name, "\">\n"], sink);
        let arguments = arguments(raw).unwrap_or_default();
        if arguments.is_empty() {
            sink.text(none);
        }
        for (key, is_string, value) in arguments {
            let is_string = if is_string { "true" } else { "false" };
            let open = ["parameter name=\"", &key, "\" string=\"", is_string, "\">", &value];
            tag("<", &open, sink);
            tag("</", &["parameter>\n"], sink);
        }
        tag("</", &["invoke>\n"], sink);
    }
    tag("</", &[block, ">"], sink);
}

/// Arguments as Python spells them again; what it cannot is a string.
fn dumped(arguments: &str) -> String {
    hermes::dumped(arguments).unwrap_or_else(|| {
        let mut quoted = String::new();
        json::write_string(arguments, &mut quoted);
        quoted
    })
}

/// The arguments of a call: key, whether the value is a string, and the value as it stands in its tag.
/// None when they are no JSON object, or name one twice.
fn arguments(arguments: &str) -> Option<Vec<(Cow<'_, str>, bool, String)>> {
    let raw = json::value(arguments.as_bytes(), ARGUMENTS).ok()?;
    let members = json::object(raw, ARGUMENTS).ok()?.0;
    let repeats = |(index, (key, _)): (usize, &(Cow<'_, str>, &RawValue))| {
        members[..index].iter().any(|(other, _)| other == key)
    };
    if members.iter().enumerate().any(repeats) {
        return None;
    }
    let argument = |(key, raw): (_, &RawValue)| {
        if raw.get().starts_with('"') {
            return Some((key, true, json::string(raw, ARGUMENTS).ok()?.into_owned()));
        }
        let mut value = String::new();
        json::write(raw, Style::Python, ARGUMENTS, &mut value).ok()?;
        Some((key, false, value))
    };
    members.into_iter().map(argument).collect()
}
