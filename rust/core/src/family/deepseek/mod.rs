//! `DeepSeek` R1, V3, V3.1, V3.2 and V4, and whatever prints the same.
//!
//! ```text
//! R1     <｜User｜>{text}<｜Assistant｜>{text}<｜end▁of▁sentence｜>
//! V3.1   <｜User｜>{text}<｜Assistant｜><think></think>{text}<｜tool▁calls▁begin｜>…<｜tool▁calls▁end｜><｜end▁of▁sentence｜>
//!        <｜tool▁output▁begin｜>{output}<｜tool▁output▁end｜>{text}<｜end▁of▁sentence｜>
//! V3.2   <｜User｜>{text}<｜Assistant｜><think>{reasoning}</think>{text}\n\n<｜DSML｜function_calls>…<｜end▁of▁sentence｜>
//!        \n\n<function_results>\n<result>{output}</result>\n</function_results>\n\n<think>{reasoning}</think>{text}<｜end▁of▁sentence｜>
//! V4     <｜User｜>{text}\n\n{text}<｜Assistant｜><think>{reasoning}</think>{text}\n\n<｜DSML｜tool_calls>…<｜end▁of▁sentence｜>
//!        <｜User｜><tool_result>{output}</tool_result>\n\n{text}<｜Assistant｜>…
//! ```
//!
//! The dialect is found by what the template prints; the probe decides whether it is one.
//!
//! | dialect | reasoning in history | an answer without any begins | what goes on in one run of text |
//! |---|---|---|---|
//! | R1, V3 | never | with nothing | – |
//! | V3.1 | never | `</think>` behind a user, or `<think></think>` | – |
//! | V3.2 | behind the last user | `</think>` | outputs, into the answer to them |
//! | V4 | with tools always, else behind the last user | `</think>` | users and outputs, into each other |
//!
//! From V3.1 on `</think>` stays where the reasoning before it goes. Whether a model may think changes
//! how V3.2 and V4 write history, and so do the tools of V4: a conversation in which that changes is
//! the template's. So is one with system messages further on, which every dialect moves to its top.

use std::ops::Range;

use serde_json::{Value, json};

use crate::chain::Dropped;
use crate::error::{Error, Result};
use crate::family::generic::Generic;
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::CallForm;
use crate::family::output::{OutputFormat, OutputReader, Start};
use crate::family::render::{Group, Message, NOT_SHOWN, Sink, TextSink, shows_in_cycle};
use crate::family::{
    Answer, Before, Calls, End, Family, Format, Last, News, OutputParser, Showing, Shown,
    mint_call_id,
};
use crate::header::Header;
use crate::item::Role;
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

mod calls;

use calls::{CallStyle, TagForm};

/// What varies, but for calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    R1,
    V31,
    V32,
    V4,
}

/// One `DeepSeek` dialect.
#[expect(clippy::struct_excessive_bools, reason = "each is one way in which templates differ")]
pub struct DeepSeek {
    dialect: Dialect,
    user: Marker,
    assistant: Marker,
    close: Marker,
    close_id: TokenId,
    think: Markers,
    style: CallStyle,
    form: Option<CallForm>,
    /// Whether the template has the model think when it may not, and when it may: most need to be told
    /// so in words of their own.
    thinks: [bool; 2],
    /// Whether the template was told to keep all reasoning.
    keeps_all: bool,
    /// Whether an empty block stands where nothing is thought, and not only its end: in history, and
    /// in a prompt.
    answer_opens: bool,
    prompt_opens: bool,
    /// What stands behind the `<think>` of a prompt: R1 is given the first newline.
    line: &'static str,
    /// Whether a marker inside a text steers the render, as it does in the template.
    text_steers: bool,
    /// Tokens of nothing but newlines.
    newlines: Vec<TokenId>,
}

