//! How a template wants to be spoken to: asked once, when it is loaded, by letting it print a few
//! small conversations.
//!
//! Templates differ in what they take and refuse the rest, or worse, leave it out in silence. What
//! is found here decides how items become messages; `docs/tokens.md` lists the rules.

use serde_json::{Value, json};

use super::template::Template;

/// What a template takes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one way in which templates differ")]
pub struct Ways {
    /// Whether it prints tools, calls and outputs. Where it does not, it is given them as text.
    pub tools: bool,
    /// Whether call ids must have nine characters (Mistral).
    pub short_ids: bool,
    /// Whether it prints the arguments of a call as they are given; else it wants an object.
    pub arguments_as_text: bool,
    /// The member in which it looks for an assistant's reasoning.
    pub reasoning: Option<&'static str>,
    /// How many system messages it takes at the start.
    pub systems: Systems,
    /// Whether it takes a system message further on.
    pub late_systems: bool,
    /// Whether it takes two user messages in a row.
    pub adjacent_users: bool,
}

/// How many system messages a template takes before the first other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Systems {
    /// None: the operator speaks as a user.
    None,
    /// One: several are joined.
    One,
    /// Any number.
    Many,
}

const LONG_ID: &str = "call_0123456789abcdefABCDEFGH";
const SHORT_ID: &str = "CDEFGHIJK";
const ARGUMENTS: &str = r#"{"probe_key":  "a"}"#;

impl Ways {
    /// Asks `template`.
    #[must_use]
    pub fn ask(template: &Template) -> Self {
        let print = |messages: Value, tools: bool| {
            template.render(&messages, tools.then(probe_tools).as_ref(), false, true).ok()
        };
        let prints = |messages: Value, tools: bool, wanted: &[&str]| {
            let printed = print(messages, tools);
            printed.is_some_and(|text| wanted.iter().all(|&word| text.contains(word)))
        };
        let user = |text: &str| json!({"role": "user", "content": text});
        let system = |text: &str| json!({"role": "system", "content": text});

        let mut ways = Self {
            tools: false,
            short_ids: false,
            arguments_as_text: false,
            reasoning: None,
            systems: Systems::Many,
            late_systems: true,
            adjacent_users: true,
        };
        if !prints(json!([system("probe_system"), user("x")]), false, &["probe_system"]) {
            ways.systems = Systems::None;
        } else if !prints(
            json!([system("probe_one"), system("probe_two"), user("x")]),
            false,
            &["probe_one", "probe_two"],
        ) {
            ways.systems = Systems::One;
        }
        let answer = json!({"role": "assistant", "content": "y"});
        ways.late_systems = prints(
            json!([user("x"), answer, system("probe_late"), user("z")]),
            false,
            &["probe_late"],
        );
        ways.adjacent_users = prints(
            json!([user("probe_one"), user("probe_two")]),
            false,
            &["probe_one", "probe_two"],
        );

        if prints(json!([user("x")]), true, &["probe_tool"]) {
            let object = || json!({"probe_key": "a"});
            if print(tool_loop(LONG_ID, &object(), None, true), true).is_none() {
                ways.short_ids = print(tool_loop(SHORT_ID, &object(), None, true), true).is_some();
            }
            let id = if ways.short_ids { SHORT_ID } else { LONG_ID };
            ways.arguments_as_text =
                prints(tool_loop(id, &ARGUMENTS.into(), None, true), true, &[ARGUMENTS]);
            let given = if ways.arguments_as_text { ARGUMENTS.into() } else { object() };
            ways.tools =
                prints(tool_loop(id, &given, None, true), true, &["probe_tool", "probe_output"]);
            let keys = ["reasoning_content", "reasoning", "thinking"];
            ways.reasoning = keys.into_iter().find(|key| {
                let messages = tool_loop(id, &given, Some(key), false);
                ways.tools && prints(messages, true, &["probe_thought"])
            });
        }
        ways
    }

    /// A tool loop as this template takes it: the call that it prints shows its form.
    #[must_use]
    pub fn sample(&self, template: &Template, reasons: bool) -> Option<String> {
        let id = if self.short_ids { SHORT_ID } else { LONG_ID };
        let given =
            if self.arguments_as_text { ARGUMENTS.into() } else { json!({"probe_key": "a"}) };
        let key = self.reasoning.filter(|_| reasons);
        let messages = tool_loop(id, &given, key, false);
        template.render(&messages, Some(&probe_tools()), false, true).ok()
    }
}

fn probe_tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "probe_tool",
        "description": "probe_description",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "probe_text"}},
            "required": ["probe_key"],
        },
    }}])
}

/// A question, a call, its output and, if `goes_on`, another question.
fn tool_loop(id: &str, arguments: &Value, reasoning: Option<&str>, goes_on: bool) -> Value {
    let function = json!({"name": "probe_tool", "arguments": arguments});
    let mut call = json!({
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    });
    if let Some(key) = reasoning {
        call[key] = "probe_thought".into();
    }
    let output = json!({"role": "tool", "tool_call_id": id, "name": "probe_tool", "content": "probe_output"});
    let mut messages = vec![json!({"role": "user", "content": "x"}), call, output];
    if goes_on {
        messages.push(json!({"role": "user", "content": "y"}));
    }
    messages.into()
}
