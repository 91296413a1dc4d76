//! `DeepSeek` V3.1, V3.2 and V4, and whatever prints the same.
//!
//! ```text
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
//! | dialect | reasoning in history | without thinking, an answer begins | what goes on in one run of text |
//! |---|---|---|---|
//! | V3.1 | never; `<think></think>` behind a user | `<think></think>` | – |
//! | V3.2 | behind the last user | `<think></think>`, later `</think>` | outputs, into the answer to them |
//! | V4 | with tools always, else behind the last user | `</think>` | users and outputs, into each other |
//!
//! `</think>` stays where the reasoning before it goes. Whether a model may think changes how V3.2 and
//! V4 write all of history, and so do the tools of V4: a conversation in which they change is the
//! template's. So is one with system messages further on, which every dialect moves to its top.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::json;

use crate::chain::Dropped;
use crate::error::{Error, Result};
use crate::family::generic::Generic;
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::CallForm;
use crate::family::output::{OutputFormat, OutputReader, Start};
use crate::family::render::{Group, Message, Sink, shows_in_cycle};
use crate::family::{
    Answer, Before, Calls, End, Family, Format, Last, News, OutputParser, Showing, Shown,
    mint_call_id,
};
use crate::header::Header;
use crate::item::Role;
use crate::json::{self, Style};
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

/// What every dialect opens and closes.
struct Words {
    user: Marker,
    assistant: Marker,
    close: Marker,
    think: Markers,
}

/// How V3.1 writes calls and outputs: in control tokens.
struct Tokens {
    calls: Markers,
    call: Markers,
    separator: Marker,
    output: Markers,
}

/// What varies.
enum Dialect {
    V31(Box<Tokens>),
    V32,
    V4,
}

/// One `DeepSeek` dialect.
pub struct DeepSeek {
    words: Words,
    close_id: TokenId,
    dialect: Dialect,
    /// Begins the tags of calls from V3.2 on.
    dsml: Marker,
    form: Option<CallForm>,
    /// Whether the template has the model think when it may not, and when it may: most need to be told
    /// so in words of their own.
    thinks: [bool; 2],
    /// Whether a marker inside a text steers the render, as it does in the template.
    text_steers: bool,
}

impl DeepSeek {
    /// The dialect that the template prints, as far as a few prints tell. `compat` lets texts steer
    /// the render.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`], naming the first thing that is missing.
    pub fn detect(generic: &Generic, vocabulary: &Vocabulary, compat: bool) -> Result<Self> {
        let token = |content: &str| {
            let id = vocabulary.added_id(content).ok_or_else(|| {
                Error::profile(format!("the vocabulary has no {content} token"))
            })?;
            Ok::<_, Error>(Marker::Token(id, content.to_owned()))
        };
        let pair = |open: &str, close: &str| {
            Ok::<_, Error>(Markers { open: token(open)?, close: token(close)? })
        };
        let words = Words {
            user: token("<｜User｜>")?,
            assistant: token("<｜Assistant｜>")?,
            close: token("<｜end▁of▁sentence｜>")?,
            think: pair("<think>", "</think>")?,
        };
        let called = generic.sample_call("");
        let dialect = if called.contains("<｜User｜><tool_result>probe_output</tool_result>") {
            Dialect::V4
        } else if called.contains("\n<result>probe_output</result>\n") {
            Dialect::V32
        } else if called.contains("<｜tool▁output▁begin｜>probe_output<｜tool▁output▁end｜>") {
            Dialect::V31(Box::new(Tokens {
                calls: pair("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")?,
                call: pair("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")?,
                separator: token("<｜tool▁sep｜>")?,
                output: pair("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>")?,
            }))
        } else {
            return Err(Error::profile("no output of a tool is printed as DeepSeek's"));
        };
        let thinks = |thinking: bool| {
            let hello = generic.ways().given(&[json!({"role": "user", "content": "x"})]);
            let printed = generic.template().render(&hello, None, true, thinking);
            printed.is_ok_and(|text| text.ends_with("<think>"))
        };
        const DSML: &str = "｜DSML｜";
        Ok(Self {
            close_id: words.close.id().unwrap_or_default(),
            words,
            dialect,
            dsml: token(DSML).unwrap_or_else(|_| Marker::Text(DSML.to_owned())),
            form: generic.call().cloned(),
            thinks: [thinks(false), thinks(true)],
            text_steers: compat,
        })
    }

