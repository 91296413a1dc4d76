//! From items to the messages that a chat template is given.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use minijinja::value::Value;
use serde_json::value::RawValue;

use super::marks::{ControlTokens, Texts};
use super::python;
use super::ways::{Systems, Ways};
use crate::error::{Error, Result};
use crate::family::hermes;
use crate::family::marker::{Marker, Markers};
use crate::family::render::{Sink as _, TextSink, group};
use crate::header::{Header, Knobs};
use crate::item::{Item, Role};
use crate::json;

/// Between texts that a template takes as one only.
const BETWEEN: &str = "\n\n";

/// A whole conversation.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// Instructions and tools.
    pub header: &'a Header,
    /// Every item, oldest first.
    pub items: &'a [Arc<Item>],
    /// Stretches of `items` within which adjacent items form one message: what a model sampled in
    /// one turn is a stretch of its own.
    pub runs: &'a [Range<usize>],
    /// Whether the model is to speak.
    pub generate: bool,
    /// How it is to speak.
    pub knobs: Knobs,
    /// When the conversation began, in seconds since 1970.
    pub now: i64,
}

/// One message, before it becomes a template's value.
struct Message<'t> {
    role: &'static str,
    content: String,
    reasoning: Option<String>,
    calls: Vec<Call<'t>>,
    /// Of a tool's message: the call's id, and the function's name.
    answers: Option<(String, String)>,
}

struct Call<'t> {
    id: String,
    name: String,
    arguments: &'t str,
    item: usize,
}

impl Message<'_> {
    fn new(role: &'static str, content: String) -> Self {
        Self { role, content, reasoning: None, calls: Vec::new(), answers: None }
    }
}

/// What a template is given for a conversation.
pub(super) struct Chat<'t> {
    /// Its messages.
    pub(super) messages: Vec<Value>,
    /// The tools that it declares itself.
    pub(super) tools: Option<Value>,
    /// What is not given to it, but put where it prints the marks.
    pub(super) texts: Vec<(&'t str, usize)>,
}

/// The messages and tools of a conversation, in the template's ways.
///
/// # Errors
/// [`crate::ErrorKind::Invariant`] when a tool's declaration is not JSON.
pub(super) fn given<'t>(
    conversation: &Conversation<'t>,
    ways: &Ways,
    control: &ControlTokens,
) -> Result<Chat<'t>> {
    let texts = Texts::new(control);
    let mut messages = messages(conversation, ways, control, &texts);
    let tools = tools(conversation.header, ways, control)?;
    let mut declared = None;
    if ways.tools {
        declared = tools;
    } else {
        messages = spell_out(messages, tools.as_ref(), &texts)?;
    }
    let adapted = adapt(messages, ways).into_iter();
    let messages = adapted.map(|message| value(message, ways, control, &texts)).collect();
    Ok(Chat { messages, tools: declared, texts: texts.into_kept() })
}

fn messages<'t>(
    conversation: &Conversation<'t>,
    ways: &Ways,
    control: &ControlTokens,
    texts: &Texts<'t>,
) -> Vec<Message<'t>> {
    let mut messages = Vec::new();
    if let Some(text) = &conversation.header.instructions {
        messages.push(Message::new("system", texts.give(text, 0).into_owned()));
    }
    let word = |text: &str| control.word(text).into_owned();
    let mut called: HashMap<&str, (&str, String)> = HashMap::new();
    let mut calls = 0;
    for run in conversation.runs {
        let items = conversation.items.get(run.clone()).unwrap_or_default();
        for group in group(items, run.start, &|_| None) {
            let mut assistant: Option<Message> = None;
            for index in group.items {
                let Some(item) = conversation.items.get(index) else { continue };
                let number = index + 1;
                let text = |text: &'t str| texts.give(text, number).into_owned();
                let joined = || Message::new("assistant", String::new());
                match item.as_ref() {
                    Item::Message { role: Role::Assistant, text: said } => {
                        assistant.get_or_insert_with(joined).content = text(said);
                    }
                    Item::Message { role, text: said } => {
                        let role = if *role == Role::User { "user" } else { "system" };
                        messages.push(Message::new(role, text(said)));
                    }
                    Item::Reasoning { text: thought } => {
                        assistant.get_or_insert_with(joined).reasoning = Some(text(thought));
                    }
                    Item::Call { call_id, name, arguments } => {
                        let id = word(&ways.call_id(call_id, name, calls));
                        calls += 1;
                        called.insert(call_id, (name, id.clone()));
                        assistant.get_or_insert_with(joined).calls.push(Call {
                            id,
                            name: word(name),
                            arguments,
                            item: number,
                        });
                    }
                    Item::Output { call_id, text: output } => {
                        let (name, id) = called.get(call_id.as_str()).cloned().unwrap_or_default();
                        messages.push(Message {
                            answers: Some((id, word(name))),
                            ..Message::new("tool", text(output))
                        });
                    }
                }
            }
            messages.extend(assistant);
        }
    }
    messages
}

