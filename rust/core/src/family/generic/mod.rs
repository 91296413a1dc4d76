//! Any chat template, exactly: the template itself is run over the whole conversation, and only
//! what changed since the parent is encoded (D6). `open::generic` decides what that is.
//!
//! ```text
//! items → chat (messages, marked under strict) → template → script (text, control tokens, cuts)
//! ```
//!
//! A turn costs one render of the history here, not of what is new: 2.5 ms for 100,000 tokens. It is
//! what a model gets whose format no native renderer prints, and a conversation that its native
//! renderer does not take.

use std::slice;
use std::sync::Arc;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::family::hermes;
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::{BodyForm, CallForm};
use crate::family::output::harmony::{self, HarmonyMarkers, HarmonyReader};
use crate::family::output::{OutputFormat, OutputReader, Start};
use crate::family::render::{HEADER_QUESTION, Sink, text_of};
use crate::family::{Answer, Calls, Format, OutputParser, mint_call_id};
use crate::header::{Header, Knobs};
use crate::item::{Item, Role};
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

mod chat;
mod effort;
mod learn;
mod marks;
mod python;
mod script;
mod template;
mod ways;

pub use self::chat::Conversation;
pub use self::effort::Effort;
use self::learn::Reasoning;
pub use self::marks::ControlTokens;
pub(crate) use self::python::is_space;
use self::script::ScriptSink;
pub(crate) use self::script::shown;
pub use self::script::{Script, spell};
use self::template::Clock;
pub use self::template::{Given, Template};
pub use self::ways::{Systems, Ways};
use self::ways::{probe_tools, say};

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
    think: Option<Reasoning>,
    /// Around a call, where its form is known.
    call: Option<CallForm>,
    /// The markers of harmony, where the generation prompt opens a message of it.
    harmony: Option<HarmonyMarkers>,
    /// Whether the generation prompt itself opens the reasoning.
    prompt_opens_think: bool,
    /// What ends an answer in history, if that is one control token.
    close: Option<TokenId>,
    clock: Clock,
    header_tells_thinking: bool,
    effort: Effort,
    /// The words that it knows for how much is said.
    verbosities: Vec<&'static str>,
}

