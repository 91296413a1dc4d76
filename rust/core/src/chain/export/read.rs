//! A node from its record.

use std::sync::Arc;

use super::bytes::{Left, broken};
use super::write::{DROPPED, KINDS, LASTS, ORIGINS, ROLES, TAILS, TOOLS};
use super::{CHECK, HEAD, MAGIC, VERSION};
use crate::chain::{Before, Extent, Imprint, Index, Lineage, Node, NodeParts, Segment};
use crate::error::Result;
use crate::header::{Added, Header, Knobs, RawHeader, Tool};
use crate::item::Item;
use crate::token::TokenId;

/// One response as a blob holds it.
pub struct Record<'a> {
    /// Whether it continues nothing, and holds items only.
    pub alone: bool,
    /// Whose tokens it has.
    pub profile: [u8; 32],
    /// When the conversation began, in seconds since 1970.
    pub began: i64,
    /// The turn's items.
    pub items: Vec<Arc<Item>>,
    input_items: usize,
    header: Option<([Option<&'a [u8]>; 3], Added)>,
    tokens: &'a [u8],
}

/// What a record's tokens are read with.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// Where the node will belong.
    pub index: &'a Index,
    /// Whether the vocabulary has an id.
    pub knows: &'a dyn Fn(TokenId) -> bool,
}

impl<'a> Record<'a> {
    /// The first record of `blob`, and what is behind it.
    ///
    /// # Errors
    /// `invalid_value` at `blob` for what no export wrote.
    pub fn read(blob: &'a [u8]) -> Result<(Self, &'a [u8])> {
        let mut left = Left(blob);
        let head: [u8; HEAD] = left.array()?;
        if !head.starts_with(MAGIC) {
            return Err(broken("it begins otherwise"));
        }
        if head[MAGIC.len()] != VERSION {
            return Err(broken("its version is another one"));
        }
        let [.., a, b, c, d] = head;
        let payload = left.take(u32::from_le_bytes([a, b, c, d]) as usize)?;
        if left.take(CHECK)? != &blake3::hash(payload).as_bytes()[..CHECK] {
            return Err(broken("it has changed"));
        }
        let behind = left.0;
        let mut left = Left(payload);
        let alone = left.flag()?;
        let profile = left.array()?;
        let began = i64::from_le_bytes(left.array()?);
        let header = if left.flag()? {
            let raw = raw_header(&mut left)?;
            let (front, loaded) = (tools(&mut left)?, tools(&mut left)?);
            Some((raw, Added { front, loaded, left_out: Vec::new() }))
        } else {
            None
        };
        let input_items = usize::try_from(left.number()?).map_err(|_| broken("too many items"))?;
        let count = left.count(2)?;
        let items =
            (0..count).map(|_| item(&mut left).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        if input_items > items.len() {
            return Err(broken("it has more input than items"));
        }
        Ok((Self { alone, profile, began, items, input_items, header, tokens: left.0 }, behind))
    }

    /// Its header, which may be its parent's.
    ///
    /// # Errors
    /// `invalid_value` at `blob`.
    pub fn header(&self, parent: Option<&Node>) -> Result<Arc<Header>> {
        match (&self.header, parent) {
            (Some(([instructions, tools, tool_choice], added)), _) => {
                let (instructions, tools, tool_choice) = (*instructions, *tools, *tool_choice);
                let raw = RawHeader { instructions, tools, tool_choice };
                Header::parse_with(raw, None, added)
                    .map_err(|error| broken("its header cannot be read").with_source(error))
            }
            (None, Some(node)) => Ok(Arc::clone(&node.parts().header)),
            (None, None) => Err(broken("its parent is missing")),
        }
    }

    /// The node, with the tokens as they were; None where `parent` has others than the record
    /// continues.
    ///
    /// # Errors
    /// `invalid_value` at `blob`.
    pub fn node(self, parent: Option<&Node>, reading: Reading<'_>) -> Result<Option<Node>> {
        let header = self.header(parent)?;
        let index = reading.index;
        let mut left = Left(self.tokens);
        let parent_tokens = left.size(usize::MAX)?;
        if parent_tokens != parent.map_or(0, Node::token_count) {
            return Ok(None);
        }
        let keep = left.size(parent_tokens)?;
        let first_item = parent.map_or(0, Node::item_count);
        let all_items = first_item + self.items.len();
        let count = left.count(10)?;
        let mut moved = Moved { parent: parent.filter(|_| keep < parent_tokens), all: None };
        if keep > 0 && keep < parent_tokens && !moved.ends().any(|end| end == keep) {
            return Err(broken("it keeps half a segment"));
        }
        let segments = (0..count)
            .map(|_| segment(&mut left, &mut moved, reading.knows, all_items))
            .collect::<Result<Vec<_>>>()?;
        let tail = left.choice(&TAILS)?;
        let count = left.count(2)?;
        let unanswered =
            (0..count).map(|_| Ok((left.string()?, left.string()?))).collect::<Result<Vec<_>>>()?;
        let before = before(&mut left)?;
        let leading = left.size(all_items)?;
        let printed = left.flag()?;
        let dropped = left.choice(&DROPPED)?;
        let knobs = knobs(&mut left)?;
        if !left.0.is_empty() {
            return Err(broken("it goes on behind its end"));
        }
        let row = parent.map_or(0, |node| node.parts().fingerprint);
        let fingerprint = self.items.iter().fold(row, |row, item| index.extend(row, item));
        let own: usize = segments.iter().map(|segment| segment.ids.len()).sum();
        Ok(Some(Node::new(NodeParts {
            parent: parent.cloned(),
            base: parent.filter(|_| keep > 0).map(|node| (node.clone(), keep)),
            token_count: keep + own,
            segments,
            items: self.items,
            input_items: self.input_items,
            fingerprint,
            header,
            leading,
            tail,
            unanswered,
            before,
            printed,
            dropped,
            knobs,
            began: self.began,
            found: false,
            profile: self.profile,
            tape: None,
            meter: index.meter().clone(),
        })))
    }
}

/// The parent's segments, looked up only where one has moved.
struct Moved<'a> {
    parent: Option<&'a Node>,
    all: Option<Vec<Arc<[TokenId]>>>,
}

