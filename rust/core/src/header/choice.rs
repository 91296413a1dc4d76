//! Which tools the model may or must call.

use super::tools::{Tool, ToolKind};
use crate::error::{Error, Result, excerpt};
use crate::json::{self, Members, Style};

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

const PARAM: &str = "tool_choice";

/// The choice, and its echo.
///
/// # Errors
/// `invalid_value`, `missing_required_parameter` or `unsupported_parameter`, naming the field.
pub(super) fn parse(bytes: Option<&[u8]>, tools: &[Tool]) -> Result<(ToolChoice, String)> {
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
                "function" | "custom" => required(vec![named(&members, PARAM, tools)?], PARAM)?,
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
            let mut echo = String::with_capacity(raw.get().len());
            json::write(raw, Style::Compact, PARAM, &mut echo)?;
            Ok((choice, echo))
        }
        _ => Err(json::wrong_type(PARAM, "a string or an object", raw)),
    }
}

fn allowed_tools(members: &Members<'_>, tools: &[Tool]) -> Result<ToolChoice> {
    let mode = members.required("mode", PARAM)?;
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

/// The tool that a choice names: its type, its name, and its namespace where it has one.
fn named(members: &Members<'_>, param: &str, tools: &[Tool]) -> Result<usize> {
    let name = members.required("name", param)?;
    let namespace = members.string("namespace", param)?;
    let custom = members.string("type", param)?.as_deref() == Some("custom");
    let kind = if custom { ToolKind::Custom } else { ToolKind::Function };
    let is_it = |tool: &Tool| {
        (tool.kind == kind || tool.kind == ToolKind::Search && !custom)
            && tool.own_name == name
            && tool.namespace.as_deref() == namespace.as_deref()
    };
    tools.iter().position(is_it).ok_or_else(|| {
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
