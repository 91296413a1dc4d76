//! ChatML: Qwen 2.5, 3, 3-Coder, 3.5 and 3.6, SmolLM2, and whatever prints the same.
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
//!
//! | dialect | reasoning in history | calls | blanks at the ends of texts |
//! |---|---|---|---|
//! | Qwen 2.5, SmolLM2 | never | a JSON object | kept |
//! | Qwen 3 | behind the last query, where there is some | a JSON object | kept |
//! | Qwen 3-Coder | never | tags | kept, but for a text beside calls |
//! | Qwen 3.5, 3.6 | behind the last query, though blank | tags | dropped |
//! | Qwen 3.8 | always, though blank | tags | dropped |

use std::ops::Range;

use serde_json::{Value, json};

use crate::chain::Dropped;
use crate::error::{Error, Result};
use crate::family::generic::{Generic, Ways, between, is_space};
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::{BodyForm, CallForm};
use crate::family::output::{OutputFormat, OutputReader, Start};
use crate::family::render::{Group, Message, NOT_SHOWN, Sink, shows_in_cycle};
use crate::family::tagged::{self, Scalars};
use crate::family::{
    Answer, Before, Calls, End, Family, Format, OutputParser, Showing, Shown, hermes, mint_call_id,
};
use crate::header::Header;
use crate::item::Role;
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

const OPEN: &str = "<|im_start|>";
const CLOSE: &str = "<|im_end|>";

/// Which answers show a reasoning block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocks {
    /// None.
    Never,
    /// Those behind the last query that reason, and the very last message.
    Reasoning,
    /// All behind the last query.
    Cycle,
    /// All.
    Always,
}

/// How calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// A JSON object.
    Object,
    /// Tags around each argument.
    Tagged(Scalars),
}

/// One ChatML dialect.
#[derive(Debug, Clone)]
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
    form: Option<CallForm>,
    response: Markers,
    blocks: Blocks,
    style: Style,
    /// Between a text and the first call.
    before_calls: String,
    /// Whether a line ends behind every output, and not only between two.
    ends_outputs: bool,
    /// Whether blanks at the ends of texts are dropped.
    trims: bool,
    /// Whether they are only in a text beside calls.
    trims_beside_calls: bool,
    /// Whether the generation prompt itself opens the reasoning.
    prompt_opens_think: bool,
    /// Whether markers inside a text steer the render, as they do in the template: reasoning is
    /// looked for in a foreign answer, and a user's message may be a tool's output in disguise.
    /// Under `trust = "strict"` text is text.
    text_steers: bool,
    /// Whether the template looks for reasoning in a text at all.
    reads_think: bool,
    ways: Ways,
    /// Whether the template refuses a conversation in which nobody asks anything.
    needs_query: bool,
    /// Tokens of nothing but newlines.
    newlines: Vec<TokenId>,
}

