//! At which added tokens a prompt may be cut, so that its parts can be encoded apart (law 4).
//!
//! The reference scans a text for added tokens (leftmost, longest), first those matched in the raw
//! text, then, in each piece left over, those matched in the normalized text; every piece between
//! two matches is then normalized, pre-tokenized and encoded by itself. So a cut beside an added
//! token is exact unless the match depends on what lies beyond the cut, or what lies beyond it is
//! treated as the start of a text. tokens.md §1.1 measures what goes wrong otherwise.

use std::collections::{BTreeMap, HashSet};

use aho_corasick::AhoCorasick;
use serde_json::Value;

use super::AddedToken;
use crate::token::TokenId;

/// The audit's result: for every added token, whether a cut after it and before it is safe.
#[derive(Debug, Clone, Default)]
pub struct SafeCuts {
    verdicts: BTreeMap<TokenId, Verdict>,
}

/// Why a cut is not safe, on either side.
#[derive(Debug, Clone, Default)]
struct Verdict {
    after: Option<String>,
    before: Option<String>,
}

/// A cut that must not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsafeCut<'a> {
    /// The added token.
    pub id: TokenId,
    /// Whether the cut is after the token; before it otherwise.
    pub after: bool,
    /// Why it must not be made.
    pub reason: &'a str,
}

impl SafeCuts {
    /// Audits a vocabulary's added tokens against each other and against the `normalizer` and
    /// `pre_tokenizer` of its `tokenizer.json`.
    #[must_use]
    pub fn audit(
        added: &[AddedToken],
        normalizer: Option<&Value>,
        pre_tokenizer: Option<&Value>,
    ) -> Self {
        let mut cuts =
            Self { verdicts: added.iter().map(|token| (token.id, Verdict::default())).collect() };
        let scan = Normalization::of(normalizer);
        if let Some(reason) = first_piece_state(pre_tokenizer) {
            for token in added {
                cuts.refuse_after(token, || reason.clone());
            }
        }
        for token in added {
            cuts.judge_flags(token, &scan);
        }
        cuts.judge_neighbours(added);
        cuts.judge_overlaps(added, &scan);
        cuts
    }

    /// Whether the text after this added token may be encoded apart from what comes before.
    /// False for an id that is not an added token.
    #[must_use]
    pub fn after(&self, id: TokenId) -> bool {
        self.verdicts.get(&id).is_some_and(|verdict| verdict.after.is_none())
    }

    /// Whether the text before this added token may be encoded apart from it and what follows.
    /// False for an id that is not an added token.
    #[must_use]
    pub fn before(&self, id: TokenId) -> bool {
        self.verdicts.get(&id).is_some_and(|verdict| verdict.before.is_none())
    }

