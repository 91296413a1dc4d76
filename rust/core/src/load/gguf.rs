//! A GGUF file: vocabulary, template and options from its metadata.
//!
//! What llama.cpp does with the same file is the rule here, since it is the engine that serves it
//! (`llama-vocab.cpp` of llama-cpp-python 0.3.36). Byte-level BPE and `SentencePiece` are read; the
//! file's vocabulary becomes a `tokenizer.json`, so both encoders serve it like any other.

use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::Source;
use super::spm::{self, Prefix};
use crate::error::{Error, Result};
use crate::token::TokenId;
use crate::tokenizer::{AddedToken, Definition, added_token_json, byte_level_character, choose};

mod metadata;
mod pre_tokenizers;

use self::metadata::{Fault, Metadata, Read};
use self::pre_tokenizers::PreTokenizer;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const SCORES: &str = "tokenizer.ggml.scores";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const UNKNOWN_ID: &str = "tokenizer.ggml.unknown_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const BOS_ID: &str = "tokenizer.ggml.bos_token_id";
const EOS_ID: &str = "tokenizer.ggml.eos_token_id";
const EOT_ID: &str = "tokenizer.ggml.eot_token_id";
const EOM_ID: &str = "tokenizer.ggml.eom_token_id";
const TEMPLATE: &str = "tokenizer.chat_template";
const NAME: &str = "general.name";
const ARCHITECTURE: &str = "general.architecture";
const CONTEXT_LENGTH: &str = ".context_length";

/// Token types of `llama.h`.
mod token_type {
    pub(super) const NORMAL: i64 = 1;
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
    pub(super) const UNUSED: i64 = 5;
    pub(super) const BYTE: i64 = 6;
}

/// Ends of a turn that llama.cpp finds by their text where the file names none.
const TURN_ENDS: &[&str] = &["<|im_end|>", "<|eot_id|>", "<end_of_turn>"];
const MESSAGE_END: &str = "<|eom_id|>";

/// Reads a GGUF file's metadata; the tensors are not touched.
///
/// # Errors
/// [`Profile`](crate::ErrorKind::Profile), naming the file and the reason: not a GGUF file, a
/// tokenizer that is not byte-level BPE with a known pre-tokenizer, or no chat template.
pub fn load(path: &Path) -> Result<Source> {
    load_with(path, None)
}

/// [`load`], with a directory for kept verdicts on encoders; see [`choose()`].
///
/// # Errors
/// As [`load`].
pub fn load_with(path: &Path, verdicts: Option<&Path>) -> Result<Source> {
    let fault = |fault: Fault| Error::profile(format!("{}: {fault}", path.display()));
    let mut metadata = read(path).map_err(fault)?;
    let found = vocabulary(&mut metadata).map_err(fault)?;
    let template = template(&metadata, &found).map_err(fault)?;
    let context_length = context_length(&metadata).map_err(fault)?;
    let name = metadata.text(NAME).map_err(fault)?.filter(|name| !name.is_empty());
    let name = name.map_or_else(|| stem(path), str::to_owned);

    let definition = Definition::from_value(path.display().to_string(), found.json)?;
    let vocabulary = choose(definition, verdicts)?;
    Ok(Source {
        name,
        vocabulary: vocabulary.into(),
        template,
        bos_token: found.bos_token,
        eos_token: found.eos_token,
        stop_token_ids: found.stop_token_ids,
        stop_strings: Vec::new().into(),
        context_length,
    })
}

/// A GGUF's vocabulary alone, as a `tokenizer.json`: what [`load`] hands to [`choose()`]. A file
/// without a chat template has one too.
///
/// # Errors
/// As [`load`], but for the template.
pub fn definition(path: &Path) -> Result<Definition> {
    let fault = |fault: Fault| Error::profile(format!("{}: {fault}", path.display()));
    let found = read(path).and_then(|mut metadata| vocabulary(&mut metadata)).map_err(fault)?;
    Definition::from_value(path.display().to_string(), found.json)
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn read(path: &Path) -> Read<Metadata> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let wanted = |key: &str| {
        [
            TOKENS,
            TOKEN_TYPES,
            MERGES,
            MODEL,
            PRE,
            SCORES,
            ADD_SPACE_PREFIX,
            UNKNOWN_ID,
            ADD_BOS,
            ADD_EOS,
            BOS_ID,
            EOS_ID,
            EOT_ID,
            EOM_ID,
            TEMPLATE,
            NAME,
            ARCHITECTURE,
        ]
        .contains(&key)
            || key.ends_with(CONTEXT_LENGTH)
    };
    Metadata::read(BufReader::with_capacity(1 << 16, file), length, wanted)
}

/// What the tokenizer's metadata says.
struct Found {
    /// The vocabulary as a `tokenizer.json`.
    json: Value,
    bos_token: String,
    eos_token: String,
    /// Whether llama.cpp starts a prompt with BOS by itself.
    adds_bos: bool,
    stop_token_ids: Vec<TokenId>,
}

/// What a vocabulary is merged by.
enum Model {
    Bytes(PreTokenizer),
    SentencePiece,
}

