//! The plan of a native renderer: every item's tokens stand by themselves, so what a turn brings is
//! rendered behind what stands, and history that the template rewrites is edited by token surgery
//! (D6).

use std::ops::Range;
use std::slice;
use std::sync::Arc;

use super::{Asked, Laid, lay, segment};
use crate::chain::{Dropped, Extent, Node, Segment, Tail};
use crate::error::Result;
use crate::family::render::{
    Group, HEADER_QUESTION, IdSink, Message, Sink, group, header_ends, name_among, shows,
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
    /// How many of the chain's first items stand in the header.
    leading: usize,
    /// The header's segment, when it is another than the parent's, and whether it had to be rendered.
    header: Option<(Segment, bool)>,
    /// A message that only the parent's header held.
    released: Option<Segment>,
    /// What stands before the groups.
    before: Before,
    /// The soonest that what stays or moves loses reasoning.
    dropped: Dropped,
    /// Whether the answer at the end of the parent has just lost its reasoning.
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
        let mut leading = parent.map_or(0, |node| node.parts().leading) + new_leading;
        let ordinary = &items[new_leading..];

        let joined = parent.and_then(|node| joined(family, node, ordinary, request.generate));
        let (mut groups, mut before) = if let Some(joined) = &joined {
            (joined.groups.clone(), joined.before)
        } else {
            let before = parent.map(|node| node.parts().before).unwrap_or_default();
            (grouped(parent, ordinary, seen + new_leading), before)
        };
        for group in &mut groups {
            family.read_foreign(&mut group.message);
        }
        before.thinking = asked.thinking.0;
        before.tools = !asked.header.rendered_tools().is_empty();
        let followed = groups.len().saturating_sub(usize::from(!request.generate));
        let news = News {
            asks: groups.iter().any(|group| family.asks(&group.message)),
            asked: before.asked,
            follows: !groups.is_empty(),
            answered: before.answered && (request.generate || !groups.is_empty())
                || groups[..followed].iter().any(|group| group.message.is_answer()),
        };
        let rewrites = |node: &Node| family.rewrites(node.parts().before, before, news);
        if !family.takes(&groups, before) || parent.is_some_and(rewrites) {
            return Ok(None);
        }
        if before.last == Last::Nobody && leading > 0 {
            before.last = Last::Operator;
        }
        let mut shown = shows(family, &groups, before, request.generate);
        let mut released = None;
        let header = match header(profile, family, asked, new_leading)? {
            Headed::Same => None,
            Headed::Other(segment, rendered) => {
                let end = segment.items.range().end;
                if let Some(node) = parent.filter(|_| end < leading) {
                    released = Some(message_of(profile, family, node, end..leading)?);
                }
                leading = end;
                Some((segment, rendered))
            }
            Headed::Unseparable => return Ok(None),
        };
        // A first question that stands in the header is no message of its own.
        let held = leading.saturating_sub(seen + new_leading);
        if held > 0 && parent.is_some_and(|node| matches!(node.parts().tail, Tail::Sampled(_))) {
            return Ok(None);
        }
        for Group { message, .. } in groups.drain(..held) {
            before = before.and(&message, family.asks(&message));
        }
        shown.drain(..held);
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
            released,
            before,
            dropped: parent.map_or(Dropped::Never, |node| node.parts().dropped),
            closer_loses: parent
                .and_then(answer_of)
                .is_some_and(|answer| family.loses(family.reasoning_dropped(answer.before), news)),
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
            let own = segment.items.range();
            let in_header =
                segment.kind == SpanKind::Header || !own.is_empty() && own.end <= self.leading;
            if self.header.is_some() && in_header {
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
        rendered += self.released.as_ref().map_or(0, |segment| segment.ids.len());
        let mut segments: Vec<Segment> =
            self.header.into_iter().map(|(segment, _)| segment).collect();
        segments.extend(self.released);
        segments.extend(self.moved);
        let moved = segments.len();
        let mut dropped = self.dropped;
        let mut before = self.before;

        let follows = request.generate || !self.groups.is_empty();
        if let (Tail::Sampled(end), true) = (tail, follows) {
            let answer = self.parent.and_then(answer_of);
            let closer = closer(profile, family, end, answer, self.closer_loses)?;
            dropped = dropped.max(closer.dropped);
            segments.extend(Some(closer).filter(|closer| !closer.ids.is_empty()));
        }
        let mut row = Row::new(profile, family, before);
        for (group, showing) in self.groups.iter().zip(&self.shown) {
            row.message(group, *showing);
        }
        if request.generate {
            row.generation_prompt()?;
        }
        before = row.before;
        let row = row.finish()?;
        dropped = row.iter().fold(dropped, |soonest, part| soonest.max(part.dropped));
        segments.extend(row);
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

/// The messages that `items` form behind `parent`.
fn grouped(parent: Option<&Node>, items: &[Arc<Item>], first: usize) -> Vec<Group> {
    group(items, first, &|id| {
        name_among(items, id).or_else(|| {
            let call = parent?
                .find_item(|item| matches!(item, Item::Call { call_id, .. } if call_id == id))?;
            match call.as_ref() {
                Item::Call { name, .. } => Some(name.clone()),
                _ => None,
            }
        })
    })
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

/// `new_leading` items lead the conversation that the parent has not.
fn header(
    profile: &Profile,
    family: &dyn Family,
    asked: Asked<'_>,
    new_leading: usize,
) -> Result<Headed> {
    let Asked { parent, header, items, began, thinking, .. } = asked;
    let generic = &profile.renderer().generic;
    let same = |node: &Node| {
        let given = |thinking| generic.given(thinking, began);
        header.renders_as(&node.parts().header) && given(thinking) == given(node.parts().thinking)
    };
    if new_leading == 0 && parent.is_some_and(same) {
        return Ok(Headed::Same);
    }
    let held = parent.map_or(0, |node| node.parts().leading);
    let known = |node: &Node| node.items(0..node.item_count().min(held + 1));
    let mut first = parent.map(known).unwrap_or_default();
    let leading = first.iter().take(held).take_while(|item| item.is_instruction()).count();
    let leading = leading + new_leading;
    let missing = (leading + 1).saturating_sub(first.len());
    first.extend(items.iter().take(missing).cloned());

    let question = Message::Plain { role: Role::User, text: HEADER_QUESTION.to_owned() };
    let before = Before { last: Last::Operator, ..Before::default() };
    let vocabulary = profile.vocabulary();
    for end in header_ends(&first, leading) {
        let held = &first[..end];
        let texts: Vec<&str> = held.iter().map(|item| item.text()).collect();
        let first = (texts.as_slice(), end > leading);
        let printed = header.tokens(first, generic.given(thinking, began), || {
            let write =
                |sink: &mut dyn Sink| family.message(&question, Shown::Nothing, before, sink);
            let question = generic.spell(write, vocabulary)?;
            generic.header(header, held, thinking, began, &question, vocabulary)
        });
        if let Some((ids, rendered)) = printed? {
            let empty = segment(Vec::new(), SpanKind::Header, 0..end);
            return Ok(Headed::Other(Segment { ids, ..empty }, rendered));
        }
    }
    Ok(Headed::Unseparable)
}

/// The message that stood in the parent's header, by itself.
fn message_of(
    profile: &Profile,
    family: &dyn Family,
    node: &Node,
    own: Range<usize>,
) -> Result<Segment> {
    let before = match own.start {
        0 => Before::default(),
        _ => Before { last: Last::Operator, ..Before::default() },
    };
    let groups = grouped(Some(node), &node.items(own.clone()), own.start);
    let write = |sink: &mut dyn Sink| {
        for Group { message, .. } in &groups {
            family.message(message, Shown::Nothing, before, sink);
        }
    };
    Ok(Segment { before, ..segment(profile.render(write)?, SpanKind::Item, own) })
}

/// What the model said last, where the node's tokens end in it.
fn answer_of(mut node: &Node) -> Option<&Segment> {
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
fn closer(
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

/// Segments in the making, one behind the other.
struct Row<'a> {
    profile: &'a Profile,
    family: &'a dyn Family,
    sink: IdSink<'a>,
    /// Without their ids, which go on to the start of the next.
    parts: Vec<(usize, Segment)>,
    /// What stands before the next message.
    before: Before,
}

impl<'a> Row<'a> {
    fn new(profile: &'a Profile, family: &'a dyn Family, before: Before) -> Self {
        Self { profile, family, sink: profile.sink(), parts: Vec::new(), before }
    }

    fn message(&mut self, group: &Group, (shown, dropped): Showing) {
        let Self { family, before, .. } = *self;
        let message = &group.message;
        let runs_on = family.runs_on(before.last, message.speaker());
        let start = self.sink.message(runs_on, |sink| family.message(message, shown, before, sink));
        match (start, self.parts.last_mut()) {
            // A message without a token of its own is part of the one whose run it goes on with.
            (None, Some((_, last))) => {
                last.items = (last.items.range().start..group.items.end).into();
            }
            (start, _) => {
                let empty = segment(Vec::new(), SpanKind::Item, group.items.clone());
                self.parts.push((start.unwrap_or(0), Segment { dropped, before, ..empty }));
            }
        }
        self.before = before.and(message, family.asks(message));
    }

    fn generation_prompt(&mut self) -> Result<()> {
        let Self { profile, family, before, .. } = *self;
        let runs_on = family.runs_on(before.last, Last::Model);
        let written = |write: &dyn Fn(&mut dyn Sink)| {
            let mut sink = profile.sink();
            let start = sink.message(runs_on, |sink| write(sink));
            let mut ids = sink.take()?;
            Ok(ids.split_off(start.unwrap_or(ids.len())))
        };
        let write = |sink: &mut dyn Sink| family.generation_prompt(before.thinking, before, sink);
        let start = self.sink.message(runs_on, |sink| write(sink));
        let Some(start) = start else { return Ok(()) };
        let empty = segment(Vec::new(), SpanKind::GenerationPrompt, 0..0);
        let mut prompt = Segment { before, ..empty };
        let dropped = family.prompt_dropped(before.thinking);
        if dropped != Dropped::Never {
            let ids = written(&write)?;
            let opening = written(&|sink| family.opening(before, sink))?;
            // History has the prompt's two ends.
            let same = |(a, b): &(&u32, &u32)| a == b;
            let head = ids.iter().zip(&opening).take_while(same).count();
            let rests = ids[head..].iter().rev().zip(opening[head..].iter().rev());
            let foot = rests.take_while(same).count();
            if head + foot < ids.len() {
                prompt.reasoning = (head..ids.len() - foot).into();
                prompt.dropped = dropped;
            }
        }
        self.parts.push((start, prompt));
        Ok(())
    }

    /// The segments that have ids, or items.
    fn finish(mut self) -> Result<Vec<Segment>> {
        let mut ids = self.sink.take()?;
        let mut segments: Vec<Segment> = Vec::with_capacity(self.parts.len());
        for (start, part) in self.parts.into_iter().rev() {
            segments.push(Segment { ids: ids.split_off(start).into(), ..part });
        }
        segments.reverse();
        segments.retain(|part| !(part.ids.is_empty() && part.items.is_empty()));
        Ok(segments)
    }
}

/// The last message, when what is new goes on with it.
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
fn joined(family: &dyn Family, node: &Node, items: &[Arc<Item>], generate: bool) -> Option<Joined> {
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
        groups: grouped(Some(node), &all, own.start),
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
        let mut groups = grouped(Some(node), &items, own.start);
        for group in &mut groups {
            family.read_foreign(&mut group.message);
        }
        let mut row = Row::new(profile, family, segment.before);
        for group in &groups {
            row.message(group, (Shown::Nothing, Dropped::Never));
        }
        row.finish()?.iter().flat_map(|part| part.ids.iter().copied()).collect()
    } else {
        let (before, rest) = segment.ids.split_at(segment.reasoning.range().start);
        let after = rest.get(segment.reasoning.len()..).unwrap_or_default();
        before.iter().chain(after).copied().collect()
    };
    Ok(Segment { ids, reasoning: Extent::default(), dropped: Dropped::Never, ..segment.clone() })
}
