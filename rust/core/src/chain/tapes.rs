//! Which tips keep their tape. A tape saves its chain's next turn one memcpy and costs four bytes a
//! token beside the segments, so all of them together may hold an eighth of the budget: the most
//! recently committed ones.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::chain::{Node, node::WeakNode};

/// The share of the budget that tapes may hold.
const SHARE: usize = 8;

/// The committed nodes that have a tape, oldest first; and some that have lost it since.
#[derive(Debug)]
pub struct Tapes {
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    nodes: VecDeque<(WeakNode, usize)>,
    bytes: usize,
}

impl Tapes {
    /// None yet, of chains that may hold `budget` bytes.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self { limit: budget / SHARE, kept: Mutex::default() }
    }

    /// Notes that `node` has its tape, and takes the oldest others' where there is too much.
    pub fn add(&self, node: &Node) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = node.tape_bytes();
        kept.nodes.push_back((node.downgrade(), bytes));
        kept.bytes += bytes;
        if kept.bytes <= self.limit {
            return;
        }
        // Most of those before have given theirs to the turn that extended them.
        kept.nodes.retain(|(node, _)| node.upgrade().is_some_and(|node| node.tape_bytes() > 0));
        kept.bytes = kept.nodes.iter().map(|(_, bytes)| bytes).sum();
        while kept.bytes > self.limit {
            let Some((oldest, bytes)) = kept.nodes.pop_front() else { break };
            kept.bytes -= bytes;
            drop(oldest.upgrade().and_then(|node| node.take_tape()));
        }
    }
}
