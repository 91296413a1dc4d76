//! A `tokenizer.json`, checked before any encoder sees it.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;

use super::pieces::Spelling;
use super::{AddedToken, Chunks, Piece};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Ids at or above this are refused: tables are indexed by id, so one absurd id would ask for
/// gigabytes. The largest published vocabularies have fewer than 2^18 entries.
const ID_LIMIT: usize = 1 << 22;

/// The content of a `tokenizer.json`, from a file or built from a GGUF.
pub struct Definition {
    /// Named in errors.
    name: String,
    value: Value,
    /// `value` as text: what the reference encoder reads, and what the fingerprint covers.
    text: Vec<u8>,
    added: Vec<AddedToken>,
    /// Highest id, plus one.
    size: usize,
    chunks: Option<Chunks>,
}

/// One entry of `added_tokens`, or of `added_tokens_decoder` in `tokenizer_config.json`.
#[derive(Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "the flags of tokenizer.json, by their names")]
struct Entry {
    content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl Entry {
    fn with_id(self, id: TokenId) -> AddedToken {
        AddedToken {
            id,
            content: self.content,
            lstrip: self.lstrip,
            rstrip: self.rstrip,
            single_word: self.single_word,
            normalized: self.normalized,
            special: self.special,
        }
    }
}

impl Definition {
    /// Parses a `tokenizer.json`. `name` names the file in errors.
    ///
    /// # Errors
    /// [`Profile`](crate::ErrorKind::Profile): not JSON, no vocabulary, ids out of range, or two
    /// added tokens with one id or one content.
    pub fn from_text(name: impl Into<String>, text: Vec<u8>) -> Result<Self> {
        let name = name.into();
        let value: Value = serde_json::from_slice(&text)
            .map_err(|error| Error::profile(format!("{name}: not JSON: {error}")))?;
        Self::checked(name, value, text)
    }

    /// A `tokenizer.json` built here, or changed.
    ///
    /// # Errors
    /// As [`Definition::from_text`].
    pub fn from_value(name: impl Into<String>, value: Value) -> Result<Self> {
        let text = serde_json::to_vec(&value).map_err(|error| {
            Error::invariant("a JSON value cannot be written").with_source(error)
        })?;
        Self::checked(name.into(), value, text)
    }

    fn checked(name: String, value: Value, text: Vec<u8>) -> Result<Self> {
        let refuse = |detail: String| Error::profile(format!("{name}: {detail}"));
        if !value.is_object() {
            return Err(refuse("not a JSON object".to_owned()));
        }
        let entries = match value.get("added_tokens") {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err(refuse("'added_tokens' is not a list".to_owned())),
        };
        let mut added = Vec::with_capacity(entries.len());
        for entry in entries {
            let id =
                entry.get("id").and_then(Value::as_u64).and_then(|id| TokenId::try_from(id).ok());
            let (Some(id), Ok(entry)) = (id, Entry::deserialize(entry)) else {
                return Err(refuse(format!("not an added token: {entry}")));
            };
            added.push(entry.with_id(id));
        }
        added.sort_by_key(|token| token.id);
        let mut contents = HashSet::new();
        for (index, token) in added.iter().enumerate() {
            if index > 0 && added.get(index - 1).is_some_and(|before| before.id == token.id) {
                return Err(refuse(format!("two added tokens have the id {}", token.id)));
            }
            if token.content.is_empty() {
                return Err(refuse(format!("the added token {} is empty", token.id)));
            }
            if !contents.insert(token.content.as_str()) {
                return Err(refuse(format!("two added tokens read '{}'", token.content)));
            }
        }
        let mut size = added.last().map_or(0, |token| token.id as usize + 1);
        let mut count = 0;
        for (token, id) in entries_of(&value).ok_or_else(|| {
            refuse("'model.vocab' is neither an object nor a list of pairs".to_owned())
        })? {
            let Some(id) = id.filter(|&id| id < ID_LIMIT) else {
                return Err(refuse(format!("the token '{token}' has no usable id")));
            };
            size = size.max(id + 1);
            count += 1;
        }
        if count == 0 {
            return Err(refuse("'model.vocab' is empty".to_owned()));
        }
        if size > ID_LIMIT {
            return Err(refuse(format!("an id is {ID_LIMIT} or more")));
        }
        Ok(Self { name, value, text, added, size, chunks: None })
    }

