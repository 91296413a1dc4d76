//! The plan of a native renderer: every item's tokens stand by themselves, so what a turn brings is
//! rendered behind what stands, and history that the template rewrites is edited by token surgery
//! (D6).

use super::{Asked, Laid, lay};
use crate::chain::{Dropped, Node, Segment, Tail};
use crate::error::Result;
use crate::family::render::{Group, shows};
use crate::family::{Before, Family, Last, News, Showing};
use crate::profile::Profile;
use crate::token::SpanKind;
use crate::turn::{Kind, Opened};

mod canary;
mod header;
mod history;
mod row;

use header::{Headed, header, message_of};
use history::{answer_of, brings_back, closer, grouped, joined, news, pauses, without_reasoning};
use row::Row;

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
        // The leading run is the header's, and may go on for as long as nothing else has come: some
        // families write it otherwise than system items behind that.
        let new_leading = if parent.is_none_or(Node::only_instructs) {
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
            (grouped(parent, ordinary, seen + new_leading, before.calls), before)
        };
        for group in &mut groups {
            family.read_foreign(&mut group.message);
        }
        before.thinking = asked.knobs.thinking;
        before.tools = !asked.header.rendered_tools().is_empty();
        let paused = parent.is_some_and(pauses);
        let goes_on = joined.is_some();
        if paused && goes_on && brings_back(family, &groups, before) {
            return Ok(None);
        }
        let news = news(family, &groups, before, paused && !goes_on, request.generate);
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
            knobs: asked.knobs,
            generate: request.generate,
            parallel_tool_calls: request.parallel_tool_calls,
            tail: if follows { Tail::Closed } else { tail },
            began,
            reencoded: 0,
        })
    }
}
