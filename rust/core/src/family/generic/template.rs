//! A chat template as the model ships it, run by minijinja.

use std::fmt::Write as _;
use std::io;

use chrono::{Datelike as _, Local, TimeZone as _};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error as TemplateError, ErrorKind, State};

use super::python;
use crate::error::{Error, Result, shortened};

/// What one render may take before it is stopped: 40 times what the largest known template needs
/// for a chat of this many messages. A hostile template stops here, not after minutes
/// (vllm-project/vllm#52025).
const FUEL: u64 = 20_000_000;
/// Messages that [`FUEL`] is for; every further one adds its share.
const FUEL_MESSAGES: u64 = 200;

/// How many bytes a template may print for each byte that it is given, and for none.
pub(super) const OUTPUT_PER_BYTE: usize = 16;
const OUTPUT_AT_LEAST: usize = 1 << 20;

/// How many characters of a template's own words an error repeats.
const WORDS: usize = 200;

/// The names by which templates are told to keep reasoning in history, or not to take it out: those
/// of Qwen, of GLM, of `DeepSeek`, and of Nemotron.
const KEEPING: [(&str, bool); 5] = [
    ("preserve_thinking", true),
    ("clear_thinking", false),
    ("drop_thinking", false),
    ("truncate_history_thinking", false),
    ("keep_past_thinking", true),
];

/// The name under which a render keeps the conversation's time for `strftime_now`.
const NOW: &str = "_now";

/// What templates call how much a model is to think.
const EFFORT_NAMES: [&str; 2] = ["reasoning_effort", "thinking_effort"];

/// How much of the time a template shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    /// None.
    Unseen,
    /// The date.
    Day,
    /// More than that.
    Second,
}

impl Clock {
    /// Equal for times at which the template prints the same.
    pub(super) fn of(self, now: i64) -> i64 {
        let day = || Local.timestamp_opt(now, 0).single().map(|time| time.date_naive());
        match self {
            Self::Unseen => 0,
            Self::Day => day().map_or(now, |day| i64::from(day.num_days_from_ce())),
            Self::Second => now,
        }
    }
}

/// A compiled chat template with the names that Hugging Face gives it.
pub struct Template {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
    /// Whether the model thinks only when it is told to.
    pub(super) thinks_when_told: bool,
    /// What it is told, so that history keeps reasoning; nothing where that is left to it.
    keeping: Vec<(&'static str, bool)>,
}

/// What a template is given.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// `messages`.
    pub messages: Vec<Value>,
    /// `tools`; none means that the name is not defined.
    pub tools: Option<Value>,
    /// `add_generation_prompt`.
    pub generate: bool,
    /// `enable_thinking`, and `thinking`, as others call it; none means that the names are not
    /// defined: templates test `enable_thinking is defined`.
    pub thinking: Option<bool>,
    /// As each of [`EFFORT_NAMES`]; none means that these are not defined.
    pub effort: Option<&'static str>,
    /// `verbosity`; none means that the name is not defined.
    pub verbosity: Option<&'static str>,
    /// What `strftime_now` tells, in seconds since 1970.
    pub now: i64,
    /// Bytes of all texts given, which bound what may be printed.
    pub bytes: usize,
}

impl Template {
    /// Compiles `text`; `marked` when it will be given marks in place of texts.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] when it is no template.
    pub fn new(text: &str, bos_token: &str, eos_token: &str, marked: bool) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| {
            Error::invariant("the syntax of chat templates is refused").with_source(error)
        })?);
        environment.set_fuel(Some(FUEL));
        python::install(&mut environment, marked);
        environment.add_function("strftime_now", strftime_now);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<Value, TemplateError> {
                Err(TemplateError::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_template_owned("chat", without_generation_blocks(text)).map_err(
            |error| Error::profile("The chat template does not compile").with_source(error),
        )?;
        Ok(Self {
            environment,
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
            thinks_when_told: false,
            keeping: Vec::new(),
        })
    }

    /// From now on it is told to keep reasoning in history, by whichever of the known switches it names.
    pub fn keep_reasoning(&mut self) {
        let Ok(template) = self.environment.get_template("chat") else { return };
        let text = template.source();
        self.keeping = KEEPING.into_iter().filter(|(name, _)| text.contains(name)).collect();
    }

    /// What the template prints for messages and tools in JSON. For probes.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] when the template refuses the conversation or fails.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        generate: bool,
        thinking: bool,
    ) -> Result<String> {
        self.probe(
            messages,
            tools,
            &Given { generate, thinking: self.said(thinking), ..Given::default() },
        )
        .map_err(|error| Error::profile("The chat template failed").with_source(error))
    }

    /// What is said about thinking, so that the model thinks, or does not.
    #[must_use]
    pub fn said(&self, thinking: bool) -> Option<bool> {
        if thinking { self.thinks_when_told.then_some(true) } else { Some(false) }
    }

    /// What the template prints for messages and tools in JSON, and whatever else it is `given`.
    pub(super) fn probe(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        given: &Given,
    ) -> Result<String> {
        let messages = messages.as_array().into_iter().flatten();
        self.print(Given {
            messages: messages.map(|message| Value::from(Serde(message))).collect(),
            tools: tools.map(|tools| Value::from(Serde(tools))),
            ..given.clone()
        })
    }

    /// How much of the time it shows when it prints `messages`.
    pub(super) fn clock(&self, messages: &serde_json::Value) -> Clock {
        // Noon of a day in 2001, a minute and a second later, and the same time days later.
        const NOON: i64 = 1_000_036_800;
        let at = |now: i64| self.probe(messages, None, &Given { now, ..Given::default() }).ok();
        let printed = at(NOON);
        if printed != at(NOON + 61) {
            Clock::Second
        } else if printed == at(NOON + 40 * 86_400) {
            Clock::Unseen
        } else {
            Clock::Day
        }
    }

    /// What the template prints.
    ///
    /// # Errors
    /// `invalid_value` at `input`, with the template's own words, when it refuses the conversation,
    /// fails on it, or would take too long or print too much.
    pub fn print(&self, given: Given) -> Result<String> {
        let mut written = Bounded {
            bytes: Vec::with_capacity(given.bytes + given.bytes / 4),
            limit: OUTPUT_AT_LEAST + OUTPUT_PER_BYTE * given.bytes,
        };
        let count = given.messages.len() as u64;
        let mut context = vec![
            ("messages", Value::from(given.messages)),
            ("add_generation_prompt", Value::from(given.generate)),
            ("bos_token", Value::from(self.bos_token.as_str())),
            ("eos_token", Value::from(self.eos_token.as_str())),
            (NOW, Value::from(given.now)),
        ];
        context.extend(given.tools.map(|tools| ("tools", tools)));
        if let Some(thinking) = given.thinking {
            let names = ["enable_thinking", "thinking"];
            context.extend(names.map(|name| (name, Value::from(thinking))));
        }
        context.extend(self.keeping.iter().map(|&(name, keeps)| (name, Value::from(keeps))));
        for name in EFFORT_NAMES {
            context.extend(given.effort.map(|effort| (name, Value::from(effort))));
        }
        context.extend(given.verbosity.map(|word| ("verbosity", Value::from(word))));
        let richer;
        let environment = if count > FUEL_MESSAGES {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(FUEL / FUEL_MESSAGES * count));
            richer = environment;
            &richer
        } else {
            &self.environment
        };
        let context = Value::from_pairs(context);
        environment
            .get_template("chat")
            .and_then(|template| template.render_captured_to(context, &mut written).map(drop))
            .map_err(|error| refused(&error))?;
        // A template prints strings only; anything else would be minijinja's fault.
        String::from_utf8(written.bytes)
            .map_err(|error| Error::invariant("a template printed no text").with_source(error))
    }
}