impl Ways {
    /// The id as the template takes it of a call behind so many.
    fn call_id<'t>(&self, call_id: &'t str, name: &str, before: usize) -> Cow<'t, str> {
        const SHORT: usize = 9;
        if self.counted_ids {
            return Cow::Owned(format!("functions.{name}:{before}"));
        }
        if !self.short_ids {
            return Cow::Borrowed(call_id);
        }
        let plain: Vec<char> = call_id.chars().filter(char::is_ascii_alphanumeric).collect();
        let last = &plain[plain.len().saturating_sub(SHORT)..];
        let padding = std::iter::repeat_n('0', SHORT - last.len());
        Cow::Owned(padding.chain(last.iter().copied()).collect())
    }
}

/// Tools, calls and outputs as text, for a template that knows only role and content.
fn spell_out<'t>(
    messages: Vec<Message<'t>>,
    tools: Option<&Value>,
    texts: &Texts<'t>,
) -> Result<Vec<Message<'t>>> {
    let markers = |open: &str, close: &str| Markers {
        open: Marker::Text(open.to_owned()),
        close: Marker::Text(close.to_owned()),
    };
    let call = markers("<tool_call>", "</tool_call>");
    let response = markers("<tool_response>", "</tool_response>");
    let mut spelled: Vec<Message> = Vec::new();
    let mut outputs: Vec<String> = Vec::new();
    let settle = |outputs: &mut Vec<String>, spelled: &mut Vec<Message>| {
        if !outputs.is_empty() {
            let mut sink = TextSink::default();
            hermes::outputs(outputs.iter().map(String::as_str), &response, &mut sink);
            spelled.push(Message::new("user", sink.0));
            outputs.clear();
        }
    };
    for message in messages {
        if message.answers.is_some() {
            outputs.push(message.content);
            continue;
        }
        settle(&mut outputs, &mut spelled);
        let calls: Vec<(String, String)> = message
            .calls
            .into_iter()
            .map(|call| {
                let arguments = texts.give(call.arguments, call.item).into_owned();
                (call.name, arguments)
            })
            .collect();
        let mut sink = TextSink(message.content);
        if !(calls.is_empty() || sink.0.is_empty()) {
            sink.text("\n");
        }
        hermes::calls(&calls, &call, &mut sink);
        spelled.push(Message::new(message.role, sink.0));
    }
    settle(&mut outputs, &mut spelled);
    if let Some(tools) = tools {
        let failed = |error: minijinja::Error| {
            Error::invariant("a tool's declaration is not JSON").with_source(error)
        };
        let declarations = tools.try_iter().map_err(failed)?;
        let declarations: Vec<String> = declarations
            .map(|tool| python::dumps(&tool, texts.hides()).map_err(failed))
            .collect::<Result<_>>()?;
        let mut block = TextSink::default();
        hermes::declare(declarations.iter().map(String::as_str), &call, &mut block);
        match spelled.first_mut().filter(|first| first.role == "system") {
            Some(first) => {
                first.content.push_str(BETWEEN);
                first.content.push_str(&block.0);
            }
            None => spelled.insert(0, Message::new("system", block.0)),
        }
    }
    Ok(spelled)
}

/// Puts messages where the template has no place for them into one that it has.
fn adapt<'t>(messages: Vec<Message<'t>>, ways: &Ways) -> Vec<Message<'t>> {
    let mut adapted: Vec<Message> = Vec::with_capacity(messages.len());
    let mut leading = true;
    for mut message in messages {
        let is_system = message.role == "system";
        leading = leading && is_system;
        let taken = if leading { ways.systems != Systems::None } else { ways.late_systems };
        if is_system && (!taken || ways.systems == Systems::None) {
            message.role = "user";
        }
        let joins = match message.role {
            "system" => leading && ways.systems == Systems::One,
            "user" => !ways.adjacent_users,
            _ => false,
        };
        match adapted.last_mut().filter(|last| joins && last.role == message.role) {
            Some(last) => {
                last.content.push_str(BETWEEN);
                last.content.push_str(&message.content);
            }
            None => adapted.push(message),
        }
    }
    adapted
}

