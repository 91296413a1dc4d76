//! Text to ids. Two encoders behind one trait: [`fast`] does the work, [`hf`] is the reference
//! and the fallback, [`choose()`] decides between them. [`cuts`] says at which ids a prompt may be
//! cut.

use std::sync::Arc;

use crate::error::Result;
use crate::token::TokenId;

mod choose;
mod chunks;
pub mod cuts;
mod definition;
pub mod fast;
pub mod hf;
mod pieces;
mod probe;
mod runs;

pub use self::choose::choose;
pub use self::chunks::Chunks;
pub use self::cuts::SafeCuts;
pub use self::definition::Definition;
pub(crate) use self::definition::to_json as added_token_json;
pub(crate) use self::pieces::character_of as byte_level_character;
pub use self::runs::{Place, Runs};

/// Encodes one text run. Never adds a BOS or any other token of its own: what a prompt starts
/// with is the family's business.
pub trait Encoder: Send + Sync {
    /// Appends the ids of `text` to `out`. With `control` false, no added token is matched: a
    /// literal `<|im_end|>` becomes ordinary tokens (D2, `trust = "strict"`). With `control`
    /// true, added tokens match as the reference tokenizer's do.
    ///
    /// # Errors
    /// Only on a tokenizer's internal failure, as [`crate::ErrorKind::Invariant`].
    fn encode(&self, text: &str, control: bool, out: &mut Vec<TokenId>) -> Result<()>;

    /// Appends the ids of `text` as a piece that is not the first of its text, with no added token
    /// matched. The same as [`encode`](Self::encode) where all pieces are treated alike.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    fn encode_later(&self, text: &str, out: &mut Vec<TokenId>) -> Result<()> {
        self.encode(text, false, out)
    }

    /// The name shown in dumps: `fastokens` or `tokenizers`.
    fn name(&self) -> &'static str;
}

impl<E: Encoder + ?Sized> Encoder for Arc<E> {
    fn encode(&self, text: &str, control: bool, out: &mut Vec<TokenId>) -> Result<()> {
        (**self).encode(text, control, out)
    }

    fn encode_later(&self, text: &str, out: &mut Vec<TokenId>) -> Result<()> {
        (**self).encode_later(text, out)
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }
}

/// One added token of a vocabulary, with the flags that decide whether a cut beside it is safe.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the flags of tokenizer.json, by their names")]
pub struct AddedToken {
    /// Its id.
    pub id: TokenId,
    /// The text that it matches.
    pub content: String,
    /// Swallows white space before it.
    pub lstrip: bool,
    /// Swallows white space after it.
    pub rstrip: bool,
    /// Matches whole words only.
    pub single_word: bool,
    /// Is matched in the normalized text.
    pub normalized: bool,
    /// Is left out of decoded text by default.
    pub special: bool,
}

impl AddedToken {
    /// One that is matched as it is, whatever stands beside it.
    #[must_use]
    pub fn plain(id: TokenId, content: String, special: bool) -> Self {
        let (lstrip, rstrip, single_word, normalized) = (false, false, false, false);
        Self { id, content, lstrip, rstrip, single_word, normalized, special }
    }
}

/// What one id stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Ordinary bytes of text (maybe half a character).
    Bytes(Box<[u8]>),
    /// An added token: its text, and whether it is special.
    Added(Box<str>, bool),
    /// The vocabulary has no such id.
    Unknown,
}

impl Piece {
    /// Whether it is text of nothing but newlines.
    #[must_use]
    pub fn is_newlines(&self) -> bool {
        matches!(self, Self::Bytes(bytes) if bytes.iter().all(|&byte| byte == b'\n'))
    }
}

/// A vocabulary read from disk: the encoder, the bytes of every id, and the added tokens.
pub struct Vocabulary {
    /// The encoder that serves.
    pub encoder: Box<dyn Encoder>,
    /// The encoder that checks it (always `tokenizers`).
    pub reference: Box<dyn Encoder>,
    /// Indexed by id.
    pub pieces: Vec<Piece>,
    /// In order of id.
    pub added: Vec<AddedToken>,
    /// At which of the added tokens a prompt may be cut.
    pub cuts: SafeCuts,
    /// How runs between control tokens are encoded.
    pub runs: Runs,
    /// Which encoder serves and why, for logs and `turnwire check`: `fastokens: equal to
    /// tokenizers on 612 texts`, or `tokenizers: ` and what `fastokens` got wrong.
    pub choice: String,
    /// blake3 of everything that decides an encoding.
    pub fingerprint: [u8; 32],
}

impl Vocabulary {
    /// The tokens of nothing but newlines, in order.
    #[must_use]
    pub fn newlines(&self) -> Vec<TokenId> {
        let ids = self.pieces.iter().enumerate().filter(|(_, piece)| piece.is_newlines());
        ids.filter_map(|(id, _)| TokenId::try_from(id).ok()).collect()
    }

    /// The id of the added token with exactly this text.
    #[must_use]
    pub fn added_id(&self, content: &str) -> Option<TokenId> {
        self.added.iter().find(|token| token.content == content).map(|token| token.id)
    }

    /// Whether `id` is an added token that text cannot spell under `trust = "strict"`.
    #[must_use]
    pub fn is_control(&self, id: TokenId) -> bool {
        let piece = usize::try_from(id).ok().and_then(|index| self.pieces.get(index));
        matches!(piece, Some(Piece::Added(..))) && !self.runs.is_text(id)
    }

    /// Appends the ids of a run of text. With `control`, added tokens in it are matched.
    ///
    /// # Errors
    /// When an encoder fails.
    pub fn encode_run(
        &self,
        run: &str,
        place: Place,
        control: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let encoders = (self.encoder.as_ref(), self.reference.as_ref());
        self.runs.encode(encoders, run, place, control, out)
    }
}
