//! The hermes parser: named cases, hostile output, law 6, and the way back from a rendered answer.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use turnwire_core::family::marker::{Marker, Markers};
use turnwire_core::family::output::form::CallForm;
use turnwire_core::family::output::{MintCallId, OutputFormat, OutputReader, Start};
use turnwire_core::family::{Delta, OutputParser};

// ------------------------------------------------------------------------------------ the bench

const MARKERS: [(&str, u32); 4] = [
    ("<think>", 151_667),
    ("</think>", 151_668),
    ("<tool_call>", 151_657),
    ("</tool_call>", 151_658),
];

/// One thing that the detokenizer hands over.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Added(u32, &'static str, bool),
}

/// Output as written: markers are tokens, `<|fim|>` is a special token, `<tool_response>` an
/// ordinary added one, and what `~` precedes is letters all the same.
fn tokens(output: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = output;
    'next: while let Some(c) = rest.chars().next() {
        let more = [("<|fim|>", 7), ("<tool_response>", 151_665)];
        for (content, id) in MARKERS.into_iter().chain(more) {
            if let Some(behind) = rest.strip_prefix(content) {
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                }
                pieces.push(Piece::Added(id, content, id == 7));
                rest = behind;
                continue 'next;
            }
        }
        let cut = if c == '~' { rest.strip_prefix('~').unwrap() } else { rest };
        let c = cut.chars().next().unwrap_or(' ');
        text.push(c);
        rest = cut.get(c.len_utf8()..).unwrap_or("");
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    pieces
}

fn letters(output: &str) -> Vec<Piece> {
    let text = output.replace('~', "");
    if text.is_empty() { Vec::new() } else { vec![Piece::Text(text)] }
}

fn format(tokens: bool, text_markers: bool) -> OutputFormat {
    let marker = |at: usize| {
        let (text, id) = MARKERS[at];
        if tokens { Marker::Token(id, text.into()) } else { Marker::Text(text.into()) }
    };
    OutputFormat {
        think: Some(Markers { open: marker(0), close: marker(1) }),
        call: Some(CallForm::hermes(Markers { open: marker(2), close: marker(3) })),
        tools: Arc::default(),
        text_markers,
    }
}

fn qwen() -> OutputFormat {
    format(true, false)
}

fn forced() -> OutputFormat {
    format(true, true)
}

fn smol() -> OutputFormat {
    format(false, false)
}

fn count_up() -> MintCallId {
    let mut calls = 0;
    Box::new(move || {
        calls += 1;
        format!("call_{calls}")
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Read {
    deltas: Vec<Delta>,
    reasoning: Option<Range<usize>>,
    incomplete: bool,
}

/// Each piece counts as one sampled id, whatever it is cut into.
fn read(format: &OutputFormat, start: Start, pieces: &[Piece], cut: &mut dyn Cut) -> Read {
    let mut parser = OutputReader::new(format.clone(), start, count_up());
    let mut deltas = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Text(text) => {
                for part in cut.cut(text) {
                    let mut out = Vec::new();
                    parser.text(&part, &mut out);
                    assert_well_formed(&out);
                    deltas.append(&mut out);
                }
            }
            Piece::Added(id, content, special) => {
                parser.added(*id, content, *special, index, &mut deltas);
            }
        }
    }
    parser.finish(pieces.len(), &mut deltas);
    let deltas = merged(deltas);
    assert_well_formed(&deltas);
    let reasoning = parser.reasoning().pop();
    Read { deltas, reasoning, incomplete: parser.call_is_incomplete() }
}

trait Cut {
    fn cut(&mut self, text: &str) -> Vec<String>;
}

struct Whole;

impl Cut for Whole {
    fn cut(&mut self, text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }
}

/// Lengths in characters, used in turn and over again.
struct Lengths<'a>(&'a [usize], usize);

impl Cut for Lengths<'_> {
    fn cut(&mut self, text: &str) -> Vec<String> {
        let mut parts = Vec::new();
        let mut rest = text.chars().peekable();
        while rest.peek().is_some() {
            parts.push(rest.by_ref().take(self.0[self.1 % self.0.len()]).collect());
            self.1 += 1;
        }
        parts
    }
}

fn merged(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut all: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (all.last_mut(), delta) {
            (Some(Delta::Reasoning(last)), Delta::Reasoning(more))
            | (Some(Delta::Text(last)), Delta::Text(more))
            | (Some(Delta::Arguments(last)), Delta::Arguments(more)) => last.push_str(&more),
            (_, delta) => all.push(delta),
        }
    }
    all
}

