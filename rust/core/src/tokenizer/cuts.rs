//! At which added tokens a prompt may be cut, so that its parts can be encoded apart (law 4).
//!
//! The reference scans a text for added tokens (leftmost, longest), first those matched in the raw
//! text, then, in each piece left over, those matched in the normalized text; every piece between
//! two matches is then normalized, pre-tokenized and encoded by itself. So a cut beside an added
//! token is exact unless the match depends on what lies beyond the cut, or what lies beyond it is
//! treated as the start of a text. Elsewhere it goes wrong often: with six vocabularies, 15 to 28 %
//! of texts cut at random encode otherwise than whole, and 5 to 9 % of those cut behind a special
//! token and a newline.

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
        if let Some(reason) = unknown_step(pre_tokenizer) {
            for token in added {
                cuts.refuse_after(token, || reason.clone());
            }
        }
        for token in added {
            cuts.judge_flags(token, &scan);
        }
        cuts.judge_neighbours(added, &scan);
        // Tokens that are both found in normalized text meet there; any other two, in raw text.
        cuts.judge_overlaps(&spelled(added, str::to_owned), |a, b| !(a.normalized && b.normalized));
        let later = added.iter().filter(|token| token.normalized);
        cuts.judge_overlaps(&spelled(later, |text| scan.apply(text)), |_, _| true);
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

    pub(super) fn refuse_both(&mut self, token: &AddedToken, reason: impl Fn() -> String) {
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
    fn judge_neighbours(&mut self, added: &[AddedToken], scan: &Normalization) {
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
                let both = token.normalized && picky.normalized;
                let text = if both { scan.apply(&token.content) } else { token.content.clone() };
                // Marks count as word characters too; any character that is not ASCII might.
                if text.ends_with(|last: char| word(last) || !last.is_ascii()) {
                    self.refuse_after(token, reason);
                }
                if text.starts_with(|first: char| word(first) || !first.is_ascii()) {
                    self.refuse_before(token, reason);
                }
            }
        }
    }

    /// Tokens whose texts share characters: which of them a text holds depends on both sides.
    /// Judges the pairs that `meet` accepts.
    fn judge_overlaps(
        &mut self,
        tokens: &[(&AddedToken, String)],
        meet: impl Fn(&AddedToken, &AddedToken) -> bool,
    ) {
        let tokens: Vec<(&AddedToken, &str)> =
            tokens.iter().map(|(token, text)| (*token, text.as_str())).collect();
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
                for (inner, _) in starting_with(tail) {
                    if meet(outer, inner) {
                        self.judge_pair(outer, inner, Shared::Tail);
                    }
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
                if inner.id == outer.id || !meet(outer, inner) {
                    continue;
                }
                let same = found.end() - found.start() == text.len();
                let shared =
                    if found.start() == 0 && !same { Shared::Head } else { Shared::Middle };
                self.judge_pair(outer, inner, shared);
            }
        }
    }

    /// `outer` begins earlier than `inner`, or at the same place and is longer.
    fn judge_pair(&mut self, outer: &AddedToken, inner: &AddedToken, shared: Shared) {
        match (outer.normalized, inner.normalized) {
            // The raw scan comes first: where the two meet, `outer` is not found at all.
            (true, false) => {
                self.refuse_both(outer, || {
                    format!("'{}' shares text with it and is found first", inner.content)
                });
            }
            // One scan, or `outer` in the earlier one: `outer` wins.
            _ => match shared {
                // The longer token looks at what stands before it, or takes it.
                Shared::Head if outer.single_word || outer.lstrip => {
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

/// Tokens with the text in which they are looked for.
fn spelled<'a>(
    tokens: impl IntoIterator<Item = &'a AddedToken>,
    text: impl Fn(&str) -> String,
) -> Vec<(&'a AddedToken, String)> {
    tokens.into_iter().map(|token| (token, text(&token.content))).collect()
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

/// Whether a pre-tokenizer treats the first piece of a text otherwise than later ones, so that a run
/// behind a control token must be encoded as a later one. (Normalizers never do: a `Prepend` acts on
/// each piece between two added tokens, wherever it stands.)
pub(super) fn first_piece_differs(pre_tokenizer: Option<&Value>) -> bool {
    let Some(step) = pre_tokenizer else { return false };
    let steps = step.get("pretokenizers").and_then(Value::as_array);
    step.get("prepend_scheme").is_some_and(|scheme| scheme == "first")
        || steps.into_iter().flatten().any(|step| first_piece_differs(Some(step)))
}

/// Why pieces might not be treated alike: a step that is not known here.
fn unknown_step(pre_tokenizer: Option<&Value>) -> Option<String> {
    let step = pre_tokenizer.filter(|value| !value.is_null())?;
    let kind = step.get("type").and_then(Value::as_str).unwrap_or("of no type");
    match kind {
        "Sequence" => {
            let steps = step.get("pretokenizers").and_then(Value::as_array);
            steps.into_iter().flatten().find_map(|step| unknown_step(Some(step)))
        }
        "ByteLevel" | "Metaspace" | "Split" | "Digits" | "Punctuation" | "Whitespace"
        | "WhitespaceSplit" | "BertPreTokenizer" | "UnicodeScripts" | "CharDelimiterSplit"
        | "Delimiter" | "FixedLength" => None,
        other => Some(format!("the pre-tokenizer {other} is not known to treat every piece alike")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(id: TokenId, content: &str) -> AddedToken {
        AddedToken {
            id,
            content: content.to_owned(),
            lstrip: false,
            rstrip: false,
            single_word: false,
            normalized: false,
            special: true,
        }
    }

    fn verdicts(cuts: &SafeCuts, id: TokenId) -> (bool, bool) {
        (cuts.before(id), cuts.after(id))
    }

    fn reasons(cuts: &SafeCuts, id: TokenId) -> String {
        let of_token = cuts.refused().filter(|refused| refused.id == id);
        of_token.map(|refused| refused.reason).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn plain_control_tokens_are_safe_on_both_sides() {
        let added = [token(1, "<|im_start|>"), token(2, "<|im_end|>"), token(3, "<think>")];
        let cuts = SafeCuts::audit(&added, Some(&json!({"type": "NFC"})), None);
        assert!(added.iter().all(|token| verdicts(&cuts, token.id) == (true, true)));
        assert_eq!(cuts.refused().count(), 0);
        assert_eq!(verdicts(&cuts, 4), (false, false), "not an added token");
    }

    #[test]
    fn phi_3s_rstrip_is_not_safe_after() {
        let end = AddedToken { rstrip: true, ..token(32007, "<|end|>") };
        let mask = AddedToken { lstrip: true, ..token(5, "<mask>") };
        let cuts = SafeCuts::audit(&[end, mask], None, None);
        assert_eq!(verdicts(&cuts, 32007), (true, false));
        assert!(reasons(&cuts, 32007).contains("rstrip"));
        assert_eq!(verdicts(&cuts, 5), (false, true));
        assert!(reasons(&cuts, 5).contains("lstrip"));
    }

    /// The vocabulary of Dynamo's bug 12846.
    #[test]
    fn lagunas_bracket_is_the_head_of_its_eos() {
        let added = [token(1, "〈|"), token(2, "|〉"), token(3, "〈|EOS|〉")];
        let cuts = SafeCuts::audit(&added, None, None);
        assert_eq!(verdicts(&cuts, 1), (true, false));
        assert_eq!(reasons(&cuts, 1), "'〈|EOS|〉' begins with it");
        // `〈|` before `〉` takes the bar.
        assert_eq!(verdicts(&cuts, 2), (false, false));
        assert_eq!(verdicts(&cuts, 3), (true, true));
    }

    #[test]
    fn gemmas_runs_of_newlines_are_never_cut_at() {
        let mut added: Vec<AddedToken> =
            (1..=31).map(|length| token(length, &"\n".repeat(length as usize))).collect();
        added.push(token(106, "<end_of_turn>"));
        let cuts = SafeCuts::audit(&added, None, None);
        assert!((1..=31).all(|id| verdicts(&cuts, id) == (false, false)));
        assert_eq!(verdicts(&cuts, 106), (true, true));
    }

    #[test]
    fn a_normalizer_that_looks_across_the_cut_hurts_normalized_tokens_only() {
        let raw = token(1, "<s>");
        let normalized = AddedToken { normalized: true, ..token(2, "</s>") };
        let added = [raw, normalized];
        for (normalizer, safe) in [
            (json!(null), true),
            (json!({"type": "Sequence", "normalizers": []}), true),
            (json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}), true),
            (json!({"type": "Prepend", "prepend": "▁"}), false),
            (json!({"type": "NFC"}), false),
            (json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": "▁"}), false),
            (
                json!({"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFKC"}]}),
                false,
            ),
        ] {
            let cuts = SafeCuts::audit(&added, Some(&normalizer), None);
            assert_eq!(verdicts(&cuts, 1), (true, true), "{normalizer}");
            assert_eq!(verdicts(&cuts, 2), (safe, safe), "{normalizer}");
        }
    }

    #[test]
    fn what_is_done_to_the_first_piece_only_is_told_apart() {
        let added = [token(1, "<s>")];
        let metaspace = |scheme: &str| json!({"type": "Metaspace", "prepend_scheme": scheme});
        let sequence =
            |step: Value| json!({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, step]});
        for (pre_tokenizer, first) in [
            (metaspace("first"), true),
            (sequence(metaspace("first")), true),
            // Acts on every piece alike.
            (metaspace("always"), false),
            (metaspace("never"), false),
        ] {
            assert_eq!(first_piece_differs(Some(&pre_tokenizer)), first, "{pre_tokenizer}");
            let cuts = SafeCuts::audit(&added, None, Some(&pre_tokenizer));
            assert_eq!(verdicts(&cuts, 1), (true, true), "{pre_tokenizer}");
        }
        let unknown = json!({"type": "SomethingNew"});
        let cuts = SafeCuts::audit(&added, None, Some(&unknown));
        assert_eq!(verdicts(&cuts, 1), (true, false));
    }

    #[test]
    fn a_thousand_nested_tokens_are_audited_in_no_time() {
        let mut added: Vec<AddedToken> = Vec::new();
        for unit in ["\n", "\t", "▁", " ", "<", "</", "ab"] {
            for length in 1..200 {
                let id = TokenId::try_from(added.len()).unwrap_or_default();
                added.push(token(id, &unit.repeat(length)));
            }
        }
        let start = std::time::Instant::now();
        let cuts = SafeCuts::audit(&added, None, None);
        assert!(cuts.refused().count() > 1000);
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }
}
