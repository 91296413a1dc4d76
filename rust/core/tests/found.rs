//! Conversations that come again in full (D7): what is known of them is not rendered again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod qwen;

use std::sync::Arc;
use std::time::Duration;

use qwen::{CHAINS, ROOMY, call_ids, calls, calls_with, commit, request, says, text};
use turnwire_core::{Budget, Chains, Kind, Node, OpenRequest, Turn};

fn scope(name: &str) -> Arc<[u8]> {
    name.as_bytes().into()
}

fn open_in(chains: &Chains, scope: &Arc<[u8]>, input: &str) -> Turn {
    chains.open(None, OpenRequest { scope: Some(scope), ..request(input) }).unwrap()
}

fn chains(budget: Budget) -> Chains {
    Chains::new(Arc::clone(CHAINS.profile()), budget)
}

fn user(text: &str) -> String {
    format!(r#"{{"role":"user","content":"{text}"}}"#)
}

fn assistant(text: &str) -> String {
    format!(
        r#"{{"type":"message","id":"msg_x","status":"completed","role":"assistant",
            "content":[{{"type":"output_text","text":"{text}","annotations":[]}}]}}"#
    )
}

fn list(items: &[&str]) -> String {
    format!("[{}]", items.join(","))
}

/// `a` → a call with reasoning, sampled with odd spacing → its output → `done`.
fn tool_loop(chains: &Chains, scope: &Arc<[u8]>) -> (Node, String) {
    let first = open_in(chains, scope, &list(&[&user("a")]));
    let ids = calls_with(Some("why"), &[("ls", "{ \"p\":  1 }")]);
    let (node, deltas) = commit(first, &ids);
    (node, call_ids(&deltas)[0].clone())
}

#[test]
fn a_conversation_sent_in_full_goes_on_from_its_tip() {
    let (chains, scope) = (chains(ROOMY), scope("me"));
    let sampled = [&says("one")[..1], &[198, 198], &says("two")].concat();
    let (node, _) = commit(open_in(&chains, &scope, &list(&[&user("a")])), &sampled);
    let spoken = CHAINS.profile().decode(&sampled[..sampled.len() - 1]).unwrap();
    let echo = assistant(&spoken.replace('\n', "\\n"));
    let turn = open_in(&chains, &scope, &list(&[&user("a"), &echo, &user("b")]));
    assert_eq!((turn.kind(), turn.known_items()), (Kind::Extend, 2));
    assert_eq!(turn.prefix_len(), node.token_count());
    assert_eq!(turn.prompt().to_vec()[..node.token_count()], node.view().to_vec());
    assert_eq!(turn.rendered(), turn.prompt().len() - node.token_count());
}

#[test]
fn an_echo_without_reasoning_and_in_another_spelling_takes_back_the_sampled_ids() {
    let (chains, scope) = (chains(ROOMY), scope("me"));
    let (node, id) = tool_loop(&chains, &scope);
    let call = format!(
        r#"{{"type":"function_call","call_id":"{id}","name":"ls","arguments":"{{\"p\":1}}"}}"#
    );
    let output = format!(r#"{{"type":"function_call_output","call_id":"{id}","output":"x"}}"#);
    let why = |text: &str| {
        format!(
            r#"{{"type":"reasoning","summary":[],
                "content":[{{"type":"reasoning_text","text":"{text}"}}]}}"#
        )
    };
    let question = user("a");
    let blank = r#"{"type":"reasoning","summary":[],"encrypted_content":null}"#;
    for echo in [vec![call.as_str()], vec![&why("why"), &call], vec![blank, &call]] {
        let items = [&[question.as_str()], &echo[..], &[&output]].concat();
        let turn = open_in(&chains, &scope, &list(&items));
        assert_eq!(turn.known_items(), items.len() - 1, "{echo:?}");
        assert_eq!(turn.prompt().to_vec()[..node.token_count()], node.view().to_vec());
        assert!(text(&turn).contains("{ \"p\":  1 }"), "as sampled: {}", text(&turn));
    }
    // Reasoning that says something else was edited: nothing of the answer is taken over.
    let reasoning = why("because");
    let edited = [question.as_str(), &reasoning, &call, &output];
    let turn = open_in(&chains, &scope, &list(&edited));
    assert_eq!((turn.kind(), turn.known_items()), (Kind::Cold, 0));
    assert!(text(&turn).contains("because"));
}

