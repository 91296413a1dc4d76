//! Mistral's `tekken.json`: a pattern, special tokens, and bytes in order of rank behind them.
//!
//! `mistral-common` 1.13.1 is the rule. There a text never holds a special token; ids come from what is
//! said about a message. That is what `trust = "strict"` does.

use serde::Deserialize;
use serde_json::Value;

use super::vocabulary::Read;
use crate::load::ranks::Ranks;
use crate::token::TokenId;
use crate::tokenizer::AddedToken;

/// What a file without a list has, up to the version v7.
const UNLISTED: &[&str] = &[
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
const VERSIONS_WITHOUT_LIST: &[&str] = &["v1", "v2", "v3", "v7"];

/// More special tokens than this are refused before a table is made for them.
const SPECIAL_LIMIT: usize = 1 << 16;

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
    version: String,
}

#[derive(Deserialize)]
struct Token {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// A tekken file as a `tokenizer.json`.
pub(super) fn tokenizer_json(text: &[u8]) -> Read<Value> {
    let file: File = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let count = file.config.default_num_special_tokens;
    let specials = specials(file.special_tokens, &file.config.version, count)?;
    let kept = file.config.default_vocab_size.checked_sub(count);
    let kept = kept.filter(|&kept| kept <= file.vocab.len()).ok_or_else(|| {
        format!(
            "'default_vocab_size' is {}, with {count} special tokens and {} others",
            file.config.default_vocab_size,
            file.vocab.len()
        )
    })?;
    let mut tokens = Vec::with_capacity(kept);
    for (rank, token) in file.vocab.into_iter().take(kept).enumerate() {
        if token.rank != rank {
            return Err(format!("the token {rank} of 'vocab' has the rank {}", token.rank));
        }
        let bytes = base64::decode(&token.token_bytes)
            .map_err(|error| format!("the token of rank {rank}: {error}"))?;
        tokens.push(bytes);
    }
    Ranks::new(tokens)?.tokenizer_json(count, &specials, &file.config.pattern, &Value::Null)
}

/// The special tokens by id; those without a name are `<SPECIAL_20>` and so on.
fn specials(listed: Option<Vec<Special>>, version: &str, count: usize) -> Read<Vec<AddedToken>> {
    if count > SPECIAL_LIMIT {
        return Err(format!("it has {count} special tokens"));
    }
    let mut names: Vec<String> = match listed {
        Some(listed) => {
            if let Some((at, token)) = listed.iter().enumerate().find(|&(at, t)| t.rank != at) {
                return Err(format!("the special token {at} has the rank {}", token.rank));
            }
            listed.into_iter().map(|token| token.token_str).collect()
        }
        None if VERSIONS_WITHOUT_LIST.contains(&version) => {
            UNLISTED.iter().map(|&name| name.to_owned()).collect()
        }
        None => return Err(format!("it lists no 'special_tokens', as version {version} must")),
    };
    if names.len() > count {
        return Err(format!("it names {} special tokens, and has {count}", names.len()));
    }
    names.extend((names.len()..count).map(|id| format!("<SPECIAL_{id}>")));
    let ids = 0 as TokenId..;
    Ok(ids.zip(names).map(|(id, name)| AddedToken::plain(id, name, true)).collect())
}
