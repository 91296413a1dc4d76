//! Committed turns in memory: immutable nodes with parent pointers, and the tape of a tip.

mod node;
mod tape;

pub use node::{Dropped, Lineage, Node, NodeParts, Segment, Tail, spans};
pub use tape::{Tape, View};