impl DeepSeek {
    /// The dialect that the template prints, as far as a few prints tell. `compat` lets texts steer
    /// the render.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`], naming the first thing that is missing.
    pub fn detect(generic: &Generic, vocabulary: &Vocabulary, compat: bool) -> Result<Self> {
        let token = |content: &str| Marker::token(content, vocabulary);
        let print = |messages: &[Value], generate: bool, thinking: bool| {
            generic.sample(messages, generate, thinking)
        };
        let say = |role: &str, content: &str| json!({"role": role, "content": content});
        let (user, close) = (token("<｜User｜>")?, token("<｜end▁of▁sentence｜>")?);
        let (assistant, think) =
            (token("<｜Assistant｜>")?, Markers::tokens("<think>", "</think>", vocabulary)?);
        let style = CallStyle::detect(generic, vocabulary)?;
        let answered = print(&[say("user", "x"), say("assistant", "y")], false, false);
        let dialect = match &style {
            CallStyle::Tags { form: TagForm::V32, .. } => Dialect::V32,
            CallStyle::Tags { form: TagForm::V4, .. } => Dialect::V4,
            _ if answered.contains("</think>y") => Dialect::V31,
            _ => Dialect::R1,
        };
        let prompts = [false, true].map(|thinking| print(&[say("user", "x")], true, thinking));
        let has_think = |prompt: &str| prompt.contains("<think>");
        let steered = print(&[say("user", "x"), say("assistant", "w</think>y")], false, true);
        Ok(Self {
            dialect,
            user,
            close_id: close.id().unwrap_or_default(),
            close,
            think,
            style,
            form: generic.call().cloned(),
            thinks: [0, 1].map(|index: usize| prompts[index].trim_end().ends_with("<think>")),
            keeps_all: generic.keeps_reasoning(),
            answer_opens: answered.contains("<think></think>y"),
            prompt_opens: prompts[0].rsplit(assistant.content()).next().is_some_and(has_think),
            assistant,
            line: if prompts[1].ends_with('\n') { "\n" } else { "" },
            text_steers: compat && !steered.contains("w</think>y"),
            newlines: vocabulary.newlines(),
        })
    }

    /// Whether an answer begins by thinking: the template's word, not the request's.
    fn thinks(&self, thinking: bool) -> bool {
        self.thinks[usize::from(thinking)]
    }

    /// Whether reasoning is ever shown in history.
    fn shows_reasoning(&self) -> bool {
        matches!(self.dialect, Dialect::V32 | Dialect::V4)
    }

    /// Whether history keeps all reasoning.
    fn keeps(&self, before: Before) -> bool {
        self.dialect == Dialect::V4 && (self.keeps_all || before.tools || before.had_output)
    }

    /// What stands before the reasoning of an answer; false where neither does.
    fn leads(&self, before: Before, sink: &mut dyn Sink) -> bool {
        let outputs_are_users = matches!(self.style, CallStyle::Text);
        match (self.dialect, before.last) {
            (Dialect::R1 | Dialect::V4, _) | (_, Last::User) => sink.marker(&self.assistant),
            (Dialect::V31, Last::Tools) if outputs_are_users => sink.marker(&self.assistant),
            (Dialect::V32, Last::Tools) => sink.text("\n\n"),
            _ => return false,
        }
        true
    }

    fn answers(&self, message: &Message, shown: Shown, before: Before, sink: &mut dyn Sink) {
        let Message::Assistant { reasoning, text, calls } = message else { return };
        let Markers { open, close } = &self.think;
        if self.leads(before, sink) && self.dialect != Dialect::R1 {
            let thought = reasoning.as_deref().filter(|_| shown == Shown::Reasoning);
            if shown == Shown::Reasoning || self.answer_opens {
                sink.marker(open);
            }
            if let Some(reasoning) = thought {
                sink.text(reasoning);
            }
            sink.marker(close);
        }
        let text = text.as_deref().unwrap_or_default();
        match self.style {
            // All of it is the text of a message, in which compat looks for the end of reasoning.
            CallStyle::Text => {
                let mut said = TextSink::default();
                self.say(text, calls, &mut said);
                sink.text(self.steered(&said.0));
            }
            CallStyle::Tokens(_) if calls.is_empty() && before.last != Last::Tools => {
                sink.text(self.steered(text));
            }
            _ => self.say(text, calls, sink),
        }
        sink.marker(&self.close);
    }

    /// What a template leaves of an answer's text.
    fn steered<'t>(&self, text: &'t str) -> &'t str {
        let close = self.think.close.content();
        let rest = match self.dialect {
            _ if !self.text_steers => None,
            Dialect::R1 => text.rsplit_once(close),
            _ => text.split_once(close),
        };
        rest.map_or(text, |(_, answer)| answer)
    }

    fn say(&self, text: &str, calls: &[(String, String)], sink: &mut dyn Sink) {
        sink.text(text);
        self.style.calls(text, calls, sink);
    }

    fn opens_user(&self, last: Last, sink: &mut dyn Sink) {
        if self.runs_on(last, Last::User) {
            sink.text("\n\n");
        } else {
            sink.marker(&self.user);
        }
    }

    /// Whether a message is written the same wherever its conversation goes on.
    fn takes_one(&self, message: &Message, before: Before) -> bool {
        match message {
            Message::Plain { role, .. } => *role == Role::User,
            // Behind a header's text not every dialect begins an answer with a control token.
            Message::Assistant { calls, .. } => {
                !matches!(before.last, Last::Nobody | Last::Operator) && self.style.writes(calls)
            }
            // It counts a group's outputs, to open and close it, from the calls on.
            Message::Outputs(outputs) if self.dialect == Dialect::V32 => {
                before.last == Last::Model && usize::from(before.last_calls) == outputs.len()
            }
            Message::Outputs(_) => true,
        }
    }
}