    /// Every cut beside an added token that must not be made, in order of id, with the reason.
    pub fn refused(&self) -> impl Iterator<Item = UnsafeCut<'_>> {
        self.verdicts.iter().flat_map(|(&id, verdict)| {
            let after = verdict.after.as_deref().map(|reason| (true, reason));
            let before = verdict.before.as_deref().map(|reason| (false, reason));
            let both = [after, before].into_iter().flatten();
            both.map(move |(after, reason)| UnsafeCut { id, after, reason })
        })
    }

    /// Keeps the first reason.
    fn refuse_after(&mut self, token: &AddedToken, reason: impl FnOnce() -> String) {
        if let Some(verdict) = self.verdicts.get_mut(&token.id) {
            verdict.after.get_or_insert_with(reason);
        }
    }

    fn refuse_before(&mut self, token: &AddedToken, reason: impl FnOnce() -> String) {
        if let Some(verdict) = self.verdicts.get_mut(&token.id) {
            verdict.before.get_or_insert_with(reason);
        }
    }

    fn refuse_both(&mut self, token: &AddedToken, reason: impl Fn() -> String) {
        self.refuse_after(token, &reason);
        self.refuse_before(token, &reason);
    }

    /// What a token's own flags say.
    fn judge_flags(&mut self, token: &AddedToken, scan: &Normalization) {
        if token.rstrip {
            self.refuse_after(token, || "it swallows white space after it (rstrip)".to_owned());
        }
        if token.lstrip {
            self.refuse_before(token, || "it swallows white space before it (lstrip)".to_owned());
        }
        if token.single_word {
            self.refuse_both(token, || {
                "it matches only beside a character that is not a word's (single_word)".to_owned()
            });
        }
        if token.normalized
            && let Normalization::Contextual(kind) = scan
        {
            self.refuse_both(token, || {
                format!("it is matched after the normalizer {kind}, which looks across the cut")
            });
        }
    }

    /// A token that ends (or starts) like a word keeps a `single_word` neighbour from matching,
    /// and a cut between the two hides it; a token found in the second scan may have lost white
    /// space of its own to a neighbour found in the first.
    fn judge_neighbours(&mut self, added: &[AddedToken]) {
        let strips = |strips: fn(&AddedToken) -> bool| {
            added.iter().find(|token| !token.normalized && strips(token))
        };
        let (left, right) = (strips(|token| token.lstrip), strips(|token| token.rstrip));
        for token in added.iter().filter(|token| token.normalized) {
            let head = right.filter(|_| token.content.starts_with(char::is_whitespace));
            let tail = left.filter(|_| token.content.ends_with(char::is_whitespace));
            if let Some(neighbour) = head.or(tail) {
                self.refuse_both(token, || {
                    format!("'{}' beside it swallows its white space", neighbour.content)
                });
            }
        }
        let word = |character: char| character.is_alphanumeric() || character == '_';
        for picky in added.iter().filter(|token| token.single_word) {
            for token in added.iter().filter(|token| sees(token, picky)) {
                let reason =
                    || format!("'{}' beside it matches only as a whole word", picky.content);
                // Marks count as word characters too; any character that is not ASCII might.
                if token.content.ends_with(|last: char| word(last) || !last.is_ascii()) {
                    self.refuse_after(token, reason);
                }
                if token.content.starts_with(|first: char| word(first) || !first.is_ascii()) {
                    self.refuse_before(token, reason);
                }
            }
        }
    }

    /// Tokens whose texts share characters: which of them a text holds depends on both sides.
    fn judge_overlaps(&mut self, added: &[AddedToken], scan: &Normalization) {
        let texts: Vec<String> =
            added
                .iter()
                .map(|token| {
                    if token.normalized {
                        scan.apply(&token.content)
                    } else {
                        token.content.clone()
                    }
                })
                .collect();
        let tokens: Vec<(&AddedToken, &str)> =
            added.iter().zip(texts.iter().map(String::as_str)).collect();
        let mut sorted = tokens.clone();
        sorted.sort_by_key(|&(_, text)| text);
        let starting_with = |head: &str| {
            let from = sorted.partition_point(|&(_, text)| text < head);
            let head = head.to_owned();
            sorted.iter().skip(from).copied().take_while(move |(_, text)| text.starts_with(&head))
        };

        // `outer` ends with the head of `inner`: … outer[..i] | inner …
        let mut raw_tails: HashSet<&str> = HashSet::new();
        for &(outer, text) in &tokens {
            for (at, _) in text.char_indices().skip(1) {
                let tail = text.get(at..).unwrap_or_default();
                // A raw `outer` always hurts `inner`, whichever token it is: once a tail is enough
                // (Gemma has a thousand runs of white space).
                if !outer.normalized && !raw_tails.insert(tail) {
                    continue;
                }
                for (inner, inner_text) in starting_with(tail) {
                    self.judge_pair(outer, inner, inner_text.len() == tail.len(), Shared::Tail);
                }
            }
        }
        // `outer` holds `inner` whole, at its start or further in.
        let Ok(finder) = AhoCorasick::new(tokens.iter().map(|&(_, text)| text)) else {
            for (token, _) in &tokens {
                self.refuse_both(token, || "the added tokens are too many to audit".to_owned());
            }
            return;
        };
        for &(outer, text) in &tokens {
            for found in finder.find_overlapping_iter(text) {
                let Some(&(inner, _)) = tokens.get(found.pattern().as_usize()) else { continue };
                if inner.id == outer.id {
                    continue;
                }
                let same = found.end() - found.start() == text.len();
                let shared =
                    if found.start() == 0 && !same { Shared::Head } else { Shared::Middle };
                self.judge_pair(outer, inner, true, shared);
            }
        }
    }

    /// `outer` begins earlier than `inner`, or at the same place and is longer. `whole`: `inner`
    /// lies within `outer`.
    fn judge_pair(&mut self, outer: &AddedToken, inner: &AddedToken, whole: bool, shared: Shared) {
        match (outer.normalized, inner.normalized) {
            // The raw scan comes first, so `inner` is found wherever it is: `outer` is not
            // matched at all (whole), or only when no `inner` runs on from its end.
            (true, false) if whole => {
                self.refuse_both(outer, || {
                    format!("it contains '{}', which is found first", inner.content)
                });
            }
            (true, false) => {
                self.refuse_after(outer, || {
                    format!("its end may begin '{}', which is found first", inner.content)
                });
            }
            // One scan, or `outer` in the earlier one: `outer` wins.
            _ => match shared {
                // Whether a whole word begins here is told by what stands before it.
                Shared::Head if outer.single_word => {
                    self.refuse_both(inner, || format!("'{}' begins with it", outer.content));
                }
                Shared::Head => {
                    self.refuse_after(inner, || format!("'{}' begins with it", outer.content));
                }
                Shared::Middle => {
                    self.refuse_both(inner, || format!("'{}' contains it", outer.content));
                }
                Shared::Tail => {
                    self.refuse_both(inner, || format!("'{}' may end in its head", outer.content));
                }
            },
        }
    }
}

