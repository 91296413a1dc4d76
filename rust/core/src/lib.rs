//! Items to tokens and back: the append-only rendered-token cache of turnwire.
//!
//! # The map
//!
//! ```text
//! audit             what a profile was found to be, for people
//! turn, open        a response in the making: open → push* → finish → commit | abort
//!   profile         one model: tokenizer + template + family, fingerprinted
//!     family        one format per file, both directions: items → chunks, tokens → deltas
//!     load          what people have on disk: Hugging Face folders, GGUF
//!     detokenize    id → bytes, with UTF-8 held back
//!       chain       committed turns in memory; the tape of a tip
//!       header      instructions, tools and tool choice, parsed once
//!       item        the items of a request, from raw JSON
//!       tokenizer   text → ids; at which ids a prompt may be cut
//!         json, token, error
//! ```
//!
//! # The laws
//!
//! `docs/design.md` has them too, and the decisions that comments cite: D1 to D12.
//!
//! 1. **Append-only.** `prompt[:prefix_len] == tokens(parent)[:prefix_len]`. A committed token
//!    never changes.
//! 2. **Verbatim.** A sampled span equals the ids pushed, id for id, whatever text they spell (a
//!    final stop token may be replaced by the family's close; what the generic path must encode
//!    again is marked `reencoded`, and counted).
//! 3. **Whole.** Item spans partition the prompt; bytes(tokens(span)) == bytes(text(span)).
//! 4. **Cut-safe.** Encoding the pieces apart equals the reference tokenizer on the whole.
//! 5. **Same as naive.** The fast path equals a from-scratch render of the same items with jinja2
//!    and HF `tokenizers`, outside sampled spans; inside them the special-token skeleton is equal.
//! 6. **Chunk-blind.** Any split of sampled ids into pushes yields the same deltas and text.
//! 7. **Flat.** Opening a turn at a tip costs what is new: nothing in it is proportional to
//!    history. A fork or rebase costs one memcpy.
//! 8. **Checked.** Our ids for probe conversations equal the engine's own where it can render;
//!    each turn's count equals the engine's; a mismatch is counted and falls back to the generic
//!    path. (Both are compared when an engine is attached.)
//!
//! Nothing in this crate knows Python, sockets, an async runtime or the wire's events.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod audit;
pub mod chain;
pub mod detokenize;
pub mod error;
pub mod family;
pub mod header;
pub mod item;
pub mod json;
pub mod load;
pub mod open;
pub mod profile;
pub mod token;
pub mod tokenizer;
pub mod turn;

pub use chain::{Budget, Node, View};
pub use error::{Error, ErrorKind, Result};
pub use open::{Chains, OpenRequest};
pub use profile::{History, Options, Profile, Trust};
pub use token::{Origin, Span, SpanKind, TokenId};
pub use turn::{Constraint, Kind, Told, Turn};
