//! Items of a conversation, from the raw JSON that a client sent.
//!
//! This is the only place where `input` is parsed (D1). What the model cannot see (ids, status,
//! encrypted content) is dropped here; what it would have to see and we cannot show it is refused.

mod quick;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::error::{Error, Result, excerpt};
use crate::header::{INPUT, full_name};
use crate::json::{self, Members};

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The person, or the agent on their behalf.
    User,
    /// The model.
    Assistant,
    /// The operator, in the words of chat templates.
    System,
    /// The operator, in the words of the Responses API.
    Developer,
}

impl Role {
    /// The role of that name.
    fn of(name: &str) -> Option<Self> {
        match name {
            "user" => Some(Self::User),
            "assistant" => Some(Self::Assistant),
            "system" => Some(Self::System),
            "developer" => Some(Self::Developer),
            _ => None,
        }
    }

    /// The types of the parts that its messages may have. The easy form lets any role use
    /// `input_text`; an assistant's own output comes back as `output_text` or `refusal`.
    fn parts(self) -> &'static [&'static str] {
        if self == Self::Assistant {
            &["output_text", "refusal", "input_text"]
        } else {
            &["input_text"]
        }
    }

    /// The API's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::System => "system",
            Self::Developer => "developer",
        }
    }
}

/// One item, reduced to what a model is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Text from one of the roles.
    Message {
        /// Who speaks.
        role: Role,
        /// The text parts, joined.
        text: String,
    },
    /// What the model thought.
    Reasoning {
        /// The reasoning text, else the summary.
        text: String,
    },
    /// The model called a function, or a custom tool, which to it is a function of one text.
    Call {
        /// Pairs the call with its output.
        call_id: String,
        /// The name by which the model calls it: that of its namespace is part of it.
        name: String,
        /// Raw JSON, byte for byte as sampled or as the client sent it.
        arguments: String,
    },
    /// What the function returned.
    Output {
        /// The call that it answers.
        call_id: String,
        /// The text parts, joined.
        text: String,
    },
}

impl Item {
    /// The API's name of the type.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Message { .. } => "message",
            Self::Reasoning { .. } => "reasoning",
            Self::Call { .. } => "function_call",
            Self::Output { .. } => "function_call_output",
        }
    }

    /// Its text: for a call, the arguments.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Message { text, .. } | Self::Reasoning { text } | Self::Output { text, .. } => {
                text
            }
            Self::Call { arguments, .. } => arguments,
        }
    }

    /// Arguments without the white space of their spelling, where they are JSON.
    #[must_use]
    pub fn canonical(arguments: &str) -> Cow<'_, str> {
        let mut compact = String::with_capacity(arguments.len());
        let written = json::value(arguments.as_bytes(), "arguments")
            .and_then(|raw| json::write(raw, json::Style::Compact, "arguments", &mut compact));
        if written.is_ok() { Cow::Owned(compact) } else { Cow::Borrowed(arguments) }
    }

    /// Bytes that it takes in memory, roughly.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let names = match self {
            Self::Call { call_id, name, .. } => call_id.len() + name.len(),
            Self::Output { call_id, .. } => call_id.len(),
            Self::Message { .. } | Self::Reasoning { .. } => 0,
        };
        size_of::<Self>() + self.text().len() + names
    }

    /// Whether a system or a developer message.
    #[must_use]
    pub fn is_instruction(&self) -> bool {
        matches!(self, Self::Message { role: Role::System | Role::Developer, .. })
    }
}

/// The items of a request's `input`: a string is one user message, an array is a list of items.
///
/// # Errors
/// `invalid_value`, `missing_required_parameter` or `unsupported_parameter`, with the path of the
/// field at fault (`input[3].content[0].type`).
pub fn parse_input(bytes: &[u8]) -> Result<Vec<Arc<Item>>> {
    let array = std::str::from_utf8(bytes).ok().filter(|text| text.starts_with('['));
    if let Some(items) = array.and_then(quick::read) {
        return Ok(items.into_iter().map(Arc::new).collect());
    }
    read_carefully(bytes)
}

