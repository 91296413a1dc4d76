//! A committed turn.
//!
//! Two lineages meet in a node. Its *parent* is the response that it continues: items accumulate
//! along parents. Its *base* is where its tokens begin: usually all of the parent's, but a rebase
//! or a rewind keeps only the first of them and brings its own segments for the rest. Nothing in a
//! committed node ever changes, except that its tape may be taken by the turn that extends it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::chain::{Before, Dropped, End, Fingerprint, Held, Meter, Segment, Tape, View};
use crate::header::{Header, Knobs};
use crate::item::Item;

/// How a node's tokens end, and so what the next turn must emit first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// Nothing rendered yet.
    Empty,
    /// Every message is closed.
    Closed,
    /// Sampled ids, which end so.
    Sampled(End),
}

/// What a turn hands over when it commits.
#[derive(Debug)]
pub struct NodeParts {
    /// The response that this one continues.
    pub parent: Option<Node>,
    /// The node whose first tokens are this one's, and how many.
    pub base: Option<(Node, usize)>,
    /// The tokens behind the base.
    pub segments: Vec<Segment>,
    /// All tokens, base included.
    pub token_count: usize,
    /// This turn's items: its input, then its output.
    pub items: Vec<Arc<Item>>,
    /// How many of them are input.
    pub input_items: usize,
    /// Identifies all items of the chain up to here.
    pub fingerprint: Fingerprint,
    /// The header that its prompt was rendered with.
    pub header: Arc<Header>,
    /// How many of the chain's first items stand in the header's span.
    pub leading: usize,
    /// How the tokens end.
    pub tail: Tail,
    /// Calls without an output yet: (`call_id`, name), oldest first.
    pub unanswered: Vec<(String, String)>,
    /// What stands before the next message.
    pub before: Before,
    /// Whether the template itself printed the prompt.
    pub printed: bool,
    /// The soonest that any segment's reasoning is dropped.
    pub dropped: Dropped,
    /// How the model was to speak.
    pub knobs: Knobs,
    /// When the conversation began, in seconds since 1970: what its template's clock shows.
    pub began: i64,
    /// Whether the parent was found by what it says, not named: the request held all of it.
    pub found: bool,
    /// Fingerprint of the profile that its tokens are of.
    pub profile: [u8; 32],
    /// The flat tokens, for the turn that extends this one.
    pub tape: Option<Tape>,
    /// What counts its memory.
    pub meter: Meter,
}

/// Bytes of a node beside its tokens and items, roughly: itself, and its place in the index.
const NODE_BYTES: usize = 512;

/// A committed turn; cloning shares it. Keeps its ancestors alive.
#[derive(Debug, Clone)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parts: NodeParts,
    first_item: usize,
    tape: Mutex<Option<Tape>>,
    /// Whether a committed turn goes on from here.
    continued: AtomicBool,
    _held: Held,
}

/// A node that this does not keep alive.
#[derive(Debug, Clone)]
pub(super) struct WeakNode(Weak<Inner>);

impl WeakNode {
    pub(super) fn upgrade(&self) -> Option<Node> {
        self.0.upgrade().map(Node)
    }
}

/// A node's own segments, walked from the root of its tokens.
pub struct Lineage(Vec<(Node, usize)>);

impl Node {
    /// Publishes a committed turn.
    #[must_use]
    pub fn new(mut parts: NodeParts) -> Self {
        let first_item = parts.parent.as_ref().map_or(0, Node::item_count);
        let tape = Mutex::new(parts.tape.take());
        // A segment that has moved here is counted where it came from.
        let own = parts.segments.iter().filter(|segment| Arc::strong_count(&segment.ids) == 1);
        let tokens: usize = own.map(|segment| size_of_val(segment.ids.as_ref())).sum();
        let segments = size_of_val(parts.segments.as_slice());
        let items: usize = parts.items.iter().map(|item| item.bytes()).sum();
        let held = parts.meter.hold(NODE_BYTES + tokens + segments + items);
        let continued = AtomicBool::new(false);
        Self(Arc::new(Inner { parts, first_item, tape, continued, _held: held }))
    }

