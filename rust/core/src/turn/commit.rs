//! Publishing a turn: its items, its segments, and what of them history will lose.

use std::ops::Range;
use std::sync::Arc;

use super::{Stage, Turn};
use crate::chain::{Dropped, Extent, Imprint, Node, NodeParts, Segment, Tail, Tape};
use crate::error::{Error, Result};
use crate::family::generic::spell;
use crate::family::{Before, End, Family, Last};
use crate::item::Item;
use crate::token::{Origin, SpanKind, TokenId};

impl Turn {
    /// Publishes the turn.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invariant`] before `finish`, or a second time.
    pub fn commit(&mut self) -> Result<Node> {
        if self.stage != Stage::Finished {
            return Err(Error::invariant("commit before finish, or twice"));
        }
        self.stage = Stage::Gone;
        let opened = &mut self.opened;
        let mut tape = std::mem::replace(&mut opened.tape, Tape::from_parts([], 0));
        let mut segments = std::mem::take(&mut opened.segments);
        let mut items = std::mem::take(&mut self.items);
        let input_items = items.len();
        let mut dropped = opened.dropped;
        let mut tail = opened.tail;
        let mut before = opened.before;
        let mut unanswered = std::mem::take(&mut self.unanswered);
        if opened.generate {
            let first_output = self.first_item() + items.len();
            let incomplete = self.parser.call_is_incomplete();
            let calls = self.outputs.iter().filter_map(|item| match item {
                Item::Call { call_id, name, .. } => Some((call_id.clone(), name.clone())),
                _ => None,
            });
            let calls: Vec<_> = calls.collect();
            let reasons = !self.parser.reasoning().is_empty();
            let answered = self.parser.answered() || (before.answered && !reasons);
            before = Before { answered, ..before.and_said(Last::Model, calls.len()) };
            unanswered.extend(calls);
            // Nobody can answer a call that was cut off in the middle.
            if incomplete {
                unanswered.pop();
            }
            let outputs = self.outputs.len();
            items.extend(self.outputs.drain(..).map(Arc::new));

            let stopped = self.last.is_some_and(|id| self.profile.stops(id));
            let thinking = self.parser.ends_thinking();
            let native = self.native();
            let closes = |id| native.is_some_and(|family| family.closes(id));
            let within = self.parser.within();
            tail = Tail::Sampled(match (thinking, stopped || self.last.is_some_and(closes)) {
                (true, _) => End::Thinking,
                (false, _) if within > 0 => End::Within(within),
                (false, true) => End::Closed,
                (false, false) => End::Open,
            });
            if let Some((family, stop)) = native.zip(self.last.filter(|_| stopped)) {
                // Another stop token means the same; history has the family's own (law 2).
                let close = family.close_of(stop, thinking || within > 0);
                if close != Some(stop) {
                    tape.truncate(self.prompt.len() + self.sampled - 1);
                    tape.extend(close.as_slice());
                }
            }
            let ids = tape.tail(self.prompt.len());
            let sampled =
                self.sampled_segments(&ids, stopped, first_output..first_output + outputs)?;
            if let ([only], Some(prompt)) = (sampled.as_slice(), segments.last_mut())
                && only.dropped != Dropped::Never
                && only.reasoning == (0..only.ids.len()).into()
                && self.native().is_some_and(Family::loses_whole)
            {
                prompt.reasoning = (0..prompt.ids.len()).into();
                prompt.dropped = only.dropped;
            }
            dropped = sampled.iter().map(|part| part.dropped).fold(dropped, Dropped::max);
            segments.extend(sampled);
        }
        // A fork of what has gone on already is often one turn long (a side question, a retry): it
        // has to go on itself before it is worth a second copy of its tokens.
        let keeps_tape = self.parent.as_ref().is_none_or(Node::continue_first);
        let token_count = tape.len();
        let row = self.parent.as_ref().map_or(0, |node| node.parts().fingerprint);
        let fingerprint = items.iter().fold(row, |row, item| self.index.extend(row, item.as_ref()));
        // A turn that said nothing, or was cut off while it thought, has the fingerprint of the
        // row before it, which it is not.
        let spoke = !self.opened.generate || items.len() > input_items;
        let ends_well =
            !matches!(items.last().map(Arc::as_ref), None | Some(Item::Reasoning { .. }));
        let findable = spoke && ends_well;
        let node = Node::new(NodeParts {
            parent: self.parent.take(),
            base: self.opened.base.take(),
            segments,
            token_count,
            items,
            input_items,
            fingerprint,
            header: Arc::clone(&self.header),
            leading: self.opened.leading,
            tail,
            unanswered,
            before,
            knobs: self.opened.knobs,
            printed: self.opened.printed,
            dropped,
            began: self.opened.began,
            found: self.known_items > 0,
            profile: *self.profile.fingerprint(),
            tape: keeps_tape.then_some(tape),
            meter: self.index.meter().clone(),
        });
        if keeps_tape {
            self.index.tapes().add(&node);
        }
        if let Some(scope) = self.scope.as_ref().filter(|_| findable) {
            self.index.insert(scope, &node);
        }
        Ok(node)
    }

