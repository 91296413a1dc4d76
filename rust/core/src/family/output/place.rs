//! Where a reader stands in an answer, and what it has met there.

use std::ops::Range;

use super::body::Body;
use super::prose::Kind;

/// Which marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    ThinkOpen,
    ThinkClose,
    CallOpen,
    CallClose,
    /// Around all calls: says nothing.
    Around,
}

/// A marker as it was met.
#[derive(Clone, Copy)]
pub(super) struct Met<'a> {
    /// What it shows when it turns out to be none; nothing for a special token.
    pub(super) shown: &'a str,
    /// Its place among the sampled ids; letters have none.
    pub(super) index: Option<usize>,
}

/// Where the output stands; the module has the transitions.
pub(super) enum Place {
    Reasoning,
    Text,
    Call(Box<Call>),
    Tail(String),
}

pub(super) struct Call {
    pub(super) within: Kind,
    /// The opening marker's place.
    pub(super) index: Option<usize>,
    pub(super) body: Box<dyn Body>,
    /// Everything since and with the opening marker, until the call has begun.
    pub(super) raw: String,
    pub(super) begun: bool,
    /// Some of the arguments have left.
    pub(super) streamed: bool,
}

/// Whose a closing call marker would be, met outside a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closer {
    /// Of no call: it is text.
    Nobodys,
    /// Of the last call, which ended without one.
    Owed,
    /// Of the last call, which has had one; a message that has begun since makes it nobody's.
    Surplus,
}

/// Where the first block of reasoning lies among the sampled ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Block {
    None,
    From(usize),
    Placed(Range<usize>),
    /// One of its ends was letters.
    Unplaced,
}

impl Block {
    pub(super) fn open(&mut self, at: Option<usize>) {
        if *self == Self::None {
            *self = at.map_or(Self::Unplaced, Self::From);
        }
    }

    pub(super) fn close(&mut self, end: Option<usize>) {
        if let Self::From(start) = *self {
            *self = end.map_or(Self::Unplaced, |end| Self::Placed(start..end.max(start)));
        }
    }
}

impl Kind {
    pub(super) fn place(self) -> Place {
        match self {
            Self::Reasoning => Place::Reasoning,
            Self::Text => Place::Text,
        }
    }
}
