//! The flat tokens of a tip: appended in place, read without a copy.
//!
//! A [`Tape`] has one writer. A [`View`] of its first `len` tokens stays valid and unchanged
//! whatever the writer does: appends touch only what lies behind every view, and anything that
//! would overwrite a viewed token copies first. Atomics make that sound without `unsafe`: the
//! writer's stores and a view's loads never meet on one token, and even if they did, nothing
//! worse than a wrong token could follow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::chain::{Held, Meter};
use crate::token::TokenId;

/// Room for a typical turn of Codex (886 appended, 184 sampled: TraceLab, arXiv:2606.30560), so
/// that most turns after a copy append without another.
const HEADROOM: usize = 2048;

/// The growing end of a chain. Not clonable: one owner writes.
#[derive(Debug)]
pub struct Tape {
    buffer: Arc<Vec<AtomicU32>>,
    len: usize,
    held: Option<Held>,
}

/// An unchanging view of a tape's first tokens; cheap to clone.
#[derive(Debug, Clone)]
pub struct View {
    buffer: Arc<Vec<AtomicU32>>,
    len: usize,
}

impl Tape {
    /// A tape that begins with `parts`, copied once.
    pub fn from_parts<'a>(parts: impl IntoIterator<Item = &'a [TokenId]>, len: usize) -> Self {
        let capacity = len + len / 4 + HEADROOM;
        let mut buffer = Vec::with_capacity(capacity);
        for part in parts {
            buffer.extend(part.iter().map(|&id| AtomicU32::new(id)));
        }
        let len = buffer.len();
        buffer.resize_with(capacity.max(len), AtomicU32::default);
        Self { buffer: Arc::new(buffer), len, held: None }
    }

    /// Counts its memory in `meter` for as long as it lives.
    #[must_use]
    pub fn metered(mut self, meter: &Meter) -> Self {
        self.held = Some(meter.hold(self.bytes()));
        self
    }

    /// Bytes that it takes, its headroom included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buffer.len() * size_of::<TokenId>()
    }

    /// Tokens on the tape.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `ids`; amortised O(`ids.len()`).
    pub fn extend(&mut self, ids: &[TokenId]) {
        let end = self.len + ids.len();
        if end > self.buffer.len() {
            self.copy_with_room(end);
        }
        for (slot, &id) in self.buffer[self.len..end].iter().zip(ids) {
            slot.store(id, Relaxed);
        }
        self.len = end;
    }

    /// Drops the tokens from `len` on. Copies when someone still looks at them.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        self.len = len;
        if Arc::strong_count(&self.buffer) > 1 {
            self.copy_with_room(len);
        }
    }

    /// A copy of the tokens from `start` on.
    #[must_use]
    pub fn tail(&self, start: usize) -> Vec<TokenId> {
        self.buffer[start.min(self.len)..self.len].iter().map(|id| id.load(Relaxed)).collect()
    }

    fn copy_with_room(&mut self, needed: usize) {
        let capacity = needed + needed / 4 + HEADROOM;
        let mut buffer = Vec::with_capacity(capacity);
        buffer.extend(self.buffer[..self.len].iter().map(|id| AtomicU32::new(id.load(Relaxed))));
        buffer.resize_with(capacity, AtomicU32::default);
        self.buffer = Arc::new(buffer);
        let bytes = self.bytes();
        if let Some(held) = &mut self.held {
            held.resize(bytes);
        }
    }

    /// The tokens so far. O(1).
    #[must_use]
    pub fn view(&self) -> View {
        View { buffer: Arc::clone(&self.buffer), len: self.len }
    }
}

impl View {
    /// A view of tokens that belong to no tape.
    #[must_use]
    pub fn of(ids: Vec<TokenId>) -> Self {
        let len = ids.len();
        Self { buffer: Arc::new(ids.into_iter().map(AtomicU32::new).collect()), len }
    }

    /// How many tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tokens as the memory that holds them; the wall lends it out as u32.
    #[must_use]
    pub fn as_atomics(&self) -> &[AtomicU32] {
        &self.buffer[..self.len]
    }

    /// A copy.
    #[must_use]
    pub fn to_vec(&self) -> Vec<TokenId> {
        self.as_atomics().iter().map(|id| id.load(Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_never_changes() {
        let mut tape = Tape::from_parts([&[1, 2][..], &[3]], 3);
        let view = tape.view();
        tape.extend(&vec![4; 10_000]);
        tape.truncate(2);
        tape.extend(&[9, 9]);
        assert_eq!(view.to_vec(), [1, 2, 3]);
        assert_eq!(tape.view().to_vec(), [1, 2, 9, 9]);
    }

    #[test]
    fn extends_in_place_within_its_room() {
        let mut tape = Tape::from_parts([&[7; 100][..]], 100);
        let before = tape.view();
        tape.extend(&[8; 500]);
        assert!(Arc::ptr_eq(&before.buffer, &tape.view().buffer));
    }
}
