//! The core's doors under arbitrary input.
//!
//! Each target is a function of bytes that panics where the core breaks a promise: only documented
//! errors come out, never [`ErrorKind::Invariant`]. `make fuzz` drives them by coverage, an ordinary
//! test by mutations of their [`seeds`]. See `docs/fuzzing.md`.

#![allow(clippy::expect_used, clippy::panic, reason = "a target reports by panicking")]

use turnwire_core::{Error, ErrorKind};

pub mod detokenize;
pub mod gguf;
pub mod items;
pub mod models;
pub mod push;
pub mod seeds;

/// A target: it panics where a promise breaks.
pub type Target = fn(&[u8]);

/// Every target, by name.
pub const TARGETS: [(&str, Target); 4] = [
    ("items", items::run),
    ("push", push::run),
    ("detokenize", detokenize::run),
    ("gguf", gguf::run),
];

/// What a door answered, if it is one of the answers that a caller may cause.
fn allowed<T>(answer: Result<T, Error>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::Invariant, "{error:#}");
            assert!(!error.detail().is_empty(), "an error that says nothing");
            None
        }
    }
}
