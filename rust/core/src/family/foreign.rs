//! What templates find in the text of an answer that a client wrote.

use crate::family::render::Message;

/// Takes reasoning out of an answer's text, where no other was brought: templates look for
/// `</think>` in it.
pub(super) fn read_think(message: &mut Message) {
    let Message::Assistant { reasoning: reasoning @ None, text: Some(text), .. } = message else {
        return;
    };
    let Some((before, _)) = text.split_once("</think>") else { return };
    let thought = before.trim_end_matches('\n');
    let thought = thought.rsplit("<think>").next().unwrap_or_default();
    *reasoning = Some(thought.trim_start_matches('\n').to_owned());
    let said = text.rsplit("</think>").next().unwrap_or_default();
    *text = said.trim_start_matches('\n').to_owned();
}
