//! Small GGUF files: metadata alone, with vocabularies of a few tokens.

/// A file that is being written.
struct Gguf(Vec<(&'static str, Vec<u8>)>);

/// The value types of a GGUF that are written here.
const FLOAT: u32 = 6;
const FLAG: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
const WHOLE: u32 = 4;
const SIGNED: u32 = 5;

const CHAT: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Byte-level BPE under several pre-tokenizers, and `SentencePiece`.
pub(super) fn files() -> Vec<Vec<u8>> {
    let bytes = ["<|im_start|>", "<|im_end|>", "<x>", "a", "b", "ab", "Ċ", "Ġ"];
    let pieces = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁ab"];
    let byte_level = |pre: &str| {
        Gguf(Vec::new())
            .text("general.architecture", "llama")
            .text("general.name", "Toy")
            .with("llama.context_length", WHOLE, &64_u32.to_le_bytes())
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", pre)
            .texts("tokenizer.ggml.tokens", &bytes)
            .numbers("tokenizer.ggml.token_type", SIGNED, &[3, 3, 4, 1, 1, 1, 1, 1_u32])
            .texts("tokenizer.ggml.merges", &["a b"])
            .with("tokenizer.ggml.bos_token_id", WHOLE, &0_u32.to_le_bytes())
            .with("tokenizer.ggml.eos_token_id", WHOLE, &1_u32.to_le_bytes())
            .text("tokenizer.chat_template", CHAT)
    };
    let scores = [0_f32, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0].map(f32::to_bits);
    let sentence_piece = Gguf(Vec::new())
        .text("general.name", "Phi-3")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &pieces)
        .numbers("tokenizer.ggml.scores", FLOAT, &scores)
        .numbers("tokenizer.ggml.token_type", SIGNED, &[2, 3, 3, 6, 1, 1, 1, 1, 1])
        .with("tokenizer.ggml.bos_token_id", WHOLE, &1_u32.to_le_bytes())
        .with("tokenizer.ggml.eos_token_id", WHOLE, &2_u32.to_le_bytes())
        .with("tokenizer.ggml.add_space_prefix", FLAG, &[1])
        .with("tokenizer.ggml.add_bos_token", FLAG, &[1])
        .text("tokenizer.chat_template", "{{ bos_token }}{{ messages }}");
    let mut files: Vec<Vec<u8>> =
        ["gpt-2", "llama-bpe", "qwen2", "deepseek-coder", "falcon", "smollm"]
            .map(|pre| byte_level(pre).bytes())
            .into();
    files.push(sentence_piece.bytes());
    files
}

impl Gguf {
    fn with(mut self, key: &'static str, kind: u32, value: &[u8]) -> Self {
        self.0.push((key, [&kind.to_le_bytes(), value].concat()));
        self
    }

    fn text(self, key: &'static str, text: &str) -> Self {
        self.with(key, TEXT, &string(text))
    }

    fn texts(self, key: &'static str, texts: &[&str]) -> Self {
        let strings: Vec<u8> = texts.iter().flat_map(|text| string(text)).collect();
        self.with(key, ARRAY, &[&TEXT.to_le_bytes()[..], &count(texts.len()), &strings].concat())
    }

    fn numbers(self, key: &'static str, kind: u32, numbers: &[u32]) -> Self {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.with(key, ARRAY, &[&kind.to_le_bytes()[..], &count(numbers.len()), &bytes].concat())
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(count(0));
        bytes.extend(count(self.0.len()));
        for (key, value) in &self.0 {
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