    /// Everything that was handed over, but for the tape.
    #[must_use]
    pub fn parts(&self) -> &NodeParts {
        &self.0.parts
    }

    /// Prompt and sampled tokens.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.0.parts.token_count
    }

    /// Items of the whole chain up to here.
    #[must_use]
    pub fn item_count(&self) -> usize {
        self.0.first_item + self.0.parts.items.len()
    }

    /// Whether no item but the leading instructions stands in the chain, and the model said nothing.
    #[must_use]
    pub fn only_instructs(&self) -> bool {
        let seen = self.item_count();
        let sampled = matches!(self.0.parts.tail, Tail::Sampled(_));
        let last = || self.items(seen - 1..seen).iter().all(|item| item.is_instruction());
        seen == 0 || !sampled && self.0.parts.leading == seen && last()
    }

    /// The items with these indices, oldest first. Walks back only as far as needed.
    #[must_use]
    pub fn items(&self, range: Range<usize>) -> Vec<Arc<Item>> {
        let mut newest_first: Vec<Arc<Item>> = Vec::with_capacity(range.len());
        let mut next = Some(self);
        while let Some(node) = next.filter(|node| node.item_count() > range.start) {
            let first = node.0.first_item;
            for (offset, item) in node.0.parts.items.iter().enumerate().rev() {
                if range.contains(&(first + offset)) {
                    newest_first.push(Arc::clone(item));
                }
            }
            next = node.0.parts.parent.as_ref();
        }
        newest_first.reverse();
        newest_first
    }

    /// Whether `given` says what this chain's items say, as a client that sends everything would
    /// say it. What the model sampled is recognised in the client's spelling: without its
    /// reasoning, or with the arguments of a call written otherwise.
    #[must_use]
    pub fn echoes(&self, given: &[Arc<Item>]) -> bool {
        let mut given = given.iter().map(Arc::as_ref).peekable();
        let blank = |item: &Item| matches!(item, Item::Reasoning { text } if text.is_empty());
        for (item, sampled) in self.items_sampled() {
            if let Item::Reasoning { .. } = item.as_ref() {
                if given.next_if(|next| *next == item.as_ref() || sampled && blank(next)).is_none()
                    && (!sampled || matches!(given.peek(), Some(Item::Reasoning { .. })))
                {
                    return false;
                }
                continue;
            }
            while given.next_if(|next| blank(next)).is_some() {}
            let same = match (item.as_ref(), given.next()) {
                (
                    Item::Call { call_id, name, arguments },
                    Some(Item::Call { call_id: id, name: named, arguments: spelled }),
                ) if sampled => {
                    (call_id, name) == (id, named)
                        && Item::canonical(arguments) == Item::canonical(spelled)
                }
                (item, next) => Some(item) == next,
            };
            if !same {
                return false;
            }
        }
        given.next().is_none()
    }

    /// The chain's items, oldest first, and where the turns' outputs lie among them.
    #[must_use]
    pub fn turns(&self) -> (Vec<Arc<Item>>, Vec<Range<usize>>) {
        let mut outputs = Vec::new();
        let mut next = Some(self);
        while let Some(node) = next {
            let end = node.item_count();
            let sampled = node.0.parts.items.len() - node.0.parts.input_items;
            if sampled > 0 {
                outputs.push(end - sampled..end);
            }
            next = node.0.parts.parent.as_ref();
        }
        outputs.reverse();
        (self.items(0..self.item_count()), outputs)
    }

    /// Every item of the chain, oldest first, and whether the model sampled it.
    fn items_sampled(&self) -> Vec<(Arc<Item>, bool)> {
        let mut newest_first = Vec::with_capacity(self.item_count());
        let mut next = Some(self);
        while let Some(node) = next {
            let parts = &node.0.parts;
            for (index, item) in parts.items.iter().enumerate().rev() {
                newest_first.push((Arc::clone(item), index >= parts.input_items));
            }
            next = parts.parent.as_ref();
        }
        newest_first.reverse();
        newest_first
    }

    /// The newest item that `wanted` accepts, searched from the newest on.
    #[must_use]
    pub fn find_item(&self, wanted: impl Fn(&Item) -> bool) -> Option<Arc<Item>> {
        let mut next = Some(self);
        while let Some(node) = next {
            if let Some(item) = node.0.parts.items.iter().rev().find(|item| wanted(item)) {
                return Some(Arc::clone(item));
            }
            next = node.0.parts.parent.as_ref();
        }
        None
    }

    pub(super) fn downgrade(&self) -> WeakNode {
        WeakNode(Arc::downgrade(&self.0))
    }

    /// Notes that a committed turn goes on from here; false when one did already.
    #[must_use]
    pub fn continue_first(&self) -> bool {
        !self.0.continued.swap(true, Relaxed)
    }

    /// Bytes of its tape; 0 where it has none.
    #[must_use]
    pub fn tape_bytes(&self) -> usize {
        let slot = self.0.tape.lock().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref().map_or(0, Tape::bytes)
    }

    /// Takes the tape; the first turn that extends a tip gets it, a fork does not.
    #[must_use]
    pub fn take_tape(&self) -> Option<Tape> {
        self.0.tape.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Gives the tape back after an aborted turn.
    pub fn return_tape(&self, tape: Tape) {
        debug_assert_eq!(tape.len(), self.token_count());
        let mut slot = self.0.tape.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert(tape);
    }

    /// The nodes that hold this one's tokens, root first, each with how many tokens of it count.
    #[must_use]
    pub fn lineage(&self) -> Lineage {
        self.lineage_to(self.token_count())
    }

    /// The same for the first `len` tokens only.
    #[must_use]
    pub fn lineage_to(&self, len: usize) -> Lineage {
        let mut nodes = Vec::new();
        let mut next = Some((self.clone(), len));
        while let Some((node, keep)) = next {
            let base = node.0.parts.base.clone();
            nodes.push((node, keep));
            // A later rewind may keep less of the base than the base's child did.
            next = base.map(|(base, base_keep)| (base, base_keep.min(keep)));
        }
        nodes.reverse();
        Lineage(nodes)
    }

    /// The flat tokens: the tape where it is here, else a copy.
    #[must_use]
    pub fn view(&self) -> View {
        let slot = self.0.tape.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tape) = slot.as_ref() {
            return tape.view();
        }
        drop(slot);
        self.lineage().tape(self.token_count()).view()
    }
}

