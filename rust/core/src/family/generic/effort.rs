//! How much a model thinks, as far as its template can tell it.

use serde_json::Value;

use super::template::{Given, Template};
use super::ways::probe_tools;
use crate::error::{Error, Result};
use crate::header::EFFORTS;

/// The words of models whose template prints any word: gpt-oss.
const TRAINED: [&str; 3] = ["low", "medium", "high"];
/// A word that no template knows.
const NONSENSE: &str = "probe_effort";

/// The API's words for how much is said.
const VERBOSITIES: [&str; 3] = ["low", "medium", "high"];

/// Which of them `template` knows, by what it prints for `hello`.
pub(super) fn verbosities(template: &Template, hello: &Value) -> Vec<&'static str> {
    let print = |verbosity| {
        template.probe(hello, None, &Given { verbosity, generate: true, ..Given::default() }).ok()
    };
    let printed = VERBOSITIES.map(|word| (word, print(Some(word))));
    let untold = print(None);
    let is_told = printed.iter().any(|(_, text)| text.is_some() && *text != untold);
    let taken = printed.into_iter().filter(|(_, text)| is_told && text.is_some());
    taken.map(|(word, _)| word).collect()
}

/// What a template does with an effort that it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unknown {
    /// Refuses it, or prints it: the nearest known one is given.
    Nearest,
    /// Thinks as without one.
    Default,
}

/// A template's knobs for thinking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effort {
    /// Whether the model thinks when nobody says anything about it.
    pub(super) thinks: bool,
    /// Whether it can be told not to.
    rests: bool,
    /// The efforts that the template knows.
    known: Vec<&'static str>,
    unknown: Unknown,
}

impl Effort {
    /// Asks `template` by what it prints for `hello`.
    pub(super) fn ask(template: &Template, hello: &Value) -> Self {
        let print = |thinking: Option<bool>, effort: Option<&'static str>| {
            let tools = probe_tools();
            let given = Given { thinking, effort, generate: true, ..Given::default() };
            let print = |tools| template.probe(hello, tools, &given).ok();
            print(None).zip(print(Some(&tools)))
        };
        let (plain, off, on) =
            (print(None, None), print(Some(false), None), print(Some(true), None));
        let nonsense = print(None, Some(NONSENSE));
        let printed = nonsense.as_ref().is_some_and(|(text, _)| text.contains(NONSENSE));
        let all = |words: &[&'static str], is_known: &dyn Fn(&'static str) -> bool| {
            words.iter().copied().filter(|word| is_known(word)).collect()
        };
        let (known, unknown) = if printed {
            (all(&TRAINED, &|_| true), Unknown::Nearest)
        } else if nonsense.is_none() {
            (all(&EFFORTS, &|word| print(None, Some(word)).is_some()), Unknown::Nearest)
        } else {
            (all(&EFFORTS, &|word| print(None, Some(word)) != nonsense), Unknown::Default)
        };
        Self {
            thinks: plain == on || plain != off,
            rests: off.is_some() && off != on,
            known,
            unknown,
        }
    }

    /// Whether the model is to think, and the template's word for how much; `effort` is the API's.
    ///
    /// # Errors
    /// `invalid_value` at `reasoning.effort` for a word that is none of the API's;
    /// `unsupported_parameter` for `none` where the model `always` thinks.
    pub fn resolve(
        &self,
        effort: Option<&str>,
        always: bool,
    ) -> Result<(bool, Option<&'static str>)> {
        const PARAM: &str = "reasoning.effort";
        let Some(effort) = effort else { return Ok((self.thinks, None)) };
        if effort == "none" {
            if always && !self.rests {
                let text = "This model always reasons: 'none' is not supported.";
                return Err(Error::unsupported(PARAM, text));
            }
            return Ok((false, None));
        }
        let place = |word: &str| EFFORTS.iter().position(|known| *known == word);
        let Some(wanted) = place(effort) else {
            return Err(Error::invalid_value(
                PARAM,
                format!("Invalid value. Supported values are: 'none', '{}'.", EFFORTS.join("', '")),
            ));
        };
        let at_least = |word: &&&str| place(word) >= Some(wanted);
        let word = match self.unknown {
            Unknown::Default => self.known.iter().find(|word| place(word) == Some(wanted)),
            Unknown::Nearest => self.known.iter().find(at_least).or(self.known.last()),
        };
        Ok((true, word.copied()))
    }

    /// The knobs, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let default = if self.thinks { "on" } else { "off" };
        let switch = if self.rests { "a switch" } else { "no switch" };
        let efforts = match self.known.as_slice() {
            [] => "no efforts".to_owned(),
            known => known.join(", "),
        };
        format!("{switch}, {default} by default; {efforts}")
    }
}
