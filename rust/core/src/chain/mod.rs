//! Committed turns in memory: immutable nodes with parent pointers, the tape of a tip, and the
//! index by which a conversation that comes again is recognised.

mod before;
mod budget;
mod export;
mod index;
mod node;
mod segment;
mod tape;
mod tapes;

pub use before::{Before, End, Last};
pub use budget::{Held, Meter};
pub use export::{Reading, Record};
pub use index::{Budget, Fingerprint, Index};
pub use node::{Lineage, Node, NodeParts, Tail};
pub use segment::{Dropped, Extent, Imprint, Segment, spans};
pub use tape::{Tape, View};
pub use tapes::Tapes;
