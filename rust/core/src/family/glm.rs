//! GLM 4.5 to 4.7, and whatever prints the same.
//!
//! ```text
//! [gMASK]<sop><|system|>\n# Tools\n…
//! <|user|>\n{text}/nothink
//! <|assistant|>\n<think>{reasoning}</think>\n{text}\n<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>
//! <|observation|>\n<tool_response>\n{output}\n</tool_response>
//! ```
//!
//! Nothing closes a message: the next one's role does. So the token that a model stops at, which is
//! that role, is not of its answer, and history has nothing in its place.
//!
//! | dialect | lines | asked not to think | an answer that shows no reasoning | the prompt opens reasoning |
//! |---|---|---|---|---|
//! | GLM 4.5, 4.6 | a newline before each part | `/nothink` behind every user's text | `<think></think>` | no |
//! | GLM 4.7 | none | only the prompt says so | `</think>` | yes |
//!
//! Reasoning shows behind the last user's message, or everywhere where the template's `clear_thinking`
//! is off. Elsewhere what it said is gone and its markers stay, so the surgery cuts between them.

use std::ops::Range;

use serde_json::{Value, json};

use crate::chain::Dropped;
use crate::error::Result;
use crate::family::foreign::Reading;
use crate::family::generic::{Generic, Ways, is_space};
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::{CallForm, OutputFormat};
use crate::family::output::{OutputReader, Start};
use crate::family::render::{Group, Message, NOT_SHOWN, Sink, shows_in_cycle};
use crate::family::tagged::{self, Scalars};
use crate::family::{
    Answer, Before, Calls, End, Family, Format, News, OutputParser, Showing, Shown, mint_call_id,
};
use crate::header::Header;
use crate::item::Role;
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

const NO_THINK: &str = "/nothink";

/// One GLM dialect.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one way in which templates differ")]
pub struct Glm {
    system: Marker,
    user: Marker,
    assistant: Marker,
    observation: Marker,
    /// What a turn ends at.
    stops: Vec<TokenId>,
    think: Markers,
    call: Markers,
    key: Markers,
    value: Markers,
    response: Markers,
    form: Option<CallForm>,
    /// Behind every user's text where the model may not think.
    no_think: Option<Marker>,
    /// Whether each part stands on a line of its own.
    lines: bool,
    /// Whether an answer that shows no reasoning has the opening marker too.
    blank_opens: bool,
    /// Whether history keeps all reasoning.
    keeps: bool,
    /// Whether reasoning that says nothing is shown as such.
    shows_blank: bool,
    /// Whether blanks at the ends of reasoning are dropped.
    trims: bool,
    /// Whether the generation prompt itself opens the reasoning.
    prompt_opens_think: bool,
    /// Whether what a text spells steers the render, as it does in the template: reasoning is looked
    /// for in a foreign answer, and a user may say `/nothink`. Under `trust = "strict"` text is text.
    text_steers: bool,
    reading: Reading,
    ways: Ways,
}

