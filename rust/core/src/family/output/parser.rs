//! [`OutputReader`] as a parser of one turn.

use std::ops::Range;

use super::OutputReader;
use super::body::Progress;
use super::place::{Block, Closer, Met, Place};
use crate::family::{Delta, OutputParser};
use crate::token::TokenId;

impl OutputParser for OutputReader {
    fn text(&mut self, text: &str, out: &mut Vec<Delta>) {
        for c in text.chars() {
            self.feed(c, out);
        }
    }

    /// A marker, or the content of a token that is not special. A special token that is no marker
    /// shows nowhere (D2).
    fn added(
        &mut self,
        id: TokenId,
        content: &str,
        special: bool,
        index: usize,
        out: &mut Vec<Delta>,
    ) {
        let mark = self.tokens.iter().find(|(known, _)| *known == id).map(|(_, mark)| *mark);
        if self.form.as_ref().is_some_and(|form| form.body.marks(id)) {
            if matches!(self.place, Place::Call(_)) {
                self.settle_partial(out);
            }
            if let Place::Call(call) = &mut self.place
                && call.body.token(id)
            {
                return self.begin(out);
            }
        }
        if self.is_part(id, content) {
            return self.text(content, out);
        }
        if mark.is_some() || special {
            self.settle_partial(out);
        }
        match mark {
            Some(mark) if special || !self.in_string() => {
                let shown = if special { "" } else { content };
                self.marker(mark, Met { shown, index: Some(index) }, out);
            }
            None if special => {}
            _ => self.text(content, out),
        }
    }

    /// A call that has not begun comes out as what it stood in. One that has is left as it is,
    /// since nothing here tells a stop from a limit: see [`call_is_incomplete`](OutputParser::call_is_incomplete).
    fn finish(&mut self, count: usize, out: &mut Vec<Delta>) {
        if self.closer != Closer::Nobodys && !self.text.has_begun() {
            // Right behind a call, what begins a marker was going to be one.
            self.partial.clear();
        }
        self.settle_partial(out);
        if let Place::Call(call) = &self.place
            && (!call.begun || call.body.arguments() == Progress::Complete)
        {
            self.end_call(true, out);
        }
        match self.place {
            Place::Reasoning => self.reasoning.finish(out),
            Place::Text => self.text.finish(out),
            Place::Call(_) | Place::Tail(_) => {}
        }
        self.first.close(Some(count));
    }

    /// The first block only, which is one contiguous range: from its `<think>` (from 0 where the
    /// prompt had opened it) to behind its `</think>`, or to the `<tool_call>` that ended it, or,
    /// after [`finish`](OutputParser::finish), to `count`. None while it is open, and for markers
    /// in letters, because text carries no index.
    fn reasoning(&self) -> Vec<Range<usize>> {
        match &self.first {
            Block::Placed(range) if !range.is_empty() => vec![range.clone()],
            _ => Vec::new(),
        }
    }

    fn ends_thinking(&self) -> bool {
        matches!(self.place, Place::Reasoning)
    }

    fn closed_calls(&self) -> usize {
        self.closed
    }

    /// Cut off by a limit, or broken off by a marker or by JSON that cannot be. A call without its
    /// closing brace or marker is whole if its arguments are; one that ended without arguments is
    /// too, and has `{}`. False when there was no call.
    fn call_is_incomplete(&self) -> bool {
        match &self.place {
            Place::Call(call) if call.begun => call.body.arguments() != Progress::Complete,
            _ => self.incomplete,
        }
    }
}