fn model(metadata: &Metadata) -> Read<Model> {
    match metadata.text(MODEL)? {
        Some("gpt2") => {}
        Some("llama") => return Ok(Model::SentencePiece),
        Some(other) => {
            return Err(format!(
                "the tokenizer '{other}' ({MODEL}) is not supported; 'gpt2' (byte-level BPE) and \
                 'llama' (SentencePiece) are"
            ));
        }
        None => return Err(format!("it has no tokenizer ({MODEL})")),
    }
    let known = PreTokenizer::names();
    let pre = metadata.text(PRE)?.ok_or_else(|| {
        format!("it does not name its pre-tokenizer ({PRE}); known ones: {known}")
    })?;
    PreTokenizer::named(pre).map(Model::Bytes).ok_or_else(|| {
        format!("the pre-tokenizer '{pre}' ({PRE}) is not known exactly; known ones: {known}")
    })
}

fn vocabulary(metadata: &mut Metadata) -> Read<Found> {
    let model = model(metadata)?;
    if metadata.flag(ADD_EOS)?.unwrap_or(false) {
        return Err(format!(
            "it asks for an EOS behind every prompt ({ADD_EOS}), which ends a chat"
        ));
    }
    let usually_adds_bos = match &model {
        Model::Bytes(pre_tokenizer) => pre_tokenizer.adds_bos,
        Model::SentencePiece => true,
    };
    let adds_bos = metadata.flag(ADD_BOS)?.unwrap_or(usually_adds_bos);
    let tokens = metadata.take_texts(TOKENS)?.ok_or_else(|| format!("it has no {TOKENS}"))?;
    let types = metadata.take_integers(TOKEN_TYPES)?;
    let merges = metadata.take_texts(MERGES)?;
    let scores = metadata.take_floats(SCORES)?;
    let tokens = named_tokens(tokens)?;
    if types.as_ref().is_some_and(|types| types.len() != tokens.len()) {
        return Err(format!("{TOKEN_TYPES} and {TOKENS} differ in length"));
    }

    let id_at = |key: &'static str| -> Read<Option<TokenId>> {
        let Some(number) = metadata.number(key)? else { return Ok(None) };
        let id = TokenId::try_from(number).ok().filter(|&id| (id as usize) < tokens.len());
        id.map(Some).ok_or_else(|| format!("{key} is {number}, beyond the vocabulary"))
    };
    let (bos, eos, eot, eom) = (id_at(BOS_ID)?, id_at(EOS_ID)?, id_at(EOT_ID)?, id_at(EOM_ID)?);
    let mut added = added_tokens(&tokens, types.as_deref())?;
    let by_text =
        |text: &str| added.iter().find(|token| token.content == text).map(|token| token.id);
    let eot = eot.or_else(|| TURN_ENDS.iter().find_map(|end| by_text(end)));
    let eom = eom.or_else(|| by_text(MESSAGE_END));
    let mut stop_token_ids: Vec<TokenId> = [eos, eot, eom].into_iter().flatten().collect();
    stop_token_ids.sort_unstable();
    stop_token_ids.dedup();

    // What starts or ends a text is a control token whatever type the file gives it.
    for &id in bos.iter().chain(&stop_token_ids) {
        match added.binary_search_by_key(&id, |token| token.id) {
            Ok(at) => {
                if let Some(token) = added.get_mut(at) {
                    token.special = true;
                }
            }
            Err(at) => {
                let content = tokens.get(id as usize).cloned().unwrap_or_default();
                added.insert(at, AddedToken::plain(id, content, true));
            }
        }
    }
    let text_of = |id: Option<TokenId>| {
        id.and_then(|id| tokens.get(id as usize)).cloned().unwrap_or_default()
    };
    let (bos_token, eos_token) = (text_of(bos), text_of(eos));
    let json = match model {
        Model::Bytes(pre_tokenizer) => {
            let merges = merges.ok_or_else(|| format!("it has no {MERGES}"))?;
            tokenizer_json(tokens, &merges, &added, pre_tokenizer)?
        }
        Model::SentencePiece => {
            strip_as_llama_cpp_does(metadata, &mut added)?;
            let scores = scores.ok_or_else(|| format!("it has no {SCORES}"))?;
            let unknown =
                id_at(UNKNOWN_ID)?.map_or_else(|| "<unk>".to_owned(), |id| text_of(Some(id)));
            let unknown = Some(unknown).filter(|unknown| tokens.contains(unknown));
            let prefix = metadata.flag(ADD_SPACE_PREFIX)?.unwrap_or(true);
            let prefix = if prefix { Prefix::Stretches } else { Prefix::Nowhere };
            let unknown = unknown.as_deref();
            spm::tokenizer_json(tokens.clone(), &scores, |_| true, &added, unknown, prefix)?
        }
    };
    Ok(Found { json, bos_token, eos_token, adds_bos, stop_token_ids })
}

