//! Reads what a model says: reasoning between markers, text, and calls between markers.
//!
//! ```text
//! <think>\n{reasoning}\n</think>\n\n{text}\n<tool_call>\n{"name": …, "arguments": …}\n</tool_call>
//! ```
//!
//! That is Qwen3's form, in whose words the rest is told. Which markers there are, and what stands
//! in a call, is a [`form::CallForm`]; [`body`] reads it.
//!
//! Where the vocabulary has a marker as a token, only the token is the marker (D2); where it has
//! not, the letters are. The same machine serves both: markers come to it from [`added`] or from
//! the scan of the text, and everything else is a character.
//!
//! | state       | `<think>`   | `</think>` | `<tool_call>` | `</tool_call>`      | a character |
//! |-------------|-------------|------------|---------------|---------------------|-------------|
//! | `Reasoning` | nothing     | → `Text`   | → `Call` (1)  | is reasoning        | is reasoning |
//! | `Text`      | → `Reasoning` | nothing  | → `Call`      | is text, or surplus | is text |
//! | `Call`      | (2)         | (2)        | (2)           | (2)                 | is the body's |
//! | `Tail`      | as in `Text` | as in `Text` | → `Call`   | → `Text`            | held, or → `Text` (3) |
//!
//! A call *begins* when its name is complete. One that ends or fails before that was none: all of
//! it, the marker included, goes back to where it stood, reasoning or text. One that has begun
//! leads to `Tail`, which waits for `</tool_call>`; its arguments are what was streamed, or `{}`.
//!
//! 1. A token opens a call anywhere in reasoning: models forget `</think>`. Letters do so only
//!    while the reasoning is blank: a grammar that forces a call forces it first, and later they
//!    are a model thinking aloud about calls.
//! 2. Ends the call, whole or not, and then acts as in the state that this leads to.
//! 3. Blanks and closing brackets are held and, if nothing else comes, dropped: models miscount
//!    braces. Anything else is text, with what was held.
//!
//! Inside a JSON string letters and tokens that spell a marker are content: a model may write a
//! file about tool calls. A *special* token never is, so there it still acts as the marker.
//!
//! **Newlines.** Those the template writes around reasoning, text and calls are not in the deltas:
//! behind `<think>`, before and behind `</think>`, before `<tool_call>`, behind `</tool_call>`. So
//! newlines are held back until it is known what follows. A blank reasoning or message is none. The
//! last message keeps its trailing newlines.
//!
//! **Cost.** Constant per character and no look back. What is held: newlines, the beginning of a
//! marker in letters, and a call's body up to its name (it may turn out to be text, and arguments
//! may precede the name).
//!
//! [`added`]: OutputParser::added

mod body;
pub mod form;
pub mod harmony;
mod parser;
mod place;
mod prose;
pub mod xtml;

use std::mem;
use std::sync::Arc;

use self::body::{Body, Progress, is_blank};
pub use self::form::OutputFormat;
use self::form::{CallForm, Next};
use self::place::{Block, Call, Closer, Mark, Met, Place};
use self::prose::{Kind, Prose, append};
use super::marker::Marker;
use super::{Delta, OutputParser};
use crate::header::ParameterTypes;
use crate::token::TokenId;

/// What the generation prompt left open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// It ends in the marker that opens reasoning.
    Reasoning,
    /// Nothing, or reasoning that it closed again.
    Text,
    /// The same, where the newlines before what is said are the template's.
    Line,
}

/// Makes the id of each call, in order. Injected, so that tests can foresee ids and production can
/// draw them where nobody can guess them (`call_` and 24 random characters).
pub type MintCallId = Box<dyn FnMut() -> String + Send>;

/// The parser. See the module for its rules.
pub struct OutputReader {
    tokens: Vec<(TokenId, Mark)>,
    letters: Vec<(String, Mark)>,
    form: Option<CallForm>,
    tools: Arc<ParameterTypes>,
    mint: MintCallId,
    place: Place,
    /// Letters that begin a marker `place` listens for. Empty while a JSON string is open, and
    /// `place` does not change while it is not empty.
    partial: String,
    reasoning: Prose,
    text: Prose,
    first: Block,
    closer: Closer,
    /// Whether newlines are the model's own, and what stands before its calls; see
    /// [`keeping_newlines`](Self::keeping_newlines).
    exact: Option<&'static str>,
    /// See [`labelled`](Self::labelled).
    label: String,
    /// Of the last call that ended.
    incomplete: bool,
    /// Calls whose closing marker has come.
    closed: usize,
}

