//! What a client is told of what the model says: calls in the client's own names (D7).
//!
//! A model calls every tool as a function, by one name. A client knows namespaces, and custom tools,
//! which take a text: the string that is the call's one argument.

use std::sync::Arc;

use crate::family::Delta;
use crate::header::{Header, Tool, ToolKind};

/// A piece of what the model is saying, in order. A piece of another kind, or a new call, ends the
/// item before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// More of a reasoning item.
    Reasoning(String),
    /// More of a message.
    Text(String),
    /// A call begins.
    Call {
        /// Pairs it with its output.
        call_id: String,
        /// The namespace that the tool stands in.
        namespace: Option<String>,
        /// The client's name for the tool.
        name: String,
        /// Whether arguments follow, or input.
        kind: ToolKind,
    },
    /// More of a function's arguments: raw JSON, byte for byte as sampled.
    Arguments(String),
    /// More of a custom tool's input.
    Input(String),
    /// More of what a search for tools is made with: raw JSON, byte for byte as sampled.
    Query(String),
}

impl Told {
    /// The name used on the wall.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Reasoning(_) => "reasoning",
            Self::Text(_) => "text",
            Self::Call { kind: ToolKind::Function, .. } => "call",
            Self::Call { kind: ToolKind::Custom, .. } => "custom_call",
            Self::Call { kind: ToolKind::Search, .. } => "search_call",
            Self::Arguments(_) => "arguments",
            Self::Input(_) => "input",
            Self::Query(_) => "query",
        }
    }
}

/// Tells the client of one turn.
pub(super) struct Teller {
    header: Arc<Header>,
    /// The input of the custom tool that is being called.
    input: Option<Input>,
    /// Whether tools are being searched for.
    searches: bool,
}

impl Teller {
    pub(super) fn new(header: Arc<Header>) -> Self {
        Self { header, input: None, searches: false }
    }

    /// Appends what `said` tells the client.
    pub(super) fn tell(&mut self, said: Vec<Delta>, out: &mut Vec<Told>) {
        for delta in said {
            match (delta, &mut self.input) {
                (Delta::Arguments(json), Some(input)) => {
                    let mut text = String::new();
                    input.push(&json, &mut text);
                    if !text.is_empty() {
                        out.push(Told::Input(text));
                    }
                }
                (Delta::Arguments(json), None) if self.searches => out.push(Told::Query(json)),
                (Delta::Arguments(json), None) => out.push(Told::Arguments(json)),
                (Delta::Reasoning(text), _) => self.next(Told::Reasoning(text), out),
                (Delta::Text(text), _) => self.next(Told::Text(text), out),
                (Delta::Call { call_id, name }, _) => {
                    let call = match self.header.tool(&name) {
                        None => {
                            Told::Call { call_id, namespace: None, name, kind: ToolKind::Function }
                        }
                        Some(Tool { own_name, namespace, kind, .. }) => Told::Call {
                            call_id,
                            namespace: namespace.clone(),
                            name: own_name.clone(),
                            kind: *kind,
                        },
                    };
                    let is = |wanted| matches!(call, Told::Call { kind, .. } if kind == wanted);
                    let (custom, searches) = (is(ToolKind::Custom), is(ToolKind::Search));
                    self.next(call, out);
                    self.input = custom.then(Input::default);
                    self.searches = searches;
                }
            }
        }
    }

    /// The output has ended.
    pub(super) fn finish(&mut self, out: &mut Vec<Told>) {
        let rest = self.input.take().map(Input::finish).filter(|rest| !rest.is_empty());
        out.extend(rest.map(Told::Input));
    }

    fn next(&mut self, told: Told, out: &mut Vec<Told>) {
        self.finish(out);
        out.push(told);
    }
}

/// Reads the text out of a custom tool's arguments as they are sampled. Arguments of another shape
/// are themselves the text, so that nothing is lost.
struct Input {
    place: Place,
    /// What has come and is not told: the head, or half an escape.
    held: String,
}

#[derive(Clone, Copy)]
enum Place {
    /// Before the text: so many bytes of [`HEAD`] have come.
    Head(usize),
    Text,
    Behind,
    /// In arguments of another shape.
    Raw,
}

