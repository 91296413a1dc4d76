//! Arbitrary ids of arbitrary small vocabularies.
//!
//! An input is the vocabulary's size; each piece as its kind and length, in one byte, and its bytes;
//! then ids, a byte each.

use turnwire_core::detokenize::{Decoded, Detokenizer, decode};
use turnwire_core::tokenizer::Piece;

use crate::allowed;

/// # Panics
/// Where the text is not that of the pieces' bytes.
pub fn run(input: &[u8]) {
    let mut rest = input;
    let size = take(&mut rest, 1).first().map_or(0, |size| size % 64);
    let pieces: Vec<Piece> = (0..size).map(|_| piece(&mut rest)).collect();
    let ids: Vec<u32> = rest.iter().copied().map(u32::from).collect();

    let (mut text, mut said, mut run) = (String::new(), Vec::new(), Vec::new());
    let mut detokenizer = Detokenizer::new();
    let mut known = Vec::new();
    for &id in &ids {
        let pushed = detokenizer.push(&pieces, id, &mut |decoded| match decoded {
            Decoded::Text(more) => {
                assert!(!more.is_empty(), "an empty text");
                text.push_str(more);
            }
            Decoded::Added { content, .. } => said.push((std::mem::take(&mut text), content.len())),
        });
        let expected = pieces.get(id as usize).is_some_and(|piece| *piece != Piece::Unknown);
        assert_eq!(allowed(pushed).is_some(), expected, "the id {id}");
        if !expected {
            continue;
        }
        known.push(id);
        if let Piece::Bytes(bytes) = &pieces[id as usize] {
            run.extend_from_slice(bytes);
        } else {
            let (before, _) = said.last().expect("the added token was told");
            assert_eq!(*before, String::from_utf8_lossy(&run));
            run.clear();
        }
    }
    detokenizer.flush(&mut |decoded| match decoded {
        Decoded::Text(more) => text.push_str(more),
        Decoded::Added { .. } => panic!("an added token out of nothing"),
    });
    assert_eq!(text, String::from_utf8_lossy(&run));

    let whole = decode(&pieces, &ids);
    assert_eq!(whole.is_ok(), known.len() == ids.len());
    let whole = allowed(decode(&pieces, &known)).expect("known ids");
    let lengths: usize = said.iter().map(|(text, added)| text.len() + added).sum();
    assert_eq!(whole.len(), lengths + text.len());
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, left) = rest.split_at(count.min(rest.len()));
    *rest = left;
    taken
}

fn piece(rest: &mut &[u8]) -> Piece {
    let head = take(rest, 1).first().copied().unwrap_or_default();
    let bytes = take(rest, usize::from(head & 15));
    match head >> 4 {
        0 => Piece::Unknown,
        kind @ 1..=3 => Piece::Added(String::from_utf8_lossy(bytes).into(), kind == 1),
        _ => Piece::Bytes(bytes.into()),
    }
}
