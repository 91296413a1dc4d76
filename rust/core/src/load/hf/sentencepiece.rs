//! `SentencePiece`'s own file, `tokenizer.model`: BPE with bytes to fall back on.
//!
//! `sentencepiece` 0.2.3 is the rule, with two things added that its file does not say: control pieces
//! are matched as added tokens, where `trust` allows it, and `tokenizer_config.json` decides at which
//! stretches of a text a space is put before the first word.

use std::collections::HashMap;

use serde_json::Value;

use super::present;
use super::protobuf::Fields;
use super::vocabulary::Read;
use crate::load::spm::{self, Prefix};
use crate::token::TokenId;
use crate::tokenizer::AddedToken;

/// Types of `sentencepiece_model.proto`.
mod piece_type {
    pub(super) const NORMAL: u64 = 1;
    pub(super) const UNKNOWN: u64 = 2;
    pub(super) const CONTROL: u64 = 3;
    pub(super) const USER_DEFINED: u64 = 4;
    pub(super) const BYTE: u64 = 6;
}
const BPE: u64 = 2;

/// Classes of `transformers` that encode as the file says.
const CLASSES: &[&str] = &["LlamaTokenizer", "LlamaTokenizerFast"];

/// What is read of a file, with the defaults of `sentencepiece_model.proto`.
#[expect(clippy::struct_excessive_bools, reason = "the flags of the file")]
struct Model<'a> {
    /// Text, score and type.
    pieces: Vec<(&'a str, f64, u64)>,
    kind: u64,
    byte_fallback: bool,
    space_behind: bool,
    /// The pieces that start and end a text.
    bos: &'a str,
    eos: &'a str,
    /// Whether text is rewritten by rules of its own.
    has_rules: bool,
    dummy_prefix: bool,
    drops_spaces: bool,
    escapes_spaces: bool,
}

impl<'a> Model<'a> {
    fn read(bytes: &'a [u8]) -> Read<Self> {
        let mut model = Self {
            pieces: Vec::new(),
            kind: 1,
            byte_fallback: false,
            space_behind: false,
            bos: "<s>",
            eos: "</s>",
            has_rules: false,
            dummy_prefix: true,
            drops_spaces: true,
            escapes_spaces: true,
        };
        for field in Fields(bytes) {
            match field? {
                (1, piece) => model.pieces.push(read_piece(piece.bytes()?)?),
                (2, trainer) => model.read_trainer(trainer.bytes()?)?,
                (3, normalizer) => model.read_normalizer(normalizer.bytes()?)?,
                _ => {}
            }
        }
        Ok(model)
    }

