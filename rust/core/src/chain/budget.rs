//! How many bytes the chains hold, counted where they are allocated and freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A count of bytes that is shared by everything that holds some.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<AtomicUsize>);

/// Bytes that are counted for as long as this lives.
#[derive(Debug)]
pub struct Held {
    meter: Meter,
    bytes: usize,
}

impl Meter {
    /// Bytes held now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Counts `bytes` until the result is dropped.
    #[must_use]
    pub fn hold(&self, bytes: usize) -> Held {
        self.0.fetch_add(bytes, Relaxed);
        Held { meter: self.clone(), bytes }
    }
}

impl Held {
    /// The same holder has another number of bytes now.
    pub fn resize(&mut self, bytes: usize) {
        self.meter.0.fetch_add(bytes, Relaxed);
        self.meter.0.fetch_sub(self.bytes, Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.meter.0.fetch_sub(self.bytes, Relaxed);
    }
}
