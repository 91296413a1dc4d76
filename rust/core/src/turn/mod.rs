//! A response in the making: open → push* → finish → commit | abort.
//!
//! Nothing of a turn is visible before it commits (D4). What the engine samples goes to the tape
//! as it is; text and items are views of it (D3).

use std::sync::Arc;

use crate::chain::{Dropped, Index, Node, Segment, Tail, Tape, View, spans};
use crate::detokenize::{Decoded, Detokenizer};
use crate::error::{Error, Result};
use crate::family::{Before, Calls, Delta, OutputParser, PROMPT_END};
use crate::header::{Header, Knobs, ToolChoice};
use crate::item::{Item, Role};
use crate::profile::Profile;
use crate::token::{Origin, Span, SpanKind, TokenId};

mod commit;
mod stop_strings;
mod told;

use stop_strings::{Cut, StopStrings};
use told::Teller;
pub use told::Told;

/// How a prompt came from its parent's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No parent.
    Cold,
    /// The parent's tape grew in place.
    Extend,
    /// The parent's tokens were copied: another turn has its tape.
    Fork,
    /// Another header, the same items.
    Rebase,
    /// A shorter part of the parent's tokens.
    Rewind,
}

impl Kind {
    /// The name used on the wall and in dumps.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Extend => "extend",
            Self::Fork => "fork",
            Self::Rebase => "rebase",
            Self::Rewind => "rewind",
        }
    }
}

/// The output must be tool calls: what a forced `tool_choice` demands of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// Text before each call's JSON object.
    pub open: String,
    /// Text behind it.
    pub close: String,
    /// (name, JSON schema of the arguments) of each function that may be called.
    pub tools: Vec<(String, String)>,
    /// Whether calls may follow each other.
    pub many: bool,
}

/// What opening a turn decided; see [`crate::open`].
pub(crate) struct Opened {
    pub(crate) kind: Kind,
    pub(crate) base: Option<(Node, usize)>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) tape: Tape,
    pub(crate) prefix_len: usize,
    pub(crate) rendered: usize,
    pub(crate) leading: usize,
    pub(crate) before: Before,
    /// See [`NodeParts::printed`].
    pub(crate) printed: bool,
    pub(crate) dropped: Dropped,
    pub(crate) knobs: Knobs,
    pub(crate) generate: bool,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) tail: Tail,
    /// See [`NodeParts::began`].
    pub(crate) began: i64,
    /// See [`Turn::reencoded`].
    pub(crate) reencoded: usize,
}

/// Where a turn stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Ids may be pushed.
    Open,
    /// A stop id, or all the calls allowed, were pushed: later ids are ignored.
    Stopped,
    /// Nothing more may be pushed.
    Finished,
    /// Committed or aborted.
    Gone,
}

/// What a turn is made of.
pub(crate) struct TurnParts {
    pub(crate) profile: Arc<Profile>,
    pub(crate) index: Arc<Index>,
    pub(crate) scope: Option<Arc<[u8]>>,
    pub(crate) parent: Option<Node>,
    pub(crate) header: Arc<Header>,
    pub(crate) items: Vec<Arc<Item>>,
    pub(crate) known_items: usize,
    pub(crate) opened: Opened,
    pub(crate) unanswered: Vec<(String, String)>,
    pub(crate) constraint: Option<Constraint>,
}

/// One response in the making. Dropping it is an abort.
pub struct Turn {
    profile: Arc<Profile>,
    index: Arc<Index>,
    scope: Option<Arc<[u8]>>,
    parent: Option<Node>,
    header: Arc<Header>,
    items: Vec<Arc<Item>>,
    known_items: usize,
    opened: Opened,
    prompt: View,
    unanswered: Vec<(String, String)>,
    constraint: Option<Constraint>,
    stage: Stage,
    sampled: usize,
    /// How many of the sampled ids are kept, where a stop string ended the turn.
    kept: Option<usize>,
    last: Option<TokenId>,
    detokenizer: Detokenizer,
    stop_strings: Option<StopStrings>,
    parser: Box<dyn OutputParser>,
    teller: Teller,
    outputs: Vec<Item>,
}

impl Turn {
    pub(crate) fn new(parts: TurnParts) -> Self {
        let calls = match parts.header.choice {
            ToolChoice::Auto => Calls::Free,
            ToolChoice::Required(_) => Calls::Forced,
            ToolChoice::None => Calls::Forbidden,
        };
        let opened = parts.opened;
        let format = parts.profile.format();
        let end = opened.tape.tail(opened.tape.len().saturating_sub(PROMPT_END));
        let thinking = format.begins_thinking(opened.knobs.thinking, &end);
        Self {
            detokenizer: Detokenizer::new(),
            stop_strings: parts.profile.stop_strings().map(StopStrings::new),
            parser: format.parser(thinking, calls, &parts.header),
            teller: Teller::new(Arc::clone(&parts.header)),
            prompt: opened.tape.view(),
            stage: if opened.generate { Stage::Open } else { Stage::Finished },
            profile: parts.profile,
            index: parts.index,
            scope: parts.scope,
            parent: parts.parent,
            header: parts.header,
            items: parts.items,
            known_items: parts.known_items,
            opened,
            unanswered: parts.unanswered,
            constraint: parts.constraint,
            sampled: 0,
            kept: None,
            last: None,
            outputs: Vec::new(),
        }
    }

