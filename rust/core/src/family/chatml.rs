//! ChatML with hermes tool calls: Qwen 2.5 and 3, SmolLM2, and whatever prints the same.
//!
//! ```text
//! <|im_start|>system\n{system}\n\n# Tools\n…<|im_end|>\n
//! <|im_start|>user\n{text}<|im_end|>\n
//! <|im_start|>assistant\n<think>\n{reasoning}\n</think>\n\n{text}\n<tool_call>\n{…}\n</tool_call><|im_end|>\n
//! <|im_start|>user\n<tool_response>\n{output}\n</tool_response><|im_end|>\n
//! ```
//!
//! A format is found by what the template prints, never by a name: [`ChatMl::detect`] reads the
//! few things that vary, then every probe conversation must come out the same, byte for byte.

use serde_json::json;

use crate::error::{Error, Result};
use crate::family::generic::Template;
use crate::family::hermes;
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::CallForm;
use crate::family::output::{OutputFormat, OutputReader, Start};
use crate::family::probe;
use crate::family::render::{Message, Sink, TextSink};
use crate::family::{Answer, Calls, Family, Format, OutputParser, Shown, mint_call_id};
use crate::header::Header;
use crate::item::Role;
use crate::token::TokenId;
use crate::tokenizer::{AddedToken, Vocabulary};

const OPEN: &str = "<|im_start|>";
const CLOSE: &str = "<|im_end|>";

/// One ChatML dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one way in which templates differ")]
pub struct ChatMl {
    name: &'static str,
    open: Marker,
    close: Marker,
    close_id: TokenId,
    /// The token that ends a document in pre-training. Engines end a turn at it too, and models
    /// sample it now and then in place of the close.
    end_of_text: Option<TokenId>,
    think: Option<Markers>,
    call: Markers,
    response: Markers,
    /// What the system message says when nobody wrote one.
    default_system: Option<String>,
    /// Whether it is said before tools too.
    default_before_tools: bool,
    /// Whether the generation prompt itself opens the reasoning.
    prompt_opens_think: bool,
    /// Whether the template declares tools itself.
    declares_tools: bool,
    /// Whether markers inside a text steer the render, as they do in the template: reasoning is
    /// looked for in a foreign answer, and a user's message may be a tool's output in disguise.
    /// Under `trust = "strict"` text is text.
    text_steers: bool,
}

impl ChatMl {
    /// The dialect that `template` prints, or why it is none. `compat` lets texts steer the
    /// render.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`], naming the first thing that differs.
    pub fn detect(template: &Template, vocabulary: &Vocabulary, compat: bool) -> Result<Self> {
        let token = |content: &str| token(&vocabulary.added, content);
        let (Some(open), Some(close)) = (token(OPEN), token(CLOSE)) else {
            return Err(Error::profile(format!("the vocabulary has no {OPEN} and {CLOSE} tokens")));
        };
        let pair = |open: &str, close: &str| match (token(open), token(close)) {
            (Some(open), Some(close)) => Markers { open, close },
            _ => Markers { open: Marker::Text(open.into()), close: Marker::Text(close.into()) },
        };
        let close_id = close.id().unwrap_or_default();
        let bare = Self {
            name: "chatml",
            open,
            close,
            close_id,
            end_of_text: vocabulary.added_id("<|endoftext|>"),
            think: None,
            call: pair("<tool_call>", "</tool_call>"),
            response: pair("<tool_response>", "</tool_response>"),
            default_system: None,
            default_before_tools: false,
            prompt_opens_think: false,
            declares_tools: false,
            text_steers: true,
        };
        let dialect = bare.read_variations(template, vocabulary)?;
        probe::agree(&dialect, template)?;
        Ok(Self { text_steers: compat, ..dialect })
    }

    fn read_variations(mut self, template: &Template, vocabulary: &Vocabulary) -> Result<Self> {
        let hello = json!([{"role": "user", "content": "x"}]);
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
        let plain = template.render(&hello, None, false, true)?;
        self.default_system = between(&plain, "<|im_start|>system\n", "<|im_end|>");

        let declared = template.render(&hello, Some(&tools), false, true)?;
        // In whatever form: one that is not ours fails the probe.
        self.declares_tools = declared != plain;
        self.default_before_tools = match &self.default_system {
            Some(text) => declared.contains(&format!("{OPEN}system\n{text}\n\n# Tools")),
            None => false,
        };

        let prompted = template.render(&hello, None, true, true)?;
        let prompt = prompted.strip_prefix(plain.as_str()).unwrap_or_default();
        self.prompt_opens_think = prompt.ends_with("<think>\n");

        // A template that prints reasoning for an answer still in its tool loop thinks.
        let looped = json!([
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y", "reasoning_content": "because"},
            {"role": "tool", "content": "z"},
        ]);
        let thinks = template.render(&looped, None, false, true)?.contains("<think>\nbecause");
        if thinks {
            let token = |content: &str| token(&vocabulary.added, content);
            let (Some(open), Some(close)) = (token("<think>"), token("</think>")) else {
                return Err(Error::profile("the vocabulary has no <think> and </think> tokens"));
            };
            self.think = Some(Markers { open, close });
            self.name = "qwen3";
        }
        Ok(self)
    }