fn assert_well_formed(deltas: &[Delta]) {
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) | Delta::Text(text) | Delta::Arguments(text) => {
                assert!(!text.is_empty(), "an empty delta in {deltas:?}");
            }
            Delta::Call { name, .. } => assert!(!name.trim().is_empty()),
        }
    }
}

/// `R reasoning`, `T text`, `C name`, `A arguments`, one per delta.
fn said(deltas: &[Delta]) -> Vec<String> {
    deltas
        .iter()
        .map(|delta| match delta {
            Delta::Reasoning(text) => format!("R {text}"),
            Delta::Text(text) => format!("T {text}"),
            Delta::Call { name, .. } => format!("C {name}"),
            Delta::Arguments(text) => format!("A {text}"),
        })
        .collect()
}

fn check(name: &str, format: &OutputFormat, start: Start, pieces: &[Piece], expected: &[&str]) {
    let whole = read(format, start, pieces, &mut Whole);
    assert_eq!(said(&whole.deltas), expected, "{name}: {pieces:?}");
    for length in 1..4 {
        let cut = read(format, start, pieces, &mut Lengths(&[length], 0));
        assert_eq!(cut, whole, "{name}, {length} characters at a time");
    }
}

// ------------------------------------------------------------------------------- the named cases

/// Cases that read the same with markers as tokens and as letters.
const EITHER: &[(&str, &str, &[&str])] = &[
    ("nothing", "", &[]),
    ("blank only", " \n\n\t", &[]),
    ("text", "Hello,\n\nworld.\n", &["T Hello,\n\nworld.\n"]),
    ("text keeps its leading blanks at the start", "\n  Hi", &["T \n  Hi"]),
    ("reasoning and text", "<think>\nHm.\n\nSo.\n</think>\n\nHi.", &["R Hm.\n\nSo.", "T Hi."]),
    ("indented reasoning", "<think>\n\n  a\n  \n</think>\n\n  b", &["R   a\n  ", "T   b"]),
    ("blank reasoning", "<think>\n\n</think>\n\nHi.", &["T Hi."]),
    ("reasoning alone", "<think>\nHm.\n</think>", &["R Hm."]),
    ("reasoning cut off", "<think>\nHm.\n", &["R Hm.\n"]),
    ("reasoning cut off while blank", "<think>\n", &[]),
    (
        "reasoning again",
        "<think>a</think>b\n<think>\nc\n</think>\nd",
        &["R a", "T b", "R c", "T d"],
    ),
    ("a blank one again does not part a message", "a\n<think>\n</think>\nb", &["T a\n\nb"]),
    ("opened twice", "<think>\n<think>\na</think>b", &["R a", "T b"]),
    ("closed twice", "<think>a</think></think>\nb", &["R a", "T b"]),
    ("closed without an opening", "a</think>b", &["T ab"]),
    (
        "a call",
        "<tool_call>\n{\"name\": \"list_files\", \"arguments\": {\"path\": \".\"}}\n</tool_call>",
        &["C list_files", "A {\"path\": \".\"}"],
    ),
    (
        "everything",
        "<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n\
         </tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\nDone.\n",
        &["R Hm.", "T Let me see.", "C f", "A {}", "C g", "A {\"a\": 1}", "T Done.\n"],
    ),
    (
        "odd spacing, key order and escapes stay (case 7 in docs/faults.md)",
        "<tool_call>{ \"name\" :\"f\",\"arguments\" :  { \"b\":1,   \"a\" :\"\\u00e9é\\/\" } }</tool_call>",
        &["C f", "A { \"b\":1,   \"a\" :\"\\u00e9é\\/\" }"],
    ),
    (
        "arguments first",
        "<tool_call>{\"arguments\": {\"a\": [1]}, \"name\": \"f\"}</tool_call>",
        &["C f", "A {\"a\": [1]}"],
    ),
    (
        "parameters",
        "<tool_call>{\"name\": \"f\", \"parameters\": {\"a\": 1}}</tool_call>",
        &["C f", "A {\"a\": 1}"],
    ),
    ("no arguments", "<tool_call>{\"name\": \"f\"}</tool_call>", &["C f", "A {}"]),
    (
        "arguments are blank",
        "<tool_call>{\"name\": \"f\", \"arguments\": \" \"}</tool_call>",
        &["C f", "A {}"],
    ),
    (
        "arguments encoded twice",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"\\u00e9\\ud83d\\ude00\\\\n\\\"}\"}</tool_call>",
        &["C f", "A {\"a\": \"é😀\\n\"}"],
    ),
    (
        "arguments are a plain string",
        "<tool_call>{\"name\": \"f\", \"arguments\": \" \\u0041 \\\" b\"}</tool_call>",
        &["C f", "A \" \\u0041 \\\" b\""],
    ),
    (
        "arguments are a list, a number, a word",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1, {}]}</tool_call>\
         <tool_call>{\"name\": \"g\", \"arguments\": -1.5e3 }</tool_call>\
         <tool_call>{\"name\": \"h\", \"arguments\": null}</tool_call>",
        &["C f", "A [1, {}]", "C g", "A -1.5e3", "C h", "A null"],
    ),
    (
        "other keys",
        "<tool_call>{\"id\": [\"}\", {\"name\": \"x\"}], \"name\": \"f\", \"x\": \"\\\"}\", \"arguments\": {}, \"y\": 1}</tool_call>",
        &["C f", "A {}"],
    ),
    (
        "keys twice: the first counts",
        "<tool_call>{\"name\": \"f\", \"name\": \"g\", \"arguments\": {}, \"arguments\": {\"a\": 1}}</tool_call>",
        &["C f", "A {}"],
    ),
    (
        "keys and names are decoded",
        "<tool_call>{\"n\\u0061me\": \"\\u0066\\n\", \"arguments\": {}}</tool_call>",
        &["C f\n", "A {}"],
    ),
    (
        "a marker and braces in strings",
        "<tool_call>{\"name\": \"w\", \"arguments\": {\"s\": \"}</tool_call>{<tool_call></think>\"}}</tool_call>",
        &["C w", "A {\"s\": \"}</tool_call>{<tool_call></think>\"}"],
    ),
    ("no closing marker", "<tool_call>{\"name\": \"f\", \"arguments\": {}}", &["C f", "A {}"]),
    (
        "no closing brace",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}\n</tool_call>\nHi",
        &["C f", "A {}", "T Hi"],
    ),
    ("neither", "<tool_call>{\"name\": \"f\", \"arguments\": {}", &["C f", "A {}"]),
    (
        "a comma too many",
        "<tool_call>{\"name\": \"f\", \"arguments\": {},}</tool_call>",
        &["C f", "A {}"],
    ),
    (
        "a brace too many",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}}\n}</tool_call>\nHi",
        &["C f", "A {}", "T Hi"],
    ),
    (
        "a brace too few",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": {}</tool_call>Hi",
        &["C f", "A {\"a\": {}", "T Hi"],
    ),
    (
        "no closing marker before the next call",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n<tool_call>{\"name\": \"g\"}</tool_call>",
        &["C f", "A {}", "C g", "A {}"],
    ),
    (
        "the next call in the middle of one",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": <tool_call>{\"name\": \"g\"}</tool_call>",
        &["C f", "A {\"a\": ", "C g", "A {}"],
    ),
    (
        "closing markers too many",
        "<tool_call>{\"name\": \"f\"}</tool_call>\n</tool_call>\nHi",
        &["C f", "A {}", "T Hi"],
    ),
    (
        "text behind the object",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}} } so</tool_call>\nHi",
        &["C f", "A {}", "T  } so\nHi"],
    ),
    (
        "not an object",
        "Use <tool_call> and </tool_call>.",
        &["T Use <tool_call> and </tool_call>."],
    ),
    (
        "not an object, then a call",
        "a\n<tool_call><tool_call>{\"name\": \"f\"}</tool_call>",
        &["T a\n<tool_call>", "C f", "A {}"],
    ),
    ("an empty body", "a\n<tool_call>\n</tool_call>\nb", &["T a\n<tool_call>\n</tool_call>\nb"]),
    (
        "malformed before the name",
        "a\n<tool_call>\n{name: \"f\"}\n</tool_call>\n",
        &["T a\n<tool_call>\n{name: \"f\"}\n</tool_call>\n"],
    ),
    (
        "no name",
        "<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>",
        &["T <tool_call>{\"arguments\": {\"a\": 1}}</tool_call>"],
    ),
    (
        "an empty name",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        &["T <tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>"],
    ),
    (
        "a name that is no string",
        "<tool_call>{\"name\": 5}</tool_call>",
        &["T <tool_call>{\"name\": 5}</tool_call>"],
    ),
    (
        "a quote missing before the name",
        "<tool_call>{\"name: \n<tool_call>{\"name\": \"f\"}</tool_call>",
        &["T <tool_call>{\"name: ", "C f", "A {}"],
    ),
    (
        "malformed behind the name",
        "<tool_call>{\"name\": \"f\", oops}</tool_call>\nHi",
        &["C f", "A {}", "T oops}\nHi"],
    ),
    (
        "brackets that do not pair",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1}}}</tool_call>\nHi",
        &["C f", "A {\"a\": [1", "T Hi"],
    ),
    (
        "a value is missing",
        "<tool_call>{\"name\": \"f\", \"arguments\": }</tool_call>",
        &["C f", "A {}"],
    ),
    ("cut off at the marker", "a\n<tool_call>\n", &["T a\n<tool_call>\n"]),
    ("cut off in the name", "<tool_call>\n{\"name\": \"li", &["T <tool_call>\n{\"name\": \"li"]),
    (
        "cut off in the arguments",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b",
        &["C f", "A {\"a\": \"b"],
    ),
    ("cut off behind the name", "<tool_call>\n{\"name\": \"f\"", &["C f"]),
    ("a partial marker at the end", "a <tool_cal", &["T a <tool_cal"]),
    ("partial markers on the way", "<<tool_call <tool_</think", &["T <<tool_call <tool_</think"]),
];

