//! Finds `usage` in a JSON object that comes piece by piece.
//!
//! It is the value of the object's own key, or of its `response`'s. What stands in texts or
//! deeper does not count. Whether the JSON is sound is for who reads it: of what is none, no
//! harm comes.

/// Most bytes of a `usage` object.
const LIMIT: usize = 4096;
/// Bytes of a key that are kept: longer ones are none of those looked for.
const KEY: usize = 8;

/// Where in an object a piece has ended.
#[derive(Debug, Default)]
pub(super) struct Scan {
    depth: u32,
    in_text: bool,
    escaped: bool,
    /// The last text on a level where keys are looked for.
    text: Text,
    /// Whether that text was followed by a colon, so that it is the key of what comes.
    is_key: bool,
    /// Whether the object is within `response`.
    in_response: bool,
    found: Option<Found>,
}

/// The beginning of a text.
#[derive(Debug, Default)]
struct Text {
    bytes: [u8; KEY],
    length: usize,
}

impl Text {
    fn extend(&mut self, bytes: &[u8]) {
        let free = self.bytes.get_mut(self.length..).unwrap_or_default();
        for (place, byte) in free.iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.length = self.length.saturating_add(bytes.len());
    }

    fn is(&self, key: &[u8]) -> bool {
        self.length == key.len() && self.bytes.get(..self.length) == Some(key)
    }
}

/// A `usage` that has begun.
#[derive(Debug)]
struct Found {
    /// Where it ends.
    depth: u32,
    bytes: Vec<u8>,
    too_long: bool,
}

impl Found {
    fn push(&mut self, byte: u8) {
        self.too_long |= self.bytes.len() >= LIMIT;
        if !self.too_long {
            self.bytes.push(byte);
        }
    }
}

impl Scan {
    /// Takes the next bytes; calls `found` with each `usage` that ends in them, or with `None`
    /// if it is too long.
    pub(super) fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(Option<&[u8]>)) {
        let mut rest = bytes;
        while let Some((byte, more)) = self.after_text(rest).split_first() {
            rest = more;
            self.step(*byte);
            let ended = self.found.take_if(|it| self.depth <= it.depth);
            if let Some(Found {
                bytes, too_long, ..
            }) = ended
            {
                found((!too_long).then_some(bytes.as_slice()));
            }
        }
    }

    /// Skips what of a text can't end it; most of an answer is texts.
    fn after_text<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if !self.in_text || self.escaped || self.found.is_some() {
            return bytes;
        }
        let ends = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'));
        let (text, rest) = bytes.split_at(ends.unwrap_or(bytes.len()));
        self.text.extend(text);
        rest
    }

    fn step(&mut self, byte: u8) {
        if let Some(found) = &mut self.found {
            found.push(byte);
        }
        if self.in_text {
            self.step_in_text(byte);
            return;
        }
        match byte {
            b'"' => {
                self.in_text = true;
                self.text = Text::default();
            }
            b':' => self.is_key = true,
            b',' => self.is_key = false,
            b'{' => {
                self.enter();
                self.deeper();
            }
            b'[' => self.deeper(),
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.is_key = false;
                self.in_response &= self.depth > 1;
            }
            _ => {}
        }
    }

    fn step_in_text(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => {
                self.escaped = false;
                self.text.extend(&[byte]);
            }
            b'\\' => self.escaped = true,
            b'"' => self.in_text = false,
            _ => self.text.extend(&[byte]),
        }
    }

    fn deeper(&mut self) {
        self.depth = self.depth.saturating_add(1);
        self.is_key = false;
    }

    /// An object begins: is it one that is looked for?
    fn enter(&mut self) {
        if !self.is_key || self.found.is_some() {
            return;
        }
        let own = self.depth == 1 || (self.depth == 2 && self.in_response);
        if own && self.text.is(b"usage") {
            self.found = Some(Found {
                depth: self.depth,
                bytes: vec![b'{'],
                too_long: false,
            });
        } else if self.depth == 1 && self.text.is(b"response") {
            self.in_response = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    use serde_json::{Map, Value};

    use super::*;

    const KEYS: [&str; 6] = ["usage", "response", "usages", "\"usage\"", "\\", "é:{"];

    fn value(rng: &mut SmallRng, depth: u32) -> Value {
        match rng.random_range(0..if depth < 5 { 7 } else { 4 }) {
            0 => Value::Null,
            1 => rng.random_range(0..1000_u32).into(),
            2 => KEYS[rng.random_range(0..KEYS.len())].into(),
            3 => "{\"usage\":{\"x\":1}}\\".into(),
            4 => (0..rng.random_range(0..4))
                .map(|_| value(rng, depth + 1))
                .collect(),
            _ => object(rng, depth + 1),
        }
    }

    fn object(rng: &mut SmallRng, depth: u32) -> Value {
        let mut fields = Map::new();
        for _ in 0..rng.random_range(0..5) {
            let key = KEYS[rng.random_range(0..KEYS.len())];
            fields.insert(key.to_owned(), value(rng, depth));
        }
        fields.into()
    }

    /// The last `usage` there is, by reading all of it.
    fn expected(whole: &Value) -> Option<&Value> {
        let mut last = None;
        for (key, value) in whole.as_object().unwrap() {
            let within = value.as_object().filter(|_| key == "response");
            let within = within.and_then(|response| response.get("usage"));
            let own = Some(value).filter(|_| key == "usage");
            last = own.or(within).filter(|usage| usage.is_object()).or(last);
        }
        last
    }

    #[test]
    fn it_finds_what_a_reader_of_the_whole_finds() {
        let mut rng = SmallRng::seed_from_u64(5);
        let mut found = 0;
        for _ in 0..10_000 {
            let whole = object(&mut rng, 0);
            let text = match rng.random() {
                true => whole.to_string(),
                false => serde_json::to_string_pretty(&whole).unwrap(),
            };
            let mut last = None;
            let mut scan = Scan::default();
            let mut rest = text.as_bytes();
            while !rest.is_empty() {
                let (piece, more) = rest.split_at(rng.random_range(1..=rest.len()));
                scan.feed(piece, |json| last = json.map(<[u8]>::to_vec));
                rest = more;
            }
            let last: Option<Value> = last.map(|json| serde_json::from_slice(&json).unwrap());
            assert_eq!(last.as_ref(), expected(&whole), "{text}");
            found += u32::from(last.is_some());
        }
        assert!(found > 500, "{found}");
    }
}
