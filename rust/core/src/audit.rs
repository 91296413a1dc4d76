//! What a profile was found to be: the answers of every check made when it was loaded, for a person
//! who wonders whether a model is served exactly, and at what cost.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::error::shortened;
use crate::family::generic::{Conversation, Generic, Systems};
use crate::header::{Header, Knobs, RawHeader};
use crate::item::{Item, Role};
use crate::profile::Profile;

/// How good an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Served exactly, at a cost or with a limit that one should know.
    Note,
    /// Something that would be wrong, or cannot be used.
    Doubt,
}

impl Verdict {
    /// The name used on the wall.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Doubt => "doubt",
        }
    }
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was asked, in a few words.
    pub topic: &'static str,
    /// How good the answer is.
    pub verdict: Verdict,
    /// The answer, as a sentence.
    pub text: String,
}

/// How many examples a finding names.
const EXAMPLES: usize = 4;
/// Characters of a reason that a finding repeats.
const REASON: usize = 300;

/// Everything that is known about `profile`.
#[must_use]
pub fn audit(profile: &Profile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |topic, verdict, text: String| findings.push(Finding { topic, verdict, text });
    let vocabulary = profile.vocabulary();

    let fast = vocabulary.encoder.name() == "fastokens";
    let verdict = if fast { Verdict::Good } else { Verdict::Note };
    find("encoder", verdict, shortened(&vocabulary.choice, REASON).into_owned());
    let (verdict, text) = cuts(profile);
    find("safe cuts", verdict, text);

    let generic = &profile.renderer().generic;
    if let Some(family) = &profile.renderer().native {
        let text = format!("{}: equal to the template in every probe", family.name());
        find("renderer", Verdict::Good, text);
    } else {
        let reason = profile.not_native().unwrap_or_default();
        let text = format!("the template itself, in full each turn: {}", shortened(reason, REASON));
        find("renderer", Verdict::Note, text);
        for (topic, verdict, text) in ways(generic) {
            find(topic, verdict, text);
        }
        for (topic, items) in scenarios() {
            let (verdict, text) = stability(profile, generic, &items);
            find(topic, verdict, text);
        }
    }
    find("thinking", Verdict::Good, generic.effort().describe());
    if let Some(form) = profile.format().describe_calls() {
        find("calls", Verdict::Good, format!("read back: {form}"));
    } else {
        let text = "their form is not known: requests with tools are refused".to_owned();
        find("calls", Verdict::Doubt, text);
    }
    let stops: Vec<String> = profile
        .stop_token_ids()
        .iter()
        .map(|&id| format!("{id} {}", profile.decode(&[id]).unwrap_or_default()))
        .collect();
    if stops.is_empty() {
        find("stop tokens", Verdict::Doubt, "none: only a limit would end a turn".to_owned());
    } else {
        find("stop tokens", Verdict::Good, stops.join(", "));
    }
    match profile.context_length() {
        Some(length) => find("context", Verdict::Good, format!("{length} tokens")),
        None => find("context", Verdict::Note, "the files do not say its length".to_owned()),
    }
    findings
}

fn cuts(profile: &Profile) -> (Verdict, String) {
    let vocabulary = profile.vocabulary();
    let control = || vocabulary.added.iter().filter(|token| vocabulary.is_control(token.id));
    let all = control().count();
    let safe = |token: &&crate::tokenizer::AddedToken| {
        vocabulary.cuts.before(token.id) && vocabulary.cuts.after(token.id)
    };
    let count = control().filter(safe).count();
    let mut text = format!("{count} of {all} control tokens on both sides");
    let refused = vocabulary.cuts.refused().filter(|cut| vocabulary.is_control(cut.id));
    let mut examples = refused.map(|cut| {
        let content = profile.decode(&[cut.id]).unwrap_or_default();
        let side = if cut.after { "after" } else { "before" };
        format!("not {side} {content}: {}", cut.reason)
    });
    for example in examples.by_ref().take(EXAMPLES) {
        let _ = write!(text, "; {example}");
    }
    let more = examples.count();
    if more > 0 {
        let _ = write!(text, "; and {more} more");
    }
    let verdict = match (count, all) {
        (0, _) => Verdict::Doubt,
        (some, all) if some == all => Verdict::Good,
        _ => Verdict::Note,
    };
    (verdict, text)
}

