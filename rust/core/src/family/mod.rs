//! Model families: how each renders items to chunks, and how it reads sampled tokens back.
//!
//! Both directions of one format live together. A renderer is a pure function of items; a parser
//! sees sampled output one decoded piece at a time and never looks back. A template that no native
//! renderer prints is run itself ([`generic`]).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

use crate::chain::Dropped;
pub use crate::chain::{Before, End, Last};
use crate::error::Result;
use crate::header::Header;
use crate::item::Role;
use crate::token::TokenId;

mod answer;
pub mod chatml;
pub mod deepseek;
mod foreign;
pub mod generic;
pub mod glm;
pub mod harmony;
pub mod hermes;
pub mod kimi;
pub mod kimi_k3;
pub mod llama;
pub mod marker;
pub mod mistral;
pub mod native;
pub mod output;
pub mod probe;
pub mod render;
pub mod tagged;

pub use answer::Answer;
use generic::Generic;
use render::{Group, Message, NOT_SHOWN, Sink};

/// A piece of what the model is saying, in order. A delta of another kind, or a new call, ends
/// the item before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// More of a reasoning item.
    Reasoning(String),
    /// More of a message.
    Text(String),
    /// A function call begins.
    Call {
        /// Minted here; unguessable.
        call_id: String,
        /// The function's name, complete.
        name: String,
    },
    /// More of the current call's arguments: raw JSON, byte for byte as sampled.
    Arguments(String),
}

/// Reads sampled output. Fed by the detokenizer: whole characters only, in order.
///
/// Law 6 binds every implementation: however the same output is cut into calls of [`text`], the
/// concatenation of the deltas is the same.
///
/// [`text`]: OutputParser::text
pub trait OutputParser: Send {
    /// Ordinary text, never empty.
    fn text(&mut self, text: &str, out: &mut Vec<Delta>);

    /// An added token, as a token: only this can be a control token where the vocabulary has one.
    /// `index` is its place among the sampled ids of this turn.
    fn added(
        &mut self,
        id: TokenId,
        content: &str,
        special: bool,
        index: usize,
        out: &mut Vec<Delta>,
    );

    /// The output has ended (by a stop id, at a limit, or cut off): whatever was held back.
    /// `count` is the number of sampled ids, the stop id included.
    fn finish(&mut self, count: usize, out: &mut Vec<Delta>);

    /// The sampled ids that are reasoning, markers included: from each opening marker to behind
    /// the closing one (or to `count`, where none came), in order, with something between any two.
    fn reasoning(&self) -> Vec<Range<usize>>;

    /// Whether the output ended within reasoning. Ask behind [`finish`](Self::finish).
    fn ends_thinking(&self) -> bool;

    /// Whether the last that it said, but for calls, ends what the model thought before, in a format
    /// that tells answers from other texts.
    fn answered(&self) -> bool {
        false
    }

    /// What the output ended in beside reasoning, in a format where more than a stop token closes it;
    /// 0 for nothing. Ask behind [`finish`](Self::finish).
    fn within(&self) -> u8 {
        0
    }

    /// How many calls have ended, each by its closing marker.
    fn closed_calls(&self) -> usize;

    /// Whether the last call was cut off: its arguments are not whole. Ask behind
    /// [`finish`](Self::finish).
    fn call_is_incomplete(&self) -> bool;
}

/// A new id for a call: `call_` and 24 characters that nobody can guess (96 bits of the standard
/// library's keyed hash, whose keys come from the operating system).
#[must_use]
pub fn mint_call_id() -> String {
    let word = || RandomState::new().build_hasher().finish();
    format!("call_{:016x}{:08x}", word(), word() & 0xffff_ffff)
}

/// How much of an assistant message's reasoning a render shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Neither reasoning nor its markers.
    Nothing,
    /// The reasoning between its markers, which may be empty.
    Reasoning,
}

