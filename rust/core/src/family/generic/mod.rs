//! Any chat template, exactly: the template itself is run over the whole conversation, and only
//! what changed since the parent is encoded (D6). `open::generic` decides what that is.
//!
//! ```text
//! items → chat (messages, marked under strict) → template → script (text, control tokens, cuts)
//! ```
//!
//! A turn costs one render of the history here, not of what is new: 2.5 ms for 100,000 tokens. It is
//! what a model gets whose format no native renderer prints.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::family::hermes;
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::{BodyForm, CallForm};
use crate::family::output::harmony::{self, HarmonyMarkers, HarmonyReader};
use crate::family::output::{OutputFormat, OutputReader, Start};
use crate::family::render::Sink;
use crate::family::{Answer, Calls, Format, OutputParser, mint_call_id};
use crate::header::Header;
use crate::item::Item;
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

mod chat;
mod learn;
mod marks;
mod python;
mod script;
mod template;
mod ways;

pub use self::chat::Conversation;
pub use self::marks::ControlTokens;
pub use self::script::{Script, spell};
pub use self::template::{Given, Template};
use self::ways::say;
pub use self::ways::{Systems, Ways};

/// A template that is run for every prompt.
pub struct Generic {
    template: Template,
    ways: Ways,
    control: ControlTokens,
    compat: bool,
    /// The generation prompt as a script's bytes, with and without thinking; empty where the
    /// template prints none of its own.
    prompts: [Vec<u8>; 2],
    /// Around reasoning, where the template or the vocabulary has such markers.
    think: Option<Markers>,
    /// Around a call, where its form is known.
    call: Option<CallForm>,
    /// The markers of harmony, where the generation prompt opens a message of it.
    harmony: Option<HarmonyMarkers>,
    /// Whether the generation prompt itself opens the reasoning.
    prompt_opens_think: bool,
    /// What ends an answer in history, if that is one control token.
    close: Option<TokenId>,
}

impl Generic {
    /// Learns a template's ways.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] when it does not even print one user's message, or when the
    /// vocabulary has too many control tokens to search for.
    pub fn learn(template: Template, vocabulary: &Vocabulary, compat: bool) -> Result<Self> {
        let control = ControlTokens::new(vocabulary, !compat)?;
        let ways = Ways::ask(&template)?;
        let hello = ways.given(&[say("user", "probe_question")]);
        let plain = template.render(&hello, None, false, true)?;

        let script = |text: String| Script::read(text, &[], &control, vocabulary, false);
        let whole = script(plain)?;
        let prompt = |thinking: bool| {
            let prompted = template
                .render(&hello, None, true, thinking)
                .ok()
                .and_then(|text| script(text).ok());
            let prompted = prompted.filter(|prompted| {
                whole.end() < prompted.end()
                    && prompted.bytes(0..whole.end()) == whole.bytes(0..whole.end())
            });
            prompted
                .map_or_else(Vec::new, |script| script.bytes(whole.end()..script.end()).to_vec())
        };
        let prompts = [prompt(false), prompt(true)];

        let marker = |content: &str| match vocabulary.added_id(content) {
            Some(id) => Marker::Token(id, content.to_owned()),
            None => Marker::Text(content.to_owned()),
        };
        let pair = |open: &str, close: &str| Markers { open: marker(open), close: marker(close) };
        let thought = ways.sample(&template, true).unwrap_or_default();
        let shows_think = ways.reasoning.is_some()
            && between(&thought, "<think>", "</think>").any(|text| text.contains("probe_thought"));
        let in_vocabulary =
            ["<think>", "</think>"].iter().all(|tag| vocabulary.added_id(tag).is_some());
        let harmony = HarmonyMarkers::of(vocabulary)
            .filter(|_| script::shown(&prompts[1], vocabulary).ends_with("<|start|>assistant"));
        let asks_to_think = script::shown(&prompts[1], vocabulary);
        let prompt_opens_think = asks_to_think.trim_end().ends_with("<think>");
        let thinks = shows_think || in_vocabulary || prompt_opens_think;
        let think = thinks.then(|| pair("<think>", "</think>"));
        let call = if ways.tools {
            learn::call_form(&template, &ways, vocabulary)
        } else {
            Some(CallForm::hermes(pair("<tool_call>", "</tool_call>")))
        };
        let answered = ways.given(&[say("user", "x"), say("assistant", "probe_answer")]);
        let close = template.render(&answered, None, false, true).ok().and_then(|text| {
            let answer = text.rfind("probe_answer")? + "probe_answer".len();
            let script = script(text[answer..].to_owned()).ok()?;
            let first = script.atoms(0..script.end()).next();
            first.map(|(_, id)| id)
        });
        Ok(Self {
            template,
            ways,
            control,
            compat,
            prompts,
            think,
            call,
            harmony,
            prompt_opens_think,
            close,
        })
    }

