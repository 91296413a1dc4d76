//! Kimi K2, K2-Thinking, and whatever prints the same.
//!
//! ```text
//! <|im_system|>tool_declare<|im_middle|>[…]<|im_end|>
//! <|im_user|>user<|im_middle|>{text}<|im_end|>
//! <|im_assistant|>assistant<|im_middle|><think>{reasoning}</think>{text}<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{…}<|tool_call_end|><|tool_calls_section_end|><|im_end|>
//! <|im_system|>{name}<|im_middle|>## Return of functions.{name}:{number}\n{output}<|im_end|>
//! ```
//!
//! | dialect | a call's number | an output | reasoning |
//! |---|---|---|---|
//! | K2, as first published | within its message | is a `tool`'s, of the client's id | none |
//! | K2 | within the conversation | is the function's, of the call | none |
//! | K2-Thinking | within the conversation | is the function's, of the call | behind the last answer without calls |
//!
//! Where reasoning is gone its markers stay.

use std::ops::Range;

use serde_json::{Value, json};

use crate::chain::Dropped;
use crate::error::{Error, Result};
use crate::family::generic::{Generic, Ways, between};
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::{CallForm, OutputFormat};
use crate::family::output::{OutputReader, Start};
use crate::family::render::{Answered, Group, Message, NOT_SHOWN, Sink};
use crate::family::{
    Answer, Before, Calls, End, Family, Format, News, OutputParser, Showing, Shown, mint_call_id,
};
use crate::header::Header;
use crate::item::Role;
use crate::json;
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

/// Kimi's own code counts the characters of a text across the tokens of calls, and cuts a text where
/// they are more ([`chunks`](crate::tokenizer)). A message with calls that stays below cannot be cut.
const UNCUT: usize = 25_000;

/// Kimi's format in a vocabulary.
#[derive(Debug, Clone)]
pub struct Kimi {
    system: Marker,
    user: Marker,
    assistant: Marker,
    middle: Marker,
    end: Marker,
    end_id: TokenId,
    stops: Vec<TokenId>,
    section: Markers,
    call: Markers,
    argument: Marker,
    think: Option<Markers>,
    /// Whether history keeps all reasoning.
    keeps: bool,
    form: Option<CallForm>,
    /// Whether an output is said by the function that was called, and not by `tool`.
    names_tools: bool,
    /// Between the id of a call and its output.
    before_output: String,
    /// Whether added tokens are matched in texts, which are then encoded as the whole prompt is.
    compat: bool,
    ways: Ways,
}

impl Kimi {
    /// The format as the template prints it; the probe decides whether it does.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`], naming the first thing that is missing.
    pub fn detect(generic: &Generic, vocabulary: &Vocabulary, compat: bool) -> Result<Self> {
        let token = |content: &str| Marker::token(content, vocabulary);
        let pair = |open: &str, close: &str| Markers::tokens(open, close, vocabulary);
        let [system, user] = [token("<|im_system|>")?, token("<|im_user|>")?];
        let [assistant, middle] = [token("<|im_assistant|>")?, token("<|im_middle|>")?];
        let end = token("<|im_end|>")?;
        let section = pair("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")?;
        let call = pair("<|tool_call_begin|>", "<|tool_call_end|>")?;
        let argument = token("<|tool_call_argument_begin|>")?;
        let ways = generic.ways().clone();
        let think = ways.reasoning.map(|_| pair("<think>", "</think>")).transpose()?;
        let print = |messages: &[Value]| generic.sample(messages, false, true);
        let asked = json!({"role": "user", "content": "x"});
        let output = json!({
            "role": "tool", "name": "probe_name", "tool_call_id": "probe_id", "content": "probe_output",
        });
        let output = print(&[asked.clone(), output]);
        let before_output = between(&output, "probe_id", "probe_output").next().map(str::to_owned);
        let reasons =
            json!({"role": "assistant", "content": "y", "reasoning_content": "probe_thought"});
        let keeps = print(&[asked.clone(), reasons, asked]).contains("probe_thought");
        let end_id = end.id().unwrap_or_default();
        let stops = [Some(end_id), vocabulary.added_id("[EOS]"), vocabulary.added_id("[EOT]")];
        Ok(Self {
            system,
            user,
            assistant,
            middle,
            end,
            end_id,
            stops: stops.into_iter().flatten().collect(),
            section,
            call,
            argument,
            think,
            keeps,
            form: generic.call().cloned(),
            names_tools: output.contains("probe_name"),
            before_output: before_output.filter(|_| ways.tools).ok_or_else(|| {
                Error::profile("the chat template does not print which call an output answers")
            })?,
            compat,
            ways,
        })
    }

    fn open(&self, marker: &Marker, role: &str, sink: &mut dyn Sink) {
        sink.marker(marker);
        sink.text(role);
        sink.marker(&self.middle);
    }

    /// `number` is the first call's.
    fn say(&self, text: &str, calls: &[(String, String)], number: u32, sink: &mut dyn Sink) {
        sink.text(text);
        if calls.is_empty() {
            return;
        }
        sink.marker(&self.section.open);
        for (number, (name, arguments)) in (number..).zip(calls) {
            sink.marker(&self.call.open);
            sink.text(&call_id(name, number));
            sink.marker(&self.argument);
            sink.text(arguments);
            sink.marker(&self.call.close);
        }
        sink.marker(&self.section.close);
    }

    fn think(&self, reasoning: &str, sink: &mut dyn Sink) {
        if let Some(markers) = &self.think {
            sink.between(markers, reasoning);
        }
    }