impl Format for DeepSeek {
    fn name(&self) -> &'static str {
        match self.dialect {
            Dialect::R1 => "deepseek-r1",
            Dialect::V31 => "deepseek-v3.1",
            Dialect::V32 => "deepseek-v3.2",
            Dialect::V4 => "deepseek-v4",
        }
    }

    fn stop_ids(&self) -> Vec<TokenId> {
        vec![self.close_id]
    }

    fn begins_thinking(&self, _may: bool, end: &[TokenId]) -> bool {
        let end = &end[end.len().saturating_sub(2)..];
        let holds = |marker: &Marker| marker.id().is_some_and(|id| end.contains(&id));
        holds(&self.think.open) && !holds(&self.think.close)
    }

    fn parser(&self, thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser> {
        let format = OutputFormat::of_turn(Some(&self.think), self.form.as_ref(), calls, header);
        let start = if thinking { Start::Reasoning } else { Start::Text };
        let reader = OutputReader::new(format, start, Box::new(mint_call_id));
        Box::new(match self.dialect {
            // Trained to write newlines around what it thinks.
            Dialect::R1 => reader,
            _ => reader.keeping_newlines(self.style.before_calls()),
        })
    }

    fn describe_calls(&self) -> Option<String> {
        self.form.as_ref().map(CallForm::describe)
    }

    fn call_markers(&self) -> Option<(String, String)> {
        let in_text = matches!(self.style, CallStyle::Text);
        in_text.then(|| ("<tool_call>\n".to_owned(), "\n</tool_call>".to_owned()))
    }

    fn drops_reasoning(&self) -> bool {
        true
    }

    /// Where the prompt opens no reasoning, a model that reasons opens it itself.
    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        if !self.style.writes(&answer.calls) {
            return Err(Error::unsupported("calls", "Arguments of a call must be a JSON object."));
        }
        let Markers { open, close } = &self.think;
        if let Some(reasoning) = &answer.reasoning {
            if !self.thinks(true) {
                sink.marker(open);
            }
            sink.text(reasoning);
            sink.marker(close);
        }
        self.say(answer.text.as_deref().unwrap_or_default(), &answer.calls, sink);
        sink.marker(&self.close);
        Ok(())
    }
}

impl Family for DeepSeek {
    fn takes(&self, groups: &[Group], mut before: Before) -> bool {
        // V4 brings back what history has lost once there is a tool's output.
        let has_lost = self.dialect == Dialect::V4
            && self.thinks(before.thinking)
            && before.spoke
            && !self.keeps(before);
        groups.iter().all(|Group { message, .. }| {
            let restores = has_lost && matches!(message, Message::Outputs(_));
            let taken = !restores && self.takes_one(message, before);
            before = before.and(message, self.asks(message));
            taken
        })
    }

    fn rewrites(&self, was: Before, now: Before, news: News) -> bool {
        let shows = |before: Before| self.thinks(before.thinking);
        let keeps = |before: Before| shows(before) && self.keeps(before);
        let cycle = !news.asks && shows(was) != shows(now);
        self.shows_reasoning() && was.spoke && (cycle || keeps(was) != keeps(now))
    }

    fn runs_on(&self, last: Last, next: Last) -> bool {
        let users = |one| matches!(one, Last::User | Last::Tools);
        match self.dialect {
            Dialect::R1 | Dialect::V31 => false,
            Dialect::V32 => last == Last::Tools && next == Last::Model,
            Dialect::V4 => users(last) && users(next),
        }
    }

