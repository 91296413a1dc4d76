//! The encoder that does the work: `fastokens`, two orders of magnitude faster than the reference
//! on the same ids. [`super::choose`] lets it serve only where a probe finds no difference.

use std::sync::Arc;

use fastokens::{AddedTokenPolicy, Tokenizer};
use serde_json::Value;

use super::Encoder;
use super::hf::LazyReference;
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Encoded once after loading: the first call builds tables for 80 to 180 ms, which no turn
/// should pay. One line for each branch of the usual pre-tokenizers.
const WARM_UP: &str = "Hello, world! 123 it's\n\n\tfn main() { 你好 } e\u{301} 🙂 <|im_start|>";

/// `fastokens` over one `tokenizer.json`.
pub struct FastEncoder {
    tokenizer: Tokenizer,
    /// Answers where `fastokens` fails on one text (its regular expressions have a step limit):
    /// slow, but a client's text must not decide whether it is served.
    reference: Arc<LazyReference>,
}

impl FastEncoder {
    /// Builds the encoder from a parsed `tokenizer.json` and warms it up.
    ///
    /// # Errors
    /// [`Profile`](crate::ErrorKind::Profile) with a reason: `fastokens` does not support the
    /// file.
    pub fn load(json: Value, reference: Arc<LazyReference>) -> Result<Self> {
        let mut tokenizer = Tokenizer::from_json(json)
            .map_err(|error| Error::profile(error.to_string()).with_source(error))?;
        tokenizer.set_truncation(None);
        tokenizer.set_padding(None);
        // The environment can switch this on; our chains already cache what repeats.
        tokenizer.enable_segment_cache(0);
        let encoder = Self { tokenizer, reference };
        for control in [true, false] {
            encoder.attempt(WARM_UP, control)?;
        }
        Ok(encoder)
    }

    /// Encodes with `fastokens` alone.
    ///
    /// # Errors
    /// [`Profile`](crate::ErrorKind::Profile): `fastokens` failed on this text.
    pub(super) fn attempt(&self, text: &str, control: bool) -> Result<Vec<TokenId>> {
        let policy = if control { AddedTokenPolicy::All } else { AddedTokenPolicy::None };
        self.tokenizer
            .encode_unpadded(text, false, policy)
            .map_err(|error| Error::profile(error.to_string()).with_source(error))
    }
}

impl Encoder for FastEncoder {
    fn encode(&self, text: &str, control: bool, out: &mut Vec<TokenId>) -> Result<()> {
        match self.attempt(text, control) {
            Ok(ids) => {
                out.extend_from_slice(&ids);
                Ok(())
            }
            Err(_) => self.reference.encode(text, control, out),
        }
    }

    fn name(&self) -> &'static str {
        "fastokens"
    }
}
