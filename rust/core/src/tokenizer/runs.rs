//! Encoding the runs of text that stand between control tokens.
//!
//! Two things keep a run from being encoded like a text of its own. Some pre-tokenizers treat the
//! first piece of a text otherwise than later ones (`Metaspace` with `prepend_scheme = "first"`);
//! and some vocabularies have added tokens that are only white space (Gemma's runs of newlines):
//! those are text, not control tokens, and are matched whoever wrote them.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, MatchKind};

use super::{AddedToken, Encoder, SafeCuts};
use crate::error::{Error, Result};
use crate::token::TokenId;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At the very start of the prompt.
    Start,
    /// Behind a control token.
    Later,
}

/// What a vocabulary's runs need beyond its encoder.
pub struct Runs {
    /// Whether the first piece of a text is encoded otherwise than later ones.
    first_differs: bool,
    /// An added token behind which a run is encoded as a later piece.
    anchor: Option<(String, TokenId)>,
    /// Every added token, to see whether a run holds one.
    added: Option<AhoCorasick>,
    /// Added tokens that are text, and their ids by pattern.
    blanks: Option<(AhoCorasick, Vec<TokenId>)>,
    blank_ids: HashSet<TokenId>,
}

/// Whether an added token is white space as text is, and no control token.
fn is_blank(token: &AddedToken) -> bool {
    !token.special && token.content.chars().all(|c| c.is_whitespace() || c == '▁')
}

impl Runs {
    /// Reads off the added tokens what runs need. `first_differs`: the pre-tokenizer treats the first
    /// piece of a text otherwise than the rest.
    ///
    /// # Errors
    /// [`Profile`](crate::ErrorKind::Profile) when the tokens are too many to search for.
    pub fn new(added: &[AddedToken], cuts: &SafeCuts, first_differs: bool) -> Result<Self> {
        let too_many = |error| {
            Error::profile("the added tokens are too many to search for").with_source(error)
        };
        let longest = |contents: Vec<&str>| {
            let mut builder = AhoCorasick::builder();
            builder.match_kind(MatchKind::LeftmostLongest).build(contents).map_err(too_many)
        };
        let blank: Vec<&AddedToken> = added.iter().filter(|token| is_blank(token)).collect();
        let ids: Vec<TokenId> = blank.iter().map(|token| token.id).collect();
        let contents: Vec<&str> = blank.iter().map(|token| token.content.as_str()).collect();
        let blanks = if blank.is_empty() { None } else { Some((longest(contents)?, ids.clone())) };
        let safe = |token: &&AddedToken| cuts.after(token.id);
        let anchor = added.iter().find(safe).map(|found| (found.content.clone(), found.id));
        let all = added.iter().map(|token| token.content.as_str()).collect();
        let added = if first_differs { Some(longest(all)?) } else { None };
        let blank_ids = ids.into_iter().collect();
        Ok(Self { first_differs, anchor, added, blanks, blank_ids })
    }

    /// Whether an added token is text.
    #[must_use]
    pub fn is_text(&self, id: TokenId) -> bool {
        self.blank_ids.contains(&id)
    }

    /// Appends the ids of `run`. With `control`, added tokens in it are matched.
    ///
    /// # Errors
    /// When an encoder fails.
    pub fn encode(
        &self,
        (encoder, reference): (&dyn Encoder, &dyn Encoder),
        run: &str,
        place: Place,
        control: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let encode = |piece: &str, place: Place, out: &mut Vec<TokenId>| {
            if piece.is_empty() || place == Place::Start || !self.first_differs {
                return encoder.encode(piece, control, out);
            }
            let spelled = self.added.as_ref().is_some_and(|added| added.is_match(piece));
            let Some((anchor, id)) = self.anchor.as_ref().filter(|_| control || !spelled) else {
                // Behind a cut with `control`, a control token comes first, or one would be here.
                return if control {
                    encoder.encode(piece, control, out)
                } else {
                    reference.encode_later(piece, out)
                };
            };
            let start = out.len();
            encoder.encode(&format!("{anchor}{piece}"), true, out)?;
            if out.get(start) != Some(id) {
                return Err(Error::invariant("a control token was not found where it stands"));
            }
            out.remove(start);
            Ok(())
        };
        let Some((blanks, ids)) = self.blanks.as_ref().filter(|_| !control) else {
            return encode(run, place, out);
        };
        let mut from = 0;
        for found in blanks.find_iter(run) {
            let place = if from == 0 { place } else { Place::Later };
            encode(&run[from..found.start()], place, out)?;
            out.extend(ids.get(found.pattern().as_usize()));
            from = found.end();
        }
        encode(&run[from..], if from == 0 { place } else { Place::Later }, out)
    }
}
