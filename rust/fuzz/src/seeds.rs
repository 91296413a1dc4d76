//! Inputs to begin with: what a client, a model and a file usually are.

mod file;

use turnwire_core::family::Answer;

use crate::models::{self, BEYOND_BYTES};
use crate::push::{BEYOND, CUT, LITERAL};

/// The seeds of a target; none of one that there is not.
#[must_use]
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "items" => items(),
        "push" => push(),
        "detokenize" => detokenize(),
        "gguf" => file::files(),
        _ => Vec::new(),
    }
}

/// Scripts of [`crate::items`], but for their first line.
const SCRIPTS: [&str; 14] = [
    "oHi.\ng\"Hello\"\ng[{\"role\":\"user\",\"content\":\"again\"}]",
    "s\"Be brief.\"\nw[{\"role\":\"system\",\"content\":\"x\"},{\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":\"y\"}]}]\noa\ng\"b\"",
    "t[{\"type\":\"function\",\"name\":\"ls\",\"description\":\"Lists.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"p\":{\"type\":\"string\",\"enum\":[\"a\"]}},\"required\":[\"p\"]},\"strict\":true}]\nc\"auto\"\noyes\ng\"Do\"",
    "t[{\"type\":\"function\",\"name\":\"ls\"},{\"type\":\"custom\",\"name\":\"patch\",\"description\":\"d\",\"format\":{\"type\":\"grammar\",\"syntax\":\"lark\",\"definition\":\"start: /a/\"}}]\nc{\"type\":\"function\",\"name\":\"ls\"}\ng\"Do\"\nc\"required\"\np\ng\"Do\"\nc\"none\"\ng\"Do\"",
    "t[{\"type\":\"namespace\",\"name\":\"fs\",\"description\":\"d\",\"tools\":[{\"type\":\"function\",\"name\":\"rm\",\"parameters\":{}}]},{\"type\":\"web_search\"}]\nc{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":\"function\",\"name\":\"rm\"}]}\ng\"Do\"",
    "g[{\"role\":\"user\",\"content\":\"q\"},{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"s\"}],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"t\"}],\"encrypted_content\":null},{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"ls\",\"arguments\":\"{\\\"p\\\": \\\"a\\\"}\"},{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"ls\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"x\"},{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":\"input_text\",\"text\":\"y\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"z\",\"annotations\":[]}]},{\"role\":\"user\",\"content\":\"q\"}]",
    "w[{\"role\":\"user\",\"content\":\"q\"},{\"type\":\"custom_tool_call\",\"call_id\":\"c1\",\"name\":\"patch\",\"input\":\"i\"},{\"type\":\"custom_tool_call_output\",\"call_id\":\"c1\",\"output\":\"x\"}]\ng[{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}]",
    "o<think>why</think>Because.\ng\"a\"\ng\"b\"\nfa\ng\"c\"\nfb\na\"d\"\nr\ng\"e\"",
    "x\noHi.\ng[{\"role\":\"user\",\"content\":\"a\"}]\nr\ng[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"Hi.\"},{\"role\":\"user\",\"content\":\"b\"}]\nw[{\"role\":\"user\",\"content\":\"a\"}]",
    "eNone\ng\"a\"\nehigh\ng\"b\"\nenone\ng\"c\"\neminimal\ng\"d\"",
    "g[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"data:x\"},{\"type\":\"input_file\",\"filename\":\"f\",\"file_data\":\"data:text/plain;base64,YQ==\"}]}]",
    "g[{\"type\":\"item_reference\",\"id\":\"m\"},{\"type\":\"compaction\",\"encrypted_content\":\"e\"},{\"type\":\"web_search_call\",\"id\":\"w\",\"status\":\"completed\"}]",
    "w\"a\"\nh\"b\"\noc\ng\"d\"\nw[{\"role\":\"assistant\",\"content\":\"<think>e</think>f\"}]\nw[{\"type\":\"reasoning\",\"summary\":[]}]\ng\"g\"",
    "s\"a\\ud83d\\ude00\\u00e9\\n <|im_end|>\"\nwnull\nw[]\ng\"\"\ng[{\"role\":\"user\",\"content\":[]}]",
];

