//! A node's record.

use std::collections::HashMap;
use std::sync::Arc;

use super::bytes::{put_bytes, put_number, put_size};
use super::{CHECK, HEAD, MAGIC, MOVED, OWN, VERSION};
use crate::chain::{Before, Dropped, End, Extent, Last, Lineage, Node, Segment, Tail};
use crate::error::{Error, Result};
use crate::header::{Header, Knobs, Tool, ToolKind};
use crate::item::{Item, Role};
use crate::token::{Origin, SpanKind};

pub(super) const ORIGINS: [Origin; 3] = [Origin::Rendered, Origin::Sampled, Origin::Reencoded];
pub(super) const KINDS: [SpanKind; 4] =
    [SpanKind::Header, SpanKind::Item, SpanKind::GenerationPrompt, SpanKind::Sampled];
pub(super) const DROPPED: [Dropped; 4] =
    [Dropped::Never, Dropped::OnAnswer, Dropped::OnQuery, Dropped::OnNext];
pub(super) const ROLES: [Role; 4] = [Role::User, Role::Assistant, Role::System, Role::Developer];
pub(super) const TOOLS: [ToolKind; 3] = [ToolKind::Function, ToolKind::Custom, ToolKind::Search];
pub(super) const LASTS: [Last; 5] =
    [Last::Nobody, Last::Operator, Last::User, Last::Model, Last::Tools];
pub(super) const TAILS: [Tail; 6] = [
    Tail::Empty,
    Tail::Closed,
    Tail::Sampled(End::Closed),
    Tail::Sampled(End::Open),
    Tail::Sampled(End::Thinking),
    Tail::Sampled(End::Lost),
];

impl Node {
    /// What this turn brought, as a record behind its parent's (see the module). Where its past was
    /// found by what its request says, all that was said, without the tokens and without reasoning that
    /// the request may not have held.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invariant`] for more than four gigabytes.
    pub fn export(&self) -> Result<Vec<u8>> {
        let parts = self.parts();
        let mut out = Vec::with_capacity(256 + 3 * parts.token_count.min(1 << 16));
        out.extend_from_slice(MAGIC);
        out.push(VERSION);
        out.extend_from_slice(&[0; HEAD - MAGIC.len() - 1]);
        out.push(u8::from(parts.found));
        out.extend_from_slice(&parts.profile);
        out.extend_from_slice(&parts.began.to_le_bytes());
        let parent = parts.parent.as_ref().filter(|_| !parts.found);
        let known = parent.map(|node| node.parts().header.as_ref());
        put_header(&mut out, parts.header.as_ref(), known);
        if parts.found {
            self.put_all_items(&mut out);
        } else {
            put_size(&mut out, parts.input_items);
            put_size(&mut out, parts.items.len());
            for item in &parts.items {
                put_item(&mut out, item);
            }
            self.put_tokens(&mut out, parent);
        }
        let len = u32::try_from(out.len() - HEAD)
            .map_err(|_| Error::invariant("a response of more than four gigabytes"))?;
        out[HEAD - 4..HEAD].copy_from_slice(&len.to_le_bytes());
        let check = blake3::hash(&out[HEAD..]);
        out.extend_from_slice(&check.as_bytes()[..CHECK]);
        Ok(out)
    }

    fn put_all_items(&self, out: &mut Vec<u8>) {
        let parts = self.parts();
        let past = self.item_count() - parts.items.len();
        let mut all = self.items(0..past);
        all.retain(|item| !matches!(item.as_ref(), Item::Reasoning { .. }));
        put_size(out, all.len() + parts.input_items);
        put_size(out, all.len() + parts.items.len());
        for item in all.iter().chain(&parts.items) {
            put_item(out, item);
        }
    }

    fn put_tokens(&self, out: &mut Vec<u8>, parent: Option<&Node>) {
        let parts = self.parts();
        let keep = parts.base.as_ref().map_or(0, |(_, keep)| *keep);
        let parent_tokens = parent.map_or(0, Node::token_count);
        put_size(out, parent_tokens);
        put_size(out, keep);
        let lineage = parent.filter(|_| keep < parent_tokens).map(Node::lineage);
        let moved: HashMap<*const u32, usize> = lineage
            .iter()
            .flat_map(Lineage::segments)
            .enumerate()
            .filter(|(_, segment)| !segment.ids.is_empty())
            .map(|(index, segment)| (Arc::as_ptr(&segment.ids).cast(), index))
            .collect();
        put_size(out, parts.segments.len());
        for segment in &parts.segments {
            put_segment(out, segment, &moved);
        }
        out.push(place(&TAILS, &parts.tail));
        put_size(out, parts.unanswered.len());
        for (call_id, name) in &parts.unanswered {
            put_bytes(out, call_id.as_bytes());
            put_bytes(out, name.as_bytes());
        }
        put_before(out, parts.before);
        put_size(out, parts.leading);
        out.push(u8::from(parts.printed));
        out.push(place(&DROPPED, &parts.dropped));
        put_knobs(out, parts.knobs);
    }
}

