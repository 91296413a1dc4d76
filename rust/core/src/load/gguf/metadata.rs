//! The metadata of a GGUF file: header and key-value pairs, not the tensors.
//!
//! The format is `docs/gguf.md` of ggml-org/ggml (versions 2 and 3, little-endian). A file is
//! somebody else's bytes: every length is checked against what is left of the file before anything
//! is allocated for it, and nothing here can panic.

use std::collections::HashMap;
use std::io;

/// `GGUF`.
const MAGIC: [u8; 4] = *b"GGUF";

/// Longest key: the format's own limit.
const KEY_LIMIT: u64 = 65_535;

/// Longest string that is kept. Chat templates reach 100 KB; nothing else comes near.
const STRING_LIMIT: u64 = 16 << 20;

/// Arrays nest in theory; no writer does it.
const DEPTH_LIMIT: u32 = 4;

/// Room made for an array before its elements have been seen.
const FIRST_ROOM: usize = 4096;

/// Why a file's metadata cannot be read. Said to people, behind the file's name.
pub(super) type Fault = String;

/// `Result` with a [`Fault`].
pub(super) type Read<T> = Result<T, Fault>;

/// One value. Small numbers are widened; floats are not needed by anything here and are skipped.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Metadatum {
    /// Any integer type.
    Integer(i128),
    /// A flag.
    Bool(bool),
    /// Text.
    Text(String),
    /// An array of text.
    Texts(Vec<String>),
    /// An array of integers of any type.
    Integers(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f64>),
    /// A float, or an array of something else.
    Other,
}

/// The key-value pairs that were asked for.
#[derive(Debug, Default)]
pub(super) struct Metadata(HashMap<String, Metadatum>);

impl Metadata {
    /// Reads the metadata from the start of a file of `length` bytes, and keeps the values whose
    /// key `wanted` accepts.
    pub(super) fn read(
        file: impl io::Read,
        length: u64,
        wanted: impl Fn(&str) -> bool,
    ) -> Read<Self> {
        let mut bytes = Bytes { file, left: length };
        if bytes.take::<4>()? != MAGIC {
            return Err("not a GGUF file".to_owned());
        }
        match bytes.u32()? {
            2 | 3 => {}
            version if matches!(version.swap_bytes(), 1..=3) => {
                return Err("a big-endian GGUF file is not supported".to_owned());
            }
            version => {
                return Err(format!("GGUF version {version} is not supported (2 and 3 are)"));
            }
        }
        let _tensors = bytes.u64()?;
        let count = bytes.u64()?;
        // A pair takes at least a key's length, a type and one byte.
        bytes.check(count, 8 + 4 + 1, "key-value pairs")?;
        let mut pairs = HashMap::new();
        for _ in 0..count {
            let key = bytes.key()?;
            let kind = Kind::of(bytes.u32()?)?;
            if wanted(&key) {
                let value = bytes.value(kind).map_err(|fault| format!("'{key}': {fault}"))?;
                if pairs.insert(key.clone(), value).is_some() {
                    return Err(format!("'{key}' is there twice"));
                }
            } else {
                bytes.skip_value(kind, DEPTH_LIMIT).map_err(|fault| format!("'{key}': {fault}"))?;
            }
        }
        Ok(Self(pairs))
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Read<Option<&str>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Metadatum::Text(text)) => Ok(Some(text)),
            Some(_) => Err(format!("'{key}' is not text")),
        }
    }

    /// A flag.
    pub(super) fn flag(&self, key: &str) -> Read<Option<bool>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Metadatum::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(format!("'{key}' is not a flag")),
        }
    }

    /// A number that is not negative.
    pub(super) fn number(&self, key: &str) -> Read<Option<u64>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Metadatum::Integer(number)) => u64::try_from(*number)
                .map(Some)
                .map_err(|_| format!("'{key}' is negative or too large")),
            Some(_) => Err(format!("'{key}' is not a whole number")),
        }
    }

    /// Takes an array of text out.
    pub(super) fn take_texts(&mut self, key: &str) -> Read<Option<Vec<String>>> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(Metadatum::Texts(texts)) => Ok(Some(texts)),
            Some(_) => Err(format!("'{key}' is not a list of text")),
        }
    }

    /// Takes an array of floats out.
    pub(super) fn take_floats(&mut self, key: &str) -> Read<Option<Vec<f64>>> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(Metadatum::Floats(numbers)) => Ok(Some(numbers)),
            Some(_) => Err(format!("'{key}' is not a list of numbers")),
        }
    }

    /// Takes an array of integers out.
    pub(super) fn take_integers(&mut self, key: &str) -> Read<Option<Vec<i64>>> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(Metadatum::Integers(numbers)) => Ok(Some(numbers)),
            Some(_) => Err(format!("'{key}' is not a list of whole numbers")),
        }
    }
}