/// The reading that explains what is wrong.
fn read_carefully(bytes: &[u8]) -> Result<Vec<Arc<Item>>> {
    let raw = json::value(bytes, "input")?;
    match raw.get().as_bytes().first() {
        Some(b'n') => Ok(Vec::new()),
        Some(b'"') => {
            let text = json::string(raw, "input")?.into_owned();
            Ok(vec![Arc::new(Item::Message { role: Role::User, text })])
        }
        Some(b'[') => json::array(raw, "input")?
            .into_iter()
            .enumerate()
            .map(|(index, raw)| parse_item(raw, &format!("input[{index}]")).map(Arc::new))
            .collect(),
        _ => Err(json::wrong_type("input", "a string or an array of items", raw)),
    }
}

fn parse_item(raw: &RawValue, param: &str) -> Result<Item> {
    let members = json::object(raw, param)?;
    // `type` may be left out of the easy form of a message, and clients do.
    let item_type = match members.string("type", param)? {
        Some(item_type) => item_type,
        None if members.get("role").is_some() => Cow::Borrowed("message"),
        None => return Err(Error::missing_parameter(format!("{param}.type"))),
    };
    match item_type.as_ref() {
        "message" => parse_message(&members, param),
        "reasoning" => parse_reasoning(&members, param),
        "function_call" | "custom_tool_call" => {
            let custom = item_type == "custom_tool_call";
            let said = members.required(if custom { "input" } else { "arguments" }, param)?;
            let namespace = members.string("namespace", param)?;
            let name = members.required("name", param)?;
            Ok(Item::Call {
                call_id: members.required("call_id", param)?.into_owned(),
                name: full_name(namespace.as_deref(), &name).into_owned(),
                arguments: if custom { custom_arguments(&said) } else { said.into_owned() },
            })
        }
        "function_call_output" | "custom_tool_call_output" => {
            let param_output = format!("{param}.output");
            let output = members
                .get("output")
                .ok_or_else(|| Error::missing_parameter(param_output.as_str()))?;
            Ok(Item::Output {
                call_id: members.required("call_id", param)?.into_owned(),
                text: parse_content(output, &["input_text"], &param_output)?,
            })
        }
        other => Err(Error::unsupported(
            format!("{param}.type"),
            format!(
                "Input items of type '{}' are not supported by this server yet.",
                excerpt(other)
            ),
        )),
    }
}

/// The arguments with which a model calls a custom tool on `input`: to it, such a tool is a function.
fn custom_arguments(input: &str) -> String {
    let mut arguments = String::with_capacity(input.len() + 16);
    arguments.push('{');
    json::write_string(INPUT, &mut arguments);
    arguments.push(':');
    json::write_string(input, &mut arguments);
    arguments.push('}');
    arguments
}

fn parse_message(members: &Members<'_>, param: &str) -> Result<Item> {
    let name = members.required("role", param)?;
    let role = Role::of(&name).ok_or_else(|| {
        Error::invalid_value(
            format!("{param}.role"),
            format!(
                "Invalid value: '{}'. Supported values are: 'assistant', 'system', 'developer', \
                 and 'user'.",
                excerpt(&name)
            ),
        )
    })?;
    let content_param = format!("{param}.content");
    let content =
        members.get("content").ok_or_else(|| Error::missing_parameter(content_param.as_str()))?;
    Ok(Item::Message { role, text: parse_content(content, role.parts(), &content_param)? })
}

fn parse_reasoning(members: &Members<'_>, param: &str) -> Result<Item> {
    let mut text = String::new();
    for (field, part_type) in [("content", "reasoning_text"), ("summary", "summary_text")] {
        let Some(raw) = members.get(field) else { continue };
        let field_param = format!("{param}.{field}");
        text = parse_content(raw, &[part_type], &field_param)?;
        // The model is shown what it thought; a summary stands in only where that is lost.
        if !text.is_empty() {
            break;
        }
    }
    Ok(Item::Reasoning { text })
}