    fn read_trainer(&mut self, bytes: &'a [u8]) -> Read<()> {
        for field in Fields(bytes) {
            match field? {
                (3, kind) => self.kind = kind.number()?,
                (24, flag) => self.space_behind = flag.number()? != 0,
                (35, flag) => self.byte_fallback = flag.number()? != 0,
                (46, piece) => self.bos = piece.text()?,
                (47, piece) => self.eos = piece.text()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, bytes: &'a [u8]) -> Read<()> {
        for field in Fields(bytes) {
            match field? {
                (2, rules) => self.has_rules = !rules.bytes()?.is_empty(),
                (3, flag) => self.dummy_prefix = flag.number()? != 0,
                (4, flag) => self.drops_spaces = flag.number()? != 0,
                (5, flag) => self.escapes_spaces = flag.number()? != 0,
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses what would be encoded otherwise than by `sentencepiece`.
    fn check(&self) -> Read<()> {
        let refused = [
            (self.kind != BPE, "its model is not BPE (trainer_spec.model_type)"),
            (!self.byte_fallback, "it has unknown characters (no trainer_spec.byte_fallback)"),
            (self.space_behind, "its spaces end words (trainer_spec.treat_whitespace_as_suffix)"),
            (self.has_rules, "it normalizes text (normalizer_spec.precompiled_charsmap)"),
            (self.drops_spaces, "it drops spaces (normalizer_spec.remove_extra_whitespaces)"),
            (!self.escapes_spaces, "it keeps spaces (no normalizer_spec.escape_whitespaces)"),
        ];
        if let Some((_, what)) = refused.iter().find(|(refused, _)| *refused) {
            return Err(format!("{what}, which is not supported"));
        }
        let mut ids = HashMap::with_capacity(self.pieces.len());
        let mut scores: HashMap<u64, &str> = HashMap::new();
        for (id, &(piece, score, kind)) in self.pieces.iter().enumerate() {
            if let Some(other) = ids.insert(piece, id) {
                return Err(format!("the pieces {other} and {id} both read '{piece}'"));
            }
            // Of two equal scores the leftmost pair is joined first, which ranks cannot say. Runs of one
            // character grow from the left either way.
            if kind == piece_type::NORMAL && piece.chars().nth(1).is_some() {
                let other = scores.insert(score.to_bits(), piece);
                if let Some(other) = other.filter(|other| !(is_run(piece) && is_run(other))) {
                    return Err(format!("the pieces '{other}' and '{piece}' have one score"));
                }
            }
        }
        match (0..=u8::MAX).find(|byte| !ids.contains_key(format!("<0x{byte:02X}>").as_str())) {
            Some(byte) => Err(format!("it has no piece for the byte {byte:#04x}")),
            None => Ok(()),
        }
    }

    /// The piece of this text, if it is a control piece.
    fn control(&self, text: &str) -> String {
        let control = (text, piece_type::CONTROL);
        let there = self.pieces.iter().any(|&(piece, _, kind)| (piece, kind) == control);
        if there { text.to_owned() } else { String::new() }
    }
}

fn read_piece(bytes: &[u8]) -> Read<(&str, f64, u64)> {
    let mut read = ("", 0.0, piece_type::NORMAL);
    for field in Fields(bytes) {
        match field? {
            (1, text) => read.0 = text.text()?,
            (2, score) => read.1 = score.float()?,
            (3, kind) => read.2 = kind.number()?,
            _ => {}
        }
    }
    Ok(read)
}

/// Whether a piece is one character, several times.
fn is_run(piece: &str) -> bool {
    piece.chars().all(|character| piece.starts_with(character))
}

/// The vocabulary as a `tokenizer.json`, and its BOS and EOS.
pub(super) fn tokenizer_json(bytes: &[u8], config: &Value) -> Read<(Value, String, String)> {
    let class = present(config, "tokenizer_class").and_then(Value::as_str);
    if let Some(class) = class.filter(|class| !CLASSES.contains(class)) {
        return Err(format!(
            "'{class}' (tokenizer_class in tokenizer_config.json) is not known to encode as this file \
             says; known: {}",
            CLASSES.join(", ")
        ));
    }
    let model = Model::read(bytes)?;
    model.check()?;
    let mut added = Vec::new();
    let mut unknown = None;
    for (id, &(piece, _, kind)) in model.pieces.iter().enumerate() {
        let id = TokenId::try_from(id).map_err(|_| "it has too many pieces".to_owned())?;
        let special = match kind {
            piece_type::NORMAL | piece_type::BYTE => continue,
            piece_type::UNKNOWN => {
                unknown = Some(piece);
                true
            }
            piece_type::CONTROL => true,
            piece_type::USER_DEFINED => false,
            other => return Err(format!("the piece '{piece}' has the type {other}")),
        };
        added.push(AddedToken::plain(id, piece.to_owned(), special));
    }
    let flag = |key: &str| present(config, key).and_then(Value::as_bool);
    let prefix = match (model.dummy_prefix, flag("add_prefix_space"), flag("legacy")) {
        (false, _, _) | (_, Some(false), _) => Prefix::Nowhere,
        (_, _, Some(false)) => Prefix::Start,
        _ => Prefix::Stretches,
    };
    let joined = |id: usize| model.pieces.get(id).is_some_and(|p| p.2 == piece_type::NORMAL);
    let tokens = model.pieces.iter().map(|&(piece, _, _)| piece.to_owned()).collect();
    let scores: Vec<f64> = model.pieces.iter().map(|&(_, score, _)| score).collect();
    let json = spm::tokenizer_json(tokens, &scores, joined, &added, unknown, prefix)?;
    Ok((json, model.control(model.bos), model.control(model.eos)))
}
