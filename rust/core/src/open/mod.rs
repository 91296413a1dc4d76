//! Opening a turn: from a request's raw JSON to a prompt.
//!
//! ```text
//! parse and pair the new items → what of the parent's tokens still holds? → render what is new
//!   all of them     extend   the tip's tape grows in place
//!                   fork     someone else has the tape: one memcpy
//!   but the header  rebase   a new header, every item's segment as it is
//!   up to a point   rewind   history lost its reasoning (D6), or the last message goes on
//!   none            cold     no parent
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::chain::{Budget, Dropped, Extent, Imprint, Index, Meter, Node, Segment, Tape, View};
use crate::error::{Error, Result, excerpt};
use crate::family::Before;
use crate::header::{Added, Header, Knobs, RawHeader, ToolChoice};
use crate::item::{Item, parse_input};
use crate::profile::Profile;
use crate::token::{Origin, SpanKind};
use crate::turn::{Constraint, Kind, Turn, TurnParts};

mod generic;
mod hydrate;
mod native;

/// What of a request decides its prompt. Raw JSON values, parsed here and nowhere else (D1).
#[derive(Debug, Clone, Copy)]
pub struct OpenRequest<'a> {
    /// A string, an array of items, or null.
    pub input: &'a [u8],
    /// Instructions, tools, tool choice.
    pub header: RawHeader<'a>,
    /// Whether one response may hold several calls.
    pub parallel_tool_calls: bool,
    /// How much the model is to think: the API's word, `none` for not at all; None leaves it to the
    /// model.
    pub effort: Option<&'a str>,
    /// How much it is to say: the API's word. Only where the template has a knob for it.
    pub verbosity: Option<&'a str>,
    /// Whether the model is to speak; false for a warm-up.
    pub generate: bool,
    /// When a conversation that begins now began, in seconds since 1970; None asks the clock. Templates
    /// may show it, and a conversation keeps the time at which it began.
    pub now: Option<i64>,
    /// Who may find this conversation again, and whose it may find; None to do neither.
    pub scope: Option<&'a Arc<[u8]>>,
}

/// What a prompt is made for.
#[derive(Clone, Copy)]
struct Asked<'a> {
    parent: Option<&'a Node>,
    header: &'a Arc<Header>,
    /// What is new.
    items: &'a [Arc<Item>],
    meter: &'a Meter,
    /// When the conversation began.
    began: i64,
    knobs: Knobs,
    request: OpenRequest<'a>,
}

/// Every chain of one profile. Cheap to share. Nodes keep their ancestors alive; the index keeps
/// nodes findable by what they say, within its budget.
#[derive(Clone)]
pub struct Chains {
    profile: Arc<Profile>,
    index: Arc<Index>,
}

impl Chains {
    /// Chains of this profile.
    #[must_use]
    pub fn new(profile: Arc<Profile>, budget: Budget) -> Self {
        Self { profile, index: Arc::new(Index::new(budget)) }
    }

    /// Where nodes are found by what they say.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The profile that every chain here is rendered with.
    #[must_use]
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    /// Begins a response after `parent`; without one, after the longest beginning of the input
    /// that the scope knows (D7).
    ///
    /// # Errors
    /// The client's mistakes, each naming its parameter, before anything has changed.
    pub fn open(&self, parent: Option<&Node>, request: OpenRequest<'_>) -> Result<Turn> {
        let input = parse_input(request.input)?;
        // Tools at the front of a conversation are the header's.
        let (mut items, added) = input.settled(parent.is_none_or(Node::only_instructs));
        let found = match (parent, request.scope) {
            (None, Some(scope)) => self.index.find(scope, &items),
            _ => None,
        };
        let mut known_items = 0;
        if let Some((_, known)) = &found {
            known_items = *known;
            items.drain(..known);
        }
        // A conversation that was found again says itself which tools it has.
        let header = match (&found, parent) {
            (Some((node, _)), _) => self.header(Some(node), None, &added, request)?,
            (None, parent) => self.header(parent, parent, &added, request)?,
        };
        let parent = parent.or(found.as_ref().map(|(node, _)| node));
        self.open_items(parent, items, known_items, header, request)
    }

    /// The same with `items` and `header` parsed, `known_items` of the request's being the parent's.
    fn open_items(
        &self,
        parent: Option<&Node>,
        items: Vec<Arc<Item>>,
        known_items: usize,
        header: Arc<Header>,
        request: OpenRequest<'_>,
    ) -> Result<Turn> {
        if parent.is_none() && items.is_empty() && request.generate {
            return Err(Error::missing_parameter("input"));
        }
        let unanswered = pair(parent, &items, request.generate)?;
        let constraint = match &header.choice {
            ToolChoice::Required(tools) if request.generate => {
                let (open, close) = self.profile.format().call_markers().ok_or_else(|| {
                    Error::unsupported(
                        "tool_choice",
                        "This model's calls have a form in which none can be required.",
                    )
                })?;
                let tool = |&index: &usize| {
                    let tool = header.tools.get(index)?;
                    let schema = tool.schema.as_deref().unwrap_or("{}");
                    Some((tool.name.clone(), schema.to_owned()))
                };
                let tools = tools.iter().filter_map(tool).collect();
                Some(Constraint { open, close, tools, many: request.parallel_tool_calls })
            }
            _ => None,
        };
        let (profile, meter) = (self.profile.as_ref(), self.index.meter());
        let began = parent.map(|node| node.parts().began).or(request.now).unwrap_or_else(now);
        let generic = &profile.renderer().generic;
        let knobs = generic.knobs(request.effort, request.verbosity)?;
        let asked = Asked { parent, header: &header, items: &items, meter, began, knobs, request };
        let native = match profile.native() {
            Some(family) => native::open(profile, family, asked)?,
            None => None,
        };
        let opened = match native {
            Some(opened) => opened,
            None => generic::open(profile, generic, asked)?,
        };
        Ok(Turn::new(TurnParts {
            profile: Arc::clone(&self.profile),
            index: Arc::clone(&self.index),
            scope: request.scope.cloned(),
            parent: parent.cloned(),
            header,
            items,
            known_items,
            opened,
            unanswered,
            constraint,
        }))
    }
}

