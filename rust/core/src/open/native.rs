//! The plan of a native renderer: every item's tokens stand by themselves, so what a turn brings is
//! rendered behind what stands, and history that the template rewrites is edited by token surgery
//! (D6).

use std::sync::Arc;

use super::{Laid, OpenRequest, lay, segment};
use crate::chain::{Dropped, Meter, Node, Segment, Tail};
use crate::error::Result;
use crate::family::render::{Group, Sink, group, shows};
use crate::family::{Family, Shown};
use crate::header::Header;
use crate::item::{Item, Role};
use crate::profile::Profile;
use crate::token::SpanKind;
use crate::turn::{Kind, Opened};

/// What of the parent's tokens stays, and what is to be rendered behind it.
pub(super) struct Plan<'a> {
    family: &'a dyn Family,
    parent: Option<&'a Node>,
    kind: Kind,
    /// Tokens of the parent that stay where they are.
    keep: usize,
    /// Segments that follow them unrendered: moved, or cut.
    moved: Vec<Segment>,
    /// To be rendered, in order.
    groups: Vec<Group>,
    shown: Vec<(Shown, Dropped)>,
    leading: usize,
    /// The header's segment, when it is another than the parent's, and whether it had to be rendered.
    header: Option<(Segment, bool)>,
    has_query: bool,
    /// The soonest that what stays or moves loses reasoning.
    dropped: Dropped,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        profile: &Profile,
        family: &'a dyn Family,
        parent: Option<&'a Node>,
        header: &Arc<Header>,
        items: &[Arc<Item>],
    ) -> Result<Self> {
        let seen = parent.map_or(0, Node::item_count);
        // The leading run is the header's, but only in the turn that brings the first item: later
        // system items render the same as messages of their own.
        let new_leading = if seen == 0 {
            items.iter().take_while(|item| item.is_instruction()).count()
        } else {
            0
        };
        let leading = parent.map_or(0, |node| node.parts().leading) + new_leading;
        let mut groups = group(&items[new_leading..], seen + new_leading);

        let joined = parent.and_then(|node| joined(node, &items[new_leading..]));
        if let Some((joined, _)) = &joined {
            groups.clone_from(joined);
        }
        for group in &mut groups {
            family.read_foreign(&mut group.message);
        }
        let asked = parent.is_some_and(|node| node.parts().has_query);
        let asks = groups.iter().any(|group| group.is_query(family));
        let shown = shows(family, &groups, asked);

        // Reasoning goes when a query comes, and is not shown before the first one.
        let follows = !groups.is_empty();
        let goes = |dropped: Dropped| match dropped {
            Dropped::Never => false,
            Dropped::OnQuery => asks || (!asked && follows),
            Dropped::OnNext => follows,
        };
        let new_header =
            parent.is_none_or(|node| new_leading > 0 || !header.renders_as(&node.parts().header));
        let header = if new_header {
            Some(render_header(profile, family, parent, header, leading, items)?)
        } else {
            None
        };
        let mut plan = Self {
            family,
            parent,
            kind: Kind::Extend,
            keep: parent.map_or(0, Node::token_count),
            moved: Vec::new(),
            groups,
            shown,
            leading,
            header,
            has_query: asked || asks,
            dropped: parent.map_or(Dropped::Never, |node| node.parts().dropped),
        };
        let Some(node) = parent else {
            plan.kind = Kind::Cold;
            return Ok(plan);
        };
        if plan.header.is_some() {
            plan.kind = Kind::Rebase;
        } else if joined.is_some() || goes(node.parts().dropped) {
            plan.kind = Kind::Rewind;
        } else {
            return Ok(plan);
        }
        let end = joined.map(|(_, first_token)| first_token);
        plan.rewrite(profile, node, end, goes)?;
        Ok(plan)
    }

    /// Sorts the parent's segments into those that stay and those that move or change. A full walk
    /// over the segments: cheap, since no text is rendered or encoded but what changes.
    fn rewrite(
        &mut self,
        profile: &Profile,
        node: &Node,
        end: Option<usize>,
        goes: impl Fn(Dropped) -> bool,
    ) -> Result<()> {
        let lineage = node.lineage();
        let mut position = 0;
        let mut staying = self.header.is_none();
        self.keep = 0;
        self.dropped = Dropped::Never;
        for segment in lineage.segments() {
            if end.is_some_and(|end| position >= end) {
                break;
            }
            position += segment.ids.len();
            if self.header.is_some() && segment.kind == SpanKind::Header {
                continue;
            }
            let changed = if goes(segment.dropped) {
                Some(without_reasoning(profile, self.family, node, segment)?)
            } else {
                None
            };
            staying = staying && changed.is_none();
            let segment = changed.unwrap_or_else(|| segment.clone());
            self.dropped = self.dropped.max(segment.dropped);
            if staying {
                self.keep = position;
            } else {
                self.moved.push(segment);
            }
        }
        Ok(())
    }

    pub(super) fn render(
        self,
        profile: &Profile,
        meter: &Meter,
        request: OpenRequest<'_>,
    ) -> Result<Opened> {
        let family = self.family;
        let tail = self.parent.map_or(Tail::Empty, |node| node.parts().tail);
        let fresh = self.header.as_ref().filter(|(_, rendered)| *rendered);
        let mut rendered = fresh.map_or(0, |(segment, _)| segment.ids.len());
        let mut segments: Vec<Segment> =
            self.header.into_iter().map(|(segment, _)| segment).collect();
        segments.extend(self.moved);
        let moved = segments.len();
        let mut dropped = self.dropped;

        let follows = request.generate || !self.groups.is_empty();
        if follows && matches!(tail, Tail::SampledOpen | Tail::SampledClosed) {
            let closed = tail == Tail::SampledClosed;
            let ids = profile.render(|sink| family.closer(closed, sink))?;
            segments.push(Segment { glue: true, ..segment(ids, SpanKind::Item, 0..0) });
        }
        for (group, (shown, when)) in self.groups.iter().zip(&self.shown) {
            let ids = profile.render(|sink| family.message(&group.message, *shown, sink))?;
            dropped = dropped.max(*when);
            segments.push(Segment {
                dropped: *when,
                ..segment(ids, SpanKind::Item, group.items.clone())
            });
        }
        if request.generate {
            let prompt = generation_prompt(profile, family, request.thinking)?;
            dropped = dropped.max(prompt.dropped);
            segments.push(prompt);
        }
        rendered += segments[moved..].iter().map(|segment| segment.ids.len()).sum::<usize>();

        let Laid { kind, tape, prefix_len } =
            lay(self.parent, self.kind, self.keep, &segments, meter);
        Ok(Opened {
            kind,
            base: self.parent.filter(|_| self.keep > 0).map(|node| (node.clone(), self.keep)),
            segments,
            tape,
            prefix_len,
            rendered,
            leading: self.leading,
            has_query: self.has_query,
            dropped,
            thinking: request.thinking,
            generate: request.generate,
            parallel_tool_calls: request.parallel_tool_calls,
            tail: if follows { Tail::Closed } else { tail },
            began: 0,
            reencoded: 0,
        })
    }
}

