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

/// What stands before a message, as far as its render depends on that: a family sees no more of
/// history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Before {
    /// Who spoke last.
    pub last: Last,
    /// Whether a user has asked something (templates look for the last query).
    pub asked: bool,
    /// Whether the model has answered since it last reasoned.
    pub answered: bool,
    /// How many calls there have been.
    pub calls: u32,
    /// Whether the model may not think: some say so in every message of a user.
    pub unthinking: bool,
}

impl Before {
    /// The same once `last` has spoken, with so many calls.
    #[must_use]
    pub fn and_said(self, last: Last, calls: usize) -> Self {
        let calls = self.calls.saturating_add(u32::try_from(calls).unwrap_or(u32::MAX));
        Self { last, calls, ..self }
    }
}

/// How a turn's sampled ids end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// In a stop token, or what history has for it.
    Closed,
    /// Cut off.
    Open,
    /// Within reasoning, whatever ended them.
    Thinking,
    /// Within reasoning that history has lost since.
    Lost,
}
