//! Which encoder serves a vocabulary.
//!
//! Fail closed: `fastokens` serves only where it gave the same ids as `tokenizers` on every text of
//! the probe, with and without control tokens. Anything else (it cannot load the file, one id
//! differs) is served by `tokenizers`, and the reason can be shown.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use serde_json::Value;

use super::chunks::Chunked;
use super::cuts::{SafeCuts, first_piece_differs};
use super::definition::Definition;
use super::fast::FastEncoder;
use super::hf::{HfEncoder, LazyReference};
use super::{Encoder, Runs, Vocabulary, probe};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// What a kept verdict depends on besides the vocabulary and the probe's texts.
const LIBRARIES: &str = "fastokens 0.3.5, tokenizers 0.23.2";

/// Builds the vocabulary of a `tokenizer.json`: tables, audit and encoder.
///
/// With `verdicts`, a directory, a probe that found no difference is remembered there under the
/// vocabulary's fingerprint, and the next start neither probes nor loads the reference (which then
/// loads on first use).
///
/// # Errors
/// [`Profile`](crate::ErrorKind::Profile): `tokenizers` cannot read the file, its decoder is not
/// supported, or ordinary text can spell one of its special tokens (such a vocabulary cannot keep
/// a client from forging one).
pub fn choose(definition: Definition, verdicts: Option<&Path>) -> Result<Vocabulary> {
    let added = definition.added().to_vec();
    let pieces = definition.pieces()?;
    let fingerprint = definition.fingerprint();
    let name = definition.name().to_owned();
    let normalizer = definition.section("normalizer");
    let pre_tokenizer = definition.section("pre_tokenizer");
    let chunks = definition.chunks().cloned();
    let mut cuts = SafeCuts::audit(&added, normalizer, pre_tokenizer);
    if let Some(chunks) = &chunks {
        chunks.judge(&added, &mut cuts);
    }
    let runs = Runs::new(&added, &cuts, first_piece_differs(pre_tokenizer))
        .map_err(|error| Error::profile(format!("{name}: {}", error.detail())))?;
    let known_difference = known_difference(&definition, &cuts);
    let (json, text) = definition.into_parts();
    let reference = Arc::new(LazyReference::new(name.clone(), text, added.clone()));

    let (encoder, choice) = if let Some(difference) = known_difference {
        reference.set(reference.fresh()?);
        (None, format!("tokenizers: {difference}"))
    } else {
        let texts = probe::texts(&added);
        let verdict = verdicts.map(|directory| Verdict::new(directory, &fingerprint, &texts));
        probed(json, &reference, &texts, verdict.as_ref())?
    };
    let mut encoder = encoder.unwrap_or_else(|| Box::new(Arc::clone(&reference)));
    let mut reference: Box<dyn Encoder> = Box::new(reference);
    if let Some(chunks) = &chunks {
        encoder = Box::new(Chunked::new(encoder, chunks)?);
        reference = Box::new(Chunked::new(reference, chunks)?);
    }

    for token in added.iter().filter(|token| token.special) {
        let mut ids = Vec::new();
        encoder.encode(&token.content, false, &mut ids)?;
        if ids.contains(&token.id) {
            return Err(Error::profile(format!(
                "{name}: ordinary text can spell the special token '{}'",
                token.content
            )));
        }
    }
    Ok(Vocabulary { encoder, reference, pieces, added, cuts, runs, choice, fingerprint })
}

/// `fastokens`, if it may serve, and why or why not.
fn probed(
    json: Value,
    reference: &Arc<LazyReference>,
    texts: &[String],
    verdict: Option<&Verdict>,
) -> Result<(Option<Box<dyn Encoder>>, String)> {
    let unusable =
        |error: &Error| (None, format!("tokenizers: fastokens cannot load it: {}", error.detail()));
    let equal = format!("fastokens: equal to tokenizers on {} texts", texts.len());
    if verdict.is_some_and(Verdict::passed) {
        return Ok(match FastEncoder::load(json, Arc::clone(reference)) {
            Ok(fast) => (Some(Box::new(fast)), format!("{equal} (kept verdict)")),
            Err(error) => unusable(&error),
        });
    }
    let (fast, checker) = thread::scope(|scope| {
        let fast = scope.spawn(|| FastEncoder::load(json, Arc::clone(reference)));
        let checker = reference.fresh();
        let panicked = |_| Err(Error::profile("it panicked"));
        (fast.join().unwrap_or_else(panicked), checker)
    });
    let checker = checker?;
    let refused = match fast {
        Ok(fast) => match first_difference(&fast, &checker, texts) {
            None => {
                if let Some(verdict) = verdict {
                    verdict.keep();
                }
                // The checker is dropped: a profile that serves keeps one encoder in memory.
                return Ok((Some(Box::new(fast)), equal));
            }
            Some(difference) => (None, format!("tokenizers: {difference}")),
        },
        Err(error) => unusable(&error),
    };
    reference.set(checker);
    Ok(refused)
}