#[test]
fn either_kind_of_marker() {
    for (name, output, expected) in EITHER {
        check(name, &qwen(), Start::Text, &tokens(output), expected);
        check(name, &forced(), Start::Text, &tokens(output), expected);
        check(name, &smol(), Start::Text, &letters(output), expected);
    }
}

/// Cases for markers that are tokens.
const TOKENS: &[(&str, &str, &[&str])] = &[
    (
        "letters are no marker",
        "~<think>a~</think> ~<tool_call>{\"name\": \"f\"}~</tool_call>",
        &["T <think>a</think> <tool_call>{\"name\": \"f\"}</tool_call>"],
    ),
    (
        "a call ends reasoning",
        "<think>\nHm.\n<tool_call>{\"name\": \"f\"}</tool_call>\nHi",
        &["R Hm.", "C f", "A {}", "T Hi"],
    ),
    (
        "reasoning about markers",
        "<think>The <tool_call> and </tool_call> tags.</think>Hi",
        &["R The <tool_call> and </tool_call> tags.", "T Hi"],
    ),
    (
        "reasoning closes in a call that has not begun",
        "<think>a <tool_call>{\"na</think>b",
        &["R a <tool_call>{\"na</think>b"],
    ),
    (
        "reasoning closes behind a call that has not begun",
        "<think>a <tool_call>{</think>b",
        &["R a <tool_call>{", "T b"],
    ),
    (
        "special tokens show nowhere",
        "<|fim|>a<|fim|>b<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"<|fim|>x\"<|fim|>}}</tool_call>",
        &["T ab", "C f", "A {\"a\": \"x\"}"],
    ),
    (
        "other added tokens are text",
        "<tool_response>a<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"<tool_response>\"}}</tool_call>",
        &["T <tool_response>a", "C f", "A {\"a\": \"<tool_response>\"}"],
    ),
];

