//! A chat template as the model ships it, run by minijinja.
//!
//! Today it judges: a native renderer serves a template only after it has printed the same text
//! for every probe conversation (D6). It is not on any turn's path.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error as TemplateError, ErrorKind};
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::json::{self, Style};

/// Instructions that one render may take: 40 times what the largest known template needs for a
/// 200-message chat. A hostile template stops here, not after minutes
/// (vllm-project/vllm#52025).
const FUEL: u64 = 20_000_000;

/// A compiled chat template with the names that Hugging Face gives it.
pub struct Template {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl Template {
    /// Compiles `text`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] when it is no template.
    pub fn new(text: &str, bos_token: &str, eos_token: &str) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| {
            Error::invariant("the syntax of chat templates is refused").with_source(error)
        })?);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<Value, TemplateError> {
                Err(TemplateError::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_template_owned("chat", text.to_owned()).map_err(|error| {
            Error::profile("The chat template does not compile").with_source(error)
        })?;
        Ok(Self { environment, bos_token: bos_token.to_owned(), eos_token: eos_token.to_owned() })
    }

    /// What the template prints. `tools` none means that the name is not defined in it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`] when the template refuses the conversation or fails.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        generate: bool,
        thinking: bool,
    ) -> Result<String> {
        let mut context = vec![
            ("messages", Value::from(Serde(messages))),
            ("add_generation_prompt", Value::from(generate)),
            ("bos_token", Value::from(self.bos_token.as_str())),
            ("eos_token", Value::from(self.eos_token.as_str())),
        ];
        context.extend(tools.map(|tools| ("tools", Value::from(Serde(tools)))));
        // Left undefined unless it is switched off: templates test `enable_thinking is defined`.
        if !thinking {
            context.push(("enable_thinking", Value::from(false)));
        }
        self.environment
            .get_template("chat")
            .and_then(|template| template.render(Value::from_pairs(context)))
            .map_err(|error| Error::profile("The chat template failed").with_source(error))
    }
}

/// `json.dumps(value, ensure_ascii=False)`, as Hugging Face's own filter: no HTML escapes.
#[expect(clippy::needless_pass_by_value, reason = "minijinja calls filters by value")]
fn tojson(value: &Value, options: Kwargs) -> std::result::Result<Value, TemplateError> {
    let refuse = |detail: String| TemplateError::new(ErrorKind::InvalidOperation, detail);
    // `ensure_ascii` is accepted because false is what we do; anything else is refused loudly.
    if options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false) {
        return Err(refuse("tojson(ensure_ascii=true) is not supported".into()));
    }
    options.assert_all_used()?;
    let text = serde_json::to_string(value).map_err(|error| refuse(error.to_string()))?;
    let raw: Box<RawValue> =
        RawValue::from_string(text).map_err(|error| refuse(error.to_string()))?;
    let mut out = String::new();
    json::write(&raw, Style::Python, "tojson", &mut out)
        .map_err(|error| refuse(error.to_string()))?;
    Ok(Value::from_safe_string(out))
}
