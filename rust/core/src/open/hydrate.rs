//! Committed turns from a store: by their tokens where these are the profile's, else rendered again.

use super::{Chains, OpenRequest};
use crate::chain::{Node, Reading, Record};
use crate::error::Result;
use crate::header::RawHeader;

impl Chains {
    /// The node that [`Node::export`] wrote, behind `parent`, which is the one that it continued. A
    /// blob of several records, one behind the other, is as many turns.
    ///
    /// The tokens are taken as they are where the profile is the one that they were made with. Else
    /// the items are rendered again, as they would be for a client that sends them.
    ///
    /// # Errors
    /// `invalid_value` at `blob` for what no export wrote, and at `input` for a conversation that this
    /// profile's template refuses.
    pub fn hydrate(&self, parent: Option<&Node>, blob: &[u8]) -> Result<Node> {
        let (record, mut behind) = Record::read(blob)?;
        let mut node = self.hydrated(parent, record)?;
        while !behind.is_empty() {
            let (record, rest) = Record::read(behind)?;
            node = self.hydrated(Some(&node), record)?;
            behind = rest;
        }
        Ok(node)
    }

    fn hydrated(&self, parent: Option<&Node>, record: Record<'_>) -> Result<Node> {
        let parent = parent.filter(|_| !record.alone);
        let (header, items, began) = (record.header(parent)?, record.items.clone(), record.began);
        if !record.alone && record.profile == *self.profile.fingerprint() {
            let knows = |id| self.profile.knows(id);
            let reading = Reading { index: &self.index, knows: &knows };
            if let Some(node) = record.node(parent, reading)? {
                return Ok(node);
            }
        }
        let request = OpenRequest {
            input: b"null",
            header: RawHeader::default(),
            parallel_tool_calls: true,
            effort: None,
            verbosity: None,
            generate: false,
            now: Some(began),
            scope: None,
        };
        let mut turn = self.open_items(parent, items, 0, header, request)?;
        turn.finish(&mut Vec::new())?;
        turn.commit()
    }
}
