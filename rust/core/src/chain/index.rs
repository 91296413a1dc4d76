//! Finding the past by what it says (D7): committed nodes by the fingerprint of their items.
//!
//! A client that sends its whole conversation with every request pays only for what is new: the
//! longest known beginning of it is a node here. Nothing is found across scopes. What is here is
//! held within a budget of bytes and a time to live; what a session or a turn holds besides lives
//! on without it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ahash::RandomState;

use crate::chain::{Held, Meter, Node, Tapes};
use crate::header::Header;
use crate::item::Item;

/// Stands for a row of items: a keyed hash over each item's content and the row before it.
///
/// It only proposes a node: whoever finds one compares the items themselves ([`Index::find`]), so
/// a collision hides a node and never shows a wrong one (docs/decisions/0005). Reasoning is left
/// out, since many clients do not send it back.
pub type Fingerprint = u64;

/// How much an [`Index`] may hold, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of tokens, tapes and items, of all chains of the profile.
    pub bytes: usize,
    /// Nodes that nobody has continued or found for so long are forgotten.
    pub ttl: Duration,
}

/// The committed nodes of one profile's chains, by scope and fingerprint.
#[derive(Debug)]
pub struct Index {
    hasher: RandomState,
    budget: Budget,
    meter: Meter,
    tapes: Tapes,
    headers: Mutex<VecDeque<KnownHeader>>,
    entries: Mutex<Entries>,
}

/// Whose it is, the header, and its bytes.
type KnownHeader = (Arc<[u8]>, Arc<Header>, Held);

/// How many headers are kept parsed: agents send the same one in every request.
const HEADERS: usize = 64;

#[derive(Debug, Default)]
struct Entries {
    by_fingerprint: HashMap<Key, Entry>,
    /// Oldest use first.
    by_use: BTreeMap<u64, Key>,
    uses: u64,
}

type Key = (Arc<[u8]>, Fingerprint);

#[derive(Debug)]
struct Entry {
    node: Node,
    use_number: u64,
    used: Instant,
}

impl Index {
    /// An empty index. Its hash key is random, so that nobody can aim at a collision.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        let hasher = RandomState::new();
        let tapes = Tapes::new(budget.bytes);
        let (meter, headers, entries) = (Meter::default(), Mutex::default(), Mutex::default());
        Self { hasher, budget, meter, tapes, headers, entries }
    }

    /// What counts the bytes of everything in these chains.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The tips that have a tape.
    #[must_use]
    pub fn tapes(&self) -> &Tapes {
        &self.tapes
    }

    /// The header with this key that the scope has sent before.
    #[must_use]
    pub fn header(&self, scope: &Arc<[u8]>, key: &[u8; 32]) -> Option<Arc<Header>> {
        let headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        let known =
            headers.iter().rev().find(|(owner, header, _)| header.key == *key && owner == scope);
        known.map(|(_, header, _)| Arc::clone(header))
    }

    /// Keeps a header that the scope may send again.
    pub fn keep_header(&self, scope: &Arc<[u8]>, header: &Arc<Header>) {
        let held = self.meter.hold(header.bytes());
        let mut headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        headers.push_back((Arc::clone(scope), Arc::clone(header), held));
        if headers.len() > HEADERS {
            headers.pop_front();
        }
    }

    /// How many nodes can be found.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries().by_fingerprint.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The fingerprint of the row that `item` makes of `before`.
    #[must_use]
    pub fn extend(&self, before: Fingerprint, item: &Item) -> Fingerprint {
        if matches!(item, Item::Reasoning { .. }) {
            return before;
        }
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(before);
        let mut field = |bytes: &[u8]| {
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        };
        field(item.type_name().as_bytes());
        match item {
            Item::Message { role, text } => {
                field(role.as_str().as_bytes());
                field(text.as_bytes());
            }
            // Clients that parse arguments send them back in their own spelling.
            Item::Call { call_id, name, arguments } => {
                field(call_id.as_bytes());
                field(name.as_bytes());
                field(Item::canonical(arguments).as_bytes());
            }
            Item::Output { call_id, text } => {
                field(call_id.as_bytes());
                field(text.as_bytes());
            }
            Item::Reasoning { .. } => {}
        }
        hasher.finish()
    }

    /// The node that holds the longest beginning of `items` in this scope, and how many of them
    /// it holds. An item of a node that the model sampled stands for the client's echo of it, also
    /// without its reasoning and with its arguments spelled otherwise; all else must be equal.
    #[must_use]
    pub fn find(&self, scope: &Arc<[u8]>, items: &[Arc<Item>]) -> Option<(Node, usize)> {
        let mut row = 0;
        let rows: Vec<Fingerprint> = items
            .iter()
            .map(|item| {
                row = self.extend(row, item);
                row
            })
            .collect();
        for (index, row) in rows.iter().enumerate().rev() {
            // Reasoning at the end of a beginning belongs to what follows it.
            if matches!(items[index].as_ref(), Item::Reasoning { .. }) {
                continue;
            }
            let key = (Arc::clone(scope), *row);
            let Some(node) = self.entries().get(&key, self.budget.ttl) else { continue };
            if node.echoes(&items[..=index]) {
                return Some((node, index + 1));
            }
        }
        None
    }

    /// Makes a committed node findable, and lets go of what is too old or too much. A later node
    /// that says the same replaces an earlier one.
    pub fn insert(&self, scope: &Arc<[u8]>, node: &Node) {
        self.entries().insert((Arc::clone(scope), node.parts().fingerprint), node.clone());
        // One at a time, since only a node that is gone frees its bytes; and not behind the lock,
        // since a long chain takes its time to go.
        loop {
            let Some(gone) = self.entries().shrink(&self.budget, &self.meter) else { break };
            drop(gone);
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn get(&mut self, key: &Key, ttl: Duration) -> Option<Node> {
        let entry = self.by_fingerprint.get_mut(key)?;
        if entry.used.elapsed() > ttl {
            return None;
        }
        entry.used = Instant::now();
        self.by_use.remove(&entry.use_number);
        self.uses += 1;
        entry.use_number = self.uses;
        self.by_use.insert(self.uses, key.clone());
        Some(entry.node.clone())
    }

    fn insert(&mut self, key: Key, node: Node) {
        self.uses += 1;
        let entry = Entry { node, use_number: self.uses, used: Instant::now() };
        self.by_use.insert(self.uses, key.clone());
        if let Some(old) = self.by_fingerprint.insert(key, entry) {
            self.by_use.remove(&old.use_number);
        }
    }

    /// Takes out the least recently used node if it is too old, or if there is too much. Its tape
    /// goes first, and may be enough: it can be made again from the segments.
    fn shrink(&mut self, budget: &Budget, meter: &Meter) -> Option<Node> {
        let (&oldest, key) = self.by_use.first_key_value()?;
        let entry = self.by_fingerprint.get(key)?;
        if entry.used.elapsed() <= budget.ttl {
            if meter.bytes() > budget.bytes {
                drop(entry.node.take_tape());
            }
            if meter.bytes() <= budget.bytes {
                return None;
            }
        }
        let key = key.clone();
        self.by_use.remove(&oldest);
        self.by_fingerprint.remove(&key).map(|entry| entry.node)
    }
}
