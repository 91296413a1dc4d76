//! Small models: one byte-level vocabulary with every family's control tokens, under real templates.
//!
//! The id of a byte is the byte. Building one takes milliseconds, where a real vocabulary takes a
//! second and gives a fuzzer a hundred thousand ids to choose from.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::{Map, Value, json};
use turnwire_core::load::Source;
use turnwire_core::profile::Options;
use turnwire_core::tokenizer::{Definition, Vocabulary, choose};
use turnwire_core::{Profile, Trust};

/// The first id that is no byte.
pub const BEYOND_BYTES: u32 = 256;

/// A template and its special tokens.
struct Model {
    /// Its name below `templates`, or its own text.
    template: &'static str,
    bos: &'static str,
    eos: &'static str,
    /// Whether its vocabulary has the tokens of [`HERMES`].
    hermes: bool,
    trust: Trust,
}

const fn model(template: &'static str, bos: &'static str, eos: &'static str) -> Model {
    Model { template, bos, eos, hermes: true, trust: Trust::Strict }
}

const fn without_hermes(template: &'static str, bos: &'static str, eos: &'static str) -> Model {
    Model { hermes: false, ..model(template, bos, eos) }
}

const PLAIN: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
    message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\n' }}{% endif %}";

/// New ones go to the end: an input names its model by its place here.
const MODELS: &[Model] = &[
    model("llama.cpp/Qwen-Qwen3-0.6B", "", "<|im_end|>"),
    model(PLAIN, "", "<|im_end|>"),
    model("llama.cpp/GLM-4.6", "", "<|endoftext|>"),
    model("llama.cpp/GLM-4.7-Flash", "", "<|endoftext|>"),
    model("llama.cpp/moonshotai-Kimi-K2", "", "[EOS]"),
    without_hermes(
        "llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        DEEPSEEK_BOS,
        DEEPSEEK_EOS,
    ),
    without_hermes("llama.cpp/deepseek-ai-DeepSeek-V3.1", DEEPSEEK_BOS, DEEPSEEK_EOS),
    model("llama.cpp/deepseek-ai-DeepSeek-V3.2", DEEPSEEK_BOS, DEEPSEEK_EOS),
    model("llama.cpp/deepseek-ai-DeepSeek-V4", DEEPSEEK_BOS, DEEPSEEK_EOS),
    model("llama.cpp/openai-gpt-oss-120b", "<|startoftext|>", "<|return|>"),
    without_hermes("trl/llama3", "<|begin_of_text|>", "<|eot_id|>"),
    model("llama.cpp/meta-llama-Llama-3.1-8B-Instruct", "<|begin_of_text|>", "<|eot_id|>"),
    model("llama.cpp/meta-llama-Llama-3.2-3B-Instruct", "<|begin_of_text|>", "<|eot_id|>"),
    model("llama.cpp/unsloth-mistral-Devstral-Small-2507", "<s>", "</s>"),
    model("llama.cpp/mistralai-Ministral-3-14B-Reasoning-2512", "<s>", "</s>"),
    model("llama.cpp/Qwen3-Coder", "", "<|im_end|>"),
    // Without a native renderer.
    model("llama.cpp/mistralai-Mistral-Nemo-Instruct-2407", "<s>", "</s>"),
    model("llama.cpp/Kimi-K2-Thinking", "", "[EOS]"),
    model("llama.cpp/ByteDance-Seed-OSS", "", "<|im_end|>"),
    model("trl/gemma3", "<s>", "<|im_end|>"),
    Model { trust: Trust::Compat, ..model("llama.cpp/Qwen-Qwen3-0.6B", "", "<|im_end|>") },
    Model { trust: Trust::Compat, ..model("llama.cpp/GLM-4.6", "", "<|endoftext|>") },
];

const DEEPSEEK_BOS: &str = "<｜begin▁of▁sentence｜>";
const DEEPSEEK_EOS: &str = "<｜end▁of▁sentence｜>";

/// Longer than a byte, so that ids do not say where characters begin.
const MERGES: &[(&str, &str)] = &[
    ("t", "h"),
    ("th", "e"),
    ("i", "n"),
    ("e", "r"),
    ("l", "s"),
    ("Ċ", "Ċ"),
    ("Ġ", "Ġ"),
    ("Ġ", "the"),
    ("{", "\""),
    ("\"", "}"),
    ("\"", ":"),
    ("Ã", "©"),
    ("<", "/"),
    ("o", "o"),
    ("oo", "t"),
    ("l", "l"),
    ("ð", "Ł"),
];

