//! A reader of MessagePack that allocates nothing and never recurses.
//!
//! Events come from processes of other makers and versions. Reading them value by value,
//! instead of through a derived type, lets one odd event be passed over while its neighbours
//! count, and costs nothing for what is skipped. A length that the bytes can't hold is an
//! error when the bytes end, however large it claims to be.

use thiserror::Error;

/// Why bytes are no MessagePack. The sender is at fault; the reader stands where it stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The bytes end within a value.
    #[error("the bytes end within a value")]
    Truncated,
    /// A byte that begins no value.
    #[error("byte 0xc1 begins no value")]
    Reserved,
    /// A value of another type than its place asks for.
    #[error("a value of another type than its place asks for")]
    Type,
}

/// One value, or the head of one that contains others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    Nil,
    Bool,
    /// Zero or positive.
    Uint(u64),
    /// Negative.
    Int(i64),
    Float(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    /// Followed by this many values.
    Array(u32),
    /// Followed by this many pairs of values.
    Map(u32),
    Extension,
}

/// What is left to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Reads one value, or the head of an array or map.
    pub(super) fn token(&mut self) -> Result<Token<'a>, Malformed> {
        let mut next = *self;
        let token = next.read_token()?;
        *self = next;
        Ok(token)
    }

    /// Passes over one value with all it contains, and returns a reader of just that.
    pub(super) fn value(&mut self) -> Result<Self, Malformed> {
        let start = self.rest;
        let mut left: u64 = 1;
        while left > 0 {
            left -= 1;
            match self.token()? {
                Token::Array(length) => left += u64::from(length),
                Token::Map(length) => left += 2 * u64::from(length),
                _ => {}
            }
        }
        let length = start.len() - self.rest.len();
        Ok(Reader::new(&start[..length]))
    }

    /// Reads the head of an array.
    pub(super) fn array(&mut self) -> Result<u32, Malformed> {
        match self.token()? {
            Token::Array(length) => Ok(length),
            _ => Err(Malformed::Type),
        }
    }

    /// The most values that may still follow: none is shorter than a byte.
    pub(super) fn at_most(&self, length: u32) -> usize {
        usize::try_from(length).map_or(self.rest.len(), |length| length.min(self.rest.len()))
    }

    fn read_token(&mut self) -> Result<Token<'a>, Malformed> {
        let [head] = self.bytes()?;
        Ok(match head {
            0x00..=0x7f => Token::Uint(head.into()),
            0x80..=0x8f => Token::Map((head & 0x0f).into()),
            0x90..=0x9f => Token::Array((head & 0x0f).into()),
            0xa0..=0xbf => Token::Str(self.slice((head & 0x1f).into())?),
            0xc0 => Token::Nil,
            0xc1 => return Err(Malformed::Reserved),
            0xc2 | 0xc3 => Token::Bool,
            0xc4..=0xc6 => {
                let length = self.length(head - 0xc4)?;
                Token::Bin(self.slice(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(head - 0xc7)?;
                self.extension(length)?
            }
            0xca => Token::Float(f32::from_be_bytes(self.bytes()?).into()),
            0xcb => Token::Float(f64::from_be_bytes(self.bytes()?)),
            0xcc => Token::Uint(u8::from_be_bytes(self.bytes()?).into()),
            0xcd => Token::Uint(u16::from_be_bytes(self.bytes()?).into()),
            0xce => Token::Uint(u32::from_be_bytes(self.bytes()?).into()),
            0xcf => Token::Uint(u64::from_be_bytes(self.bytes()?)),
            0xd0 => signed(i8::from_be_bytes(self.bytes()?).into()),
            0xd1 => signed(i16::from_be_bytes(self.bytes()?).into()),
            0xd2 => signed(i32::from_be_bytes(self.bytes()?).into()),
            0xd3 => signed(i64::from_be_bytes(self.bytes()?)),
            0xd4..=0xd8 => self.extension(1 << (head - 0xd4))?,
            0xd9..=0xdb => {
                let length = self.length(head - 0xd9)?;
                Token::Str(self.slice(length)?)
            }
            0xdc | 0xdd => Token::Array(self.length(head - 0xdb)?),
            0xde | 0xdf => Token::Map(self.length(head - 0xdd)?),
            0xe0..=0xff => Token::Int(i8::from_be_bytes([head]).into()),
        })
    }

    /// A length of one, two or four bytes.
    fn length(&mut self, width: u8) -> Result<u32, Malformed> {
        Ok(match width {
            0 => u8::from_be_bytes(self.bytes()?).into(),
            1 => u16::from_be_bytes(self.bytes()?).into(),
            _ => u32::from_be_bytes(self.bytes()?),
        })
    }

    fn extension(&mut self, length: u32) -> Result<Token<'a>, Malformed> {
        let [_kind] = self.bytes()?;
        self.slice(length)?;
        Ok(Token::Extension)
    }

    fn slice(&mut self, length: u32) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed::Truncated)?;
        let (slice, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(slice)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }
}

fn signed(value: i64) -> Token<'static> {
    match u64::try_from(value) {
        Ok(value) => Token::Uint(value),
        Err(_) => Token::Int(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(bytes: &[u8]) -> Token<'_> {
        Reader::new(bytes).token().unwrap()
    }

    fn encoded<T: serde::Serialize>(value: T) -> Vec<u8> {
        rmp_serde::to_vec(&value).unwrap()
    }

    #[test]
    fn scalars_are_read_as_another_library_wrote_them() {
        assert_eq!(token(&encoded(())), Token::Nil);
        assert_eq!(token(&encoded(true)), Token::Bool);
        assert_eq!(token(&encoded(1.5f32)), Token::Float(1.5));
        assert_eq!(token(&encoded(-2.5f64)), Token::Float(-2.5));
        assert_eq!(token(&encoded("text")), Token::Str(b"text"));
        let long = "x".repeat(70_000);
        assert_eq!(token(&encoded(&long)), Token::Str(long.as_bytes()));
    }

    #[test]
    fn a_value_that_is_passed_over_takes_its_parts_with_it() {
        let bytes = encoded((vec![("a", [1, 2]), ("b", [3, 4])], 7));
        let mut reader = Reader::new(&bytes);
        reader.array().unwrap();

        let mut inner = reader.value().unwrap();

        assert_eq!(inner.token(), Ok(Token::Array(2)));
        assert_eq!(reader.token(), Ok(Token::Uint(7)));
    }

    #[test]
    fn a_claimed_length_is_not_believed() {
        let mut reader = Reader::new(&[0xdd, 0xff, 0xff, 0xff, 0xff, 0x01]);

        assert_eq!(reader.value().unwrap_err(), Malformed::Truncated);
        let mut text = Reader::new(&[0xdb, 0xff, 0xff, 0xff, 0xff, b'a']);
        assert_eq!(text.token(), Err(Malformed::Truncated));
    }

    #[test]
    fn nesting_a_million_deep_is_no_recursion() {
        let mut bytes = vec![0x91; 1_000_000];
        bytes.push(0xc0);

        assert!(Reader::new(&bytes).value().is_ok());
    }

    proptest! {
        #[test]
        fn integers_are_read_as_another_library_wrote_them(signed: i64, unsigned: u64) {
            let (positive, either) = (encoded(unsigned), encoded(signed));
            prop_assert_eq!(token(&positive), Token::Uint(unsigned));
            let expected = match u64::try_from(signed) {
                Ok(value) => Token::Uint(value),
                Err(_) => Token::Int(signed),
            };
            prop_assert_eq!(token(&either), expected);
        }

        #[test]
        fn any_bytes_end(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.value().is_ok() {}
        }
    }
}
