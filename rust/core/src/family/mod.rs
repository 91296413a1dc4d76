//! Model families: how each renders items to chunks, and how it reads sampled tokens back.
//!
//! Both directions of one format live together. A renderer is a pure function of items; a parser
//! sees sampled output one decoded piece at a time and never looks back.

use std::ops::Range;

use crate::token::TokenId;

pub mod hermes;

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
    fn added(&mut self, id: TokenId, content: &str, special: bool, index: usize, out: &mut Vec<Delta>);

    /// The output has ended (by a stop id, at a limit, or cut off): whatever was held back.
    /// `count` is the number of sampled ids, the stop id included.
    fn finish(&mut self, count: usize, out: &mut Vec<Delta>);

    /// The sampled ids that are reasoning, markers included: from the opening marker to behind
    /// the closing one (or to `count`, where none came). None when there was no reasoning.
    fn reasoning(&self) -> Option<Range<usize>>;
}