impl Moved<'_> {
    fn all(&mut self) -> &[Arc<[TokenId]>] {
        self.all.get_or_insert_with(|| {
            let lineage = self.parent.map(Node::lineage);
            let segments = lineage.iter().flat_map(Lineage::segments);
            segments.map(|segment| Arc::clone(&segment.ids)).collect()
        })
    }

    /// Where they end, in the parent's tokens.
    fn ends(&mut self) -> impl Iterator<Item = usize> {
        let mut end = 0;
        self.all().iter().map(move |ids| {
            end += ids.len();
            end
        })
    }
}

fn tools(left: &mut Left<'_>) -> Result<Vec<Tool>> {
    let count = left.count(7)?;
    let tool = |left: &mut Left<'_>| {
        let kind = left.choice(&TOOLS)?;
        let (name, own_name, declaration) = (left.string()?, left.string()?, left.string()?);
        let mut optional = || if left.flag()? { left.string().map(Some) } else { Ok(None) };
        let (namespace, description, schema) = (optional()?, optional()?, optional()?);
        Ok(Tool { name, own_name, namespace, kind, declaration, description, schema })
    };
    (0..count).map(|_| tool(left)).collect()
}

fn raw_header<'a>(left: &mut Left<'a>) -> Result<[Option<&'a [u8]>; 3]> {
    let mut fields = [None; 3];
    for field in &mut fields {
        if left.flag()? {
            *field = Some(left.bytes()?);
        }
    }
    Ok(fields)
}

fn item(left: &mut Left<'_>) -> Result<Item> {
    Ok(match left.byte()? {
        0 => Item::Message { role: left.choice(&ROLES)?, text: left.string()? },
        1 => Item::Reasoning { text: left.string()? },
        2 => {
            Item::Call { call_id: left.string()?, name: left.string()?, arguments: left.string()? }
        }
        3 => Item::Output { call_id: left.string()?, text: left.string()? },
        _ => return Err(broken("an unknown item")),
    })
}

fn segment(
    left: &mut Left<'_>,
    moved: &mut Moved<'_>,
    knows: &dyn Fn(TokenId) -> bool,
    all_items: usize,
) -> Result<Segment> {
    let ids: Arc<[TokenId]> = if left.flag()? {
        let all = moved.all();
        let last = all.len().checked_sub(1).ok_or_else(|| broken("nothing could have moved"))?;
        Arc::clone(&all[left.size(last)?])
    } else {
        let count = left.count(1)?;
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            let id = left.short()?;
            if !knows(id) {
                return Err(broken("the vocabulary lacks one of its ids"));
            }
            ids.push(id);
        }
        ids.into()
    };
    let kind = left.choice(&KINDS)?;
    let origin = left.choice(&ORIGINS)?;
    let dropped = left.choice(&DROPPED)?;
    let glue = left.flag()?;
    let items = extent(left, all_items)?;
    let reasoning = extent(left, ids.len())?;
    let len = left.short()?;
    let digest = if len > 0 { left.array()? } else { [0; 16] };
    let imprint = if len > 0 { Imprint::from_parts(len, digest) } else { Imprint::default() };
    let before = before(left)?;
    Ok(Segment { ids, kind, items, reasoning, dropped, glue, origin, imprint, before })
}

fn extent(left: &mut Left<'_>, most: usize) -> Result<Extent> {
    let (start, end) = (left.size(most)?, left.size(most)?);
    if start > end {
        return Err(broken("a range ends before it begins"));
    }
    Ok((start..end).into())
}

fn before(left: &mut Left<'_>) -> Result<Before> {
    let last = left.choice(&LASTS)?;
    let flags = left.byte()?;
    let [asked, answered, waits, spoke, had_output, thinking, tools] =
        [0, 1, 2, 3, 4, 5, 6].map(|bit| flags >> bit & 1 == 1);
    let calls = left.short()?;
    let last_calls = u16::try_from(left.number()?).map_err(|_| broken("too many calls"))?;
    Ok(Before {
        last,
        asked,
        answered,
        waits,
        calls,
        last_calls,
        spoke,
        had_output,
        thinking,
        tools,
    })
}

fn knobs(left: &mut Left<'_>) -> Result<Knobs> {
    let thinking = left.flag()?;
    let mut word = || match left.string()?.as_str() {
        "" => Ok(None),
        word => Knobs::word(word).map(Some).ok_or_else(|| broken("an unknown word")),
    };
    Ok(Knobs { thinking, effort: word()?, verbosity: word()? })
}
