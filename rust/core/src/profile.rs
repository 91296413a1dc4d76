//! One model as the core sees it: vocabulary, format, and what ends a turn.

use std::path::Path;
use std::str::FromStr;

use crate::detokenize;
use crate::error::{Error, Result};
use crate::family::chatml::ChatMl;
use crate::family::generic::Template;
use crate::family::render::{IdSink, Sink};
use crate::family::{Answer, Family};
use crate::load::{self, Source};
use crate::token::TokenId;
use crate::tokenizer::{Piece, Vocabulary};

/// Whether text may spell control tokens (D2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Content is encoded with added-token matching off: nobody can forge a control token.
    Strict,
    /// Content is encoded as the reference tokenizer would: bit-equal to servers that render to
    /// text first.
    Compat,
}

impl Trust {
    /// The setting's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Compat => "compat",
        }
    }
}

impl FromStr for Trust {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        match word {
            "strict" => Ok(Self::Strict),
            "compat" => Ok(Self::Compat),
            other => Err(Error::profile(format!("trust is 'strict' or 'compat', not '{other}'"))),
        }
    }
}

/// A model's tokenizer, template and family. Immutable; share it in an `Arc`.
pub struct Profile {
    name: String,
    vocabulary: Vocabulary,
    family: Box<dyn Family>,
    trust: Trust,
    stop_token_ids: Vec<TokenId>,
    context_length: Option<usize>,
    fingerprint: [u8; 32],
}

impl Profile {
    /// From a Hugging Face folder. `verdicts` is a directory in which it is remembered that the fast
    /// encoder of a vocabulary has passed its probe, which saves loading the reference (D6).
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`].
    pub fn from_hf(directory: &Path, trust: Trust, verdicts: Option<&Path>) -> Result<Self> {
        Self::new(load::hf::load_with(directory, verdicts)?, trust)
    }

    /// From a GGUF's metadata; its tensors are not read. `verdicts` as in
    /// [`from_hf`](Self::from_hf).
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`].
    pub fn from_gguf(path: &Path, trust: Trust, verdicts: Option<&Path>) -> Result<Self> {
        Self::new(load::gguf::load_with(path, verdicts)?, trust)
    }

    /// Chooses the family by what the template prints, and checks that prompts may be cut at its
    /// control tokens.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] when no native renderer prints the same as the template, or
    /// when a cut would not be exact.
    pub fn new(source: Source, trust: Trust) -> Result<Self> {
        let template = Template::new(&source.template, &source.bos_token, &source.eos_token)?;
        let refused = |error: Error| {
            Error::profile(format!(
                "'{}' cannot be served yet: {error:#}. Other templates need the generic path",
                source.name
            ))
        };
        let family = ChatMl::detect(&template, &source.vocabulary, trust == Trust::Compat)
            .map_err(refused)?;
        let cuts = &source.vocabulary.cuts;
        for id in family.control_ids() {
            if !(cuts.before(id) && cuts.after(id)) {
                return Err(refused(Error::profile(format!(
                    "a prompt cannot be cut exactly at the token {id}"
                ))));
            }
        }
        let mut stop_token_ids = source.stop_token_ids;
        stop_token_ids.extend(family.stop_ids());
        stop_token_ids.sort_unstable();
        stop_token_ids.dedup();

        let mut hasher = blake3::Hasher::new();
        for part in [
            env!("CARGO_PKG_VERSION").as_bytes(),
            &source.vocabulary.fingerprint,
            source.template.as_bytes(),
            family.name().as_bytes(),
            trust.as_str().as_bytes(),
        ] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Ok(Self {
            name: source.name,
            vocabulary: source.vocabulary,
            family: Box::new(family),
            trust,
            stop_token_ids,
            context_length: source.context_length,
            fingerprint: *hasher.finalize().as_bytes(),
        })
    }

    /// The model's own name for itself.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The family that renders and parses for it.
    #[must_use]
    pub fn family(&self) -> &dyn Family {
        self.family.as_ref()
    }

    /// The vocabulary and its encoders.
    #[must_use]
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Whether text may spell control tokens.
    #[must_use]
    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// Ids that end a turn, sorted.
    #[must_use]
    pub fn stop_token_ids(&self) -> &[TokenId] {
        &self.stop_token_ids
    }

    /// Trained context, in tokens, where the files say it.
    #[must_use]
    pub fn context_length(&self) -> Option<usize> {
        self.context_length
    }

    /// Equal for profiles that render and encode the same.
    #[must_use]
    pub fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    /// The fingerprint in hexadecimal digits.
    #[must_use]
    pub fn fingerprint_hex(&self) -> String {
        blake3::Hash::from_bytes(self.fingerprint).to_hex().to_string()
    }

    /// Whether `id` may be pushed.
    #[must_use]
    pub fn knows(&self, id: TokenId) -> bool {
        !matches!(self.piece(id), Piece::Unknown)
    }

    /// Whether `id` ends a turn.
    #[must_use]
    pub fn stops(&self, id: TokenId) -> bool {
        self.stop_token_ids.binary_search(&id).is_ok()
    }

    /// What `id` stands for.
    #[must_use]
    pub fn piece(&self, id: TokenId) -> &Piece {
        usize::try_from(id)
            .ok()
            .and_then(|index| self.vocabulary.pieces.get(index))
            .unwrap_or(&Piece::Unknown)
    }

    /// A sink for one render.
    #[must_use]
    pub fn sink(&self) -> IdSink<'_> {
        IdSink::new(self.vocabulary.encoder.as_ref(), self.trust == Trust::Compat)
    }

    /// The ids of what `write` renders.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn render(&self, write: impl FnOnce(&mut dyn Sink)) -> Result<Vec<TokenId>> {
        let mut sink = self.sink();
        write(&mut sink);
        sink.take()
    }

    /// The ids of `text`; added tokens in it are matched only with `control`.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn encode(&self, text: &str, control: bool) -> Result<Vec<TokenId>> {
        let mut ids = Vec::new();
        self.vocabulary.encoder.encode(text, control, &mut ids)?;
        Ok(ids)
    }

    /// The same by the reference tokenizer.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn encode_reference(&self, text: &str, control: bool) -> Result<Vec<TokenId>> {
        let mut ids = Vec::new();
        self.vocabulary.reference.encode(text, control, &mut ids)?;
        Ok(ids)
    }

    /// The text of `ids`, added tokens as their own text.
    ///
    /// # Errors
    /// `invalid_value` for an id that the vocabulary does not have.
    pub fn decode(&self, ids: &[TokenId]) -> Result<String> {
        detokenize::decode(&self.vocabulary.pieces, ids)
    }

    /// What a model of this family would sample for `answer`.
    ///
    /// # Errors
    /// `unsupported_parameter` for reasoning in a family that has none.
    pub fn encode_answer(&self, answer: &Answer) -> Result<Vec<TokenId>> {
        let mut sink = self.sink();
        self.family.answer(answer, &mut sink)?;
        sink.take()
    }
}
