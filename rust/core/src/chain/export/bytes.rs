//! Numbers and strings as bytes, and back without trust.

use crate::error::{Error, Result};

/// What a blob that says something impossible is answered with.
pub(super) fn broken(what: &str) -> Error {
    Error::invalid_value("blob", format!("The blob is no exported response: {what}."))
}

pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

pub(super) fn put_size(out: &mut Vec<u8>, size: usize) {
    put_number(out, size as u64);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_size(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// What of a blob has not been read.
pub(super) struct Left<'a>(pub(super) &'a [u8]);

impl<'a> Left<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(len).ok_or_else(|| broken("it ends early"))?;
        self.0 = left;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| broken("it ends early"))
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn flag(&mut self) -> Result<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(broken("a flag is neither 0 nor 1")),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(broken("a number is too long"))
    }

    pub(super) fn short(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|_| broken("a number is too large"))
    }

    /// A number that is at most `most`.
    pub(super) fn size(&mut self, most: usize) -> Result<usize> {
        let size = usize::try_from(self.number()?).ok().filter(|size| *size <= most);
        size.ok_or_else(|| broken("a number is too large"))
    }

    /// How many things follow, each of which takes at least `bytes`.
    pub(super) fn count(&mut self, bytes: usize) -> Result<usize> {
        self.size(self.0.len() / bytes)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.count(1)?;
        self.take(len)
    }

    pub(super) fn string(&mut self) -> Result<String> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| broken("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// One of `all`, by its place.
    pub(super) fn choice<T: Copy>(&mut self, all: &[T]) -> Result<T> {
        let index = usize::from(self.byte()?);
        all.get(index).copied().ok_or_else(|| broken("an unknown kind"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_come_back(number: u64) {
            let mut out = Vec::new();
            put_number(&mut out, number);
            prop_assert_eq!(Left(&out).number().unwrap(), number);
            out.pop();
            prop_assert!(Left(&out).number().is_err());
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_refused() {
        assert_eq!(
            Left(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).number().unwrap(),
            u64::MAX
        );
        assert!(Left(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).number().is_err());
        assert!(Left(&[0x80; 11]).number().is_err());
    }
}
