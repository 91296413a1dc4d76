//! How a model writes calls, learned from how its template prints them.
//!
//! A template prints a call of an earlier turn as its model would have written it. Probe calls with
//! words that nothing else holds show what stands before the name, between name and arguments, around
//! each argument, between two calls and behind the last.

use serde_json::{Value, json};

use super::template::Template;
use super::ways::{Ways, probe_tools, say};
use crate::family::marker::{Marker, Markers};
use crate::family::output::form::{BodyForm, CallForm, Elements, Tags};
use crate::tokenizer::Vocabulary;

const ASKED: &str = "probe_asked";
const SAID: &str = "probe_said";
const NAME: &str = "probe_tool";
const KEY: &str = "probe_key";
const VALUE: &str = "probe_value";
const OUTPUT: &str = "probe_output";

/// The form of the calls that `template` prints; None where it is not one that can be read back.
pub(super) fn call_form(
    template: &Template,
    ways: &Ways,
    vocabulary: &Vocabulary,
) -> Option<CallForm> {
    let one = printed(template, ways, vocabulary, 1, VALUE)?;
    let two = printed(template, ways, vocabulary, 2, VALUE);
    if let Some(form) = elements_form(&one, vocabulary) {
        return Some(form);
    }
    let calls = Calls::find(&one, two.as_deref(), vocabulary)?;
    let marker = |text: &str| Marker::of(text, vocabulary);
    let tags = |text: &str| -> Vec<String> {
        let found = pieces(text, vocabulary).into_iter();
        found.filter(|piece| markup_at(piece, vocabulary).is_some()).map(str::to_owned).collect()
    };
    let trimmed = calls.open.trim().trim_end_matches('[').trim_end();
    let is_object = matches!(calls.between, Between::Object { .. } | Between::Python);
    let bare = trimmed.is_empty();
    let opening = tags(&calls.open);
    // An object stands right behind its marker; a name may have more before it.
    let tag = if is_object { opening.last() } else { opening.first() };
    let first = match tag {
        Some(tag) => tag.clone(),
        None if bare && is_object => "{".to_owned(),
        // Half a tag, which the name completes.
        None if trimmed.starts_with('<') => trimmed.to_owned(),
        None => return None,
    };
    let before = calls.open.rsplit_once(first.as_str()).map_or("", |(_, rest)| rest).trim();
    let ahead = calls.open.split_once(first.as_str()).map_or("", |(ahead, _)| ahead);
    if is_object && !bare && !before.trim_start_matches('[').is_empty() {
        return None;
    }
    let closing = tags(&calls.close);
    let (after, close) = match closing.last() {
        Some(tag) => {
            (calls.close.rsplit_once(tag.as_str()).map_or("", |(rest, _)| rest), Some(tag))
        }
        None => (calls.close.as_str(), None),
    };
    let after = after.trim();
    let (scaffold, body) = match calls.between {
        Between::Object { list } => (String::new(), BodyForm::Object { list }),
        Between::Python => (String::new(), BodyForm::Python),
        Between::Named(text) => {
            let (before, after) = (before.to_owned(), after.to_owned());
            (text, BodyForm::Named { before, after })
        }
        Between::Braced(quote) => {
            let (before, quote) = (before.to_owned(), marker(&quote));
            (String::new(), BodyForm::Braced { before, quote })
        }
        Between::Tagged(tags) => {
            // Escapes would have to be known, to be undone.
            let odd = "a<b>&c";
            if printed(template, ways, vocabulary, 1, odd)? != one.replace(VALUE, odd) {
                return None;
            }
            let scaffold = format!("{}{}{}", tags.key, tags.value, tags.value_end);
            let (before, end) = (before.to_owned(), after.to_owned());
            (scaffold, BodyForm::Tagged(Tags { before, end, ..tags }))
        }
    };
    let around = [&calls.around_open, ahead, &calls.around_close];
    let said = around.iter().flat_map(|text| pieces(text, vocabulary));
    // Text beside the markup (a call's id) would be taken for what the model says.
    if said.into_iter().any(|piece| markup_at(piece, vocabulary).is_none() && !is_blank(piece)) {
        return None;
    }
    let around: Vec<String> =
        around.map(tags).into_iter().flatten().filter(|tag| *tag != first).collect();
    let close = close.filter(|_| !bare).cloned();
    let markers = around.iter().chain(&close).chain([&first]);
    let markers: String =
        markers.filter(|text| vocabulary.added_id(text).is_none()).cloned().collect();
    let scaffold = format!("{before}{scaffold}{after}{markers}");
    let parts = vocabulary.added.iter();
    let parts = parts.filter(|token| token.special && scaffold.contains(&token.content));
    Some(CallForm {
        open: marker(&first),
        close: close.map(|tag| marker(&tag)),
        around: around.iter().map(|tag| marker(tag)).collect(),
        body,
        parts: parts.map(|token| (token.id, token.content.clone())).collect(),
        bare,
    })
}