/// Where `one` stands among `all`, which has every value.
fn place<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let index = all.iter().position(|other| other == one).unwrap_or(usize::MAX);
    u8::try_from(index).unwrap_or(u8::MAX)
}

fn put_header(out: &mut Vec<u8>, header: &Header, parent: Option<&Header>) {
    let plain = |header: &Header| header.is_plain();
    let same = |parent: &Header| parent.key == header.key && plain(parent) && plain(header);
    if parent.is_some_and(|parent| std::ptr::eq(parent, header) || same(parent)) {
        return out.push(0);
    }
    out.push(1);
    for field in &header.raw {
        put_optional(out, field.as_deref());
    }
    let added = header.added();
    for tools in [&added.front, &added.loaded] {
        put_size(out, tools.len());
        for tool in tools {
            put_tool(out, tool);
        }
    }
}

fn put_optional(out: &mut Vec<u8>, field: Option<&[u8]>) {
    out.push(u8::from(field.is_some()));
    if let Some(bytes) = field {
        put_bytes(out, bytes);
    }
}

fn put_tool(out: &mut Vec<u8>, tool: &Tool) {
    let Tool { name, own_name, namespace, kind, declaration, description, schema } = tool;
    out.push(place(&TOOLS, kind));
    for field in [name, own_name, declaration] {
        put_bytes(out, field.as_bytes());
    }
    for field in [namespace, description, schema] {
        put_optional(out, field.as_ref().map(String::as_bytes));
    }
}

fn put_item(out: &mut Vec<u8>, item: &Item) {
    match item {
        Item::Message { role, text } => {
            out.extend_from_slice(&[0, place(&ROLES, role)]);
            put_bytes(out, text.as_bytes());
        }
        Item::Reasoning { text } => {
            out.push(1);
            put_bytes(out, text.as_bytes());
        }
        Item::Call { call_id, name, arguments } => {
            out.push(2);
            for field in [call_id, name, arguments] {
                put_bytes(out, field.as_bytes());
            }
        }
        Item::Output { call_id, text } => {
            out.push(3);
            put_bytes(out, call_id.as_bytes());
            put_bytes(out, text.as_bytes());
        }
    }
}

fn put_segment(out: &mut Vec<u8>, segment: &Segment, moved: &HashMap<*const u32, usize>) {
    if let Some(&index) = moved.get(&Arc::as_ptr(&segment.ids).cast()) {
        out.push(MOVED);
        put_size(out, index);
    } else {
        out.push(OWN);
        put_size(out, segment.ids.len());
        for &id in segment.ids.iter() {
            put_number(out, u64::from(id));
        }
    }
    out.push(place(&KINDS, &segment.kind));
    out.push(place(&ORIGINS, &segment.origin));
    out.push(place(&DROPPED, &segment.dropped));
    out.push(u8::from(segment.glue));
    put_extent(out, segment.items);
    // A thought that only the stop token ended reaches behind a segment which leaves that out.
    let reasoning = segment.reasoning.range();
    let len = segment.ids.len();
    put_extent(out, (reasoning.start.min(len)..reasoning.end.min(len)).into());
    let (len, digest) = segment.imprint.parts();
    put_number(out, u64::from(len));
    if len > 0 {
        out.extend_from_slice(digest);
    }
    put_before(out, segment.before);
}

fn put_extent(out: &mut Vec<u8>, extent: Extent) {
    let range = extent.range();
    put_size(out, range.start);
    put_size(out, range.end);
}

fn put_before(out: &mut Vec<u8>, before: Before) {
    let Before {
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
    } = before;
    out.push(place(&LASTS, &last));
    let flags = [asked, answered, waits, spoke, had_output, thinking, tools];
    out.push(flags.iter().rev().fold(0, |all, flag| all << 1 | u8::from(*flag)));
    put_number(out, u64::from(calls));
    put_number(out, u64::from(last_calls));
}

fn put_knobs(out: &mut Vec<u8>, knobs: Knobs) {
    out.push(u8::from(knobs.thinking));
    put_bytes(out, knobs.effort.unwrap_or_default().as_bytes());
    put_bytes(out, knobs.verbosity.unwrap_or_default().as_bytes());
}