/// The template's own words where it has some, for the client whose conversation it refuses.
fn refused(error: &TemplateError) -> Error {
    let said = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "it would take too long".to_owned(),
        (ErrorKind::WriteFailure, _) => return prints_too_much(),
        (_, Some(detail)) => shortened(detail.trim_end_matches('.'), WORDS).into_owned(),
        (kind, None) => kind.to_string(),
    };
    Error::invalid_value(
        "input",
        format!("The model's chat template refuses this conversation: {said}."),
    )
}

/// The refusal of a template that prints more than can be meant.
pub(super) fn prints_too_much() -> Error {
    Error::invalid_value(
        "input",
        "The model's chat template refuses this conversation: it would print too much.",
    )
}

/// Bytes, up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > self.limit {
            return Err(io::Error::other("a template prints too much"));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `datetime.now().strftime(pattern)` of `transformers`, at the conversation's own time: a date that
/// moved on at midnight would change every prompt from its top.
fn strftime_now(state: &State, pattern: &str) -> std::result::Result<String, TemplateError> {
    let seconds = state.lookup(NOW).and_then(|now| now.as_i64()).unwrap_or_default();
    let unknown = || TemplateError::new(ErrorKind::InvalidOperation, "an unknown date format");
    let now = Local.timestamp_opt(seconds, 0).single().ok_or_else(unknown)?;
    let mut out = String::new();
    write!(out, "{}", now.format(pattern)).map_err(|_| unknown())?;
    Ok(out)
}

/// `{% generation %}` marks what a trainer learns from and prints nothing: a block that is always
/// taken stands in for it, with the same white-space control.
fn without_generation_blocks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = tag.get(2..end).unwrap_or_default();
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let (open, close) = match word {
            "generation" => ("{%", " if true "),
            "endgeneration" => ("{%", " endif "),
            _ => {
                out.push_str("{%");
                rest = tag.get(2..).unwrap_or_default();
                continue;
            }
        };
        let control = |c: Option<char>| c.filter(|c| matches!(c, '-' | '+'));
        out.push_str(open);
        out.extend(control(inner.chars().next()));
        out.push_str(close);
        out.extend(control(inner.chars().next_back()));
        out.push_str("%}");
        rest = tag.get(end + 2..).unwrap_or_default();
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(template: &str) -> Result<String> {
        Template::new(template, "<s>", "</s>", true)?.render(&json!([]), None, false, true)
    }

    #[test]
    fn generation_blocks_print_what_is_in_them() {
        for (template, expected) in [
            ("a {% generation %}\nb{% endgeneration %}\n c", "a b c"),
            ("a {%- generation -%}  b  {%- endgeneration -%} c", "abc"),
            ("{% if true %}x{% endif %}{{ '{% generation %}' }}", "x{% generation %}"),
        ] {
            // Oracle: jinja2 3.1 with a block that prints its body.
            if !template.contains("'{%") {
                assert_eq!(printed(template).unwrap(), expected, "{template}");
            }
        }
    }

    #[test]
    fn a_hostile_template_is_stopped() {
        let slow = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        let error = printed(slow).unwrap_err();
        assert!(format!("{error:#}").contains("too long"), "{error:#}");
        let loud = "{% for a in range(3000) %}{{ 'x' * 1000 }}{% endfor %}";
        let error = printed(loud).unwrap_err();
        assert!(format!("{error:#}").contains("too much"), "{error:#}");
    }

    #[test]
    fn a_refusal_has_the_templates_words() {
        let error = printed("{{ raise_exception('roles must alternate') }}").unwrap_err();
        assert!(format!("{error:#}").contains("refuses this conversation: roles must alternate."));
    }
}