impl Generic {
    /// Learns a template's ways.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] when it does not even print one user's message, or when the
    /// vocabulary has too many control tokens to search for.
    pub fn learn(mut template: Template, vocabulary: &Vocabulary, compat: bool) -> Result<Self> {
        let control = ControlTokens::new(vocabulary, !compat)?;
        let ways = Ways::ask(&template)?;
        let hello = ways.given(&[say("user", "probe_question")]);
        let plain = template.render(&hello, None, false, true)?;

        let effort = Effort::ask(&template, &hello);
        template.thinks_when_told = !effort.thinks;
        let verbosities = effort::verbosities(&template, &hello);

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
        let thought = ways.sample(&template, true, "").unwrap_or_default();
        let told = ways.given(&[say("user", "probe_asked"), say("assistant", "y")]);
        let plain = template.render(&told, None, false, true).unwrap_or_default();
        let plain = plain.rsplit_once("probe_asked").map_or("", |(_, answer)| answer);
        let learned = ways.reasoning.and_then(|_| learn::reasoning(&thought, plain, vocabulary));
        let shows_think = ways.reasoning.is_some()
            && between(&thought, "<think>", "</think>").any(|text| text.contains("probe_thought"));
        let in_vocabulary =
            ["<think>", "</think>"].iter().all(|tag| vocabulary.added_id(tag).is_some());
        let harmony = HarmonyMarkers::of(vocabulary)
            .filter(|_| shown(&prompts[1], vocabulary).ends_with("<|start|>assistant"));
        let asks_to_think = shown(&prompts[1], vocabulary);
        let asks_to_think = asks_to_think.trim_end();
        let thinks = shows_think || in_vocabulary || asks_to_think.ends_with("<think>");
        let plainly = || thinks.then(|| Reasoning::plain(pair("<think>", "</think>")));
        let think = learned.filter(|_| !shows_think).or_else(plainly);
        let opens = |think: &Reasoning| asks_to_think.ends_with(think.markers.open.content());
        let prompt_opens_think = think.as_ref().is_some_and(opens);
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
        let clock = template.clock(&hello);
        let told = |thinking| template.render(&hello, Some(&probe_tools()), false, thinking).ok();
        let header_tells_thinking = told(true) != told(false);
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
            clock,
            header_tells_thinking,
            effort,
            verbosities,
        })
    }

    /// What the template takes.
    #[must_use]
    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    /// The template.
    #[must_use]
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// What it prints of these messages, as it takes them, without tools; nothing where it refuses.
    #[must_use]
    pub fn sample(&self, messages: &[Value], generate: bool, thinking: bool) -> String {
        let given = self.ways.given(messages);
        self.template.render(&given, None, generate, thinking).unwrap_or_default()
    }

    /// The form of its calls, where that is known.
    #[must_use]
    pub fn call(&self) -> Option<&CallForm> {
        self.call.as_ref()
    }

    /// A tool loop as the template prints it, with `text` beside the call.
    #[must_use]
    pub fn sample_call(&self, text: &str) -> String {
        self.ways.sample(&self.template, false, text).unwrap_or_default()
    }

    /// The tokens of a conversation's header: of what the template prints before the first message.
    /// `items` are those that it holds ([`header_ends`]). To find its end, the template is given a
    /// user's message too, [`HEADER_QUESTION`], which `question` [spells](Self::spell). None when the
    /// template refuses such a header, or prints it within that message.
    ///
    /// [`header_ends`]: crate::family::render::header_ends
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn header(
        &self,
        header: &Header,
        items: &[Arc<Item>],
        knobs: Knobs,
        now: i64,
        question: &[u8],
        vocabulary: &Vocabulary,
    ) -> Result<Option<Vec<TokenId>>> {
        let mut all = items.to_vec();
        let text = HEADER_QUESTION.to_owned();
        all.push(Arc::new(Item::Message { role: Role::User, text }));
        let run = 0..all.len();
        let runs = slice::from_ref(&run);
        let conversation = Conversation { header, items: &all, runs, generate: false, knobs, now };
        let Ok(script) = self.print(&conversation, vocabulary) else { return Ok(None) };
        let end = script.end().saturating_sub(question.len());
        if !(script.bytes(end..script.end()) == question && script.is_cut(end)) {
            return Ok(None);
        }
        script.encode(0..end, vocabulary).map(Some)
    }

    /// What a header depends on beside its request: as much of the time as the template shows, and
    /// how the model is to speak, as far as a header may show that.
    #[must_use]
    pub fn given(&self, knobs: Knobs, now: i64) -> (i64, Knobs) {
        let thinking = knobs.thinking && self.header_tells_thinking;
        (self.clock.of(now), Knobs { thinking, ..knobs })
    }

    /// How the model is to speak, by the API's words. A verbosity for which there is no knob is
    /// nobody's.
    ///
    /// # Errors
    /// As [`Effort::resolve`].
    pub fn knobs(&self, effort: Option<&str>, verbosity: Option<&str>) -> Result<Knobs> {
        let always = self.harmony.is_some() || self.prompt_opens_think;
        let (thinking, effort) = self.effort.resolve(effort, always)?;
        let verbosity = verbosity.and_then(|word| self.verbosity(word));
        Ok(Knobs { thinking, effort, verbosity })
    }

    /// The template's word for this verbosity of the API's; None where it knows none.
    #[must_use]
    pub fn verbosity(&self, word: &str) -> Option<&'static str> {
        self.verbosities.iter().find(|known| **known == word).copied()
    }

    /// Whether history shows what a model thought before an earlier question, if it thinks at all.
    #[must_use]
    pub fn keeps_reasoning(&self) -> bool {
        if !self.drops_reasoning() {
            return true;
        }
        let mut answer = say("assistant", "probe_answer");
        match self.ways.reasoning {
            Some(key) => answer[key] = "probe_thought".into(),
            None => answer["content"] = "<think>\nprobe_thought\n</think>\n\nprobe_answer".into(),
        }
        let messages = [say("user", "x"), answer, say("user", "y")];
        self.sample(&messages, true, true).contains("probe_thought")
    }

    /// The markers of harmony, where its generation prompt opens a message of that.
    #[must_use]
    pub fn harmony(&self) -> Option<&HarmonyMarkers> {
        self.harmony.as_ref()
    }

    /// Its knobs.
    #[must_use]
    pub fn effort(&self) -> &Effort {
        &self.effort
    }

    /// What a family's renderer writes, as a script's bytes.
    ///
    /// # Errors
    /// Never in practice: as [`Script::read`].
    pub fn spell(
        &self,
        write: impl FnOnce(&mut dyn Sink),
        vocabulary: &Vocabulary,
    ) -> Result<Vec<u8>> {
        if !self.compat {
            let mut sink = ScriptSink::default();
            write(&mut sink);
            return Ok(sink.0);
        }
        let script = Script::read(text_of(write), &[], &self.control, vocabulary, true)?;
        Ok(script.bytes(0..script.end()).to_vec())
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
            thinking: self.template.said(conversation.knobs.thinking),
            effort: conversation.knobs.effort,
            verbosity: conversation.knobs.verbosity,
            now: conversation.now,
            bytes: conversation.header.bytes()
                + conversation.items.iter().map(bytes).sum::<usize>(),
        })?;
        Script::read(printed, &chat.texts, &self.control, vocabulary, self.compat)
    }

    /// A script in which nothing stands.
    ///
    /// # Errors
    /// Never in practice: as [`Script::read`].
    pub fn nothing(&self, vocabulary: &Vocabulary) -> Result<Script> {
        Script::read(String::new(), &[], &self.control, vocabulary, self.compat)
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

    /// Where every prompt that asks to think opens reasoning, and where this one has.
    fn begins_thinking(&self, may: bool, end: &[TokenId]) -> bool {
        let Some(Reasoning { markers, .. }) = &self.think else { return false };
        let is = |id: &TokenId, marker: &Marker| marker.id() == Some(*id);
        let mut met = end.iter().rev();
        let last = met.find(|id| is(id, &markers.open) || is(id, &markers.close));
        last.map_or(may && self.prompt_opens_think, |id| is(id, &markers.open))
    }

    fn parser(&self, thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser> {
        if let Some(markers) = &self.harmony {
            return Box::new(HarmonyReader::of_turn(markers.clone(), calls));
        }
        let think = self.think.as_ref();
        let markers = think.map(|think| &think.markers);
        let format = OutputFormat::of_turn(markers, self.call.as_ref(), calls, header);
        let start = if thinking { Start::Reasoning } else { Start::Text };
        let reader = OutputReader::new(format, start, Box::new(mint_call_id));
        Box::new(reader.labelled(think.map_or("", |think| &think.label)))
    }

    fn describe_calls(&self) -> Option<String> {
        if self.harmony.is_some() {
            return Some(harmony::DESCRIBED.to_owned());
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
            let think = self.think.as_ref().ok_or_else(|| unknown("reasoning"))?;
            let Markers { open, close } = &think.markers;
            if !self.prompt_opens_think {
                sink.marker(open);
                sink.text(if think.label.is_empty() { "\n" } else { &think.label });
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
            if !text.is_empty() {
                sink.text("\n");
            }
            hermes::calls(&answer.calls, &markers, sink);
        }
        if let Some(id) = self.close {
            sink.marker(&Marker::Token(id, String::new()));
        }
        Ok(())
    }
}

/// Whatever stands between two markers: a template may also explain them before it uses them.
pub(super) fn between<'t>(
    text: &'t str,
    open: &'t str,
    close: &str,
) -> impl Iterator<Item = &'t str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close).map(|(inner, _)| inner))
}