    fn system(&self, text: Option<&str>, header: &Header, sink: &mut dyn Sink) {
        let tools = header.rendered_tools();
        if tools.is_empty() && text.is_none() {
            return;
        }
        sink.marker(&self.open);
        sink.text("system\n");
        sink.text(text.unwrap_or_default());
        if !tools.is_empty() {
            if text.is_some() {
                sink.text("\n\n");
            }
            let declarations = tools.iter().map(|tool| tool.declaration.as_str());
            hermes::declare(declarations, &self.call, sink);
        }
        self.close(sink);
    }

    fn plain(&self, role: &str, text: &str, sink: &mut dyn Sink) {
        sink.marker(&self.open);
        sink.text(role);
        sink.text("\n");
        sink.text(text);
        self.close(sink);
    }

    fn close(&self, sink: &mut dyn Sink) {
        sink.marker(&self.close);
        sink.text("\n");
    }

    fn think(&self, reasoning: &str, sink: &mut dyn Sink) {
        if let Some(Markers { open, close }) = &self.think {
            sink.marker(open);
            sink.text("\n");
            sink.text(reasoning);
            sink.text("\n");
            sink.marker(close);
            sink.text("\n\n");
        }
    }
}

impl ChatMl {
    /// Whether the template declares tools itself. Where it does not, its oracle is the template
    /// fed our block and our call text (D2).
    #[must_use]
    pub fn declares_tools(&self) -> bool {
        self.declares_tools
    }

    /// The tools block that such a template is fed as system text.
    #[must_use]
    pub fn tools_block(&self, header: &Header) -> String {
        let text = text_of(|sink| self.system(None, header, sink));
        between(&text, "<|im_start|>system\n", CLOSE).unwrap_or_default()
    }

    /// An answer's text and calls as one text, for a template that prints no calls.
    #[must_use]
    pub fn answer_text(&self, text: &str, calls: &[(String, String)]) -> String {
        text_of(|sink| {
            sink.text(text);
            hermes::calls(calls, !text.is_empty(), &self.call, sink);
        })
    }

    /// Outputs as the text of a user's message, for a template that prints no tool role.
    #[must_use]
    pub fn outputs_text(&self, outputs: &[String]) -> String {
        let message = Message::Outputs(outputs.to_vec());
        let text = text_of(|sink| self.message(&message, Shown::Nothing, sink));
        between(&text, "<|im_start|>user\n", CLOSE).unwrap_or_default()
    }
}

impl Format for ChatMl {
    fn name(&self) -> &str {
        self.name
    }

    fn stop_ids(&self) -> Vec<TokenId> {
        [Some(self.close_id), self.end_of_text].into_iter().flatten().collect()
    }

    fn parser(&self, thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser> {
        let format = OutputFormat {
            think: self.think.clone(),
            call: (calls != Calls::Forbidden).then(|| CallForm::hermes(self.call.clone())),
            tools: header.parameter_types(),
            text_markers: calls == Calls::Forced,
        };
        let reasoning_open = thinking && self.prompt_opens_think;
        let start = if reasoning_open { Start::Reasoning } else { Start::Text };
        Box::new(OutputReader::new(format, start, Box::new(mint_call_id)))
    }

    fn describe_calls(&self) -> Option<String> {
        Some(CallForm::hermes(self.call.clone()).describe())
    }

    fn call_markers(&self) -> Option<(String, String)> {
        let Markers { open, close } = &self.call;
        Some((format!("{}\n", open.content()), format!("\n{}", close.content())))
    }

    fn drops_reasoning(&self) -> bool {
        self.think.is_some()
    }

    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        if let Some(reasoning) = &answer.reasoning {
            if self.think.is_none() {
                return Err(Error::unsupported(
                    "reasoning",
                    format!("Models of the family '{}' do not reason.", self.name),
                ));
            }
            self.think(reasoning, sink);
        }
        let text = answer.text.as_deref().unwrap_or_default();
        sink.text(text);
        hermes::calls(&answer.calls, !text.is_empty(), &self.call, sink);
        sink.marker(&self.close);
        Ok(())
    }
}

