//! Llama 3: 3.1, 3.2, 3.3, and 3 itself, whose template knows no tools.
//!
//! ```text
//! <|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{date}{system}<|eot_id|>
//! <|start_header_id|>user<|end_header_id|>\n\n{tools}{text}<|eot_id|>
//! <|start_header_id|>assistant<|end_header_id|>\n\n{"name": …, "parameters": …}<|eot_id|>
//! <|start_header_id|>ipython<|end_header_id|>\n\n{output, as a JSON string}<|eot_id|>
//! ```
//!
//! (There are no newlines between messages.) The templates with tools print those within the first
//! user's message, which is the header's then. An answer is a text or one call: they drop a text
//! beside a call, and refuse several.

use crate::error::{Error, Result};
use crate::family::generic::{Generic, Ways, is_space};
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::{BodyForm, CallForm};
use crate::family::output::{OutputFormat, OutputReader, Start};
use crate::family::render::{Group, Message, Sink, TextSink};
use crate::family::{
    Answer, Before, Calls, End, Family, Format, OutputParser, Shown, hermes, mint_call_id,
};
use crate::header::Header;
use crate::item::Role;
use crate::json;
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

/// How calls and outputs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tools {
    /// A call is a JSON object, and each output a message of its own.
    Object,
    /// Spelled out as text, for the template that knows neither (D2).
    Text,
}

/// The renderer. See the module.
#[derive(Debug, Clone)]
pub struct Llama {
    start: Marker,
    end: Marker,
    close: Marker,
    close_id: TokenId,
    /// Tokens that end a turn beside the close: of a message to the interpreter (`<|eom_id|>`), and of
    /// a document.
    other_stops: Vec<TokenId>,
    /// Opens code, and a call that does not begin its answer.
    code: Option<Marker>,
    tools: Tools,
    form: Option<CallForm>,
    ways: Ways,
}

impl Llama {
    /// The renderer for the template, as far as the vocabulary tells; the probe decides.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`], naming the token that is missing.
    pub fn detect(generic: &Generic, vocabulary: &Vocabulary) -> Result<Self> {
        let token = |content: &str| Marker::token(content, vocabulary);
        let close = token("<|eot_id|>")?;
        let other_stops = ["<|eom_id|>", "<|end_of_text|>"];
        let tools = if generic.ways().tools { Tools::Object } else { Tools::Text };
        let code = token("<|python_tag|>").ok().filter(|_| tools == Tools::Object);
        let mut form = generic.call().cloned();
        if let Some(form) = form.as_mut().filter(|_| tools == Tools::Object) {
            form.body = BodyForm::Python;
            form.open = code.clone().unwrap_or_else(|| form.open.clone());
        }
        Ok(Self {
            start: token("<|start_header_id|>")?,
            end: token("<|end_header_id|>")?,
            close_id: close.id().unwrap_or_default(),
            close,
            other_stops: other_stops.iter().filter_map(|stop| vocabulary.added_id(stop)).collect(),
            code,
            tools,
            form,
            ways: generic.ways().clone(),
        })
    }

    fn open(&self, role: &str, sink: &mut dyn Sink) {
        sink.marker(&self.start);
        sink.text(role);
        sink.marker(&self.end);
        sink.text("\n\n");
    }

    fn plain(&self, role: &str, text: &str, sink: &mut dyn Sink) {
        self.open(role, sink);
        sink.text(text.trim_matches(is_space));
        sink.marker(&self.close);
    }

    fn called(name: &str, arguments: &str, sink: &mut dyn Sink) {
        sink.text("{\"name\": \"");
        sink.text(name);
        sink.text("\", \"parameters\": ");
        sink.text(arguments);
        sink.text("}");
    }
}

/// A text with the calls beside it spelled out.
fn spelled(text: &str, calls: &[(String, String)]) -> String {
    let mut sink = TextSink(text.to_owned());
    if !(calls.is_empty() || text.is_empty()) {
        sink.text("\n");
    }
    hermes::calls(calls, &Markers::letters("<tool_call>", "</tool_call>"), &mut sink);
    sink.0
}

