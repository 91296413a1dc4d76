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

/// Whether `dialect` and `template` print the same text for every probe.
///
/// # Errors
/// [`crate::ErrorKind::Profile`] with both texts from where they part.
pub fn agree(dialect: &ChatMl, template: &Template) -> Result<()> {
    for tools in [None, Some(TOOLS)] {
        for items in conversations() {
            for (generate, thinking) in [(true, true), (true, false), (false, true)] {
                // A template that prints our tools block as plain text has no dates or knobs to
                // vary; the same probes hold for it.
                let native = native(dialect, &items, tools, generate, thinking)?;
                let printed = printed(dialect, template, &items, tools, generate, thinking)?;
                if native != printed {
                    return Err(differ(&native, &printed));
                }
            }
        }
    }
    Ok(())
}

const TOOLS: &str = r#"[{"type":"function","name":"read_file","description":"Read \"é\" <b>","parameters":{"type":"object","properties":{"path":{"type":"string"},"n":{"type":"number","minimum":0.5}},"required":["path"]}},{"type":"function","name":"ls"}]"#;

fn conversations() -> Vec<Vec<Arc<Item>>> {
    let say = |role, text: &str| Item::Message { role, text: text.to_owned() };
    let user = |text| say(Role::User, text);
    let system = |text| say(Role::System, text);
    let assistant = |text| say(Role::Assistant, text);
    let think = |text: &str| Item::Reasoning { text: text.to_owned() };
    let call = |id: &str, name: &str| Item::Call {
        call_id: id.to_owned(),
        name: name.to_owned(),
        arguments: "{\"path\":  \"a\"}".to_owned(),
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
    Header::parse(RawHeader { tools: tools.map(str::as_bytes), ..RawHeader::default() }, None)
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

fn printed(
    dialect: &ChatMl,
    template: &Template,
    items: &[Arc<Item>],
    tools: Option<&str>,
    generate: bool,
    thinking: bool,
) -> Result<String> {
    let header = parse_header(tools)?;
    let (leading, rest) = split_leading(items);
    let mut systems: Vec<String> = leading.into_iter().map(str::to_owned).collect();
    let declares = dialect.declares_tools();
    if tools.is_some() && !declares {
        let block = dialect.tools_block(&header);
        match systems.first_mut() {
            Some(first) => *first = format!("{first}\n\n{block}"),
            None => systems.push(block),
        }
    }
    let mut messages: Vec<Value> =
        systems.iter().map(|text| json!({"role": "system", "content": text})).collect();
    for group in group(rest, 0) {
        messages.extend(chat_messages(dialect, &group, declares));
    }
    let functions = header.tools.iter();
    let functions: Value = functions
        .filter_map(|tool| serde_json::from_str::<Value>(&tool.declaration).ok())
        .collect();
    let functions = Some(&functions).filter(|_| tools.is_some() && declares);
    template.render(&Value::Array(messages), functions, generate, thinking)
}

fn chat_messages(dialect: &ChatMl, group: &Group, declares: bool) -> Vec<Value> {
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
                let call = |(name, arguments): &(String, String)| json!({"type": "function", "function": {"name": name, "arguments": arguments}});
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