    /// Whether an answer begins by thinking: the template's word, not the request's.
    fn thinks(&self, thinking: bool) -> bool {
        self.thinks[usize::from(thinking)]
    }

    /// Whether history keeps all reasoning.
    fn keeps(&self, before: Before) -> bool {
        matches!(self.dialect, Dialect::V4) && before.tools
    }

    /// What stands before the reasoning of an answer; false where neither does.
    fn leads(&self, before: Before, sink: &mut dyn Sink) -> bool {
        match (&self.dialect, before.last) {
            (Dialect::V4, _) | (_, Last::User) => sink.marker(&self.words.assistant),
            (Dialect::V32, Last::Tools) => sink.text("\n\n"),
            _ => return false,
        }
        true
    }

    fn answers(&self, message: &Message, shown: Shown, before: Before, sink: &mut dyn Sink) {
        let Message::Assistant { reasoning, text, calls } = message else { return };
        let Markers { open, close } = &self.words.think;
        if self.leads(before, sink) {
            let shows = shown == Shown::Reasoning;
            if shows || matches!(self.dialect, Dialect::V31(_)) {
                sink.marker(open);
            }
            if let Some(reasoning) = reasoning.as_deref().filter(|_| shows) {
                sink.text(reasoning);
            }
            sink.marker(close);
        }
        let mut text = text.as_deref().unwrap_or_default();
        let looks = matches!(self.dialect, Dialect::V31(_)) && before.last != Last::Tools;
        if self.text_steers && looks && calls.is_empty() {
            text = text.split_once(close.content()).map_or(text, |(_, answer)| answer);
        }
        self.say(text, calls, sink);
        sink.marker(&self.words.close);
    }

    fn say(&self, text: &str, calls: &[(String, String)], sink: &mut dyn Sink) {
        sink.text(text);
        if calls.is_empty() {
            return;
        }
        match &self.dialect {
            Dialect::V31(tokens) => {
                sink.marker(&tokens.calls.open);
                for (name, raw) in calls {
                    sink.marker(&tokens.call.open);
                    sink.text(name);
                    sink.marker(&tokens.separator);
                    sink.text(&dumped(raw));
                    sink.marker(&tokens.call.close);
                }
                sink.marker(&tokens.calls.close);
            }
            Dialect::V32 => self.tagged("function_calls", "", calls, sink),
            Dialect::V4 => self.tagged("tool_calls", "\n", calls, sink),
        }
    }

    /// Calls in tags, of which those of arguments say whether they are strings; `none` stands for no
    /// arguments.
    fn tagged(&self, block: &str, none: &str, calls: &[(String, String)], sink: &mut dyn Sink) {
        let tag = |start: &str, parts: &[&str], sink: &mut dyn Sink| {
            sink.text(start);
            sink.marker(&self.dsml);
            parts.iter().for_each(|part| sink.text(part));
        };
        tag("\n\n<", &[block, ">\n"], sink);
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

    fn outputs<'a>(
        &self,
        outputs: impl Iterator<Item = &'a str>,
        before: Before,
        sink: &mut dyn Sink,
    ) {
        if matches!(self.dialect, Dialect::V32) {
            sink.text("\n\n<function_results>");
        }
        for (index, output) in outputs.enumerate() {
            match &self.dialect {
                Dialect::V31(tokens) => {
                    sink.marker(&tokens.output.open);
                    sink.text(output);
                    sink.marker(&tokens.output.close);
                }
                Dialect::V32 => {
                    sink.text("\n<result>");
                    sink.text(output);
                    sink.text("</result>");
                }
                Dialect::V4 => {
                    let last = if index > 0 { Last::Tools } else { before.last };
                    self.opens_user(last, sink);
                    sink.text("<tool_result>");
                    sink.text(output);
                    sink.text("</tool_result>");
                }
            }
        }
        if matches!(self.dialect, Dialect::V32) {
            sink.text("\n</function_results>");
        }
    }

    fn opens_user(&self, last: Last, sink: &mut dyn Sink) {
        if self.runs_on(last, Last::User) {
            sink.text("\n\n");
        } else {
            sink.marker(&self.words.user);
        }
    }
}