impl Chains {
    /// The request's header: the parent's, or one that the scope has sent before, where its bytes are
    /// the same. That costs a hash; only a new one is parsed. The tools that came as items are inherited
    /// from `before`, and `added` to.
    fn header(
        &self,
        parent: Option<&Node>,
        before: Option<&Node>,
        added: &Added,
        request: OpenRequest<'_>,
    ) -> Result<Arc<Header>> {
        let key = request.header.key();
        let own = |node: &'_ Node| Arc::clone(&node.parts().header);
        let inherited = before.map(own).filter(|header| !header.is_plain());
        let same = |header: &Arc<Header>| {
            header.key == key && added.is_empty() && (header.is_plain() || inherited.is_some())
        };
        if let Some(header) = parent.map(own).filter(same) {
            return Ok(header);
        }
        if !added.is_empty() || inherited.is_some() {
            return Header::parse_with(request.header, inherited.as_deref(), added);
        }
        let Some(scope) = request.scope else { return Header::parse(request.header) };
        if let Some(known) = self.index.header(scope, &key) {
            return Ok(known);
        }
        let header = Header::parse(request.header)?;
        self.index.keep_header(scope, &header);
        Ok(header)
    }
}

fn now() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_secs()).unwrap_or_default()
}

/// The chain's calls that still wait for an output, once `items` have come.
///
/// Outputs are looked up in the whole chain, because a client sends only what is new. A second
/// output for the same call is let through, as the template would.
fn pair(
    parent: Option<&Node>,
    items: &[Arc<Item>],
    generate: bool,
) -> Result<Vec<(String, String)>> {
    let mut unanswered = parent.map(|node| node.parts().unanswered.clone()).unwrap_or_default();
    for (index, item) in items.iter().enumerate() {
        match item.as_ref() {
            Item::Call { call_id, name, .. } => unanswered.push((call_id.clone(), name.clone())),
            Item::Output { call_id, .. } => {
                let before = unanswered.len();
                unanswered.retain(|(waiting, _)| waiting != call_id);
                let is_call =
                    |item: &Item| matches!(item, Item::Call { call_id: id, .. } if id == call_id);
                let answered = || {
                    items[..index].iter().any(|item| is_call(item))
                        || parent.is_some_and(|node| node.find_item(is_call).is_some())
                };
                if unanswered.len() == before && !answered() {
                    return Err(Error::unpaired(format!(
                        "No tool call found for function call output with call_id {}.",
                        excerpt(call_id)
                    )));
                }
            }
            Item::Message { .. } | Item::Reasoning { .. } => {}
        }
    }
    if let Some((call_id, _)) = unanswered.first().filter(|_| generate) {
        return Err(Error::unpaired(format!(
            "No tool output found for function call {}.",
            excerpt(call_id)
        )));
    }
    Ok(unanswered)
}

/// A prompt's tokens, laid out.
struct Laid {
    kind: Kind,
    tape: Tape,
    /// How many of the parent's tokens it begins with.
    prefix_len: usize,
}

/// Lays `segments` behind the first `keep` tokens of the parent: on its own tape where all of it
/// stays and nobody has taken that, else on a copy.
fn lay(
    parent: Option<&Node>,
    kind: Kind,
    keep: usize,
    segments: &[Segment],
    meter: &Meter,
) -> Laid {
    let (kind, mut tape) = match (kind, parent) {
        (Kind::Extend, Some(node)) => match node.take_tape() {
            Some(tape) => (Kind::Extend, tape),
            None => (Kind::Fork, copy(parent, keep, meter)),
        },
        (kind, _) => (kind, copy(parent, keep, meter)),
    };
    for segment in segments {
        tape.extend(&segment.ids);
    }
    let prefix_len = match (kind, parent) {
        (Kind::Extend | Kind::Fork, _) | (_, None) => keep,
        (_, Some(node)) => common_prefix(&tape.view(), &node.view()),
    };
    Laid { kind, tape, prefix_len }
}

fn copy(node: Option<&Node>, keep: usize, meter: &Meter) -> Tape {
    let tape = match node.filter(|_| keep > 0) {
        Some(node) => node.lineage().tape(keep),
        None => Tape::from_parts([], 0),
    };
    tape.metered(meter)
}

fn segment(ids: Vec<u32>, kind: SpanKind, items: Range<usize>) -> Segment {
    Segment {
        ids: ids.into(),
        kind,
        items: items.into(),
        reasoning: Extent::default(),
        dropped: Dropped::Never,
        glue: false,
        origin: Origin::Rendered,
        imprint: Imprint::default(),
        before: Before::default(),
    }
}

fn common_prefix(a: &View, b: &View) -> usize {
    use std::sync::atomic::Ordering::Relaxed;
    let pairs = a.as_atomics().iter().zip(b.as_atomics());
    pairs.take_while(|(a, b)| a.load(Relaxed) == b.load(Relaxed)).count()
}