/// What the template prints for so many calls of an answer: nothing of the message around them.
fn printed(
    template: &Template,
    ways: &Ways,
    vocabulary: &Vocabulary,
    count: usize,
    value: &str,
) -> Option<String> {
    let arguments = json!({KEY: value});
    let given = if ways.arguments_as_text { arguments.to_string().into() } else { arguments };
    let id = |number: usize| ways.probe_id(number);
    let calls: Value = (0..count)
        .map(|number| {
            let function = json!({"name": NAME, "arguments": given});
            json!({"id": id(number), "type": "function", "function": function})
        })
        .collect();
    let outputs = (0..count).map(|number| {
        let mut output = say("tool", OUTPUT);
        output["tool_call_id"] = id(number).into();
        output["name"] = NAME.into();
        output
    });
    let outputs: Vec<Value> = outputs.collect();
    let print = |said: &str, calls: Option<&Value>, outputs: &[Value]| {
        let mut answer = say("assistant", said);
        if let Some(calls) = calls {
            answer["tool_calls"] = calls.clone();
        }
        let messages = [&[say("user", ASKED), answer], outputs].concat();
        let tools = probe_tools();
        let text = template.render(&ways.given(&messages), Some(&tools), false, true).ok()?;
        text.rsplit_once(ASKED).map(|(_, rest)| rest.to_owned())
    };
    let plain = print(SAID, None, &[])?;
    let (opener, closer) = plain.split_once(SAID)?;
    // Behind a text if it can be, and alone where a template drops the text of an answer that calls.
    let answer = [SAID, ""].into_iter().find_map(|said| {
        let whole = print(said, Some(&calls), &[]).or_else(|| {
            let text = print(said, Some(&calls), &outputs)?;
            text.split_once(OUTPUT).map(|(answer, _)| answer.to_owned())
        })?;
        let rest = match whole.split_once(SAID) {
            Some((_, rest)) => rest,
            None if said.is_empty() => &whole[common_prefix(&whole, opener)..],
            None => return None,
        };
        let end = shared_end(&pieces(rest, vocabulary), &pieces(closer, vocabulary));
        // Some print a text behind the calls that it is said before.
        Some(rest[..rest.len() - end].to_owned()).filter(|answer| answer.contains(NAME))
    })?;
    // What opens or ends a message stands in no call that a message could hold.
    let mut around = pieces(opener, vocabulary);
    around.extend(pieces(closer, vocabulary));
    let mut markup = around.into_iter().filter(|piece| markup_at(piece, vocabulary).is_some());
    (!markup.any(|piece| answer.contains(piece))).then_some(answer)
}

