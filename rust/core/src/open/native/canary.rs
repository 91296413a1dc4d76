//! The canary: a committed turn's conversation, rendered again from its items alone (D6, laws 5 and 8).
//!
//! Two things are compared, both outside of what was sampled: what the family prints of the whole
//! conversation with what the template prints, and each segment of the prompt with the one that a cold
//! render makes of the same items.

use std::collections::HashMap;
use std::ops::Range;
use std::slice;

use crate::chain::{Meter, Node, Segment};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::family::generic::Conversation;
use crate::family::probe::{Compared, compare};
use crate::header::RawHeader;
use crate::open::{Asked, Chains, OpenRequest};
use crate::profile::Profile;
use crate::token::{Origin, SpanKind, TokenId};

impl Chains {
    /// Renders the conversation of `node` in full, by the family and by the template, and compares. False
    /// where there is nothing to compare: the template printed it, or no native renderer serves.
    ///
    /// It costs a full render of both kinds: run it beside the turns, now and then.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invariant`] where they part; the template renders every prompt from then on.
    /// The error says where, and no text of the conversation.
    pub fn verify(&self, node: &Node) -> Result<bool> {
        let profile = self.profile().as_ref();
        let parts = node.parts();
        let Some(family) = profile.native().filter(|_| !parts.printed) else { return Ok(false) };
        let sampled = parts.items.len() - parts.input_items;
        let items = node.items(0..node.item_count() - sampled);
        let generate = parts.segments.iter().any(|segment| segment.kind == SpanKind::Sampled);
        let run = 0..items.len();
        let conversation = Conversation {
            header: &parts.header,
            items: &items,
            runs: slice::from_ref(&run),
            generate,
            knobs: parts.knobs,
            now: parts.began,
        };
        let generic = &profile.renderer().generic;
        let parting = match compare(family, generic, profile.vocabulary(), &conversation)? {
            Compared::Other { native, printed } => {
                let printed = printed.bytes(0..printed.end());
                let ends = native.iter().rev().zip(printed.iter().rev());
                let same = ends.take_while(|(one, other)| one == other).count();
                Some(format!(
                    "the native renderer prints a conversation of {} items otherwise than its template, \
                     {same} bytes before its end",
                    items.len()
                ))
            }
            Compared::Same | Compared::Untaken => parting(profile, family, node, &conversation)?,
        };
        match parting {
            None => Ok(true),
            Some(parting) => {
                profile.distrust(parting.clone());
                Err(Error::invariant(parting))
            }
        }
    }
}

/// Where the node's tokens are others than a cold render's.
fn parting(
    profile: &Profile,
    family: &dyn Family,
    node: &Node,
    conversation: &Conversation<'_>,
) -> Result<Option<String>> {
    let Conversation { items, generate, knobs, now, .. } = *conversation;
    let meter = Meter::default();
    let asked = Asked {
        parent: None,
        header: &node.parts().header,
        items,
        meter: &meter,
        began: now,
        knobs,
        request: OpenRequest {
            input: b"",
            header: RawHeader::default(),
            parallel_tool_calls: true,
            effort: None,
            verbosity: None,
            generate,
            now: Some(now),
            scope: None,
        },
    };
    // A conversation that the family takes turn by turn, it may not take as one.
    let Some(cold) = super::open(profile, family, asked)? else { return Ok(None) };
    let lineage = node.lineage();
    let warm = rendered(lineage.segments());
    let differs = |(key, ids): (Rendered, &[TokenId])| {
        warm.get(&key).is_some_and(|held| *held != ids).then_some(key)
    };
    let first =
        rendered(&cold.segments).into_iter().filter_map(differs).min_by_key(|key| key.1.start);
    Ok(first.map(|(is_header, items)| {
        let what = if is_header { "the header" } else { "what was rendered" };
        format!("{what} of the items {items:?} has other tokens than a new render of them")
    }))
}

/// Whether it is the header, and of which items.
type Rendered = (bool, Range<usize>);

/// The tokens of everything that was rendered of items, by these.
fn rendered<'a>(
    segments: impl IntoIterator<Item = &'a Segment>,
) -> HashMap<Rendered, &'a [TokenId]> {
    let own = segments.into_iter().filter(|segment| {
        let is_header = segment.kind == SpanKind::Header;
        let holds = is_header || segment.kind == SpanKind::Item && !segment.items.is_empty();
        segment.origin == Origin::Rendered && !segment.glue && holds
    });
    let key = |segment: &Segment| (segment.kind == SpanKind::Header, segment.items.range());
    own.map(|segment| (key(segment), segment.ids.as_ref())).collect()
}
