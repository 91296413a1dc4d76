//! Reading `input` with care: what the quick reading leaves, and the path of every fault.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{Input, Item, Offer, Role, custom_arguments};
use crate::error::{Error, Result, excerpt};
use crate::header::{Offered, SEARCH, full_name};
use crate::json::{self, Members};

/// The items, or what is wrong with them.
///
/// # Errors
/// As [`parse_input`](super::parse_input).
pub(super) fn read(bytes: &[u8]) -> Result<Input> {
    let raw = json::value(bytes, "input")?;
    match raw.get().as_bytes().first() {
        Some(b'n') => Ok(Input::default()),
        Some(b'"') => {
            let text = json::string(raw, "input")?.into_owned();
            Ok(Input::of(vec![Item::Message { role: Role::User, text }]))
        }
        Some(b'[') => {
            let mut reading = Reading::default();
            for (index, raw) in json::array(raw, "input")?.into_iter().enumerate() {
                reading.item(raw, &format!("input[{index}]"))?;
            }
            Ok(Input { offers: reading.offers, ..Input::of(reading.items) })
        }
        _ => Err(json::wrong_type("input", "a string or an array of items", raw)),
    }
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    items: Vec<Item>,
    offers: Vec<Offer>,
    /// Searches for tools that had no id, and outputs of such: they pair in their order.
    unnamed: [usize; 2],
}

impl Reading {
    fn item(&mut self, raw: &RawValue, param: &str) -> Result<()> {
        let members = json::object(raw, param)?;
        // `type` may be left out of the easy form of a message, and clients do.
        let item_type = match members.string("type", param)? {
            Some(item_type) => item_type,
            None if members.get("role").is_some() => Cow::Borrowed("message"),
            None => return Err(Error::missing_parameter(format!("{param}.type"))),
        };
        match item_type.as_ref() {
            "additional_tools" => {
                let offered = tools(&members, param)?;
                self.offers.push(Offer { at: self.items.len(), is_untold: true, offered });
            }
            "tool_search_output" => {
                let offered = tools(&members, param)?;
                let call_id = self.search_id(&members, 1, param)?;
                let text = offered.declarations();
                self.offers.push(Offer { at: self.items.len(), is_untold: false, offered });
                self.items.push(Item::Output { call_id, text });
            }
            "tool_search_call" => {
                let call_id = self.search_id(&members, 0, param)?;
                let param = format!("{param}.arguments");
                let raw = members
                    .get("arguments")
                    .ok_or_else(|| Error::missing_parameter(param.as_str()))?;
                // Text is what was sampled that is no JSON.
                let arguments = if raw.get().starts_with('"') {
                    json::string(raw, &param)?.into_owned()
                } else {
                    raw.get().to_owned()
                };
                self.items.push(Item::Call { call_id, name: SEARCH.to_owned(), arguments });
            }
            other => self.items.push(parse_item(other, &members, param)?),
        }
        Ok(())
    }

    /// The id of a search for tools; of one that a server executed, its number.
    fn search_id(&mut self, members: &Members<'_>, end: usize, param: &str) -> Result<String> {
        if let Some(call_id) = members.string("call_id", param)? {
            return Ok(call_id.into_owned());
        }
        self.unnamed[end] += 1;
        Ok(format!("{SEARCH}_{}", self.unnamed[end]))
    }
}

fn tools(members: &Members<'_>, param: &str) -> Result<Offered> {
    let param = format!("{param}.tools");
    let raw = members.get("tools").ok_or_else(|| Error::missing_parameter(param.as_str()))?;
    Offered::parse(raw, &param, true)
}

fn parse_item(item_type: &str, members: &Members<'_>, param: &str) -> Result<Item> {
    match item_type {
        "message" => parse_message(members, param),
        "reasoning" => parse_reasoning(members, param),
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

    use super::super::{parse_input, quick};
    use super::*;

    fn plain(input: Input) -> Vec<Item> {
        input.settled(true).0.iter().map(|item| item.as_ref().clone()).collect()
    }

    fn parsed(text: &str) -> Result<Vec<Item>> {
        parse_input(text.as_bytes()).map(plain)
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
                let careful = plain(read(input.as_bytes())
                    .unwrap_or_else(|error| panic!("only the quick one reads {input}: {error}")));
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
