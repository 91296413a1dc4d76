//! Mistral since its tokenizer v11: Devstral, Ministral 3.
//!
//! ```text
//! <s>[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT][AVAILABLE_TOOLS][{…}][/AVAILABLE_TOOLS]
//! [INST]{text}[/INST]{text}[TOOL_CALLS]f[ARGS]{…}[TOOL_CALLS]g[ARGS]{…}</s>
//! [TOOL_RESULTS]{output}[/TOOL_RESULTS][TOOL_RESULTS]{output}[/TOOL_RESULTS]
//! ```
//!
//! (There are no newlines.) Nothing asks the model to speak. Earlier versions print the tools before
//! the last question, and so all prompts anew with each: those are the template's.

use std::mem;

use crate::error::{Error, Result};
use crate::family::generic::{Generic, Ways};
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::CallForm;
use crate::family::output::{OutputFormat, OutputReader, Start};
use crate::family::render::{Group, Message, Sink};
use crate::family::{
    Answer, Before, Calls, End, Family, Format, OutputParser, Shown, mint_call_id,
};
use crate::header::Header;
use crate::item::Role;
use crate::token::TokenId;
use crate::tokenizer::Vocabulary;

/// The renderer. See the module.
#[derive(Debug, Clone)]
pub struct Mistral {
    user: Markers,
    system: Markers,
    output: Markers,
    call: Marker,
    arguments: Marker,
    close: Marker,
    close_id: TokenId,
    think: Option<Markers>,
    form: Option<CallForm>,
    ways: Ways,
}

impl Mistral {
    /// The renderer for the template, as far as the vocabulary tells; the probe decides.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Profile`], naming the token that is missing.
    pub fn detect(generic: &Generic, vocabulary: &Vocabulary) -> Result<Self> {
        let token = |content: &str| Marker::token(content, vocabulary);
        let pair =
            |name: &str| Markers::tokens(&format!("[{name}]"), &format!("[/{name}]"), vocabulary);
        let close_id = generic.stop_ids().first().copied();
        let close = close_id.and_then(|id| vocabulary.added.iter().find(|token| token.id == id));
        let close = close.ok_or_else(|| Error::profile("no token ends an answer"))?;
        Ok(Self {
            user: pair("INST")?,
            system: pair("SYSTEM_PROMPT")?,
            output: pair("TOOL_RESULTS")?,
            call: token("[TOOL_CALLS]")?,
            arguments: token("[ARGS]")?,
            close: Marker::Token(close.id, close.content.clone()),
            close_id: close.id,
            think: pair("THINK").ok(),
            form: generic.call().cloned(),
            ways: generic.ways().clone(),
        })
    }

    fn said(&self, text: &str, calls: &[(String, String)], sink: &mut dyn Sink) {
        sink.text(text);
        for (name, arguments) in calls {
            sink.marker(&self.call);
            sink.text(name);
            sink.marker(&self.arguments);
            sink.text(arguments);
        }
        sink.marker(&self.close);
    }

    /// Whether questions and answers take turns, as some templates demand: answers that call do not
    /// count.
    fn takes_turns(&self, groups: &[Group], before: Before) -> bool {
        let mut waits = before.waits;
        self.ways.adjacent_users
            || groups.iter().all(|group| match &group.message {
                Message::Plain { role: Role::User, .. } => !mem::replace(&mut waits, true),
                Message::Assistant { text, calls, .. } if calls.is_empty() => {
                    let says = text.as_ref().is_some_and(|text| !text.is_empty());
                    mem::replace(&mut waits, false) && says
                }
                _ => true,
            })
    }
}

impl Format for Mistral {
    fn name(&self) -> &'static str {
        "mistral"
    }

    fn stop_ids(&self) -> Vec<TokenId> {
        vec![self.close_id]
    }

    fn parser(&self, _thinking: bool, calls: Calls, header: &Header) -> Box<dyn OutputParser> {
        let format = OutputFormat::of_turn(self.think.as_ref(), self.form.as_ref(), calls, header);
        Box::new(OutputReader::new(format, Start::Text, Box::new(mint_call_id)))
    }

    fn describe_calls(&self) -> Option<String> {
        self.form.as_ref().map(CallForm::describe)
    }

    fn drops_reasoning(&self) -> bool {
        false
    }

    fn answer(&self, answer: &Answer, sink: &mut dyn Sink) -> Result<()> {
        if let Some(reasoning) = &answer.reasoning {
            let unsupported = || {
                Error::unsupported("reasoning", "This model's vocabulary has no reasoning markers.")
            };
            sink.between(self.think.as_ref().ok_or_else(unsupported)?, reasoning);
        }
        self.said(answer.text.as_deref().unwrap_or_default(), &answer.calls, sink);
        Ok(())
    }
}

impl Family for Mistral {
    fn takes(&self, groups: &[Group], before: Before) -> bool {
        // Some print `{}` for arguments that are no text at all.
        let spelled = |group: &Group| match &group.message {
            Message::Assistant { calls, .. } => calls.iter().all(|(_, raw)| !raw.is_empty()),
            _ => true,
        };
        self.ways.place(groups, before)
            && groups.iter().all(spelled)
            && self.takes_turns(groups, before)
    }

    fn message(&self, message: &Message, _shown: Shown, _before: Before, sink: &mut dyn Sink) {
        match message {
            Message::Plain { role: Role::User, text } => sink.between(&self.user, text),
            Message::Plain { text, .. } => sink.between(&self.system, text),
            Message::Assistant { text, calls, .. } => {
                self.said(text.as_deref().unwrap_or_default(), calls, sink);
            }
            Message::Outputs(outputs) => {
                for output in outputs {
                    sink.between(&self.output, &output.text);
                }
            }
        }
    }

    fn opening(&self, _before: Before, _sink: &mut dyn Sink) {}

    fn closer(&self, end: End, sink: &mut dyn Sink) {
        if let (End::Thinking, Some(think)) = (end, &self.think) {
            sink.marker(&think.close);
        }
        if end != End::Closed {
            sink.marker(&self.close);
        }
    }

    fn close_of(&self, _stop: TokenId, thinking: bool) -> Option<TokenId> {
        (!thinking).then_some(self.close_id)
    }

    fn control_ids(&self) -> Vec<TokenId> {
        let pairs = [&self.user, &self.system, &self.output];
        let ends = pairs.into_iter().flat_map(|pair| [&pair.open, &pair.close]);
        ends.chain([&self.call, &self.arguments, &self.close]).filter_map(Marker::id).collect()
    }
}
