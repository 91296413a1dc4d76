//! Hugging Face folders: what is read from which file, and what is said when one is wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod folder;
mod texts;

use std::fs;
use std::path::Path;

use folder::Folder;
use serde_json::{Value, json};
use texts::{encode, fetched};
use turnwire_core::{Error, ErrorKind, Options, Profile, load};

fn tokenizer() -> Value {
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let vocab: Value = ["a", "b", "ab", "<", ">", "/", "s"]
        .iter()
        .enumerate()
        .map(|(id, t)| ((*t).to_owned(), json!(id)))
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(7, "<s>"), special(8, "</s>")],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level, "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]}})
}

/// A folder that loads, with these files added or replaced.
fn with(files: &[(&str, Value)]) -> turnwire_core::Result<load::Source> {
    let mut all = vec![
        ("tokenizer.json", tokenizer()),
        ("tokenizer_config.json", json!({"chat_template": "config", "eos_token": "</s>"})),
    ];
    all.extend(files.iter().cloned());
    load::hf::load(&Folder::new(&all).0)
}

fn refusal(files: &[(&str, Value)]) -> Error {
    let error = with(files).err().unwrap_or_else(|| panic!("loaded: {files:?}"));
    assert_eq!(error.kind(), ErrorKind::Profile);
    error
}

/// Oracle: the files themselves, read by eye.
#[test]
fn qwen3_loads_as_npm_has_it() {
    let source = load::hf::load(fetched("qwen3/tokenizer.json").parent().unwrap()).unwrap();
    assert_eq!(source.name, "qwen3");
    assert_eq!((source.bos_token.as_str(), source.eos_token.as_str()), ("", "<|im_end|>"));
    assert_eq!(source.stop_token_ids, [151_645]);
    assert_eq!(source.context_length, None);
    assert!(source.template.starts_with("{%- if tools %}"));
    let vocabulary = &source.vocabulary;
    assert_eq!(vocabulary.pieces.len(), 151_669);
    assert_eq!(vocabulary.added.len(), 26);
    assert_eq!(vocabulary.added_id("<think>"), Some(151_667));
    let think = vocabulary.added.iter().find(|token| token.content == "<think>").unwrap();
    assert!(!think.special);
}

#[test]
fn the_configuration_files_are_optional_and_each_says_its_part() {
    let source = with(&[]).unwrap();
    assert_eq!((source.template.as_str(), source.context_length), ("config", None));
    assert_eq!(source.stop_token_ids, [8]);
    let source = with(&[
        (
            "tokenizer_config.json",
            json!({"chat_template": "t", "bos_token": {"content": "<s>"}, "eos_token": null}),
        ),
        ("generation_config.json", json!({"eos_token_id": [7, 3, 7]})),
        ("config.json", json!({"eos_token_id": 2, "max_position_embeddings": 4096})),
    ])
    .unwrap();
    assert_eq!((source.bos_token.as_str(), source.eos_token.as_str()), ("<s>", ""));
    assert_eq!(source.stop_token_ids, [2, 3, 7]);
    assert_eq!(source.context_length, Some(4096));
    let nested = json!({"text_config": {"eos_token_id": [1], "max_position_embeddings": 32}});
    let source = with(&[("config.json", nested)]).unwrap();
    assert_eq!((source.stop_token_ids.as_slice(), source.context_length), (&[1, 8][..], Some(32)));
}

