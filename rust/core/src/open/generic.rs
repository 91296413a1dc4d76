//! The plan of the generic path: the template prints the whole conversation, and what it printed
//! before is recognised instead of encoded.
//!
//! ```text
//! script of the whole conversation
//!   = the parent's segments, as far as their imprints stand in it       kept
//!   + the rest, cut into messages, each of which is
//!       a segment that stood elsewhere in the parent                     moved
//!       a message in which a turn's sampled ids are found                spliced (D3)
//!       anything else                                                    encoded
//! ```
//!
//! Every boundary is a safe cut of this script, or one end of sampled ids.

use std::collections::HashMap;
use std::ops::Range;

use memchr::memmem;

use super::{Asked, Laid, lay, segment};
use crate::chain::{Dropped, Extent, Imprint, Lineage, Node, Segment, Tail};
use crate::error::{ErrorKind, Result};
use crate::family::Before;
use crate::family::generic::{Conversation, Generic, Script, spell};
use crate::profile::Profile;
use crate::token::{Origin, SpanKind};
use crate::tokenizer::Vocabulary;
use crate::turn::{Kind, Opened};

/// Bytes from which on a message is cut where it can be, to be kept in part.
const LONG: usize = 4096;

/// How many turns' sampled ids are looked for in one message, where nothing says whose it is.
const GUESSES: usize = 4;

/// Opens a turn by running the template.
///
/// # Errors
/// `invalid_value` at `input` when the template refuses the conversation.
pub(super) fn open(profile: &Profile, generic: &Generic, asked: Asked<'_>) -> Result<Opened> {
    let Asked { parent, header, items, meter, began, knobs, request } = asked;
    let (mut all, outputs) = parent.map(Node::turns).unwrap_or_default();
    let known = all.len();
    all.extend(items.iter().cloned());
    let conversation = Conversation {
        header,
        items: &all,
        runs: &runs(&outputs, all.len()),
        generate: request.generate,
        knobs,
        now: began,
    };
    let vocabulary = profile.vocabulary();
    let script = match generic.print(&conversation, vocabulary) {
        // What a template refuses because it has only begun (Qwen 3.5 wants a question), it may take
        // with what comes next: a warm-up renders nothing of it.
        Err(error) if !request.generate && error.kind() == ErrorKind::InvalidValue => {
            generic.nothing(vocabulary)?
        }
        printed => printed?,
    };

    let lineage = parent.map(Node::lineage);
    let old: Vec<&Segment> = lineage.iter().flat_map(Lineage::segments).collect();
    let kept = Kept::of(&script, &old);
    let mut rest = Rest {
        script: &script,
        vocabulary,
        stops: profile.stop_token_ids(),
        prompt: if request.generate { generic.prompt(knobs.thinking) } else { &[] },
        old: &old[kept.segments..],
        all_old: kept.segments == 0,
        outputs: &outputs,
        new_items: known..all.len(),
        used: vec![false; old.len() - kept.segments],
        rendered: 0,
        segments: Vec::new(),
    };
    rest.lay_out(kept.bytes)?;
    let before = old[..kept.segments].iter().map(|segment| segment.items.range().end).max();
    rest.name_the_unmarked(before.unwrap_or(0), all.len());
    let reencoded = rest.lost_tokens();
    let Rest { segments, rendered, .. } = rest;

    let kind = match parent {
        None => Kind::Cold,
        Some(node) if kept.tokens == node.token_count() => Kind::Extend,
        Some(node) if !header.renders_as(&node.parts().header) => Kind::Rebase,
        Some(_) => Kind::Rewind,
    };
    let Laid { kind, tape, prefix_len } = lay(parent, kind, kept.tokens, &segments, meter);
    Ok(Opened {
        kind,
        base: parent.filter(|_| kept.tokens > 0).map(|node| (node.clone(), kept.tokens)),
        segments,
        tape,
        prefix_len,
        rendered,
        leading: 0,
        before: Before::default(),
        printed: !all.is_empty(),
        dropped: Dropped::Never,
        knobs,
        generate: request.generate,
        parallel_tool_calls: request.parallel_tool_calls,
        tail: Tail::Closed,
        began,
        reencoded,
    })
}

/// The stretches of a chain's items within which adjacent ones form one message: each turn's
/// output, and what lies between two.
fn runs(outputs: &[Range<usize>], count: usize) -> Vec<Range<usize>> {
    let mut runs = Vec::with_capacity(2 * outputs.len() + 1);
    let mut from = 0;
    for output in outputs {
        runs.extend([from..output.start, output.clone()]);
        from = output.end;
    }
    runs.push(from..count);
    runs.retain(|run| !run.is_empty());
    runs
}

/// Whether any of `items` is a turn's output.
fn holds_output(outputs: &[Range<usize>], items: &Range<usize>) -> bool {
    outputs.iter().any(|output| output.start < items.end && items.start < output.end)
}

