//! Opening a turn: from a request's raw JSON to a prompt.
//!
//! ```text
//! parse and pair the new items → what of the parent's tokens still holds? → render what is new
//!   all of them     extend   the tip's tape grows in place
//!                   fork     someone else has the tape: one memcpy
//!   but the header  rebase   a new header, every item's segment as it is
//!   up to a point   rewind   history lost its reasoning (D6), or the last message goes on
//!   none            cold     no parent
//! ```

use std::sync::Arc;

use crate::chain::{Budget, Dropped, Index, Meter, Node, Segment, Tail, Tape, View};
use crate::error::{Error, Result, excerpt};
use crate::family::Shown;
use crate::family::render::{Group, group, shows};
use crate::header::{Header, RawHeader, ToolChoice};
use crate::item::{Item, parse_input};
use crate::profile::Profile;
use crate::token::SpanKind;
use crate::turn::{Constraint, Kind, Opened, Turn, TurnParts};

/// What of a request decides its prompt. Raw JSON values, parsed here and nowhere else (D1).
#[derive(Debug, Clone, Copy)]
pub struct OpenRequest<'a> {
    /// A string, an array of items, or null.
    pub input: &'a [u8],
    /// Instructions, tools, tool choice.
    pub header: RawHeader<'a>,
    /// Whether one response may hold several calls.
    pub parallel_tool_calls: bool,
    /// Whether the model may reason, in families that can be asked not to.
    pub thinking: bool,
    /// Whether the model is to speak; false for a warm-up.
    pub generate: bool,
    /// Who may find this conversation again, and whose it may find; None to do neither.
    pub scope: Option<&'a Arc<[u8]>>,
}

/// Every chain of one profile. Cheap to share. Nodes keep their ancestors alive; the index keeps
/// nodes findable by what they say, within its budget.
#[derive(Clone)]
pub struct Chains {
    profile: Arc<Profile>,
    index: Arc<Index>,
}

impl Chains {
    /// Chains of this profile.
    #[must_use]
    pub fn new(profile: Arc<Profile>, budget: Budget) -> Self {
        Self { profile, index: Arc::new(Index::new(budget)) }
    }

    /// Where nodes are found by what they say.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The profile that every chain here is rendered with.
    #[must_use]
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    /// Begins a response after `parent`; without one, after the longest beginning of the input
    /// that the scope knows (D7).
    ///
    /// # Errors
    /// The client's mistakes, each naming its parameter, before anything has changed.
    pub fn open(&self, parent: Option<&Node>, request: OpenRequest<'_>) -> Result<Turn> {
        let mut items = parse_input(request.input)?;
        let found = match (parent, request.scope) {
            (None, Some(scope)) => self.index.find(scope, &items),
            _ => None,
        };
        let mut known_items = 0;
        if let Some((_, known)) = &found {
            known_items = *known;
            items.drain(..known);
        }
        let parent = parent.or(found.as_ref().map(|(node, _)| node));
        let header = Header::parse(request.header, parent.map(|node| &node.parts().header))?;
        if parent.is_none() && items.is_empty() && request.generate {
            return Err(Error::missing_parameter("input"));
        }
        let unanswered = pair(parent, &items, request.generate)?;
        let plan = Plan::new(&self.profile, parent, &header, &items)?;
        let constraint = match &header.choice {
            ToolChoice::Required(tools) if request.generate => {
                let (open, close) = self.profile.family().call_markers();
                let tool = |&index: &usize| {
                    header.tools.get(index).map(|tool| (tool.name.clone(), tool.schema.clone()))
                };
                let tools = tools.iter().filter_map(tool).collect();
                Some(Constraint { open, close, tools, many: request.parallel_tool_calls })
            }
            _ => None,
        };
        let opened = plan.render(&self.profile, self.index.meter(), request)?;
        Ok(Turn::new(TurnParts {
            profile: Arc::clone(&self.profile),
            index: Arc::clone(&self.index),
            scope: request.scope.cloned(),
            parent: parent.cloned(),
            header,
            items,
            known_items,
            opened,
            unanswered,
            constraint,
        }))
    }
}

/// The chain's calls that still wait for an output, once `items` have come.
///
/// Outputs are looked up in the whole chain, because a client sends only what is new. A second
/// output for the same call is let through, as the template would.
fn pair(
    parent: Option<&Node>,
    items: &[Arc<Item>],
    generate: bool,
) -> Result<Vec<(String, String)>> {
    let mut unanswered = parent.map(|node| node.parts().unanswered.clone()).unwrap_or_default();
    for (index, item) in items.iter().enumerate() {
        match item.as_ref() {
            Item::Call { call_id, name, .. } => unanswered.push((call_id.clone(), name.clone())),
            Item::Output { call_id, .. } => {
                let before = unanswered.len();
                unanswered.retain(|(waiting, _)| waiting != call_id);
                let is_call =
                    |item: &Item| matches!(item, Item::Call { call_id: id, .. } if id == call_id);
                let answered = || {
                    items[..index].iter().any(|item| is_call(item))
                        || parent.is_some_and(|node| node.find_item(is_call).is_some())
                };
                if unanswered.len() == before && !answered() {
                    return Err(Error::unpaired(format!(
                        "No tool call found for function call output with call_id {}.",
                        excerpt(call_id)
                    )));
                }
            }
            Item::Message { .. } | Item::Reasoning { .. } => {}
        }
    }
    if let Some((call_id, _)) = unanswered.first().filter(|_| generate) {
        return Err(Error::unpaired(format!(
            "No tool output found for function call {}.",
            excerpt(call_id)
        )));
    }
    Ok(unanswered)
}