#[test]
fn an_edited_history_forks_at_the_edit() {
    let (chains, scope) = (chains(ROOMY), scope("me"));
    let (first, _) = commit(open_in(&chains, &scope, &list(&[&user("a")])), &says("b"));
    let full = list(&[&user("a"), &assistant("b"), &user("c")]);
    commit(open_in(&chains, &scope, &full), &says("d"));
    let edited = list(&[&user("a"), &assistant("b"), &user("C"), &assistant("d"), &user("e")]);
    let turn = open_in(&chains, &scope, &edited);
    assert_eq!((turn.kind(), turn.known_items()), (Kind::Fork, 2));
    assert_eq!(turn.prefix_len(), first.token_count());
    assert!(!text(&turn).contains("user\nc"));
}

#[test]
fn what_a_client_wrote_must_come_back_as_it_was() {
    let (chains, scope) = (chains(ROOMY), scope("me"));
    let call = |arguments: &str| {
        format!(r#"{{"type":"function_call","call_id":"1","name":"f","arguments":"{arguments}"}}"#)
    };
    let output = r#"{"type":"function_call_output","call_id":"1","output":"x"}"#;
    let foreign = list(&[&user("a"), &call("{ }"), output]);
    commit(open_in(&chains, &scope, &foreign), &says("b"));
    for (arguments, known) in [("{ }", 4), ("{}", 0)] {
        let items = list(&[&user("a"), &call(arguments), output, &assistant("b"), &user("c")]);
        let turn = open_in(&chains, &scope, &items);
        assert_eq!(turn.known_items(), known, "{arguments}");
        assert!(text(&turn).contains(&format!("\"arguments\": {arguments}}}")));
    }
}

#[test]
fn nothing_is_found_across_scopes() {
    let chains = chains(ROOMY);
    commit(open_in(&chains, &scope("me"), &list(&[&user("secret")])), &says("b"));
    let again = list(&[&user("secret"), &assistant("b"), &user("c")]);
    assert_eq!(open_in(&chains, &scope("you"), &again).known_items(), 0);
    assert_eq!(chains.open(None, request(&again)).unwrap().known_items(), 0);
    assert_eq!(open_in(&chains, &scope("me"), &again).known_items(), 2);
    // What has no scope is found by nobody.
    let (_, _) = commit(chains.open(None, request(&list(&[&user("x")]))).unwrap(), &says("y"));
    let again = list(&[&user("x"), &assistant("y"), &user("z")]);
    assert_eq!(open_in(&chains, &scope("me"), &again).known_items(), 0);
}

#[test]
fn what_was_aborted_or_is_only_reasoning_is_not_found() {
    let (chains, scope) = (chains(ROOMY), scope("me"));
    let mut turn = open_in(&chains, &scope, &list(&[&user("a")]));
    turn.push(&says("b"), &mut Vec::new()).unwrap();
    drop(turn);
    // Cut off while thinking: the items say no more than the question did.
    let thinking = &calls(Some("why"), &["ls"])[..2];
    commit(open_in(&chains, &scope, &list(&[&user("a")])), thinking);
    assert_eq!(chains.index().len(), 0);
}

#[test]
fn memory_stays_within_the_budget_and_is_given_back() {
    let budget = Budget { bytes: 300_000, ..ROOMY };
    let (chains, scope) = (chains(budget), scope("me"));
    let long = "word ".repeat(2_000);
    for index in 0..40 {
        let input = list(&[&user(&format!("{index} {long}"))]);
        commit(open_in(&chains, &scope, &input), &says("b"));
        assert!(chains.index().meter().bytes() <= budget.bytes);
    }
    assert!(chains.index().len() > 2);
    let echo =
        |index: usize| list(&[&user(&format!("{index} {long}")), &assistant("b"), &user("c")]);
    assert_eq!(open_in(&chains, &scope, &echo(0)).known_items(), 0);
    assert_eq!(open_in(&chains, &scope, &echo(39)).known_items(), 2);

    // A node that somebody holds works on after it was forgotten, and its bytes are still counted.
    let (held, _) = commit(open_in(&chains, &scope, &echo(99)), &says("b"));
    let meter = chains.index().meter().clone();
    drop(chains);
    let kept = meter.bytes();
    assert!(kept > 4 * held.token_count());
    drop(held);
    assert_eq!(meter.bytes(), 0);
}

#[test]
fn what_is_too_old_is_not_found() {
    let (chains, scope) = (chains(Budget { ttl: Duration::ZERO, ..ROOMY }), scope("me"));
    commit(open_in(&chains, &scope, &list(&[&user("a")])), &says("b"));
    let again = list(&[&user("a"), &assistant("b"), &user("c")]);
    assert_eq!(open_in(&chains, &scope, &again).known_items(), 0);
}