/// Phi-3's control tokens swallow the white space behind them, but for three; llama.cpp knows the
/// model by its name.
fn strip_as_llama_cpp_does(metadata: &Metadata, added: &mut [AddedToken]) -> Read<()> {
    let name = metadata.text(NAME)?.unwrap_or_default().to_lowercase();
    if ["phi-3", "phi3"].iter().any(|phi| name.contains(phi)) {
        for token in added {
            token.rstrip = !["<unk>", "<s>", "<|endoftext|>"].contains(&token.content.as_str());
        }
    }
    Ok(())
}

/// The tokens' texts; an empty one gets the name that llama.cpp gives it.
fn named_tokens(tokens: Vec<String>) -> Read<Vec<String>> {
    let mut seen = HashSet::with_capacity(tokens.len());
    let mut named = Vec::with_capacity(tokens.len());
    for (id, token) in tokens.into_iter().enumerate() {
        let token = if token.is_empty() { format!("[EMPTY_{id}]") } else { token };
        if !seen.insert(token.clone()) {
            return Err(format!("two tokens read '{token}'"));
        }
        named.push(token);
    }
    Ok(named)
}

/// The tokens that are matched in text before it is split into words, in order of id. GGUF has no
/// flags for them: white space beside them is always kept (llama.cpp strips it for a few models
/// it knows by name; none of their pre-tokenizers is listed here).
fn added_tokens(tokens: &[String], types: Option<&[i64]>) -> Read<Vec<AddedToken>> {
    let mut added = Vec::new();
    for (id, (token, &kind)) in tokens.iter().zip(types.unwrap_or_default()).enumerate() {
        let special = match kind {
            token_type::NORMAL | token_type::UNUSED | token_type::BYTE => continue,
            token_type::CONTROL | token_type::UNKNOWN => true,
            token_type::USER_DEFINED => false,
            other => {
                return Err(format!("the token {id} has the type {other}, which is not known"));
            }
        };
        let id = TokenId::try_from(id).map_err(|_| "it has too many tokens".to_owned())?;
        added.push(AddedToken::plain(id, token.clone(), special));
    }
    Ok(added)
}

/// The vocabulary as `tokenizers` would have saved it. Every token is in `model.vocab`, control
/// tokens too: there `tokenizers` finds the ids of added tokens.
fn tokenizer_json(
    tokens: Vec<String>,
    merges: &[String],
    added: &[AddedToken],
    pre_tokenizer: PreTokenizer,
) -> Read<Value> {
    let mut seen = HashSet::with_capacity(merges.len());
    let mut pairs = Vec::with_capacity(merges.len());
    for merge in merges {
        // The first space splits, but a space at the very start belongs to the left part.
        let mut spaces = merge.char_indices().skip(1).filter(|&(_, character)| character == ' ');
        let at = spaces.next().map(|(at, _)| at);
        let Some((left, right)) = at.and_then(|at| Some((merge.get(..at)?, merge.get(at + 1..)?)))
        else {
            return Err(format!("the merge '{merge}' is not two tokens"));
        };
        // The first of two equal merges ranks, in llama.cpp; the last would, in `tokenizers`.
        if seen.insert(merge.as_str()) {
            pairs.push(json!([left, right]));
        }
    }
    let known: HashSet<&str> = tokens.iter().map(String::as_str).collect();
    let unknown: Vec<char> = (0..=u8::MAX)
        .filter(|byte| !matches!(byte, 0xc0 | 0xc1 | 0xf5..)) // never in UTF-8
        .filter_map(byte_level_character)
        .filter(|character| !known.contains(character.encode_utf8(&mut [0; 4]) as &str))
        .collect();
    let vocab: Map<String, Value> =
        tokens.into_iter().enumerate().map(|(id, token)| (token, Value::from(id))).collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.iter().map(added_token_json).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer.to_json(&unknown),
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre_tokenizer.ignore_merges,
            "vocab": vocab,
            "merges": pairs,
        },
    }))
}

/// The chat template. Where llama.cpp would start the prompt with BOS and the template does not,
/// the template is made to: the engine is sent ids and adds none.
fn template(metadata: &Metadata, found: &Found) -> Read<String> {
    let template = metadata
        .text(TEMPLATE)?
        .filter(|template| !template.is_empty())
        .ok_or_else(|| format!("it has no chat template ({TEMPLATE})"))?;
    let writes_bos = template.contains("bos_token")
        || (!found.bos_token.is_empty() && template.contains(&found.bos_token));
    if !found.adds_bos || writes_bos {
        return Ok(template.to_owned());
    }
    if found.bos_token.is_empty() {
        return Err(format!(
            "a prompt starts with BOS, and the file does not say which ({BOS_ID})"
        ));
    }
    Ok(format!("{{{{ bos_token }}}}{template}"))
}

fn context_length(metadata: &Metadata) -> Read<Option<usize>> {
    let Some(architecture) = metadata.text(ARCHITECTURE)? else { return Ok(None) };
    let length = metadata.number(&format!("{architecture}{CONTEXT_LENGTH}"))?;
    Ok(length.and_then(|length| usize::try_from(length).ok()))
}
