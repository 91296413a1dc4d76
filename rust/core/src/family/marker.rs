//! A piece of a format's markup: what renderers write and parsers look for.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

/// A piece of markup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marker {
    /// One added token of the vocabulary (Qwen3's `<think>` is 151667), and what it looks like.
    Token(TokenId, String),
    /// Its letters, where the vocabulary has no such token (SmolLM2).
    Text(String),
}

/// The two ends of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Markers {
    /// Opens it.
    pub open: Marker,
    /// Closes it.
    pub close: Marker,
}

impl Markers {
    /// Two tokens of the vocabulary.
    ///
    /// # Errors
    /// As [`Marker::token`].
    pub fn tokens(open: &str, close: &str, vocabulary: &Vocabulary) -> Result<Self> {
        let token = |content: &str| Marker::token(content, vocabulary);
        Ok(Self { open: token(open)?, close: token(close)? })
    }

    /// Two that no vocabulary has: letters.
    #[must_use]
    pub fn letters(open: &str, close: &str) -> Self {
        Self { open: Marker::Text(open.to_owned()), close: Marker::Text(close.to_owned()) }
    }

    /// What stands between the two among sampled `ids`, where history keeps the markers; the opening
    /// one only if it `keeps_open`.
    ///
    /// Who calls a function while thinking does not close the block: then all of it goes, since half a
    /// block must not stay.
    #[must_use]
    pub fn within(&self, ids: &[TokenId], whole: Range<usize>, keeps_open: bool) -> Range<usize> {
        let is = |at: usize, marker: &Marker| ids.get(at).copied() == marker.id();
        let Range { start, end } = whole;
        let opened = is(start, &self.open);
        let closed = end > start && is(end - 1, &self.close);
        let keeps_open = keeps_open && opened && (closed || end >= ids.len());
        let end = end - usize::from(closed);
        (start + usize::from(keeps_open)).min(end)..end
    }
}

impl Marker {
    /// The token that looks so.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`], naming it, where the vocabulary has none.
    pub fn token(content: &str, vocabulary: &Vocabulary) -> Result<Self> {
        let id = vocabulary.added_id(content);
        let id =
            id.ok_or_else(|| Error::profile(format!("the vocabulary has no {content} token")))?;
        Ok(Self::Token(id, content.to_owned()))
    }

    /// The token that looks so, where the vocabulary has one.
    #[must_use]
    pub fn of(content: &str, vocabulary: &Vocabulary) -> Self {
        let content = content.to_owned();
        match vocabulary.added_id(&content) {
            Some(id) => Self::Token(id, content),
            None => Self::Text(content),
        }
    }

    /// What it looks like.
    #[must_use]
    pub fn content(&self) -> &str {
        match self {
            Self::Token(_, content) | Self::Text(content) => content,
        }
    }

    /// Its id, where it is a token.
    #[must_use]
    pub fn id(&self) -> Option<TokenId> {
        match self {
            Self::Token(id, _) => Some(*id),
            Self::Text(_) => None,
        }
    }
}