/// Whether a turn's output may be calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// The model chooses.
    Free,
    /// A constraint makes the model spell out the markers of a call, which may then come as text
    /// although the vocabulary has tokens for them.
    Forced,
    /// `tool_choice` is `none`: whatever the model says is text.
    Forbidden,
}

/// So many ids at the end of a prompt tell whether it opens reasoning.
pub const PROMPT_END: usize = 8;

/// What a model's output is read with, however its prompts are rendered.
pub trait Format: Send + Sync {
    /// The name shown to people.
    fn name(&self) -> &str;

    /// Tokens that end a turn whatever the model's files say.
    fn stop_ids(&self) -> Vec<TokenId>;

    /// Whether the model begins by reasoning where it `may`, behind a prompt with this `end`: its last
    /// [`PROMPT_END`] ids.
    fn begins_thinking(&self, may: bool, _end: &[TokenId]) -> bool {
        may
    }

    /// A parser for one turn; `thinking` where the model [begins](Self::begins_thinking) by that.
    fn parser(&self, thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser>;

    /// Whether [`parser`](Self::parser) finds the calls that the model makes.
    fn reads_calls(&self) -> bool {
        self.describe_calls().is_some()
    }

    /// How calls are written, for people; None where it is not known.
    fn describe_calls(&self) -> Option<String>;

    /// The text around one tool call's JSON object; None where calls have another form, in which
    /// none can be required of an engine.
    fn call_markers(&self) -> Option<(String, String)> {
        None
    }

    /// Whether history may lose what the model thought.
    fn drops_reasoning(&self) -> bool;

    /// What a model of this family would sample for `answer`, its close included.
    ///
    /// # Errors
    /// `unsupported_parameter` for what the family has no form for.
    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()>;
}

impl Before {
    /// What stands before the next message once `message` has come; `asks` if that is a query.
    #[must_use]
    pub fn and(self, message: &Message, asks: bool) -> Self {
        let calls = match message {
            Message::Assistant { calls, .. } => calls.len(),
            Message::Plain { .. } | Message::Outputs(_) => 0,
        };
        let reasons = matches!(message, Message::Assistant { reasoning: Some(_), .. });
        let answered = message.is_answer() || (self.answered && !reasons);
        Self { answered, ..self.and_said(message.speaker(), calls).and_asked(asks) }
    }

    fn and_asked(self, asks: bool) -> Self {
        Self { asked: self.asked || asks, ..self }
    }
}

/// What a turn brings, as far as it may take reasoning out of what stands before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "what each rule asks, by itself")]
pub struct News {
    /// Whether there is a query among it.
    pub asks: bool,
    /// Whether a query stands before it.
    pub asked: bool,
    /// Whether it is anything at all.
    pub follows: bool,
    /// Whether an answer ends what stands before it: one that does already, or one among it that
    /// something follows (a text that nothing follows may still become a preamble of calls).
    pub answered: bool,
    /// Whether a message of the model's that calls nothing is among it, or stands right before it.
    pub pauses: bool,
}

/// How a segment's reasoning is shown, and when history loses it.
pub type Showing = (Shown, Dropped);

/// One model family's messages, both directions. What stands before the first message (the header)
/// the template itself prints, once for all conversations that begin alike.
pub trait Family: Format {
    /// Whether it renders these messages as the template does. A conversation with others in it is
    /// the template's, from there on.
    fn takes(&self, groups: &[Group], before: Before) -> bool;

    /// Whether history that was written as for `was` has to be written otherwise as for `now`, beyond
    /// what the `news` takes from it; such a conversation is the template's, from there on.
    fn rewrites(&self, _was: Before, _now: Before, _news: News) -> bool {
        false
    }

    /// Whether a message of `next` goes on with the run of text in which one of `last` ends, so that
    /// both are encoded together.
    fn runs_on(&self, _last: Last, _next: Last) -> bool {
        false
    }

    /// Whether it means to print these messages otherwise than the template, and why it may: of a
    /// family whose reference is another ([`harmony`](super::family::harmony)). The others' is the
    /// template.
    fn departs(&self, _groups: &[Group], _generate: bool) -> bool {
        false
    }

