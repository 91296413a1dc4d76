//! The tools of a request: as the model is told of them, and as the client called them.
//!
//! A chat template knows one kind of tool, a function with a schema. So a custom tool is declared as
//! a function of one text, `input`, and the functions of a namespace under both names; what the model
//! calls is turned back where the client is told of it (`turn::told`). Hosted tools have nobody to run them
//! here and are left out, the one exception to refusing by name: agents offer `web_search` whether they
//! need it or not.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::error::{Error, Result, excerpt};
use crate::json::{self, Members, Style};

/// OpenAI's limit for a function's name, in characters.
const MAX_NAME: usize = 128;

/// Tools that a server runs.
const HOSTED: [&str; 10] = [
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "image_generation",
    "computer",
    "computer_use_preview",
    "mcp",
];

/// The argument that a custom tool's text is.
pub const INPUT: &str = "input";

/// What a custom tool takes, as a schema.
const INPUT_SCHEMA: &str =
    r#"{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}"#;

/// How a tool is called by the client's own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolKind {
    /// With arguments: `function_call`.
    Function,
    /// With a text: `custom_tool_call`.
    Custom,
}

/// One tool that the model may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// The name by which the model calls it: letters, digits, `_` and `-`.
    pub name: String,
    /// The client's name for it.
    pub own_name: String,
    /// The namespace that it stands in.
    pub namespace: Option<String>,
    /// How it is called.
    pub kind: ToolKind,
    /// As a chat template prints it: the Chat Completions form, written as Python writes JSON.
    pub declaration: String,
    /// What it does, in the client's words.
    pub description: Option<String>,
    /// The JSON schema of its arguments, compact.
    pub schema: Option<String>,
}

/// What a request offers.
#[derive(Debug, Default)]
pub(super) struct Offered {
    pub(super) tools: Vec<Tool>,
    /// Each offer as the Response object echoes it, compact.
    pub(super) echoes: Vec<String>,
    /// The types of the hosted tools.
    pub(super) left_out: Vec<String>,
}

/// The name by which the model calls a tool of a namespace.
#[must_use]
pub fn full_name<'n>(namespace: Option<&str>, name: &'n str) -> Cow<'n, str> {
    match namespace {
        Some(namespace) => Cow::Owned(format!("{namespace}__{name}")),
        None => Cow::Borrowed(name),
    }
}

/// The tools of a request.
///
/// # Errors
/// `invalid_value`, `missing_required_parameter` or `unsupported_parameter`, naming the field.
pub(super) fn parse(bytes: Option<&[u8]>) -> Result<Offered> {
    let mut offered = Offered::default();
    let Some(bytes) = bytes else { return Ok(offered) };
    let raw = json::value(bytes, "tools")?;
    if raw.get() == "null" {
        return Ok(offered);
    }
    for (index, raw) in json::array(raw, "tools")?.into_iter().enumerate() {
        let param = format!("tools[{index}]");
        let members = json::object(raw, &param)?;
        let tool_type = members.required("type", &param)?;
        if tool_type == "namespace" {
            let echo = offered.namespace(&members, &param)?;
            offered.echoes.push(echo);
        } else if HOSTED.contains(&tool_type.as_ref()) {
            offered.left_out.push(tool_type.into_owned());
        } else {
            let (tool, echo) = one(&members, None, &param)?;
            offered.add(tool, &param)?;
            offered.echoes.push(echo);
        }
    }
    Ok(offered)
}

impl Offered {
    fn add(&mut self, tool: Tool, param: &str) -> Result<()> {
        if self.tools.iter().any(|other| other.name == tool.name) {
            return Err(Error::invalid_value(
                format!("{param}.name"),
                format!("The tool name '{}' is used twice.", tool.name),
            ));
        }
        self.tools.push(tool);
        Ok(())
    }

