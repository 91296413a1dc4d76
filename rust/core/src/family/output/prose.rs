//! Reasoning and messages: which blanks are theirs, and which the template's.

use std::mem;

use super::super::Delta;

/// What the prose is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Text,
}

/// One reasoning or message, as far as it has come.
///
/// Until it has begun, by its first visible character, every blank is held: it may stay blank and
/// be nothing. After that only newlines are, which the template strips before a marker.
#[derive(Debug)]
pub(super) struct Prose {
    kind: Kind,
    /// Leading newlines are the template's.
    strips: bool,
    begun: bool,
    held: String,
    /// Part of the marker before it, where this is what comes first.
    label: String,
}

impl Prose {
    /// What stands first in the output: whatever it begins with is its own.
    pub(super) fn at_start(kind: Kind) -> Self {
        Self { kind, strips: false, begun: false, held: String::new(), label: String::new() }
    }

    /// What stands behind a marker.
    pub(super) fn after_scaffold(kind: Kind) -> Self {
        Self { strips: true, ..Self::at_start(kind) }
    }

    /// The same, where a label may come first.
    pub(super) fn labelled(self, label: &str) -> Self {
        Self { label: label.to_owned(), ..self }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    pub(super) fn push(&mut self, c: char, out: &mut Vec<Delta>) {
        if !self.label.is_empty() {
            self.held.push(c);
            if !self.label.starts_with(&self.held) {
                self.label.clear();
                for c in mem::take(&mut self.held).chars() {
                    self.push(c, out);
                }
            } else if self.label == self.held {
                self.label.clear();
                self.held.clear();
            }
            return;
        }
        let waits = if self.begun { c == '\n' } else { c.is_whitespace() };
        if waits {
            let stripped = self.strips && !self.begun && self.held.is_empty() && c == '\n';
            if !stripped {
                self.held.push(c);
            }
            return;
        }
        self.begun = true;
        self.held.push(c);
        self.flush(out);
    }

    /// A marker follows, of which `scaffold` is part: every other newline is the prose's own. Whatever
    /// stands behind the marker is a template's again.
    pub(super) fn end_before(&mut self, scaffold: &str, out: &mut Vec<Delta>) {
        let kept = self.held.strip_suffix(scaffold).map_or(self.held.len(), str::len);
        self.held.truncate(kept);
        self.finish(out);
        self.held.clear();
    }

    /// Nothing follows, so what is held is no marker's.
    pub(super) fn finish(&mut self, out: &mut Vec<Delta>) {
        if self.begun {
            self.flush(out);
        }
    }

    fn flush(&mut self, out: &mut Vec<Delta>) {
        let kind = match self.kind {
            Kind::Reasoning => Delta::Reasoning,
            Kind::Text => Delta::Text,
        };
        append(out, kind, &self.held);
        self.held.clear();
    }
}

/// Adds to the last delta where that is of the same kind; says whether there was anything to add.
pub(super) fn append(out: &mut Vec<Delta>, kind: fn(String) -> Delta, text: &str) -> bool {
    if text.is_empty() {
        return false;
    }
    let new = kind(String::new());
    match (out.last_mut(), &new) {
        (Some(Delta::Reasoning(last)), Delta::Reasoning(_))
        | (Some(Delta::Text(last)), Delta::Text(_))
        | (Some(Delta::Arguments(last)), Delta::Arguments(_)) => last.push_str(text),
        _ => out.push(kind(text.to_owned())),
    }
    true
}
