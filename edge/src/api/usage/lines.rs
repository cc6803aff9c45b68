//! The data of server-sent events, line by line, as it comes.

use super::scan::Scan;

/// How a line with data begins.
const DATA: &[u8] = b"data:";

/// Where in a stream a piece has ended.
#[derive(Debug, Default)]
pub(super) struct Lines {
    line: Line,
    /// Of the event under way.
    scan: Scan,
}

#[derive(Debug)]
enum Line {
    /// So many bytes of it are those of [`DATA`].
    Begins(usize),
    Data,
    /// A comment or another field.
    Other,
}

impl Default for Line {
    fn default() -> Self {
        Self::Begins(0)
    }
}

impl Lines {
    /// Takes the next bytes; calls `found` as [`Scan::feed`] does.
    pub(super) fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(Option<&[u8]>)) {
        let mut rest = bytes;
        while let Some(byte) = rest.first() {
            match (&self.line, *byte) {
                // An empty line ends the event.
                (Line::Begins(0), b'\n') => self.scan = Scan::default(),
                (_, b'\n') => self.line = Line::default(),
                (Line::Begins(0), b'\r') | (Line::Other, _) => {}
                (Line::Begins(at), byte) => self.line = begun(*at, byte),
                (Line::Data, _) => {
                    let end = rest.iter().position(|byte| *byte == b'\n');
                    let (data, more) = rest.split_at(end.unwrap_or(rest.len()));
                    self.scan.feed(data, &mut found);
                    rest = more;
                    continue;
                }
            }
            rest = &rest[1..];
        }
    }
}

fn begun(at: usize, byte: u8) -> Line {
    match DATA.get(at) {
        Some(wanted) if *wanted == byte && at + 1 == DATA.len() => Line::Data,
        Some(wanted) if *wanted == byte => Line::Begins(at + 1),
        _ => Line::Other,
    }
}
