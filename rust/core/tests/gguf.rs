//! GGUF files: real vocabularies against llama.cpp's own vectors, and files that are wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod texts;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

use texts::{Oracle, Random, SMOLLM2, encode, fetched};
use turnwire_core::tokenizer::{Piece, choose};
use turnwire_core::{Error, ErrorKind, load};

/// Between the texts of a `.inp` file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// Oracle: the `.inp`/`.out` vectors that llama.cpp tests its own tokenizer with. They were made
/// with special tokens not parsed, which still matches user-defined ones; no text holds another.
#[test]
fn ids_equal_llama_cpps_vectors() {
    let names = [
        "command-r",
        "deepseek-coder",
        "falcon",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "mpt",
        "qwen2",
        "qwen35",
        "refact",
        "starcoder",
    ];
    for name in names {
        let path = fetched(&format!("llama-cpp-vocab/ggml-vocab-{name}.gguf"));
        let beside = |ending: &str| fs::read_to_string(format!("{}.{ending}", path.display()));
        let (inputs, outputs) = (beside("inp").unwrap(), beside("out").unwrap());
        let vocabulary = choose(load::gguf::definition(&path).unwrap(), None).unwrap();
        assert!(vocabulary.choice.starts_with("fastokens: "), "{name}: {}", vocabulary.choice);
        let mut count = 0;
        for (text, line) in inputs.split(SEPARATOR).zip(outputs.lines()) {
            let expected: Vec<u32> =
                line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let ids = encode(&*vocabulary.encoder, text, true);
            assert_eq!(ids, expected, "{name}: {text:?}");
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| bytes(&vocabulary.pieces, id)).collect();
            // SentencePiece begins a text with a space.
            let space = if name == "llama-spm" && !text.is_empty() { " " } else { "" };
            assert_eq!(bytes, format!("{space}{text}").as_bytes(), "{name}: {text:?}");
            count += 1;
        }
        assert!(count >= 46, "{name}: {count}");
    }
}

fn bytes(pieces: &[Piece], id: u32) -> Vec<u8> {
    match &pieces[id as usize] {
        Piece::Bytes(bytes) => bytes.to_vec(),
        Piece::Added(content, _) => content.as_bytes().to_vec(),
        Piece::Unknown => panic!("an encoder gave the unknown id {id}"),
    }
}

/// Oracle: `tokenizers` over Qwen3's own `tokenizer.json`, which has Qwen2's vocabulary. Texts
/// that are not NFC are left out (llama.cpp does not normalize), and so is `'ſ`, which only Qwen's
/// own expression folds to `'s`.
#[test]
fn qwen2_from_gguf_equals_qwens_own_file() {
    let path = fetched("llama-cpp-vocab/ggml-vocab-qwen2.gguf");
    let ours = choose(load::gguf::definition(&path).unwrap(), None).unwrap();
    let oracle = Oracle::new(&fs::read(fetched("qwen3/tokenizer.json")).unwrap());
    let mut random = Random(0x9_3e2);
    let mut compared = 0;
    for _ in 0..4000 {
        let text = random.text();
        let normal = oracle.whole.get_normalizer().map(|normalizer| {
            let mut normal = tokenizers::NormalizedString::from(text.as_str());
            tokenizers::Normalizer::normalize(normalizer, &mut normal).unwrap();
            normal.get().to_owned()
        });
        if normal.as_deref() == Some(&*text) && !text.contains("'ſ") {
            assert_eq!(
                encode(&*ours.encoder, &text, false),
                oracle.encode(&text, false),
                "{text:?}"
            );
            compared += 1;
        }
    }
    assert!(compared > 2000, "{compared}");
}

/// Oracle: what `llama-server` prints of the file.
#[test]
fn smollm2_says_what_llama_cpp_says_of_it() {
    let source = load::gguf::load(&fetched(SMOLLM2)).unwrap();
    assert_eq!(source.name, "Smollm2 135M 8k Lc100K Mix1 Ep2");
    assert_eq!(
        (source.bos_token.as_str(), source.eos_token.as_str()),
        ("<|im_start|>", "<|im_end|>")
    );
    assert_eq!(source.stop_token_ids, [2]);
    assert_eq!(source.context_length, Some(8192));
    assert!(source.template.starts_with("{% for message in messages %}"), "{}", source.template);
    let vocabulary = &source.vocabulary;
    assert_eq!(vocabulary.pieces.len(), 49_152);
    assert_eq!(vocabulary.added_id("<|im_end|>"), Some(2));
    assert!(vocabulary.added.iter().all(|token| token.special));
    // llama.cpp b11549's `/tokenize`: a byte without a token keeps its neighbours apart.
    assert_eq!(encode(&*vocabulary.encoder, "==\u{4}==", false), [1189, 1189]);
    assert_eq!(
        encode(&*vocabulary.encoder, "12 345 a1", false),
        [33, 34, 216, 35, 36, 37, 253, 33]
    );
}

