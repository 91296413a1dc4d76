//! The canary finds tokens that no render makes. With the real Qwen3 vocabulary and template
//! (`make vocab`), a profile of its own: an alarm is for good.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod qwen;

use std::sync::Arc;

use qwen::{CHAINS, ROOMY, commit, request, says};
use turnwire_core::chain::NodeParts;
use turnwire_core::{Chains, ErrorKind, Node, Options};

fn chains() -> Chains {
    let template = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../.cache/vocab/templates/trl/qwen3.jinja"),
    );
    let profile = CHAINS.profile().with_template(&template.unwrap(), Options::default()).unwrap();
    Chains::new(Arc::new(profile), ROOMY)
}

/// The same turn, with one token of what it rendered for `item` another one.
fn damaged(node: &Node, item: usize) -> Node {
    let parts = node.parts();
    let mut segments = parts.segments.clone();
    let own = segments.iter_mut().find(|segment| segment.items.range().start == item).unwrap();
    let mut ids = own.ids.to_vec();
    ids[1] += 1;
    own.ids = ids.into();
    Node::new(NodeParts {
        parent: parts.parent.clone(),
        base: parts.base.clone(),
        segments,
        token_count: parts.token_count,
        items: parts.items.clone(),
        input_items: parts.input_items,
        fingerprint: parts.fingerprint,
        header: Arc::clone(&parts.header),
        leading: parts.leading,
        tail: parts.tail,
        unanswered: parts.unanswered.clone(),
        before: parts.before,
        knobs: parts.knobs,
        printed: parts.printed,
        dropped: parts.dropped,
        began: parts.began,
        found: parts.found,
        profile: parts.profile,
        tape: None,
        meter: parts.meter.clone(),
    })
}

#[test]
fn a_token_that_no_render_makes_is_found_and_the_template_takes_over() {
    let chains = chains();
    let (first, _) = commit(chains.open(None, request("\"a\"")).unwrap(), &says("b"));
    let (second, _) = commit(chains.open(Some(&first), request("\"c\"")).unwrap(), &says("d"));
    assert!(chains.verify(&second).unwrap());

    let error = chains.verify(&damaged(&second, 2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invariant);
    let text = error.to_string();
    assert!(text.contains("items 2..3 has other tokens than a new render"), "{text}");
    assert_eq!(chains.profile().not_native().unwrap(), error.detail());
    assert!(chains.profile().native().is_none());
    assert!(!chains.verify(&second).unwrap());

    // What was rendered so far goes on.
    let turn = chains.open(Some(&second), request("\"e\"")).unwrap();
    let tokens = second.view().to_vec();
    assert_eq!(turn.prompt().to_vec()[..tokens.len()], tokens);
}