impl ChatMl {
    /// The dialect that the template prints, as far as a few prints tell; the probe decides whether
    /// it is one. `compat` lets texts steer the render.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`], naming the first thing that is missing.
    pub fn detect(generic: &Generic, vocabulary: &Vocabulary, compat: bool) -> Result<Self> {
        let token = |content: &str| {
            let id = vocabulary.added_id(content)?;
            Some(Marker::Token(id, content.to_owned()))
        };
        let (Some(open), Some(close)) = (token(OPEN), token(CLOSE)) else {
            return Err(Error::profile(format!("the vocabulary has no {OPEN} and {CLOSE} tokens")));
        };
        let pair = |open: &str, close: &str| match (token(open), token(close)) {
            (Some(open), Some(close)) => Markers { open, close },
            _ => Markers { open: Marker::Text(open.into()), close: Marker::Text(close.into()) },
        };
        let print = |messages: &[Value], generate: bool, thinking: bool| {
            generic.sample(messages, generate, thinking)
        };
        let user = || json!({"role": "user", "content": "x"});
        let reasons = |reasoning: &str| json!({"role": "assistant", "content": "y", "reasoning_content": reasoning});
        let output = || json!({"role": "tool", "content": "z"});

        let looped = print(&[user(), reasons("because"), output()], false, true);
        let think = looped.contains("<think>\nbecause").then(|| {
            let tags = token("<think>").zip(token("</think>"));
            tags.map(|(open, close)| Markers { open, close })
                .ok_or_else(|| Error::profile("the vocabulary has no <think> and </think> tokens"))
        });
        let think = think.transpose()?;
        let past = print(&[user(), reasons("because"), user()], false, true);
        let blank = print(&[user(), reasons(""), output()], false, true);
        let blocks = match (&think, past.contains("because"), blank.contains("<think>")) {
            (None, ..) => Blocks::Never,
            (_, true, _) => Blocks::Always,
            (_, _, true) => Blocks::Cycle,
            _ => Blocks::Reasoning,
        };

        let prompted = print(&[user()], true, true);
        let padded = print(&[json!({"role": "user", "content": " \nx\n "})], false, true);
        let hidden = json!({"role": "assistant", "content": "<think>w</think>v"});
        let read = print(&[user(), hidden, user()], false, true);
        let called = generic.sample_call("probe_said");
        let before_calls = between(&called, "probe_said", "<tool_call>").next();
        let trims = !padded.contains(" \nx");
        let keeps_beside_calls = generic.sample_call("probe_said \n").contains("probe_said \n");
        let tagged = generic.call().is_some_and(|form| matches!(form.body, BodyForm::Tagged(_)));
        let scalars = if called.contains("True") { Scalars::Python } else { Scalars::Json };
        let ends_outputs = called.contains("</tool_response>\n<|im_end|>");
        let prompt_opens_think = think.is_some() && prompted.ends_with("<think>\n");
        if matches!(blocks, Blocks::Cycle | Blocks::Always) && !prompt_opens_think {
            // An answer that was sampled without any would not be what the template prints.
            return Err(Error::profile(
                "every answer shows a reasoning block, though none was asked for",
            ));
        }
        Ok(Self {
            name: if think.is_some() { "qwen3" } else { "chatml" },
            open,
            close_id: close.id().unwrap_or_default(),
            close,
            end_of_text: vocabulary.added_id("<|endoftext|>"),
            prompt_opens_think,
            think,
            call: pair("<tool_call>", "</tool_call>"),
            form: generic.call().cloned(),
            response: pair("<tool_response>", "</tool_response>"),
            blocks,
            style: if tagged { Style::Tagged(scalars) } else { Style::Object },
            before_calls: before_calls.unwrap_or("\n").to_owned(),
            ends_outputs,
            trims,
            trims_beside_calls: !trims && !keeps_beside_calls,
            text_steers: compat,
            ways: generic.ways().clone(),
            needs_query: print(&[reasons("")], false, true).is_empty(),
            reads_think: !read.contains("<think>w"),
            newlines: vocabulary.newlines(),
        })
    }

    fn plain(&self, role: &str, text: &str, sink: &mut dyn Sink) {
        sink.marker(&self.open);
        sink.text(role);
        sink.text("\n");
        sink.text(if self.trims { trimmed(text) } else { text });
        self.close(sink);
    }

    fn close(&self, sink: &mut dyn Sink) {
        sink.marker(&self.close);
        sink.text("\n");
    }

    fn think(&self, reasoning: &str, sink: &mut dyn Sink) {
        if let Some(Markers { open, .. }) = &self.think {
            sink.marker(open);
            sink.text("\n");
        }
        self.thought(reasoning, sink);
    }

    /// Reasoning behind its opening.
    fn thought(&self, reasoning: &str, sink: &mut dyn Sink) {
        if let Some(Markers { close, .. }) = &self.think {
            sink.text(reasoning);
            sink.text("\n");
            sink.marker(close);
            sink.text("\n\n");
        }
    }

    /// Newlines that go because reasoning is shown still count as a text beside calls.
    fn say(&self, text: &str, reasons: bool, calls: &[(String, String)], sink: &mut dyn Sink) {
        let trims = self.trims_beside_calls && !calls.is_empty();
        let text = if trims { trimmed(text) } else { text };
        sink.text(if reasons { text.trim_start_matches('\n') } else { text });
        if !calls.is_empty() && !text.is_empty() {
            sink.text(&self.before_calls);
        }
        match self.style {
            Style::Object => hermes::calls(calls, &self.call, sink),
            Style::Tagged(scalars) => tagged::calls(calls, scalars, &self.call, sink),
        }
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
        let format = OutputFormat::of_turn(self.think.as_ref(), self.form.as_ref(), calls, header);
        let reasoning_open = thinking && self.prompt_opens_think;
        let start = if reasoning_open { Start::Reasoning } else { Start::Text };
        Box::new(OutputReader::new(format, start, Box::new(mint_call_id)))
    }

    fn describe_calls(&self) -> Option<String> {
        self.form.as_ref().map(CallForm::describe)
    }

    fn call_markers(&self) -> Option<(String, String)> {
        let Markers { open, close } = &self.call;
        let object = self.style == Style::Object;
        object.then(|| (format!("{}\n", open.content()), format!("\n{}", close.content())))
    }

    fn drops_reasoning(&self) -> bool {
        matches!(self.blocks, Blocks::Reasoning | Blocks::Cycle)
    }

    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        if let Some(reasoning) = &answer.reasoning {
            if self.think.is_none() {
                return Err(Error::unsupported(
                    "reasoning",
                    format!("Models of the family '{}' do not reason.", self.name),
                ));
            }
            if self.prompt_opens_think {
                self.thought(reasoning, sink);
            } else {
                self.think(reasoning, sink);
            }
        }
        self.say(answer.text.as_deref().unwrap_or_default(), false, &answer.calls, sink);
        sink.marker(&self.close);
        Ok(())
    }
}

