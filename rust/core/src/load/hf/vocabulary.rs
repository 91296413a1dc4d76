//! Which file of a folder is its vocabulary.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{read, refuse, sentencepiece, tekken, tiktoken};
use crate::error::{Error, Result};
use crate::tokenizer::Definition;

const TOKENIZER: &str = "tokenizer.json";
const TEKKEN: &str = "tekken.json";
const RANKS: &str = "tiktoken.model";
const RANKS_EXTENSION: &str = "tiktoken";
const SENTENCE_PIECE: &str = "tokenizer.model";

/// A result whose error is a sentence about one file, which the caller names.
pub(super) type Read<T> = std::result::Result<T, String>;

/// A vocabulary, and what its own file says about the ends of a text.
pub(super) struct Found {
    pub(super) definition: Definition,
    /// BOS and EOS, where the file names them; empty otherwise.
    pub(super) bos_token: String,
    pub(super) eos_token: String,
}

impl Found {
    fn new(definition: Definition, bos_token: &str, eos_token: &str) -> Self {
        Self { definition, bos_token: bos_token.to_owned(), eos_token: eos_token.to_owned() }
    }
}

/// The first of `tokenizer.json`, `tekken.json`, tiktoken's ranks and `tokenizer.model` that is there.
pub(super) fn find(folder: &Path, config: &Value) -> Result<Found> {
    let name = |file: &str| folder.join(file).display().to_string();
    if let Some(text) = read(folder, TOKENIZER)? {
        return Ok(Found::new(Definition::from_text(name(TOKENIZER), text)?, "", ""));
    }
    if let Some(text) = read(folder, TEKKEN)? {
        let json = tekken::tokenizer_json(&text).map_err(|reason| refuse(TEKKEN, reason))?;
        return Ok(Found::new(Definition::from_value(name(TEKKEN), json)?, "<s>", "</s>"));
    }
    let ranks = ranks_file(folder)?;
    if let Some(text) = read(folder, &ranks)? {
        let (json, chunks) = tiktoken::tokenizer_json(&text, &ranks, config)
            .map_err(|reason| refuse(&ranks, reason))?;
        let definition = Definition::from_value(name(&ranks), json)?.with_chunks(chunks);
        return Ok(Found::new(definition, "", ""));
    }
    if let Some(bytes) = read(folder, SENTENCE_PIECE)? {
        let (json, bos, eos) = sentencepiece::tokenizer_json(&bytes, config)
            .map_err(|reason| refuse(SENTENCE_PIECE, reason))?;
        return Ok(Found::new(Definition::from_value(name(SENTENCE_PIECE), json)?, &bos, &eos));
    }
    Err(Error::profile(format!(
        "{}: no vocabulary: neither {TOKENIZER} nor {TEKKEN}, {RANKS}, *.{RANKS_EXTENSION} or \
         {SENTENCE_PIECE} is there",
        folder.display()
    )))
}

/// The name of the file with ranks; `tiktoken.model` also where there is none.
fn ranks_file(folder: &Path) -> Result<String> {
    if folder.join(RANKS).exists() {
        return Ok(RANKS.to_owned());
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let ranks = entries.filter(|path| path.extension().is_some_and(|e| e == RANKS_EXTENSION));
    let mut names: Vec<String> =
        ranks.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
    names.sort_unstable();
    match names.as_slice() {
        [] => Ok(RANKS.to_owned()),
        [name] => Ok(name.clone()),
        several => Err(Error::profile(format!(
            "{}: which of {} is the vocabulary is not said",
            folder.display(),
            several.join(", ")
        ))),
    }
}