/// What of the parent's tokens stays, and what is to be rendered behind it.
struct Plan<'a> {
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
    /// The header's segment, when it is to be rendered.
    header: Option<Segment>,
    has_query: bool,
    /// The soonest that what stays or moves loses reasoning.
    dropped: Dropped,
}

impl<'a> Plan<'a> {
    fn new(
        profile: &Profile,
        parent: Option<&'a Node>,
        header: &Arc<Header>,
        items: &[Arc<Item>],
    ) -> Result<Self> {
        let family = profile.family();
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
            Some(render_header(profile, parent, header, leading, items)?)
        } else {
            None
        };
        let mut plan = Self {
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
                Some(without_reasoning(profile, node, segment)?)
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

    fn render(self, profile: &Profile, meter: &Meter, request: OpenRequest<'_>) -> Result<Opened> {
        let family = profile.family();
        let tail = self.parent.map_or(Tail::Empty, |node| node.parts().tail);
        let mut rendered = self.header.as_ref().map_or(0, |segment| segment.ids.len());
        let mut segments: Vec<Segment> = self.header.into_iter().collect();
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
            let prompt = generation_prompt(profile, request.thinking)?;
            dropped = dropped.max(prompt.dropped);
            segments.push(prompt);
        }
        rendered += segments[moved..].iter().map(|segment| segment.ids.len()).sum::<usize>();

        let new: usize = segments.iter().map(|segment| segment.ids.len()).sum();
        let (kind, mut tape) = match (self.kind, self.parent) {
            (Kind::Extend, Some(node)) => match node.take_tape() {
                Some(tape) => (Kind::Extend, tape),
                None => (Kind::Fork, copy(Some(node), self.keep, meter)),
            },
            (kind, node) => (kind, copy(node, self.keep, meter)),
        };
        for segment in &segments {
            tape.extend(&segment.ids);
        }
        debug_assert_eq!(tape.len(), self.keep + new);
        let prefix_len = match (kind, self.parent) {
            (Kind::Extend | Kind::Fork, _) | (_, None) => self.keep,
            (_, Some(node)) => common_prefix(&tape.view(), &node.view()),
        };
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
        })
    }
}

fn copy(node: Option<&Node>, keep: usize, meter: &Meter) -> Tape {
    let tape = match node.filter(|_| keep > 0) {
        Some(node) => node.lineage().tape(keep),
        None => Tape::from_parts([], 0),
    };
    tape.metered(meter)
}

fn segment(ids: Vec<u32>, kind: SpanKind, items: std::ops::Range<usize>) -> Segment {
    Segment { ids: ids.into(), kind, items, reasoning: 0..0, dropped: Dropped::Never, glue: false }
}

fn render_header(
    profile: &Profile,
    parent: Option<&Node>,
    header: &Header,
    leading: usize,
    items: &[Arc<Item>],
) -> Result<Segment> {
    let known = parent.map(|node| node.items(0..leading)).unwrap_or_default();
    let missing = leading - known.len();
    let texts: Vec<&str> = known.iter().chain(&items[..missing]).map(|item| item.text()).collect();
    let ids = profile.render(|sink| profile.family().header(header, &texts, sink))?;
    Ok(segment(ids, SpanKind::Header, 0..leading))
}

fn generation_prompt(profile: &Profile, thinking: bool) -> Result<Segment> {
    let family = profile.family();
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
    let goes_on = !matches!(first.as_ref(), Item::Message { role, .. } if *role != crate::item::Role::Assistant);
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
fn without_reasoning(profile: &Profile, node: &Node, segment: &Segment) -> Result<Segment> {
    let ids: Arc<[u32]> = if segment.kind == SpanKind::Item {
        let items = node.items(segment.items.clone());
        let mut groups = group(&items, segment.items.start);
        for group in &mut groups {
            profile.family().read_foreign(&mut group.message);
        }
        let write = |sink: &mut dyn crate::family::render::Sink| {
            for group in &groups {
                profile.family().message(&group.message, Shown::Nothing, sink);
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

fn common_prefix(a: &View, b: &View) -> usize {
    use std::sync::atomic::Ordering::Relaxed;
    let pairs = a.as_atomics().iter().zip(b.as_atomics());
    pairs.take_while(|(a, b)| a.load(Relaxed) == b.load(Relaxed)).count()
}
