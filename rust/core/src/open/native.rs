//! The plan of a native renderer: every item's tokens stand by themselves, so what a turn brings is
//! rendered behind what stands, and history that the template rewrites is edited by token surgery
//! (D6).

use std::cell::Cell;
use std::sync::Arc;

use super::{Asked, Laid, lay, segment};
use crate::chain::{Dropped, Extent, Node, Segment, Tail};
use crate::error::Result;
use crate::family::render::{
    Called, Group, HEADER_QUESTION, Message, Sink, call_among, group, shows,
};
use crate::family::{Before, End, Family, Last, News, Showing, Shown};
use crate::item::{Item, Role};
use crate::profile::Profile;
use crate::token::SpanKind;
use crate::turn::{Kind, Opened};

/// Opens a turn by the family's renderer; None where the conversation is the template's: it already
/// was, the family does not take what is new, or the header does not stand by itself.
///
/// # Errors
/// When the encoder fails.
pub(super) fn open(
    profile: &Profile,
    family: &dyn Family,
    asked: Asked<'_>,
) -> Result<Option<Opened>> {
    if asked.parent.is_some_and(|node| node.parts().printed) {
        return Ok(None);
    }
    match Plan::new(profile, family, asked)? {
        Some(plan) => plan.render(profile, asked).map(Some),
        None => Ok(None),
    }
}

/// What of the parent's tokens stays, and what is to be rendered behind it.
struct Plan<'a> {
    family: &'a dyn Family,
    parent: Option<&'a Node>,
    kind: Kind,
    /// Tokens of the parent that stay where they are.
    keep: usize,
    /// Segments that follow them unrendered: moved, or cut.
    moved: Vec<Segment>,
    /// To be rendered, in order.
    groups: Vec<Group>,
    shown: Vec<Showing>,
    leading: usize,
    /// The header's segment, when it is another than the parent's, and whether it had to be rendered.
    header: Option<(Segment, bool)>,
    /// What stands before the groups.
    before: Before,
    /// The soonest that what stays or moves loses reasoning.
    dropped: Dropped,
    /// Whether the last message has just lost its reasoning.
    closer_loses: bool,
}

impl<'a> Plan<'a> {
    fn new(profile: &Profile, family: &'a dyn Family, asked: Asked<'a>) -> Result<Option<Self>> {
        let Asked { parent, items, request, .. } = asked;
        let seen = parent.map_or(0, Node::item_count);
        // The leading run is the header's, but only in the turn that brings the first item: later
        // system items render the same as messages of their own.
        let new_leading = if seen == 0 {
            items.iter().take_while(|item| item.is_instruction()).count()
        } else {
            0
        };
        let leading = parent.map_or(0, |node| node.parts().leading) + new_leading;
        let ordinary = &items[new_leading..];

        let unthinking = !asked.thinking.0;
        if family.tells_thinking()
            && parent.is_some_and(|node| node.parts().thinking.0 == unthinking)
        {
            return Ok(None);
        }
        let joined = parent.and_then(|node| joined(node, ordinary));
        let (mut groups, mut before) = if let Some(joined) = &joined {
            (joined.groups.clone(), joined.before)
        } else {
            let before = parent.map(|node| node.parts().before).unwrap_or_default();
            (grouped(parent, ordinary, seen + new_leading, before.calls), before)
        };
        for group in &mut groups {
            family.read_foreign(&mut group.message);
        }
        before.unthinking = unthinking;
        if !family.takes(&groups, before) {
            return Ok(None);
        }
        let paused = parent.and_then(|node| node.find_item(|_| true)).is_some_and(|item| {
            matches!(
                item.as_ref(),
                Item::Message { role: Role::Assistant, .. } | Item::Reasoning { .. }
            )
        });
        // Reasoning that a message without calls has taken out does not come back when it gets some.
        let pause =
            News { asks: false, asked: true, follows: false, answered: false, pauses: true };
        let goes_on =
            joined.is_some() && groups.first().is_some_and(|group| !group.message.calls_nothing());
        if paused && goes_on && family.loses(family.reasoning_dropped(), pause) {
            return Ok(None);
        }
        if before.last == Last::Nobody && leading > 0 {
            before.last = Last::Operator;
        }
        let shown = shows(family, &groups, before, request.generate);
        let followed = groups.len().saturating_sub(usize::from(!request.generate));
        let news = News {
            asks: groups.iter().any(|group| family.asks(&group.message)),
            asked: before.asked,
            follows: !groups.is_empty(),
            answered: before.answered && (request.generate || !groups.is_empty())
                || groups[..followed].iter().any(|group| group.message.is_answer()),
            pauses: paused && joined.is_none() && (request.generate || !groups.is_empty())
                || groups.iter().any(|group| group.message.calls_nothing()),
        };
        let header = match header(profile, family, asked, leading, new_leading > 0)? {
            Headed::Same => None,
            Headed::Other(segment, rendered) => Some((segment, rendered)),
            Headed::Unseparable => return Ok(None),
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
            before,
            dropped: parent.map_or(Dropped::Never, |node| node.parts().dropped),
            closer_loses: family.loses(family.reasoning_dropped(), news),
        };
        let Some(node) = parent else {
            plan.kind = Kind::Cold;
            return Ok(Some(plan));
        };
        if plan.header.is_some() {
            plan.kind = Kind::Rebase;
        } else if joined.is_some() || family.loses(node.parts().dropped, news) {
            plan.kind = Kind::Rewind;
        } else {
            return Ok(Some(plan));
        }
        let end = joined.map(|joined| joined.first_token);
        plan.rewrite(profile, node, end, news)?;
        Ok(Some(plan))
    }