    /// One message, closed.
    fn message(&self, message: &Message, shown: Shown, before: Before, sink: &mut dyn Sink);

    /// What asks the model to speak: the [`opening`](Self::opening), and perhaps more.
    fn generation_prompt(&self, _thinking: bool, before: Before, sink: &mut dyn Sink) {
        self.opening(before, sink);
    }

    /// When history loses what the generation prompt adds to the [`opening`](Self::opening).
    fn prompt_dropped(&self, _thinking: bool) -> Dropped {
        Dropped::Never
    }

    /// The opening of a message of the model's as history shows it when its reasoning is gone.
    fn opening(&self, before: Before, sink: &mut dyn Sink);

    /// What stands between sampled ids and the next message.
    fn closer(&self, end: End, sink: &mut dyn Sink);

    /// The same behind reasoning that was cut off and that history has lost; `first` is the first
    /// sampled id of it.
    fn closer_of_lost(&self, _first: Option<TokenId>, sink: &mut dyn Sink) {
        self.closer(End::Lost, sink);
    }

    /// What history has in place of a stop token that ended sampled ids (law 2), perhaps `within`
    /// reasoning, or what a [closer](Self::closer) closes; None for nothing.
    fn close_of(&self, stop: TokenId, within: bool) -> Option<TokenId>;

    /// Whether a message is closed by this token, though it ends no turn.
    fn closes(&self, _id: TokenId) -> bool {
        false
    }

    /// Every control token that renders write, where prompts are cut.
    fn control_ids(&self) -> Vec<TokenId>;

    /// How each message shows its reasoning, and when history loses it, behind `before`.
    /// Not at all, where nothing else is said.
    fn shows(&self, groups: &[Group], _before: Before) -> Vec<Showing> {
        vec![NOT_SHOWN; groups.len()]
    }

    /// When history loses the reasoning that the model samples behind `before`.
    fn reasoning_dropped(&self, _before: Before) -> Dropped {
        Dropped::OnQuery
    }

    /// Whether what is lost at `dropped` goes now.
    ///
    /// The rule of most: with a query; and reasoning is not shown before the first one.
    fn loses(&self, dropped: Dropped, news: News) -> bool {
        match dropped {
            Dropped::Never => false,
            Dropped::OnAnswer => news.answered,
            Dropped::OnQuery => news.asks || (!news.asked && news.follows),
            Dropped::OnNext => news.follows,
        }
    }

    /// Which of the sampled `ids` history loses, where `reasoning` is what the parser found, its
    /// markers included: all of that, where nothing else is said.
    fn lost(&self, _ids: &[TokenId], reasoning: Range<usize>) -> Range<usize> {
        reasoning
    }

    /// Whether nothing is left of a message all of which is lost, its opening included.
    fn loses_whole(&self) -> bool {
        false
    }

    /// Whether this user message is a question, and not a tool's output in disguise.
    fn is_query(&self, _text: &str) -> bool {
        true
    }

    /// Whether this message is a user's question.
    fn asks(&self, message: &Message) -> bool {
        matches!(message, Message::Plain { role: Role::User, text } if self.is_query(text))
    }

    /// Reads a message that a client brought as the template would: some find reasoning inside the
    /// text of an answer.
    fn read_foreign(&self, _message: &mut Message) {}
}

/// Who renders a profile's prompts.
pub struct Renderer {
    /// A family's own renderer, where one prints what the template prints: a turn costs what is new
    /// in it.
    pub native: Option<Box<dyn Family>>,
    /// The model's template over the whole conversation, of which only what changed is encoded. It
    /// prints every header, and whatever the native renderer does not take.
    pub generic: Generic,
}

impl Renderer {
    /// What the output is read with.
    #[must_use]
    pub fn format(&self) -> &dyn Format {
        match &self.native {
            Some(family) => family.as_ref(),
            None => &self.generic,
        }
    }
}