impl Format for Llama {
    fn name(&self) -> &'static str {
        "llama3"
    }

    fn stop_ids(&self) -> Vec<TokenId> {
        self.other_stops.iter().copied().chain([self.close_id]).collect()
    }

    fn parser(&self, _thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser> {
        let format = OutputFormat::of_turn(None, self.form.as_ref(), calls, header);
        Box::new(OutputReader::new(format, Start::Text, Box::new(mint_call_id)))
    }

    fn describe_calls(&self) -> Option<String> {
        self.form.as_ref().map(CallForm::describe)
    }

    fn call_markers(&self) -> Option<(String, String)> {
        let (open, close) = match self.tools {
            Tools::Object => ("", ""),
            Tools::Text => ("<tool_call>\n", "\n</tool_call>"),
        };
        Some((open.to_owned(), close.to_owned()))
    }

    fn drops_reasoning(&self) -> bool {
        false
    }

    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        let unsupported = |what: &str| {
            Error::unsupported(what, format!("Models of the family 'llama3' have no {what}."))
        };
        if answer.reasoning.is_some() {
            return Err(unsupported("reasoning"));
        }
        let text = answer.text.as_deref().unwrap_or_default();
        match (self.tools, answer.calls.as_slice()) {
            (Tools::Text, calls) => sink.text(&spelled(text, calls)),
            (Tools::Object, []) => sink.text(text),
            (Tools::Object, [(name, arguments)]) => {
                sink.text(text);
                if let Some(code) = self.code.as_ref().filter(|_| !text.is_empty()) {
                    sink.marker(code);
                }
                Self::called(name, arguments, sink);
            }
            (Tools::Object, _) => return Err(unsupported("parallel calls")),
        }
        sink.marker(&self.close);
        Ok(())
    }
}

impl Family for Llama {
    fn takes(&self, groups: &[Group], before: Before) -> bool {
        let fits = |group: &Group| match (&group.message, self.tools) {
            (Message::Assistant { calls, .. }, Tools::Object) => {
                calls.len() < 2 && calls.iter().all(|(_, raw)| hermes::dumped(raw).is_some())
            }
            _ => true,
        };
        self.ways.place(groups, before) && groups.iter().all(fits)
    }

    fn message(&self, message: &Message, _shown: Shown, _before: Before, sink: &mut dyn Sink) {
        match (message, self.tools) {
            (Message::Plain { role, text }, _) => {
                // No template of Llama's has a developer; the operator speaks as the system (D5).
                let role = if *role == Role::User { "user" } else { "system" };
                self.plain(role, text, sink);
            }
            (Message::Assistant { text, calls, .. }, Tools::Text) => {
                self.plain("assistant", &spelled(text.as_deref().unwrap_or_default(), calls), sink);
            }
            (Message::Assistant { text, calls, .. }, Tools::Object) => match calls.first() {
                Some((name, raw)) => {
                    self.open("assistant", sink);
                    Self::called(name, &hermes::dumped(raw).unwrap_or_default(), sink);
                    sink.marker(&self.close);
                }
                None => self.plain("assistant", text.as_deref().unwrap_or_default(), sink),
            },
            (Message::Outputs(outputs), Tools::Text) => {
                let mut text = TextSink::default();
                let texts = outputs.iter().map(|output| output.text.as_str());
                hermes::outputs(
                    texts,
                    &Markers::letters("<tool_response>", "</tool_response>"),
                    &mut text,
                );
                self.plain("user", &text.0, sink);
            }
            (Message::Outputs(outputs), Tools::Object) => {
                for output in outputs {
                    let mut quoted = String::new();
                    json::write_string(&output.text, &mut quoted);
                    self.open("ipython", sink);
                    sink.text(&quoted);
                    sink.marker(&self.close);
                }
            }
        }
    }

    fn opening(&self, _before: Before, sink: &mut dyn Sink) {
        self.open("assistant", sink);
    }

    fn closer(&self, end: End, sink: &mut dyn Sink) {
        if end != End::Closed {
            sink.marker(&self.close);
        }
    }

    fn close_of(&self, _stop: TokenId, _thinking: bool) -> Option<TokenId> {
        Some(self.close_id)
    }

    fn control_ids(&self) -> Vec<TokenId> {
        [&self.start, &self.end, &self.close].into_iter().filter_map(Marker::id).collect()
    }
}
