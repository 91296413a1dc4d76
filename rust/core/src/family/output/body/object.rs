//! The JSON between the two call markers, read one character at a time.
//!
//! ```text
//! Start ─{→ Key ─"→ InKey ─"→ Colon ─:→ Value ─┬ name      ─"→ InName ──"→ After
//!            │                                 ├ arguments ─"→ Encoded ─"→ After   (or → Raw)
//!            │                                 └ any       ──→ Raw ──────→ After
//!            └──────────────────────────────────── After ─,→ Key     Key, After ─}→ Done
//! ```
//!
//! Every other character is [`Malformed`], and ends the reading. Only the frame of the object is
//! held to the grammar: inside a value brackets must pair and strings must close, but what stands
//! between them is the model's affair, because it may have been streamed long before a fault shows.
//!
//! Nothing recurses, so depth costs a stack entry and not a stack frame.

use std::mem;

use super::{Body, Gained};

/// Brackets that may be open at once in one value. Deeper is malformed: no tool's arguments nest
/// so far, and clients parse them with recursive parsers.
const DEPTH: usize = 512;

/// A decoded key is kept up to here: longer than any key that means something.
const LONGEST_KEY: usize = "parameters".len();

/// The text is not a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// How far the arguments have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// No such key yet.
    Absent,
    /// The key was read, its value not to the end.
    Open,
    /// The whole value was read.
    Complete,
}

/// What a key says about its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Name,
    Arguments,
    Other,
}

#[derive(Debug)]
enum At {
    Start,
    Key,
    InKey(Decoder),
    Colon,
    Value(Role),
    InName(Decoder, String),
    Encoded(Encoded),
    Raw(Role, Raw),
    After,
    Done,
}

/// The body of one call.
#[derive(Debug)]
pub(crate) struct ObjectBody {
    /// Whether a list of such objects may be opened first.
    list: bool,
    at: At,
    key: String,
    /// The first name counts; this outlives its being taken.
    named: bool,
    arguments: Progress,
    gained: Gained,
}

impl ObjectBody {
    pub(super) fn new(list: bool) -> Self {
        Self {
            list,
            at: At::Start,
            key: String::new(),
            named: false,
            arguments: Progress::Absent,
            gained: Gained::default(),
        }
    }

    /// What the key just read means. The first of a kind counts; `parameters` is what some
    /// fine-tunes write, having seen the key in the tool's definition.
    fn role(&self) -> Role {
        match self.key.as_str() {
            "name" | "tool_name" if !self.named => Role::Name,
            "arguments" | "parameters" if self.arguments == Progress::Absent => Role::Arguments,
            _ => Role::Other,
        }
    }

    fn open_value(&mut self, role: Role, c: char) -> Result<At, Malformed> {
        match (role, c) {
            (Role::Name, '"') => Ok(At::InName(Decoder::default(), String::new())),
            (Role::Name, _) => Err(Malformed),
            (Role::Arguments, '"') => {
                self.arguments = Progress::Open;
                Ok(At::Encoded(Encoded::default()))
            }
            (Role::Arguments, _) => {
                self.arguments = Progress::Open;
                self.push_raw(role, Raw::default(), c)
            }
            (Role::Other, _) => self.push_raw(role, Raw::default(), c),
        }
    }

    fn push_raw(&mut self, role: Role, mut raw: Raw, c: char) -> Result<At, Malformed> {
        let flow = raw.push(c)?;
        let ours = role == Role::Arguments;
        if ours && flow != Flow::Past {
            self.gained.ready.push(c);
        }
        if ours && flow != Flow::Within {
            self.arguments = Progress::Complete;
        }
        match flow {
            Flow::Within => Ok(At::Raw(role, raw)),
            Flow::Last => Ok(At::After),
            Flow::Past => after(c),
        }
    }

