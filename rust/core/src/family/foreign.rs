//! What templates find in the text of an answer that a client wrote.

use crate::family::render::Message;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// How a template looks for reasoning in an answer's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Not at all.
    Never,
    /// Before the last `</think>`, byte for byte.
    Exact,
    /// The same, without the newlines around it.
    Lines,
}

impl Reading {
    /// An answer that tells: its reasoning is a line.
    pub(super) const PROBE: &str = "<think>\nw</think>v";

    /// How the template reads that printed [`PROBE`](Self::PROBE) as `printed`, with the reasoning of
    /// no other answer.
    pub(super) fn of(printed: &str) -> Self {
        match (printed.matches(CLOSE).count(), printed.contains("<think>w")) {
            (1, true) => Self::Lines,
            (1, false) => Self::Exact,
            _ => Self::Never,
        }
    }

    /// Takes reasoning out of an answer's text, where no other was brought.
    pub(super) fn apply(self, message: &mut Message) {
        let Message::Assistant { reasoning: reasoning @ None, text: Some(text), .. } = message
        else {
            return;
        };
        let Some((before, rest)) = text.split_once(CLOSE) else { return };
        let said = rest.rsplit(CLOSE).next().unwrap_or_default();
        let thought = |before: &str| before.rsplit(OPEN).next().unwrap_or_default().to_owned();
        let (thought, said) = match self {
            Self::Never => return,
            Self::Exact => (thought(before), said.to_owned()),
            Self::Lines => {
                let thought = thought(before.trim_end_matches('\n'));
                (
                    thought.trim_start_matches('\n').to_owned(),
                    said.trim_start_matches('\n').to_owned(),
                )
            }
        };
        *reasoning = Some(thought);
        *text = said;
    }
}
