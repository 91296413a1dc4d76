//! Does a native renderer print what the template prints? Asked at load time (D6); one difference
//! and the renderer does not serve.
//!
//! The conversations cover what varies between dialects: system text or none, tools or none, a
//! tool loop with and without reasoning and text, parallel calls and outputs, a question after
//! reasoning, late system messages, text with newlines at both ends, and an answer at the end.

use std::slice;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::family::generic::{Conversation, Generic, Script, shown};
use crate::family::render::{
    Group, HEADER_QUESTION, Message, Sink, call_among, group, header_ends, shows,
};
use crate::family::{Before, Family, Last, Shown};
use crate::header::{Header, Knobs, RawHeader};
use crate::item::{Item, Role};
use crate::tokenizer::Vocabulary;

/// A call's arguments in the spelling that templates print: as they are, or as Python spells JSON. A
/// renderer that keeps the bytes agrees with the latter where they are spelled so.
const AS_TEXT: &str = r#"{"path":  "a"}"#;
const AS_OBJECT: &str =
    r#"{"path": "a\n", "n": [1, 2.5, null], "b": true, "m": {"é": []}, "s": ""}"#;

/// Whether `family` and the template print the same for every probe.
///
/// # Errors
/// [`crate::ErrorKind::Profile`] with both texts from where they part.
pub fn agree(family: &dyn Family, generic: &Generic, vocabulary: &Vocabulary) -> Result<()> {
    let arguments = if generic.ways().arguments_as_text { AS_TEXT } else { AS_OBJECT };
    let mut taken = false;
    let terse = Knobs { verbosity: generic.verbosity("low"), ..Knobs::thinking(true) };
    let [on, off] = [true, false].map(Knobs::thinking);
    let asked = [(true, on), (true, off), (true, terse), (false, on)];
    for tools in [None, Some(TOOLS)] {
        let header =
            Header::parse(RawHeader { tools: tools.map(str::as_bytes), ..RawHeader::default() })?;
        for items in conversations(arguments) {
            for (generate, knobs) in asked {
                let run = 0..items.len();
                let conversation = Conversation {
                    header: &header,
                    items: &items,
                    runs: slice::from_ref(&run),
                    generate,
                    knobs,
                    now: 0,
                };
                match compare(family, generic, vocabulary, &conversation)? {
                    Compared::Untaken => {}
                    Compared::Same => taken = true,
                    Compared::Other { native, printed } => {
                        return Err(differ(
                            &shown(&native, vocabulary),
                            &printed.shown(vocabulary),
                        ));
                    }
                }
            }
        }
    }
    if taken { Ok(()) } else { Err(Error::profile("the renderer takes none of the probes")) }
}

/// What a family makes of a conversation, beside what the template prints.
pub enum Compared {
    /// It does not take the conversation, or does not mean to print it as the template does.
    Untaken,
    /// The same.
    Same,
    /// Something else.
    Other {
        /// What the family prints behind the header, as a script's bytes.
        native: Vec<u8>,
        /// What the template prints.
        printed: Script,
    },
}