    /// What the template takes.
    #[must_use]
    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    /// The conversation as the template prints it.
    ///
    /// # Errors
    /// `invalid_value` at `input` when the template refuses it.
    pub fn print(
        &self,
        conversation: &Conversation<'_>,
        vocabulary: &Vocabulary,
    ) -> Result<Script> {
        let chat = chat::given(conversation, &self.ways, &self.control)?;
        let bytes = |item: &Arc<Item>| item.bytes();
        let printed = self.template.print(Given {
            messages: chat.messages,
            tools: chat.tools,
            generate: conversation.generate,
            thinking: conversation.thinking,
            now: conversation.now,
            bytes: conversation.header.bytes()
                + conversation.items.iter().map(bytes).sum::<usize>(),
        })?;
        Script::read(printed, &chat.texts, &self.control, vocabulary, self.compat)
    }

    /// The generation prompt's bytes in a script; empty where it cannot be told apart.
    #[must_use]
    pub fn prompt(&self, thinking: bool) -> &[u8] {
        &self.prompts[usize::from(thinking)]
    }
}

impl Format for Generic {
    fn name(&self) -> &'static str {
        "generic"
    }

    fn stop_ids(&self) -> Vec<TokenId> {
        self.close.into_iter().collect()
    }

    fn parser(&self, thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser> {
        if let Some(markers) = self.harmony {
            return Box::new(HarmonyReader::new(markers, Box::new(mint_call_id)));
        }
        let format = OutputFormat {
            think: self.think.clone(),
            call: self.call.clone().filter(|_| calls != Calls::Forbidden),
            tools: header.parameter_types(),
            text_markers: calls == Calls::Forced,
        };
        let open = thinking && self.prompt_opens_think;
        let start = if open { Start::Reasoning } else { Start::Text };
        Box::new(OutputReader::new(format, start, Box::new(mint_call_id)))
    }

    fn describe_calls(&self) -> Option<String> {
        if self.harmony.is_some() {
            return Some("harmony: messages to functions.name".to_owned());
        }
        self.call.as_ref().map(CallForm::describe)
    }

    fn call_markers(&self) -> Option<(String, String)> {
        let form = self.call.as_ref()?;
        let close = form.close.as_ref()?;
        let is_object = form.body == BodyForm::Object { list: false };
        is_object.then(|| (format!("{}\n", form.open.content()), format!("\n{}", close.content())))
    }

    fn drops_reasoning(&self) -> bool {
        self.think.is_some() || self.harmony.is_some()
    }

    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        if let Some(markers) = &self.harmony {
            harmony::write(answer, markers, sink);
            return Ok(());
        }
        let unknown = |what: &str| {
            Error::unsupported(what, format!("How this model writes {what} is not known."))
        };
        if let Some(reasoning) = &answer.reasoning {
            let Markers { open, close } =
                self.think.as_ref().ok_or_else(|| unknown("reasoning"))?;
            if !self.prompt_opens_think {
                sink.marker(open);
                sink.text("\n");
            }
            sink.text(reasoning);
            sink.text("\n");
            sink.marker(close);
            sink.text("\n\n");
        }
        let text = answer.text.as_deref().unwrap_or_default();
        sink.text(text);
        if !answer.calls.is_empty() {
            let form = self.call.as_ref().ok_or_else(|| unknown("calls"))?;
            let markers = match (&form.body, &form.close) {
                (BodyForm::Object { list: false }, Some(close)) => {
                    Markers { open: form.open.clone(), close: close.clone() }
                }
                _ => return Err(unknown("calls")),
            };
            hermes::calls(&answer.calls, !text.is_empty(), &markers, sink);
        }
        if let Some(id) = self.close {
            sink.marker(&Marker::Token(id, String::new()));
        }
        Ok(())
    }
}

/// Whatever stands between two markers: a template may also explain them before it uses them.
fn between<'t>(text: &'t str, open: &'t str, close: &str) -> impl Iterator<Item = &'t str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close).map(|(inner, _)| inner))
}