#[test]
fn markers_that_are_tokens() {
    for (name, output, expected) in TOKENS {
        check(name, &qwen(), Start::Text, &tokens(output), expected);
    }
}

#[test]
fn the_prompt_opened_reasoning() {
    let cases: &[(&str, &str, &[&str])] = &[
        ("closes", "Hm.\n</think>\n\nHi", &["R Hm.", "T Hi"]),
        ("closes at once", "</think>\n\nHi", &["T Hi"]),
        ("closes while blank", "\n</think>\n\nHi", &["T Hi"]),
        ("opens it again", "<think>\nHm.</think>Hi", &["R Hm.", "T Hi"]),
        ("never closes", "Hm.\n", &["R Hm.\n"]),
        ("a call at once", "<tool_call>{\"name\": \"f\"}</tool_call>", &["C f", "A {}"]),
        ("no call at once", "<tool_call>, so</think>", &["R <tool_call>, so"]),
    ];
    for (name, output, expected) in cases {
        check(name, &qwen(), Start::Reasoning, &tokens(output), expected);
        check(name, &smol(), Start::Reasoning, &letters(output), expected);
        check(name, &forced(), Start::Reasoning, &tokens(output), expected);
    }
    let aloud = "So <tool_call>{\"name\": \"f\"}</tool_call></think>Hi";
    let expected = ["R So <tool_call>{\"name\": \"f\"}</tool_call>", "T Hi"];
    check("letters think aloud", &smol(), Start::Reasoning, &letters(aloud), &expected);
}