    /// Arguments that are a string. One that holds an object is the object, encoded once too
    /// often; one that holds nothing leaves no arguments; any other is passed on as it is.
    /// Its first visible character decides, and only what precedes that is held back.
    fn push_encoded(&mut self, mut encoded: Encoded, c: char) -> Result<At, Malformed> {
        let mut piece = String::new();
        let closed = encoded.decoder.push(c, &mut piece)?;
        if let Some(blank) = &mut encoded.undecided {
            blank.raw.push(c);
            blank.decoded.push_str(&piece);
            match piece.trim_start().chars().next() {
                Some('{') => {
                    self.gained.ready.push_str(&blank.decoded);
                    encoded.undecided = None;
                }
                Some(_) => {
                    self.gained.ready.push('"');
                    self.gained.ready.push_str(&blank.raw);
                    if !closed {
                        return Ok(At::Raw(Role::Arguments, Raw::string()));
                    }
                }
                None => {}
            }
        } else {
            self.gained.ready.push_str(&piece);
        }
        if closed {
            self.arguments = Progress::Complete;
            return Ok(At::After);
        }
        Ok(At::Encoded(encoded))
    }
}

impl Body for ObjectBody {
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
        match &self.at {
            At::InKey(_) | At::InName(..) | At::Encoded(_) => true,
            At::Raw(_, raw) => raw.in_string(),
            At::Start | At::Key | At::Colon | At::Value(_) | At::After | At::Done => false,
        }
    }

    fn push(&mut self, c: char) -> Result<(), Malformed> {
        self.at = match mem::replace(&mut self.at, At::Done) {
            At::Start => match c {
                '{' => At::Key,
                '[' if self.list => At::Start,
                c if is_blank(c) => At::Start,
                _ => return Err(Malformed),
            },
            // A closing brace is taken here too: a comma before it is a common slip.
            At::Key => match c {
                '"' => {
                    self.key.clear();
                    At::InKey(Decoder::default())
                }
                '}' => At::Done,
                c if is_blank(c) => At::Key,
                _ => return Err(Malformed),
            },
            At::InKey(mut decoder) => {
                let mut piece = String::new();
                let closed = decoder.push_strict(c, &mut piece)?;
                if self.key.len() <= LONGEST_KEY {
                    self.key.push_str(&piece);
                }
                if closed { At::Colon } else { At::InKey(decoder) }
            }
            At::Colon => match c {
                ':' => At::Value(self.role()),
                c if is_blank(c) => At::Colon,
                _ => return Err(Malformed),
            },
            At::Value(role) if is_blank(c) => At::Value(role),
            At::Value(role) => self.open_value(role, c)?,
            At::InName(mut decoder, mut name) => {
                if !decoder.push_strict(c, &mut name)? {
                    At::InName(decoder, name)
                } else if name.trim().is_empty() {
                    return Err(Malformed);
                } else {
                    self.gained.name = Some(name);
                    self.named = true;
                    At::After
                }
            }
            At::Encoded(encoded) => self.push_encoded(encoded, c)?,
            At::Raw(role, raw) => self.push_raw(role, raw, c)?,
            At::After => after(c)?,
            At::Done => return Err(Malformed),
        };
        Ok(())
    }
}

/// Behind a value.
fn after(c: char) -> Result<At, Malformed> {
    match c {
        ',' => Ok(At::Key),
        '}' => Ok(At::Done),
        c if is_blank(c) => Ok(At::After),
        _ => Err(Malformed),
    }
}

/// What JSON calls whitespace.
pub(crate) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\r' | '\t')
}

/// Where a character stands in a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Within,
    Last,
    /// Behind it: only a number or a word ends by what follows.
    Past,
}

/// A value of any kind, passed over and not decoded.
#[derive(Debug, Default)]
pub(crate) struct Raw {
    /// The brackets that must yet come, innermost last.
    closers: Vec<char>,
    mode: Mode,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Mode {
    #[default]
    Fresh,
    Scalar,
    Between,
    String,
    Escaped,
}

impl Raw {
    /// A string whose opening quote has been read.
    fn string() -> Self {
        Self { closers: Vec::new(), mode: Mode::String }
    }

    pub(super) fn in_string(&self) -> bool {
        matches!(self.mode, Mode::String | Mode::Escaped)
    }