    /// Sorts the parent's segments into those that stay and those that move or change. A full walk
    /// over the segments: cheap, since no text is rendered or encoded but what changes.
    fn rewrite(
        &mut self,
        profile: &Profile,
        node: &Node,
        end: Option<usize>,
        news: News,
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
            let changed = if self.family.loses(segment.dropped, news) {
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

    fn render(self, profile: &Profile, asked: Asked<'_>) -> Result<Opened> {
        let Asked { meter, began, request, .. } = asked;
        let family = self.family;
        let tail = self.parent.map_or(Tail::Empty, |node| node.parts().tail);
        let fresh = self.header.as_ref().filter(|(_, rendered)| *rendered);
        let mut rendered = fresh.map_or(0, |(segment, _)| segment.ids.len());
        let mut segments: Vec<Segment> =
            self.header.into_iter().map(|(segment, _)| segment).collect();
        segments.extend(self.moved);
        let moved = segments.len();
        let mut dropped = self.dropped;
        let mut before = self.before;

        let follows = request.generate || !self.groups.is_empty();
        if let (Tail::Sampled(end), true) = (tail, follows) {
            let closer = closer(profile, family, end, self.closer_loses)?;
            dropped = dropped.max(closer.dropped);
            segments.extend(Some(closer).filter(|closer| !closer.ids.is_empty()));
        }
        for (group, (shown, when)) in self.groups.iter().zip(&self.shown) {
            let message = &group.message;
            let ids = profile.render(|sink| family.message(message, *shown, before, sink))?;
            dropped = dropped.max(*when);
            segments.push(Segment {
                dropped: *when,
                before,
                ..segment(ids, SpanKind::Item, group.items.clone())
            });
            before = before.and(message, family.asks(message));
        }
        if request.generate {
            let prompt = generation_prompt(profile, family, asked.thinking.0, before)?;
            dropped = dropped.max(prompt.dropped);
            if !prompt.ids.is_empty() {
                segments.push(prompt);
            }
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
            before,
            printed: false,
            dropped,
            thinking: asked.thinking,
            generate: request.generate,
            parallel_tool_calls: request.parallel_tool_calls,
            tail: if follows { Tail::Closed } else { tail },
            began,
            reencoded: 0,
        })
    }
}

/// The messages that `items` form, behind so many `calls` of a conversation with `parent`.
fn grouped(parent: Option<&Node>, items: &[Arc<Item>], first: usize, calls: u32) -> Vec<Group> {
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

/// A request's header beside its parent's.
enum Headed {
    /// The same tokens.
    Same,
    /// Another one, and whether it had to be rendered.
    Other(Segment, bool),
    /// The template does not print it apart from the first message.
    Unseparable,
}

fn header(
    profile: &Profile,
    family: &dyn Family,
    asked: Asked<'_>,
    leading: usize,
    leads_anew: bool,
) -> Result<Headed> {
    let Asked { parent, header, items, began, thinking, .. } = asked;
    let generic = &profile.renderer().generic;
    let same = |node: &Node| {
        let given = |thinking| generic.given(thinking, began);
        header.renders_as(&node.parts().header) && given(thinking) == given(node.parts().thinking)
    };
    if !leads_anew && parent.is_some_and(same) {
        return Ok(Headed::Same);
    }
    let mut all = parent.map(|node| node.items(0..leading)).unwrap_or_default();
    let missing = leading - all.len();
    all.extend(items[..missing].iter().cloned());
    let texts: Vec<&str> = all.iter().map(|item| item.text()).collect();
    let question = Message::Plain { role: Role::User, text: HEADER_QUESTION.to_owned() };
    let before = Before { last: Last::Operator, unthinking: !thinking.0, ..Before::default() };
    let vocabulary = profile.vocabulary();
    let printed = header.tokens(&texts, generic.given(thinking, began), || {
        let write = |sink: &mut dyn Sink| family.message(&question, Shown::Nothing, before, sink);
        let question = generic.spell(write, vocabulary)?;
        generic.header(header, &all, thinking, began, &question, vocabulary)
    });
    Ok(match printed? {
        Some((ids, rendered)) => {
            let empty = segment(Vec::new(), SpanKind::Header, 0..leading);
            Headed::Other(Segment { ids, ..empty }, rendered)
        }
        None => Headed::Unseparable,
    })
}

/// What closes sampled ids. Where it closes reasoning too, history loses that with the reasoning;
/// `lost` says that it has.
fn closer(profile: &Profile, family: &dyn Family, end: End, lost: bool) -> Result<Segment> {
    let ids = profile.render(|sink| family.closer(end, sink))?;
    let mut closer = Segment { glue: true, ..segment(ids, SpanKind::Item, 0..0) };
    if end == End::Thinking && profile.format().drops_reasoning() {
        let left = profile.render(|sink| family.closer(End::Lost, sink))?;
        if lost {
            closer.ids = left.into();
        } else if left.len() < closer.ids.len() {
            closer.reasoning = (0..closer.ids.len() - left.len()).into();
            closer.dropped = family.reasoning_dropped();
        }
    }
    Ok(closer)
}

fn generation_prompt(
    profile: &Profile,
    family: &dyn Family,
    thinking: bool,
    before: Before,
) -> Result<Segment> {
    let ids = profile.render(|sink| family.generation_prompt(thinking, before, sink))?;
    let mut prompt = Segment { before, ..segment(ids, SpanKind::GenerationPrompt, 0..0) };
    let dropped = family.prompt_dropped(thinking);
    if dropped != Dropped::Never {
        let opening = profile.render(|sink| family.opening(before, sink))?;
        let same = opening.iter().zip(prompt.ids.iter()).take_while(|(a, b)| a == b).count();
        if same < prompt.ids.len() {
            prompt.reasoning = (same..prompt.ids.len()).into();
            prompt.dropped = dropped;
        }
    }
    Ok(prompt)
}

/// The last message, when the first new item goes on with it.
struct Joined {
    /// All of the new messages.
    groups: Vec<Group>,
    /// Where the last message's tokens begin.
    first_token: usize,
    /// What stands before it.
    before: Before,
}

/// Such a message was closed when it was rendered, and is rendered again: text may not be appended to
/// encoded text.
fn joined(node: &Node, items: &[Arc<Item>]) -> Option<Joined> {
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
    let own = last.items.range();
    let mut all = node.items(own.clone());
    let mut group_of_last = group(&all, own.start, &|_| None);
    if !group_of_last.last_mut()?.join(first, &|_| None) {
        return None;
    }
    all.extend(items.iter().cloned());
    Some(Joined {
        groups: grouped(Some(node), &all, own.start, last.before.calls),
        first_token: node.token_count() - last.ids.len(),
        before: last.before,
    })
}

/// A segment as history has it: without its reasoning, and with every other token in place.
fn without_reasoning(
    profile: &Profile,
    family: &dyn Family,
    node: &Node,
    segment: &Segment,
) -> Result<Segment> {
    let ids: Arc<[u32]> = if segment.reasoning.is_empty() {
        let own = segment.items.range();
        let items = node.items(own.clone());
        let mut groups = grouped(Some(node), &items, own.start, segment.before.calls);
        for group in &mut groups {
            family.read_foreign(&mut group.message);
        }
        let write = |sink: &mut dyn Sink| {
            for group in &groups {
                family.message(&group.message, Shown::Nothing, segment.before, sink);
            }
        };
        profile.render(write)?.into()
    } else {
        let (before, rest) = segment.ids.split_at(segment.reasoning.range().start);
        let after = rest.get(segment.reasoning.len()..).unwrap_or_default();
        before.iter().chain(after).copied().collect()
    };
    Ok(Segment { ids, reasoning: Extent::default(), dropped: Dropped::Never, ..segment.clone() })
}