/// Case 15 in docs/faults.md: a named `tool_choice` is a grammar, and its literals come in any
/// tokens that fit.
#[test]
fn a_grammar_spells_the_markers() {
    let output = "~<tool_call>\n{\"name\": \"f\", \"arguments\": {\"path\": \".\"}}\n~</tool_call>";
    let expected = ["C f", "A {\"path\": \".\"}"];
    check("letters", &forced(), Start::Text, &tokens(output), &expected);
    check("in reasoning", &forced(), Start::Reasoning, &tokens(output), &expected);
    let mixed =
        "<tool_call>{\"name\": \"f\"}~</tool_call>~<tool_call>{\"name\": \"g\"}</tool_call>";
    check("mixed", &forced(), Start::Text, &tokens(mixed), &["C f", "A {}", "C g", "A {}"]);
}

#[test]
fn special_markers_act_even_in_a_string() {
    let pieces = [
        Piece::Added(151_657, "<tool_call>", true),
        Piece::Text("{\"name\": \"f\", \"arguments\": {\"a\": \"b".into()),
        Piece::Added(151_658, "</tool_call>", true),
        Piece::Text("Hi ".into()),
        Piece::Added(151_657, "<tool_call>", true),
        Piece::Text("{oops}".into()),
        Piece::Added(151_658, "</tool_call>", true),
    ];
    let expected = ["C f", "A {\"a\": \"b", "T Hi {oops}"];
    check("special", &qwen(), Start::Text, &pieces, &expected);
}

#[test]
fn a_model_without_reasoning_has_no_reasoning_markers() {
    let format = OutputFormat { think: None, ..smol() };
    let output = "<think>a</think>";
    for start in [Start::Text, Start::Reasoning] {
        check("no reasoning", &format, start, &letters(output), &["T <think>a</think>"]);
    }
}

#[test]
fn the_place_of_reasoning() {
    let cases: &[(&str, Start, Option<Range<usize>>)] = &[
        ("Hi", Start::Text, None),
        ("<think>a</think>b", Start::Text, Some(0..3)),
        ("a<think></think>b", Start::Text, Some(1..3)),
        ("<think>a</think>b<think>c</think>", Start::Text, Some(0..3)),
        ("a</think>b", Start::Reasoning, Some(0..2)),
        ("</think>b", Start::Reasoning, Some(0..1)),
        ("a</think>", Start::Text, None),
        ("<think>a", Start::Text, Some(0..2)),
        ("a", Start::Reasoning, Some(0..1)),
        ("<think>a<tool_call>{\"name\": \"f\"}</tool_call>", Start::Text, Some(0..2)),
        ("<tool_call>{\"name\": \"f\"}</tool_call>", Start::Reasoning, None),
        ("<think>a<tool_call>b</tool_call>c</think>d", Start::Text, Some(0..7)),
    ];
    for (output, start, expected) in cases {
        let read = read(&qwen(), *start, &tokens(output), &mut Whole);
        assert_eq!(read.reasoning, *expected, "{output}");
    }
    let placeless = read(&smol(), Start::Text, &letters("<think>a</think>b"), &mut Whole);
    assert_eq!(placeless.reasoning, None);
}

#[test]
fn whether_the_last_call_is_whole() {
    let cases = [
        ("Hi", false),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", false),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {}}", false),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {}", false),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {}, oops", false),
        ("<tool_call>{\"name\": \"f\"}", false),
        ("<tool_call>{\"name\": \"f\"</tool_call>", false),
        ("<tool_call>{\"name\": \"f\"", true),
        ("<tool_call>{\"name\": \"f\", oops", true),
        ("<tool_call>{\"name\": \"f\", \"arguments\": ", true),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", true),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {</tool_call>", true),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {</tool_call>Hi", true),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {<tool_call>{\"name\": \"g\"}", false),
        ("<tool_call>{\"name\": \"f\", \"arguments\": \"{", true),
        ("<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"", false),
    ];
    for (output, expected) in cases {
        let tokens = read(&qwen(), Start::Text, &tokens(output), &mut Whole);
        assert_eq!(tokens.incomplete, expected, "{output}");
        let letters = read(&smol(), Start::Text, &letters(output), &mut Whole);
        assert_eq!(letters.incomplete, expected, "{output}");
    }
}

