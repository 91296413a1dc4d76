//! What a render depends on beside its message: all that a family's renderer sees of history.

/// Who spoke last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Last {
    /// Nobody yet.
    #[default]
    Nobody,
    /// The operator, behind the header.
    Operator,
    /// A user.
    User,
    /// The model.
    Model,
    /// Tools.
    Tools,
}

/// What stands before a message, as far as its render depends on that, and what was asked of the
/// whole conversation: a family sees no more of history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Before {
    /// Who spoke last.
    pub last: Last,
    /// Whether a user has asked something (templates look for the last query).
    pub asked: bool,
    /// Whether the model has answered since it last reasoned.
    pub answered: bool,
    /// Whether a user's message waits for an answer that calls nothing.
    pub waits: bool,
    /// How many calls there have been.
    pub calls: u32,
    /// How many of them the last message made; 65,535 stands for more.
    pub last_calls: u16,
    /// Whether the model has said anything.
    pub spoke: bool,
    /// Whether a tool has.
    pub had_output: bool,
    /// Whether the model may reason.
    pub thinking: bool,
    /// Whether it has tools.
    pub tools: bool,
}

impl Before {
    /// The same once `last` has spoken, with so many calls.
    #[must_use]
    pub fn and_said(self, last: Last, calls: usize) -> Self {
        let answers = last == Last::Model && calls == 0;
        let all = self.calls.saturating_add(u32::try_from(calls).unwrap_or(u32::MAX));
        Self {
            last,
            waits: last == Last::User || (self.waits && !answers),
            calls: all,
            last_calls: u16::try_from(calls).unwrap_or(u16::MAX),
            spoke: self.spoke || last == Last::Model,
            had_output: self.had_output || last == Last::Tools,
            ..self
        }
    }
}

/// How a turn's sampled ids end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// In a stop token, or what history has for it.
    Closed,
    /// Cut off.
    Open,
    /// Within something of the format's own, which its parser [numbers].
    ///
    /// [numbers]: crate::family::OutputParser::within
    Within(u8),
    /// Within reasoning, whatever ended them.
    Thinking,
    /// Within reasoning that history has lost since.
    Lost,
}
