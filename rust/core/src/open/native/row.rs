//! Segments in the making.

use crate::chain::{Dropped, Segment};
use crate::error::Result;
use crate::family::render::{Group, IdSink, Sink};
use crate::family::{Before, Family, Last, Showing};
use crate::open::segment;
use crate::profile::Profile;
use crate::token::SpanKind;

/// Segments in the making, one behind the other.
pub(super) struct Row<'a> {
    profile: &'a Profile,
    family: &'a dyn Family,
    sink: IdSink<'a>,
    /// Without their ids, which go on to the start of the next.
    parts: Vec<(usize, Segment)>,
    /// What stands before the next message.
    pub(super) before: Before,
}

impl<'a> Row<'a> {
    pub(super) fn new(profile: &'a Profile, family: &'a dyn Family, before: Before) -> Self {
        Self { profile, family, sink: profile.sink(), parts: Vec::new(), before }
    }

    pub(super) fn message(&mut self, group: &Group, (shown, dropped): Showing) {
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

    pub(super) fn generation_prompt(&mut self) -> Result<()> {
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
    pub(super) fn finish(mut self) -> Result<Vec<Segment>> {
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
