//! What stands before a turn's news: its messages, and what of them history loses.

use std::cell::Cell;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use super::row::Row;
use crate::chain::{Dropped, Extent, Node, Segment, Tail};
use crate::error::Result;
use crate::family::render::{Called, Group, NOT_SHOWN, call_among, group};
use crate::family::{Before, End, Family, Last, News};
use crate::item::{Item, Role};
use crate::open::segment;
use crate::profile::Profile;
use crate::token::SpanKind;

/// The messages that `items` form, behind so many `calls` of a conversation with `parent`.
pub(super) fn grouped(
    parent: Option<&Node>,
    items: &[Arc<Item>],
    first: usize,
    calls: u32,
) -> Vec<Group> {
    group(items, first, &|id| call_among(items, calls, id).or_else(|| called(parent?, id)))
}

/// The newest call with this id.
fn called(node: &Node, id: &str) -> Option<Called> {
    let newer = Cell::new(0);
    let found = node.find_item(|item| match item {
        Item::Call { call_id, .. } if call_id == id => true,
        Item::Call { .. } => {
            newer.set(newer.get() + 1);
            false
        }
        _ => false,
    })?;
    let Item::Call { name, .. } = found.as_ref() else { return None };
    let number = node.parts().before.calls.saturating_sub(newer.get() + 1);
    Some(Called { name: name.clone(), number })
}

/// What the model said last, where the node's tokens end in it.
pub(super) fn answer_of(mut node: &Node) -> Option<&Segment> {
    if !matches!(node.parts().tail, Tail::Sampled(_)) {
        return None;
    }
    // A turn that brought nothing has no segments.
    while let ([], Some((base, _))) = (node.parts().segments.as_slice(), &node.parts().base) {
        node = base;
    }
    node.parts().segments.last()
}

/// What closes a sampled `answer`. Where it closes reasoning too, history loses of that what goes with
/// the reasoning; `lost` says that it has.
pub(super) fn closer(
    profile: &Profile,
    family: &dyn Family,
    end: End,
    answer: Option<&Segment>,
    lost: bool,
) -> Result<Segment> {
    let ids = profile.render(|sink| family.closer(end, sink))?;
    let mut closer = Segment { glue: true, ..segment(ids, SpanKind::Item, 0..0) };
    if end == End::Thinking && profile.format().drops_reasoning() {
        let first = answer.and_then(|answer| answer.ids.get(answer.reasoning.range().start));
        let first = first.copied();
        let short = profile.render(|sink| family.closer_of_lost(first, sink))?;
        if lost {
            closer.ids = short.into();
        } else if short.len() < closer.ids.len() {
            closer.reasoning = (0..closer.ids.len() - short.len()).into();
            closer.dropped =
                answer.map_or(Dropped::OnQuery, |answer| family.reasoning_dropped(answer.before));
        }
    }
    Ok(closer)
}

/// The last message, when what is new goes on with it.
pub(super) struct Joined {
    /// All of the new messages.
    pub(super) groups: Vec<Group>,
    /// Where the last message's tokens begin.
    pub(super) first_token: usize,
    /// What stands before it.
    pub(super) before: Before,
}

/// Such a message was closed when it was rendered, and is rendered again: text may not be appended to
/// encoded text.
pub(super) fn joined(
    family: &dyn Family,
    node: &Node,
    items: &[Arc<Item>],
    generate: bool,
) -> Option<Joined> {
    let first = items.first();
    let next = match first {
        Some(item) => group(slice::from_ref(item), 0, &|_| None).first()?.message.speaker(),
        None if generate => Last::Model,
        None => return None,
    };
    let runs_on = family.runs_on(node.parts().before.last, next);
    // Only adjacent answers and outputs are one message.
    let may_join = first.is_some() && matches!(next, Last::Model | Last::Tools);
    if !(runs_on || may_join) || node.parts().tail != Tail::Closed {
        return None;
    }
    let lineage = node.lineage();
    let last = lineage.segments().last()?;
    if last.kind != SpanKind::Item {
        return None;
    }
    let own = last.items.range();
    let mut all = node.items(own.clone());
    let mut groups = group(&all, own.start, &|_| None);
    if !(runs_on || groups.last_mut()?.join(first?, &|_| None)) {
        return None;
    }
    all.extend(items.iter().cloned());
    Some(Joined {
        groups: grouped(Some(node), &all, own.start, last.before.calls),
        first_token: node.token_count() - last.ids.len(),
        before: last.before,
    })
}

/// The ids of these items behind `before`, rendered again without reasoning.
pub(super) fn again(
    profile: &Profile,
    family: &dyn Family,
    node: &Node,
    own: Range<usize>,
    before: Before,
) -> Result<Arc<[u32]>> {
    let mut groups = grouped(Some(node), &node.items(own.clone()), own.start, before.calls);
    let mut row = Row::new(profile, family, before);
    for group in &mut groups {
        family.read_foreign(&mut group.message);
        row.message(group, NOT_SHOWN);
    }
    Ok(row.finish()?.iter().flat_map(|part| part.ids.iter().copied()).collect())
}

/// A segment as history has it: without its reasoning, and with every other token in place.
pub(super) fn without_reasoning(
    profile: &Profile,
    family: &dyn Family,
    node: &Node,
    segment: &Segment,
) -> Result<Segment> {
    let ids: Arc<[u32]> = if segment.reasoning.is_empty() {
        again(profile, family, node, segment.items.range(), segment.before)?
    } else {
        let (before, rest) = segment.ids.split_at(segment.reasoning.range().start);
        let after = rest.get(segment.reasoning.len()..).unwrap_or_default();
        before.iter().chain(after).copied().collect()
    };
    Ok(Segment { ids, reasoning: Extent::default(), dropped: Dropped::Never, ..segment.clone() })
}

/// Whether the chain ends in a message of the model's that calls nothing, so far.
pub(super) fn pauses(node: &Node) -> bool {
    node.find_item(|_| true).is_some_and(|item| {
        matches!(
            item.as_ref(),
            Item::Message { role: Role::Assistant, .. } | Item::Reasoning { .. }
        )
    })
}

/// Whether the last message, which paused, turns out to call something: reasoning that its pause has
/// taken out does not come back.
pub(super) fn brings_back(family: &dyn Family, groups: &[Group], before: Before) -> bool {
    let pause = News { asks: false, asked: true, follows: false, answered: false, pauses: true };
    groups.first().is_some_and(|group| !group.message.calls_nothing())
        && family.loses(family.reasoning_dropped(before), pause)
}

/// What a turn brings with these messages behind `before`, which `paused`.
pub(super) fn news(
    family: &dyn Family,
    groups: &[Group],
    before: Before,
    paused: bool,
    generate: bool,
) -> News {
    let goes_on = generate || !groups.is_empty();
    let followed = groups.len().saturating_sub(usize::from(!generate));
    News {
        asks: groups.iter().any(|group| family.asks(&group.message)),
        asked: before.asked,
        follows: !groups.is_empty(),
        answered: before.answered && goes_on
            || groups[..followed].iter().any(|group| group.message.is_answer()),
        pauses: paused && goes_on || groups.iter().any(|group| group.message.calls_nothing()),
    }
}
