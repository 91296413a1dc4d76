//! Raw requests through `Chains::open`, behind each other.
//!
//! An input is a script: lines, each a letter and what follows it.
//!
//! ```text
//! m  the model, a letter from `a` on; forgets everything
//! s  instructions, t tools, c tool choice: raw JSON; nothing for an absent one
//! e  effort    v  verbosity    p  flips parallel tool calls    x  flips the scope
//! o  what the model says next: a text, control tokens in it matched
//! g  opens with this input, says what was said, and commits
//! w  the same without a generation prompt
//! a  opens, says, and aborts    h  opens, and keeps the turn until the next `h`
//! f  goes back to a node, a letter from `a` on    r  to before the first
//! ```

use std::sync::Arc;
use std::time::Duration;

use turnwire_core::header::RawHeader;
use turnwire_core::{Budget, Chains, Node, OpenRequest, Span, TokenId, Turn};

use crate::{allowed, models};

/// Lines of a script that are run: more only repeat themselves, slowly.
const LINES: usize = 24;

/// # Panics
/// Where a law breaks, or the core blames itself.
pub fn run(input: &[u8]) {
    let mut talk = Talk::new(0);
    for line in input.split(|&byte| byte == b'\n').take(LINES) {
        let Some((&verb, rest)) = line.split_first() else { continue };
        let letter = || rest.first().map_or(0, |letter| letter.wrapping_sub(b'a'));
        let json = || (!rest.is_empty()).then_some(rest);
        match verb {
            b'm' => talk = Talk::new(letter()),
            b's' => talk.header.instructions = json(),
            b't' => talk.header.tools = json(),
            b'c' => talk.header.tool_choice = json(),
            b'e' => talk.effort = word(rest),
            b'v' => talk.verbosity = word(rest),
            b'p' => talk.parallel = !talk.parallel,
            b'x' => talk.scoped = !talk.scoped,
            b'o' => talk.says = String::from_utf8_lossy(rest).into_owned(),
            b'g' => talk.turn(rest, true, true),
            b'w' => talk.turn(rest, false, true),
            b'a' => talk.turn(rest, true, false),
            b'h' => talk.kept = talk.open(rest, true),
            b'f' => {
                let place = usize::from(letter());
                talk.at = talk.nodes.get(place).is_some().then_some(place);
            }
            b'r' => talk.at = None,
            _ => {}
        }
    }
    talk.check();
}

fn word(rest: &[u8]) -> Option<&str> {
    std::str::from_utf8(rest).ok().filter(|word| !word.is_empty())
}

struct Talk<'a> {
    chains: Chains,
    scope: Arc<[u8]>,
    header: RawHeader<'a>,
    effort: Option<&'a str>,
    verbosity: Option<&'a str>,
    parallel: bool,
    scoped: bool,
    says: String,
    nodes: Vec<Known>,
    at: Option<usize>,
    kept: Option<Turn>,
}

/// A committed node.
struct Known {
    node: Node,
    /// Its tokens when it was committed.
    tokens: Vec<TokenId>,
    /// The items until there, without brackets; None where the model said some of them.
    given: Option<Vec<u8>>,
}

impl<'a> Talk<'a> {
    fn new(model: u8) -> Self {
        let budget = Budget { bytes: 1 << 20, ttl: Duration::from_secs(3600) };
        Self {
            chains: Chains::new(Arc::clone(models::at(model)), budget),
            scope: Arc::from(&b"fuzz"[..]),
            header: RawHeader::default(),
            effort: None,
            verbosity: None,
            parallel: true,
            scoped: false,
            says: String::new(),
            nodes: Vec::new(),
            at: None,
            kept: None,
        }
    }

    fn parent(&self) -> Option<&Known> {
        self.nodes.get(self.at?)
    }

    fn open(&self, input: &'a [u8], generate: bool) -> Option<Turn> {
        let parent = self.parent();
        let request = OpenRequest {
            input,
            header: self.header,
            parallel_tool_calls: self.parallel,
            effort: self.effort,
            verbosity: self.verbosity,
            generate,
            now: Some(0),
            scope: self.scoped.then_some(&self.scope),
        };
        let turn = allowed(self.chains.open(parent.map(|known| &known.node), request))?;
        let prompt = turn.prompt().to_vec();
        whole(&turn.spans(), prompt.len());
        if let Some(known) = parent {
            let prefix = turn.prefix_len();
            assert!(prefix <= prompt.len(), "a prefix longer than its prompt");
            assert_eq!(known.tokens.get(..prefix), prompt.get(..prefix), "law 1");
        }
        let all = parent.and_then(|known| joined(known.given.as_deref()?, input));
        // Nothing at all is an input behind a parent only.
        if let Some(all) = all.filter(|all| !all.is_empty()) {
            let all = [b"[", &all[..], b"]"].concat();
            let cold = self.chains.open(None, OpenRequest { input: &all, scope: None, ..request });
            let cold = allowed(cold).expect("what opened in parts opens at once");
            assert_eq!(self.text(&prompt), self.text(&cold.prompt().to_vec()), "law 5");
            assert_eq!(prompt, cold.prompt().to_vec(), "law 5");
        }
        Some(turn)
    }

    fn text(&self, ids: &[TokenId]) -> String {
        self.chains.profile().decode(ids).expect("ids of the vocabulary's own")
    }

    fn turn(&mut self, input: &'a [u8], generate: bool, commit: bool) {
        let Some(mut turn) = self.open(input, generate) else { return };
        let mut told = Vec::new();
        if generate {
            let says = allowed(self.chains.profile().encode(&self.says, true));
            let said = turn.push(&says.unwrap_or_default(), &mut told);
            allowed(said).expect("ids of the vocabulary's own");
        }
        allowed(turn.finish(&mut told)).expect("a turn can finish");
        if commit {
            let node = allowed(turn.commit()).expect("a finished turn can commit");
            let tokens = node.view().to_vec();
            let given = match self.parent() {
                _ if generate => None,
                None => joined(b"", input),
                Some(known) => known.given.as_deref().and_then(|given| joined(given, input)),
            };
            self.at = Some(self.nodes.len());
            self.nodes.push(Known { node, tokens, given });
        } else {
            turn.abort();
        }
    }

    /// Law 1: a committed token never changes.
    fn check(&mut self) {
        self.kept = None;
        for Known { node, tokens, .. } in &self.nodes {
            assert_eq!(node.view().to_vec(), *tokens);
        }
    }
}

/// The items of an input that opened, behind others.
fn joined(before: &[u8], input: &[u8]) -> Option<Vec<u8>> {
    let input = input.trim_ascii();
    let items = match input.first()? {
        b'[' => input.get(1..input.len().checked_sub(1)?)?.trim_ascii().to_vec(),
        b'"' => [br#"{"role":"user","content":"#, input, b"}"].concat(),
        _ => Vec::new(),
    };
    let comma: &[u8] = if before.is_empty() || items.is_empty() { b"" } else { b"," };
    Some([before, comma, &items].concat())
}

/// Law 3: spans partition the tokens.
pub(crate) fn whole(spans: &[Span], tokens: usize) {
    let mut end = 0;
    for span in spans {
        assert_eq!(span.tokens.start, end, "{spans:?}");
        assert!(span.tokens.end >= end, "{spans:?}");
        end = span.tokens.end;
    }
    assert_eq!(end, tokens, "{spans:?}");
}