    /// How many of the request's items were found in the past, and so are not among
    /// [`items`](Self::items).
    #[must_use]
    pub fn known_items(&self) -> usize {
        self.known_items
    }

    /// How the prompt came from the parent's tokens.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.opened.kind
    }

    /// How many of the prompt's tokens the parent's begin with.
    #[must_use]
    pub fn prefix_len(&self) -> usize {
        self.opened.prefix_len
    }

    /// Tokens that were encoded for this turn.
    #[must_use]
    pub fn rendered(&self) -> usize {
        self.opened.rendered
    }

    /// Tokens sampled in earlier turns that this prompt holds otherwise than as sampled, because the
    /// template printed their text otherwise, or not at all (D3). Only on the generic path.
    #[must_use]
    pub fn reencoded(&self) -> usize {
        self.opened.reencoded
    }

    /// The prompt, generation prompt included.
    #[must_use]
    pub fn prompt(&self) -> &View {
        &self.prompt
    }

    /// What a forced tool choice demands of the output.
    #[must_use]
    pub fn constraint(&self) -> Option<&Constraint> {
        self.constraint.as_ref()
    }

    /// Whether the model may reason before it answers.
    #[must_use]
    pub fn may_think(&self) -> bool {
        self.opened.knobs.thinking && self.profile.format().drops_reasoning()
    }

    /// Instructions, tools and tool choice as parsed.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The turn's input items.
    #[must_use]
    pub fn items(&self) -> &[Arc<Item>] {
        &self.items
    }

    /// The newest input item, of the chain where the turn brought none; for an output, with the
    /// name of the function that it answers.
    #[must_use]
    pub fn last_item(&self) -> Option<(Arc<Item>, String)> {
        let newest = self.items.last().cloned();
        let item = newest.or_else(|| self.parent.as_ref()?.find_item(|_| true))?;
        let named = |candidate: &Item| match (candidate, item.as_ref()) {
            (Item::Call { call_id, .. }, Item::Output { call_id: answered, .. }) => {
                call_id == answered
            }
            _ => false,
        };
        let name = match item.as_ref() {
            Item::Call { name, .. } => name.clone(),
            Item::Output { .. } => {
                let here = self.items.iter().rev().find(|item| named(item)).cloned();
                match here.or_else(|| self.parent.as_ref()?.find_item(named)).as_deref() {
                    Some(Item::Call { name, .. }) => name.clone(),
                    _ => String::new(),
                }
            }
            _ => String::new(),
        };
        Some((item, name))
    }

    /// Appends sampled ids and appends what they tell the client to `out`. Ids behind a stop id are ignored.
    ///
    /// # Errors
    /// `invalid_value` for an id that the vocabulary does not have: nothing of the push happened.
    /// [`crate::ErrorKind::Invariant`] when the turn was not open.
    pub fn push(&mut self, ids: &[TokenId], out: &mut Vec<Told>) -> Result<()> {
        if matches!(self.stage, Stage::Finished | Stage::Gone) {
            return Err(Error::invariant("push after finish, or in a turn that does not generate"));
        }
        if let Some(id) = ids.iter().find(|&&id| !self.profile.knows(id)) {
            return Err(Error::invalid_value("ids", format!("The vocabulary has no token {id}.")));
        }
        let mut said = Vec::new();
        let profile = Arc::clone(&self.profile);
        for &id in ids {
            if self.stage != Stage::Open {
                break;
            }
            self.opened.tape.extend(&[id]);
            self.last = Some(id);
            let index = self.sampled;
            self.sampled += 1;
            if profile.stops(id) {
                self.stage = Stage::Stopped;
                continue;
            }
            let (parser, stop_strings) = (&mut self.parser, &mut self.stop_strings);
            let mut cut = None;
            self.detokenizer.push(&profile.vocabulary().pieces, id, &mut |decoded| {
                if cut.is_none() {
                    cut = hear(decoded, index, parser.as_mut(), stop_strings.as_mut(), &mut said);
                }
            })?;
            if let Some(cut) = cut {
                self.opened.tape.truncate(self.prompt.len() + cut.keep);
                let rest = cut.ids(&profile)?;
                self.opened.tape.extend(&rest);
                self.kept = Some(cut.keep + rest.len());
                self.stage = Stage::Stopped;
            }
            // One call is all there may be: whatever the model would add is not wanted.
            if !self.opened.parallel_tool_calls && self.parser.closed_calls() > 0 {
                self.stage = Stage::Stopped;
            }
        }
        collect(&mut self.outputs, &said);
        self.teller.tell(said, out);
        Ok(())
    }

    /// Whether the turn has ended by what was sampled.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stage == Stage::Stopped
    }

    /// Ids pushed so far, a stop id included.
    #[must_use]
    pub fn sampled(&self) -> usize {
        self.sampled
    }

    /// How many of them are reasoning.
    #[must_use]
    pub fn reasoning_tokens(&self) -> usize {
        let blocks = self.parser.reasoning().into_iter();
        blocks.map(|block| block.end.min(self.sampled).saturating_sub(block.start)).sum()
    }

    /// No more ids: appends whatever was held back to `out`. Safe to call twice.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invariant`] after commit or abort.
    pub fn finish(&mut self, out: &mut Vec<Told>) -> Result<()> {
        match self.stage {
            Stage::Gone => return Err(Error::invariant("finish after commit or abort")),
            Stage::Finished => return Ok(()),
            Stage::Open | Stage::Stopped => {}
        }
        let mut said = Vec::new();
        let parser = &mut self.parser;
        if self.kept.is_none() {
            let held = self.stop_strings.as_mut().map(|stops| stops.flush(self.sampled));
            tell(parser.as_mut(), &held.unwrap_or_default(), &mut said);
            self.detokenizer.flush(&mut |decoded| {
                if let Decoded::Text(text) = decoded {
                    parser.text(text, &mut said);
                }
            });
        }
        self.parser.finish(self.kept.unwrap_or(self.sampled), &mut said);
        collect(&mut self.outputs, &said);
        self.teller.tell(said, out);
        self.teller.finish(out);
        self.stage = Stage::Finished;
        Ok(())
    }

    /// Drops the turn; the parent gets its tape back. Safe to call at any time.
    pub fn abort(&mut self) {
        if self.stage == Stage::Gone {
            return;
        }
        self.stage = Stage::Gone;
        if self.opened.kind == Kind::Extend
            && let Some(parent) = &self.parent
        {
            // Nobody reads the prompt of an aborted turn through us any more; engines that still
            // hold a view make the tape copy.
            self.prompt = View::of(Vec::new());
            let mut tape = std::mem::replace(&mut self.opened.tape, Tape::from_parts([], 0));
            tape.truncate(parent.token_count());
            parent.return_tape(tape);
        }
    }

    /// The spans of the prompt, and of what was sampled so far.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let lineage = self.opened.base.as_ref().map(|(node, keep)| node.lineage_to(*keep));
        let old: Vec<Segment> =
            lineage.iter().flat_map(|lineage| lineage.segments().cloned()).collect();
        let mut all = spans(old.iter().chain(&self.opened.segments));
        if self.sampled > 0 {
            let start = self.prompt.len();
            all.push(Span {
                tokens: start..start + self.kept.unwrap_or(self.sampled),
                items: 0..0,
                kind: SpanKind::Sampled,
                origin: Origin::Sampled,
            });
        }
        all
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Lets `parser` read what the id with this number has completed, up to a stop string.
fn hear(
    decoded: Decoded<'_>,
    index: usize,
    parser: &mut dyn OutputParser,
    stops: Option<&mut StopStrings>,
    said: &mut Vec<Delta>,
) -> Option<Cut> {
    let (text, cut) = match (decoded, stops) {
        (Decoded::Text(text), None) => {
            parser.text(text, said);
            return None;
        }
        (Decoded::Text(text), Some(stops)) => stops.push(index, text),
        // Some vocabularies have added tokens for newlines and blanks.
        (Decoded::Added { content, special: false, .. }, Some(stops))
            if content.trim().is_empty() =>
        {
            stops.push(index, content)
        }
        (Decoded::Added { id, content, special }, stops) => {
            let held = stops.map(|stops| stops.flush(index)).unwrap_or_default();
            tell(parser, &held, said);
            parser.added(id, content, special, index, said);
            return None;
        }
    };
    tell(parser, &text, said);
    cut
}

/// Lets `parser` read a text, if it is one.
fn tell(parser: &mut dyn OutputParser, text: &str, said: &mut Vec<Delta>) {
    if !text.is_empty() {
        parser.text(text, said);
    }
}

/// Folds deltas into the items that they make.
fn collect(outputs: &mut Vec<Item>, deltas: &[Delta]) {
    for delta in deltas {
        match (delta, outputs.last_mut()) {
            (Delta::Reasoning(more), Some(Item::Reasoning { text }))
            | (Delta::Text(more), Some(Item::Message { text, .. }))
            | (Delta::Arguments(more), Some(Item::Call { arguments: text, .. })) => {
                text.push_str(more);
            }
            (Delta::Reasoning(text), _) => outputs.push(Item::Reasoning { text: text.clone() }),
            (Delta::Text(text), _) => {
                outputs.push(Item::Message { role: Role::Assistant, text: text.clone() });
            }
            (Delta::Call { call_id, name }, _) => outputs.push(Item::Call {
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: String::new(),
            }),
            // Arguments come behind their call, by the parser's contract.
            (Delta::Arguments(_), _) => {}
        }
    }
}
