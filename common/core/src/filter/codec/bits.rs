//! Bits in a byte string, from the low end of each byte up.

use super::CodecError;

/// Bits that a window of eight bytes has for sure, wherever in its first byte it begins.
const WINDOW: u32 = 57;

/// Writes bits.
pub(super) struct BitWriter {
    bytes: Vec<u8>,
    /// Bits not yet written out, from the low end.
    pending: u64,
    /// How many; below 32 between calls.
    filled: u32,
}

impl BitWriter {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            pending: 0,
            filled: 0,
        }
    }

    /// Writes the low `count` bits, at most 32; those above must be zero.
    #[inline]
    pub(super) fn put(&mut self, bits: u64, count: u32) {
        self.pending |= bits << self.filled;
        self.filled += count;
        if self.filled >= 32 {
            let [a, b, c, d, ..] = self.pending.to_le_bytes();
            // Four bytes at once are one store; a length that varies would be a call.
            self.bytes.extend_from_slice(&[a, b, c, d]);
            self.pending >>= 32;
            self.filled -= 32;
        }
    }

    /// Writes a number in groups of seven bits, low ones first, the eighth bit for "more".
    pub(super) fn varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.put(number & 0x7f | 0x80, 8);
            number >>= 7;
        }
        self.put(number, 8);
    }

    /// Writes a gap: its high part as so many zeros and a one, then its low bits.
    #[inline]
    pub(super) fn rice(&mut self, gap: u64, parameter: u32) {
        let mut zeros = gap >> parameter;
        while zeros >= 16 {
            self.put(0, 16);
            zeros -= 16;
        }
        let (zeros, low) = ((zeros & 15) as u32, gap & ((1 << parameter) - 1));
        if parameter < 16 {
            self.put((low << 1 | 1) << zeros, zeros + 1 + parameter);
        } else {
            self.put(1 << zeros, zeros + 1);
            self.put(low & 0xffff, 16);
            let (middle, high) = ((low >> 16) & 0xffff_ffff, low >> 48);
            self.put(middle, (parameter - 16).min(32));
            self.put(high, parameter.saturating_sub(48));
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let left = self.filled.div_ceil(8) as usize;
        let bytes = self.pending.to_le_bytes();
        self.bytes.extend_from_slice(&bytes[..left]);
        self.bytes
    }
}

/// Reads bits.
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    /// Bits read.
    at: u64,
    /// Bits there are.
    end: u64,
}

impl<'a> BitReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            end: bytes.len() as u64 * 8,
        }
    }

    /// Bits that are left.
    pub(super) const fn left(&self) -> u64 {
        self.end - self.at
    }

    pub(super) fn byte(&mut self) -> Result<u8, CodecError> {
        let byte = self.window().to_le_bytes()[0];
        self.skip(8)?;
        Ok(byte)
    }

    /// Reads a number in its shortest form.
    pub(super) fn varint(&mut self) -> Result<u64, CodecError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part || (byte == 0 && shift > 0) {
                return Err(CodecError::Number);
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(CodecError::Number)
    }

    /// Reads a gap of at most so many low bits as a window has; none if it is above the limit.
    pub(super) fn rice(&mut self, parameter: u32, limit: u64) -> Result<Option<u64>, CodecError> {
        let mut zeros = 0_u64;
        let mut window = self.window();
        while window == 0 {
            self.skip(WINDOW)?;
            zeros += u64::from(WINDOW);
            window = self.window();
        }
        let last = window.trailing_zeros();
        self.skip(last + 1)?;
        zeros += u64::from(last);
        let low = self.window() & ((1 << parameter) - 1);
        self.skip(parameter)?;
        if zeros > limit >> parameter {
            return Ok(None);
        }
        Ok(Some(zeros << parameter | low))
    }

    /// Checks that nothing but the filling of the last byte is left.
    pub(super) fn finish(&self) -> Result<(), CodecError> {
        if self.left() < 8 && self.window() == 0 {
            Ok(())
        } else {
            Err(CodecError::Trailing)
        }
    }

    /// The next 57 bits or more; zeros past the end.
    #[inline]
    fn window(&self) -> u64 {
        let from = (self.at / 8) as usize;
        let word = match self.bytes.get(from..from + 8) {
            Some(bytes) => u64::from_le_bytes(bytes.try_into().unwrap_or_default()),
            None => self.last_window(from),
        };
        word >> (self.at % 8)
    }

    #[cold]
    fn last_window(&self, from: usize) -> u64 {
        let left = self.bytes.get(from..).unwrap_or_default();
        let mut word = [0; 8];
        word[..left.len()].copy_from_slice(left);
        u64::from_le_bytes(word)
    }

    #[inline]
    fn skip(&mut self, bits: u32) -> Result<(), CodecError> {
        let at = self.at + u64::from(bits);
        if at > self.end {
            return Err(CodecError::Truncated);
        }
        self.at = at;
        Ok(())
    }
}