/// What stands before the text, but for white space.
const HEAD: &[u8] = br#"{"input":""#;

/// Where in it white space may stand.
const BLANKS: [usize; 4] = [0, 1, HEAD.len() - 2, HEAD.len() - 1];

impl Default for Input {
    fn default() -> Self {
        Self { place: Place::Head(0), held: String::new() }
    }
}

impl Input {
    fn push(&mut self, json: &str, out: &mut String) {
        for c in json.chars() {
            self.character(c, out);
        }
    }

    fn character(&mut self, c: char, out: &mut String) {
        match self.place {
            Place::Head(met) => {
                self.held.push(c);
                if HEAD.get(met).copied().map(char::from) == Some(c) {
                    self.place = Place::Head(met + 1);
                    if met + 1 == HEAD.len() {
                        self.place = Place::Text;
                        self.held.clear();
                    }
                } else if met == 1 && c == '}' {
                    self.place = Place::Behind;
                    self.held.clear();
                } else if !(BLANKS.contains(&met) && c.is_ascii_whitespace()) {
                    self.place = Place::Raw;
                    out.push_str(&std::mem::take(&mut self.held));
                }
            }
            Place::Text if self.held.is_empty() => match c {
                '"' => self.place = Place::Behind,
                '\\' => self.held.push(c),
                _ => out.push(c),
            },
            Place::Text => {
                self.held.push(c);
                self.escape(out);
            }
            Place::Behind => {}
            Place::Raw => out.push(c),
        }
    }

    /// Tells the escape that is held once it is whole. Half of a surrogate pair is U+FFFD, and whatever
    /// is no escape stands for itself.
    fn escape(&mut self, out: &mut String) {
        match escaped(&self.held) {
            None => {}
            Some((c, len)) => {
                let rest = self.held.split_off(len);
                self.held.clear();
                out.push(c);
                self.push(&rest, out);
            }
        }
    }

    /// What is left to tell. Half an escape is not: it stands for nothing yet.
    fn finish(self) -> String {
        match self.place {
            Place::Head(_) => self.held,
            _ => String::new(),
        }
    }
}

/// The character that `text` begins with an escape of, and the escape's length in bytes; None when
/// there may be more of it.
fn escaped(text: &str) -> Option<(char, usize)> {
    let mut letters = text.chars().skip(1);
    let c = match letters.next()? {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'u' => return unicode(text),
        c => return Some((c, 1 + c.len_utf8())),
    };
    Some((c, 2))
}