    fn first_item(&self) -> usize {
        self.parent.as_ref().map_or(0, Node::item_count)
    }

    /// What was sampled, as segments: one for each stretch of reasoning that history loses. On the
    /// generic path the stop token is one of its own: the template has its own idea of how an answer
    /// ends.
    fn sampled_segments(
        &self,
        ids: &[TokenId],
        stopped: bool,
        items: Range<usize>,
    ) -> Result<Vec<Segment>> {
        let before = self.opened.before;
        let sampled = Segment {
            ids: ids.into(),
            kind: SpanKind::Sampled,
            items: items.into(),
            dropped: Dropped::Never,
            reasoning: Extent::default(),
            glue: false,
            origin: Origin::Sampled,
            imprint: Imprint::default(),
            before,
        };
        let lost = self.lost(ids);
        if let Some(family) = self.native() {
            let mut parts = Vec::new();
            let mut from = 0;
            for (index, range) in lost.iter().enumerate() {
                let end = lost.get(index + 1).map_or(ids.len(), |next| next.start);
                parts.push(Segment {
                    ids: ids[from..end].into(),
                    reasoning: (range.start - from..range.end - from).into(),
                    dropped: family.reasoning_dropped(before),
                    glue: index > 0,
                    ..sampled.clone()
                });
                from = end;
            }
            return Ok(if parts.is_empty() { vec![sampled] } else { parts });
        }
        // What a template loses it loses at the front.
        let reasoning = lost.into_iter().next().unwrap_or_default();
        let (said, stop) = ids.split_at(ids.len() - usize::from(stopped));
        let part = |ids: &[TokenId], glue| -> Result<Segment> {
            let imprint = Imprint::of(&spell(ids, self.profile.vocabulary())?);
            Ok(Segment { ids: ids.into(), glue, imprint, ..sampled.clone() })
        };
        let mut parts = Vec::new();
        if !said.is_empty() {
            parts.push(Segment { reasoning: reasoning.into(), ..part(said, false)? });
        }
        if !stop.is_empty() {
            parts.push(part(stop, !said.is_empty())?);
        }
        Ok(parts)
    }

    /// The renderer of this turn, where it is a family's.
    fn native(&self) -> Option<&dyn Family> {
        let native = self.profile.renderer().native.as_deref();
        native.filter(|_| !self.opened.printed)
    }

    /// The sampled ids that history loses; on the generic path those that it may lose.
    fn lost(&self, ids: &[TokenId]) -> Vec<Range<usize>> {
        if !self.profile.format().drops_reasoning() {
            return Vec::new();
        }
        let is_newline = |&&id: &&TokenId| self.profile.piece(id).is_newlines();
        let native = self.native();
        let lost = self.parser.reasoning().into_iter().map(|block| {
            let block = block.start.min(ids.len())..block.end.min(ids.len());
            if let Some(family) = native {
                return family.lost(ids, block);
            }
            // The newlines behind it go with it.
            let newlines = ids[block.end..].iter().take_while(is_newline).count();
            block.start..block.end + newlines
        });
        lost.filter(|range| !range.is_empty()).collect()
    }
}