/// Writes the bytes of a GGUF, as `docs/gguf.md` of ggml-org/ggml says.
#[derive(Clone)]
struct Gguf {
    version: u32,
    pairs: Vec<(String, Vec<u8>)>,
}

impl Gguf {
    /// A vocabulary of all bytes, `ab`, and three control tokens.
    fn toy() -> Self {
        let plain = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let mut moved = 0xff;
        let mut tokens: Vec<String> =
            ["<|im_start|>", "<|im_end|>", "<|end|>"].map(str::to_owned).into();
        for byte in 0..256 {
            moved += u32::from(!plain(byte));
            let code = if plain(byte) { byte } else { moved };
            tokens.push(char::from_u32(code).unwrap().to_string());
        }
        tokens.push("ab".to_owned());
        let types: Vec<i32> = (0..tokens.len()).map(|id| if id < 3 { 3 } else { 1 }).collect();
        Self { version: 3, pairs: Vec::new() }
            .text("general.architecture", "llama")
            .text("general.name", "Toy")
            .with("llama.context_length", 4, &4096_u32.to_le_bytes())
            .with("llama.rope.freq_base", 6, &1e6_f32.to_le_bytes())
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "gpt-2")
            .texts("tokenizer.ggml.tokens", &tokens)
            .types(&types)
            .texts("tokenizer.ggml.merges", &["a b".to_owned()])
            .with("tokenizer.ggml.bos_token_id", 4, &0_u32.to_le_bytes())
            .with("tokenizer.ggml.eos_token_id", 4, &1_u32.to_le_bytes())
            .text("tokenizer.chat_template", "{{ messages }}")
    }

    /// Sets a pair, in place if the key is there.
    fn with(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let value = [&kind.to_le_bytes(), value].concat();
        match self.pairs.iter_mut().find(|(known, _)| known == key) {
            Some(pair) => pair.1 = value,
            None => self.pairs.push((key.to_owned(), value)),
        }
        self
    }

    fn without(mut self, key: &str) -> Self {
        self.pairs.retain(|(known, _)| known != key);
        self
    }

    fn text(self, key: &str, text: &str) -> Self {
        self.with(key, 8, &string(text))
    }

    fn texts(self, key: &str, texts: &[String]) -> Self {
        let strings: Vec<u8> = texts.iter().flat_map(|text| string(text)).collect();
        self.with(key, 9, &[&8_u32.to_le_bytes()[..], &count(texts.len()), &strings].concat())
    }

    fn types(self, types: &[i32]) -> Self {
        let numbers: Vec<u8> = types.iter().flat_map(|kind| kind.to_le_bytes()).collect();
        let array = [&5_u32.to_le_bytes()[..], &count(types.len()), &numbers].concat();
        self.with("tokenizer.ggml.token_type", 9, &array)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(count(0));
        bytes.extend(count(self.pairs.len()));
        for (key, value) in &self.pairs {
            bytes.extend(string(key));
            bytes.extend(value);
        }
        bytes
    }
}

fn count(count: usize) -> [u8; 8] {
    (count as u64).to_le_bytes()
}

fn string(text: &str) -> Vec<u8> {
    [&count(text.len())[..], text.as_bytes()].concat()
}

/// A file of its own, gone at the end of the test.
struct File(PathBuf);