/// Calls whose arguments are elements with a mark before each tag.
fn elements_form(one: &str, vocabulary: &Vocabulary) -> Option<CallForm> {
    const ITEM: &str = "item";
    let (opening, call) = one.split_once(NAME)?;
    let (behind, argument) = call.split_once(KEY)?;
    let (mark, closing) =
        argument.strip_prefix('>')?.strip_prefix(VALUE)?.split_once(&format!("</{KEY}>"))?;
    let behind = behind.strip_suffix('<')?.strip_suffix(mark)?;
    if mark.is_empty() || is_blank(behind) {
        return None;
    }
    let tags = |text: &str| -> Option<Vec<String>> {
        let mut parts = text.split(mark);
        parts.next().filter(|text| is_blank(text))?;
        Some(parts.map(|tag| tag.trim().to_owned()).collect())
    };
    let (mut opens, closes) = (tags(opening)?, tags(closing)?);
    let open = opens.pop()?;
    let (end, closes) = closes.split_first()?;
    let marked = |tag: &String| Marker::Text(format!("{mark}{tag}"));
    let around: Vec<Marker> = opens.iter().chain(closes).map(marked).collect();
    let letters: String = around.iter().map(Marker::content).collect();
    let letters = format!("{letters}{mark}{open}");
    let parts = vocabulary.added.iter();
    let parts = parts.filter(|token| token.special && letters.contains(&token.content));
    let mark = Marker::of(mark, vocabulary);
    Some(CallForm {
        open: marked(&open),
        close: None,
        around,
        body: BodyForm::Elements(Elements {
            before: String::new(),
            behind: behind.to_owned(),
            item: ITEM.to_owned(),
            end: end.clone(),
            mark,
        }),
        parts: parts.map(|token| (token.id, token.content.clone())).collect(),
        bare: false,
    })
}

/// What stands between name and arguments.
enum Between {
    /// They are members of one object.
    Object { list: bool },
    /// They are a call in Python's spelling, in a list.
    Python,
    /// This, and then the arguments in JSON.
    Named(String),
    /// Braces around arguments whose keys are bare, and this around strings.
    Braced(String),
    /// Tags around each argument (the names before and the end behind are not known yet).
    Tagged(Tags),
}

struct Calls {
    /// Before all calls, and behind them.
    around_open: String,
    around_close: String,
    /// Before each name (or object), and behind its arguments (or object).
    open: String,
    close: String,
    between: Between,
}

impl Calls {
    fn find(one: &str, two: Option<&str>, vocabulary: &Vocabulary) -> Option<Self> {
        let single = Span::find(one)?;
        let (opening, closing) = (&one[..single.start], &one[single.end..]);
        let calls = Self {
            around_open: String::new(),
            around_close: String::new(),
            open: opening.to_owned(),
            close: closing.to_owned(),
            between: single.between,
        };
        let Some((first, second)) = two.and_then(|two| {
            let first = Span::find(two)?;
            let second = Span::find(&two[first.end..])?;
            Some((first, second))
        }) else {
            return Some(calls);
        };
        let separator = &two.unwrap_or_default()[first.end..first.end + second.start];
        let is_python = matches!(calls.between, Between::Python);
        if is_python && separator.trim() != "," {
            return None;
        }
        if is_python || matches!(calls.between, Between::Object { .. }) {
            let list = Between::Object { list: true };
            let between = if is_python { Between::Python } else { list };
            if separator.trim() == "," {
                let close = closing.trim_start().strip_prefix(']')?.to_owned();
                return Some(Self { close, between, ..calls });
            }
            // Objects one behind the other, in one pair of markers.
            if separator.trim().is_empty() && !opening.trim().is_empty() {
                return Some(Self { between, ..calls });
            }
        }
        // What ends the opening and the separator opens each call; what begins the separator and
        // the closing closes it.
        let cut = |text| pieces(text, vocabulary);
        let shared = shared_end(&cut(opening), &cut(separator));
        let (around, open) = opening.split_at(opening.len() - shared);
        let closed = shared_start(&cut(closing), &cut(&separator[..separator.len() - shared]));
        Some(Self {
            around_open: around.to_owned(),
            around_close: closing[closed..].to_owned(),
            open: open.to_owned(),
            close: closing[..closed].to_owned(),
            ..calls
        })
    }
}