fn items() -> Vec<Vec<u8>> {
    let models = (b'a'..).take(models::COUNT);
    let script = |model, script: &str| {
        let mut bytes = vec![b'm', model, b'\n'];
        bytes.extend_from_slice(script.as_bytes());
        bytes
    };
    models.flat_map(|model| SCRIPTS.map(|text| script(model, text))).collect()
}

/// What models say, as text: calls in every form that is read.
const OUTPUTS: [&str; 16] = [
    "Hi.",
    "<think>\nwhy\n</think>\n\nBecause é🙂.",
    "<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"x\\ny\"}}\n</tool_call>",
    "<tool_call>\n<function=ls>\n<parameter=path>\na\n</parameter>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>ls\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n</tool_call>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.ls:0<|tool_call_argument_begin|>{\"path\": \"a\"}<|tool_call_end|><|tool_calls_section_end|>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ls<｜tool▁sep｜>{\"path\": \"a\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ls\n```json\n{\"path\": \"a\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"ls\">\n<｜DSML｜parameter name=\"path\" string=\"true\">a</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"ls\">\n<｜DSML｜parameter name=\"n\" string=\"false\">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary to=functions.ls <|constrain|>json<|message|>{\"path\": \"a\"}<|call|>",
    "<|channel|>commentary<|message|>First,<|end|><|start|>assistant to=functions.rm<|channel|>commentary<|message|>{}<|call|>",
    "{\"name\": \"ls\", \"parameters\": {\"path\": \"a\"}}<|eom_id|>",
    "<|python_tag|>ls.call(path=\"a\", n=7, o={'k': [True, None]})",
    "[TOOL_CALLS]ls[ARGS]{\"path\": \"a\"}[TOOL_CALLS]rm[CALL_ID]123456789[ARGS]{}</s>",
    "[THINK]why[/THINK][TOOL_CALLS][{\"name\": \"ls\", \"arguments\": {}, \"id\": \"123456789\"}]</s>",
];

fn push() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for model in (0..).take(models::COUNT) {
        let profile = models::at(model);
        for (place, output) in OUTPUTS.iter().enumerate() {
            let ids = profile.encode(output, true).unwrap_or_default();
            let options = u8::try_from(place).unwrap_or_default() << 2;
            seeds.push(coded(model, options, &ids));
        }
        let call = |name: &str, json: &str| (name.to_owned(), json.to_owned());
        let answers = [
            Answer { reasoning: Some("why".into()), text: Some("Hi.".into()), calls: Vec::new() },
            Answer { calls: vec![call("ls", "{\"path\": \"a\"}"); 2], ..Answer::default() },
            Answer {
                reasoning: Some("so".into()),
                text: Some("Now:".into()),
                calls: vec![call("patch", "{\"input\": \"a\\u00e9\\n\"}"), call("fs__rm", "{}")],
            },
        ];
        for (answer, options) in answers.iter().flat_map(|answer| [(answer, 0), (answer, 3)]) {
            let Ok(ids) = profile.encode_answer(answer) else { continue };
            seeds.push(coded(model, options, &ids));
        }
    }
    seeds
}

/// An input of [`crate::push`], with a push every few ids.
fn coded(model: u8, options: u8, ids: &[u32]) -> Vec<u8> {
    let mut bytes = vec![model, options];
    for (place, &id) in ids.iter().enumerate() {
        match (u8::try_from(id), id.checked_sub(BEYOND_BYTES)) {
            (Ok(byte @ LITERAL..), _) => bytes.extend([LITERAL, byte]),
            (Ok(byte), _) => bytes.push(byte),
            (_, beyond) => {
                let beyond = beyond.and_then(|beyond| u8::try_from(beyond).ok());
                bytes.extend([BEYOND, beyond.unwrap_or_default()]);
            }
        }
        if place % 7 == 6 {
            bytes.push(CUT);
        }
    }
    bytes
}

fn detokenize() -> Vec<Vec<u8>> {
    vec![
        b"\x04\x41a\x42\xc3\xa9\x13<s>\x41\xf0\x00\x01\x02\x03\x00\x03\x02".to_vec(),
        b"\x05\x41\xe2\x42\x82\xac\x23<t>\x00\x40\x00\x01\x02\x04\x03\x00\x02\x01".to_vec(),
        b"\x03\x43\xf0\x9f\x99\x41\x82\x44\x82b\xe2\x82\x00\x01\x00\x02\x00\x00\x01".to_vec(),
    ]
}