impl OutputReader {
    /// A parser for one turn's output. Without reasoning markers nothing could end reasoning, so
    /// such a format starts in text whatever `start` says.
    #[must_use]
    pub fn new(format: OutputFormat, start: Start, mint: MintCallId) -> Self {
        let start = match start {
            Start::Reasoning if format.think.is_none() => Start::Text,
            start => start,
        };
        let mut tokens = Vec::new();
        let mut letters = Vec::new();
        let mut learn = |marker: &Marker, mark: Mark, also_letters: bool| {
            tokens.extend(marker.id().map(|id| (id, mark)));
            if marker.id().is_none() || also_letters {
                letters.push((marker.content().to_owned(), mark));
            }
        };
        if let Some(think) = format.think {
            learn(&think.open, Mark::ThinkOpen, false);
            learn(&think.close, Mark::ThinkClose, false);
        }
        if let Some(call) = &format.call {
            learn(&call.open, Mark::CallOpen, format.text_markers);
            if let Some(close) = &call.close {
                learn(close, Mark::CallClose, format.text_markers);
            }
            for around in &call.around {
                learn(around, Mark::Around, format.text_markers);
            }
            let beginnings = call.beginnings().iter().filter(|&text| *text != call.open.content());
            letters.extend(beginnings.map(|&text| (text.to_owned(), Mark::CallOpen)));
        }
        let (place, first) = match start {
            Start::Reasoning => (Place::Reasoning, Block::From(0)),
            Start::Text | Start::Line => (Place::Text, Block::None),
        };
        let text = match start {
            Start::Line => Prose::after_scaffold(Kind::Text),
            Start::Reasoning | Start::Text => Prose::at_start(Kind::Text),
        };
        Self {
            tokens,
            letters,
            form: format.call,
            tools: format.tools,
            mint,
            place,
            partial: String::new(),
            reasoning: Prose::after_scaffold(Kind::Reasoning),
            text,
            first,
            closer: Closer::Nobodys,
            exact: None,
            label: String::new(),
            incomplete: false,
            closed: 0,
        }
    }

    /// For a format whose template writes no newlines around reasoning and text, and exactly
    /// `before_calls` before calls: all others are in the deltas.
    #[must_use]
    pub fn keeping_newlines(mut self, before_calls: &'static str) -> Self {
        self.exact = Some(before_calls);
        self.reasoning = Prose::at_start(Kind::Reasoning);
        self
    }

