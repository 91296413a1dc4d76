//! Committed turns in memory: immutable nodes with parent pointers, the tape of a tip, and the
//! index by which a conversation that comes again is recognised.

mod budget;
mod index;
mod node;
mod tape;

pub use budget::{Held, Meter};
pub use index::{Budget, Fingerprint, Index};
pub use node::{Dropped, Lineage, Node, NodeParts, Segment, Tail, spans};
pub use tape::{Tape, View};