/// The same of an escape by number.
fn unicode(text: &str) -> Option<(char, usize)> {
    const WRONG: char = char::REPLACEMENT_CHARACTER;
    let unit = |at: usize| -> Option<Option<u16>> {
        let rest = text.get(at..).unwrap_or_default();
        if !(rest.starts_with("\\u") || "\\u".starts_with(rest)) {
            return Some(None);
        }
        let digits = rest.get(2..).unwrap_or_default();
        let four = digits.get(..4);
        let plain = digits.bytes().take(4).all(|byte| byte.is_ascii_hexdigit());
        match four {
            _ if !plain => Some(None),
            None => None,
            Some(four) => Some(u16::from_str_radix(four, 16).ok()),
        }
    };
    let Some(first) = unit(0)? else { return Some((WRONG, 2)) };
    if !(0xd800..0xdc00).contains(&first) {
        return Some((char::from_u32(first.into()).unwrap_or(WRONG), 6));
    }
    let second = unit(6)?;
    let pair = second.and_then(|second| char::decode_utf16([first, second]).next()?.ok());
    Some(pair.map_or((WRONG, 6), |c| (c, 12)))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;
    use crate::header::{INPUT, RawHeader};

    fn teller() -> Teller {
        let tools = br#"[{"type":"custom","name":"patch"},{"type":"function","name":"ls"},
            {"type":"namespace","name":"crm","tools":[{"type":"function","name":"find"}]}]"#;
        let raw = RawHeader { tools: Some(tools), ..RawHeader::default() };
        Teller::new(Header::parse(raw).unwrap())
    }

    fn call(name: &str) -> Delta {
        Delta::Call { call_id: "c".into(), name: name.into() }
    }

    /// What a client is told as the input of a call of `patch` with these arguments, which come in
    /// these pieces.
    fn input<'a>(pieces: impl IntoIterator<Item = &'a str>) -> String {
        let mut teller = teller();
        let mut out = Vec::new();
        teller.tell(vec![call("patch")], &mut out);
        for piece in pieces {
            teller.tell(vec![Delta::Arguments(piece.to_owned())], &mut out);
        }
        teller.finish(&mut out);
        let texts = out.into_iter().skip(1).map(|told| match told {
            Told::Input(text) => text,
            other => panic!("{other:?}"),
        });
        texts.collect()
    }

    #[test]
    fn calls_have_the_clients_names() {
        let mut out = Vec::new();
        let mut teller = teller();
        let said = vec![
            call("crm__find"),
            Delta::Arguments("{}".into()),
            call("patch"),
            Delta::Arguments(r#"{"input": "a\nb"}"#.into()),
            call("ls"),
            Delta::Arguments("{}".into()),
            call("unknown"),
        ];
        teller.tell(said, &mut out);
        let told = |namespace: Option<&str>, name: &str, kind| Told::Call {
            call_id: "c".into(),
            namespace: namespace.map(Into::into),
            name: name.into(),
            kind,
        };
        let expected = [
            told(Some("crm"), "find", ToolKind::Function),
            Told::Arguments("{}".into()),
            told(None, "patch", ToolKind::Custom),
            Told::Input("a\nb".into()),
            told(None, "ls", ToolKind::Function),
            Told::Arguments("{}".into()),
            told(None, "unknown", ToolKind::Function),
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn the_head_names_the_argument() {
        assert_eq!(HEAD, format!("{{\"{INPUT}\":\"").as_bytes());
    }

    #[test]
    fn arguments_of_another_shape_are_the_input() {
        for raw in [r#"{"patch": "x"}"#, r#"{"input": 7}"#, r#"{"input": {"a": 1}}"#, "[1]", "x"] {
            assert_eq!(input([raw]), raw);
        }
        assert_eq!(input(["{", "}"]), "");
        assert_eq!(input([" { \"input\" : \"a\" , \"more\": 1}"]), "a");
        assert_eq!(input([]), "");
    }

    #[test]
    fn what_is_cut_off_is_told_as_far_as_it_came() {
        assert_eq!(input([r#"{"input": "ab\"#]), "ab");
        assert_eq!(input([r#"{"input": "ab\u00"#]), "ab");
        assert_eq!(input([r#"{"input": "ab\ud83d"#]), "ab");
        assert_eq!(input([r#"{"inp"#]), r#"{"inp"#);
        assert_eq!(input([r#"{"input": "\ud83dx\ude00\q""#]), "\u{fffd}x\u{fffd}q");
    }

    proptest! {
        /// The oracle is `serde_json`, of arguments that it can read; how they are cut is nothing.
        #[test]
        fn the_input_is_what_the_json_says(
            text in "(\\PC|[\"\\\\\n\u{1}😀é]){0,20}",
            ascii in any::<bool>(),
            cuts in proptest::collection::vec(0usize..200, 0..6),
        ) {
            let mut quoted = serde_json::to_string(&text).unwrap();
            if ascii {
                let mut escaped = String::new();
                for c in quoted.chars() {
                    if c.is_ascii() {
                        escaped.push(c);
                        continue;
                    }
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(escaped, "\\u{unit:04x}").unwrap();
                    }
                }
                quoted = escaped;
            }
            let json = format!("{{\"input\": {quoted}}}");
            let mut pieces = Vec::new();
            let mut cuts: Vec<usize> =
                cuts.into_iter().filter(|&cut| json.is_char_boundary(cut)).collect();
            cuts.sort_unstable();
            let mut rest = json.as_str();
            let mut from = 0;
            for cut in cuts.into_iter().filter(|&cut| cut <= json.len()) {
                let (piece, more) = rest.split_at(cut - from);
                pieces.push(piece);
                (rest, from) = (more, cut);
            }
            pieces.push(rest);
            prop_assert_eq!(input(pieces), text);
        }
    }
}