impl File {
    fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("turnwire-{}-{}.gguf", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let file = Self(env::temp_dir().join(name));
        fs::write(&file.0, bytes).unwrap();
        file
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn load_bytes(bytes: &[u8]) -> turnwire_core::Result<load::Source> {
    load::gguf::load(&File::new(bytes).0)
}

fn refusal(bytes: &[u8]) -> Error {
    let file = File::new(bytes);
    let error = load::gguf::load(&file.0).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Profile);
    assert!(error.detail().starts_with(&file.0.display().to_string()), "{error}");
    error
}

#[test]
fn a_small_file_loads() {
    for version in [2, 3] {
        let source = load_bytes(&Gguf { version, ..Gguf::toy() }.bytes()).unwrap();
        assert_eq!(source.name, "Toy");
        assert_eq!(
            (source.bos_token.as_str(), source.eos_token.as_str()),
            ("<|im_start|>", "<|im_end|>")
        );
        assert_eq!(
            (source.stop_token_ids.as_slice(), source.context_length),
            (&[1][..], Some(4096))
        );
        assert_eq!(source.template, "{{ messages }}");
        assert_eq!(encode(&*source.vocabulary.encoder, "ab<|im_end|>", true), [259, 1]);
        assert!(encode(&*source.vocabulary.encoder, "<|im_end|>", false).len() > 5);
    }
    // A nameless file goes by its own.
    let source = load_bytes(&Gguf::toy().without("general.name").bytes()).unwrap();
    assert!(source.name.starts_with("turnwire-"), "{}", source.name);
}

#[test]
fn a_bos_that_llama_cpp_would_add_is_put_into_the_template() {
    let adds = |gguf: Gguf| gguf.with("tokenizer.ggml.add_bos_token", 7, &[1]);
    let template = |gguf: Gguf| load_bytes(&gguf.bytes()).unwrap().template;
    assert_eq!(template(adds(Gguf::toy())), "{{ bos_token }}{{ messages }}");
    // Llama 3's kind adds it unless the file says no.
    let llama = Gguf::toy().text("tokenizer.ggml.pre", "llama-bpe");
    assert_eq!(template(llama.clone()), "{{ bos_token }}{{ messages }}");
    assert_eq!(template(llama.with("tokenizer.ggml.add_bos_token", 7, &[0])), "{{ messages }}");
    for written in ["{{ bos_token }}!", "<|im_start|>!"] {
        let gguf = adds(Gguf::toy().text("tokenizer.chat_template", written));
        assert_eq!(template(gguf), written);
    }
    let error = refusal(&adds(Gguf::toy().without("tokenizer.ggml.bos_token_id")).bytes());
    assert!(error.detail().contains("starts with BOS"), "{error}");
}

#[test]
fn ends_of_a_turn_are_control_tokens_and_stop_ids() {
    // A file that calls its `eos` a normal token, and names an `eot`.
    let mut types = vec![1; 260];
    types[0] = 3;
    let gguf =
        Gguf::toy().types(&types).with("tokenizer.ggml.eot_token_id", 4, &2_u32.to_le_bytes());
    let source = load_bytes(&gguf.bytes()).unwrap();
    assert_eq!(source.stop_token_ids, [1, 2]);
    assert!(source.vocabulary.added.iter().all(|token| token.special));
    assert_eq!(encode(&*source.vocabulary.encoder, "<|end|><|im_end|>", true), [2, 1]);
    // One that names neither is known by its text.
    let gguf = Gguf::toy().without("tokenizer.ggml.eos_token_id");
    let source = load_bytes(&gguf.bytes()).unwrap();
    assert_eq!((source.stop_token_ids.as_slice(), source.eos_token.as_str()), (&[1][..], ""));
}

#[test]
fn a_user_defined_token_is_matched_and_not_special() {
    let mut types = vec![1; 260];
    types[..3].copy_from_slice(&[3, 3, 4]);
    let source = load_bytes(&Gguf::toy().types(&types).bytes()).unwrap();
    let added: Vec<bool> = source.vocabulary.added.iter().map(|token| token.special).collect();
    assert_eq!(added, [true, true, false]);
    assert_eq!(encode(&*source.vocabulary.encoder, "a<|end|>", true), [100, 2]);
}

#[test]
fn what_cannot_be_served_is_refused_with_the_reason() {
    let toy = Gguf::toy;
    let mut doubled: Vec<String> = vec!["x".to_owned(); 2];
    doubled.push("y".to_owned());
    let cases = [
        (toy().text("tokenizer.ggml.model", "t5"), "'t5' (tokenizer.ggml.model) is not supported"),
        (toy().without("tokenizer.ggml.model"), "it has no tokenizer"),
        (
            toy().text("tokenizer.ggml.pre", "tekken"),
            "'tekken' (tokenizer.ggml.pre) is not known exactly",
        ),
        (toy().text("tokenizer.ggml.pre", "default"), "known ones: codeshell, command-r"),
        (toy().without("tokenizer.ggml.pre"), "does not name its pre-tokenizer"),
        (toy().without("tokenizer.ggml.tokens"), "it has no tokenizer.ggml.tokens"),
        (toy().without("tokenizer.ggml.merges"), "it has no tokenizer.ggml.merges"),
        (toy().text("tokenizer.ggml.model", "llama"), "it has no tokenizer.ggml.scores"),
        (toy().without("tokenizer.chat_template"), "it has no chat template"),
        (toy().text("tokenizer.chat_template", ""), "it has no chat template"),
        (toy().texts("tokenizer.ggml.tokens", &doubled), "two tokens read 'x'"),
        (toy().types(&[1, 1]), "differ in length"),
        (toy().types(&[7; 260]), "has the type 7"),
        (toy().texts("tokenizer.ggml.merges", &[" b".to_owned()]), "merge ' b' is not two tokens"),
        (toy().texts("tokenizer.ggml.merges", &["a €".to_owned()]), "out of vocabulary"),
        (toy().text("tokenizer.ggml.tokens", "x"), "'tokenizer.ggml.tokens' is not a list of text"),
        (toy().text("tokenizer.ggml.token_type", "x"), "is not a list of whole numbers"),
        (toy().text("tokenizer.ggml.add_bos_token", "x"), "is not a flag"),
        (toy().with("general.name", 7, &[1]), "'general.name' is not text"),
        (toy().text("llama.context_length", "x"), "is not a whole number"),
        (toy().with("llama.context_length", 5, &(-1_i32).to_le_bytes()), "is negative"),
        (toy().with("tokenizer.ggml.add_eos_token", 7, &[1]), "an EOS behind every prompt"),
        (toy().with("tokenizer.ggml.eos_token_id", 4, &260_u32.to_le_bytes()), "is 260, beyond"),
        (toy().with("x", 99, &[]), "the value type 99 is not known"),
        (Gguf { version: 1, ..toy() }, "GGUF version 1 is not supported"),
        (Gguf { version: 3_u32.swap_bytes(), ..toy() }, "big-endian"),
    ];
    for (gguf, reason) in cases {
        let error = refusal(&gguf.bytes());
        assert!(error.detail().contains(reason), "{reason}: {error}");
    }
    let mut twice = toy();
    twice.pairs.push(twice.pairs[0].clone());
    assert!(refusal(&twice.bytes()).detail().contains("is there twice"));
    assert!(refusal(b"not a GGUF file").detail().contains("not a GGUF file"));
    assert!(refusal(b"").detail().contains("ends in the middle"));
    let error = load::gguf::load(Path::new("/nonexistent/model.gguf")).err().unwrap();
    assert!(error.detail().starts_with("/nonexistent/model.gguf: "), "{error}");
}

#[test]
fn claims_beyond_the_file_are_refused_before_anything_is_allocated() {
    let huge = u64::MAX.to_le_bytes();
    let toy = Gguf::toy;
    let array = |kind: u32, claimed: [u8; 8]| [&kind.to_le_bytes()[..], &claimed].concat();
    let terabyte = (1_u64 << 40).to_le_bytes();
    let mut pairs = toy().bytes();
    pairs[16..24].copy_from_slice(&huge);
    let mut nested = array(9, count(1));
    for _ in 0..10 {
        nested.extend(array(9, count(1)));
    }
    let cases = [
        (pairs, "key-value pairs"),
        (toy().with("general.name", 8, &huge).bytes(), "too long"),
        (toy().with("general.name", 8, &(1_u64 << 23).to_le_bytes()).bytes(), "ends in the middle"),
        (toy().with("unwanted", 8, &terabyte).bytes(), "ends in the middle"),
        (toy().with("tokenizer.ggml.tokens", 9, &array(8, terabyte)).bytes(), "elements"),
        (toy().with("tokenizer.ggml.token_type", 9, &array(5, huge)).bytes(), "elements"),
        (toy().with("unwanted", 9, &array(10, huge)).bytes(), "elements"),
        (toy().with("unwanted", 9, &nested).bytes(), "nest too deep"),
    ];
    for (bytes, reason) in cases {
        let error = refusal(&bytes);
        assert!(error.detail().contains(reason), "{reason}: {error}");
    }
}

/// Whatever is done to a file, loading it ends in a source or an error of the right kind.
#[test]
fn broken_files_never_panic() {
    let whole = Gguf::toy().bytes();
    let outcome = |bytes: &[u8]| {
        if let Err(error) = load_bytes(bytes) {
            assert_eq!(error.kind(), ErrorKind::Profile, "{error}");
        }
    };
    for length in (0..whole.len()).step_by(7) {
        outcome(&whole[..length]);
    }
    let mut random = Random(0xb20c);
    for _ in 0..1500 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            match random.below(5) {
                0 => bytes[at] = u8::try_from(random.below(256)).unwrap(),
                1 => bytes[at] ^= 1 << random.below(8),
                2 => bytes[at] = *random.of(&[0, 0x7f, 0x80, 0xff]),
                3 => bytes.truncate(at.max(1)),
                _ => {
                    let end = (at + random.below(9)).min(bytes.len());
                    bytes.drain(at..end);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        outcome(&bytes);
    }
}