impl Lineage {
    /// Every segment that counts, root first.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.0.iter().flat_map(|(node, keep)| {
            let base = node.0.parts.base.as_ref().map_or(0, |(_, base_keep)| *base_keep);
            let mut end = base;
            node.0.parts.segments.iter().take_while(move |segment| {
                end += segment.ids.len();
                end <= *keep
            })
        })
    }

    /// A new tape of the first `len` tokens; `len` must be the end of a segment.
    #[must_use]
    pub fn tape(&self, len: usize) -> Tape {
        let mut end = 0;
        let parts = self.segments().map(|segment| segment.ids.as_ref()).take_while(move |ids| {
            end += ids.len();
            end <= len
        });
        Tape::from_parts(parts, len)
    }
}

impl Drop for Inner {
    /// A chain of a million nodes must not need a million stack frames to go.
    fn drop(&mut self) {
        let mut orphans = Vec::new();
        let release = |parts: &mut NodeParts, orphans: &mut Vec<Node>| {
            orphans.extend(parts.parent.take());
            orphans.extend(parts.base.take().map(|(node, _)| node));
        };
        release(&mut self.parts, &mut orphans);
        while let Some(Node(node)) = orphans.pop() {
            if let Some(mut inner) = Arc::into_inner(node) {
                release(&mut inner.parts, &mut orphans);
            }
        }
    }
}
