//! How a template wants to be spoken to: asked once, when it is loaded, by letting it print a few
//! small conversations.
//!
//! Templates differ in what they take and refuse the rest, or worse, leave it out in silence. What
//! is found here decides how items become messages; `docs/tokens.md` lists the rules.

use serde_json::{Value, json};

use super::template::{Given, Template};
use crate::error::{Error, Result};
use crate::family::render::Group;
use crate::family::{Before, Last};

/// What a template takes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one way in which templates differ")]
pub struct Ways {
    /// Whether a message's content must be a list of parts (templates of models that see).
    pub parts: bool,
    /// Whether it prints tools, calls and outputs. Where it does not, it is given them as text.
    pub tools: bool,
    /// Whether it refuses a tool without a description or parameters: empty ones are given then.
    pub whole_tools: bool,
    /// Whether call ids must have nine characters (Mistral).
    pub short_ids: bool,
    /// Whether it prints a call's id where its model writes `functions.{name}:{number}`, counted over
    /// the conversation (Kimi): it is given such ids.
    pub counted_ids: bool,
    /// Whether it prints the arguments of a call as they are given, and an object as JSON; else it wants
    /// an object.
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
const COUNTED_ID: &str = "functions.probe_tool:0";
const ARGUMENTS: &str = r#"{"probe_key":  "a"}"#;

impl Ways {
    /// Asks `template`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] when it does not even print a user's message.
    pub fn ask(template: &Template) -> Result<Self> {
        let mut ways = Self {
            parts: false,
            tools: false,
            whole_tools: false,
            short_ids: false,
            counted_ids: false,
            arguments_as_text: false,
            reasoning: None,
            systems: Systems::Many,
            late_systems: true,
            adjacent_users: true,
        };
        let hello = [say("user", "probe_user")];
        if !ways.prints(template, &hello, false, &["probe_user"]) {
            ways.parts = true;
            if !ways.prints(template, &hello, false, &["probe_user"]) {
                let failed = template.render(&json!(hello), None, false, true).err();
                let silent = || Error::profile("The chat template does not print a user's message");
                return Err(failed.unwrap_or_else(silent));
            }
        }
        let one = say("system", "probe_one");
        let two = say("system", "probe_two");
        let prints =
            |messages: &[Value], wanted: &[&str]| ways.prints(template, messages, false, wanted);
        let systems = if !prints(&[one.clone(), say("user", "x")], &["probe_one"]) {
            Systems::None
        } else if prints(&[one, two, say("user", "x")], &["probe_one", "probe_two"]) {
            Systems::Many
        } else {
            Systems::One
        };
        let late = [
            say("user", "x"),
            say("assistant", "y"),
            say("system", "probe_late"),
            say("user", "z"),
        ];
        let late_systems = prints(&late, &["probe_late"]);
        let adjacent = [say("user", "probe_one"), say("user", "probe_two")];
        let adjacent_users = prints(&adjacent, &["probe_one", "probe_two"]);
        let ways = Self { systems, late_systems, adjacent_users, ..ways };
        Ok(ways.asked_for_tools(template))
    }

    fn asked_for_tools(mut self, template: &Template) -> Self {
        if !self.prints(template, &[say("user", "x")], true, &["probe_tool"]) {
            return self;
        }
        let bare = json!([{"type": "function", "function": {"name": "probe_tool"}}]);
        let hello = self.given(&[say("user", "x")]);
        self.whole_tools = template.render(&hello, Some(&bare), false, true).is_err();
        let object = json!({"probe_key": "a"});
        let takes = |id: &str| self.prints(template, &tool_loop(id, &object, None), true, &[]);
        self.short_ids = !takes(LONG_ID) && takes(SHORT_ID);
        let counted = format!("<|tool_call_begin|>{LONG_ID}<|tool_call_argument_begin|>");
        self.counted_ids =
            self.prints(template, &tool_loop(LONG_ID, &object, None), true, &[&counted]);
        let text = tool_loop(self.id(), &ARGUMENTS.into(), None);
        self.arguments_as_text = self.prints(template, &text, true, &[ARGUMENTS])
            && self.object_is_json(template) != Some(false);
        let both = ["probe_tool", "probe_output"];
        self.tools = self.prints(template, &self.tool_loop(None), true, &both);
        self.whole_tools &= self.tools;
        if self.tools {
            let keys = ["reasoning_content", "reasoning", "thinking"];
            self.reasoning = keys.into_iter().find(|key| {
                let thought = self.tool_loop(Some(key));
                let told = || {
                    let given = self.given(&thought);
                    let told = Given { thinking: Some(true), generate: true, ..Given::default() };
                    template.probe(&given, Some(&probe_tools()), &told).ok()
                };
                self.prints(template, &thought, true, &["probe_thought"])
                    || told().is_some_and(|text| text.contains("probe_thought"))
            });
        }
        self
    }