/// What a client sees must not wait for what comes after it.
#[test]
fn nothing_waits_longer_than_it_must() {
    let mut parser = OutputReader::new(smol(), Start::Text, count_up());
    let mut next = |text: &str| {
        let mut out = Vec::new();
        parser.text(text, &mut out);
        said(&out)
    };
    assert_eq!(next("Hel"), ["T Hel"]);
    assert_eq!(next("lo <"), ["T lo "]);
    assert_eq!(next("b>\n"), ["T <b>"]);
    assert_eq!(next("<tool_call>"), [""; 0]);
    assert_eq!(next("\n{\"name\": \"f"), [""; 0]);
    assert_eq!(next("\""), ["C f"]);
    assert_eq!(next(", \"arguments\": {"), ["A {"]);
    assert_eq!(next("\"a\": \"x<"), ["A \"a\": \"x<"]);
    assert_eq!(next("\"}"), ["A \"}"]);
}

#[test]
fn call_ids_are_minted_once_per_call() {
    let output = "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>x<tool_call>{\"name\": \"g\"}";
    let ids: Vec<String> = read(&qwen(), Start::Text, &tokens(output), &mut Whole)
        .deltas
        .into_iter()
        .filter_map(|delta| match delta {
            Delta::Call { call_id, .. } => Some(call_id),
            _ => None,
        })
        .collect();
    assert_eq!(ids, ["call_1", "call_2"]);
}

#[test]
fn too_deep_is_malformed() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
        format!(
            "<tool_call>{{\"name\": \"f\", \"arguments\": {{\"a\": {open}{close}}}}}</tool_call>"
        )
    };
    assert!(!read(&qwen(), Start::Text, &tokens(&nested(512)), &mut Whole).incomplete);
    let deep = read(&qwen(), Start::Text, &tokens(&nested(513)), &mut Whole);
    assert!(deep.incomplete);
    assert!(matches!(deep.deltas.last(), Some(Delta::Text(_))));
}

// ------------------------------------------------------------------------------- hostile output

/// Linear time: these take a few milliseconds, and seconds if anything is looked at twice per
/// character. The bound leaves room for a busy machine.
#[test]
fn hostile_output_costs_what_its_length_costs() {
    const LENGTH: usize = 50_000;
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": ";
    let first = "<tool_call>{\"arguments\": ";
    let flood = |unit: &str| unit.repeat(LENGTH / unit.len());
    let outputs = [
        flood("<"),
        flood("<tool_call"),
        flood("<tool_call>"),
        flood("<tool_call>{"),
        flood("</tool_call>"),
        flood("<think>"),
        flood("<think></think>"),
        flood("\n"),
        flood("\n<"),
        flood("{"),
        flood("<tool_call>{\""),
        format!("{call}{}", flood("{")),
        format!("{call}{}", flood("[{")),
        format!("{call}\"{}", flood("\\u0020")),
        format!("{call}\"{{{}", flood("\\ud83d")),
        format!("{call}{{\"{}", flood("\\\"")),
        format!("{call}{{}}{}", flood("}")),
        format!("{call}{{}}, {}", flood("\"k\": 1, ")),
        format!("{call}{{}}, \"{}", flood("k")),
        format!("{first}{}", flood("[")),
        format!("{first}\"{}", flood(" ")),
        format!("{first}{{\"{}", flood("é")),
        flood("<tool_call>{\"name\": \"f\"}</tool_call>"),
    ];
    for output in &outputs {
        for (format, pieces) in [(qwen(), tokens(output)), (smol(), letters(output))] {
            let best = (0..3)
                .map(|_| {
                    let start = Instant::now();
                    let mut parser = OutputReader::new(format.clone(), Start::Text, count_up());
                    let mut out = Vec::new();
                    for (index, piece) in pieces.iter().enumerate() {
                        match piece {
                            Piece::Text(text) => parser.text(text, &mut out),
                            Piece::Added(id, content, special) => {
                                parser.added(*id, content, *special, index, &mut out);
                            }
                        }
                    }
                    parser.finish(pieces.len(), &mut out);
                    start.elapsed()
                })
                .min()
                .unwrap();
            let beginning: String = output.chars().take(60).collect();
            assert!(best < Duration::from_millis(100), "{best:?} for {beginning}…");
        }
    }
}

/// Blanks decide late whether arguments in a string are an object; deciding must not look back.
#[test]
fn a_long_blank_beginning_is_looked_at_once() {
    let output =
        format!("<tool_call>{{\"name\": \"f\", \"arguments\": \"{}{{}}\"}}", " ".repeat(200_000));
    let start = Instant::now();
    read(&qwen(), Start::Text, &tokens(&output), &mut Whole);
    assert!(start.elapsed() < Duration::from_millis(500));
}