/// A call's place in a text: from its name or object to the end of its arguments or object.
struct Span {
    start: usize,
    end: usize,
    between: Between,
}

impl Span {
    fn find(text: &str) -> Option<Self> {
        let named = Self::object(text).or_else(|| Self::named(text));
        named
            .or_else(|| Self::braced(text))
            .or_else(|| Self::python(text))
            .or_else(|| Self::tagged(text))
    }

    fn object(text: &str) -> Option<Self> {
        text.match_indices('{').find_map(|(start, _)| {
            let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter();
            let call: Value = values.next()?.ok()?;
            let named = ["name", "tool_name"].iter().any(|key| call[key] == NAME);
            let given = ["arguments", "parameters"].iter().any(|key| call[key][KEY] == VALUE);
            (named && given).then(|| Self {
                start,
                end: start + values.byte_offset(),
                between: Between::Object { list: false },
            })
        })
    }

    fn named(text: &str) -> Option<Self> {
        let start = text.find(NAME)?;
        let behind = start + NAME.len();
        let arguments = behind + text[behind..].find('{')?;
        let mut values = serde_json::Deserializer::from_str(&text[arguments..]).into_iter();
        let given: Value = values.next()?.ok()?;
        (given[KEY] == VALUE).then(|| Self {
            start,
            end: arguments + values.byte_offset(),
            between: Between::Named(text[behind..arguments].to_owned()),
        })
    }

    fn braced(text: &str) -> Option<Self> {
        let start = text.find(NAME)?;
        let key = text[start + NAME.len()..].strip_prefix('{')?.strip_prefix(KEY)?;
        let (quote, rest) = key.strip_prefix(':')?.split_once(VALUE)?;
        let rest = rest.strip_prefix(quote)?.strip_prefix('}')?;
        let end = text.len() - rest.len();
        let quote = Some(quote).filter(|quote| !quote.is_empty() && *quote != "\"");
        quote.map(|quote| Self { start, end, between: Between::Braced(quote.to_owned()) })
    }

    fn python(text: &str) -> Option<Self> {
        let start = text.find(NAME)?;
        let value = text[start + NAME.len()..].strip_prefix('(')?.strip_prefix(KEY)?;
        let value = value.strip_prefix('=')?;
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let rest = value[1..].strip_prefix(VALUE)?.strip_prefix(quote)?.strip_prefix(')')?;
        let listed = text[..start].trim_end().ends_with(['[', ',']);
        let end = text.len() - rest.len();
        listed.then_some(Self { start, end, between: Between::Python })
    }

    fn tagged(text: &str) -> Option<Self> {
        let start = text.find(NAME)?;
        let behind = start + NAME.len();
        let key = behind + text[behind..].find(KEY)?;
        let behind_key = key + KEY.len();
        let value = behind_key + text[behind_key..].find(VALUE)?;
        let behind_value = value + VALUE.len();
        // `">\n<parameter=`: what begins last before the key is the key's.
        let before_key = text[behind..key].trim_end();
        let open = before_key.rfind('<')?;
        let behind_tag = text[behind_key..value].trim_end();
        let close = text[behind_value..].trim_start_matches('\n');
        let value_end = close.get(..=close.find('>')?)?;
        if !behind_tag.ends_with('>') || !value_end.starts_with('<') {
            return None;
        }
        let lines =
            text[behind_key..value].ends_with('\n') && text[behind_value..].starts_with('\n');
        let last = behind_tag.rfind('<').map_or(">", |at| &behind_tag[at..]);
        let offset = text.len() - close.len();
        Some(Self {
            start,
            end: offset + value_end.len(),
            between: Between::Tagged(Tags {
                before: String::new(),
                key: before_key[open..].to_owned(),
                value: last.to_owned(),
                value_end: value_end.to_owned(),
                lines,
                end: String::new(),
            }),
        })
    }
}