/// The format's value types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Width in bytes, signed or not.
    Integer(u64, bool),
    /// Width in bytes.
    Float(u64),
    Bool,
    Text,
    Array,
}

impl Kind {
    fn of(code: u32) -> Read<Self> {
        Ok(match code {
            0 => Self::Integer(1, false),
            1 => Self::Integer(1, true),
            2 => Self::Integer(2, false),
            3 => Self::Integer(2, true),
            4 => Self::Integer(4, false),
            5 => Self::Integer(4, true),
            6 => Self::Float(4),
            7 => Self::Bool,
            8 => Self::Text,
            9 => Self::Array,
            10 => Self::Integer(8, false),
            11 => Self::Integer(8, true),
            12 => Self::Float(8),
            other => return Err(format!("the value type {other} is not known")),
        })
    }

    /// Fewest bytes that a value of this kind takes.
    fn least(self) -> u64 {
        match self {
            Self::Integer(width, _) | Self::Float(width) => width,
            Self::Bool => 1,
            Self::Text => 8,
            Self::Array => 12,
        }
    }
}

/// A reader that knows how much is left.
struct Bytes<R> {
    file: R,
    left: u64,
}

impl<R: io::Read> Bytes<R> {
    fn take<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut bytes = [0; N];
        self.claim(N as u64)?;
        self.file.read_exact(&mut bytes).map_err(|error| fault_of(&error))?;
        Ok(bytes)
    }

    /// Counts bytes as read; refuses more than are left.
    fn claim(&mut self, count: u64) -> Read<()> {
        self.left = self.left.checked_sub(count).ok_or_else(ended)?;
        Ok(())
    }

    /// Refuses a count of things that cannot all be in what is left.
    fn check(&self, count: u64, least: u64, what: &str) -> Read<()> {
        if count.checked_mul(least).is_none_or(|total| total > self.left) {
            return Err(format!("it claims {count} {what}, more than the file can hold"));
        }
        Ok(())
    }

    fn u32(&mut self) -> Read<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Read<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn integer(&mut self, width: u64, signed: bool) -> Read<i128> {
        Ok(match (width, signed) {
            (1, false) => i128::from(u8::from_le_bytes(self.take()?)),
            (1, true) => i128::from(i8::from_le_bytes(self.take()?)),
            (2, false) => i128::from(u16::from_le_bytes(self.take()?)),
            (2, true) => i128::from(i16::from_le_bytes(self.take()?)),
            (4, false) => i128::from(u32::from_le_bytes(self.take()?)),
            (4, true) => i128::from(i32::from_le_bytes(self.take()?)),
            (_, false) => i128::from(u64::from_le_bytes(self.take()?)),
            (_, true) => i128::from(i64::from_le_bytes(self.take()?)),
        })
    }

    fn string(&mut self, limit: u64) -> Read<String> {
        let length = self.u64()?;
        if length > limit {
            return Err(format!("a text of {length} bytes is too long"));
        }
        self.claim(length)?;
        let mut bytes = Vec::with_capacity(usize::try_from(length).map_err(|_| ended())?);
        let mut part = io::Read::take(&mut self.file, length);
        let read = io::Read::read_to_end(&mut part, &mut bytes);
        if read.map_err(|error| fault_of(&error))? as u64 != length {
            return Err(ended());
        }
        String::from_utf8(bytes).map_err(|_| "a text is not UTF-8".to_owned())
    }

    fn key(&mut self) -> Read<String> {
        self.string(KEY_LIMIT).map_err(|fault| format!("a key cannot be read: {fault}"))
    }

    fn value(&mut self, kind: Kind) -> Read<Metadatum> {
        Ok(match kind {
            Kind::Integer(width, signed) => Metadatum::Integer(self.integer(width, signed)?),
            Kind::Bool => Metadatum::Bool(self.take::<1>()? != [0]),
            Kind::Text => Metadatum::Text(self.string(STRING_LIMIT)?),
            Kind::Array => return self.array(),
            Kind::Float(_) => {
                self.skip_value(kind, DEPTH_LIMIT)?;
                Metadatum::Other
            }
        })
    }

    fn array(&mut self) -> Read<Metadatum> {
        let (kind, count) = self.array_head()?;
        let room = usize::try_from(count).unwrap_or(usize::MAX).min(FIRST_ROOM);
        match kind {
            Kind::Text => {
                let mut texts = Vec::with_capacity(room);
                for _ in 0..count {
                    texts.push(self.string(STRING_LIMIT)?);
                }
                Ok(Metadatum::Texts(texts))
            }
            Kind::Integer(width, signed) => {
                let mut numbers = Vec::with_capacity(room);
                for _ in 0..count {
                    let number = i64::try_from(self.integer(width, signed)?);
                    numbers.push(number.map_err(|_| "a number is too large".to_owned())?);
                }
                Ok(Metadatum::Integers(numbers))
            }
            Kind::Float(width) => {
                let mut numbers = Vec::with_capacity(room);
                for _ in 0..count {
                    numbers.push(if width == 4 {
                        f64::from(f32::from_le_bytes(self.take()?))
                    } else {
                        f64::from_le_bytes(self.take()?)
                    });
                }
                Ok(Metadatum::Floats(numbers))
            }
            Kind::Bool | Kind::Array => {
                for _ in 0..count {
                    self.skip_value(kind, DEPTH_LIMIT - 1)?;
                }
                Ok(Metadatum::Other)
            }
        }
    }

    fn array_head(&mut self) -> Read<(Kind, u64)> {
        let kind = Kind::of(self.u32()?)?;
        let count = self.u64()?;
        self.check(count, kind.least(), "elements")?;
        Ok((kind, count))
    }

    fn skip_value(&mut self, kind: Kind, depth: u32) -> Read<()> {
        match kind {
            Kind::Text => {
                let length = self.u64()?;
                self.skip(length)
            }
            Kind::Array => {
                let depth = depth.checked_sub(1).ok_or("its arrays nest too deep")?;
                let (kind, count) = self.array_head()?;
                if matches!(kind, Kind::Text | Kind::Array) {
                    (0..count).try_for_each(|_| self.skip_value(kind, depth))
                } else {
                    self.skip(count.saturating_mul(kind.least()))
                }
            }
            Kind::Integer(..) | Kind::Float(_) | Kind::Bool => self.skip(kind.least()),
        }
    }

    fn skip(&mut self, count: u64) -> Read<()> {
        self.claim(count)?;
        let skipped = io::copy(&mut io::Read::take(&mut self.file, count), &mut io::sink());
        if skipped.map_err(|error| fault_of(&error))? == count { Ok(()) } else { Err(ended()) }
    }
}

fn ended() -> Fault {
    "the file ends in the middle of its metadata".to_owned()
}

fn fault_of(error: &io::Error) -> Fault {
    if error.kind() == io::ErrorKind::UnexpectedEof { ended() } else { error.to_string() }
}