// ----------------------------------------------------------------------------------- properties

/// Output built from what the grammar is made of, sound and broken.
fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        3 => select(vec![
            "<think>", "</think>", "<tool_call>", "</tool_call>", "<|fim|>", "<tool_response>",
            "~<think>", "~</think>", "~<tool_call>", "~</tool_call>",
        ])
        .prop_map(str::to_owned),
        2 => select(vec!["<", "</", "<tool", "<tool_cal", "</tool_call", "<th", "</think", ">", "<<"])
            .prop_map(str::to_owned),
        4 => select(vec![
            "{", "}", "[", "]", "\"", ":", ",", "\\", "\\\"", "\\u00e9", "\\ud83d", "\\ude00", "\\n",
            "{\"name\": \"f\"", "\"name\"", "\"arguments\": ", "\"parameters\":", "{\"a\": 1}", "null",
            "-1.5", ", \"arguments\": {\"b\":1, \"a\":[{}]}}", "\"{\\\"a\\\": 2}\"", "{\"arguments\": ",
            "{\"name\": \"g\", \"arguments\": ",
        ])
        .prop_map(str::to_owned),
        2 => select(vec!["\n", "\n\n", " ", "\t", "a", "bc d", "é", "😀", "\u{3000}", "\r\n"])
            .prop_map(str::to_owned),
        1 => "\\PC{0,4}".prop_map(|text| text.replace('~', "-")),
        2 => Just("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"p\": \"~</tool_call>\"}}\n</tool_call>".to_owned()),
    ];
    vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

fn any_start() -> impl Strategy<Value = Start> {
    prop_oneof![Just(Start::Text), Just(Start::Reasoning)]
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z_]{1,12}", "[a-z.\"\\\\/é😀-]{1,8}"]
}

/// JSON as a model might space it, in its raw bytes.
fn any_json() -> impl Strategy<Value = String> {
    let string = "[a-z<>/_{}\\[\\]\" \\\\é😀\n\t]{0,12}"
        .prop_map(|text: String| serde_json::to_string(&text).unwrap());
    let leaf = prop_oneof![
        string.clone(),
        Just("\"</tool_call>\\u00e9\\ud83d\\ude00\\/\"".to_owned()),
        "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,2})?",
        select(vec!["true", "false", "null"]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        let gap = || "[ \n\t]{0,2}";
        let pair = (string.clone(), gap(), gap(), inner.clone())
            .prop_map(|(key, before, after, value)| format!("{key}{before}:{after}{value}"));
        prop_oneof![
            (vec(inner, 0..4), gap(), gap())
                .prop_map(|(all, left, right)| format!("[{left}{}{right}]", all.join(", "))),
            (vec(pair, 0..4), gap(), gap())
                .prop_map(|(all, left, right)| format!("{{{left}{}{right}}}", all.join(" ,"))),
        ]
    })
}

fn any_arguments() -> impl Strategy<Value = String> {
    vec(("[a-z]{1,6}".prop_map(|key| format!("\"{key}\"")), any_json()), 0..4).prop_map(|pairs| {
        let pairs: Vec<String> =
            pairs.into_iter().map(|(key, value)| format!("{key}: {value}")).collect();
        format!("{{{}}}", pairs.join(", "))
    })
}

/// Prose as the round trip can keep it: visible, and without newlines at its ends.
fn any_prose() -> impl Strategy<Value = String> {
    vec(
        select(vec!["a", "é😀", " ", "\n", "<", "<tool", "</think", "{\"name\": ", "}", "\\"]),
        1..10,
    )
    .prop_map(|parts| parts.concat().trim_matches('\n').to_owned())
    .prop_filter("visible", |text| !text.trim().is_empty())
}