/// A difference between `fastokens` 0.3.5 and `tokenizers` that a probe may miss.
fn known_difference(definition: &Definition, cuts: &SafeCuts) -> Option<&'static str> {
    // `tokenizers` looks for raw and for normalized added tokens one after the other. Without a
    // normalizer `fastokens` looks once; that shows only where the two kinds touch, or where a
    // flag makes a match depend on what is beside it.
    let added = definition.added();
    let both = added.iter().any(|token| token.normalized) && !added.iter().all(|t| t.normalized);
    if both && definition.section("normalizer").is_none() && cuts.refused().next().is_some() {
        return Some("fastokens looks for raw and for normalized added tokens in one scan");
    }
    // Where characters can be unknown, `tokenizers` drops them and merges what is on both sides;
    // without a ByteLevel step `fastokens` splits there first.
    let pre_tokenizer = definition.section("pre_tokenizer");
    let model = definition.section("model");
    let falls_back = model.and_then(|model| model.get("byte_fallback")) == Some(&Value::Bool(true));
    if !falls_back && !pre_tokenizer.is_some_and(has_byte_level) {
        return Some("fastokens splits at unknown characters, where it should merge across them");
    }
    None
}

/// Whether a pre-tokenizer is or has a `ByteLevel` step.
fn has_byte_level(step: &Value) -> bool {
    let steps = step.get("pretokenizers").and_then(Value::as_array);
    step.get("type").is_some_and(|kind| kind == "ByteLevel")
        || steps.into_iter().flatten().any(has_byte_level)
}

/// Where the two encoders first disagree.
fn first_difference(fast: &FastEncoder, reference: &HfEncoder, texts: &[String]) -> Option<String> {
    let mut expected: Vec<TokenId> = Vec::new();
    for text in texts {
        for control in [true, false] {
            expected.clear();
            if let Err(error) = reference.encode(text, control, &mut expected) {
                return Some(format!("tokenizers failed on {text:?}: {error:#}"));
            }
            match fast.attempt(text, control) {
                Ok(ids) if ids == expected => {}
                Ok(ids) => {
                    return Some(format!(
                        "fastokens differs on {text:?} (control tokens {}): {ids:?}, not \
                         {expected:?}",
                        if control { "on" } else { "off" }
                    ));
                }
                Err(error) => return Some(format!("fastokens failed on {text:?}: {error}")),
            }
        }
    }
    None
}

/// A file that says: this vocabulary passed this probe with these libraries.
struct Verdict(PathBuf);

impl Verdict {
    fn new(directory: &Path, fingerprint: &[u8; 32], texts: &[String]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(fingerprint);
        hasher.update(LIBRARIES.as_bytes());
        for text in texts {
            hasher.update(&text.len().to_le_bytes());
            hasher.update(text.as_bytes());
        }
        Self(directory.join(format!("tokenizer-{}", hasher.finalize().to_hex())))
    }

    fn passed(&self) -> bool {
        self.0.is_file()
    }

    /// A verdict that cannot be written costs the next start its probe, and nothing else.
    fn keep(&self) {
        let mut line = String::from("fastokens equals tokenizers: ");
        let _ = writeln!(line, "{LIBRARIES}");
        if let Some(directory) = self.0.parent() {
            let _ = fs::create_dir_all(directory);
        }
        let _ = fs::write(&self.0, line);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::LIBRARIES;

    #[test]
    fn the_libraries_named_are_the_libraries_used() {
        let manifest = include_str!("../../Cargo.toml");
        for library in LIBRARIES.split(", ") {
            let (name, version) = library.split_once(' ').unwrap();
            let pin = format!("{name} = {{ version = \"={version}\"");
            assert!(manifest.contains(&pin), "Cargo.toml does not pin {library}");
        }
    }
}