    /// Whether the template prints arguments that are an object as JSON; None where it prints none.
    fn object_is_json(&self, template: &Template) -> Option<bool> {
        let object = json!({"probe_key": "probe_argument"});
        let given = self.given(&tool_loop(self.id(), &object, None));
        let printed = template.render(&given, Some(&probe_tools()), false, true).ok()?;
        let (_, behind) = printed.split_once("probe_argument")?.0.rsplit_once("probe_key")?;
        // As a member's name, that in a string, or that as Python shows a dictionary.
        Some(["\":", "\\\":", "':"].iter().any(|colon| behind.starts_with(colon)))
    }

    /// Whether the template takes `messages` and prints all that is `wanted`.
    fn prints(
        &self,
        template: &Template,
        messages: &[Value],
        tools: bool,
        wanted: &[&str],
    ) -> bool {
        let tools = tools.then(probe_tools);
        let printed = template.render(&self.given(messages), tools.as_ref(), false, true);
        printed.is_ok_and(|text| wanted.iter().all(|&word| text.contains(word)))
    }

    /// Whether the template has a place for each of these messages where it stands, so that none must be
    /// put into another.
    #[must_use]
    pub fn place(&self, groups: &[Group], before: Before) -> bool {
        let mut last = before.last;
        groups.iter().all(|group| {
            let after = before.and(&group.message, false).last;
            let has_place = match after {
                Last::Operator => self.late_systems && self.systems != Systems::None,
                Last::User => self.adjacent_users || last != Last::User,
                _ => true,
            };
            last = after;
            has_place
        })
    }

    /// Messages whose content is in the form that the template wants.
    #[must_use]
    pub fn given(&self, messages: &[Value]) -> Value {
        let given = messages.iter().cloned().map(|mut message| {
            if self.parts {
                let text = message["content"].take();
                message["content"] = match text.as_str() {
                    Some("") => json!([]),
                    _ => json!([{"type": "text", "text": text}]),
                };
            }
            message
        });
        given.collect()
    }

    /// The id of a probe's call with this number.
    pub(super) fn probe_id(&self, number: usize) -> String {
        let id = self.id();
        format!("{}{number}", &id[..id.len() - 1])
    }

    fn id(&self) -> &'static str {
        match (self.short_ids, self.counted_ids) {
            (true, _) => SHORT_ID,
            (_, true) => COUNTED_ID,
            _ => LONG_ID,
        }
    }

    fn tool_loop(&self, reasoning: Option<&str>) -> Vec<Value> {
        let object = || json!({"probe_key": "a"});
        let given = if self.arguments_as_text { ARGUMENTS.into() } else { object() };
        tool_loop(self.id(), &given, reasoning)
    }

    /// A tool loop as this template prints it: the call in it shows its form. `text` stands beside the
    /// call.
    #[must_use]
    pub fn sample(&self, template: &Template, reasons: bool, text: &str) -> Option<String> {
        let mut messages = self.tool_loop(self.reasoning.filter(|_| reasons));
        messages[1]["content"] = text.into();
        let arguments = &mut messages[1]["tool_calls"][0]["function"]["arguments"];
        if arguments.is_object() {
            arguments["probe_flag"] = true.into();
        }
        template.render(&self.given(&messages), Some(&probe_tools()), false, true).ok()
    }
}

/// A message of a probe.
#[must_use]
pub(super) fn say(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

pub(super) fn probe_tools() -> Value {
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

/// A question, a call, and its output.
fn tool_loop(id: &str, arguments: &Value, reasoning: Option<&str>) -> Vec<Value> {
    let mut call = say("assistant", "");
    let function = json!({"name": "probe_tool", "arguments": arguments});
    call["tool_calls"] = json!([{"id": id, "type": "function", "function": function}]);
    if let Some(key) = reasoning {
        call[key] = "probe_thought".into();
    }
    let mut output = say("tool", "probe_output");
    output["tool_call_id"] = id.into();
    output["name"] = "probe_tool".into();
    vec![say("user", "x"), call, output]
}
