//! What a sampled token costs: `Turn::push` of reasoning, text and a call's arguments, in pushes of
//! 1, 4 and 32 ids, for each model that is named, with its Hugging Face folder.
//!
//! ```text
//! cargo run --release --example push -- NAME FOLDER [NAME FOLDER]...
//! ```
//!
//! Prints CSV: the name, what is said, ids a push, ids in all, and the median, least and quartiles of
//! the rounds, in microseconds for all ids. `make bench` records it.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use turnwire_core::family::Answer;
use turnwire_core::header::RawHeader;
use turnwire_core::{Budget, Chains, OpenRequest, Options, Profile, TokenId};

const ROUNDS: usize = 101;
const PUSHES: [usize; 3] = [1, 4, 32];
const TOOLS: &[u8] = br#"[{"type":"function","name":"write_file","parameters":{"type":"object",
    "properties":{"path":{"type":"string"},"text":{"type":"string"}}}}]"#;
/// What is said: real text, whose words recur as they do.
const TEXT: &str = include_str!("../../../docs/architecture.md");

fn main() -> Result<(), Box<dyn Error>> {
    let mut csv = std::io::stdout().lock();
    writeln!(csv, "model,says,push_ids,ids,median_us,min_us,q1_us,q3_us")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    for named in arguments.chunks(2) {
        let [model, folder] = named else { return Err("a name without a folder".into()) };
        let profile = Profile::load(Path::new(folder), Options::default(), None)?;
        if let Some(reason) = profile.not_native() {
            return Err(format!("{model}: {reason}").into());
        }
        let chains = Chains::new(Arc::new(profile), Budget { bytes: 1 << 30, ttl: Duration::MAX });
        for (says, answer) in answers() {
            let ids = chains.profile().encode_answer(&answer)?;
            for size in PUSHES {
                let request = OpenRequest { effort: effort(says), ..request() };
                let [median, min, q1, q3] = rounds(&chains, request, &ids, size)?.map(in_us);
                writeln!(csv, "{model},{says},{size},{},{median},{min},{q1},{q3}", ids.len())?;
            }
        }
    }
    Ok(())
}

fn answers() -> [(&'static str, Answer); 3] {
    let nothing = || Answer { reasoning: None, text: None, calls: Vec::new() };
    let quoted = serde_json::Value::from(TEXT).to_string();
    let call = ("write_file".to_owned(), format!(r#"{{"path": "a.md", "text": {quoted}}}"#));
    [
        ("reasoning", Answer { reasoning: Some(TEXT.to_owned()), ..nothing() }),
        ("text", Answer { text: Some(TEXT.to_owned()), ..nothing() }),
        ("arguments", Answer { calls: vec![call], ..nothing() }),
    ]
}

/// Median, least and quartiles of what pushing all ids took.
fn rounds(
    chains: &Chains,
    request: OpenRequest<'_>,
    ids: &[TokenId],
    size: usize,
) -> Result<[Duration; 4], Box<dyn Error>> {
    let mut took = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let mut turn = chains.open(None, request)?;
        let mut out = Vec::new();
        let start = Instant::now();
        for push in ids.chunks(size) {
            turn.push(push, &mut out)?;
            out.clear();
        }
        took.push(start.elapsed());
    }
    took.sort_unstable();
    let at = |place: usize| took.get(place).copied().unwrap_or_default();
    Ok([at(ROUNDS / 2), at(0), at(ROUNDS / 4), at(ROUNDS * 3 / 4)])
}

/// Some models think only when they are asked to.
fn effort(says: &str) -> Option<&'static str> {
    (says == "reasoning").then_some("medium")
}

fn request() -> OpenRequest<'static> {
    OpenRequest {
        input: br#""Say it.""#,
        header: RawHeader { tools: Some(TOOLS), ..RawHeader::default() },
        parallel_tool_calls: true,
        effort: None,
        verbosity: None,
        generate: true,
        now: None,
        scope: None,
    }
}

fn in_us(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e7).round() / 10.0
}
