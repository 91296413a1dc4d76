//! Reading `input` in one pass: what a client that sends its whole conversation makes us do anew.
//!
//! Only the plain, valid forms are read here; at anything else the answer is None, and the careful
//! reading in the parent module takes over, which knows the path of every fault. Both must read the
//! same (there is a property test).

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};

use super::{Item, Role, custom_arguments};
use crate::header::full_name;

/// Every field that any item of ours has; others are skipped.
#[derive(Deserialize)]
struct Given<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    role: Option<Cow<'a, str>>,
    content: Option<Content<'a>>,
    summary: Option<Content<'a>>,
    output: Option<Content<'a>>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    input: Option<String>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
}

/// Text, or parts of it.
enum Content<'a> {
    Text(String),
    Parts(Vec<Part<'a>>),
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    text: Option<String>,
    refusal: Option<String>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;

        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of parts")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Self::Value, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                _: A,
            ) -> Result<Self::Value, A::Error> {
                Err(A::Error::custom("an object is no content"))
            }
        }

        deserializer.deserialize_any(TextOrParts)
    }
}

impl Content<'_> {
    /// The joined text, if every part is of one of these types and has its text.
    fn text(self, allowed: &[&str]) -> Option<String> {
        let parts = match self {
            Self::Text(text) => return Some(text),
            Self::Parts(parts) => parts,
        };
        let mut joined: Option<String> = None;
        for part in parts {
            if !allowed.contains(&part.kind.as_ref()) {
                return None;
            }
            let text = if part.kind == "refusal" { part.refusal? } else { part.text? };
            match &mut joined {
                Some(joined) => joined.push_str(&text),
                None => joined = Some(text),
            }
        }
        Some(joined.unwrap_or_default())
    }
}

/// The items of an array, or None where the careful reading must have its say.
pub(super) fn read(array: &str) -> Option<Vec<Item>> {
    let given: Vec<Given<'_>> = serde_json::from_str(array).ok()?;
    given.into_iter().map(item).collect()
}

fn item(given: Given<'_>) -> Option<Item> {
    let kind = given.kind.as_deref().or(given.role.as_ref().map(|_| "message"))?;
    match kind {
        "message" => {
            let role = Role::of(given.role.as_deref()?)?;
            Some(Item::Message { role, text: given.content?.text(role.parts())? })
        }
        "reasoning" => {
            let content = match given.content {
                Some(content) => content.text(&["reasoning_text"])?,
                None => String::new(),
            };
            let summary = match given.summary {
                Some(summary) if content.is_empty() => summary.text(&["summary_text"])?,
                _ => String::new(),
            };
            Some(Item::Reasoning { text: if content.is_empty() { summary } else { content } })
        }
        "function_call" | "custom_tool_call" => {
            let name = given.name?;
            Some(Item::Call {
                call_id: given.call_id?,
                name: match given.namespace.as_deref() {
                    Some(namespace) => full_name(Some(namespace), &name).into_owned(),
                    None => name,
                },
                arguments: match kind {
                    "function_call" => given.arguments?,
                    _ => custom_arguments(&given.input?),
                },
            })
        }
        "function_call_output" | "custom_tool_call_output" => Some(Item::Output {
            call_id: given.call_id?,
            text: given.output?.text(&["input_text"])?,
        }),
        _ => None,
    }
}
