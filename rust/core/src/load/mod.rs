//! From what people have on disk to a [`Source`]: vocabulary, template and options.

use std::path::Path;
use std::sync::Arc;

use crate::error::Result;
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

pub mod gguf;
pub mod hf;
mod ranks;
mod spm;

/// What a model's files say, before a family is chosen for it.
#[derive(Clone)]
pub struct Source {
    /// A name for people: the folder's or the GGUF's own.
    pub name: String,
    /// Encoder, pieces and added tokens.
    pub vocabulary: Arc<Vocabulary>,
    /// The chat template's text.
    pub template: String,
    /// `bos_token` as the template sees it; empty when there is none.
    pub bos_token: String,
    /// `eos_token` as the template sees it; empty when there is none.
    pub eos_token: String,
    /// Ids that end a turn: `eos_token_id` of `generation_config.json`, `config.json`,
    /// the tokenizer's own, or the GGUF's `eos`/`eot`/`eom`. Sorted, no duplicates.
    pub stop_token_ids: Vec<TokenId>,
    /// Texts that end a turn: `stop_strings` of `generation_config.json`.
    pub stop_strings: Arc<[String]>,
    /// Trained context length in tokens, where the files say it.
    pub context_length: Option<usize>,
}

impl Source {
    /// Of a Hugging Face folder, or of a GGUF. `verdicts` is a directory for kept verdicts on encoders;
    /// see [`choose()`](crate::tokenizer::choose()).
    ///
    /// # Errors
    /// As [`hf::load`] and [`gguf::load`].
    pub fn load(path: &Path, verdicts: Option<&Path>) -> Result<Self> {
        if path.is_dir() { hf::load_with(path, verdicts) } else { gguf::load_with(path, verdicts) }
    }
}
