//! What stands before a conversation and is sent anew with every request: instructions, tools and
//! the choice among them.
//!
//! An unchanged header is recognised by the hash of its raw bytes and parsed once (D5).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{Error, Result, excerpt};
use crate::json::{self, Members, Style};
use crate::token::TokenId;

/// OpenAI's limit for a function's name, in characters.
const MAX_NAME: usize = 128;

/// Whether the model is to think, and the template's word for how much.
pub type Thinking = (bool, Option<&'static str>);

/// One function that the model may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// Its name: letters, digits, `_` and `-`.
    pub name: String,
    /// As a chat template prints it: the Chat Completions form, written as Python writes JSON.
    pub declaration: String,
    /// What it does, in the client's words.
    pub description: Option<String>,
    /// The JSON schema of its arguments, compact.
    pub schema: Option<String>,
    /// As the Response object echoes it, compact.
    pub echo: String,
}

/// Which tools the model may or must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model chooses.
    Auto,
    /// No call. The tools are not rendered, so that the model does not know them.
    None,
    /// At least one call, of any of these tools (indices into the header's).
    Required(Vec<usize>),
}

/// The request's `instructions`, `tools` and `tool_choice`, parsed.
#[derive(Debug)]
pub struct Header {
    /// Identifies the raw bytes that it was parsed from.
    pub key: [u8; 32],
    /// The first system message, if any.
    pub instructions: Option<String>,
    /// Every tool, in the client's order.
    pub tools: Vec<Tool>,
    /// The choice among them.
    pub choice: ToolChoice,
    /// Instructions as JSON: a string or `null`.
    pub echo_instructions: String,
    /// The tools as a JSON array.
    pub echo_tools: String,
    /// The tool choice as JSON, in the form in which it came.
    pub echo_tool_choice: String,
    /// What it was last rendered to, behind which leading texts: conversations that begin alike
    /// share those tokens, and render them once.
    rendered: Mutex<Option<Rendered>>,
    types: OnceLock<Arc<ParameterTypes>>,
}

/// Which parameters of which tools are strings, by their schemas.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ParameterTypes(HashMap<String, HashMap<String, bool>>);

impl ParameterTypes {
    /// Whether the tool's parameter is a string; None where its schema does not say.
    #[must_use]
    pub fn is_string(&self, tool: &str, parameter: &str) -> Option<bool> {
        self.0.get(tool)?.get(parameter).copied()
    }

    /// Whether there is such a tool.
    #[must_use]
    pub fn declares(&self, tool: &str) -> bool {
        self.0.contains_key(tool)
    }

    fn of(tools: &[Tool]) -> Self {
        let types = |tool: &Tool| {
            let schema: Option<Value> =
                tool.schema.as_deref().and_then(|schema| serde_json::from_str(schema).ok());
            let properties = schema.as_ref().and_then(|schema| schema.get("properties"));
            let properties = properties.and_then(Value::as_object).into_iter().flatten();
            let known = properties.filter_map(|(name, property)| {
                let kind = property.get("type")?;
                Some((name.clone(), kind == "string"))
            });
            (tool.name.clone(), known.collect())
        };
        Self(tools.iter().map(types).collect())
    }
}

/// A header's tokens, with what they were rendered behind.
#[derive(Debug)]
struct Rendered {
    leading: Vec<String>,
    given: (i64, Thinking),
    ids: Arc<[TokenId]>,
}

/// The raw JSON values of a request's header; None where the field is absent.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawHeader<'a> {
    /// A string or null.
    pub instructions: Option<&'a [u8]>,
    /// An array or null.
    pub tools: Option<&'a [u8]>,
    /// A string, an object or null.
    pub tool_choice: Option<&'a [u8]>,
}