    /// Adds the tools of a namespace, the first of which also says what they all are for.
    fn namespace(&mut self, members: &Members<'_>, param: &str) -> Result<String> {
        let name = name(members, param)?;
        let description = members.string("description", param)?;
        let param = format!("{param}.tools");
        let raw = members.get("tools").ok_or_else(|| Error::missing_parameter(param.as_str()))?;
        let raw = json::array(raw, &param)?;
        if raw.is_empty() {
            return Err(Error::invalid_value(param, "A namespace has at least one tool."));
        }
        let mut echoes = Vec::with_capacity(raw.len());
        for (index, raw) in raw.into_iter().enumerate() {
            let param = format!("{param}[{index}]");
            let common = description.as_deref().filter(|_| index == 0);
            let namespace = Some((name.as_str(), common));
            let (tool, echo) = one(&json::object(raw, &param)?, namespace, &param)?;
            self.add(tool, &param)?;
            echoes.push(echo);
        }
        let mut echo = String::from(r#"{"type":"namespace","name":"#);
        json::write_string(&name, &mut echo);
        echo.push_str(r#","description":"#);
        write_optional(description.as_deref(), &mut echo);
        echo.push_str(r#","tools":["#);
        echo.push_str(&echoes.join(","));
        echo.push_str("]}");
        Ok(echo)
    }
}

/// A function or a custom tool and its echo; `namespace` is its name, and what it says about this tool.
fn one(
    members: &Members<'_>,
    namespace: Option<(&str, Option<&str>)>,
    param: &str,
) -> Result<(Tool, String)> {
    let tool_type = members.required("type", param)?;
    let kind = match tool_type.as_ref() {
        "function" => ToolKind::Function,
        "custom" => ToolKind::Custom,
        other => {
            return Err(Error::unsupported(
                format!("{param}.type"),
                format!("Tools of type '{}' are not supported by this server yet.", excerpt(other)),
            ));
        }
    };
    for option in ["async", "defer_loading"] {
        if members.is_true(option) {
            return Err(Error::unsupported(
                format!("{param}.{option}"),
                format!("Tools with '{option}' are not supported by this server yet."),
            ));
        }
    }
    let own_name = name(members, param)?;
    let own_description = members.string("description", param)?;
    let mut echo = format!(r#"{{"type":"{tool_type}","name":"#);
    json::write_string(&own_name, &mut echo);
    echo.push_str(r#","description":"#);
    write_optional(own_description.as_deref(), &mut echo);

    let mut parts: Vec<Cow<'_, str>> = Vec::new();
    parts.extend(namespace.and_then(|(_, common)| common).map(Cow::Borrowed));
    parts.extend(own_description);
    let schema = match kind {
        ToolKind::Function => {
            let schema = parameters(members, param)?;
            echo.push_str(r#","parameters":"#);
            echo.push_str(schema.as_deref().unwrap_or("null"));
            // `strict` is accepted and echoed as what it is here: not enforced.
            echo.push_str(r#","strict":false}"#);
            schema
        }
        ToolKind::Custom => {
            parts.extend(format(members, param)?.map(Cow::Owned));
            // As with `strict`: a grammar is told to the model, and not enforced.
            echo.push_str(r#","format":{"type":"text"}}"#);
            Some(INPUT_SCHEMA.to_owned())
        }
    };
    let namespace = namespace.map(|(name, _)| name.to_owned());
    let name = full_name(namespace.as_deref(), &own_name).into_owned();
    let description = (!parts.is_empty()).then(|| parts.join("\n\n"));
    let declaration = declare(&name, description.as_deref(), schema.as_deref(), param)?;
    Ok((Tool { name, own_name, namespace, kind, declaration, description, schema }, echo))
}

fn name(members: &Members<'_>, param: &str) -> Result<String> {
    let name = members.required("name", param)?.into_owned();
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(legal) {
        return Err(Error::invalid_value(
            format!("{param}.name"),
            format!(
                "Invalid '{param}.name': it must match '^[a-zA-Z0-9_-]+$' and have at most \
                 {MAX_NAME} characters."
            ),
        ));
    }
    Ok(name)
}

/// The schema of a function's arguments, compact.
fn parameters(members: &Members<'_>, param: &str) -> Result<Option<String>> {
    let param = format!("{param}.parameters");
    let Some(raw) = members.get("parameters") else { return Ok(None) };
    if !raw.get().starts_with('{') {
        return Err(json::wrong_type(&param, "an object", raw));
    }
    written(raw, Style::Compact, &param).map(Some)
}

/// What a model is told of the form of a custom tool's text.
fn format(members: &Members<'_>, param: &str) -> Result<Option<String>> {
    let param = format!("{param}.format");
    let Some(raw) = members.get("format").filter(|raw| raw.get() != "null") else {
        return Ok(None);
    };
    let format = json::object(raw, &param)?;
    let invalid = |field: &str, value: &str, known: &str| {
        Error::invalid_value(
            format!("{param}.{field}"),
            format!("Invalid value: '{}'. Supported values are: {known}.", excerpt(value)),
        )
    };
    match format.required("type", &param)?.as_ref() {
        "text" => Ok(None),
        "grammar" => {
            let syntax = match format.required("syntax", &param)?.as_ref() {
                "lark" => "Lark grammar",
                "regex" => "regular expression",
                other => return Err(invalid("syntax", other, "'lark' and 'regex'")),
            };
            let definition = format.required("definition", &param)?;
            Ok(Some(format!("The input must match this {syntax}:\n{definition}")))
        }
        other => Err(invalid("type", other, "'text' and 'grammar'")),
    }
}

/// A function in the Chat Completions form, as Python writes JSON.
fn declare(
    name: &str,
    description: Option<&str>,
    schema: Option<&str>,
    param: &str,
) -> Result<String> {
    let mut declaration = String::from(r#"{"type": "function", "function": {"name": "#);
    json::write_string(name, &mut declaration);
    if let Some(text) = description {
        declaration.push_str(r#", "description": "#);
        json::write_string(text, &mut declaration);
    }
    if let Some(schema) = schema {
        declaration.push_str(r#", "parameters": "#);
        let raw = json::value(schema.as_bytes(), param)?;
        declaration.push_str(&written(raw, Style::Python, param)?);
    }
    declaration.push_str("}}");
    Ok(declaration)
}

fn write_optional(text: Option<&str>, out: &mut String) {
    match text {
        Some(text) => json::write_string(text, out),
        None => out.push_str("null"),
    }
}

fn written(raw: &RawValue, style: Style, param: &str) -> Result<String> {
    let mut out = String::with_capacity(raw.get().len() + raw.get().len() / 8);
    json::write(raw, style, param, &mut out)?;
    Ok(out)
}