/// What of the parent's tokens stays where it is.
#[derive(Debug, Default)]
struct Kept {
    bytes: usize,
    tokens: usize,
    segments: usize,
}

impl Kept {
    fn of(script: &Script, old: &[&Segment]) -> Self {
        let mut kept = Self::default();
        let (mut at, mut tokens) = (0, 0);
        for (index, segment) in old.iter().enumerate() {
            if segment.imprint.is_empty() || !script.holds(at, &segment.imprint) {
                break;
            }
            at += segment.imprint.len();
            tokens += segment.ids.len();
            if script.is_cut(at) {
                kept = Self { bytes: at, tokens, segments: index + 1 };
            }
        }
        kept
    }
}

/// The script behind what was kept.
struct Rest<'a> {
    script: &'a Script,
    vocabulary: &'a Vocabulary,
    stops: &'a [u32],
    /// How the generation prompt reads; nothing where there is none to tell apart.
    prompt: &'a [u8],
    /// The parent's segments that were not kept, and whether that is all of them.
    old: &'a [&'a Segment],
    all_old: bool,
    /// The items of each turn's output.
    outputs: &'a [Range<usize>],
    /// The request's own items.
    new_items: Range<usize>,
    /// Which of `old` stand somewhere in the prompt again.
    used: Vec<bool>,
    rendered: usize,
    segments: Vec<Segment>,
}

