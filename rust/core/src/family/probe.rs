//! Does a native renderer print what the template prints? Asked at load time (D6); one difference
//! and the renderer does not serve.
//!
//! The conversations cover what varies between dialects: system text or none, tools or none, a
//! tool loop with and without reasoning and text, parallel calls and outputs, a question after
//! reasoning, late system messages, text with newlines at both ends, and an answer at the end.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::family::Family;
use crate::family::chatml::{ChatMl, text_of};
use crate::family::generic::Template;
use crate::family::render::{Group, Message, group, shows};
use crate::header::{Header, RawHeader};
use crate::item::{Item, Role};

/// How a template is given the arguments of a call. Some print them as they are, others as JSON,
/// and those would quote a text; servers give each what it needs. A renderer that keeps the bytes
/// agrees with the latter where the bytes are as Python spells JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arguments {
    AsText,
    AsObject,
}

impl Arguments {
    fn sample(self) -> &'static str {
        match self {
            Self::AsText => r#"{"path":  "a"}"#,
            Self::AsObject => r#"{"path": "a", "n": [1, 2.5, null]}"#,
        }
    }

    fn given(self, arguments: &str) -> Value {
        match self {
            Self::AsText => Value::from(arguments),
            Self::AsObject => serde_json::from_str(arguments).unwrap_or_default(),
        }
    }
}

/// Whether `dialect` and `template` print the same text for every probe.
///
/// # Errors
/// [`crate::ErrorKind::Profile`] with both texts from where they part.
pub fn agree(dialect: &ChatMl, template: &Template) -> Result<()> {
    let as_text = agree_with(Arguments::AsText, dialect, template);
    if as_text.is_err() && agree_with(Arguments::AsObject, dialect, template).is_ok() {
        return Ok(());
    }
    as_text
}

fn agree_with(arguments: Arguments, dialect: &ChatMl, template: &Template) -> Result<()> {
    for tools in [None, Some(TOOLS)] {
        for items in conversations(arguments) {
            for (generate, thinking) in [(true, true), (true, false), (false, true)] {
                let native = native(dialect, &items, tools, generate, thinking)?;
                let messages = chat(dialect, &items, tools, arguments)?;
                let functions = functions(dialect, tools)?;
                let printed = template.render(&messages, functions.as_ref(), generate, thinking)?;
                if native != printed {
                    return Err(differ(&native, &printed));
                }
            }
        }
    }
    Ok(())
}

const TOOLS: &str = r#"[{"type":"function","name":"read_file","description":"Read \"é\" <b>","parameters":{"type":"object","properties":{"path":{"type":"string"},"n":{"type":"number","minimum":0.5}},"required":["path"]}},{"type":"function","name":"ls"}]"#;

fn conversations(arguments: Arguments) -> Vec<Vec<Arc<Item>>> {
    let say = |role, text: &str| Item::Message { role, text: text.to_owned() };
    let user = |text| say(Role::User, text);
    let system = |text| say(Role::System, text);
    let assistant = |text| say(Role::Assistant, text);
    let think = |text: &str| Item::Reasoning { text: text.to_owned() };
    let call = |id: &str, name: &str| Item::Call {
        call_id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.sample().to_owned(),
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

fn parse_header(tools: Option<&str>) -> Result<Arc<Header>> {
    Header::parse(RawHeader { tools: tools.map(str::as_bytes), ..RawHeader::default() })
}

fn split_leading(items: &[Arc<Item>]) -> (Vec<&str>, &[Arc<Item>]) {
    let leading = items.iter().take_while(|item| item.is_instruction()).count();
    let (first, rest) = items.split_at(leading);
    (first.iter().map(|item| item.text()).collect(), rest)
}

fn native(
    dialect: &ChatMl,
    items: &[Arc<Item>],
    tools: Option<&str>,
    generate: bool,
    thinking: bool,
) -> Result<String> {
    let header = parse_header(tools)?;
    let (leading, rest) = split_leading(items);
    let groups = group(rest, leading.len());
    let shown = shows(dialect, &groups, false);
    Ok(text_of(|sink| {
        dialect.header(&header, &leading, sink);
        for (group, (shown, _)) in groups.iter().zip(shown) {
            dialect.message(&group.message, shown, sink);
        }
        if generate {
            dialect.generation_prompt(thinking, sink);
        }
    }))
}

/// The conversation as the template is given it.
fn chat(
    dialect: &ChatMl,
    items: &[Arc<Item>],
    tools: Option<&str>,
    arguments: Arguments,
) -> Result<Value> {
    let (leading, rest) = split_leading(items);
    let mut systems: Vec<String> = leading.into_iter().map(str::to_owned).collect();
    if tools.is_some() && !dialect.declares_tools() {
        let block = dialect.tools_block(parse_header(tools)?.as_ref());
        match systems.first_mut() {
            Some(first) => *first = format!("{first}\n\n{block}"),
            None => systems.push(block),
        }
    }
    let system = |text: &String| json!({"role": "system", "content": text});
    let mut messages: Vec<Value> = systems.iter().map(system).collect();
    for group in group(rest, 0) {
        messages.extend(chat_messages(dialect, &group, arguments));
    }
    Ok(Value::Array(messages))
}

/// The tools as the template is given them; none where it is fed our block instead.
fn functions(dialect: &ChatMl, tools: Option<&str>) -> Result<Option<Value>> {
    if tools.is_none() || !dialect.declares_tools() {
        return Ok(None);
    }
    let header = parse_header(tools)?;
    let declared = header.tools.iter();
    let declared =
        declared.filter_map(|tool| serde_json::from_str::<Value>(&tool.declaration).ok());
    Ok(Some(declared.collect()))
}

fn chat_messages(dialect: &ChatMl, group: &Group, form: Arguments) -> Vec<Value> {
    let declares = dialect.declares_tools();
    match &group.message {
        Message::Plain { role, text } => {
            let role = if *role == Role::User { "user" } else { "system" };
            vec![json!({"role": role, "content": text})]
        }
        Message::Assistant { text, calls, .. } if !declares => {
            let text = dialect.answer_text(text.as_deref().unwrap_or_default(), calls);
            vec![json!({"role": "assistant", "content": text})]
        }
        Message::Assistant { reasoning, text, calls } => {
            let mut message =
                json!({"role": "assistant", "content": text.as_deref().unwrap_or_default()});
            if let Some(reasoning) = reasoning {
                message["reasoning_content"] = json!(reasoning);
            }
            if !calls.is_empty() {
                let call = |(name, arguments): &(String, String)| {
                    let arguments = form.given(arguments);
                    json!({"type": "function", "function": {"name": name, "arguments": arguments}})
                };
                message["tool_calls"] = calls.iter().map(call).collect();
            }
            vec![message]
        }
        Message::Outputs(outputs) if !declares => {
            vec![json!({"role": "user", "content": dialect.outputs_text(outputs)})]
        }
        Message::Outputs(outputs) => {
            outputs.iter().map(|output| json!({"role": "tool", "content": output})).collect()
        }
    }
}

fn differ(native: &str, printed: &str) -> Error {
    let same = native.bytes().zip(printed.bytes()).take_while(|(a, b)| a == b).count();
    let from = |text: &str| -> String {
        let start = (0..=same.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
        text[start.unwrap_or(0)..].chars().take(60).collect()
    };
    Error::profile(format!(
        "the chat template is not the ChatML that turnwire renders: it prints {:?} where {:?} was \
         expected",
        from(printed),
        from(native)
    ))
}
