//! Calls in other forms than hermes: named cases, hostile output, and law 6.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use turnwire_core::family::marker::Marker;
use turnwire_core::family::output::form::{BodyForm, CallForm, Elements, Tags};
use turnwire_core::family::output::{OutputFormat, OutputReader, Start};
use turnwire_core::family::{Delta, OutputParser};
use turnwire_core::header::{Header, ParameterTypes, RawHeader};

fn types() -> Arc<ParameterTypes> {
    let tools = br#"[{"type":"function","name":"f","parameters":{"type":"object","properties":{
        "s":{"type":"string"},"n":{"type":"integer"},"o":{"type":"object"}}}},
        {"type":"function","name":"g"}]"#;
    let raw = RawHeader { tools: Some(tools), ..RawHeader::default() };
    Header::parse(raw).unwrap().parameter_types()
}

fn form(open: &str, close: Option<&str>, body: BodyForm) -> CallForm {
    let text = |text: &str| Marker::Text(text.to_owned());
    CallForm {
        open: text(open),
        close: close.map(text),
        around: vec![text("<all>"), text("</all>")],
        body,
        parts: Vec::new(),
        bare: open == "{",
    }
}

fn tags(key: &str, value: &str, value_end: &str, end: &str, lines: bool) -> BodyForm {
    BodyForm::Tagged(Tags {
        before: if end == "</function>" { "<function=".to_owned() } else { String::new() },
        key: key.to_owned(),
        value: value.to_owned(),
        value_end: value_end.to_owned(),
        lines,
        end: end.to_owned(),
    })
}

/// Qwen3-Coder, GLM, Kimi, `DeepSeek` R1, Mistral, bare objects, Llama 3, Gemma 4, `MiniMax` M3.
fn forms() -> [CallForm; 9] {
    let named = |before: &str, after: &str| BodyForm::Named {
        before: before.to_owned(),
        after: after.to_owned(),
    };
    let xml = tags("<parameter=", ">", "</parameter>", "</function>", true);
    let glm = tags("<arg_key>", "<arg_value>", "</arg_value>", "", false);
    let braced =
        BodyForm::Braced { before: "call:".to_owned(), quote: Marker::Text("<|\"|>".to_owned()) };
    let elements = BodyForm::Elements(Elements {
        before: String::new(),
        behind: "\">".to_owned(),
        mark: Marker::Text("]~[".to_owned()),
        item: "item".to_owned(),
        end: "</invoke>".to_owned(),
    });
    [
        form("<tool_call>", Some("</tool_call>"), xml),
        form("<tool_call>", Some("</tool_call>"), glm),
        form("<call>", Some("</call>"), named("functions.", "")),
        form("<call>", Some("</call>"), named("function<sep>", "```")),
        form("[TOOL_CALLS]", None, BodyForm::Object { list: true }),
        form("{", None, BodyForm::Object { list: false }),
        CallForm { bare: true, ..form("<|python_tag|>", None, BodyForm::Python) },
        form("<|call>", Some("<call|>"), braced),
        form("]~[<invoke name=\"", None, elements),
    ]
}

fn read(form: &CallForm, pieces: &[String]) -> Vec<Delta> {
    let format =
        OutputFormat { think: None, call: Some(form.clone()), tools: types(), text_markers: false };
    let mut calls = 0;
    let mint = Box::new(move || {
        calls += 1;
        format!("call_{calls}")
    });
    let mut reader = OutputReader::new(format, Start::Text, mint);
    let mut out = Vec::new();
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        reader.text(piece, &mut out);
    }
    reader.finish(pieces.len(), &mut out);
    merged(&out)
}

fn merged(deltas: &[Delta]) -> Vec<Delta> {
    let mut whole: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (whole.last_mut(), delta) {
            (Some(Delta::Text(last)), Delta::Text(more))
            | (Some(Delta::Arguments(last)), Delta::Arguments(more)) => last.push_str(more),
            _ => whole.push(delta.clone()),
        }
    }
    whole
}

fn shown(form: &CallForm, output: &str) -> Vec<String> {
    let show = |delta: Delta| match delta {
        Delta::Text(text) => format!("T {text}"),
        Delta::Call { name, .. } => format!("C {name}"),
        Delta::Arguments(json) => format!("A {json}"),
        Delta::Reasoning(text) => format!("R {text}"),
    };
    read(form, &[output.to_owned()]).into_iter().map(show).collect()
}

