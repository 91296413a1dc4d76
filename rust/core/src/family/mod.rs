//! Model families: how each renders items to chunks, and how it reads sampled tokens back.
//!
//! Both directions of one format live together. A renderer is a pure function of items; a parser
//! sees sampled output one decoded piece at a time and never looks back. A template that no native
//! renderer prints is run itself ([`generic`]).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

use crate::error::Result;
use crate::header::Header;
use crate::token::TokenId;

pub mod chatml;
pub mod generic;
pub mod hermes;
pub mod marker;
pub mod output;
pub mod probe;
pub mod render;

use generic::Generic;
use render::{Message, Sink};

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

    /// The sampled ids that are reasoning, markers included: from the opening marker to behind
    /// the closing one (or to `count`, where none came). None when there was no reasoning.
    fn reasoning(&self) -> Option<Range<usize>>;

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

/// An answer, as a model of the family would sample it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// What it thinks first.
    pub reasoning: Option<String>,
    /// What it says.
    pub text: Option<String>,
    /// (name, raw arguments) of the functions that it calls.
    pub calls: Vec<(String, String)>,
}

/// What a model's output is read with, however its prompts are rendered.
pub trait Format: Send + Sync {
    /// The name shown to people.
    fn name(&self) -> &str;

    /// Tokens that end a turn whatever the model's files say.
    fn stop_ids(&self) -> Vec<TokenId>;

    /// A parser for one turn.
    fn parser(&self, thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser>;

    /// Whether [`parser`](Self::parser) finds the calls that the model makes.
    fn reads_calls(&self) -> bool {
        self.describe_calls().is_some()
    }

    /// How calls are written, for people; None where it is not known.
    fn describe_calls(&self) -> Option<String>;

    /// The text around one tool call's JSON object; None where calls have another form, in which
    /// none can be required of an engine.
    fn call_markers(&self) -> Option<(String, String)>;

    /// Whether templates of this format take earlier reasoning out of history.
    fn drops_reasoning(&self) -> bool;

    /// What a model of this family would sample for `answer`, its close included.
    ///
    /// # Errors
    /// `unsupported_parameter` for what the family has no form for.
    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()>;
}

/// One model family's format, both directions.
pub trait Family: Format {
    /// Everything before the first ordinary item: instructions, tools, and the chain's leading
    /// system and developer items.
    fn header(&self, header: &Header, leading: &[&str], sink: &mut dyn Sink);

    /// One message, closed.
    fn message(&self, message: &Message, shown: Shown, sink: &mut dyn Sink);

    /// The opening of the assistant's message that asks the model to speak.
    fn generation_prompt(&self, thinking: bool, sink: &mut dyn Sink);

    /// What stands between sampled ids and the next message; `closed` when they ended in
    /// [`close_id`](Self::close_id).
    fn closer(&self, closed: bool, sink: &mut dyn Sink);

    /// The control token that ends an assistant's message.
    fn close_id(&self) -> TokenId;

    /// Every control token that renders write, where prompts are cut.
    fn control_ids(&self) -> Vec<TokenId>;

    /// Whether the prompt of a turn without thinking carries an empty reasoning block, which the
    /// template drops as soon as anything follows.
    fn marks_no_thinking(&self) -> bool;

    /// Whether this user message is a question, and not a tool's output in disguise.
    fn is_query(&self, text: &str) -> bool;

    /// Reads a message that a client brought as the template would: some find reasoning inside the
    /// text of an answer.
    fn read_foreign(&self, message: &mut Message);
}

/// Who renders a profile's prompts.
pub enum Renderer {
    /// A family's own renderer: a turn costs what is new in it.
    Native(Box<dyn Family>),
    /// The model's template over the whole conversation, of which only what changed is encoded.
    Generic(Box<Generic>),
}

impl Renderer {
    /// What the output is read with.
    #[must_use]
    pub fn format(&self) -> &dyn Format {
        match self {
            Self::Native(family) => family.as_ref(),
            Self::Generic(generic) => generic.as_ref(),
        }
    }
}