fn ways(generic: &Generic) -> Vec<(&'static str, Verdict, String)> {
    let ways = generic.ways();
    let judged = |good: bool| if good { Verdict::Good } else { Verdict::Note };
    let told = |good: bool, yes: &str, no: &str| {
        (judged(good), if good { yes.to_owned() } else { no.to_owned() })
    };
    let mut found = Vec::new();
    let mut find = |topic, (verdict, text)| found.push((topic, verdict, text));
    find(
        "tools",
        told(ways.tools, "declared by the template", "it has no place for them: given as text"),
    );
    if ways.tools {
        let text = if ways.arguments_as_text { "kept byte for byte" } else { "given as an object" };
        find("arguments", (judged(ways.arguments_as_text), text.to_owned()));
        if ways.short_ids {
            find("call ids", (Verdict::Note, "shortened to nine characters".to_owned()));
        }
    }
    find(
        "reasoning",
        match ways.reasoning {
            Some(key) => (Verdict::Good, format!("given as `{key}`")),
            None => (Verdict::Note, "the template shows none of earlier turns".to_owned()),
        },
    );
    find(
        "system messages",
        match ways.systems {
            Systems::None => (Verdict::Note, "none: the operator speaks as a user".to_owned()),
            Systems::One => (Verdict::Note, "one: several are joined".to_owned()),
            Systems::Many if ways.late_systems => (Verdict::Good, "anywhere".to_owned()),
            Systems::Many => (Verdict::Note, "at the start; later ones are a user's".to_owned()),
        },
    );
    let adjacent = told(ways.adjacent_users, "allowed", "refused by the template: joined");
    find("adjacent users", adjacent);
    found
}

/// Small conversations that templates are known to rewrite, with the words for what happens in
/// them.
fn scenarios() -> [(&'static str, Vec<Item>); 3] {
    let say = |role, text: &str| Item::Message { role, text: text.to_owned() };
    let think = |text: &str| Item::Reasoning { text: text.to_owned() };
    let call = |id: &str| Item::Call {
        call_id: id.to_owned(),
        name: "probe_tool".to_owned(),
        arguments: r#"{"probe_key": "a"}"#.to_owned(),
    };
    let output = |id: &str| Item::Output { call_id: id.to_owned(), text: "x".to_owned() };
    let chat = || vec![say(Role::User, "a"), say(Role::Assistant, "b"), say(Role::User, "c")];
    let tools = vec![
        say(Role::User, "a"),
        think("so"),
        call("call_1"),
        output("call_1"),
        think("then"),
        call("call_2"),
        output("call_2"),
    ];
    let question =
        vec![say(Role::User, "a"), think("so"), say(Role::Assistant, "b"), say(Role::User, "c")];
    [("plain chat", chat()), ("tool loop", tools), ("question after reasoning", question)]
}

/// Whether each beginning of `items` prints a beginning of the whole: what a template rewrites
/// must be encoded, and the engine's cache is lost from there on.
fn stability(profile: &Profile, generic: &Generic, items: &[Item]) -> (Verdict, String) {
    let tools = br#"[{"type":"function","name":"probe_tool","description":"x","parameters":{"type":"object","properties":{"probe_key":{"type":"string"}}}}]"#;
    let raw = RawHeader { tools: Some(tools), ..RawHeader::default() };
    let items: Vec<Arc<Item>> = items.iter().cloned().map(Arc::new).collect();
    let print = |count: usize, generate: bool| -> crate::error::Result<Vec<u8>> {
        let script = generic.print(
            &Conversation {
                header: Header::parse(raw)?.as_ref(),
                items: &items[..count],
                runs: std::slice::from_ref(&(0..count)),
                generate,
                knobs: Knobs::thinking(true),
                now: 0,
            },
            profile.vocabulary(),
        )?;
        Ok(script.bytes(0..script.end()).to_vec())
    };
    let whole = match print(items.len(), true) {
        Ok(whole) => whole,
        Err(error) => return (Verdict::Note, shortened(error.detail(), REASON).into_owned()),
    };
    let asked =
        |item: &Item| matches!(item, Item::Message { role: Role::User, .. } | Item::Output { .. });
    let mut kept = whole.len();
    for (index, item) in items.iter().enumerate() {
        // The prompts that were sampled from, on the way.
        if index + 1 < items.len() && asked(item) {
            let Ok(prompt) = print(index + 1, true) else { continue };
            let same = prompt.iter().zip(&whole).take_while(|(a, b)| a == b).count();
            if same < prompt.len() {
                kept = kept.min(same);
            }
        }
    }
    if kept == whole.len() {
        return (Verdict::Good, "every prompt begins with the one before".to_owned());
    }
    let text = format!(
        "rewritten: of {} bytes the first {kept} stay as they were sampled from",
        whole.len()
    );
    (Verdict::Note, text)
}