/// Added tokens, and whether each is special.
const ADDED: &[(&str, bool)] = &[
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<think>", false),
    ("</think>", false),
    ("[gMASK]", true),
    ("<sop>", true),
    ("<|system|>", true),
    ("<|user|>", true),
    ("<|assistant|>", true),
    ("<|observation|>", true),
    ("<arg_key>", false),
    ("</arg_key>", false),
    ("<arg_value>", false),
    ("</arg_value>", false),
    ("/nothink", false),
    ("[EOS]", true),
    ("<|im_system|>", true),
    ("<|im_user|>", true),
    ("<|im_assistant|>", true),
    ("<|im_middle|>", true),
    ("<|tool_calls_section_begin|>", false),
    ("<|tool_calls_section_end|>", false),
    ("<|tool_call_begin|>", false),
    ("<|tool_call_argument_begin|>", false),
    ("<|tool_call_end|>", false),
    (DEEPSEEK_BOS, true),
    (DEEPSEEK_EOS, true),
    ("<｜User｜>", true),
    ("<｜Assistant｜>", true),
    ("<｜tool▁calls▁begin｜>", false),
    ("<｜tool▁calls▁end｜>", false),
    ("<｜tool▁call▁begin｜>", false),
    ("<｜tool▁call▁end｜>", false),
    ("<｜tool▁sep｜>", false),
    ("<｜tool▁outputs▁begin｜>", false),
    ("<｜tool▁outputs▁end｜>", false),
    ("<｜tool▁output▁begin｜>", false),
    ("<｜tool▁output▁end｜>", false),
    ("｜DSML｜", false),
    ("<|startoftext|>", true),
    ("<|start|>", true),
    ("<|end|>", true),
    ("<|message|>", true),
    ("<|channel|>", true),
    ("<|constrain|>", true),
    ("<|return|>", true),
    ("<|call|>", true),
    ("<|begin_of_text|>", true),
    ("<|end_of_text|>", true),
    ("<|start_header_id|>", true),
    ("<|end_header_id|>", true),
    ("<|eom_id|>", true),
    ("<|eot_id|>", true),
    ("<|python_tag|>", true),
    ("<s>", true),
    ("</s>", true),
    ("[INST]", true),
    ("[/INST]", true),
    ("[AVAILABLE_TOOLS]", true),
    ("[/AVAILABLE_TOOLS]", true),
    ("[SYSTEM_PROMPT]", true),
    ("[/SYSTEM_PROMPT]", true),
    ("[TOOL_RESULTS]", true),
    ("[/TOOL_RESULTS]", true),
    ("[TOOL_CALLS]", true),
    ("[ARGS]", true),
    ("[CALL_ID]", true),
    ("[TOOL_CONTENT]", true),
    ("[THINK]", true),
    ("[/THINK]", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
];

/// The last of them, which stand in the tools block of templates without one: as text, if their
/// vocabulary has no such tokens.
const HERMES: usize = 4;

/// How many models there are.
pub const COUNT: usize = MODELS.len();

/// The model at this place, counted round and round.
#[must_use]
pub fn at(place: u8) -> &'static Arc<Profile> {
    static BUILT: [OnceLock<Arc<Profile>>; COUNT] = [const { OnceLock::new() }; COUNT];
    let place = usize::from(place) % COUNT;
    BUILT[place].get_or_init(|| Arc::new(build(&MODELS[place])))
}

fn vocabulary(hermes: bool) -> &'static Arc<Vocabulary> {
    static WITHOUT: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| built(ADDED.len() - HERMES));
    static WITH: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| built(ADDED.len()));
    if hermes { &WITH } else { &WITHOUT }
}

fn built(added: usize) -> Arc<Vocabulary> {
    let definition = Definition::from_value("the small vocabulary", tokenizer_json(added));
    Arc::new(choose(definition.expect("a definition"), None).expect("a vocabulary"))
}

fn build(model: &Model) -> Profile {
    let vocabulary = Arc::clone(vocabulary(model.hermes));
    let options = Options { trust: model.trust, ..Options::default() };
    let source = Source {
        name: model.template.to_owned(),
        template: template(model.template),
        bos_token: model.bos.to_owned(),
        eos_token: model.eos.to_owned(),
        stop_token_ids: vocabulary.added_id(model.eos).into_iter().collect(),
        vocabulary,
        stop_strings: Vec::new().into(),
        context_length: None,
    };
    Profile::new(source, options).expect("a profile")
}

fn template(name: &str) -> String {
    if name.contains('{') {
        return name.to_owned();
    }
    let templates = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.cache/vocab/templates");
    let path = templates.join(format!("{name}.jinja"));
    fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run `make vocab`", path.display()))
}

/// The character that byte-level vocabularies write for a byte (GPT-2's `bytes_to_unicode`).
fn character_of(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if plain(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !plain(byte)).count();
    u32::try_from(before).ok().and_then(|before| char::from_u32(256 + before)).unwrap_or('?')
}

fn tokenizer_json(added: usize) -> Value {
    let mut vocab: Map<String, Value> =
        (0..=u8::MAX).map(|byte| (character_of(byte).to_string(), json!(byte))).collect();
    for (left, right) in MERGES {
        vocab.insert(format!("{left}{right}"), json!(vocab.len()));
    }
    let first = vocab.len();
    let added = ADDED[..added].iter().enumerate().map(|(place, (content, special))| {
        json!({"id": first + place, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": special})
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<_>>(), "normalizer": null, "pre_tokenizer": byte_level,
        "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab,
            "merges": MERGES.iter().map(|(left, right)| json!([left, right])).collect::<Vec<_>>()}})
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use turnwire_core::tokenizer::Piece;

    use super::*;

    /// The first of the four without a native renderer.
    const GENERIC: usize = 16;

    /// Otherwise the targets would test less than they seem to.
    #[test]
    fn every_family_has_its_native_renderer() {
        let generic = |place: &usize| at(u8::try_from(*place).unwrap()).not_native().is_some();
        let generic: Vec<usize> = (0..COUNT).filter(generic).collect();
        assert_eq!(generic, (GENERIC..GENERIC + 4).collect::<Vec<_>>());
    }

    #[test]
    fn a_byte_is_its_own_id() {
        for byte in 0..=u8::MAX {
            assert_eq!(*at(0).piece(byte.into()), Piece::Bytes([byte].into()));
        }
    }
}
