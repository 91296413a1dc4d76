//! The reference encoder: Hugging Face `tokenizers`, the library that defines `tokenizer.json`.

use std::collections::HashMap;
use std::sync::OnceLock;

use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
    tokenizer::normalizer::Range,
};

use super::{AddedToken, Encoder};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// `tokenizers` over one `tokenizer.json`.
///
/// Truncation, padding and the post-processor of the file never apply: a prompt is never cut or
/// padded, and its BOS is the family's business.
pub struct HfEncoder {
    tokenizer: Tokenizer,
}

impl HfEncoder {
    /// Loads a `tokenizer.json` and checks that its added tokens get the ids it gives them.
    ///
    /// # Errors
    /// [`Profile`](crate::ErrorKind::Profile): `tokenizers` cannot read the file, or numbers an
    /// added token otherwise than the file does (it looks ids up by content and counts on from
    /// the vocabulary), or would panic on some text, or would take either of two added tokens for
    /// one text.
    pub fn load(name: &str, json: &[u8], added: &[AddedToken]) -> Result<Self> {
        let mut tokenizer = Tokenizer::from_bytes(json)
            .map_err(|error| Error::profile(format!("{name}: {error}")).with_source(error))?;
        for token in added {
            let id = tokenizer.token_to_id(&token.content);
            if id != Some(token.id) {
                return Err(Error::profile(format!(
                    "{name}: the added token '{}' has the id {}, but `tokenizers` gives it {id:?}",
                    token.content, token.id
                )));
            }
        }
        if let Some((strips, blank)) = bad_split(added) {
            return Err(Error::profile(format!(
                "{name}: `tokenizers` fails on texts with the added token '{strips}', which \
                 swallows white space after it, before '{blank}', which begins with white space"
            )));
        }
        if let Some((first, second)) = twins(&tokenizer, added) {
            return Err(Error::profile(format!(
                "{name}: the added tokens '{first}' and '{second}' are the same text when \
                 normalized, and `tokenizers` takes either"
            )));
        }
        tokenizer
            .with_truncation(None)
            .map_err(|error| Error::profile(format!("{name}: {error}")).with_source(error))?;
        tokenizer.with_padding(None);
        Ok(Self { tokenizer })
    }

    /// Encodes through the pipeline behind the added-token scan, so that no text can reach an
    /// added token. Equal to `tokenizers` over the same file without its `added_tokens`.
    fn ordinary(&self, text: NormalizedString) -> tokenizers::Result<tokenizers::Encoding> {
        let mut normalized = text;
        if let Some(normalizer) = self.tokenizer.get_normalizer() {
            normalizer.normalize(&mut normalized)?;
        }
        let mut pieces = PreTokenizedString::from(normalized);
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        self.tokenizer.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
        pieces.into_encoding(None, 0, OffsetType::None)
    }
}

fn failed(error: tokenizers::Error) -> Error {
    Error::invariant("`tokenizers` failed to encode").with_source(error)
}

/// Two added tokens that make `tokenizers` 0.23.2 panic (`AddedVocabulary bad split`) where they
/// meet: the first takes the white space that the second then still matches.
fn bad_split(added: &[AddedToken]) -> Option<(&str, &str)> {
    let blank = |token: &&AddedToken| token.content.starts_with(char::is_whitespace);
    added.iter().filter(|token| token.rstrip).find_map(|strips| {
        let mut same_scan = added.iter().filter(|token| token.normalized == strips.normalized);
        same_scan.find(blank).map(|blank| (strips.content.as_str(), blank.content.as_str()))
    })
}

/// Two added tokens that are looked for as the same text; which one is found depends on the order
/// of a hash map in `tokenizers`.
fn twins<'a>(tokenizer: &Tokenizer, added: &'a [AddedToken]) -> Option<(&'a str, &'a str)> {
    let mut seen: HashMap<String, &str> = HashMap::new();
    let mut normalized = added.iter().filter(|token| token.normalized);
    normalized.find_map(|token| {
        let mut text = NormalizedString::from(token.content.as_str());
        if let Some(normalizer) = tokenizer.get_normalizer() {
            normalizer.normalize(&mut text).ok()?;
        }
        let first = seen.insert(text.get().to_owned(), &token.content)?;
        Some((first, token.content.as_str()))
    })
}

impl Encoder for HfEncoder {
    fn encode(&self, text: &str, control: bool, out: &mut Vec<TokenId>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let encoding = if control {
            self.tokenizer.encode_fast(text, false)
        } else {
            self.ordinary(text.into())
        };
        out.extend_from_slice(encoding.map_err(failed)?.get_ids());
        Ok(())
    }

    fn encode_later(&self, text: &str, out: &mut Vec<TokenId>) -> Result<()> {
        // A piece is the first when its text begins at offset 0; this one is cut out of a text with
        // a character before it.
        let whole = NormalizedString::from(format!("x{text}"));
        let piece = whole.slice(Range::Original(1..)).unwrap_or_default();
        out.extend_from_slice(self.ordinary(piece).map_err(failed)?.get_ids());
        Ok(())
    }

    fn name(&self) -> &'static str {
        "tokenizers"
    }
}

/// The reference, loaded when it is first needed: it costs about as much as everything else that
/// a profile loads, and a healthy server never calls it.
pub struct LazyReference {
    name: String,
    json: Vec<u8>,
    added: Vec<AddedToken>,
    loaded: OnceLock<std::result::Result<HfEncoder, String>>,
}

impl LazyReference {
    /// Keeps what [`HfEncoder::load`] needs.
    #[must_use]
    pub fn new(name: String, json: Vec<u8>, added: Vec<AddedToken>) -> Self {
        Self { name, json, added, loaded: OnceLock::new() }
    }

    /// Loads a reference of its own, which this one does not keep.
    ///
    /// # Errors
    /// As [`HfEncoder::load`].
    pub(super) fn fresh(&self) -> Result<HfEncoder> {
        HfEncoder::load(&self.name, &self.json, &self.added)
    }

    /// Keeps an encoder that [`LazyReference::fresh`] gave; without effect if one is loaded.
    pub(super) fn set(&self, encoder: HfEncoder) {
        let _ = self.loaded.set(Ok(encoder));
    }

    fn get(&self) -> Result<&HfEncoder> {
        let loaded =
            self.loaded.get_or_init(|| self.fresh().map_err(|error| error.detail().to_owned()));
        loaded.as_ref().map_err(|detail| {
            Error::invariant(format!("the reference tokenizer no longer loads: {detail}"))
        })
    }
}

impl Encoder for LazyReference {
    fn encode(&self, text: &str, control: bool, out: &mut Vec<TokenId>) -> Result<()> {
        self.get()?.encode(text, control, out)
    }

    fn encode_later(&self, text: &str, out: &mut Vec<TokenId>) -> Result<()> {
        self.get()?.encode_later(text, out)
    }

    fn name(&self) -> &'static str {
        "tokenizers"
    }
}