fn render(
    reasoning: Option<&str>,
    text: Option<&str>,
    calls: &[(String, String)],
    name_first: bool,
) -> String {
    let thought = reasoning.map(|text| format!("<think>\n{text}\n</think>\n\n"));
    let mut parts: Vec<String> = text.iter().map(|text| (*text).to_owned()).collect();
    parts.extend(calls.iter().map(|(name, arguments)| {
        let name = serde_json::to_string(name).unwrap();
        let body = if name_first {
            format!("{{\"name\": {name}, \"arguments\": {arguments}}}")
        } else {
            format!("{{\"arguments\": {arguments}, \"name\": {name}}}")
        };
        format!("<tool_call>\n{body}\n</tool_call>")
    }));
    thought.unwrap_or_default() + &parts.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    /// Law 6.
    #[test]
    fn chunk_blind(
        output in fragments(),
        start in any_start(),
        lengths in vec(1_usize..12, 1..8),
    ) {
        for (format, pieces) in [
            (qwen(), tokens(&output)),
            (forced(), tokens(&output)),
            (smol(), letters(&output)),
            (OutputFormat { think: None, ..smol() }, letters(&output)),
        ] {
            let whole = read(&format, start, &pieces, &mut Whole);
            let cut = read(&format, start, &pieces, &mut Lengths(&lengths, 0));
            prop_assert_eq!(&cut, &whole);
            let single = read(&format, start, &pieces, &mut Lengths(&[1], 0));
            prop_assert_eq!(&single, &whole);
        }
    }

    /// What is no call is text, to the last character.
    #[test]
    fn no_text_is_lost(output in fragments()) {
        let output = output.replace("<|fim|>", "").replace("think", "thank");
        let written = output.replace('~', "");
        let format = OutputFormat { think: None, ..qwen() };
        for (format, pieces) in [
            (format, tokens(&output)),
            (OutputFormat { think: None, ..smol() }, letters(&output)),
        ] {
            let Read { deltas, .. } = read(&format, Start::Text, &pieces, &mut Whole);
            if deltas.iter().any(|delta| matches!(delta, Delta::Call { .. })) {
                continue;
            }
            let expected = if written.trim().is_empty() { vec![] } else { vec![Delta::Text(written.clone())] };
            prop_assert_eq!(deltas, expected);
        }
    }

    /// A delta is of an item: arguments follow their call, and every call gets some, or is the
    /// last and incomplete.
    #[test]
    fn items_are_well_formed(output in fragments(), start in any_start()) {
        for (format, pieces) in [(forced(), tokens(&output)), (smol(), letters(&output))] {
            let Read { deltas, incomplete, .. } = read(&format, start, &pieces, &mut Whole);
            for (at, delta) in deltas.iter().enumerate() {
                match delta {
                    Delta::Arguments(_) => {
                        let call = at.checked_sub(1).and_then(|at| deltas.get(at));
                        let follows = matches!(call, Some(Delta::Call { .. }));
                        prop_assert!(follows, "{:?}", deltas);
                    }
                    Delta::Call { .. } => {
                        let arguments = matches!(deltas.get(at + 1), Some(Delta::Arguments(_)));
                        prop_assert!(arguments || incomplete && at + 1 == deltas.len());
                    }
                    Delta::Reasoning(text) | Delta::Text(text) => {
                        prop_assert!(!text.trim().is_empty());
                    }
                }
            }
        }
    }

    /// What is rendered in the family's form reads back.
    #[test]
    fn round_trip(
        reasoning in proptest::option::of(any_prose()),
        text in proptest::option::of(any_prose()),
        calls in vec((any_name(), any_arguments()), 0..4),
        lengths in vec(1_usize..9, 1..6),
        name_first: bool,
    ) {
        let mut expected = Vec::new();
        expected.extend(reasoning.clone().map(Delta::Reasoning));
        expected.extend(text.clone().map(Delta::Text));
        for (at, (name, arguments)) in calls.iter().enumerate() {
            expected.push(Delta::Call { call_id: format!("call_{}", at + 1), name: name.clone() });
            expected.push(Delta::Arguments(arguments.clone()));
        }
        let output = render(reasoning.as_deref(), text.as_deref(), &calls, name_first);
        for (format, pieces) in [
            (qwen(), tokens(&output)),
            (forced(), tokens(&output)),
            (smol(), letters(&output)),
        ] {
            let read = read(&format, Start::Text, &pieces, &mut Lengths(&lengths, 0));
            prop_assert_eq!(&read.deltas, &expected);
            prop_assert!(!read.incomplete);
        }
    }

    /// Arguments that a model encoded twice come out encoded once.
    #[test]
    fn encoded_twice(arguments in any_arguments(), lengths in vec(1_usize..9, 1..6)) {
        let twice = serde_json::to_string(&arguments).unwrap();
        let calls = [("f".to_owned(), twice)];
        let output = render(None, None, &calls, true);
        let read = read(&smol(), Start::Text, &letters(&output), &mut Lengths(&lengths, 0));
        prop_assert_eq!(read.deltas.last(), Some(&Delta::Arguments(arguments)));
    }
}
