//! A folder as Hugging Face models have it.

use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::path::Path;

use serde_json::Value;

use super::Source;
use crate::error::{Error, Result};
use crate::token::TokenId;
use crate::tokenizer::{Vocabulary, choose};

mod protobuf;
mod sentencepiece;
mod tekken;
mod tiktoken;
mod vocabulary;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const CONFIG: &str = "config.json";
const TEMPLATE_JINJA: &str = "chat_template.jinja";
const TEMPLATE_JSON: &str = "chat_template.json";

/// Reads a folder: its vocabulary (`tokenizer.json`, else `tekken.json`, else tiktoken's ranks, else
/// `SentencePiece`'s `tokenizer.model`), a chat template (`chat_template.jinja`, else
/// `chat_template.json`, else the one in `tokenizer_config.json`), and what
/// `tokenizer_config.json`, `generation_config.json` and `config.json` say, where they are there.
///
/// # Errors
/// [`Profile`](crate::ErrorKind::Profile), naming the file and the reason.
pub fn load(folder: &Path) -> Result<Source> {
    load_with(folder, None)
}

/// [`load`], with a directory for kept verdicts on encoders; see [`choose()`].
///
/// # Errors
/// As [`load`].
pub fn load_with(folder: &Path, verdicts: Option<&Path>) -> Result<Source> {
    let config = read_json(folder, TOKENIZER_CONFIG)?.unwrap_or(Value::Null);
    let found = vocabulary::find(folder, &config)?;
    let mut definition = found.definition;
    if let Some(entries) = present(&config, "added_tokens_decoder") {
        definition = definition.with_added_tokens_decoder(entries)?;
    }
    let template = template(folder, &config)?;
    let bos_token = token_text(&config, "bos_token")?.unwrap_or(found.bos_token);
    let eos_token = token_text(&config, "eos_token")?.unwrap_or(found.eos_token);
    let generation = read_json(folder, GENERATION_CONFIG)?.unwrap_or(Value::Null);
    let model = read_json(folder, CONFIG)?.unwrap_or(Value::Null);
    let model_text = present(&model, "text_config").unwrap_or(&Value::Null);

    let mut stops = Vec::new();
    if let Some(id) = (!eos_token.is_empty()).then(|| definition.id_of(&eos_token)) {
        stops.push((
            TOKENIZER_CONFIG,
            id.ok_or_else(|| {
                refuse(
                    TOKENIZER_CONFIG,
                    format!("eos_token '{eos_token}' is not in the vocabulary"),
                )
            })?,
        ));
    }
    for (file, section) in
        [(GENERATION_CONFIG, &generation), (CONFIG, &model), (CONFIG, model_text)]
    {
        stops.extend(eos_token_ids(file, section)?.into_iter().map(|id| (file, id)));
    }
    let context_length = context_length(&model)?.or(context_length(model_text)?);

    let vocabulary = choose(definition, verdicts)?;
    let stop_token_ids = checked_stops(stops, &vocabulary)?;
    Ok(Source {
        name: name_of(folder),
        vocabulary: vocabulary.into(),
        template,
        bos_token,
        eos_token,
        stop_token_ids,
        stop_strings: stop_strings(&generation)?.into(),
        context_length,
    })
}

/// The folder's own name, also where the path is `.` or ends in `..`.
fn name_of(folder: &Path) -> String {
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    real.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn refuse(file: &str, reason: impl std::fmt::Display) -> Error {
    Error::profile(format!("{file}: {reason}"))
}

/// A file's bytes; None where there is no such file.
fn read(folder: &Path, file: &str) -> Result<Option<Vec<u8>>> {
    match fs::read(folder.join(file)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
        Err(error) => {
            let path = folder.join(file);
            Err(refuse(&path.display().to_string(), &error).with_source(error))
        }
    }
}

fn read_json(folder: &Path, file: &str) -> Result<Option<Value>> {
    let Some(bytes) = read(folder, file)? else { return Ok(None) };
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| refuse(file, format!("not JSON: {error}")))?;
    if value.is_object() { Ok(Some(value)) } else { Err(refuse(file, "not a JSON object")) }
}

/// A member that is there and not null.
fn present<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

