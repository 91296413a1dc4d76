//! Chains over the real Qwen3 vocabulary and template, and short ways to talk to them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code, missing_docs)]

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use turnwire_core::family::Answer;
use turnwire_core::header::RawHeader;
use turnwire_core::{Budget, Chains, Node, OpenRequest, Options, Profile, Told, Turn};

pub(crate) const ROOMY: Budget = Budget { bytes: 1 << 30, ttl: Duration::from_secs(3600) };

pub(crate) static CHAINS: LazyLock<Chains> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/vocab/qwen3");
    assert!(directory.exists(), "the Qwen3 vocabulary is missing: run `make vocab`");
    Chains::new(Arc::new(Profile::load(&directory, Options::default(), None).unwrap()), ROOMY)
});

pub(crate) const LS: &[u8] = br#"[{"type":"function","name":"ls","parameters":{"type":"object"}}]"#;

pub(crate) fn request(input: &str) -> OpenRequest<'_> {
    OpenRequest {
        input: input.as_bytes(),
        header: RawHeader::default(),
        parallel_tool_calls: true,
        effort: None,
        verbosity: None,
        generate: true,
        now: None,
        scope: None,
    }
}

pub(crate) fn open(parent: Option<&Node>, input: &str) -> Turn {
    CHAINS.open(parent, request(input)).unwrap()
}

pub(crate) fn text(turn: &Turn) -> String {
    CHAINS.profile().decode(&turn.prompt().to_vec()).unwrap()
}

pub(crate) fn says(text: &str) -> Vec<u32> {
    let answer = Answer { text: Some(text.into()), ..Answer::default() };
    CHAINS.profile().encode_answer(&answer).unwrap()
}

pub(crate) fn calls(reasoning: Option<&str>, names: &[&str]) -> Vec<u32> {
    let calls: Vec<(&str, &str)> = names.iter().map(|name| (*name, "{}")).collect();
    calls_with(reasoning, &calls)
}

pub(crate) fn calls_with(reasoning: Option<&str>, calls: &[(&str, &str)]) -> Vec<u32> {
    let answer = Answer {
        reasoning: reasoning.map(Into::into),
        text: None,
        calls: calls.iter().map(|(name, given)| ((*name).into(), (*given).into())).collect(),
    };
    CHAINS.profile().encode_answer(&answer).unwrap()
}

pub(crate) fn commit(mut turn: Turn, ids: &[u32]) -> (Node, Vec<Told>) {
    let mut deltas = Vec::new();
    turn.push(ids, &mut deltas).unwrap();
    turn.finish(&mut deltas).unwrap();
    (turn.commit().unwrap(), deltas)
}

pub(crate) fn call_ids(deltas: &[Told]) -> Vec<String> {
    let id = |delta: &Told| match delta {
        Told::Call { call_id, .. } => Some(call_id.clone()),
        _ => None,
    };
    deltas.iter().filter_map(id).collect()
}

pub(crate) fn output(call_id: &str, text: &str) -> String {
    format!(r#"[{{"type":"function_call_output","call_id":"{call_id}","output":"{text}"}}]"#)
}