    /// Merges `added_tokens_decoder` of a `tokenizer_config.json`, as `transformers` does: a
    /// token that is missing is added, and the flags of the configuration win.
    ///
    /// # Errors
    /// [`Profile`](crate::ErrorKind::Profile): an entry is malformed, or gives an id another
    /// content (or a content another id) than `tokenizer.json` does.
    pub fn with_added_tokens_decoder(self, entries: &Value) -> Result<Self> {
        const WHERE: &str = "tokenizer_config.json: added_tokens_decoder";
        let Value::Object(entries) = entries else {
            return Err(Error::profile(format!("{WHERE} is not an object")));
        };
        let mut added = self.added.clone();
        let by_id: HashMap<TokenId, usize> =
            added.iter().enumerate().map(|(index, token)| (token.id, index)).collect();
        let by_content: HashMap<String, TokenId> =
            added.iter().map(|token| (token.content.clone(), token.id)).collect();
        let mut changed = false;
        for (key, entry) in entries {
            let (Ok(id), Ok(entry)) = (key.parse::<TokenId>(), Entry::deserialize(entry)) else {
                return Err(Error::profile(format!("{WHERE}: '{key}' is not an added token")));
            };
            let token = entry.with_id(id);
            if let Some(&other) = by_content.get(&token.content).filter(|&&other| other != id) {
                return Err(Error::profile(format!(
                    "{WHERE}: '{}' has the id {id}, and {other} in {}",
                    token.content, self.name
                )));
            }
            match by_id.get(&id).and_then(|&index| added.get_mut(index)) {
                Some(known) if known.content != token.content => {
                    return Err(Error::profile(format!(
                        "{WHERE}: the id {id} is '{}', and '{}' in {}",
                        token.content, known.content, self.name
                    )));
                }
                Some(known) if *known == token => {}
                Some(known) => {
                    *known = token;
                    changed = true;
                }
                None => {
                    added.push(token);
                    changed = true;
                }
            }
        }
        if !changed {
            return Ok(self);
        }
        added.sort_by_key(|token| token.id);
        let mut value = self.value;
        if let Some(object) = value.as_object_mut() {
            let list = added.iter().map(to_json).collect();
            object.insert("added_tokens".to_owned(), Value::Array(list));
        }
        Ok(Self::from_value(self.name, value)?.with_chunks(self.chunks))
    }

    /// The same vocabulary with a rule for long texts, which `tokenizer.json` has no words for.
    #[must_use]
    pub fn with_chunks(self, chunks: Option<Chunks>) -> Self {
        Self { chunks, ..self }
    }

    /// The name given at construction.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The `tokenizer.json` that the encoders read.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The added tokens, in order of id.
    #[must_use]
    pub fn added(&self) -> &[AddedToken] {
        &self.added
    }

    /// The id of the token that reads exactly so: an added token, else one of the model's.
    #[must_use]
    pub fn id_of(&self, token: &str) -> Option<TokenId> {
        let added = self.added.iter().find(|known| known.content == token).map(|known| known.id);
        added.or_else(|| {
            let entries = entries_of(&self.value).into_iter().flatten();
            let id = entries.filter(|&(known, _)| known == token).find_map(|(_, id)| id);
            id.and_then(|id| TokenId::try_from(id).ok())
        })
    }

    /// A top-level section, where it is there and not null.
    pub(super) fn section(&self, name: &str) -> Option<&Value> {
        self.value.get(name).filter(|section| !section.is_null())
    }

    /// The bytes of every id, indexed by id.
    ///
    /// # Errors
    /// [`Profile`](crate::ErrorKind::Profile): the decoder is not supported, or two tokens share
    /// an id.
    pub(super) fn pieces(&self) -> Result<Vec<Piece>> {
        let refuse = |detail: &str| Error::profile(format!("{}: {detail}", self.name));
        let spelling = Spelling::from_decoder(self.section("decoder"))
            .map_err(|error| refuse(error.detail()))?;
        let mut pieces = vec![Piece::Unknown; self.size];
        for (token, id) in entries_of(&self.value).into_iter().flatten() {
            match id.and_then(|id| pieces.get_mut(id)) {
                Some(piece @ Piece::Unknown) => {
                    *piece = Piece::Bytes(spelling.bytes(token).into_boxed_slice());
                }
                _ => return Err(refuse(&format!("the id of '{token}' is taken"))),
            }
        }
        for token in &self.added {
            if let Some(piece) = pieces.get_mut(token.id as usize) {
                let text = if token.special {
                    token.content.clone()
                } else {
                    spelling.added_text(&token.content)
                };
                *piece = Piece::Added(text.into_boxed_str(), token.special);
            }
        }
        Ok(pieces)
    }

    /// The rule for long texts.
    pub(super) fn chunks(&self) -> Option<&Chunks> {
        self.chunks.as_ref()
    }

    /// blake3 of the text that the encoders read, and of the rule for long texts.
    pub(super) fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.text);
        for restart in self.chunks.iter().flat_map(Chunks::restarts) {
            hasher.update(&[0]).update(restart.as_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// The parsed value and its text, for the encoders.
    pub(super) fn into_parts(self) -> (Value, Vec<u8>) {
        (self.value, self.text)
    }
}

/// An added token as `tokenizer.json` writes it.
pub(crate) fn to_json(token: &AddedToken) -> Value {
    serde_json::json!({
        "id": token.id,
        "content": token.content,
        "single_word": token.single_word,
        "lstrip": token.lstrip,
        "rstrip": token.rstrip,
        "normalized": token.normalized,
        "special": token.special,
    })
}

type Entries<'a> = Box<dyn Iterator<Item = (&'a str, Option<usize>)> + 'a>;

/// `model.vocab` as pairs of token and id: an object of ids (BPE), or a list whose index is the
/// id (Unigram). None for any other shape; an id that is not a number is None.
fn entries_of(value: &Value) -> Option<Entries<'_>> {
    match value.get("model")?.get("vocab")? {
        Value::Object(vocab) => Some(Box::new(vocab.iter().map(|(token, id)| {
            (token.as_str(), id.as_u64().and_then(|id| usize::try_from(id).ok()))
        }))),
        Value::Array(vocab) => Some(Box::new(vocab.iter().enumerate().map(|(id, pair)| {
            let token = pair.get(0).and_then(Value::as_str);
            (token.unwrap_or_default(), token.map(|_| id))
        }))),
        _ => None,
    }
}
