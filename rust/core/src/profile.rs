//! One model as the core sees it: vocabulary, format, and what ends a turn.

use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use crate::detokenize;
use crate::error::{Error, Result};
use crate::family::generic::{Generic, Template};
use crate::family::render::{IdSink, Sink};
use crate::family::{Answer, Family, Format, Renderer, native};
use crate::load::Source;
use crate::token::TokenId;
use crate::tokenizer::{Piece, Place, Vocabulary};

/// Whether text may spell control tokens (D2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Trust {
    /// Content is encoded with added-token matching off: nobody can forge a control token.
    #[default]
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

/// What becomes of earlier reasoning in history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum History {
    /// What the template does with it when nobody says anything.
    #[default]
    Template,
    /// It stays, by the template's own switch: no question rewrites the prompt.
    Retain,
}

impl History {
    /// The setting's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Retain => "retain",
        }
    }
}

impl FromStr for History {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        match word {
            "template" => Ok(Self::Template),
            "retain" => Ok(Self::Retain),
            other => {
                Err(Error::profile(format!("history is 'template' or 'retain', not '{other}'")))
            }
        }
    }
}

/// What a profile's owner chooses of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Options {
    /// Whether text may spell control tokens.
    pub trust: Trust,
    /// What becomes of earlier reasoning.
    pub history: History,
}

impl Options {
    /// By the settings' words.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] for others.
    pub fn parse(trust: &str, history: &str) -> Result<Self> {
        Ok(Self { trust: trust.parse()?, history: history.parse()? })
    }
}

/// A model's tokenizer, template and family. Immutable; share it in an `Arc`.
pub struct Profile {
    source: Source,
    renderer: Renderer,
    /// Why no native renderer serves; none where one does.
    not_native: Option<String>,
    /// Why the native renderer serves no longer.
    distrusted: OnceLock<String>,
    options: Options,
    stop_token_ids: Vec<TokenId>,
    fingerprint: [u8; 32],
}

