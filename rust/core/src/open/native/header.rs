//! The header, which the template prints: the parent's, or another one.

use std::ops::Range;

use super::history::again;
use crate::chain::{Node, Segment};
use crate::error::Result;
use crate::family::render::{HEADER_QUESTION, Message, Sink, header_ends};
use crate::family::{Before, Family, Last, Shown};
use crate::item::Role;
use crate::open::{Asked, segment};
use crate::profile::Profile;
use crate::token::SpanKind;

/// A request's header beside its parent's.
pub(super) enum Headed {
    /// The same tokens.
    Same,
    /// Another one, and whether it had to be rendered.
    Other(Segment, bool),
    /// The template does not print it apart from the first message.
    Unseparable,
}

/// `new_leading` items lead the conversation that the parent has not.
pub(super) fn header(
    profile: &Profile,
    family: &dyn Family,
    asked: Asked<'_>,
    new_leading: usize,
) -> Result<Headed> {
    let Asked { parent, header, items, began, knobs, .. } = asked;
    let generic = &profile.renderer().generic;
    let same = |node: &Node| {
        let given = |knobs| generic.given(knobs, began);
        header.renders_as(&node.parts().header) && given(knobs) == given(node.parts().knobs)
    };
    // A warm-up that the template did not take yet has no header either.
    if new_leading == 0 && parent.is_some_and(|node| node.token_count() > 0 && same(node)) {
        return Ok(Headed::Same);
    }
    let held = parent.map_or(0, |node| node.parts().leading);
    let known = |node: &Node| node.items(0..node.item_count().min(held + 1));
    let mut first = parent.map(known).unwrap_or_default();
    let leading = first.iter().take(held).take_while(|item| item.is_instruction()).count();
    let leading = leading + new_leading;
    let missing = (leading + 1).saturating_sub(first.len());
    first.extend(items.iter().take(missing).cloned());

    let question = Message::Plain { role: Role::User, text: HEADER_QUESTION.to_owned() };
    let before = Before { last: Last::Operator, thinking: knobs.thinking, ..Before::default() };
    let vocabulary = profile.vocabulary();
    for end in header_ends(&first, leading) {
        let held = &first[..end];
        let texts: Vec<&str> = held.iter().map(|item| item.text()).collect();
        let first = (texts.as_slice(), end > leading);
        let printed = header.tokens(first, generic.given(knobs, began), || {
            let write =
                |sink: &mut dyn Sink| family.message(&question, Shown::Nothing, before, sink);
            let question = generic.spell(write, vocabulary)?;
            generic.header(header, held, knobs, began, &question, vocabulary)
        });
        if let Some((ids, rendered)) = printed? {
            let empty = segment(Vec::new(), SpanKind::Header, 0..end);
            return Ok(Headed::Other(Segment { ids, ..empty }, rendered));
        }
    }
    Ok(Headed::Unseparable)
}

/// The message that stood in the parent's header, by itself.
pub(super) fn message_of(
    profile: &Profile,
    family: &dyn Family,
    node: &Node,
    own: Range<usize>,
) -> Result<Segment> {
    let before = match own.start {
        0 => Before::default(),
        _ => Before { last: Last::Operator, ..Before::default() },
    };
    let ids = again(profile, family, node, own.clone(), before)?;
    Ok(Segment { ids, before, ..segment(Vec::new(), SpanKind::Item, own) })
}