impl Family for ChatMl {
    fn header(&self, header: &Header, leading: &[&str], sink: &mut dyn Sink) {
        let mut systems = header.instructions.as_deref().into_iter().chain(leading.iter().copied());
        let first = systems.next();
        let may_default = header.rendered_tools().is_empty() || self.default_before_tools;
        let default = self.default_system.as_deref().filter(|_| may_default);
        self.system(first.or(default), header, sink);
        for text in systems {
            self.plain("system", text, sink);
        }
    }

    fn message(&self, message: &Message, shown: Shown, sink: &mut dyn Sink) {
        match message {
            Message::Plain { role, text } => {
                // ChatML has no developer; the operator speaks as the system (D5).
                let role = if *role == Role::User { "user" } else { "system" };
                self.plain(role, text, sink);
            }
            Message::Assistant { reasoning, text, calls } => {
                let text = text.as_deref().unwrap_or_default();
                sink.marker(&self.open);
                sink.text("assistant\n");
                if shown == Shown::Reasoning {
                    let reasoning = reasoning.as_deref().unwrap_or_default();
                    self.think(reasoning.trim_matches('\n'), sink);
                    sink.text(text.trim_start_matches('\n'));
                } else {
                    sink.text(text);
                }
                hermes::calls(calls, !text.is_empty(), &self.call, sink);
                self.close(sink);
            }
            Message::Outputs(outputs) => {
                sink.marker(&self.open);
                sink.text("user\n");
                hermes::outputs(outputs, &self.response, sink);
                self.close(sink);
            }
        }
    }

    fn generation_prompt(&self, thinking: bool, sink: &mut dyn Sink) {
        sink.marker(&self.open);
        sink.text("assistant\n");
        match &self.think {
            Some(Markers { open, .. }) if thinking && self.prompt_opens_think => {
                sink.marker(open);
                sink.text("\n");
            }
            Some(Markers { open, close }) if !thinking => {
                sink.marker(open);
                sink.text("\n\n");
                sink.marker(close);
                sink.text("\n\n");
            }
            _ => {}
        }
    }

    fn closer(&self, closed: bool, sink: &mut dyn Sink) {
        if !closed {
            sink.marker(&self.close);
        }
        sink.text("\n");
    }

    fn close_id(&self) -> TokenId {
        self.close_id
    }

    fn control_ids(&self) -> Vec<TokenId> {
        let pairs = [Some(&self.call), Some(&self.response), self.think.as_ref()];
        let inner = pairs.into_iter().flatten().flat_map(|pair| [&pair.open, &pair.close]);
        inner.chain([&self.open, &self.close]).filter_map(Marker::id).collect()
    }

    fn marks_no_thinking(&self) -> bool {
        self.think.is_some()
    }

    fn is_query(&self, text: &str) -> bool {
        let disguised = text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
        !(self.text_steers && disguised)
    }

    fn read_foreign(&self, message: &mut Message) {
        let Message::Assistant { reasoning: reasoning @ None, text: Some(text), .. } = message
        else {
            return;
        };
        if self.think.is_none() || !self.text_steers {
            return;
        }
        if let Some((_, answer)) = text.rsplit_once("</think>") {
            let answer = answer.trim_start_matches('\n').to_owned();
            let thought = text.split("</think>").next().unwrap_or_default().trim_end_matches('\n');
            let thought = thought.rsplit("<think>").next().unwrap_or_default();
            *reasoning = Some(thought.trim_start_matches('\n').to_owned());
            *text = answer;
        }
    }
}

/// The text of a header or a message, as the template would print it.
#[must_use]
pub fn text_of(write: impl FnOnce(&mut dyn Sink)) -> String {
    let mut sink = TextSink::default();
    write(&mut sink);
    sink.0
}

fn token(added: &[AddedToken], content: &str) -> Option<Marker> {
    added
        .iter()
        .find(|token| token.content == content)
        .map(|token| Marker::Token(token.id, content.to_owned()))
}

fn between(text: &str, open: &str, close: &str) -> Option<String> {
    let (_, rest) = text.split_once(open)?;
    let (inner, _) = rest.split_once(close)?;
    Some(inner.to_owned())
}