impl Profile {
    /// From a Hugging Face folder, or from a GGUF's metadata (its tensors are not read). `verdicts` is
    /// a directory in which it is remembered that the fast encoder of a vocabulary has passed its probe,
    /// which saves loading the reference (D6).
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`].
    pub fn load(path: &Path, options: Options, verdicts: Option<&Path>) -> Result<Self> {
        Self::new(Source::load(path, verdicts)?, options)
    }

    /// Chooses the renderer by what the template prints: a family's own where it prints the same and
    /// prompts may be cut at its control tokens, else the template itself.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] when the template cannot be run at all, or cannot be made to keep
    /// the reasoning that is to be kept.
    pub fn new(source: Source, options: Options) -> Result<Self> {
        let compat = options.trust == Trust::Compat;
        let mut template =
            Template::new(&source.template, &source.bos_token, &source.eos_token, !compat)?;
        if options.history == History::Retain {
            template.keep_reasoning();
        }
        let vocabulary = source.vocabulary.as_ref();
        let generic = Generic::learn(template, vocabulary, compat)?;
        if options.history == History::Retain && !generic.keeps_reasoning() {
            return Err(Error::profile(
                "history is 'retain', but this model's chat template takes earlier reasoning out, and has no \
                 switch against that",
            ));
        }
        let (native, not_native) = match native::choose(&generic, vocabulary, compat) {
            Ok(family) => (Some(family), None),
            Err(reason) => (None, Some(format!("{reason:#}"))),
        };
        let renderer = Renderer { native, generic };
        let mut stop_token_ids = source.stop_token_ids.clone();
        // A template's own close ends a turn only where the files name no stop token: harmony closes
        // messages within a turn.
        if not_native.is_none() || stop_token_ids.is_empty() {
            stop_token_ids.extend(renderer.format().stop_ids());
        }
        stop_token_ids.sort_unstable();
        stop_token_ids.dedup();

        let mut hasher = blake3::Hasher::new();
        for part in [
            env!("CARGO_PKG_VERSION").as_bytes(),
            &source.vocabulary.fingerprint,
            source.template.as_bytes(),
            source.bos_token.as_bytes(),
            source.eos_token.as_bytes(),
            source.stop_strings.join("\0").as_bytes(),
            renderer.format().name().as_bytes(),
            options.trust.as_str().as_bytes(),
            options.history.as_str().as_bytes(),
        ] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let fingerprint = *hasher.finalize().as_bytes();
        Ok(Self {
            source,
            renderer,
            not_native,
            distrusted: OnceLock::new(),
            options,
            stop_token_ids,
            fingerprint,
        })
    }

    /// The same vocabulary under another template, or other options.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_template(&self, template: &str, options: Options) -> Result<Self> {
        Self::new(Source { template: template.to_owned(), ..self.source.clone() }, options)
    }

    /// The model's own name for itself.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.source.name
    }

    /// Who renders its prompts.
    #[must_use]
    pub fn renderer(&self) -> &Renderer {
        &self.renderer
    }

    /// What its output is read with.
    #[must_use]
    pub fn format(&self) -> &dyn Format {
        self.renderer.format()
    }

    /// Why no native renderer serves it; none where one does.
    #[must_use]
    pub fn not_native(&self) -> Option<&str> {
        self.not_native.as_deref().or(self.distrusted.get().map(String::as_str))
    }

    /// The native renderer that serves.
    #[must_use]
    pub fn native(&self) -> Option<&dyn Family> {
        self.renderer.native.as_deref().filter(|_| self.distrusted.get().is_none())
    }

    /// From now on the template itself renders every prompt (D6). What was rendered until then goes on
    /// from where the two part.
    pub fn distrust(&self, reason: String) {
        let _ = self.distrusted.set(reason);
    }

    /// The vocabulary and its encoders.
    #[must_use]
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.source.vocabulary
    }

    /// Whether text may spell control tokens.
    #[must_use]
    pub fn trust(&self) -> Trust {
        self.options.trust
    }

    /// Ids that end a turn, sorted.
    #[must_use]
    pub fn stop_token_ids(&self) -> &[TokenId] {
        &self.stop_token_ids
    }

    /// Texts that end a turn; none where the files name none.
    #[must_use]
    pub fn stop_strings(&self) -> Option<Arc<[String]>> {
        Some(&self.source.stop_strings).filter(|strings| !strings.is_empty()).map(Arc::clone)
    }

    /// Trained context, in tokens, where the files say it.
    #[must_use]
    pub fn context_length(&self) -> Option<usize> {
        self.source.context_length
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
            .and_then(|index| self.source.vocabulary.pieces.get(index))
            .unwrap_or(&Piece::Unknown)
    }

    /// A sink for one render.
    #[must_use]
    pub fn sink(&self) -> IdSink<'_> {
        IdSink::new(&self.source.vocabulary, self.options.trust == Trust::Compat)
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
        self.source.vocabulary.encode_run(text, Place::Start, control, &mut ids)?;
        Ok(ids)
    }

    /// The same by the reference tokenizer.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn encode_reference(&self, text: &str, control: bool) -> Result<Vec<TokenId>> {
        let mut ids = Vec::new();
        let vocabulary = &self.source.vocabulary;
        let reference = vocabulary.reference.as_ref();
        vocabulary.runs.encode((reference, reference), text, Place::Start, control, &mut ids)?;
        Ok(ids)
    }

    /// The text of `ids`, added tokens as their own text.
    ///
    /// # Errors
    /// `invalid_value` for an id that the vocabulary does not have.
    pub fn decode(&self, ids: &[TokenId]) -> Result<String> {
        detokenize::decode(&self.source.vocabulary.pieces, ids)
    }

    /// What a model of this family would sample for `answer`.
    ///
    /// # Errors
    /// `unsupported_parameter` for reasoning in a family that has none.
    pub fn encode_answer(&self, answer: &Answer) -> Result<Vec<TokenId>> {
        let mut sink = self.sink();
        self.format().answer(answer, &mut sink)?;
        sink.take()
    }
}