fn render_header(
    profile: &Profile,
    family: &dyn Family,
    parent: Option<&Node>,
    header: &Header,
    leading: usize,
    items: &[Arc<Item>],
) -> Result<(Segment, bool)> {
    let known = parent.map(|node| node.items(0..leading)).unwrap_or_default();
    let missing = leading - known.len();
    let texts: Vec<&str> = known.iter().chain(&items[..missing]).map(|item| item.text()).collect();
    let render = || profile.render(|sink| family.header(header, &texts, sink));
    let (ids, rendered) = header.tokens(&texts, render)?;
    Ok((Segment { ids, ..segment(Vec::new(), SpanKind::Header, 0..leading) }, rendered))
}

fn generation_prompt(profile: &Profile, family: &dyn Family, thinking: bool) -> Result<Segment> {
    let ids = profile.render(|sink| family.generation_prompt(thinking, sink))?;
    let mut prompt = segment(ids, SpanKind::GenerationPrompt, 0..0);
    if !thinking && family.marks_no_thinking() {
        let plain = profile.render(|sink| family.generation_prompt(true, sink))?;
        prompt.reasoning = plain.len()..prompt.ids.len();
        prompt.dropped = Dropped::OnNext;
    }
    Ok(prompt)
}

/// The last message, when the first new item goes on with it: all of the new messages, and where
/// its tokens begin. Such a message was closed when it was rendered, and is rendered again: text
/// may not be appended to encoded text.
fn joined(node: &Node, items: &[Arc<Item>]) -> Option<(Vec<Group>, usize)> {
    let first = items.first()?;
    let goes_on = !matches!(first.as_ref(), Item::Message { role, .. } if *role != Role::Assistant);
    if !goes_on || node.parts().tail != Tail::Closed {
        return None;
    }
    let lineage = node.lineage();
    let last = lineage.segments().last()?;
    if last.kind != SpanKind::Item {
        return None;
    }
    let mut all = node.items(last.items.clone());
    let mut group_of_last = group(&all, last.items.start);
    if !group_of_last.last_mut()?.join(first) {
        return None;
    }
    all.extend(items.iter().cloned());
    Some((group(&all, last.items.start), node.token_count() - last.ids.len()))
}

/// A segment as history has it: without its reasoning, and with every other token in place.
fn without_reasoning(
    profile: &Profile,
    family: &dyn Family,
    node: &Node,
    segment: &Segment,
) -> Result<Segment> {
    let ids: Arc<[u32]> = if segment.kind == SpanKind::Item {
        let items = node.items(segment.items.clone());
        let mut groups = group(&items, segment.items.start);
        for group in &mut groups {
            family.read_foreign(&mut group.message);
        }
        let write = |sink: &mut dyn Sink| {
            for group in &groups {
                family.message(&group.message, Shown::Nothing, sink);
            }
        };
        profile.render(write)?.into()
    } else {
        let (before, rest) = segment.ids.split_at(segment.reasoning.start);
        let after = rest.get(segment.reasoning.len()..).unwrap_or_default();
        before.iter().chain(after).copied().collect()
    };
    Ok(Segment { ids, reasoning: 0..0, dropped: Dropped::Never, ..segment.clone() })
}