    /// For a format in which reasoning has a label behind the marker that opens it.
    #[must_use]
    pub fn labelled(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// What stands behind a marker of reasoning.
    fn prose(&self, kind: Kind) -> Prose {
        match self.exact {
            Some(_) => Prose::at_start(kind),
            None => Prose::after_scaffold(kind),
        }
    }

    fn in_string(&self) -> bool {
        matches!(&self.place, Place::Call(call) if call.body.in_string())
    }

    /// Whether letters that spell `mark` are it, here. What `Call` and `Tail` listen for includes
    /// what any state they fall back to does, so nothing is missed on the way back.
    fn listens(&self, mark: Mark) -> bool {
        match (&self.place, mark) {
            (Place::Text, Mark::CallOpen) => !self.is_bare() || !self.text.has_begun(),
            (_, Mark::CallOpen) if self.is_bare() => false,
            (Place::Reasoning, Mark::CallOpen | Mark::Around) => !self.reasoning.has_begun(),
            (Place::Call(_) | Place::Tail(_), _)
            | (_, Mark::ThinkOpen | Mark::ThinkClose | Mark::Around) => true,
            (Place::Reasoning, Mark::CallClose) => false,
            (Place::Text, Mark::CallClose) => self.drops_closer(),
        }
    }

    /// Whether a token is scaffold of the call that is being read, or part of a marker in letters.
    fn is_part(&self, id: TokenId, content: &str) -> bool {
        let of = |form: &CallForm| form.parts.iter().any(|(part, _)| *part == id);
        let goes_on = || {
            let seen = format!("{}{content}", self.partial);
            self.letters.iter().any(|(text, _)| text.starts_with(&seen))
        };
        self.form.as_ref().is_some_and(of)
            && (matches!(self.place, Place::Call(_) | Place::Tail(_)) || goes_on())
    }

    fn is_bare(&self) -> bool {
        self.form.as_ref().is_some_and(|form| form.bare)
    }

    fn drops_closer(&self) -> bool {
        match self.closer {
            Closer::Nobodys => false,
            Closer::Owed => true,
            Closer::Surplus => !self.text.has_begun(),
        }
    }

    /// A character that may belong to a marker.
    fn feed(&mut self, c: char, out: &mut Vec<Delta>) {
        let idle = self.partial.is_empty();
        if self.in_string() || idle && !self.letters.iter().any(|(text, _)| text.starts_with(c)) {
            return self.character(c, out);
        }
        self.partial.push(c);
        let mut begins = false;
        let mut whole = None;
        for (text, mark) in &self.letters {
            if text.starts_with(&self.partial) && self.listens(*mark) {
                begins = true;
                if text.len() == self.partial.len() {
                    whole = Some(*mark);
                }
            }
        }
        if let Some(mark) = whole {
            let text = mem::take(&mut self.partial);
            self.marker(mark, Met { shown: &text, index: None }, out);
        } else if !begins {
            self.release(out);
        }
    }

    /// Gives up the marker that `partial` began: its first character is no marker's, and the rest
    /// is read anew. The rest is shorter than a marker, which bounds both time and depth.
    fn release(&mut self, out: &mut Vec<Delta>) {
        let partial = mem::take(&mut self.partial);
        let mut rest = partial.chars();
        if let Some(c) = rest.next() {
            self.character(c, out);
        }
        for c in rest {
            self.feed(c, out);
        }
    }

    /// What comes next is no letter, so `partial` cannot become a marker.
    fn settle_partial(&mut self, out: &mut Vec<Delta>) {
        while !self.partial.is_empty() {
            self.release(out);
        }
    }

    /// A character that belongs to no marker.
    fn character(&mut self, c: char, out: &mut Vec<Delta>) {
        let form = self.form.as_ref();
        let next = |held: &str| form.map_or(Next::Text, |form| form.goes_on(held, c));
        match &mut self.place {
            Place::Reasoning => self.say(Kind::Reasoning, c, out),
            Place::Text => self.say(Kind::Text, c, out),
            Place::Tail(held) if is_blank(c) || matches!(c, '}' | ']') => held.push(c),
            Place::Tail(held) if next(held) == Next::Part => held.push(c),
            Place::Tail(held) if next(held) == Next::Call => {
                let held = mem::take(held);
                self.open_call(Kind::Text, Met { shown: &held, index: None });
                self.character(c, out);
            }
            Place::Tail(held) => {
                let held = mem::take(held);
                self.place = Place::Text;
                for c in held.chars().chain([c]) {
                    self.say(Kind::Text, c, out);
                }
            }
            Place::Call(call) => {
                if call.body.push(c) == Ok(()) {
                    self.advance(c, out);
                } else {
                    self.end_call(false, out);
                    // Anew, because inside a string it was not looked at as part of a marker.
                    self.feed(c, out);
                }
            }
        }
    }

    fn say(&mut self, kind: Kind, c: char, out: &mut Vec<Delta>) {
        match kind {
            Kind::Text => self.text.push(c, out),
            Kind::Reasoning => {
                self.reasoning.push(c, out);
                // Reasoning that shows ends the message before it; a blank one does not.
                if self.reasoning.has_begun() {
                    self.text = Prose::after_scaffold(Kind::Text);
                }
            }
        }
    }

    /// What opened the call is its body's beginning.
    fn feed_body(&mut self, shown: &str, out: &mut Vec<Delta>) {
        if let Place::Call(call) = &mut self.place {
            call.raw.clear();
        }
        for c in shown.chars() {
            self.character(c, out);
        }
    }

    /// The body took `c`: passes on what that made certain.
    fn advance(&mut self, c: char, out: &mut Vec<Delta>) {
        if let Place::Call(call) = &mut self.place
            && !call.begun
        {
            call.raw.push(c);
        }
        self.begin(out);
        if matches!(&self.place, Place::Call(call) if call.body.is_done()) {
            self.end_call(true, out);
        }
    }

    /// Begins the call once its name is known, and passes on its arguments.
    fn begin(&mut self, out: &mut Vec<Delta>) {
        let Place::Call(call) = &mut self.place else { return };
        if let Some(name) = call.body.gained().name.take() {
            let bare = self.form.as_ref().is_some_and(|form| form.bare);
            if bare && !self.tools.declares(&name) {
                return self.end_call(false, out);
            }
            if let (Kind::Text, Some(before_calls)) = (call.within, self.exact) {
                self.text.end_before(before_calls, out);
            }
            out.push(Delta::Call { call_id: (self.mint)(), name });
            call.begun = true;
            call.raw = String::new();
            if call.within == Kind::Reasoning {
                self.first.close(call.index);
            }
            self.text = Prose::after_scaffold(Kind::Text);
            self.closer = Closer::Owed;
        }
        if call.begun {
            let ready = mem::take(&mut call.body.gained().ready);
            call.streamed |= append(out, Delta::Arguments, &ready);
        }
    }

    /// Ends the call that `place` is in; `well` unless its JSON cannot be.
    fn end_call(&mut self, well: bool, out: &mut Vec<Delta>) {
        let Place::Call(call) = mem::replace(&mut self.place, Place::Tail(String::new())) else {
            return;
        };
        if call.begun {
            // Without a closing marker, the body has said that the call is over.
            self.closed += usize::from(well && self.closes_itself());
            if !call.streamed {
                append(out, Delta::Arguments, "{}");
            }
            self.incomplete = match call.body.arguments() {
                Progress::Absent => !well,
                Progress::Open => true,
                Progress::Complete => false,
            };
        } else {
            self.place = call.within.place();
            for c in call.raw.chars() {
                self.say(call.within, c, out);
            }
        }
    }

    fn closes_itself(&self) -> bool {
        self.form.as_ref().is_some_and(|form| form.close.is_none())
    }

    fn open_call(&mut self, within: Kind, met: Met<'_>) {
        let Some(form) = &self.form else { return };
        self.closer = Closer::Nobodys;
        self.place = Place::Call(Box::new(Call {
            within,
            index: met.index,
            body: <dyn Body>::of(&form.body, &self.tools),
            raw: met.shown.to_owned(),
            begun: false,
            streamed: false,
        }));
    }

    fn marker(&mut self, mark: Mark, met: Met<'_>, out: &mut Vec<Delta>) {
        if let Place::Call(call) = &mut self.place {
            call.body.close();
            self.begin(out);
            self.end_call(true, out);
        }
        let within = match self.place {
            Place::Reasoning => Kind::Reasoning,
            Place::Text | Place::Call(_) | Place::Tail(_) => Kind::Text,
        };
        self.place = within.place();
        match (within, mark) {
            (Kind::Text, Mark::Around) => {
                if let Some(before_calls) = self.exact {
                    self.text.end_before(before_calls, out);
                    self.text = Prose::after_scaffold(Kind::Text);
                }
            }
            (Kind::Reasoning, Mark::Around | Mark::ThinkOpen) | (Kind::Text, Mark::ThinkClose) => {}
            (Kind::Text, Mark::ThinkOpen) => {
                self.first.open(met.index);
                if self.exact.is_some() {
                    self.text.end_before("", out);
                }
                self.reasoning = self.prose(Kind::Reasoning).labelled(&self.label);
                self.place = Place::Reasoning;
            }
            (Kind::Reasoning, Mark::ThinkClose) => {
                self.first.close(met.index.map(|index| index.saturating_add(1)));
                if self.exact.is_some() {
                    self.reasoning.end_before("", out);
                }
                if !self.text.has_begun() {
                    self.text = self.prose(Kind::Text);
                }
                self.place = Place::Text;
            }
            (_, Mark::CallOpen) => {
                self.open_call(within, met);
                let beginnings = self.form.as_ref().map_or(&[][..], CallForm::beginnings);
                if beginnings.contains(&met.shown) {
                    self.feed_body(met.shown, out);
                }
            }
            (Kind::Text, Mark::CallClose) if self.drops_closer() => {
                self.closed += usize::from(self.closer == Closer::Owed);
                self.closer = Closer::Surplus;
            }
            (_, Mark::CallClose) => {
                for c in met.shown.chars() {
                    self.say(within, c, out);
                }
            }
        }
    }
}
