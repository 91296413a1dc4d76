//! A stretch of a prompt: what turns share, move, drop and render as a whole.

use std::ops::Range;
use std::sync::Arc;

use crate::chain::Before;
use crate::token::{Origin, Span, SpanKind, TokenId};

/// A stretch of tokens that is shared, moved or dropped as a whole.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The tokens.
    pub ids: Arc<[TokenId]>,
    /// What they hold.
    pub kind: SpanKind,
    /// Indices into the chain's items, end exclusive.
    pub items: Extent,
    /// The reasoning in it, as a token range; empty for rendered messages, which are rendered
    /// again without it.
    pub reasoning: Extent,
    /// When the template takes the reasoning out of history (D6).
    pub dropped: Dropped,
    /// A closer that belongs to the span before it (D5).
    pub glue: bool,
    /// Who put it there.
    pub origin: Origin,
    /// What it stands for on the generic path; of nothing elsewhere.
    pub imprint: Imprint,
    /// What stood before it, where a native renderer rendered it.
    pub before: Before,
}

/// A range of fewer than 2^32 things, in half the memory: a long conversation has many segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    start: u32,
    end: u32,
}

impl Extent {
    /// The same as a range.
    #[must_use]
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// How many things it has.
    #[must_use]
    pub fn len(self) -> usize {
        self.range().len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

impl From<Range<usize>> for Extent {
    fn from(range: Range<usize>) -> Self {
        let short = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
        Self { start: short(range.start), end: short(range.end) }
    }
}

/// Stands for the bytes that a segment's tokens stand for: their number, and half of their blake3.
/// The generic path recognises by it, without keeping any text, what a template has printed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Imprint {
    len: u32,
    digest: [u8; 16],
}

impl Imprint {
    /// Of `bytes`, fewer than 2^32.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut digest = [0; 16];
        blake3::Hasher::new().update(bytes).finalize_xof().fill(&mut digest);
        Self { len: u32::try_from(bytes.len()).unwrap_or(u32::MAX), digest }
    }

    /// As [`from_parts`](Self::from_parts) takes it.
    #[must_use]
    pub fn parts(&self) -> (u32, &[u8; 16]) {
        (self.len, &self.digest)
    }

    /// One that was made before.
    #[must_use]
    pub fn from_parts(len: u32, digest: [u8; 16]) -> Self {
        Self { len, digest }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it is of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// When a template takes the reasoning of a segment out of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dropped {
    /// It has none, or keeps it.
    Never,
    /// When the model has answered.
    OnAnswer,
    /// When the next real user message arrives.
    OnQuery,
    /// When anything follows.
    OnNext,
}

/// The spans of a row of segments: glue joins the span before it (law 3).
#[must_use]
pub fn spans<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut start = 0;
    for segment in segments {
        let end = start + segment.ids.len();
        match spans.last_mut().filter(|_| segment.glue) {
            Some(last) => last.tokens.end = end,
            None => spans.push(Span {
                tokens: start..end,
                items: segment.items.range(),
                kind: segment.kind,
                origin: segment.origin,
            }),
        }
        start = end;
    }
    spans
}