/// What stands around reasoning.
pub(super) struct Reasoning {
    pub(super) markers: Markers,
    /// Behind the marker that opens it.
    pub(super) label: String,
}

impl Reasoning {
    /// Without a label.
    pub(super) fn plain(markers: Markers) -> Self {
        Self { markers, label: String::new() }
    }
}

/// What stands around the reasoning in a printed tool loop; `plain` is an answer without any. A word
/// behind the opening marker is part of it: `<|channel>thought`.
pub(super) fn reasoning(text: &str, plain: &str, vocabulary: &Vocabulary) -> Option<Reasoning> {
    let (before, after) = text.split_once("probe_thought")?;
    let is_markup = |piece: &&str| markup_at(piece, vocabulary).is_some();
    let before = pieces(before, vocabulary);
    let at = before.iter().rposition(is_markup)?;
    let open = before[at].to_owned();
    let label = before[at + 1..].concat();
    let is_word = |text: &str| text.chars().all(|c| c.is_ascii_lowercase());
    let label = match label.trim() {
        "" => String::new(),
        word if is_word(word) && label.ends_with('\n') => label,
        _ => return None,
    };
    let close = pieces(after.trim_start(), vocabulary).first().copied().filter(is_markup)?;
    let markers =
        Markers { open: Marker::of(&open, vocabulary), close: Marker::of(close, vocabulary) };
    (open != close && !plain.contains(&open)).then_some(Reasoning { markers, label })
}

/// A text cut into markup (added tokens, `<tags…>`, `[NAMES]`) and what stands between.
fn pieces<'t>(text: &'t str, vocabulary: &Vocabulary) -> Vec<&'t str> {
    let mut found = Vec::new();
    let mut from = 0;
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        // A token within a tag is no markup of its own: `<｜DSML｜invoke name="`.
        let within = text[from..at].trim_end_matches('/').ends_with('<') && c != '<';
        match markup_at(&text[at..], vocabulary).filter(|_| !within) {
            Some(length) => {
                found.extend((from < at).then(|| &text[from..at]));
                found.push(&text[at..at + length]);
                at += length;
                from = at;
            }
            None => at += c.len_utf8(),
        }
    }
    found.extend((from < text.len()).then(|| &text[from..]));
    found
}

/// The length of the markup that a text begins with.
fn markup_at(text: &str, vocabulary: &Vocabulary) -> Option<usize> {
    let added = vocabulary.added.iter().map(|token| token.content.as_str());
    let added = added.filter(|content| text.starts_with(content) && !content.trim().is_empty());
    if let Some(length) = added.map(str::len).max() {
        return Some(length);
    }
    let end = match text.chars().next()? {
        '<' => text.find('>')?,
        '[' => text.find(']').filter(|&end| {
            let inner = &text[1..end];
            !inner.is_empty() && inner.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        })?,
        _ => return None,
    };
    text.get(..=end).filter(|tag| !tag.contains(char::is_whitespace)).map(str::len)
}

/// The bytes of the last pieces that both have.
fn shared_end(one: &[&str], other: &[&str]) -> usize {
    let pairs = one.iter().rev().zip(other.iter().rev());
    pairs.take_while(|(a, b)| a == b).map(|(piece, _)| piece.len()).sum()
}

/// The bytes of the first pieces that both have.
fn shared_start(one: &[&str], other: &[&str]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).map(|(piece, _)| piece.len()).sum()
}

fn is_blank(text: &str) -> bool {
    text.chars().all(char::is_whitespace)
}

fn common_prefix(one: &str, other: &str) -> usize {
    let pairs = one.chars().zip(other.chars());
    pairs.take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum()
}