fn value<'t>(
    message: Message<'t>,
    ways: &Ways,
    control: &ControlTokens,
    texts: &Texts<'t>,
) -> Value {
    let content = if ways.parts {
        let part = [("type", Value::from("text")), ("text", Value::from(message.content.as_str()))];
        let part = Some(Value::from_pairs(part)).filter(|_| !message.content.is_empty());
        Value::from(part.into_iter().collect::<Vec<_>>())
    } else {
        Value::from(message.content)
    };
    let mut members = vec![("role", Value::from(message.role)), ("content", content)];
    if let (Some(key), Some(reasoning)) = (ways.reasoning, message.reasoning) {
        members.push((key, Value::from(reasoning)));
    }
    if !message.calls.is_empty() {
        let calls: Vec<Value> = message
            .calls
            .into_iter()
            .map(|call| {
                let object =
                    (!ways.arguments_as_text).then(|| object(call.arguments, control)).flatten();
                let arguments = object.unwrap_or_else(|| {
                    Value::from(texts.give(call.arguments, call.item).into_owned())
                });
                let function = [("name", Value::from(call.name)), ("arguments", arguments)];
                Value::from_pairs([
                    ("id", Value::from(call.id)),
                    ("type", Value::from("function")),
                    ("function", Value::from_pairs(function)),
                ])
            })
            .collect();
        members.push(("tool_calls", Value::from(calls)));
    }
    if let Some((id, name)) = message.answers {
        members.push(("tool_call_id", Value::from(id)));
        members.push(("name", Value::from(name)));
    }
    Value::from_pairs(members)
}

fn tools(header: &Header, ways: &Ways, control: &ControlTokens) -> Result<Option<Value>> {
    let tools = header.rendered_tools();
    if tools.is_empty() {
        return Ok(None);
    }
    let declared = tools.iter().map(|tool| {
        let word = |text: &str| Value::from(control.word(text).into_owned());
        let mut function = vec![("name", word(&tool.name))];
        let description = tool.description.as_deref().or(ways.whole_tools.then_some(""));
        function.extend(description.map(|text| ("description", word(text))));
        if let Some(schema) = &tool.schema {
            let parameters = json::value(schema.as_bytes(), "tools")
                .ok()
                .and_then(|raw| marked(raw, 0, control))
                .ok_or_else(|| Error::invariant("a tool's schema is no longer JSON"))?;
            function.push(("parameters", parameters));
        } else if ways.whole_tools {
            let none = Value::from_pairs(Vec::<(&str, Value)>::new());
            let members = [("type", Value::from("object")), ("properties", none)];
            function.push(("parameters", Value::from_pairs(members)));
        }
        Ok(Value::from_pairs([
            ("type", Value::from("function")),
            ("function", Value::from_pairs(function)),
        ]))
    });
    declared.collect::<Result<Vec<Value>>>().map(|tools| Some(Value::from(tools)))
}

/// Arguments as an object, if they are one.
fn object(arguments: &str, control: &ControlTokens) -> Option<Value> {
    let raw = json::value(arguments.as_bytes(), "arguments").ok()?;
    raw.get().starts_with('{').then(|| marked(raw, 0, control)).flatten()
}

/// A JSON value in which every string is marked; None when it is nested too deeply, or no JSON.
fn marked(raw: &RawValue, depth: usize, control: &ControlTokens) -> Option<Value> {
    if depth > json::MAX_DEPTH {
        return None;
    }
    let text = raw.get();
    Some(match text.as_bytes().first() {
        Some(b'{') => {
            let members = json::object(raw, "value").ok()?.0.into_iter();
            let members = members.map(|(key, value)| {
                let key = Value::from(control.word(&key).into_owned());
                Some((key, marked(value, depth + 1, control)?))
            });
            Value::from_pairs(members.collect::<Option<Vec<_>>>()?)
        }
        Some(b'[') => {
            let items = json::array(raw, "value").ok()?.into_iter();
            let items = items.map(|value| marked(value, depth + 1, control));
            Value::from(items.collect::<Option<Vec<Value>>>()?)
        }
        Some(b'"') => Value::from(control.word(&json::string(raw, "value").ok()?).as_ref()),
        Some(b't') => Value::from(true),
        Some(b'f') => Value::from(false),
        Some(b'n') => Value::from(()),
        _ => {
            let integer = text.parse::<i64>().map(Value::from).ok();
            let integer = integer.or_else(|| text.parse::<i128>().map(Value::from).ok());
            integer.or_else(|| text.parse().map(python::given_float).ok())?
        }
    })
}