/// Text from a string or from an array of text parts, joined without a separator, as chat
/// templates do.
fn parse_content(raw: &RawValue, allowed: &[&str], param: &str) -> Result<String> {
    if raw.get().starts_with('"') {
        return Ok(json::string(raw, param)?.into_owned());
    }
    if !raw.get().starts_with('[') {
        return Err(json::wrong_type(param, "a string or an array of parts", raw));
    }
    let mut text = String::new();
    for (index, part) in json::array(raw, param)?.into_iter().enumerate() {
        let part_param = format!("{param}[{index}]");
        let part = json::object(part, &part_param)?;
        let part_type = part.required("type", &part_param)?;
        if allowed.contains(&part_type.as_ref()) {
            let field = if part_type == "refusal" { "refusal" } else { "text" };
            text.push_str(&part.required(field, &part_param)?);
        } else if matches!(part_type.as_ref(), "input_image" | "input_file" | "input_audio") {
            return Err(Error::unsupported(
                format!("{part_param}.type"),
                format!("Content of type '{part_type}' is not supported by this server yet."),
            ));
        } else {
            return Err(Error::invalid_value(
                format!("{part_param}.type"),
                format!(
                    "Invalid value: '{}'. Supported values are: '{}'.",
                    excerpt(&part_type),
                    allowed.join("', '")
                ),
            ));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn parsed(text: &str) -> Result<Vec<Item>> {
        parse_input(text.as_bytes())
            .map(|items| items.iter().map(|item| item.as_ref().clone()).collect())
    }

    fn user(text: &str) -> Item {
        Item::Message { role: Role::User, text: text.to_owned() }
    }

    #[test]
    fn reads_every_form() {
        assert_eq!(parsed(r#""hi""#).unwrap(), [user("hi")]);
        assert_eq!(parsed("null").unwrap(), []);
        assert_eq!(parsed("[]").unwrap(), []);
        assert_eq!(parsed(r#"[{"role":"user","content":"hi"}]"#).unwrap(), [user("hi")]);
        assert_eq!(
            parsed(
                r#"[{"type":"message","id":"msg_1","status":"completed","role":"assistant",
                    "content":[{"type":"output_text","text":"a","annotations":[]},
                               {"type":"refusal","refusal":"b"}]}]"#
            )
            .unwrap(),
            [Item::Message { role: Role::Assistant, text: "ab".into() }]
        );
        assert_eq!(
            parsed(
                r#"[{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],
                "content":[{"type":"reasoning_text","text":"t"}],"encrypted_content":null}]"#
            )
            .unwrap(),
            [Item::Reasoning { text: "t".into() }]
        );
        assert_eq!(
            parsed(
                r#"[{"type":"function_call_output","call_id":"c",
                "output":[{"type":"input_text","text":"ok"}]}]"#
            )
            .unwrap(),
            [Item::Output { call_id: "c".into(), text: "ok".into() }]
        );
    }

    /// Fragments of items, right and wrong, in any combination.
    fn fragments() -> impl Strategy<Value = String> {
        let field = select(vec![
            r#""type":"message""#,
            r#""type":"reasoning""#,
            r#""type":"function_call""#,
            r#""type":"function_call_output""#,
            r#""type":"custom_tool_call""#,
            r#""type":"custom_tool_call_output""#,
            r#""type":"item_reference""#,
            r#""type":null"#,
            r#""role":"user""#,
            r#""role":"assistant""#,
            r#""role":"robot""#,
            r#""content":"a\u00e9\n""#,
            r#""content":[]"#,
            r#""content":null"#,
            r#""content":{"type":"input_text"}"#,
            r#""content":[{"type":"input_text","text":"b"},{"type":"input_text","text":"c"}]"#,
            r#""content":[{"type":"output_text","text":"d","annotations":[]}]"#,
            r#""content":[{"type":"refusal","refusal":"no"}]"#,
            r#""content":[{"type":"reasoning_text","text":"why"}]"#,
            r#""content":[{"type":"input_image","image_url":"x"}]"#,
            r#""summary":[{"type":"summary_text","text":"so"}]"#,
            r#""summary":[]"#,
            r#""summary":7"#,
            r#""call_id":"c""#,
            r#""call_id":1"#,
            r#""name":"f""#,
            r#""arguments":"{\"a\":  1}""#,
            r#""output":"x""#,
            r#""output":[{"type":"input_text","text":"y"}]"#,
            r#""namespace":"n""#,
            r#""namespace":null"#,
            r#""namespace":["n"]"#,
            r#""input":"a \"b\"\n\u0001""#,
            r#""input":{}"#,
            r#""id":"i","status":"completed""#,
            r#""content":"\ud800""#,
        ]);
        let item = vec(field, 0..5).prop_map(|fields| format!("{{{}}}", fields.join(",")));
        vec(item, 0..3).prop_map(|items| format!("[{}]", items.join(", ")))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn the_quick_reading_reads_what_the_careful_one_does(input in fragments()) {
            if let Some(quick) = quick::read(&input) {
                let careful: Vec<Item> = read_carefully(input.as_bytes())
                    .unwrap_or_else(|error| panic!("only the quick one reads {input}: {error}"))
                    .iter()
                    .map(|item| item.as_ref().clone())
                    .collect();
                prop_assert_eq!(quick, careful);
            }
        }
    }

    #[test]
    fn plain_input_is_read_quickly() {
        for input in [
            "[]",
            r#"[{"role":"user","content":"hi"}]"#,
            r#"[{"type":"message","id":"m","role":"assistant","status":"completed",
                "content":[{"type":"output_text","text":"a","annotations":[],"logprobs":[]}]}]"#,
            r#"[{"type":"reasoning","id":"r","summary":[],"encrypted_content":null,
                "content":[{"type":"reasoning_text","text":"t"}]}]"#,
            r#"[{"type":"function_call","id":"f","call_id":"c","name":"f","arguments":"{}"}]"#,
            r#"[{"type":"function_call_output","call_id":"c","output":"x"}]"#,
            r#"[{"type":"function_call","call_id":"c","namespace":"n","name":"f","arguments":""}]"#,
            r#"[{"type":"custom_tool_call","call_id":"c","name":"f","input":"x"}]"#,
            r#"[{"type":"custom_tool_call_output","call_id":"c","output":"x"}]"#,
        ] {
            assert!(quick::read(input).is_some(), "{input}");
        }
    }

    #[test]
    fn arguments_keep_their_bytes() {
        let items = parsed(
            r#"[{"type":"function_call","call_id":"c","name":"f","arguments":"{\"b\":1,  \"a\":2}"}]"#,
        );
        assert_eq!(items.unwrap()[0].text(), r#"{"b":1,  "a":2}"#);
    }

    #[test]
    fn calls_are_named_as_the_model_names_them() {
        let items = parsed(
            r#"[{"type":"function_call","call_id":"a","namespace":"crm","name":"find","arguments":"{}"},
                {"type":"custom_tool_call","call_id":"b","name":"patch","input":"a\n\"b\""},
                {"type":"custom_tool_call_output","call_id":"b","output":"done"}]"#,
        );
        let call = |call_id: &str, name: &str, arguments: &str| Item::Call {
            call_id: call_id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        assert_eq!(
            items.unwrap(),
            [
                call("a", "crm__find", "{}"),
                call("b", "patch", r#"{"input":"a\n\"b\""}"#),
                Item::Output { call_id: "b".into(), text: "done".into() },
            ]
        );
    }

    #[test]
    fn errors_name_the_field() {
        for (text, param) in [
            ("7", "input"),
            ("[7]", "input[0]"),
            ("[{}]", "input[0].type"),
            (r#"[{"type":"web_search_call"}]"#, "input[0].type"),
            (r#"[{"role":"robot","content":""}]"#, "input[0].role"),
            (r#"[{"role":"user"}]"#, "input[0].content"),
            (
                r#"[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]"#,
                "input[0].content[0].type",
            ),
            (
                r#"[{"role":"user","content":[{"type":"output_text","text":"x"}]}]"#,
                "input[0].content[0].type",
            ),
            (r#"[{"type":"function_call","call_id":"c","name":"f"}]"#, "input[0].arguments"),
            (
                r#"[{"type":"function_call","call_id":1,"name":"f","arguments":""}]"#,
                "input[0].call_id",
            ),
            (
                r#"[{"type":"function_call","call_id":"c","name":"f","arguments":"","namespace":1}]"#,
                "input[0].namespace",
            ),
            (r#"[{"type":"custom_tool_call","call_id":"c","name":"f"}]"#, "input[0].input"),
            (r#"[{"type":"function_call_output","call_id":"c"}]"#, "input[0].output"),
            (
                r#"[{"type":"function_call_output","call_id":"c","output":[{"type":"input_image"}]}]"#,
                "input[0].output[0].type",
            ),
            (r#"["\ud800"]"#, "input"),
        ] {
            let error = parsed(text).unwrap_err();
            // A half surrogate is no object, or no text: both name a place inside `input`.
            assert!(error.param().unwrap().starts_with(param), "{text}: {error}");
        }
    }
}