    pub(crate) fn push(&mut self, c: char) -> Result<Flow, Malformed> {
        self.mode = match self.mode {
            Mode::Escaped => Mode::String,
            Mode::String => match c {
                '\\' => Mode::Escaped,
                '"' if self.closers.is_empty() => return Ok(Flow::Last),
                '"' => Mode::Between,
                _ => Mode::String,
            },
            Mode::Fresh | Mode::Between if c == '"' => Mode::String,
            Mode::Fresh | Mode::Between if c == '{' => self.open('}')?,
            Mode::Fresh | Mode::Between if c == '[' => self.open(']')?,
            Mode::Between if c == '}' || c == ']' => {
                if self.closers.pop() != Some(c) {
                    return Err(Malformed);
                }
                if self.closers.is_empty() {
                    return Ok(Flow::Last);
                }
                Mode::Between
            }
            Mode::Between => Mode::Between,
            Mode::Fresh | Mode::Scalar if is_scalar(c) => Mode::Scalar,
            Mode::Scalar if c == ',' || c == '}' || is_blank(c) => return Ok(Flow::Past),
            Mode::Fresh | Mode::Scalar => return Err(Malformed),
        };
        Ok(Flow::Within)
    }

    fn open(&mut self, closer: char) -> Result<Mode, Malformed> {
        if self.closers.len() >= DEPTH {
            return Err(Malformed);
        }
        self.closers.push(closer);
        Ok(Mode::Between)
    }
}

/// A character of a number, `true`, `false`, `null` (or of their cousins in other languages).
fn is_scalar(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.')
}

/// Arguments given as a string.
#[derive(Debug)]
struct Encoded {
    decoder: Decoder,
    /// Present until the string has shown what it holds.
    undecided: Option<Undecided>,
}

impl Default for Encoded {
    fn default() -> Self {
        Self { decoder: Decoder::default(), undecided: Some(Undecided::default()) }
    }
}

#[derive(Debug, Default)]
struct Undecided {
    raw: String,
    decoded: String,
}

/// Decodes a JSON string from behind its opening quote.
#[derive(Debug, Default)]
struct Decoder {
    escape: Escape,
    /// The first half of a surrogate pair, waiting for the second.
    high: Option<u32>,
}

#[derive(Debug, Default, Clone, Copy)]
enum Escape {
    #[default]
    None,
    Backslash,
    Hex {
        left: u8,
        unit: u32,
    },
}

impl Decoder {
    /// As [`push`](Self::push), but a raw control character is malformed, as JSON has it: in a
    /// key or a name it means that a quote is missing.
    fn push_strict(&mut self, c: char, into: &mut String) -> Result<bool, Malformed> {
        if c < ' ' { Err(Malformed) } else { self.push(c, into) }
    }

    /// Whether this was the closing quote. What the character completes goes to `into`.
    fn push(&mut self, c: char, into: &mut String) -> Result<bool, Malformed> {
        match self.escape {
            Escape::None => match c {
                '"' => {
                    self.flush_half(into);
                    return Ok(true);
                }
                '\\' => self.escape = Escape::Backslash,
                c => {
                    self.flush_half(into);
                    into.push(c);
                }
            },
            Escape::Backslash => {
                let plain = match c {
                    'u' => {
                        self.escape = Escape::Hex { left: 4, unit: 0 };
                        return Ok(false);
                    }
                    '"' | '\\' | '/' => c,
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    _ => return Err(Malformed),
                };
                self.escape = Escape::None;
                self.flush_half(into);
                into.push(plain);
            }
            Escape::Hex { left, unit } => {
                let unit = unit << 4 | c.to_digit(16).ok_or(Malformed)?;
                if left > 1 {
                    self.escape = Escape::Hex { left: left - 1, unit };
                } else {
                    self.escape = Escape::None;
                    self.push_unit(unit, into);
                }
            }
        }
        Ok(false)
    }

    /// One UTF-16 unit; halves pair up, and a half alone reads as U+FFFD.
    fn push_unit(&mut self, unit: u32, into: &mut String) {
        match (self.high.take(), unit) {
            (Some(high), 0xDC00..=0xDFFF) => {
                let code = 0x1_0000 + ((high - 0xD800) << 10) + (unit - 0xDC00);
                into.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (half, unit) => {
                self.high = half;
                self.flush_half(into);
                if (0xD800..0xDC00).contains(&unit) {
                    self.high = Some(unit);
                } else {
                    into.push(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER));
                }
            }
        }
    }

    fn flush_half(&mut self, into: &mut String) {
        if self.high.take().is_some() {
            into.push(char::REPLACEMENT_CHARACTER);
        }
    }
}
