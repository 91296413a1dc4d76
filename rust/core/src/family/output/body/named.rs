//! A name, some scaffold, and arguments in JSON.

use std::mem;

use super::object::{Flow, Malformed, Progress, Raw};
use super::{Body, Gained, Head, Step};

/// Scaffold between the name and the arguments that is longer is none.
const SCAFFOLD: usize = 64;

#[derive(Debug)]
enum At {
    Head(Head),
    /// Behind it, so many characters.
    Behind(usize),
    Arguments(Raw),
    Done,
}

/// The body of one call.
#[derive(Debug)]
pub(crate) struct NamedBody {
    at: At,
    gained: Gained,
    arguments: Progress,
}

impl NamedBody {
    pub(super) fn new(before: &str) -> Self {
        Self {
            at: At::Head(Head::new(before)),
            gained: Gained::default(),
            arguments: Progress::Absent,
        }
    }

    fn behind(&mut self, count: usize, c: char) -> Result<At, Malformed> {
        if c != '{' {
            return if count < SCAFFOLD { Ok(At::Behind(count + 1)) } else { Err(Malformed) };
        }
        self.arguments = Progress::Open;
        self.gained.ready.push(c);
        let mut raw = Raw::default();
        raw.push(c)?;
        Ok(At::Arguments(raw))
    }
}

impl Body for NamedBody {
    fn gained(&mut self) -> &mut Gained {
        &mut self.gained
    }

    fn arguments(&self) -> Progress {
        self.arguments
    }

    fn is_done(&self) -> bool {
        matches!(self.at, At::Done)
    }

    fn in_string(&self) -> bool {
        matches!(&self.at, At::Arguments(raw) if raw.in_string())
    }

    fn push(&mut self, c: char) -> Result<(), Malformed> {
        self.at = match mem::replace(&mut self.at, At::Done) {
            At::Head(head) => match head.push(c)? {
                Step::Within(head) => At::Head(head),
                Step::Behind(name) => {
                    self.gained.name = Some(name);
                    self.behind(0, c)?
                }
            },
            At::Behind(count) => self.behind(count, c)?,
            At::Arguments(mut raw) => {
                let flow = raw.push(c)?;
                self.gained.ready.push(c);
                if flow == Flow::Within {
                    At::Arguments(raw)
                } else {
                    self.arguments = Progress::Complete;
                    At::Done
                }
            }
            At::Done => return Err(Malformed),
        };
        Ok(())
    }
}
