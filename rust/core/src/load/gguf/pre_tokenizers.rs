//! The pre-tokenizers that `tokenizer.ggml.pre` names, as `tokenizer.json` writes them.
//!
//! A name is listed only where a test holds it to llama.cpp's own vectors, or where llama.cpp gives
//! it the very rule of one that is (`llama-vocab.cpp` of llama-cpp-python 0.3.36 maps several names
//! to one `LLAMA_VOCAB_PRE_TYPE`). A guess would cost quality without a sign of it.

use serde_json::{Value, json};

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    rule: Rule,
    /// A word that is a token as a whole is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// A prompt starts with BOS unless the file says otherwise.
    pub(super) adds_bos: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// GPT-2's own expression.
    Gpt2,
    /// Every digit by itself, then GPT-2's expression.
    DigitsThenGpt2,
    /// One expression.
    Split(&'static str),
    /// Several, each applied to what the one before left.
    Splits(&'static [&'static str]),
}

/// GPT-4's contractions. llama.cpp knows ASCII letters only; `(?i:'s)` would also take `'ſ`.
macro_rules! contractions {
    () => {
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}

/// An expression like GPT-4's, with its rule for numbers.
macro_rules! gpt4_like {
    ($numbers:literal) => {
        concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

const LLAMA3: &str = gpt4_like!(r"\p{N}{1,3}");
const QWEN2: &str = gpt4_like!(r"\p{N}");
const QWEN35: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const FALCON: &[&str] = &[
    r"[\p{P}\$\+<=>\^~\|`]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"[0-9][0-9][0-9]",
];
const DEEPSEEK_CODER: &[&str] =
    &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"];

const fn plain(rule: Rule) -> PreTokenizer {
    PreTokenizer { rule, ignore_merges: false, adds_bos: false }
}

/// As llama.cpp treats the names of Llama 3's rule.
const LLAMA3_LIKE: PreTokenizer =
    PreTokenizer { rule: Rule::Split(LLAMA3), ignore_merges: true, adds_bos: true };

/// Every name that is known, in order of name.
const KNOWN: &[(&str, PreTokenizer)] = &[
    ("codeshell", plain(Rule::DigitsThenGpt2)),
    ("command-r", plain(Rule::DigitsThenGpt2)),
    ("dbrx", plain(Rule::Split(LLAMA3))),
    ("deepseek-coder", plain(Rule::Splits(DEEPSEEK_CODER))),
    ("deepseek-r1-qwen", plain(Rule::Split(QWEN2))),
    ("exaone", plain(Rule::DigitsThenGpt2)),
    ("exaone4", plain(Rule::Gpt2)),
    ("falcon", plain(Rule::Splits(FALCON))),
    ("falcon-h1", LLAMA3_LIKE),
    ("falcon3", LLAMA3_LIKE),
    ("gigachat", plain(Rule::Gpt2)),
    ("gpt-2", plain(Rule::Gpt2)),
    ("lfm2", LLAMA3_LIKE),
    ("llama-bpe", LLAMA3_LIKE),
    ("llama-v3", LLAMA3_LIKE),
    ("llama3", LLAMA3_LIKE),
    ("megrez", plain(Rule::Split(QWEN2))),
    ("mellum", plain(Rule::Gpt2)),
    ("mpt", plain(Rule::Gpt2)),
    ("olmo", plain(Rule::Gpt2)),
    ("phi-2", plain(Rule::Gpt2)),
    ("pixtral", LLAMA3_LIKE),
    ("qwen2", plain(Rule::Split(QWEN2))),
    ("qwen35", plain(Rule::Split(QWEN35))),
    ("refact", plain(Rule::DigitsThenGpt2)),
    ("smaug-bpe", plain(Rule::Split(LLAMA3))),
    ("smollm", plain(Rule::DigitsThenGpt2)),
    ("stablelm2", plain(Rule::Split(QWEN2))),
    ("starcoder", plain(Rule::DigitsThenGpt2)),
];

impl PreTokenizer {
    /// The one of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        KNOWN.iter().find(|(known, _)| *known == name).map(|&(_, pre_tokenizer)| pre_tokenizer)
    }

    /// Every known name, for people.
    pub(super) fn names() -> String {
        KNOWN.iter().map(|&(name, _)| name).collect::<Vec<_>>().join(", ")
    }

    /// The `pre_tokenizer` of a `tokenizer.json`. `unknown` are the characters of the byte-level
    /// alphabet that the vocabulary lacks: both llama.cpp and `tokenizers` drop them, but
    /// `tokenizers` then merges what was on both sides. Keeping them apart prevents that.
    pub(super) fn to_json(self, unknown: &[char]) -> Value {
        let byte_level = |use_regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": use_regex})
        };
        let split = |regex: &str| {
            json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
                "invert": false})
        };
        let mut steps = match self.rule {
            Rule::Gpt2 => vec![byte_level(true)],
            Rule::DigitsThenGpt2 => {
                vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)]
            }
            Rule::Split(regex) => vec![split(regex), byte_level(false)],
            Rule::Splits(regexes) => {
                let splits = regexes.iter().map(|regex| split(regex));
                splits.chain([byte_level(false)]).collect()
            }
        };
        if !unknown.is_empty() {
            let escape = |&character: &char| {
                [Some('\\').filter(|_| !character.is_alphanumeric()), Some(character)]
            };
            let any_of_them: String = unknown.iter().flat_map(escape).flatten().collect();
            steps.push(split(&format!("[{any_of_them}]")));
        }
        // fastokens knows GPT-2's rule by this form.
        if steps.len() == 1 {
            steps.remove(0)
        } else {
            json!({"type": "Sequence", "pretokenizers": steps})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_unique() {
        assert!(KNOWN.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(PreTokenizer::named("smollm").map(|found| found.ignore_merges), Some(false));
        assert_eq!(PreTokenizer::named("default"), None);
    }
}