/// The chat template, by the precedence of `transformers`.
fn template(folder: &Path, config: &Value) -> Result<String> {
    if let Some(bytes) = read(folder, TEMPLATE_JINJA)? {
        return String::from_utf8(bytes).map_err(|_| refuse(TEMPLATE_JINJA, "not UTF-8"));
    }
    if let Some(file) = read_json(folder, TEMPLATE_JSON)? {
        let template = present(&file, "chat_template")
            .ok_or_else(|| refuse(TEMPLATE_JSON, "it has no 'chat_template'"))?;
        return named_template(TEMPLATE_JSON, template);
    }
    let template = present(config, "chat_template").ok_or_else(|| {
        Error::profile(format!(
            "{}: no chat template: neither {TEMPLATE_JINJA} nor {TEMPLATE_JSON} is there, and \
             {TOKENIZER_CONFIG} has none",
            folder.display()
        ))
    })?;
    named_template(TOKENIZER_CONFIG, template)
}

/// A template as text, or the one named `default` of a list of `{name, template}`.
fn named_template(file: &str, template: &Value) -> Result<String> {
    if let Some(text) = template.as_str() {
        return Ok(text.to_owned());
    }
    let Some(list) = template.as_array() else {
        return Err(refuse(file, "'chat_template' is neither text nor a list of templates"));
    };
    let mut names = Vec::new();
    for entry in list {
        let name = entry.get("name").and_then(Value::as_str);
        let text = entry.get("template").and_then(Value::as_str);
        let (Some(name), Some(text)) = (name, text) else {
            return Err(refuse(file, "'chat_template' has an entry without a name and a template"));
        };
        if name == "default" {
            return Ok(text.to_owned());
        }
        names.push(name);
    }
    Err(refuse(
        file,
        format!("'chat_template' has no template named 'default' (it has: {})", names.join(", ")),
    ))
}

/// `bos_token` or `eos_token`: text, or an object with `content`.
fn token_text(config: &Value, key: &str) -> Result<Option<String>> {
    let Some(token) = present(config, key) else { return Ok(None) };
    let text = token.as_str().or_else(|| token.get("content").and_then(Value::as_str));
    text.map(|text| Some(text.to_owned()))
        .ok_or_else(|| refuse(TOKENIZER_CONFIG, format!("'{key}' is neither text nor a token")))
}

/// `eos_token_id`: one id, or a list.
fn eos_token_ids(file: &str, section: &Value) -> Result<Vec<TokenId>> {
    let Some(value) = present(section, "eos_token_id") else { return Ok(Vec::new()) };
    let one = std::slice::from_ref(value);
    let ids = value.as_array().map_or(one, Vec::as_slice).iter();
    ids.map(|id| id.as_u64().and_then(|id| TokenId::try_from(id).ok()))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| refuse(file, format!("'eos_token_id' is neither an id nor a list: {value}")))
}

/// `stop_strings`: one text, or a list.
fn stop_strings(generation: &Value) -> Result<Vec<String>> {
    let Some(value) = present(generation, "stop_strings") else { return Ok(Vec::new()) };
    let one = std::slice::from_ref(value);
    let texts = value.as_array().map_or(one, Vec::as_slice).iter();
    let text = |text: &Value| text.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    texts.map(text).collect::<Option<_>>().ok_or_else(|| {
        refuse(GENERATION_CONFIG, format!("'stop_strings' is neither a text nor a list: {value}"))
    })
}

fn context_length(section: &Value) -> Result<Option<usize>> {
    let Some(value) = present(section, "max_position_embeddings") else { return Ok(None) };
    let length = value.as_u64().and_then(|length| usize::try_from(length).ok());
    length.filter(|&length| length > 0).map(Some).ok_or_else(|| {
        refuse(CONFIG, format!("'max_position_embeddings' is not a length: {value}"))
    })
}

fn checked_stops(stops: Vec<(&str, TokenId)>, vocabulary: &Vocabulary) -> Result<Vec<TokenId>> {
    let mut ids = Vec::with_capacity(stops.len());
    for (file, id) in stops {
        if vocabulary.pieces.len() <= id as usize {
            return Err(refuse(file, format!("the eos_token_id {id} is not in the vocabulary")));
        }
        ids.push(id);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