#[test]
fn a_template_of_its_own_file_wins() {
    let jinja = ("chat_template.jinja", json!("jinja"));
    let file = ("chat_template.json", json!({"chat_template": "json"}));
    assert_eq!(with(&[jinja.clone(), file.clone()]).unwrap().template, "jinja");
    assert_eq!(with(&[file]).unwrap().template, "json");
    // It also does where there is no other file.
    let folder = Folder::new(&[("tokenizer.json", tokenizer()), jinja]);
    assert_eq!(load::hf::load(&folder.0).unwrap().template, "jinja");
    let named = json!({"chat_template": [
        {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]});
    assert_eq!(with(&[("tokenizer_config.json", named)]).unwrap().template, "plain");
}

#[test]
fn added_tokens_of_the_configuration_are_merged() {
    let config = |entries: Value| {
        ("tokenizer_config.json", json!({"chat_template": "t", "added_tokens_decoder": entries}))
    };
    // Qwen2-VL's case: a token that only the configuration has; and flags that it changes.
    let source = with(&[config(json!({
        "7": {"content": "<s>", "special": true},
        "8": {"content": "</s>", "special": true, "rstrip": true},
        "9": {"content": "<image>", "special": true}}))])
    .unwrap();
    let vocabulary = &source.vocabulary;
    assert_eq!(vocabulary.added_id("<image>"), Some(9));
    assert_eq!(encode(&*vocabulary.encoder, "a<image>b</s>  a", true), [0, 9, 1, 8, 0]);
    assert!(!vocabulary.cuts.after(8) && vocabulary.cuts.after(9));
    for (entries, reason) in [
        (json!([]), "is not an object"),
        (json!({"x": {"content": "<x>"}}), "'x' is not an added token"),
        (json!({"9": {"special": true}}), "'9' is not an added token"),
        (json!({"7": {"content": "<x>"}}), "the id 7 is '<x>', and '<s>' in"),
        (json!({"9": {"content": "<s>"}}), "'<s>' has the id 9, and 7 in"),
        (json!({"99": {"content": "<x>"}}), "`tokenizers` gives it Some(9)"),
    ] {
        let error = refusal(&[config(entries)]);
        assert!(error.detail().contains(reason), "{reason}: {error}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_name() {
    let list = |names: Value| json!({"chat_template": names});
    for (file, value, reason) in [
        ("tokenizer.json", json!("{"), "tokenizer.json: not JSON"),
        ("tokenizer_config.json", json!("["), "tokenizer_config.json: not JSON"),
        ("tokenizer_config.json", json!([]), "tokenizer_config.json: not a JSON object"),
        ("tokenizer_config.json", json!({}), "no chat template: neither chat_template.jinja nor"),
        ("tokenizer_config.json", list(json!(1)), "neither text nor a list"),
        (
            "tokenizer_config.json",
            list(json!([{"name": "rag", "template": "t"}])),
            "no template named 'default' (it has: rag)",
        ),
        ("tokenizer_config.json", list(json!([{"name": "rag"}])), "without a name and a template"),
        (
            "tokenizer_config.json",
            json!({"chat_template": "t", "bos_token": 1}),
            "'bos_token' is neither",
        ),
        (
            "tokenizer_config.json",
            json!({"chat_template": "t", "eos_token": "<x>"}),
            "eos_token '<x>' is not in the vocabulary",
        ),
        ("chat_template.json", json!({}), "chat_template.json: it has no 'chat_template'"),
        (
            "generation_config.json",
            json!({"eos_token_id": "</s>"}),
            "generation_config.json: 'eos_token_id'",
        ),
        (
            "generation_config.json",
            json!({"eos_token_id": [9]}),
            "generation_config.json: the eos_token_id 9 is not",
        ),
        ("config.json", json!({"eos_token_id": -1}), "config.json: 'eos_token_id'"),
        (
            "config.json",
            json!({"max_position_embeddings": 0}),
            "config.json: 'max_position_embeddings'",
        ),
    ] {
        let error = refusal(&[(file, value)]);
        assert!(error.detail().contains(reason), "{reason}: {error}");
    }
    let error = load::hf::load(Path::new("/nonexistent")).err().unwrap();
    let nothing = "/nonexistent: no vocabulary: neither tokenizer.json nor tekken.json, tiktoken.model, \
                   *.tiktoken or tokenizer.model is there";
    assert_eq!(error.detail(), nothing);
    let folder = Folder::new(&[("tokenizer.json", tokenizer())]);
    fs::write(folder.0.join("chat_template.jinja"), b"\xff").unwrap();
    let error = load::hf::load(&folder.0).err().unwrap();
    assert_eq!(error.detail(), "chat_template.jinja: not UTF-8");
    // A directory where a file should be is neither missing nor readable.
    let folder = Folder::new(&[("tokenizer.json", tokenizer())]);
    fs::create_dir(folder.0.join("config.json")).unwrap();
    fs::write(folder.0.join("chat_template.jinja"), "t").unwrap();
    let error = load::hf::load(&folder.0).err().unwrap();
    assert!(error.detail().contains("config.json: "), "{error}");
}

/// Templates differ in what they want of a call's arguments: text to print as it is, or a value to
/// print as JSON (Qwen 2.5). Both have a native renderer; one that prints something else is run
/// itself. Oracle: the real Qwen3 template, in which the choice is one `if`.
#[test]
fn a_template_may_print_arguments_as_json() {
    let real = fetched("qwen3/tokenizer_config.json");
    let config: Value = serde_json::from_str(&fs::read_to_string(&real).unwrap()).unwrap();
    let template = config["chat_template"].as_str().unwrap();
    let tokenizer = fs::read_to_string(fetched("qwen3/tokenizer.json")).unwrap();
    let served = |from: &str, to: &str| {
        assert!(template.contains(from));
        let folder = Folder::new(&[
            ("tokenizer.json", json!(tokenizer)),
            ("chat_template.jinja", json!(template.replace(from, to))),
        ]);
        let profile = Profile::load(&folder.0, Options::default(), None).unwrap();
        (profile.format().name().to_owned(), profile.not_native().unwrap_or_default().to_owned())
    };
    let choice = "{%- if tool_call.arguments is string %}";
    assert_eq!(served(choice, choice).0, "qwen3");
    assert_eq!(served(choice, "{%- if false %}").0, "qwen3");
    let end = r"{{- '}\n</tool_call>' }}";
    let (name, why) = served(end, r"{{- '} \n</tool_call>' }}");
    assert_eq!(name, "generic");
    assert!(why.contains("it prints"), "{why}");
}
