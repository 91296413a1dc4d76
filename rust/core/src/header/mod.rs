//! What stands before a conversation and is sent anew with every request: instructions, tools and
//! the choice among them.
//!
//! An unchanged header is recognised by the hash of its raw bytes and parsed once (D5).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::Value;

use crate::error::Result;
use crate::json;
use crate::token::TokenId;

mod choice;
mod tools;

pub use self::choice::ToolChoice;
pub use self::tools::{INPUT, Offered, SEARCH, Tool, ToolKind, full_name};

/// What a template is told of how the model is to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knobs {
    /// Whether it thinks.
    pub thinking: bool,
    /// The template's word for how much.
    pub effort: Option<&'static str>,
    /// How much it says; none where the template has no such knob, or nobody turns it.
    pub verbosity: Option<&'static str>,
}

/// The API's words for effort, least first, but for `none`. Those for verbosity are among them.
pub const EFFORTS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

impl Knobs {
    /// The word that is spelled so; none for what is no word for effort or verbosity.
    #[must_use]
    pub fn word(spelled: &str) -> Option<&'static str> {
        EFFORTS.iter().find(|word| **word == spelled).copied()
    }

    /// Thinking or not, the rest as the template has it.
    #[must_use]
    pub fn thinking(thinking: bool) -> Self {
        Self { thinking, effort: None, verbosity: None }
    }
}

/// The request's `instructions`, `tools` and `tool_choice`, parsed.
#[derive(Debug)]
pub struct Header {
    /// Identifies the raw bytes that it was parsed from.
    pub key: [u8; 32],
    /// Those bytes: instructions, tools and tool choice.
    pub raw: [Option<Box<[u8]>>; 3],
    /// The first system message, if any.
    pub instructions: Option<String>,
    /// Every tool that the client answers, in its order; those of a namespace one by one. First the
    /// request's own, then those that items added, at the front of the conversation or later.
    pub tools: Vec<Tool>,
    /// How many of them are the request's, and how many the header declares.
    counts: (usize, usize),
    /// The types of the hosted tools, which nobody here runs: they are neither rendered nor echoed.
    pub left_out: Vec<String>,
    /// The choice among them.
    pub choice: ToolChoice,
    /// Instructions as JSON: a string or `null`.
    pub echo_instructions: String,
    /// The tools as a JSON array.
    pub echo_tools: String,
    /// The tool choice as JSON, in the form in which it came.
    pub echo_tool_choice: String,
    /// What it was last rendered to, with which first texts: conversations that begin alike share
    /// those tokens, and render them once.
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

/// A header's tokens, with what they were rendered from.
#[derive(Debug)]
struct Rendered {
    first: Vec<String>,
    asks: bool,
    given: (i64, Knobs),
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

/// Tools that came as items (`additional_tools`, `tool_search_output`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Added {
    /// At the front of the conversation: the header declares them.
    pub front: Vec<Tool>,
    /// Later: the item itself tells the model of them.
    pub loaded: Vec<Tool>,
    /// The types of the hosted ones among all these.
    pub left_out: Vec<String>,
}

impl Added {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.front.is_empty() && self.loaded.is_empty() && self.left_out.is_empty()
    }

    /// With `more` behind these; what has the name of an earlier one stands in its place.
    fn and(mut self, more: &Self) -> Self {
        let add = |tools: &mut Vec<Tool>, more: &[Tool]| {
            for tool in more {
                match tools.iter_mut().find(|known| known.name == tool.name) {
                    Some(known) => known.clone_from(tool),
                    None => tools.push(tool.clone()),
                }
            }
        };
        add(&mut self.front, &more.front);
        add(&mut self.loaded, &more.loaded);
        self.left_out.extend(more.left_out.iter().cloned());
        self
    }
}

impl Header {
    /// Parses the header of a request.
    ///
    /// # Errors
    /// `invalid_value`, `missing_required_parameter` or `unsupported_parameter`, naming the field
    /// (`tools[2].name`).
    pub fn parse(raw: RawHeader<'_>) -> Result<Arc<Self>> {
        Self::parse_with(raw, None, &Added::default())
    }

