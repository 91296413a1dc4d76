//! A vocabulary that is bytes by rank, as tiktoken and tekken files have it, as a `tokenizer.json`.
//!
//! tiktoken joins the neighbours whose bytes have the lowest rank, the leftmost first, until none are
//! left. What is joined inside a stretch does not depend on what stands around it, so whatever the text,
//! a token is only ever joined from one pair: the last two parts of its own bytes. That pair is its
//! merge, at its rank. (`transformers` lists every pair that makes a token, which gives the same ids:
//! the others never meet.) A token that its own bytes do not come to is found as a whole word only.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::tokenizer::{AddedToken, added_token_json, byte_level_character};

/// Longer tokens are refused: finding a merge takes time in the square of the length. The longest in a
/// published vocabulary has 128 bytes.
const LONGEST: usize = 1024;

/// Tokens in order of rank: no gap, no two alike, and every single byte among them.
pub(super) struct Ranks(Vec<Vec<u8>>);

impl Ranks {
    /// Checks what the merges rely on.
    pub(super) fn new(tokens: Vec<Vec<u8>>) -> Result<Self, String> {
        let mut ranks = HashMap::with_capacity(tokens.len());
        for (rank, token) in tokens.iter().enumerate() {
            if token.is_empty() || token.len() > LONGEST {
                return Err(format!(
                    "the token of rank {rank} has {} bytes, not 1 to {LONGEST}",
                    token.len()
                ));
            }
            if let Some(other) = ranks.insert(token.as_slice(), rank) {
                return Err(format!("the ranks {other} and {rank} are one token"));
            }
        }
        if let Some(byte) = (0..=u8::MAX).find(|&byte| !ranks.contains_key(&[byte][..])) {
            return Err(format!("it has no token for the byte {byte:#04x}"));
        }
        Ok(Self(tokens))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The vocabulary as `tokenizers` would have saved it. A token's id is its rank plus `first`; a word
    /// is what `pattern` matches. Every token is in `model.vocab`, control tokens too: there `tokenizers`
    /// finds the ids of added tokens.
    pub(super) fn tokenizer_json(
        &self,
        first: usize,
        specials: &[AddedToken],
        pattern: &str,
        normalizer: &Value,
    ) -> Result<Value, String> {
        let letters: Vec<char> = (0..=u8::MAX).filter_map(byte_level_character).collect();
        let spelled = |bytes: &[u8]| -> String {
            bytes.iter().filter_map(|&byte| letters.get(usize::from(byte))).collect()
        };
        let special = specials.iter().map(|token| (token.content.clone(), token.id as usize));
        let ordinary = self.0.iter().zip(first..).map(|(bytes, id)| (spelled(bytes), id));
        let mut vocab = Map::with_capacity(self.len() + specials.len());
        for (token, id) in special.chain(ordinary) {
            if let Some(other) = vocab.insert(token.clone(), Value::from(id)) {
                return Err(format!("the tokens {other} and {id} both read '{token}'"));
            }
        }
        let merges = self.merges();
        let merges = merges.map(|(left, right)| [spelled(left), spelled(right)]);
        let byte_level = |use_regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": use_regex})
        };
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
            "invert": false});
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": specials.iter().map(added_token_json).collect::<Vec<_>>(),
            "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level(false)]},
            "post_processor": null,
            "decoder": byte_level(true),
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": null,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": false,
                "byte_fallback": false,
                "ignore_merges": true,
                "vocab": vocab,
                "merges": merges.collect::<Vec<_>>(),
            },
        }))
    }

    /// The pair that each token is joined from, in order of rank.
    fn merges(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let by_bytes = self.0.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank));
        let ranks: HashMap<&[u8], usize> = by_bytes.collect();
        self.0.iter().filter_map(move |token| Some(token.split_at(seam(token, &ranks)?)))
    }
}

/// Where the last two parts of a token meet, if joining comes so far.
fn seam(token: &[u8], ranks: &HashMap<&[u8], usize>) -> Option<usize> {
    let mut bounds: Vec<usize> = (0..=token.len()).collect();
    while bounds.len() > 3 {
        let pairs = bounds.windows(3).enumerate().filter_map(|(at, bounds)| {
            let &[start, _, end] = bounds else { return None };
            Some((ranks.get(token.get(start..end)?)?, at))
        });
        let (_, lowest) = pairs.min()?;
        bounds.remove(lowest + 1);
    }
    bounds.get(1).copied().filter(|&seam| seam < token.len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Every byte, and then these.
    fn tokens(more: &[&str]) -> Vec<Vec<u8>> {
        let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
        bytes.chain(more.iter().map(|token| token.as_bytes().to_vec())).collect()
    }

    /// Oracle: tiktoken's rule, worked by hand.
    #[test]
    fn a_token_is_merged_from_its_last_two_parts() {
        let ranks = Ranks::new(tokens(&["bc", "ab", "abc", "abcd", "xyz", "aa", "aaa"])).unwrap();
        let pair = |left: &str, right: &str| (left.to_owned(), right.to_owned());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let merges = ranks.merges().map(|(left, right)| (text(left), text(right)));
        // `xyz` has no parts of two bytes: it is a token as a whole word only.
        let expected = [("b", "c"), ("a", "b"), ("a", "bc"), ("abc", "d"), ("a", "a"), ("aa", "a")];
        assert_eq!(merges.collect::<Vec<_>>(), expected.map(|(left, right)| pair(left, right)));
    }

    #[test]
    fn what_the_merges_rely_on_is_checked() {
        let refusal = |tokens: Vec<Vec<u8>>| Ranks::new(tokens).err().unwrap();
        assert_eq!(refusal(tokens(&["ab", "a"])), "the ranks 97 and 257 are one token");
        assert_eq!(refusal(tokens(&[""])), "the token of rank 256 has 0 bytes, not 1 to 1024");
        assert!(refusal(tokens(&[&"a".repeat(1025)])).contains("1025 bytes"));
        assert_eq!(refusal(tokens(&[])[1..].to_vec()), "it has no token for the byte 0x00");
        assert_eq!(refusal(Vec::new()), "it has no token for the byte 0x00");
    }

    #[test]
    fn a_control_token_that_reads_like_another_token_is_refused() {
        let special = AddedToken::plain(257, "ab".to_owned(), true);
        let ranks = Ranks::new(tokens(&["ab"])).unwrap();
        let refusal = ranks.tokenizer_json(0, &[special], ".", &Value::Null).unwrap_err();
        assert_eq!(refusal, "the tokens 257 and 256 both read 'ab'");
    }
}