impl Glm {
    /// The dialect that the template prints, as far as a few prints tell; the probe decides whether
    /// it is one. `compat` lets texts steer the render.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`], naming the first token that is missing.
    pub fn detect(generic: &Generic, vocabulary: &Vocabulary, compat: bool) -> Result<Self> {
        let marker = |content: &str| Marker::of(content, vocabulary);
        let token = |content: &str| Marker::token(content, vocabulary);
        let pair = |open: &str, close: &str| Markers { open: marker(open), close: marker(close) };
        let [system, user] = [token("<|system|>")?, token("<|user|>")?];
        let [assistant, observation] = [token("<|assistant|>")?, token("<|observation|>")?];
        let think = Markers::tokens("<think>", "</think>", vocabulary)?;

        let print = |messages: &[Value], generate: bool, thinking: bool| {
            generic.sample(messages, generate, thinking)
        };
        let say = |role: &str, text: &str| json!({"role": role, "content": text});
        let asked = [say("user", "x")];
        let answered = |answer: Value, next: &str| {
            print(&[say("user", "x"), answer, say(next, "x")], false, true)
        };
        let reasons = |thought: &str| json!({"role": "assistant", "content": "v", "reasoning_content": thought});
        let past = answered(say("assistant", "v"), "user");
        let hidden = answered(say("assistant", Reading::PROBE), "tool");
        let no_think = print(&asked, false, false).ends_with(NO_THINK);
        let stops = [user.id(), observation.id(), vocabulary.added_id("<|endoftext|>")];
        Ok(Self {
            system,
            user,
            assistant,
            observation,
            stops: stops.into_iter().flatten().collect(),
            think,
            call: pair("<tool_call>", "</tool_call>"),
            key: pair("<arg_key>", "</arg_key>"),
            value: pair("<arg_value>", "</arg_value>"),
            response: pair("<tool_response>", "</tool_response>"),
            form: generic.call().cloned(),
            no_think: no_think.then(|| marker(NO_THINK)),
            lines: print(&asked, false, true).ends_with("\nx"),
            blank_opens: past.contains("<think></think>"),
            keeps: answered(reasons("w"), "user").contains("<think>w</think>"),
            shows_blank: answered(reasons(""), "tool").contains("<think></think>"),
            trims: answered(reasons(" w "), "tool").contains("<think>w</think>"),
            prompt_opens_think: print(&asked, true, true).ends_with("<think>"),
            text_steers: compat,
            reading: if compat { Reading::of(&hidden) } else { Reading::Never },
            ways: generic.ways().clone(),
        })
    }

    fn line(&self, sink: &mut dyn Sink) {
        if self.lines {
            sink.text("\n");
        }
    }

    fn plain(&self, role: &Marker, text: &str, sink: &mut dyn Sink) {
        sink.marker(role);
        self.line(sink);
        sink.text(text);
    }

    fn thought<'a>(&self, reasoning: &'a str) -> &'a str {
        if self.trims { trimmed(reasoning) } else { reasoning }
    }

    /// The block of an answer that shows no reasoning.
    fn blank(&self, sink: &mut dyn Sink) {
        self.line(sink);
        if self.blank_opens {
            sink.marker(&self.think.open);
        }
        sink.marker(&self.think.close);
    }

    fn say(&self, text: &str, calls: &[(String, String)], sink: &mut dyn Sink) {
        if !text.is_empty() {
            self.line(sink);
            sink.text(text);
        }
        for (name, arguments) in calls {
            self.line(sink);
            sink.marker(&self.call.open);
            sink.text(name);
            self.line(sink);
            for (key, value) in tagged::arguments(arguments, Scalars::Json).unwrap_or_default() {
                sink.between(&self.key, &key);
                self.line(sink);
                sink.between(&self.value, &value);
                self.line(sink);
            }
            sink.marker(&self.call.close);
        }
    }
}

impl Format for Glm {
    fn name(&self) -> &'static str {
        "glm"
    }

    fn stop_ids(&self) -> Vec<TokenId> {
        self.stops.clone()
    }

    fn parser(&self, thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser> {
        let format = OutputFormat::of_turn(Some(&self.think), self.form.as_ref(), calls, header);
        let reasons = thinking && self.prompt_opens_think;
        let start = if reasons { Start::Reasoning } else { Start::Line };
        Box::new(OutputReader::new(format, start, Box::new(mint_call_id)))
    }

    fn describe_calls(&self) -> Option<String> {
        self.form.as_ref().map(CallForm::describe)
    }

    fn drops_reasoning(&self) -> bool {
        !self.keeps
    }

    /// As one that was asked to think.
    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        if !self.prompt_opens_think {
            self.line(sink);
            sink.marker(&self.think.open);
        }
        sink.text(answer.reasoning.as_deref().unwrap_or_default());
        sink.marker(&self.think.close);
        self.say(answer.text.as_deref().unwrap_or_default(), &answer.calls, sink);
        let next = if answer.calls.is_empty() { &self.user } else { &self.observation };
        sink.marker(next);
        Ok(())
    }
}

impl Family for Glm {
    fn takes(&self, groups: &[Group], before: Before) -> bool {
        let readable = |calls: &[(String, String)]| {
            calls.iter().all(|(_, raw)| tagged::arguments(raw, Scalars::Json).is_some())
        };
        self.ways.place(groups, before)
            && groups.iter().all(|group| match &group.message {
                Message::Assistant { calls, .. } => readable(calls),
                _ => true,
            })
    }