    /// The same behind a conversation whose header was `before`, with what items have `added` since.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_with(
        raw: RawHeader<'_>,
        before: Option<&Self>,
        added: &Added,
    ) -> Result<Arc<Self>> {
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
        let Offered { mut tools, echoes, mut left_out } = tools::parse(raw.tools)?;
        let Added { front, loaded, left_out: more } =
            before.map(Self::added).unwrap_or_default().and(added);
        let offered = tools.len();
        tools.extend(front);
        let counts = (offered, tools.len());
        tools.extend(loaded);
        left_out.extend(more);
        let (choice, echo_tool_choice) = choice::parse(raw.tool_choice, &tools)?;
        let echo_tools = format!("[{}]", echoes.join(","));
        Ok(Arc::new(Self {
            key: raw.key(),
            raw: [raw.instructions, raw.tools, raw.tool_choice].map(|field| field.map(Box::from)),
            rendered: Mutex::default(),
            types: OnceLock::new(),
            instructions,
            tools,
            counts,
            left_out,
            choice,
            echo_instructions,
            echo_tools,
            echo_tool_choice,
        }))
    }

    /// The tools that came as items so far.
    #[must_use]
    pub fn added(&self) -> Added {
        let (offered, declared) = self.counts;
        let part = |range| self.tools.get(range).map(<[Tool]>::to_vec).unwrap_or_default();
        let (front, loaded) = (part(offered..declared), part(declared..self.tools.len()));
        Added { front, loaded, left_out: Vec::new() }
    }

    /// Whether none of its tools came as an item.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.counts.0 == self.tools.len()
    }

    /// Its tokens with these first texts, the last of which `asks` or is the operator's like the
    /// others, and whatever else it is `given`; and whether `render` had to render them: it has not when
    /// the last ones were the same. None when `render` finds that it cannot.
    ///
    /// # Errors
    /// What `render` returns.
    pub fn tokens(
        &self,
        (first, asks): (&[&str], bool),
        given: (i64, Knobs),
        render: impl FnOnce() -> Result<Option<Vec<TokenId>>>,
    ) -> Result<Option<(Arc<[TokenId]>, bool)>> {
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |last: &&Rendered| last.given == given && last.asks == asks && last.first == first;
        if let Some(last) = rendered.as_ref().filter(same) {
            return Ok(Some((Arc::clone(&last.ids), false)));
        }
        let Some(ids) = render()? else { return Ok(None) };
        let ids: Arc<[TokenId]> = ids.into();
        let first = first.iter().map(|&text| text.to_owned()).collect();
        *rendered = Some(Rendered { first, asks, given, ids: Arc::clone(&ids) });
        Ok(Some((ids, true)))
    }

    /// Instructions, tools and tool choice, as JSON.
    #[must_use]
    pub fn echo(&self) -> [&str; 3] {
        [&self.echo_instructions, &self.echo_tools, &self.echo_tool_choice]
    }

    /// What its tools take, as a parser of calls wants to know it.
    #[must_use]
    pub fn parameter_types(&self) -> Arc<ParameterTypes> {
        Arc::clone(self.types.get_or_init(|| Arc::new(ParameterTypes::of(self.callable_tools()))))
    }

    /// Bytes that it takes in memory, roughly: its texts, and as many of their tokens.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let tools: usize = self.tools.iter().map(|tool| 3 * tool.declaration.len()).sum();
        let instructions = self.instructions.as_ref().map_or(0, String::len);
        let raw: usize = self.raw.iter().flatten().map(|field| field.len()).sum();
        size_of::<Self>() + raw + tools + self.echo_tools.len() + 3 * instructions
    }

    /// The tools that may be called.
    #[must_use]
    pub fn callable_tools(&self) -> &[Tool] {
        if self.choice == ToolChoice::None { &[] } else { &self.tools }
    }

    /// Those of them that the header declares.
    #[must_use]
    pub fn rendered_tools(&self) -> &[Tool] {
        let callable = self.callable_tools();
        callable.get(..self.counts.1).unwrap_or(callable)
    }

    /// The tool that the model calls by this name: the newest.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().rfind(|tool| tool.name == name)
    }

    /// Whether both render to the same tokens.
    #[must_use]
    pub fn renders_as(&self, other: &Self) -> bool {
        let declarations = |header: &Self| -> Vec<String> {
            header.rendered_tools().iter().map(|tool| tool.declaration.clone()).collect()
        };
        (self.key == other.key && self.is_plain() && other.is_plain())
            || (self.instructions == other.instructions
                && declarations(self) == declarations(other))
    }
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
    fn a_custom_tool_is_declared_as_a_function_of_one_text() {
        let tools = r#"[{"type":"custom","name":"patch","description":"Edit.",
            "format":{"type":"grammar","syntax":"lark","definition":"start: /x+/"}}]"#;
        let header = parse("null", tools, r#"{"type":"custom","name":"patch"}"#).unwrap();
        assert_eq!(header.choice, ToolChoice::Required(vec![0]));
        let declared: Value = serde_json::from_str(&header.tools[0].declaration).unwrap();
        let function = &declared["function"];
        assert_eq!(function["name"], "patch");
        assert_eq!(function["parameters"]["required"], serde_json::json!(["input"]));
        assert!(function["description"].as_str().unwrap().contains("start: /x+/"));
        // What is not enforced is not echoed as if it were.
        assert_eq!(
            header.echo_tools,
            r#"[{"type":"custom","name":"patch","description":"Edit.","format":{"type":"text"}}]"#
        );
    }

    #[test]
    fn the_tools_of_a_namespace_are_called_by_its_name_and_theirs() {
        let tools = r#"[{"type":"namespace","name":"crm","description":"Customers.","tools":[
            {"type":"function","name":"find"},{"type":"custom","name":"sql"}]},{"type":"web_search"}]"#;
        let choice = r#"{"type":"function","namespace":"crm","name":"find"}"#;
        let header = parse("null", tools, choice).unwrap();
        assert_eq!(header.choice, ToolChoice::Required(vec![0]));
        let find = header.tool("crm__find").unwrap();
        assert_eq!((find.namespace.as_deref(), find.own_name.as_str()), (Some("crm"), "find"));
        assert_eq!(find.description.as_deref(), Some("Customers."));
        assert_eq!(header.tool("crm__sql").unwrap().kind, ToolKind::Custom);
        assert_eq!(header.left_out, ["web_search"]);
        let echoed: Value = serde_json::from_str(&header.echo_tools).unwrap();
        assert_eq!(echoed.as_array().unwrap().len(), 1);
        assert_eq!(echoed[0]["tools"][1]["name"], "sql");
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
    fn tokens_are_rendered_once_for_the_same_first_texts() {
        let header = parse("\"a\"", LS, "null").unwrap();
        let ids = |first: &[&str], asks: bool, now: i64, id: TokenId| {
            let render = || Ok(Some(vec![id]));
            header.tokens((first, asks), (now, Knobs::thinking(true)), render).unwrap().unwrap().0
        };
        assert_eq!(*ids(&["x"], false, 0, 1), [1]);
        assert_eq!(*ids(&["x"], false, 0, 2), [1]);
        assert_eq!(*ids(&["x", ""], false, 0, 3), [3]);
        assert_eq!(*ids(&["x"], false, 0, 4), [4]);
        assert_eq!(*ids(&["x"], false, 1, 5), [5]);
        assert_eq!(*ids(&["x"], true, 1, 6), [6]);
    }

    #[test]
    fn errors_name_the_field() {
        for (tools, choice, param) in [
            ("{}", "null", "tools"),
            ("[1]", "null", "tools[0]"),
            (r#"[{"type":"shell"}]"#, "null", "tools[0].type"),
            (
                r#"[{"type":"custom","name":"a","format":{"type":"xml"}}]"#,
                "null",
                "tools[0].format.type",
            ),
            (
                r#"[{"type":"custom","name":"a","format":{"type":"grammar","syntax":"bnf","definition":""}}]"#,
                "null",
                "tools[0].format.syntax",
            ),
            (r#"[{"type":"namespace","name":"a","tools":[]}]"#, "null", "tools[0].tools"),
            (
                r#"[{"type":"namespace","name":"a","tools":[{"type":"mcp"}]}]"#,
                "null",
                "tools[0].tools[0].type",
            ),
            (
                r#"[{"type":"function","name":"a__b"},
                    {"type":"namespace","name":"a","tools":[{"type":"function","name":"b"}]}]"#,
                "null",
                "tools[1].tools[0].name",
            ),
            (r#"[{"type":"web_search"}]"#, r#"{"type":"web_search"}"#, "tool_choice.type"),
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
