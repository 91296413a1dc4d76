//! A committed node as bytes that outlive the process: what its turn brought, and no more.
//!
//! ```text
//! blob     = record+                       records follow each other: so a parent's joins its child's
//! record   = "tw" version:u8 len:u32le payload[len] check[8]       check = blake3(payload)[..8]
//! payload  = alone:u8 profile[32] began:i64le header items [tokens]
//! header   = 0, the parent's | 1 (0 | 1 bytes){3} front:tool… loaded:tool…   raw JSON, added tools
//! tool     = kind:u8 name own_name declaration (0 | 1 string){3}   namespace, description, schema
//! items    = input:n count:n (kind:u8 string…)*
//! tokens   = parent_tokens:n keep:n segment* tail unanswered before leading:n flags knobs
//! n        = LEB128; bytes, string = n and so many bytes
//! ```
//!
//! `alone` records have no tokens and continue nothing: turns whose past was found by what their
//! request says, which therefore says all of it. Ids are LEB128 too, or the number of one of the
//! parent's segments, which has moved. A blob comes from a database, so nothing in it is trusted:
//! every count is bounded by the bytes that are left, every index by what it points into.

mod bytes;
mod read;
mod write;

pub use read::{Reading, Record};

/// What the format's next change makes 2.
const VERSION: u8 = 1;

const MAGIC: &[u8; 2] = b"tw";

/// Magic, version, length.
const HEAD: usize = 7;

/// Bytes of a payload's hash that follow it.
const CHECK: usize = 8;

/// A segment's ids stand in the record.
const OWN: u8 = 0;
/// They are a segment's of the parent.
const MOVED: u8 = 1;
