//! Arbitrary ids in arbitrary splits, through every family's output parser.
//!
//! An input is the model's place, a byte of options, and ids: a byte is its own id, but
//!
//! ```text
//! 0xff n   the id 256 + n: longer tokens, and added ones
//! 0xfe     the end of a push
//! 0xfd n   the byte n, whichever it is
//! ```

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use turnwire_core::header::{RawHeader, ToolKind};
use turnwire_core::{Budget, Chains, Node, OpenRequest, Span, TokenId, Told, Turn};

use crate::allowed;
use crate::items::whole;
use crate::models::{self, BEYOND_BYTES};

pub(crate) const LITERAL: u8 = 0xfd;
pub(crate) const CUT: u8 = 0xfe;
pub(crate) const BEYOND: u8 = 0xff;

const TOOLS: &[u8] =
    br#"[{"type":"function","name":"ls","parameters":{"type":"object","properties":
    {"path":{"type":"string"},"n":{"type":"integer"},"o":{"type":"object"}}}},
    {"type":"custom","name":"patch"},
    {"type":"namespace","name":"fs","tools":[{"type":"function","name":"rm","parameters":{}}]}]"#;
const ASK: &[u8] = br#"[{"role":"user","content":"Hi"}]"#;
const ANSWERED: &[u8] = br#"[{"role":"user","content":"Hi"},
    {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"so"}]},
    {"type":"function_call","call_id":"c1","name":"ls","arguments":"{}"},
    {"type":"function_call_output","call_id":"c1","output":"a"}]"#;

/// # Panics
/// Where the same ids in other pushes say something else, a law breaks, or the core blames itself.
pub fn run(input: &[u8]) {
    let [model, options, coded @ ..] = input else { return };
    let profile = models::at(*model);
    let budget = Budget { bytes: 1 << 20, ttl: Duration::from_secs(3600) };
    let chains = Chains::new(Arc::clone(profile), budget);
    let Some(turn) = open(&chains, *options) else { return };
    let pushes = ids(coded);
    let known = |id: &TokenId| profile.knows(*id);
    let all: Vec<TokenId> = pushes.iter().flatten().copied().filter(known).collect();

    let split = said(&chains, turn, &pushes, *options);
    let turn = open(&chains, *options).expect("what opened before");
    let at_once = said(&chains, turn, &[all], *options);
    assert_eq!(split, at_once, "law 6: {}", profile.name());
}

fn open(chains: &Chains, options: u8) -> Option<Turn> {
    allowed(chains.open(None, request(options)))
}

fn request(options: u8) -> OpenRequest<'static> {
    let choice: Option<&[u8]> = match options & 3 {
        0 | 1 => None,
        2 => Some(br#""none""#),
        _ => Some(br#""required""#),
    };
    let tools = (options & 4 == 0).then_some(TOOLS);
    OpenRequest {
        input: if options & 8 == 0 { ASK } else { ANSWERED },
        header: RawHeader { tools, tool_choice: choice, ..RawHeader::default() },
        parallel_tool_calls: options & 16 == 0,
        effort: (options & 32 != 0).then_some("none"),
        verbosity: None,
        generate: true,
        now: Some(0),
        scope: None,
    }
}

/// The ids of each push.
fn ids(coded: &[u8]) -> Vec<Vec<TokenId>> {
    let mut pushes = vec![Vec::new()];
    let mut bytes = coded.iter().copied();
    while let Some(byte) = bytes.next() {
        let id = match byte {
            CUT => {
                pushes.push(Vec::new());
                continue;
            }
            BEYOND => BEYOND_BYTES + u32::from(bytes.next().unwrap_or_default()),
            LITERAL => u32::from(bytes.next().unwrap_or_default()),
            byte => u32::from(byte),
        };
        if let Some(push) = pushes.last_mut() {
            push.push(id);
        }
    }
    pushes
}

/// All that may not depend on the pushes.
#[derive(Debug, PartialEq)]
struct Said {
    told: Vec<Told>,
    /// Sampled, of which reasoning; whether it stopped.
    counts: (usize, usize, bool),
    tokens: Vec<TokenId>,
    spans: Vec<Span>,
    /// What the prompt of the next question is made of.
    next: Option<(usize, Vec<Span>)>,
}

fn said(chains: &Chains, mut turn: Turn, pushes: &[Vec<TokenId>], options: u8) -> Said {
    let profile = chains.profile();
    let mut told = Vec::new();
    for push in pushes {
        let (known, unknown): (Vec<_>, Vec<_>) = push.iter().partition(|id| profile.knows(**id));
        if !unknown.is_empty() {
            let before = (told.len(), turn.sampled());
            assert!(allowed(turn.push(push, &mut told)).is_none(), "unknown ids were taken");
            assert_eq!(before, (told.len(), turn.sampled()), "a refused push had an effect");
        }
        allowed(turn.push(&known, &mut told)).expect("known ids");
    }
    allowed(turn.finish(&mut told)).expect("a turn can finish");
    let counts = (turn.sampled(), turn.reasoning_tokens(), turn.stopped());
    let spans = turn.spans();
    assert!(counts.1 <= counts.0, "{counts:?}");
    whole(&spans, turn.prompt().len() + turn.sampled());
    let node = allowed(turn.commit()).expect("a finished turn can commit");
    let next = next(chains, &node, &told, options);
    let tokens = node.view().to_vec();
    Said { told: joined(told), counts, tokens, spans, next }
}

/// The next question, with an output for every call.
fn next(chains: &Chains, node: &Node, told: &[Told], options: u8) -> Option<(usize, Vec<Span>)> {
    let outputs = told.iter().filter_map(|told| {
        let Told::Call { call_id, kind, .. } = told else { return None };
        let kind = if *kind == ToolKind::Custom { "custom_tool_call" } else { "function_call" };
        Some(json!({"type": format!("{kind}_output"), "call_id": call_id, "output": "b"}))
    });
    let mut items: Vec<Value> = outputs.collect();
    if options & 64 == 0 {
        items.push(json!({"role": "user", "content": "And?"}));
    }
    let input = Value::Array(items).to_string();
    let request = OpenRequest { input: input.as_bytes(), ..request(options) };
    let turn = allowed(chains.open(Some(node), request))?;
    let spans = turn.spans();
    whole(&spans, turn.prompt().len());
    Some((turn.prefix_len(), spans))
}

/// With pieces of one kind joined, and without what is minted.
fn joined(told: Vec<Told>) -> Vec<Told> {
    let mut whole: Vec<Told> = Vec::new();
    for piece in told {
        match (whole.last_mut(), piece) {
            (Some(Told::Reasoning(last)), Told::Reasoning(more))
            | (Some(Told::Text(last)), Told::Text(more))
            | (Some(Told::Arguments(last)), Told::Arguments(more))
            | (Some(Told::Input(last)), Told::Input(more)) => last.push_str(&more),
            (_, Told::Call { namespace, name, kind, .. }) => {
                whole.push(Told::Call { call_id: String::new(), namespace, name, kind });
            }
            (_, piece) => whole.push(piece),
        }
    }
    whole
}
