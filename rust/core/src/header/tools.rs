//! The tools of a request: as the model is told of them, and as the client called them.
//!
//! A chat template knows one kind of tool, a function with a schema. So a custom tool is declared as
//! a function of one text, `input`, a search for tools as a function, and the functions of a namespace under
//! both names; what the model calls is turned back where the client is told of it (`turn::told`). Hosted tools have nobody to run them
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
    /// For more tools, with arguments: `tool_search_call`.
    Search,
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

/// The name by which a model searches for tools.
pub const SEARCH: &str = "tool_search";

/// What a search takes where the client does not say.
const SEARCH_SCHEMA: &str =
    r#"{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}"#;

/// What a search is for, where the client does not say.
const SEARCH_DESCRIPTION: &str =
    "Searches for more tools; those that are found can be called then.";

/// A list of tools.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Every tool that the client answers, in its order; those of a namespace one by one.
    pub tools: Vec<Tool>,
    /// Each offer as the Response object echoes it, compact.
    pub echoes: Vec<String>,
    /// The types of the hosted tools.
    pub left_out: Vec<String>,
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
    let Some(bytes) = bytes else { return Ok(Offered::default()) };
    let raw = json::value(bytes, "tools")?;
    if raw.get() == "null" { Ok(Offered::default()) } else { Offered::parse(raw, "tools", false) }
}

impl Offered {
    /// The tools of a JSON array at `param`. In one that `loads` them, `defer_loading` says how they came.
    ///
    /// # Errors
    /// `invalid_value`, `missing_required_parameter` or `unsupported_parameter`, naming the field.
    pub fn parse(raw: &RawValue, param: &str, loads: bool) -> Result<Self> {
        let mut offered = Self::default();
        for (index, raw) in json::array(raw, param)?.into_iter().enumerate() {
            let param = format!("{param}[{index}]");
            let members = json::object(raw, &param)?;
            let tool_type = members.required("type", &param)?;
            if tool_type == "namespace" {
                let echo = offered.namespace(&members, &param, loads)?;
                offered.echoes.push(echo);
            } else if HOSTED.contains(&tool_type.as_ref()) {
                offered.left_out.push(tool_type.into_owned());
            } else {
                let (tool, echo) = if tool_type == SEARCH {
                    search(&members, &param)?
                } else {
                    one(&members, None, &param, loads)?
                };
                offered.add(tool, &param)?;
                offered.echoes.push(echo);
            }
        }
        Ok(offered)
    }

    /// The tools as a model is told of those that it has found: as a JSON array.
    #[must_use]
    pub fn declarations(&self) -> String {
        let declarations: Vec<&str> =
            self.tools.iter().map(|tool| tool.declaration.as_str()).collect();
        format!("[{}]", declarations.join(", "))
    }

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
    fn namespace(&mut self, members: &Members<'_>, param: &str, loads: bool) -> Result<String> {
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
            let (tool, echo) = one(&json::object(raw, &param)?, namespace, &param, loads)?;
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
    loads: bool,
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
        if members.is_true(option) && !(loads && option == "defer_loading") {
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
        ToolKind::Custom | ToolKind::Search => {
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

/// The search that a client executes, and its echo.
fn search(members: &Members<'_>, param: &str) -> Result<(Tool, String)> {
    let execution = members.string("execution", param)?;
    if execution.as_deref() != Some("client") {
        return Err(Error::unsupported(
            format!("{param}.execution"),
            "Searches for tools are not executed by this server yet: 'execution' must be 'client'.",
        ));
    }
    let description = members.string("description", param)?;
    let schema = parameters(members, param)?;
    let mut echo = String::from(r#"{"type":"tool_search","execution":"client","description":"#);
    write_optional(description.as_deref(), &mut echo);
    echo.push_str(r#","parameters":"#);
    echo.push_str(schema.as_deref().unwrap_or("null"));
    echo.push('}');
    let description = description.map_or_else(|| SEARCH_DESCRIPTION.to_owned(), Cow::into_owned);
    let schema = schema.unwrap_or_else(|| SEARCH_SCHEMA.to_owned());
    let tool = Tool {
        name: SEARCH.to_owned(),
        own_name: SEARCH.to_owned(),
        namespace: None,
        kind: ToolKind::Search,
        declaration: declare(SEARCH, Some(&description), Some(&schema), param)?,
        description: Some(description),
        schema: Some(schema),
    };
    Ok((tool, echo))
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
    let given = members.get("parameters").filter(|raw| raw.get() != "null");
    let Some(raw) = given else { return Ok(None) };
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
