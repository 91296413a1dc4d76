//! Blobs of committed turns: the same node comes back, and nothing in a forged one can do harm.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod qwen;

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use qwen::{CHAINS, LS, ROOMY, call_ids, calls, commit, open, output, request, says};
use turnwire_core::header::RawHeader;
use turnwire_core::{Chains, ErrorKind, Kind, Node, OpenRequest};

/// Magic, version and length; and the check behind the payload.
const HEAD: usize = 7;
const CHECK: usize = 8;

/// A question, a call after a thought, its output with an answer, and another question, which takes
/// the thought out of history: each turn and its blob.
static TURNS: LazyLock<Vec<(Node, Vec<u8>)>> = LazyLock::new(|| {
    let header = RawHeader { tools: Some(LS), ..RawHeader::default() };
    let with_tools = |parent: Option<&Node>, input: &str| {
        CHAINS.open(parent, OpenRequest { header, ..request(input) }).unwrap()
    };
    let (first, told) = commit(with_tools(None, "\"one\""), &calls(Some("hm"), &["ls"]));
    let input = output(&call_ids(&told)[0], "a b");
    let (second, _) = commit(with_tools(Some(&first), &input), &says("two"));
    let turn = with_tools(Some(&second), "\"three\"");
    assert_eq!(turn.kind(), Kind::Rewind);
    let (third, _) = commit(turn, &says("four"));
    let (fourth, _) = commit(open(Some(&third), "\"without tools\""), &says("five"));
    [first, second, third, fourth].map(|node| (node.clone(), node.export().unwrap())).into()
});

fn elsewhere() -> Chains {
    Chains::new(Arc::clone(CHAINS.profile()), ROOMY)
}

/// The payload of a blob, sealed again.
fn sealed(payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_le_bytes();
    let check = blake3::hash(payload);
    [b"tw\x01", len.as_slice(), payload, &check.as_bytes()[..CHECK]].concat()
}

fn payload(blob: &[u8]) -> &[u8] {
    &blob[HEAD..blob.len() - CHECK]
}

#[test]
fn the_same_nodes_come_back() {
    let chains = elsewhere();
    let mut parent: Option<Node> = None;
    for (node, blob) in TURNS.iter() {
        let found = chains.hydrate(parent.as_ref(), blob).unwrap();
        assert_eq!(found.view().to_vec(), node.view().to_vec());
        assert_eq!(found.parts().tail, node.parts().tail);
        assert_eq!(found.parts().before, node.parts().before);
        assert_eq!(found.parts().unanswered, node.parts().unanswered);
        assert_eq!(found.parts().header.key, node.parts().header.key);
        assert_eq!(found.export().unwrap(), *blob);
        assert_eq!(sealed(payload(blob)), *blob);
        parent = Some(found);
    }
}

#[test]
fn what_has_moved_is_not_written_again() {
    let long = format!("\"{}\"", "word ".repeat(5_000));
    let (first, _) = commit(open(None, &long), &says("a"));
    let header = RawHeader { instructions: Some(b"\"b\""), ..RawHeader::default() };
    let turn = CHAINS.open(Some(&first), OpenRequest { header, ..request("\"c\"") }).unwrap();
    assert_eq!(turn.kind(), Kind::Rebase);
    let (second, _) = commit(turn, &says("d"));
    let blob = second.export().unwrap();
    assert!(blob.len() < 1_000, "{}", blob.len());
    let chains = elsewhere();
    let parent = chains.hydrate(None, &first.export().unwrap()).unwrap();
    let bytes = chains.index().meter().bytes();
    let found = chains.hydrate(Some(&parent), &blob).unwrap();
    assert_eq!(found.view().to_vec(), second.view().to_vec());
    assert!(chains.index().meter().bytes() - bytes < 4_000, "its tokens are the parent's");
}

#[test]
fn a_child_without_its_parent_is_refused_or_rendered_by_itself() {
    let error = elsewhere().hydrate(None, &TURNS[1].1).unwrap_err();
    assert_eq!((error.kind(), error.param()), (ErrorKind::InvalidValue, Some("blob")));
    // Behind another parent its tokens are no continuation, and its items are rendered.
    let (other, _) = commit(open(None, "\"another beginning of another length\""), &says("x"));
    let found = elsewhere().hydrate(Some(&other), &TURNS[2].1).unwrap();
    let text = CHAINS.profile().decode(&found.view().to_vec()).unwrap();
    assert!(text.contains("another beginning") && text.contains("three") && text.contains("four"));
}

/// Whatever happens, it happens without a panic; and what comes back can be continued.
fn survives(parent: Option<&Node>, blob: &[u8]) {
    let chains = elsewhere();
    match chains.hydrate(parent, blob) {
        Ok(node) => {
            assert_eq!(node.view().len(), node.token_count());
            let _ = node.export().unwrap();
            for header in
                [RawHeader::default(), RawHeader { tools: Some(LS), ..RawHeader::default() }]
            {
                drop(chains.open(Some(&node), OpenRequest { header, ..request("\"on\"") }));
            }
        }
        Err(error) => assert_ne!(error.kind(), ErrorKind::Invariant, "{error:#}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn a_forged_blob_does_no_harm(
        turn in 0..4_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut forged = payload(&TURNS[turn].1).to_vec();
        for (at, byte) in changes {
            let at = at.index(forged.len());
            // Not the fingerprint: that would only render the items again.
            if !(1..33).contains(&at) {
                forged[at] = byte;
            }
        }
        if cuts {
            forged.truncate(cut.index(forged.len()));
        }
        let parent = turn.checked_sub(1).map(|before| &TURNS[before].0);
        survives(parent, &sealed(&forged));
    }

    #[test]
    fn bytes_are_no_blob(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        survives(None, &bytes);
        survives(None, &sealed(&bytes));
    }
}
