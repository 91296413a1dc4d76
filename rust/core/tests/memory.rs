//! What conversations cost in memory, by the core's own count and by the operating system's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod qwen;

use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use qwen::{CHAINS, ROOMY, commit, request, says};
use turnwire_core::header::RawHeader;
use turnwire_core::{Budget, Chains, Kind, Node, OpenRequest};

/// The operating system counts the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Resident bytes of this process.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn chains(bytes: usize) -> Chains {
    Chains::new(Arc::clone(CHAINS.profile()), Budget { bytes, ..ROOMY })
}

fn words(count: usize) -> String {
    let words: Vec<String> = (0..count).map(|index| format!("word{}", index % 97)).collect();
    words.join(" ")
}

fn turn(chains: &Chains, parent: Option<&Node>, input: &str, scope: &Arc<[u8]>) -> Node {
    let quoted = format!("\"{input}\"");
    let request = OpenRequest { scope: Some(scope), ..request(&quoted) };
    commit(chains.open(parent, request).unwrap(), &says("b")).0
}

#[test]
fn a_thousand_forks_of_a_long_prefix_cost_no_second_copy_of_it() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (chains, scope) = (chains(ROOMY.bytes), b"me"[..].into());
    let prefix = turn(&chains, None, &words(80_000), &scope);
    assert!(prefix.token_count() > 200_000, "{}", prefix.token_count());
    // Transient copies of the prefix are made once before anything is counted.
    let _first: Vec<Node> =
        (0..3).map(|fork| turn(&chains, Some(&prefix), &format!("{fork}"), &scope)).collect();
    let (counted, seen) = (chains.index().meter().bytes(), resident());
    let forks: Vec<Node> =
        (3..1_003).map(|fork| turn(&chains, Some(&prefix), &format!("{fork}"), &scope)).collect();
    let counted = chains.index().meter().bytes() - counted;
    let seen = resident().saturating_sub(seen);
    assert_eq!(forks.len(), 1_000);
    assert!(counted < 5_000_000 && seen < 5_000_000, "counted {counted}, seen {seen}");
    // A fork that goes on is worth a tape of its own from its second turn on.
    let fork = &forks[500];
    let quoted = "\"on\"";
    let again = chains.open(Some(fork), request(quoted)).unwrap();
    assert_eq!(again.kind(), Kind::Fork);
    let second = commit(again, &says("c")).0;
    assert_eq!(chains.open(Some(&second), request(quoted)).unwrap().kind(), Kind::Extend);
}

#[test]
fn a_cached_token_costs_at_most_six_bytes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // 40 conversations of 20 turns; the budget is what six bytes a token and the items come to.
    let (mut tokens, mut items) = (0, 0);
    let text = words(300);
    let probe = turn(&chains(ROOMY.bytes), None, &text, &b"x"[..].into());
    let budget = 40 * 20 * (6 * probe.token_count() + text.len() + 300);
    let chains = chains(budget);
    let mut tips = Vec::new();
    for conversation in 0..40 {
        let scope: Arc<[u8]> = format!("{conversation}").as_bytes().into();
        let mut node = None;
        for step in 0..20 {
            let text = format!("{conversation} {step} {text}");
            node = Some(turn(&chains, node.as_ref(), &text, &scope));
            items += text.len() + 1;
        }
        let node = node.unwrap();
        tokens += node.token_count();
        tips.push(node);
    }
    let held = chains.index().meter().bytes();
    // Items themselves beside their text: a hundred bytes or so, as raw JSON would have.
    let raw_items = items + 40 * 20 * 2 * 100;
    assert!(held <= 6 * tokens + raw_items, "{held} bytes for {tokens} tokens, {items} of text");
}

#[test]
fn a_header_is_parsed_and_rendered_once_per_scope() {
    let chains = chains(ROOMY.bytes);
    let schema =
        r#"{"type":"object","properties":{"path":{"type":"string","description":"Where."}}}"#;
    let tools: Vec<String> = (0..40)
        .map(|index| {
            format!(r#"{{"type":"function","name":"tool_{index}","parameters":{schema}}}"#)
        })
        .collect();
    let tools = format!("[{}]", tools.join(","));
    let header = RawHeader { tools: Some(tools.as_bytes()), ..RawHeader::default() };
    let open = |scope: &[u8], input: &str| {
        let scope: Arc<[u8]> = scope.into();
        let request = OpenRequest { header, scope: Some(&scope), ..request(input) };
        let turn = chains.open(None, request).unwrap();
        (turn.rendered(), turn.prompt().to_vec())
    };
    let (rendered, first) = open(b"me", "\"a\"");
    assert_eq!(rendered, first.len());
    let (rendered, second) = open(b"me", "\"b\"");
    assert!(rendered < 20, "only the message: {rendered}");
    assert_eq!(second.len(), first.len());
    assert_eq!(second[..second.len() - rendered], first[..first.len() - rendered]);
    // Nothing is shared across scopes, not even this.
    assert_eq!(open(b"you", "\"a\"").0, first.len());
}