impl RawHeader<'_> {
    /// Equal keys come from equal bytes; costs one pass of blake3 over the header (20 KB: ~10 µs).
    #[must_use]
    pub fn key(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for field in [self.instructions, self.tools, self.tool_choice] {
            let field = field.unwrap_or(b"null");
            hasher.update(&(field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
        *hasher.finalize().as_bytes()
    }
}

impl Header {
    /// Parses the header of a request.
    ///
    /// # Errors
    /// `invalid_value`, `missing_required_parameter` or `unsupported_parameter`, naming the field
    /// (`tools[2].name`).
    pub fn parse(raw: RawHeader<'_>) -> Result<Arc<Self>> {
        let instructions = match raw.instructions.map(|bytes| json::value(bytes, "instructions")) {
            None => None,
            Some(value) => match value? {
                null if null.get() == "null" => None,
                value => Some(json::string(value, "instructions")?.into_owned()),
            },
        };
        let mut echo_instructions = String::new();
        match &instructions {
            Some(text) => json::write_string(text, &mut echo_instructions),
            None => echo_instructions.push_str("null"),
        }
        let tools = parse_tools(raw.tools)?;
        let (choice, echo_tool_choice) = parse_choice(raw.tool_choice, &tools)?;
        let echoes: Vec<&str> = tools.iter().map(|tool| tool.echo.as_str()).collect();
        let echo_tools = format!("[{}]", echoes.join(","));
        Ok(Arc::new(Self {
            key: raw.key(),
            rendered: Mutex::default(),
            types: OnceLock::new(),
            instructions,
            tools,
            choice,
            echo_instructions,
            echo_tools,
            echo_tool_choice,
        }))
    }

    /// Its tokens with these leading texts and whatever else it is `given`; and whether `render` had to render them: it has not when the last ones were the same. None when `render`
    /// finds that it cannot.
    ///
    /// # Errors
    /// What `render` returns.
    pub fn tokens(
        &self,
        leading: &[&str],
        given: (i64, Thinking),
        render: impl FnOnce() -> Result<Option<Vec<TokenId>>>,
    ) -> Result<Option<(Arc<[TokenId]>, bool)>> {
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |last: &&Rendered| last.given == given && last.leading == leading;
        if let Some(last) = rendered.as_ref().filter(same) {
            return Ok(Some((Arc::clone(&last.ids), false)));
        }
        let Some(ids) = render()? else { return Ok(None) };
        let ids: Arc<[TokenId]> = ids.into();
        let leading = leading.iter().map(|&text| text.to_owned()).collect();
        *rendered = Some(Rendered { leading, given, ids: Arc::clone(&ids) });
        Ok(Some((ids, true)))
    }

    /// What its tools take, as a parser of calls wants to know it.
    #[must_use]
    pub fn parameter_types(&self) -> Arc<ParameterTypes> {
        Arc::clone(self.types.get_or_init(|| Arc::new(ParameterTypes::of(self.rendered_tools()))))
    }

    /// Bytes that it takes in memory, roughly: its texts, and as many of their tokens.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let tools: usize = self.tools.iter().map(|tool| 3 * tool.declaration.len()).sum();
        let instructions = self.instructions.as_ref().map_or(0, String::len);
        size_of::<Self>() + tools + self.echo_tools.len() + 3 * instructions
    }

    /// The tools that are rendered: none of them when none may be called.
    #[must_use]
    pub fn rendered_tools(&self) -> &[Tool] {
        if self.choice == ToolChoice::None { &[] } else { &self.tools }
    }

    /// Whether both render to the same tokens.
    #[must_use]
    pub fn renders_as(&self, other: &Self) -> bool {
        let declarations = |header: &Self| -> Vec<String> {
            header.rendered_tools().iter().map(|tool| tool.declaration.clone()).collect()
        };
        self.key == other.key
            || (self.instructions == other.instructions
                && declarations(self) == declarations(other))
    }
}

fn parse_tools(bytes: Option<&[u8]>) -> Result<Vec<Tool>> {
    let Some(bytes) = bytes else { return Ok(Vec::new()) };
    let raw = json::value(bytes, "tools")?;
    if raw.get() == "null" {
        return Ok(Vec::new());
    }
    let mut tools: Vec<Tool> = Vec::new();
    for (index, raw) in json::array(raw, "tools")?.into_iter().enumerate() {
        let param = format!("tools[{index}]");
        let tool = parse_tool(&json::object(raw, &param)?, &param)?;
        if tools.iter().any(|other| other.name == tool.name) {
            return Err(Error::invalid_value(
                format!("{param}.name"),
                format!("The tool name '{}' is used twice.", tool.name),
            ));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn parse_tool(members: &Members<'_>, param: &str) -> Result<Tool> {
    let tool_type = members.required("type", param)?;
    if tool_type != "function" {
        return Err(Error::unsupported(
            format!("{param}.type"),
            format!(
                "Tools of type '{}' are not supported by this server yet.",
                excerpt(&tool_type)
            ),
        ));
    }
    for option in ["async", "defer_loading"] {
        if members.is_true(option) {
            return Err(Error::unsupported(
                format!("{param}.{option}"),
                format!("Tools with '{option}' are not supported by this server yet."),
            ));
        }
    }
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
    let description = members.string("description", param)?;
    let parameters_param = format!("{param}.parameters");
    let parameters = members.get("parameters");
    if let Some(raw) = parameters.filter(|raw| !raw.get().starts_with('{')) {
        return Err(json::wrong_type(&parameters_param, "an object", raw));
    }
    let written = |style: Style| -> Result<Option<String>> {
        parameters.map(|raw| write_raw(raw, style, &parameters_param)).transpose()
    };

    let mut declaration = String::from(r#"{"type": "function", "function": {"name": "#);
    json::write_string(&name, &mut declaration);
    let mut echo = String::from(r#"{"type":"function","name":"#);
    json::write_string(&name, &mut echo);
    echo.push_str(r#","description":"#);
    match &description {
        Some(text) => {
            declaration.push_str(r#", "description": "#);
            json::write_string(text, &mut declaration);
            json::write_string(text, &mut echo);
        }
        None => echo.push_str("null"),
    }
    if let Some(parameters) = written(Style::Python)? {
        declaration.push_str(r#", "parameters": "#);
        declaration.push_str(&parameters);
    }
    declaration.push_str("}}");
    let schema = written(Style::Compact)?;
    echo.push_str(r#","parameters":"#);
    echo.push_str(schema.as_deref().unwrap_or("null"));
    // `strict` is accepted and echoed as what it is here: not enforced.
    echo.push_str(r#","strict":false}"#);
    let description = description.map(Cow::into_owned);
    Ok(Tool { name, declaration, description, schema, echo })
}

fn write_raw(raw: &RawValue, style: Style, param: &str) -> Result<String> {
    let mut out = String::with_capacity(raw.get().len() + raw.get().len() / 8);
    json::write(raw, style, param, &mut out)?;
    Ok(out)
}

fn parse_choice(bytes: Option<&[u8]>, tools: &[Tool]) -> Result<(ToolChoice, String)> {
    const PARAM: &str = "tool_choice";
    let auto = || (ToolChoice::Auto, r#""auto""#.to_owned());
    let Some(bytes) = bytes else { return Ok(auto()) };
    let raw = json::value(bytes, PARAM)?;
    match raw.get().as_bytes().first() {
        Some(b'n') => Ok(auto()),
        Some(b'"') => {
            let choice = match json::string(raw, PARAM)?.as_ref() {
                "auto" => ToolChoice::Auto,
                "none" => ToolChoice::None,
                "required" => required((0..tools.len()).collect(), PARAM)?,
                other => {
                    return Err(Error::invalid_value(
                        PARAM,
                        format!(
                            "Invalid value: '{}'. Supported values are: 'none', 'auto', and \
                             'required'.",
                            excerpt(other)
                        ),
                    ));
                }
            };
            Ok((choice, raw.get().to_owned()))
        }
        Some(b'{') => {
            let members = json::object(raw, PARAM)?;
            let choice = match members.required("type", PARAM)?.as_ref() {
                "function" => required(vec![named(&members, PARAM, tools)?], PARAM)?,
                "allowed_tools" => allowed_tools(&members, tools)?,
                other => {
                    return Err(Error::unsupported(
                        "tool_choice.type",
                        format!(
                            "A tool choice of type '{}' is not supported by this server yet.",
                            excerpt(other)
                        ),
                    ));
                }
            };
            Ok((choice, write_raw(raw, Style::Compact, PARAM)?))
        }
        _ => Err(json::wrong_type(PARAM, "a string or an object", raw)),
    }
}

fn allowed_tools(members: &Members<'_>, tools: &[Tool]) -> Result<ToolChoice> {
    let mode = members.required("mode", "tool_choice")?;
    if mode != "required" {
        return Err(Error::unsupported(
            "tool_choice.mode",
            format!(
                "'allowed_tools' with mode '{}' is not supported by this server yet.",
                excerpt(&mode)
            ),
        ));
    }
    let param = "tool_choice.tools";
    let raw = members.get("tools").ok_or_else(|| Error::missing_parameter(param))?;
    let mut allowed = Vec::new();
    for (index, raw) in json::array(raw, param)?.into_iter().enumerate() {
        let param = format!("{param}[{index}]");
        allowed.push(named(&json::object(raw, &param)?, &param, tools)?);
    }
    required(allowed, param)
}

fn named(members: &Members<'_>, param: &str, tools: &[Tool]) -> Result<usize> {
    let name = members.required("name", param)?;
    tools.iter().position(|tool| tool.name == name).ok_or_else(|| {
        Error::invalid_value(
            format!("{param}.name"),
            format!("Tool choice '{}' not found in 'tools' parameter.", excerpt(&name)),
        )
    })
}

fn required(tools: Vec<usize>, param: &str) -> Result<ToolChoice> {
    if tools.is_empty() {
        return Err(Error::invalid_value(
            param,
            "Tool choice 'required' must be specified with 'tools' parameter.",
        ));
    }
    Ok(ToolChoice::Required(tools))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(instructions: &str, tools: &str, choice: &str) -> Result<Arc<Header>> {
        let raw = RawHeader {
            instructions: Some(instructions.as_bytes()),
            tools: Some(tools.as_bytes()),
            tool_choice: Some(choice.as_bytes()),
        };
        Header::parse(raw)
    }

    const LS: &str = r#"[{"type":"function","name":"ls","strict":true,
        "parameters":{"type":"object","properties":{"n":{"type":"integer","maximum":1e3}}}}]"#;

    #[test]
    fn declares_and_echoes() {
        let header = parse("\"be terse\"", LS, "\"required\"").unwrap();
        assert_eq!(header.instructions.as_deref(), Some("be terse"));
        assert_eq!(
            header.tools[0].declaration,
            r#"{"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 1000.0}}}}}"#
        );
        assert_eq!(
            header.echo_tools,
            r#"[{"type":"function","name":"ls","description":null,"parameters":{"type":"object","properties":{"n":{"type":"integer","maximum":1000.0}}},"strict":false}]"#
        );
        assert_eq!(header.choice, ToolChoice::Required(vec![0]));
        assert_eq!(header.echo_tool_choice, "\"required\"");
    }

    #[test]
    fn headers_that_render_alike_are_told_from_others() {
        let raw = RawHeader { tools: Some(LS.as_bytes()), ..RawHeader::default() };
        let first = Header::parse(raw).unwrap();
        let other = parse("null", LS, "\"none\"").unwrap();
        assert!(other.rendered_tools().is_empty());
        assert!(!first.renders_as(&other));
        // Another choice among the same tools renders nothing new.
        assert!(
            first.renders_as(&parse("null", LS, r#"{"type":"function","name":"ls"}"#).unwrap())
        );
    }

    #[test]
    fn tokens_are_rendered_once_for_the_same_leading_texts() {
        let header = parse("\"a\"", LS, "null").unwrap();
        let ids = |leading: &[&str], now: i64, id: TokenId| {
            header.tokens(leading, (now, (true, None)), || Ok(Some(vec![id]))).unwrap().unwrap().0
        };
        assert_eq!(*ids(&["x"], 0, 1), [1]);
        assert_eq!(*ids(&["x"], 0, 2), [1]);
        assert_eq!(*ids(&["x", ""], 0, 3), [3]);
        assert_eq!(*ids(&["x"], 0, 4), [4]);
        assert_eq!(*ids(&["x"], 1, 5), [5]);
    }

    #[test]
    fn errors_name_the_field() {
        for (tools, choice, param) in [
            ("{}", "null", "tools"),
            ("[1]", "null", "tools[0]"),
            (r#"[{"type":"web_search"}]"#, "null", "tools[0].type"),
            (r#"[{"type":"function"}]"#, "null", "tools[0].name"),
            (r#"[{"type":"function","name":"a b"}]"#, "null", "tools[0].name"),
            (r#"[{"type":"function","name":"a","parameters":[]}]"#, "null", "tools[0].parameters"),
            (r#"[{"type":"function","name":"a","async":true}]"#, "null", "tools[0].async"),
            (
                r#"[{"type":"function","name":"a"},{"type":"function","name":"a"}]"#,
                "null",
                "tools[1].name",
            ),
            (LS, "\"maybe\"", "tool_choice"),
            (LS, "7", "tool_choice"),
            ("[]", "\"required\"", "tool_choice"),
            (LS, r#"{"type":"function","name":"rm"}"#, "tool_choice.name"),
            (LS, r#"{"type":"mcp"}"#, "tool_choice.type"),
            (LS, r#"{"type":"allowed_tools","mode":"auto","tools":[]}"#, "tool_choice.mode"),
        ] {
            let error = parse("null", tools, choice).unwrap_err();
            assert_eq!(error.param(), Some(param), "{tools} {choice}: {error}");
        }
    }
}