    /// Whether the template prints these calls as they are, and the tokenizer cuts nothing in them.
    fn takes_calls(&self, text: &str, calls: &[(String, String)]) -> bool {
        const PARAM: &str = "arguments";
        let is_object = |raw: &str| {
            let value = json::value(raw.as_bytes(), PARAM);
            value.is_ok_and(|raw| json::object(raw, PARAM).is_ok())
        };
        let printed = |raw: &str| self.ways.arguments_as_text || is_object(raw);
        let said = calls.iter().map(|(name, raw)| name.len() + raw.len()).sum::<usize>();
        let short = text.len() + said + 64 * calls.len() < UNCUT;
        (short || !self.compat) && calls.iter().all(|(_, raw)| printed(raw))
    }
}

impl Format for Kimi {
    fn name(&self) -> &'static str {
        "kimi"
    }

    fn stop_ids(&self) -> Vec<TokenId> {
        self.stops.clone()
    }

    fn parser(&self, _thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser> {
        let format = OutputFormat::of_turn(self.think.as_ref(), self.form.as_ref(), calls, header);
        Box::new(OutputReader::new(format, Start::Text, Box::new(mint_call_id)))
    }

    fn describe_calls(&self) -> Option<String> {
        self.form.as_ref().map(CallForm::describe)
    }

    fn drops_reasoning(&self) -> bool {
        self.think.is_some() && !self.keeps
    }

    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        if answer.reasoning.is_some() && self.think.is_none() {
            let message = "Models of the family 'kimi' do not reason.";
            return Err(Error::unsupported("reasoning", message));
        }
        self.think(answer.reasoning.as_deref().unwrap_or_default(), sink);
        self.say(answer.text.as_deref().unwrap_or_default(), &answer.calls, 0, sink);
        sink.marker(&self.end);
        Ok(())
    }
}

impl Family for Kimi {
    fn takes(&self, groups: &[Group], before: Before) -> bool {
        self.ways.place(groups, before)
            && groups.iter().all(|group| match &group.message {
                Message::Assistant { text, calls, .. } => {
                    calls.is_empty() || self.takes_calls(text.as_deref().unwrap_or_default(), calls)
                }
                _ => true,
            })
    }

    fn message(&self, message: &Message, shown: Shown, before: Before, sink: &mut dyn Sink) {
        match message {
            Message::Plain { role: Role::User, text } => {
                self.open(&self.user, "user", sink);
                sink.text(text);
                sink.marker(&self.end);
            }
            Message::Plain { text, .. } => {
                self.open(&self.system, "system", sink);
                sink.text(text);
                sink.marker(&self.end);
            }
            Message::Assistant { reasoning, text, calls } => {
                self.open(&self.assistant, "assistant", sink);
                let reasoning = reasoning.as_deref().filter(|_| shown == Shown::Reasoning);
                self.think(reasoning.unwrap_or_default(), sink);
                let number = if self.ways.counted_ids { before.calls } else { 0 };
                self.say(text.as_deref().unwrap_or_default(), calls, number, sink);
                sink.marker(&self.end);
            }
            Message::Outputs(outputs) => {
                for Answered { call_id: given, name, number, text } in outputs {
                    let role = if self.names_tools { name } else { "tool" };
                    self.open(&self.system, role, sink);
                    sink.text("## Return of ");
                    if self.ways.counted_ids {
                        sink.text(&call_id(name, *number));
                    } else {
                        sink.text(given);
                    }
                    sink.text(&self.before_output);
                    sink.text(text);
                    sink.marker(&self.end);
                }
            }
        }
    }

    fn opening(&self, _before: Before, sink: &mut dyn Sink) {
        self.open(&self.assistant, "assistant", sink);
    }

    fn closer(&self, end: End, sink: &mut dyn Sink) {
        if let (End::Thinking | End::Lost, Some(think)) = (end, &self.think) {
            sink.marker(&think.close);
        }
        if end != End::Closed {
            sink.marker(&self.end);
        }
    }

    fn close_of(&self, _stop: TokenId, thinking: bool) -> Option<TokenId> {
        (!thinking).then_some(self.end_id)
    }

    /// Without the tokens of calls: [`UNCUT`] says why prompts need not be cut there.
    fn control_ids(&self) -> Vec<TokenId> {
        let all = [&self.system, &self.user, &self.assistant, &self.middle, &self.end];
        let think = self.think.iter().flat_map(|think| [&think.open, &think.close]);
        all.into_iter().chain(think).filter_map(Marker::id).collect()
    }

    fn shows(&self, groups: &[Group], _before: Before) -> Vec<Showing> {
        let last_pause = groups.iter().rposition(|group| group.message.calls_nothing());
        let shown = |(index, group): (usize, &Group)| {
            let reasons = match &group.message {
                Message::Assistant { reasoning: Some(text), .. } => !text.is_empty(),
                _ => false,
            };
            match (reasons && self.think.is_some(), last_pause.is_none_or(|last| index > last)) {
                (true, _) if self.keeps => (Shown::Reasoning, Dropped::Never),
                (true, true) => (Shown::Reasoning, Dropped::OnQuery),
                _ => NOT_SHOWN,
            }
        };
        groups.iter().enumerate().map(shown).collect()
    }

    /// Not with a query, but with a message without calls.
    fn loses(&self, dropped: Dropped, news: News) -> bool {
        dropped != Dropped::Never && news.pauses
    }

    fn lost(&self, ids: &[TokenId], reasoning: Range<usize>) -> Range<usize> {
        match &self.think {
            Some(think) => think.within(ids, reasoning, true),
            None => reasoning.start..reasoning.start,
        }
    }
}

/// A call's id as the model writes it.
fn call_id(name: &str, number: u32) -> String {
    format!("functions.{name}:{number}")
}