impl Format for DeepSeek {
    fn name(&self) -> &'static str {
        match self.dialect {
            Dialect::V31(_) => "deepseek-v3.1",
            Dialect::V32 => "deepseek-v3.2",
            Dialect::V4 => "deepseek-v4",
        }
    }

    fn stop_ids(&self) -> Vec<TokenId> {
        vec![self.close_id]
    }

    fn begins_thinking(&self, _may: bool, last: Option<TokenId>) -> bool {
        last.is_some() && last == self.words.think.open.id()
    }

    fn parser(&self, thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser> {
        let format = OutputFormat {
            think: Some(self.words.think.clone()),
            call: self.form.clone().filter(|_| calls != Calls::Forbidden),
            tools: header.parameter_types(),
            text_markers: calls == Calls::Forced,
        };
        let start = if thinking { Start::Reasoning } else { Start::Text };
        Box::new(OutputReader::new(format, start, Box::new(mint_call_id)))
    }

    fn describe_calls(&self) -> Option<String> {
        self.form.as_ref().map(CallForm::describe)
    }

    fn call_markers(&self) -> Option<(String, String)> {
        None
    }

    fn drops_reasoning(&self) -> bool {
        true
    }

    /// Where the prompt opens no reasoning, a model that reasons opens it itself.
    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        if !self.writes(&answer.calls) {
            return Err(Error::unsupported("calls", "Arguments of a call must be a JSON object."));
        }
        let Markers { open, close } = &self.words.think;
        if let Some(reasoning) = &answer.reasoning {
            if !self.thinks(true) {
                sink.marker(open);
            }
            sink.text(reasoning);
            sink.marker(close);
        }
        self.say(answer.text.as_deref().unwrap_or_default(), &answer.calls, sink);
        sink.marker(&self.words.close);
        Ok(())
    }
}

impl DeepSeek {
    /// Whether these calls have a form: tags have one only for the members of an object.
    fn writes(&self, calls: &[(String, String)]) -> bool {
        matches!(self.dialect, Dialect::V31(_))
            || calls.iter().all(|(_, raw)| arguments(raw).is_some())
    }

    /// Whether a message is written the same wherever its conversation goes on.
    fn takes_one(&self, message: &Message, before: Before) -> bool {
        // Behind a header's text only a user's message begins with a control token in all dialects.
        let begins = !matches!(before.last, Last::Nobody | Last::Operator);
        match message {
            Message::Plain { role, .. } => *role == Role::User,
            Message::Assistant { calls, .. } => begins && self.writes(calls),
            Message::Outputs(outputs) => match self.dialect {
                Dialect::V31(_) => begins,
                // It counts a group's outputs, to open and close it, from the calls on.
                Dialect::V32 => {
                    before.last == Last::Model && before.last_calls as usize == outputs.len()
                }
                // Without tools, outputs bring back what history had lost.
                Dialect::V4 => begins && (before.tools || !self.thinks(before.thinking)),
            },
        }
    }
}

impl Family for DeepSeek {
    fn takes(&self, groups: &[Group], mut before: Before) -> bool {
        groups.iter().all(|Group { message, .. }| {
            let taken = self.takes_one(message, before);
            before = before.and(message, self.asks(message));
            taken
        })
    }

    fn rewrites(&self, was: Before, now: Before) -> bool {
        let mode = |before: Before| {
            let thinks = self.thinks(before.thinking);
            (thinks, thinks && self.keeps(before))
        };
        !matches!(self.dialect, Dialect::V31(_)) && mode(was) != mode(now)
    }