    fn message(&self, message: &Message, shown: Shown, before: Before, sink: &mut dyn Sink) {
        match message {
            Message::Plain { text, .. } => {
                self.opens_user(before.last, sink);
                sink.text(text);
            }
            Message::Assistant { .. } => self.answers(message, shown, before, sink),
            Message::Outputs(outputs) => {
                let texts = outputs.iter().map(|output| output.text.as_str());
                let mut last = before.last;
                let user = |sink: &mut dyn Sink| {
                    self.opens_user(std::mem::replace(&mut last, Last::Tools), sink);
                };
                self.style.outputs(texts, user, sink);
            }
        }
    }

    fn generation_prompt(&self, thinking: bool, before: Before, sink: &mut dyn Sink) {
        if !self.leads(before, sink) {
            return;
        }
        let Markers { open, close } = &self.think;
        let thinks = self.thinks(thinking);
        if thinks || self.prompt_opens {
            sink.marker(open);
            sink.text(self.line);
        }
        if !thinks {
            sink.marker(close);
        }
    }

    fn prompt_dropped(&self, thinking: bool) -> Dropped {
        if self.shows_reasoning() && self.thinks(thinking) {
            Dropped::OnQuery
        } else {
            Dropped::OnNext
        }
    }

    fn opening(&self, before: Before, sink: &mut dyn Sink) {
        if !self.leads(before, sink) || self.dialect == Dialect::R1 {
            return;
        }
        let thinks = self.thinks(before.thinking);
        if self.answer_opens || thinks && self.keeps(before) {
            sink.marker(&self.think.open);
        }
        // Behind reasoning, its end is the model's own.
        if !thinks {
            sink.marker(&self.think.close);
        }
    }

    fn closer(&self, end: End, sink: &mut dyn Sink) {
        if end == End::Thinking {
            sink.marker(&self.think.close);
        }
        if end != End::Closed {
            sink.marker(&self.close);
        }
    }

    /// What ends reasoning goes where [`lost`](Self::lost) takes it, too.
    fn closer_of_lost(&self, first: Option<TokenId>, sink: &mut dyn Sink) {
        let stays = self.dialect != Dialect::R1 && first != self.think.open.id();
        self.closer(if stays { End::Thinking } else { End::Open }, sink);
    }

    fn close_of(&self, _stop: TokenId, thinking: bool) -> Option<TokenId> {
        (!thinking).then_some(self.close_id)
    }

    fn control_ids(&self) -> Vec<TokenId> {
        let Markers { open, close } = &self.think;
        let own = [&self.user, &self.assistant, &self.close, open, close];
        own.into_iter().chain(self.style.markers()).filter_map(Marker::id).collect()
    }

    fn shows(&self, groups: &[Group], before: Before) -> Vec<Showing> {
        let shows = self.shows_reasoning() && self.thinks(before.thinking);
        let is_output = |group: &Group| matches!(group.message, Message::Outputs(_));
        let had_output = before.had_output || groups.iter().any(is_output);
        let keeps = self.keeps(Before { had_output, ..before });
        shows_in_cycle(self, groups, before, |_, in_cycle, _| match (shows, keeps) {
            (true, true) => (Shown::Reasoning, Dropped::Never),
            (true, false) if in_cycle => (Shown::Reasoning, Dropped::OnQuery),
            _ => NOT_SHOWN,
        })
    }

    /// What goes by the next turn has gone from every print of it, whatever comes.
    fn loses(&self, dropped: Dropped, news: News) -> bool {
        match dropped {
            Dropped::Never => false,
            Dropped::OnAnswer => news.answered,
            Dropped::OnQuery => news.asks,
            Dropped::OnNext => true,
        }
    }

    /// The end of reasoning stays, unless the model began it by itself. R1's goes with the newlines
    /// behind it.
    fn lost(&self, ids: &[TokenId], mut reasoning: Range<usize>) -> Range<usize> {
        let Markers { open, close } = &self.think;
        if self.dialect == Dialect::R1 {
            let behind = ids.get(reasoning.end..).unwrap_or_default();
            let newline = |id: &&TokenId| self.newlines.binary_search(id).is_ok();
            reasoning.end += behind.iter().take_while(newline).count();
            return reasoning;
        }
        let began = ids.get(reasoning.start).copied() == open.id();
        let last = ids.get(..reasoning.end).and_then(<[TokenId]>::last).copied();
        if !began && last == close.id() {
            reasoning.end -= 1;
        }
        reasoning
    }

    fn reasoning_dropped(&self, before: Before) -> Dropped {
        if !self.shows_reasoning() || !self.thinks(before.thinking) {
            Dropped::OnNext
        } else if self.keeps(before) {
            Dropped::Never
        } else {
            Dropped::OnQuery
        }
    }
}
