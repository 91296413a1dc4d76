//! Which family's renderer serves a template: the first that prints what the template prints, whatever
//! either is called (D6).

use super::chatml::ChatMl;
use super::deepseek::DeepSeek;
use super::generic::Generic;
use super::glm::Glm;
use super::harmony::Harmony;
use super::kimi::Kimi;
use super::kimi_k3::KimiK3;
use super::llama::Llama;
use super::mistral::Mistral;
use super::{Family, probe};
use crate::error::{Error, Result};
use crate::tokenizer::Vocabulary;

/// Reads off a template how the family's renderer would have to write. `compat` lets texts steer it.
type Detect =
    fn(generic: &Generic, vocabulary: &Vocabulary, compat: bool) -> Result<Box<dyn Family>>;

/// Every family, in the order in which they are tried.
const FAMILIES: [Detect; 8] = [
    |generic, vocabulary, compat| Ok(Box::new(ChatMl::detect(generic, vocabulary, compat)?)),
    |generic, vocabulary, compat| Ok(Box::new(DeepSeek::detect(generic, vocabulary, compat)?)),
    |generic, vocabulary, compat| Ok(Box::new(Glm::detect(generic, vocabulary, compat)?)),
    |generic, vocabulary, compat| Ok(Box::new(Harmony::detect(generic, vocabulary, compat)?)),
    |generic, vocabulary, compat| Ok(Box::new(Kimi::detect(generic, vocabulary, compat)?)),
    |generic, vocabulary, _| Ok(Box::new(KimiK3::detect(generic, vocabulary)?)),
    |generic, vocabulary, _| Ok(Box::new(Llama::detect(generic, vocabulary)?)),
    |generic, vocabulary, _| Ok(Box::new(Mistral::detect(generic, vocabulary)?)),
];

/// The renderer of `generic`'s template.
///
/// # Errors
/// [`crate::ErrorKind::Profile`] with the reasons why there is none: where the families part from the
/// template whose forms it has; what each misses, if it has no family's.
pub fn choose(generic: &Generic, vocabulary: &Vocabulary, compat: bool) -> Result<Box<dyn Family>> {
    let (mut missing, mut parting) = (Vec::new(), Vec::new());
    for detect in FAMILIES {
        let family = match detect(generic, vocabulary, compat) {
            Ok(family) => family,
            Err(reason) => {
                missing.push(format!("{reason:#}"));
                continue;
            }
        };
        let agrees = cuts(family.as_ref(), vocabulary)
            .and_then(|()| probe::agree(family.as_ref(), generic, vocabulary));
        match agrees {
            Ok(()) => return Ok(family),
            Err(reason) => parting.push(format!("{}: {reason:#}", family.name())),
        }
    }
    let reasons = if parting.is_empty() { missing } else { parting };
    Err(Error::profile(reasons.join("; ")))
}

/// Whether prompts may be cut at every control token that the family writes.
fn cuts(family: &dyn Family, vocabulary: &Vocabulary) -> Result<()> {
    let cuts = &vocabulary.cuts;
    match family.control_ids().into_iter().find(|&id| !(cuts.before(id) && cuts.after(id))) {
        Some(id) => {
            Err(Error::profile(format!("a prompt cannot be cut exactly at the token {id}")))
        }
        None => Ok(()),
    }
}