    fn message(&self, message: &Message, shown: Shown, before: Before, sink: &mut dyn Sink) {
        match message {
            Message::Plain { role: Role::User, text } => {
                self.plain(&self.user, text, sink);
                let says_so = self.text_steers && text.ends_with(NO_THINK);
                if let Some(marker) =
                    self.no_think.as_ref().filter(|_| !before.thinking && !says_so)
                {
                    sink.marker(marker);
                }
            }
            Message::Plain { text, .. } => self.plain(&self.system, text, sink),
            Message::Assistant { reasoning, text, calls } => {
                sink.marker(&self.assistant);
                match (shown, reasoning) {
                    (Shown::Reasoning, Some(reasoning)) => {
                        self.line(sink);
                        sink.between(&self.think, self.thought(reasoning));
                    }
                    _ => self.blank(sink),
                }
                self.say(trimmed(text.as_deref().unwrap_or_default()), calls, sink);
            }
            Message::Outputs(outputs) => {
                sink.marker(&self.observation);
                for output in outputs {
                    self.line(sink);
                    sink.marker(&self.response.open);
                    self.line(sink);
                    sink.text(&output.text);
                    self.line(sink);
                    sink.marker(&self.response.close);
                }
            }
        }
    }

    fn generation_prompt(&self, thinking: bool, before: Before, sink: &mut dyn Sink) {
        self.opening(before, sink);
        if !thinking {
            self.blank(sink);
        } else if self.prompt_opens_think {
            sink.marker(&self.think.open);
        }
    }

    fn prompt_dropped(&self, thinking: bool) -> Dropped {
        let opens = thinking && self.prompt_opens_think;
        if opens && !self.keeps { Dropped::OnQuery } else { Dropped::Never }
    }

    fn opening(&self, _before: Before, sink: &mut dyn Sink) {
        sink.marker(&self.assistant);
    }

    fn closer(&self, end: End, sink: &mut dyn Sink) {
        if matches!(end, End::Thinking | End::Lost) {
            sink.marker(&self.think.close);
        }
    }

    fn close_of(&self, _stop: TokenId, _thinking: bool) -> Option<TokenId> {
        None
    }

    fn control_ids(&self) -> Vec<TokenId> {
        let roles = [&self.system, &self.user, &self.assistant, &self.observation];
        let pairs = [&self.think, &self.call, &self.key, &self.value, &self.response];
        let inner = pairs.into_iter().flat_map(|pair| [&pair.open, &pair.close]);
        inner.chain(roles).chain(&self.no_think).filter_map(Marker::id).collect()
    }

    /// Every user's message says that the model may not think.
    fn rewrites(&self, was: Before, now: Before, _news: News) -> bool {
        self.no_think.is_some() && was.thinking != now.thinking
    }

    fn shows(&self, groups: &[Group], before: Before) -> Vec<Showing> {
        // Where nobody has asked anything, every answer stands behind the last user's message.
        let before = Before { asked: true, ..before };
        shows_in_cycle(self, groups, before, |reasoning, in_cycle, _| {
            let said = |text: &str| {
                let block = !self.blank_opens || !self.thought(text).is_empty();
                block && (self.shows_blank || !text.is_empty())
            };
            match (reasoning.is_some_and(said), in_cycle) {
                (true, _) if self.keeps => (Shown::Reasoning, Dropped::Never),
                (true, true) => (Shown::Reasoning, Dropped::OnQuery),
                _ => NOT_SHOWN,
            }
        })
    }

    fn loses(&self, dropped: Dropped, news: News) -> bool {
        match dropped {
            Dropped::Never => false,
            Dropped::OnQuery | Dropped::OnAnswer => news.asks,
            Dropped::OnNext => news.follows,
        }
    }

    fn lost(&self, ids: &[TokenId], reasoning: Range<usize>) -> Range<usize> {
        self.think.within(ids, reasoning, self.blank_opens)
    }

    fn read_foreign(&self, message: &mut Message) {
        self.reading.apply(message);
    }
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(is_space)
}
