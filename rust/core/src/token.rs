//! Token ids, and where in a prompt they came from.

use std::ops::Range;

/// One entry of a model's vocabulary. Wide enough for every published vocabulary (the largest
/// have fewer than 2^18 entries).
pub type TokenId = u32;

/// Who put tokens into a prompt (law 2 hangs on the difference).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Encoded from an item's text by a family's renderer.
    Rendered,
    /// Sampled by an engine and kept verbatim.
    Sampled,
    /// Encoded from the text of something sampled, because a template printed it otherwise than it
    /// was sampled (D3).
    Reencoded,
}

impl Origin {
    /// The name used on the wall and in dumps.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rendered => "rendered",
            Self::Sampled => "sampled",
            Self::Reencoded => "reencoded",
        }
    }
}

/// What a span of a prompt holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpanKind {
    /// Instructions, tools and the leading system or developer items.
    Header,
    /// One item, or several that share a text run (a message whose markers are plain text).
    Item,
    /// The opening of the assistant's message that asks the model to speak.
    GenerationPrompt,
    /// What the engine sampled.
    Sampled,
}

impl SpanKind {
    /// The name used on the wall and in dumps.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Item => "item",
            Self::GenerationPrompt => "generation_prompt",
            Self::Sampled => "sampled",
        }
    }
}

/// A stretch of a prompt. The spans of a prompt partition it (law 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Token offsets into the prompt, end exclusive.
    pub tokens: Range<usize>,
    /// Indices into the chain's items that this span renders, end exclusive; empty for the
    /// generation prompt and for a header without leading items.
    pub items: Range<usize>,
    /// What the span holds.
    pub kind: SpanKind,
    /// Who put it there.
    pub origin: Origin,
}
