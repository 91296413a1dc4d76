//! The fields of a protobuf message, as the wire has them: enough for `SentencePiece`'s own file.

use super::vocabulary::Read;

/// A field's value. Numbers of any width are their bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    pub(super) fn bytes(self) -> Read<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err("a number stands where text should".to_owned()),
        }
    }

    pub(super) fn text(self) -> Read<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "a text is not UTF-8".to_owned())
    }

    pub(super) fn number(self) -> Read<u64> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Bytes(_) => Err("text stands where a number should".to_owned()),
        }
    }

    /// A `float`, whose bits are a number of 32 bits.
    pub(super) fn float(self) -> Read<f64> {
        let bits = u32::try_from(self.number()?);
        bits.map(|bits| f64::from(f32::from_bits(bits))).map_err(|_| "not a float".to_owned())
    }
}

/// The fields of a message, by number and in order; an error ends them.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Read<(u64, Field<'a>)> {
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => Field::Number(self.fixed::<8>().map(u64::from_le_bytes)?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| cut_off())?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Number(self.fixed::<4>().map(u32::from_le_bytes)?.into()),
            wire => return Err(format!("not protobuf: the wire type {wire}")),
        };
        Ok((key >> 3, field))
    }

    fn varint(&mut self) -> Read<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.fixed()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("not protobuf: a number without an end".to_owned())
    }

    fn fixed<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| cut_off())
    }

    fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(cut_off)?;
        self.0 = rest;
        Ok(taken)
    }
}

fn cut_off() -> String {
    "not protobuf: it ends in the middle of a field".to_owned()
}

impl<'a> Iterator for Fields<'a> {
    type Item = Read<(u64, Field<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Oracle: the examples of the protobuf documentation's page on encoding.
    #[test]
    fn fields_are_read_as_protobuf_documents_them() {
        let all = |bytes| Fields(bytes).collect::<Read<Vec<_>>>();
        assert_eq!(all(b"\x08\x96\x01").unwrap(), [(1, Field::Number(150))]);
        assert_eq!(all(b"\x12\x07testing").unwrap(), [(2, Field::Bytes(b"testing"))]);
        let nested = all(b"\x1a\x03\x08\x96\x01").unwrap();
        assert_eq!(all(nested[0].1.bytes().unwrap()).unwrap(), [(1, Field::Number(150))]);
        assert_eq!(all(b"\x15\0\0\x80\x3f").unwrap()[0].1.float(), Ok(1.0));
        assert!(all(b"").unwrap().is_empty());
    }

    #[test]
    fn what_is_not_protobuf_is_refused() {
        let refusal = |bytes| Fields(bytes).find_map(Result::err).unwrap();
        for cut in [&b"\x08"[..], b"\x12\x08testing", b"\x15\0\0", b"\x12\xff\xff\xff\xff\x7fx"] {
            assert!(refusal(cut).contains("ends in the middle"), "{cut:?}");
        }
        assert_eq!(refusal(b"\x0b"), "not protobuf: the wire type 3");
        assert_eq!(refusal(&[0xff; 11]), "not protobuf: a number without an end");
    }
}