#[test]
fn every_form_is_read() {
    let [xml, glm, kimi, r1, mistral, bare, llama, ..] = forms();
    let cases: [(&CallForm, &str, &[&str]); 29] = [
        (
            &xml,
            "Hi.\n\n<tool_call>\n<function=f>\n<parameter=s>\na\n\"b\"\n</parameter>\n\
             <parameter=n>\n7\n</parameter>\n</function>\n</tool_call>",
            &["T Hi.", "C f", r#"A {"s": "a\n\"b\"", "n": 7}"#],
        ),
        // By the schema, not by the looks; without one, by the looks.
        (
            &xml,
            "<tool_call><function=f><parameter=s>7</parameter><parameter=o>{\"a\": [1]}</parameter>\
             <parameter=x>true</parameter><parameter=y>yes</parameter></function></tool_call>",
            &["C f", r#"A {"s": "7", "o": {"a": [1]}, "x": true, "y": "yes"}"#],
        ),
        (
            &xml,
            "<tool_call><function=f><parameter=n>\nTrue\n</parameter></function></tool_call>",
            &["C f", r#"A {"n": true}"#],
        ),
        // What spells a marker inside a value is the value's.
        (
            &xml,
            "<tool_call><function=f><parameter=s>a</tool_call>b</param</parameter></function>\
             </tool_call>c",
            &["C f", r#"A {"s": "a</tool_call>b</param"}"#, "T c"],
        ),
        (&xml, "<tool_call><function=g></function></tool_call>", &["C g", "A {}"]),
        // Cut off: as far as it came.
        (&xml, "<tool_call><function=f><parameter=s>ab", &["C f", r#"A {"s": "ab"#]),
        // No call at all.
        (&xml, "<tool_call>what?</tool_call>", &["T <tool_call>what?</tool_call>"]),
        (
            &glm,
            "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x\n</arg_value>\n<arg_key>n</arg_key>\
             <arg_value>3</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
            &["C f", r#"A {"s": "x\n", "n": 3}"#, "C g", "A {}"],
        ),
        (
            &kimi,
            "<all><call>functions.f:0<begin>{\"s\": \"}</call>\"}</call><call>functions.g:1<begin>\
             {}</call></all>",
            &["C f", r#"A {"s": "}</call>"}"#, "C g", "A {}"],
        ),
        (
            &r1,
            "<call>function<sep>f\n```json\n{\"n\": 1}\n```</call>done",
            &["C f", r#"A {"n": 1}"#, "T done"],
        ),
        (
            &mistral,
            "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"x\"}, \
             {\"name\": \"g\", \"arguments\": {}}]",
            &["C f", r#"A {"n": 1}"#, "C g", "A {}"],
        ),
        (&bare, r#"{"name": "f", "parameters": {"n": 1}}"#, &["C f", r#"A {"n": 1}"#]),
        // Bare JSON is a call only under a declared name, and only at the start.
        (&bare, r#"{"name": "Bob", "age": 3}"#, &[r#"T {"name": "Bob", "age": 3}"#]),
        (&bare, r#"So: {"name": "f"}"#, &[r#"T So: {"name": "f"}"#]),
        (&bare, r#"{"a": 1}"#, &[r#"T {"a": 1}"#]),
        (
            &llama,
            r#"{"type": "function", "name": "f", "parameters": {"n": 1}}"#,
            &["C f", r#"A {"n": 1}"#],
        ),
        (
            &llama,
            "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\"}\n{\"name\": \"f\"}",
            &["C f", "A {}", "C g", "A {}", "C f", "A {}"],
        ),
        (
            &llama,
            r#"[{"name": "f", "arguments": {"n": 1}}, {"name": "g"}]"#,
            &["C f", r#"A {"n": 1}"#, "C g", "A {}"],
        ),
        (
            &llama,
            "[f(s='a\\'\"\\n', n=[1, -2.5, (True, None)], o={'k': {}}), g()]\n",
            &[
                "C f",
                r#"A {"s": "a'\"\n", "n": [1, -2.5, [true, null]], "o": {"k": {}}}"#,
                "C g",
                "A {}",
            ],
        ),
        (&llama, "<|python_tag|>f.call(s=\"x, y)\")", &["C f", r#"A {"s": "x, y)"}"#]),
        // What is no literal is a string of itself.
        (&llama, "[f(s=now(), n=1 + 1)]", &["C f", r#"A {"s": "now()", "n": "1 + 1"}"#]),
        // Cut off: as far as it was certain.
        (&llama, "[f(n=1, s=\"ab", &["C f", r#"A {"n": 1, "s": "#]),
        // No call: an unknown function, a positional argument, Markdown, code.
        (&llama, "[h(n=1)]", &["T [h(n=1)]"]),
        (&llama, "[f(1)]", &["T [f(1)]"]),
        (&llama, "[f](n=1)", &["T [f](n=1)"]),
        (&llama, "[1, {\"name\": \"f\"}]", &[r#"T [1, {"name": "f"}]"#]),
        (&llama, "<|python_tag|>print(f(n=1))", &["T <|python_tag|>print(f(n=1))"]),
        // What only begins like another call is text, with what stands before it.
        (&llama, "[f(), h(n=1)]", &["C f", "A {}", "T , h(n=1)]"]),
        (&llama, r#"{"name": "g"}; {"name": "h"}"#, &["C g", "A {}", r#"T ; {"name": "h"}"#]),
    ];
    for (form, output, expected) in cases {
        assert_eq!(shown(form, output), expected, "{output}");
    }
}

#[test]
fn arguments_that_nest_are_read() {
    let [.., gemma, minimax] = forms();
    let cases: [(&CallForm, &str, &[&str]); 15] = [
        (
            &gemma,
            "So.<|call>call:f{n:-7,o:{a b:[true,null,<|\"|>}<call|><|\"|>],c:{}},s:<|\"|>a\n\"b\"\\,<|\"|>}<call|>",
            &[
                "T So.",
                "C f",
                r#"A {"n": -7, "o": {"a b": [true, null, "}<call|>"], "c": {}}, "s": "a\n\"b\"\\,"}"#,
            ],
        ),
        (&gemma, "<|call>call:g{}<call|><|call>call:g{}<call|>", &["C g", "A {}", "C g", "A {}"]),
        // As JSON spells it; what is no JSON is a string; commas too many.
        (
            &gemma,
            "<|call>call:f{ \"s\" : \"x, \\\"y\", <|\"|>n<|\"|>: 1 , o: [yes, 2,], }<call|>",
            &["C f", r#"A {"s": "x, \"y", "n": 1, "o": ["yes", 2]}"#],
        ),
        // Cut off, by a limit and by a marker.
        (&gemma, "<|call>call:f{s:<|\"|>a<|", &["C f", r#"A {"s": "a"#]),
        (&gemma, "<|call>call:f{n:12<call|>b", &["C f", r#"A {"n": "#, "T b"]),
        // No call; and none in text that only begins like one.
        (&gemma, "<|call>f{}<call|>", &["T <|call>f{}<call|>"]),
        (&gemma, "<|call>call:f()<call|>", &["T <|call>call:f()<call|>"]),
        (&gemma, "<|call>call:f{}x<call|>", &["C f", "A {}", "T x"]),
        (
            &minimax,
            "So.<all>\n]~[<invoke name=\"f\">]~[<s>7 <b>\n]~[</s>]~[<n>12]~[</n>]~[<o>]~[<a>x]~[</a>\
             ]~[<l>]~[<item>1]~[</item>]~[<item>]~[<k>true]~[</k>]~[</item>]~[</l>]~[</o>]~[</invoke>\n</all>",
            &[
                "T So.",
                "C f",
                r#"A {"s": "7 <b>\n", "n": 12, "o": {"a": "x", "l": [1, {"k": true}]}}"#,
            ],
        ),
        (
            &minimax,
            "]~[<invoke name=\"g\">]~[</invoke>\n]~[<invoke name=\"g\">]~[</invoke>\nok",
            &["C g", "A {}", "C g", "A {}", "T ok"],
        ),
        // Ends that are missing: of elements, and of the call.
        (
            &minimax,
            "]~[<invoke name=\"f\">]~[<o>]~[<a>1]~[</o>]~[<s>x]~[</invoke>",
            &["C f", r#"A {"o": {"a": 1}, "s": "x"}"#],
        ),
        (&minimax, "]~[<invoke name=\"g\">]~[</any>", &["C g", "A {}"]),
        // Cut off: as far as it was certain.
        (&minimax, "]~[<invoke name=\"f\">]~[<s>a]~", &["C f", r#"A {"s": "a"#]),
        (&minimax, "]~[<invoke name=\"f\">]~[<n>1", &["C f", r#"A {"n": "#]),
        (&minimax, "]~[<invoke name=\"f\" x", &["T ]~[<invoke name=\"f\" x"]),
    ];
    for (form, output, expected) in cases {
        assert_eq!(shown(form, output), expected, "{output}");
    }
}

const FRAGMENTS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "f",
    "g",
    ">",
    "<parameter=",
    "s",
    "n",
    "o",
    "</parameter>",
    "</function>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<call>",
    "</call>",
    "functions.",
    "function<sep>",
    ":0",
    "<begin>",
    "```json",
    "```",
    "{",
    "}",
    "[",
    "]",
    "\"name\"",
    "\"arguments\"",
    ": ",
    ", ",
    "\"",
    "\\",
    "{\"s\": \"x\"}",
    "[TOOL_CALLS]",
    "<all>",
    "</all>",
    "\n",
    " ",
    "é",
    "7",
    "true",
    "<",
    "</",
    "a b",
    "<|python_tag|>",
    "f(",
    "s=",
    "'",
    ")",
    ";",
    "{\"name\": \"f\"",
    "<|call>call:f{",
    "<|\"|>",
    "<call|>",
    "o:",
    ",",
    "]~[",
    "<invoke name=\"f\">",
    "<o>",
    "</o>",
    "<item>",
    "</item>",
    "</invoke>",
];

fn output() -> impl Strategy<Value = String> {
    vec(select(FRAGMENTS), 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Law 6, for every form and whatever comes.
    #[test]
    fn pieces_do_not_matter(which in 0..9_usize, text in output(), cuts in vec(0..6_usize, 0..60)) {
        let form = &forms()[which];
        let mut pieces = Vec::new();
        let mut rest: Vec<char> = text.chars().collect();
        for cut in cuts {
            let after = rest.split_off(cut.min(rest.len()));
            pieces.push(rest.iter().collect::<String>());
            rest = after;
        }
        pieces.push(rest.iter().collect());
        prop_assert_eq!(read(form, &pieces), read(form, &[text]));
    }

    /// What is written between tags comes back as the JSON that it means.
    #[test]
    fn values_come_back(
        lines in any::<bool>(),
        text in "(?s).{0,60}",
        number in any::<i64>(),
    ) {
        let [xml, glm, ..] = forms();
        prop_assume!(!text.contains("</"));
        let output = if lines {
            format!(
                "<tool_call>\n<function=f>\n<parameter=s>\n{text}\n</parameter>\n<parameter=n>\n{number}\n\
                 </parameter>\n</function>\n</tool_call>"
            )
        } else {
            format!(
                "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>{text}</arg_value>\n<arg_key>n</arg_key>\n\
                 <arg_value>{number}</arg_value>\n</tool_call>"
            )
        };
        let deltas = read(if lines { &xml } else { &glm }, &[output]);
        let Some(Delta::Arguments(json)) = deltas.get(1) else { panic!("{deltas:?}") };
        let found: serde_json::Value = serde_json::from_str(json).unwrap();
        prop_assert_eq!(found, serde_json::json!({"s": text, "n": number}));
    }

    /// What is written in braces comes back, and in elements: whatever a string holds.
    #[test]
    fn values_that_nest_come_back(text in "(?s).{0,60}", number in any::<i64>(), flag in any::<bool>()) {
        prop_assume!(!text.contains("]~[") && !text.contains("<|\"|>"));
        let [.., gemma, minimax] = forms();
        let braces = format!(
            "<|call>call:f{{o:{{k:[{number},{{}}],t:{flag}}},s:<|\"|>{text}<|\"|>}}<call|>"
        );
        let elements = format!(
            "]~[<invoke name=\"f\">]~[<o>]~[<k>]~[<item>{number}]~[</item>]~[<item>{{}}]~[</item>]~[</k>\
             ]~[<t>{flag}]~[</t>]~[</o>]~[<s>{text}]~[</s>]~[</invoke>"
        );
        for (form, output) in [(gemma, braces), (minimax, elements)] {
            let deltas = read(&form, &[output]);
            let Some(Delta::Arguments(json)) = deltas.get(1) else { panic!("{deltas:?}") };
            let found: serde_json::Value = serde_json::from_str(json).unwrap();
            let meant = serde_json::json!({"o": {"k": [number, {}], "t": flag}, "s": text});
            prop_assert_eq!(found, meant);
        }
    }

    /// Text without a marker is all of it text.
    #[test]
    fn no_text_is_lost(which in select(vec![0_usize, 1, 2, 3, 4, 6, 7, 8]), words in vec(select(&["a", "b\n", " c", "{", "7"][..]), 1..20)) {
        let text = words.concat();
        let said: String = read(&forms()[which], std::slice::from_ref(&text)).into_iter().map(|delta| match delta {
            Delta::Text(text) => text,
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(said.trim(), text.trim());
    }
}