impl Rest<'_> {
    fn lay_out(&mut self, from: usize) -> Result<()> {
        let by_imprint: HashMap<Imprint, usize> = self
            .old
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, segment)| segment.origin != Origin::Sampled)
            .map(|(index, segment)| (segment.imprint, index))
            .collect();
        let mut next_sampled = 0;
        for message in self.messages(from) {
            let imprint = Imprint::of(self.script.bytes(message.clone()));
            // The first tokens of a prompt may be encoded otherwise than the same text further on.
            let first = |index: usize| self.all_old && index == 0;
            let known = by_imprint.get(&imprint).copied();
            if let Some(index) = known.filter(|&index| first(index) == (message.start == 0)) {
                self.used[index] = true;
                let moved = Segment { glue: false, ..self.old[index].clone() };
                self.segments.push(self.labelled(moved, &message));
            } else if !self.splice(&message, &mut next_sampled)? {
                self.encode(message)?;
            }
        }
        Ok(())
    }

    /// Says which items the messages without a text of their own are (calls whose arguments are
    /// words): those between their neighbours'. `before` and `count` bound the items of the rest.
    fn name_the_unmarked(&mut self, before: usize, count: usize) {
        let mut next = count;
        for index in (0..self.segments.len()).rev() {
            let known = |segment: &&Segment| !segment.items.is_empty();
            let earlier = self.segments[..index].iter().rev().find(known);
            let first = earlier.map_or(before, |segment| segment.items.range().end);
            let segment = &mut self.segments[index];
            if !segment.items.is_empty() {
                next = segment.items.range().start;
            } else if segment.glue && segment.origin != Origin::Sampled && first < next {
                segment.items = (first..next).into();
                segment.glue = false;
                if segment.origin == Origin::Rendered && holds_output(self.outputs, &(first..next))
                {
                    segment.origin = Origin::Reencoded;
                }
                next = first;
            }
        }
    }

    /// Cuts the rest of the script where messages begin, as far as that can be told: behind a token
    /// that ends turns, and between the texts of two items, at the next control token that allows it.
    fn messages(&self, from: usize) -> Vec<Range<usize>> {
        let end = self.script.end();
        let mut starts = vec![from];
        let closes = self.script.atoms(from..end).filter(|(_, id)| self.stops.contains(id));
        starts.extend(closes.filter_map(|(behind, _)| self.script.next_opening(behind)));
        let mut last: Option<(usize, usize)> = None;
        for &(at, item) in self.script.marks(&(from..end)) {
            if let Some((before, other)) = last
                && other != item
                && !starts.iter().any(|start| (before..=at).contains(start))
            {
                starts.extend(self.script.next_opening(before).filter(|opening| *opening <= at));
            }
            last = Some((at, item));
        }
        let prompt = end.saturating_sub(self.prompt.len());
        if !self.prompt.is_empty()
            && prompt >= from
            && self.script.is_cut(prompt)
            && self.script.bytes(prompt..end) == self.prompt
        {
            starts.retain(|&start| start <= prompt);
            starts.push(prompt);
        } else if let Some(cut) = self.script.last_cut() {
            // What ends between two cuts will not be kept: let it be little.
            starts.push(cut.max(from));
        }
        starts.retain(|&start| start < end);
        starts.sort_unstable();
        starts.dedup();
        let ends = starts.iter().skip(1).copied().chain([end]);
        starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
    }

    /// The items whose texts are in `range`; all that are new where nothing marks them.
    fn items(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let mut numbers = self.script.marks(range).iter().map(|(_, item)| *item);
        let first = numbers.next()?;
        let (low, high) = numbers.fold((first, first), |(low, high), n| (low.min(n), high.max(n)));
        Some(low.saturating_sub(1)..high)
    }

    fn is_prompt(&self, range: &Range<usize>) -> bool {
        !self.prompt.is_empty()
            && range.end == self.script.end()
            && self.script.bytes(range.clone()) == self.prompt
    }

    /// Says what a segment that renders `range` holds.
    fn labelled(&self, segment: Segment, range: &Range<usize>) -> Segment {
        let items = self.items(range);
        let marked = items.is_some() || self.script.is_marked();
        let first = self.segments.is_empty() && range.start == 0;
        let (kind, items, glue) = if self.is_prompt(range) {
            (SpanKind::GenerationPrompt, 0..0, false)
        } else if let Some(items) = items {
            let kind = if items.is_empty() { SpanKind::Header } else { SpanKind::Item };
            (kind, items, false)
        } else if first {
            (SpanKind::Header, 0..0, false)
        } else if marked {
            (SpanKind::Item, 0..0, true)
        } else {
            (SpanKind::Item, self.new_items.clone(), false)
        };
        let sampled = kind == SpanKind::Item && holds_output(self.outputs, &items);
        let origin = match segment.origin {
            Origin::Rendered if sampled => Origin::Reencoded,
            origin => origin,
        };
        Segment { kind, items: items.into(), glue, origin, ..segment }
    }

    fn encode(&mut self, range: Range<usize>) -> Result<()> {
        let mut start = range.start;
        while let Some(cut) = self.script.next_opening(start + LONG).filter(|&cut| cut < range.end)
        {
            self.encode_piece(start..cut)?;
            start = cut;
        }
        self.encode_piece(start..range.end)
    }

    fn encode_piece(&mut self, range: Range<usize>) -> Result<()> {
        let ids = self.script.encode(range.clone(), self.vocabulary)?;
        self.rendered += ids.len();
        let imprint = Imprint::of(self.script.bytes(range.clone()));
        let fresh = Segment { imprint, ..segment(ids, SpanKind::Item, 0..0) };
        self.segments.push(self.labelled(fresh, &range));
        Ok(())
    }

    /// Puts a turn's sampled ids where `message` prints what they spell: all of them, or those behind
    /// their reasoning, which templates take out of history. False when it prints no turn's.
    fn splice(&mut self, message: &Range<usize>, next: &mut usize) -> Result<bool> {
        let items = self.items(message);
        let fits = |segment: &Segment| match &items {
            Some(items) => {
                let own = segment.items.range();
                own.start < items.end && items.start < own.end
            }
            None => true,
        };
        let sampled = |index: &usize| {
            let segment = self.old[*index];
            segment.origin == Origin::Sampled && !segment.glue && !self.used[*index]
        };
        let candidates: Vec<usize> = (*next..self.old.len())
            .filter(sampled)
            .take(if items.is_some() { usize::MAX } else { GUESSES })
            .filter(|&index| fits(self.old[index]))
            .collect();
        for index in candidates {
            let segment = self.old[index];
            let answer = segment.ids.get(segment.reasoning.range().end..).unwrap_or_default();
            let forms = if segment.reasoning.is_empty() { 1 } else { 2 };
            for ids in [segment.ids.as_ref(), answer].into_iter().take(forms) {
                let spelled = spell(ids, self.vocabulary)?;
                let Some(found) = self.find(&spelled, message) else { continue };
                if found.start > message.start {
                    self.encode(message.start..found.start)?;
                    if let Some(opening) = self.segments.last_mut() {
                        opening.kind = SpanKind::GenerationPrompt;
                        opening.items = Extent::default();
                        opening.origin = Origin::Rendered;
                    }
                }
                let whole = ids.len() == segment.ids.len();
                self.segments.push(Segment {
                    ids: ids.into(),
                    reasoning: if whole { segment.reasoning } else { Extent::default() },
                    imprint: Imprint::of(&spelled),
                    ..segment.clone()
                });
                if found.end < message.end {
                    self.encode(found.end..message.end)?;
                    if let Some(closer) = self.segments.last_mut() {
                        closer.glue = true;
                        closer.origin = Origin::Rendered;
                    }
                }
                self.used[index] = true;
                *next = index + 1;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Where `spelled` stands in `message`, with a cut behind it.
    fn find(&self, spelled: &[u8], message: &Range<usize>) -> Option<Range<usize>> {
        if spelled.is_empty() {
            return None;
        }
        let found = memmem::find_iter(self.script.bytes(message.clone()), spelled);
        let mut places = found.map(|at| message.start + at..message.start + at + spelled.len());
        places.find(|place| self.script.is_cut(place.end))
    }

    /// Sampled tokens that are in the prompt no more as they were sampled.
    fn lost_tokens(&self) -> usize {
        let lost = self.old.iter().zip(&self.used);
        let lost = lost.filter(|(segment, used)| {
            segment.origin == Origin::Sampled && !segment.glue && !**used
        });
        lost.map(|(segment, _)| segment.ids.len()).sum()
    }
}