impl Family for ChatMl {
    fn takes(&self, groups: &[Group], before: Before) -> bool {
        let asks = || groups.iter().any(|group| self.asks(&group.message));
        if !self.ways.place(groups, before) || self.needs_query && !(before.asked || asks()) {
            return false;
        }
        let Style::Tagged(scalars) = self.style else { return true };
        groups.iter().all(|group| match &group.message {
            Message::Assistant { calls, .. } => {
                calls.iter().all(|(_, raw)| tagged::arguments(raw, scalars).is_some())
            }
            _ => true,
        })
    }

    fn message(&self, message: &Message, shown: Shown, _before: Before, sink: &mut dyn Sink) {
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
                let reasons = shown == Shown::Reasoning;
                if reasons {
                    let reasoning = reasoning.as_deref().unwrap_or_default();
                    let edged = reasoning.trim_matches('\n');
                    self.think(if self.trims { trimmed(reasoning) } else { edged }, sink);
                }
                self.say(text, reasons, calls, sink);
                self.close(sink);
            }
            Message::Outputs(outputs) => {
                sink.marker(&self.open);
                sink.text("user\n");
                let texts = outputs.iter().map(|output| output.text.as_str());
                hermes::outputs(
                    texts.map(|text| if self.trims { trimmed(text) } else { text }),
                    &self.response,
                    sink,
                );
                if self.ends_outputs {
                    sink.text("\n");
                }
                self.close(sink);
            }
        }
    }

    fn generation_prompt(&self, thinking: bool, before: Before, sink: &mut dyn Sink) {
        self.opening(before, sink);
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

    fn prompt_dropped(&self, thinking: bool) -> Dropped {
        match self.blocks {
            Blocks::Never | Blocks::Always => Dropped::Never,
            Blocks::Reasoning if !thinking => Dropped::OnNext,
            Blocks::Reasoning | Blocks::Cycle => Dropped::OnQuery,
        }
    }

    fn opening(&self, _before: Before, sink: &mut dyn Sink) {
        sink.marker(&self.open);
        sink.text("assistant\n");
    }

    fn closer(&self, end: End, sink: &mut dyn Sink) {
        if let (End::Thinking, Some(Markers { close, .. })) = (end, &self.think) {
            sink.text("\n");
            sink.marker(close);
            sink.text("\n\n");
        }
        if end != End::Closed {
            sink.marker(&self.close);
        }
        sink.text("\n");
    }

    fn close_of(&self, _stop: TokenId, thinking: bool) -> Option<TokenId> {
        (!thinking).then_some(self.close_id)
    }

    fn control_ids(&self) -> Vec<TokenId> {
        let pairs = [Some(&self.call), Some(&self.response), self.think.as_ref()];
        let inner = pairs.into_iter().flatten().flat_map(|pair| [&pair.open, &pair.close]);
        inner.chain([&self.open, &self.close]).filter_map(Marker::id).collect()
    }

    fn shows(&self, groups: &[Group], before: Before) -> Vec<Showing> {
        let block =
            |show: bool, dropped| if show { (Shown::Reasoning, dropped) } else { NOT_SHOWN };
        shows_in_cycle(self, groups, before, |reasoning, in_cycle, is_last| {
            let reasons = reasoning.is_some_and(|text| !text.is_empty());
            match self.blocks {
                Blocks::Never => NOT_SHOWN,
                Blocks::Always => (Shown::Reasoning, Dropped::Never),
                Blocks::Cycle => block(in_cycle, Dropped::OnQuery),
                Blocks::Reasoning if reasons => block(in_cycle, Dropped::OnQuery),
                Blocks::Reasoning => block(in_cycle && is_last, Dropped::OnNext),
            }
        })
    }

    /// The newlines behind the reasoning go with it.
    fn lost(&self, ids: &[TokenId], mut reasoning: Range<usize>) -> Range<usize> {
        let behind = ids.get(reasoning.end..).unwrap_or_default();
        let newline = |id: &&TokenId| self.newlines.binary_search(id).is_ok();
        reasoning.end += behind.iter().take_while(newline).count();
        reasoning
    }

    fn is_query(&self, text: &str) -> bool {
        let text = if self.trims { trimmed(text) } else { text };
        let disguised = text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
        !(self.text_steers && disguised)
    }

    /// Blanks go first: those behind reasoning that is found in a text are the text's.
    fn read_foreign(&self, message: &mut Message) {
        let Message::Assistant { reasoning, text: Some(text), .. } = message else { return };
        if self.trims {
            *text = trimmed(text).to_owned();
        }
        if reasoning.is_some() || self.think.is_none() || !self.text_steers || !self.reads_think {
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

fn trimmed(text: &str) -> &str {
    text.trim_matches(is_space)
}
