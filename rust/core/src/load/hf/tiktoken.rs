//! tiktoken's ranks (`tiktoken.model` or `*.tiktoken`: base64 and a rank on each line).
//!
//! Such a file names neither its pattern nor its control tokens. Those are in the Python beside it, so
//! only vocabularies are read whose code is known, by the class that `tokenizer_config.json` names, or
//! by the file's own name where it is one of OpenAI's. `fastokens` keeps the patterns.

use std::collections::{BTreeMap, HashSet};

use fastokens::tiktoken::{
    CL100K_BASE_PATTERN, KIMI_PATTERN, KIMI_RESERVED_SPECIAL_TOKENS, O200K_BASE_PATTERN,
    QWEN2_PATTERN,
};
use serde_json::{Value, json};

use super::present;
use super::vocabulary::Read;
use crate::load::ranks::Ranks;
use crate::token::TokenId;
use crate::tokenizer::{AddedToken, Chunks};

/// Qwen's code numbers its control tokens from the end of the ranks: these, then `<|extra_0|>` and on.
const QWEN_NAMED: &[&str] = &["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const QWEN_EXTRAS: usize = 205;

/// Kimi's `additional_special_tokens`, where `tokenizer_config.json` has none.
const KIMI_CHAT: &[&str] = &[
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "[EOT]",
    "<|im_system|>",
    "<|im_middle|>",
];

/// A vocabulary whose code is known.
#[derive(Clone, Copy)]
enum Family {
    /// Moonshot's Kimi, `tokenization_kimi.TikTokenTokenizer`.
    Kimi,
    /// The first Qwen, `tokenization_qwen.QWenTokenizer`.
    Qwen,
    /// OpenAI's file of this name, with the control tokens of `added_tokens_decoder`.
    OpenAi(&'static str),
}

impl Family {
    /// By what the folder says. The class alone does not tell: Kimi's has a name that others use too.
    fn of(config: &Value, file: &str) -> Read<Self> {
        let code = present(config, "auto_map").and_then(|map| present(map, "AutoTokenizer"));
        let code = code.and_then(|code| code.as_str().or_else(|| code.get(0)?.as_str()));
        // `owner/model--module.Class` names code in another repository.
        let code = code.map(|code| code.rsplit("--").next().unwrap_or(code));
        let class = present(config, "tokenizer_class").and_then(Value::as_str);
        match (code, class, file) {
            (Some("tokenization_kimi.TikTokenTokenizer"), _, _) => Ok(Self::Kimi),
            (Some("tokenization_qwen.QWenTokenizer"), _, _) | (None, Some("QWenTokenizer"), _) => {
                Ok(Self::Qwen)
            }
            (_, _, "cl100k_base.tiktoken") => Ok(Self::OpenAi(CL100K_BASE_PATTERN)),
            (_, _, "o200k_base.tiktoken") => Ok(Self::OpenAi(O200K_BASE_PATTERN)),
            _ => Err(format!(
                "it does not say how text is split into words, and the code that does ({} in \
                 tokenizer_config.json) is not known; known: tokenization_kimi.TikTokenTokenizer, \
                 tokenization_qwen.QWenTokenizer, and files named cl100k_base.tiktoken and \
                 o200k_base.tiktoken",
                code.or(class).map_or_else(
                    || "neither 'auto_map' nor 'tokenizer_class'".to_owned(),
                    |name| format!("'{name}'")
                )
            )),
        }
    }

    fn pattern(self) -> &'static str {
        match self {
            Self::Kimi => KIMI_PATTERN,
            Self::Qwen => QWEN2_PATTERN,
            Self::OpenAi(pattern) => pattern,
        }
    }

    /// The control tokens by id. `named` are those of `added_tokens_decoder`.
    fn specials(self, ranks: usize, named: &BTreeMap<usize, String>) -> BTreeMap<usize, String> {
        match self {
            Self::Kimi => {
                let end = ranks + KIMI_RESERVED_SPECIAL_TOKENS as usize;
                let reserved = (ranks..end).map(|id| (id, format!("<|reserved_token_{id}|>")));
                let named = named.range(ranks..end).map(|(&id, name)| (id, name.clone()));
                reserved.chain(named).collect()
            }
            Self::Qwen => {
                let named = QWEN_NAMED.iter().map(|&name| name.to_owned());
                let extras = (0..QWEN_EXTRAS).map(|number| format!("<|extra_{number}|>"));
                (ranks..).zip(named.chain(extras)).collect()
            }
            Self::OpenAi(_) => named.clone(),
        }
    }

    fn normalizer(self) -> Value {
        match self {
            Self::Qwen => json!({"type": "NFC"}),
            Self::Kimi | Self::OpenAi(_) => Value::Null,
        }
    }

    /// Kimi's code cuts long texts. Through `transformers` it gets the stretches between the tokens that
    /// `tokenizer_config.json` names outside `added_tokens_decoder`.
    fn chunks(self, config: &Value) -> Option<Chunks> {
        let Self::Kimi = self else { return None };
        let text = |token: &Value| {
            let content = token.as_str().or_else(|| token.get("content")?.as_str());
            content.map(str::to_owned)
        };
        let roles = ["bos_token", "eos_token", "unk_token", "pad_token"].into_iter();
        let mut restarts: HashSet<String> =
            roles.filter_map(|role| config.get(role).and_then(text)).collect();
        match present(config, "additional_special_tokens").and_then(Value::as_array) {
            Some(tokens) => restarts.extend(tokens.iter().filter_map(text)),
            None => restarts.extend(KIMI_CHAT.iter().map(|&name| name.to_owned())),
        }
        Some(Chunks::new(restarts))
    }
}

/// The ranks in `text`, a file of this name, as a `tokenizer.json`, and where long texts are cut.
pub(super) fn tokenizer_json(
    text: &[u8],
    file: &str,
    config: &Value,
) -> Read<(Value, Option<Chunks>)> {
    let family = Family::of(config, file)?;
    let ranks = Ranks::new(by_rank(text)?)?;
    let mut named = BTreeMap::new();
    let entries = present(config, "added_tokens_decoder").and_then(Value::as_object);
    for (id, entry) in entries.into_iter().flatten() {
        let content = entry.get("content").and_then(Value::as_str);
        let (Ok(id), Some(content)) = (id.parse::<TokenId>(), content) else {
            return Err(format!("'{id}' of added_tokens_decoder is not an added token"));
        };
        named.insert(id as usize, content.to_owned());
    }
    let mut specials = Vec::new();
    for (id, name) in family.specials(ranks.len(), &named) {
        let id = TokenId::try_from(id).map_err(|_| "it has too many tokens".to_owned())?;
        specials.push(AddedToken::plain(id, name, true));
    }
    let json = ranks.tokenizer_json(0, &specials, family.pattern(), &family.normalizer())?;
    Ok((json, family.chunks(config)))
}

/// The tokens in order of rank.
fn by_rank(text: &[u8]) -> Read<Vec<Vec<u8>>> {
    let text = std::str::from_utf8(text).map_err(|_| "not text".to_owned())?;
    let mut tokens = Vec::new();
    for (line, number) in text.lines().zip(1_usize..).filter(|(line, _)| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (Some(token), Some(rank), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("line {number} is not a token and its rank"));
        };
        let token = base64::decode(token).map_err(|error| format!("line {number}: {error}"))?;
        let rank =
            rank.parse::<usize>().map_err(|_| format!("line {number}: '{rank}' is no rank"))?;
        tokens.push((rank, token));
    }
    tokens.sort_unstable();
    if let Some((expected, (rank, _))) =
        tokens.iter().enumerate().find(|(at, (rank, _))| at != rank)
    {
        return Err(format!("the rank {} is there twice or not at all", expected.min(*rank)));
    }
    Ok(tokens.into_iter().map(|(_, token)| token).collect())
}