    fn runs_on(&self, last: Last, next: Last) -> bool {
        let users = |one| matches!(one, Last::User | Last::Tools);
        match self.dialect {
            Dialect::V31(_) => false,
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
                self.outputs(texts, before, sink);
            }
        }
    }

    fn generation_prompt(&self, thinking: bool, before: Before, sink: &mut dyn Sink) {
        if !self.leads(before, sink) {
            return;
        }
        let Markers { open, close } = &self.words.think;
        let thinks = self.thinks(thinking);
        if thinks || !matches!(self.dialect, Dialect::V4) {
            sink.marker(open);
        }
        if !thinks {
            sink.marker(close);
        }
    }

    fn prompt_dropped(&self, thinking: bool) -> Dropped {
        match (&self.dialect, self.thinks(thinking)) {
            (Dialect::V31(_), _) | (Dialect::V4, false) => Dropped::Never,
            (Dialect::V32, false) => Dropped::OnNext,
            (_, true) => Dropped::OnQuery,
        }
    }

    fn opening(&self, before: Before, sink: &mut dyn Sink) {
        if matches!(self.dialect, Dialect::V31(_)) || self.keeps(before) {
            return self.generation_prompt(before.thinking, before, sink);
        }
        // Behind reasoning, its end is the model's own.
        if self.leads(before, sink) && !self.thinks(before.thinking) {
            sink.marker(&self.words.think.close);
        }
    }

    fn closer(&self, end: End, sink: &mut dyn Sink) {
        if end == End::Thinking {
            sink.marker(&self.words.think.close);
        }
        if end != End::Closed {
            sink.marker(&self.words.close);
        }
    }

    fn closer_of_lost(&self, sink: &mut dyn Sink) {
        self.closer(End::Thinking, sink);
    }

    fn close_of(&self, _stop: TokenId, thinking: bool) -> Option<TokenId> {
        (!thinking).then_some(self.close_id)
    }

    fn control_ids(&self) -> Vec<TokenId> {
        let Words { user, assistant, close, think } = &self.words;
        let mut markers = vec![user, assistant, close, &think.open, &think.close];
        if let Dialect::V31(tokens) = &self.dialect {
            let pairs = [&tokens.calls, &tokens.call, &tokens.output];
            markers.extend(pairs.into_iter().flat_map(|pair| [&pair.open, &pair.close]));
            markers.push(&tokens.separator);
        } else {
            markers.push(&self.dsml);
        }
        markers.into_iter().filter_map(Marker::id).collect()
    }

    fn shows(&self, groups: &[Group], before: Before) -> Vec<Showing> {
        let shows = self.thinks(before.thinking) && !matches!(self.dialect, Dialect::V31(_));
        let keeps = self.keeps(before);
        shows_in_cycle(self, groups, before, |_, in_cycle, _| match (shows, keeps) {
            (true, true) => (Shown::Reasoning, Dropped::Never),
            (true, false) if in_cycle => (Shown::Reasoning, Dropped::OnQuery),
            _ => (Shown::Nothing, Dropped::Never),
        })
    }

    /// What goes by the next turn has gone from every print of it, whatever comes.
    fn loses(&self, dropped: Dropped, news: News) -> bool {
        match dropped {
            Dropped::Never => false,
            Dropped::OnQuery => news.asks,
            Dropped::OnNext => true,
        }
    }

    /// The end of reasoning stays, unless the model began it by itself.
    fn lost(&self, ids: &[TokenId], mut reasoning: Range<usize>) -> Range<usize> {
        let Markers { open, close } = &self.words.think;
        let began = ids.get(reasoning.start).copied() == open.id();
        let last = ids.get(..reasoning.end).and_then(<[TokenId]>::last).copied();
        if !began && last == close.id() {
            reasoning.end -= 1;
        }
        reasoning
    }

    fn lost_when(&self, before: Before) -> Dropped {
        match (&self.dialect, self.thinks(before.thinking)) {
            (Dialect::V31(_), _) | (_, false) => Dropped::OnNext,
            _ if self.keeps(before) => Dropped::Never,
            _ => Dropped::OnQuery,
        }
    }

    fn is_query(&self, _text: &str) -> bool {
        true
    }

    /// What a text spells is looked for where it is written: it depends on what stands before.
    fn read_foreign(&self, _message: &mut Message) {}
}

const ARGUMENTS: &str = "arguments";

/// Arguments as Python spells them again; what is no object is a string.
fn dumped(arguments: &str) -> String {
    let mut out = String::new();
    let raw = json::value(arguments.as_bytes(), ARGUMENTS).ok();
    let object = raw.filter(|raw| raw.get().starts_with('{'));
    let written = object.map(|raw| json::write(raw, Style::Python, ARGUMENTS, &mut out));
    if !matches!(written, Some(Ok(()))) {
        out.clear();
        json::write_string(arguments, &mut out);
    }
    out
}

/// The arguments of a call: key, whether the value is a string, and the value as it stands in its tag.
/// None when they are no JSON object.
fn arguments(arguments: &str) -> Option<Vec<(Cow<'_, str>, bool, String)>> {
    let raw = json::value(arguments.as_bytes(), ARGUMENTS).ok()?;
    let members = json::object(raw, ARGUMENTS).ok()?.0.into_iter();
    let argument = |(key, raw): (_, &serde_json::value::RawValue)| {
        if raw.get().starts_with('"') {
            return Some((key, true, json::string(raw, ARGUMENTS).ok()?.into_owned()));
        }
        let mut value = String::new();
        json::write(raw, Style::Python, ARGUMENTS, &mut value).ok()?;
        Some((key, false, value))
    };
    members.map(argument).collect()
}
