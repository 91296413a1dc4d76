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

use super::cuts::SafeCuts;
use super::definition::Definition;
use super::fast::FastEncoder;
use super::hf::{HfEncoder, LazyReference};
use super::{Encoder, Vocabulary, probe};
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
    let name = definition.name().to_owned();
    let added = definition.added().to_vec();
    let pieces = definition.pieces()?;
    let fingerprint = definition.fingerprint();
    let cuts = SafeCuts::audit(
        &added,
        definition.section("normalizer"),
        definition.section("pre_tokenizer"),
    );
    let texts = probe::texts(&added);
    let verdict = verdicts.map(|directory| Verdict::new(directory, &fingerprint, &texts));
    let (json, text) = definition.into_parts();
    let reference = Arc::new(LazyReference::new(name.clone(), text, added.clone()));

    let (encoder, choice): (Box<dyn Encoder>, String) = if verdict
        .as_ref()
        .is_some_and(Verdict::passed)
    {
        match FastEncoder::load(json, Arc::clone(&reference)) {
            Ok(fast) => (
                Box::new(fast),
                format!("fastokens: equal to tokenizers on {} texts (kept verdict)", texts.len()),
            ),
            Err(error) => (Box::new(Arc::clone(&reference)), unusable(&error)),
        }
    } else {
        let (fast, checker) = thread::scope(|scope| {
            let fast = scope.spawn(|| FastEncoder::load(json, Arc::clone(&reference)));
            let checker = reference.fresh();
            let fast =
                fast.join().unwrap_or_else(|_| Err(Error::profile("it panicked while loading")));
            (fast, checker)
        });
        let checker = checker?;
        match fast.map(|fast| (first_difference(&fast, &checker, &texts), fast)) {
            Ok((None, fast)) => {
                if let Some(verdict) = &verdict {
                    verdict.keep();
                }
                // The checker is dropped: a profile that serves keeps one encoder in memory.
                (Box::new(fast), format!("fastokens: equal to tokenizers on {} texts", texts.len()))
            }
            Ok((Some(difference), _)) => {
                reference.set(checker);
                (Box::new(Arc::clone(&reference)), format!("tokenizers: {difference}"))
            }
            Err(error) => {
                reference.set(checker);
                (Box::new(Arc::clone(&reference)), unusable(&error))
            }
        }
    };

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
    Ok(Vocabulary {
        encoder,
        reference: Box::new(reference),
        pieces,
        added,
        cuts,
        choice,
        fingerprint,
    })
}

fn unusable(error: &Error) -> String {
    format!("tokenizers: fastokens does not support this vocabulary: {}", error.detail())
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