/// Which part of the outer token the inner one shares.
#[derive(Debug, Clone, Copy)]
enum Shared {
    Head,
    Middle,
    Tail,
}

/// Whether `token` lies in the text in which `picky` is matched: after the raw scan a piece ends
/// at a raw token, which normalized ones then do not see.
fn sees(token: &AddedToken, picky: &AddedToken) -> bool {
    token.normalized || !picky.normalized
}

/// What a normalizer does to the match of a `normalized` token.
#[derive(Debug)]
enum Normalization {
    /// Each character by itself, by these steps.
    Characters(Vec<Step>),
    /// Several characters together, or by their place: not decidable beside a cut.
    Contextual(String),
}

#[derive(Debug)]
enum Step {
    Lowercase,
    Replace(char, String),
}

impl Normalization {
    fn of(normalizer: Option<&Value>) -> Self {
        let mut steps = Vec::new();
        match Self::collect(normalizer.unwrap_or(&Value::Null), &mut steps) {
            Ok(()) => Self::Characters(steps),
            Err(kind) => Self::Contextual(kind),
        }
    }

    fn collect(normalizer: &Value, steps: &mut Vec<Step>) -> Result<(), String> {
        if normalizer.is_null() {
            return Ok(());
        }
        let kind = normalizer.get("type").and_then(Value::as_str).unwrap_or("of no type");
        match kind {
            "Sequence" => {
                let parts = normalizer.get("normalizers").and_then(Value::as_array);
                parts.into_iter().flatten().try_for_each(|part| Self::collect(part, steps))
            }
            "Lowercase" => {
                steps.push(Step::Lowercase);
                Ok(())
            }
            "Replace" => {
                let pattern = normalizer.get("pattern").and_then(|p| p.get("String"));
                let mut pattern = pattern.and_then(Value::as_str).unwrap_or_default().chars();
                let content = normalizer.get("content").and_then(Value::as_str);
                if let (Some(from), None, Some(content)) = (pattern.next(), pattern.next(), content)
                {
                    steps.push(Step::Replace(from, content.to_owned()));
                    Ok(())
                } else {
                    Err(kind.to_owned())
                }
            }
            _ => Err(kind.to_owned()),
        }
    }

    fn apply(&self, content: &str) -> String {
        let Self::Characters(steps) = self else { return content.to_owned() };
        steps.iter().fold(content.to_owned(), |text, step| match step {
            Step::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Step::Replace(from, to) => text.replace(*from, to),
        })
    }
}

/// Why a text run must not be encoded as if it stood at the start of the prompt; None when the
/// pre-tokenizer treats every piece alike. (Normalizers always do: a `Prepend` acts on each piece
/// between two added tokens, wherever it stands.)
fn first_piece_state(pre_tokenizer: Option<&Value>) -> Option<String> {
    let step = pre_tokenizer.filter(|value| !value.is_null())?;
    let kind = step.get("type").and_then(Value::as_str).unwrap_or("of no type");
    match kind {
        "Sequence" => {
            let steps = step.get("pretokenizers").and_then(Value::as_array);
            steps.into_iter().flatten().find_map(|step| first_piece_state(Some(step)))
        }
        "Metaspace" => {
            let scheme = step.get("prepend_scheme").and_then(Value::as_str);
            (scheme == Some("first")).then(|| {
                "the pre-tokenizer Metaspace prepends a space to the first piece only".to_owned()
            })
        }
        "ByteLevel" | "Split" | "Digits" | "Punctuation" | "Whitespace" | "WhitespaceSplit"
        | "BertPreTokenizer" | "UnicodeScripts" | "CharDelimiterSplit" | "Delimiter"
        | "FixedLength" => None,
        other => Some(format!("the pre-tokenizer {other} is not known to treat every piece alike")),
    }
}