/// Renders the conversation both ways.
///
/// # Errors
/// `invalid_value` at `input` when the template refuses what the family takes.
pub fn compare(
    family: &dyn Family,
    generic: &Generic,
    vocabulary: &Vocabulary,
    conversation: &Conversation<'_>,
) -> Result<Compared> {
    let items = conversation.items;
    let leading = items.iter().take_while(|item| item.is_instruction()).count();
    let rest = &items[leading..];
    let mut groups = group(rest, leading, &|id| call_among(rest, 0, id));
    for group in &mut groups {
        family.read_foreign(&mut group.message);
    }
    let last = if leading > 0 { Last::Operator } else { Last::Nobody };
    let knobs = conversation.knobs;
    let tools = !conversation.header.rendered_tools().is_empty();
    let mut before = Before { last, thinking: knobs.thinking, tools, ..Before::default() };
    if !family.takes(&groups, before) || family.departs(&groups, conversation.generate) {
        return Ok(Compared::Untaken);
    }
    let question = Message::Plain { role: Role::User, text: HEADER_QUESTION.to_owned() };
    let question = generic
        .spell(|sink| family.message(&question, Shown::Nothing, before, sink), vocabulary)?;
    let now = conversation.now;
    let print = |end: usize| {
        let held = &items[..end];
        let ids = generic.header(conversation.header, held, knobs, now, &question, vocabulary);
        ids.transpose().map(|ids| ids.map(|ids| (ids, end)))
    };
    let header = header_ends(items, leading).find_map(print).transpose()?;
    let Some((header, end)) = header else { return Ok(Compared::Untaken) };

    let showings = shows(family, &groups, before, conversation.generate);
    let write = |sink: &mut dyn Sink| {
        for (Group { message, items }, (shown, _)) in groups.iter().zip(showings) {
            if items.start >= end {
                family.message(message, shown, before, sink);
            }
            before = before.and(message, family.asks(message));
        }
        if conversation.generate {
            family.generation_prompt(knobs.thinking, before, sink);
        }
    };
    let native = generic.spell(write, vocabulary)?;
    let printed = generic.print(conversation, vocabulary)?;
    let start = printed.end().saturating_sub(native.len());
    let theirs = printed.bytes(start..printed.end());
    if native == theirs && printed.encode(0..start, vocabulary)? == header {
        return Ok(Compared::Same);
    }
    Ok(Compared::Other { native, printed })
}

const TOOLS: &str = r#"[{"type":"function","name":"read_file","description":"Read \"é\" <b>","parameters":{"type":"object","properties":{"path":{"type":"string"},"n":{"type":"number","minimum":0.5}},"required":["path"]}},{"type":"function","name":"ls"}]"#;

fn conversations(arguments: &str) -> Vec<Vec<Arc<Item>>> {
    let say = |role, text: &str| Item::Message { role, text: text.to_owned() };
    let user = |text| say(Role::User, text);
    let system = |text| say(Role::System, text);
    let assistant = |text| say(Role::Assistant, text);
    let think = |text: &str| Item::Reasoning { text: text.to_owned() };
    let call = |id: &str, name: &str| Item::Call {
        call_id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    let output =
        |id: &str, text: &str| Item::Output { call_id: id.to_owned(), text: text.to_owned() };
    let conversations: Vec<Vec<Item>> = vec![
        vec![user("hi")],
        vec![system("Be terse."), user("\n\nhi\n")],
        vec![system("a"), system("b"), user("c"), assistant("d"), user("e")],
        vec![user("a"), assistant("\n\nb\n"), system("late"), user("c"), assistant("d")],
        vec![user("a"), call("1", "ls"), output("1", "x\ny")],
        vec![
            user("a"),
            assistant("b"),
            call("1", "ls"),
            call("2", "read_file"),
            output("1", ""),
            output("2", "\n"),
        ],
        vec![user("a"), think("\nwhy\n"), assistant("\nb"), call("1", "ls"), output("1", "x")],
        vec![
            user("a"),
            think("why"),
            call("1", "ls"),
            output("1", "x"),
            think("so"),
            assistant("c"),
        ],
        vec![
            user("a"),
            think("why"),
            assistant("b"),
            user("c"),
            think("how"),
            call("1", "ls"),
            output("1", "x"),
        ],
        vec![
            user("<tool_response>no</tool_response>"),
            user("a"),
            think("why"),
            assistant("b"),
            user("<tool_response>\nx\n</tool_response>"),
        ],
    ];
    conversations.into_iter().map(|items| items.into_iter().map(Arc::new).collect()).collect()
}

fn differ(native: &str, printed: &str) -> Error {
    let same = native.bytes().rev().zip(printed.bytes().rev()).take_while(|(a, b)| a == b).count();
    let until = |text: &str| -> String {
        let end = text.len() - same.min(text.len());
        let end = (end..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
        let last: Vec<char> = text[..end].chars().rev().take(60).collect();
        last.into_iter().rev().collect()
    };
    Error::profile(format!(
        "no renderer prints what the chat template does: where it prints {:?}, {:?} was expected",
        until(printed),
        until(native)
    ))
}
