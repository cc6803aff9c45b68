//! Reads what a site says of a prompt while its answer passes: `usage`, in a JSON body or in the
//! events of a stream.
//!
//! No byte is kept, held back or changed for it, but for the few of `usage` itself. An answer
//! that is compressed is not read. A stream may say its usage more than once: the last counts.

use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use kvgrid_core::parity::Usage;
use serde::Deserialize;

use lines::Lines;
use scan::Scan;

mod lines;
mod scan;

/// What was read of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The site says this.
    Told(Usage),
    /// The answer is over, or broke off, and said nothing.
    Absent,
    /// It is compressed.
    Encoded,
    /// What it says is nothing that is known here.
    Unfit,
}

impl Reading {
    /// In one word, for metrics.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Told(_) => "told",
            Self::Absent => "absent",
            Self::Encoded => "encoded",
            Self::Unfit => "unfit",
        }
    }

    /// The usage; nothing of it known if the site told none.
    pub(super) fn usage(self) -> Usage {
        match self {
            Self::Told(usage) => usage,
            Self::Absent | Self::Encoded | Self::Unfit => Usage::default(),
        }
    }
}

/// Reads one answer.
#[derive(Debug)]
pub(super) struct UsageReader {
    form: Form,
    reading: Reading,
}

#[derive(Debug)]
enum Form {
    Json(Scan),
    Events(Lines),
    Encoded,
}

impl UsageReader {
    /// A reader of an answer with these headers, which is a stream of events or JSON.
    pub(super) fn new(headers: &HeaderMap, is_event_stream: bool) -> Self {
        let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
        let form = if encodings.any(|encoding| encoding != "identity") {
            Form::Encoded
        } else if is_event_stream {
            Form::Events(Lines::default())
        } else {
            Form::Json(Scan::default())
        };
        let reading = match form {
            Form::Encoded => Reading::Encoded,
            Form::Json(_) | Form::Events(_) => Reading::Absent,
        };
        Self { form, reading }
    }

    /// Takes bytes of the answer, as they come.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let reading = &mut self.reading;
        let found = |json: Option<&[u8]>| *reading = read(json);
        match &mut self.form {
            Form::Json(scan) => scan.feed(bytes, found),
            Form::Events(lines) => lines.feed(bytes, found),
            Form::Encoded => {}
        }
    }

    /// Whether it was read, so that a body that is no stream has no other.
    pub(super) const fn has_told(&self) -> bool {
        matches!(self.reading, Reading::Told(_))
    }

    /// What was read so far.
    pub(super) const fn reading(&self) -> Reading {
        self.reading
    }
}

/// OpenAI's chat completions, completions and responses call it differently.
#[derive(Deserialize)]
struct Wire {
    prompt_tokens: Option<u32>,
    prompt_tokens_details: Option<Details>,
    input_tokens: Option<u32>,
    input_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

/// Reads a `usage` object; `None` is one that is too long.
fn read(json: Option<&[u8]>) -> Reading {
    let wire = json.and_then(|json| serde_json::from_slice::<Wire>(json).ok());
    let Some(wire) = wire else {
        return Reading::Unfit;
    };
    let details = wire.prompt_tokens_details.or(wire.input_tokens_details);
    Reading::Told(Usage {
        prompt_tokens: wire.prompt_tokens.or(wire.input_tokens),
        cached_tokens: details.and_then(|details| details.cached_tokens),
        same_ids: None,
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const WHOLE: &str = r#"{"id":"x","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":9}","usage":{"prompt_tokens":8}}}],
        "usage": {"prompt_tokens": 65, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 48}},
        "nvext":{"prompt_token_ids":[1,2,3],"usage":{"prompt_tokens":7}}}"#;

    const STREAM: &str = "event: chunk\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"data: {\\\"usage\\\":{}}\"}}],\"usage\":null}\r\n\r\n\
        : a comment {\"usage\":{\"prompt_tokens\":3}}\n\n\
        data:{\"choices\":[],\n\
        data: \"usage\":{\"prompt_tokens\":65,\"prompt_tokens_details\":null}}\n\n\
        data: [DONE]\n\n";

    fn told(prompt_tokens: u32, cached_tokens: Option<u32>) -> Reading {
        Reading::Told(Usage {
            prompt_tokens: Some(prompt_tokens),
            cached_tokens,
            same_ids: None,
        })
    }

    fn reading(text: &str, is_event_stream: bool, piece: usize) -> Reading {
        let mut reader = UsageReader::new(&HeaderMap::new(), is_event_stream);
        for bytes in text.as_bytes().chunks(piece) {
            reader.feed(bytes);
        }
        reader.reading()
    }

    #[test]
    fn usage_is_read_however_the_answer_is_cut() {
        for piece in 1..=WHOLE.len() {
            assert_eq!(reading(WHOLE, false, piece), told(65, Some(48)), "{piece}");
        }
        for piece in 1..=STREAM.len() {
            assert_eq!(reading(STREAM, true, piece), told(65, None), "{piece}");
        }
    }

    #[test]
    fn the_last_usage_of_a_stream_counts() {
        let events: String = (1..4)
            .map(|tokens| format!("data: {{\"usage\":{{\"prompt_tokens\":{tokens}}}}}\n\n"))
            .collect();

        assert_eq!(reading(&events, true, 5), told(3, None));
    }

    #[test]
    fn usage_of_the_responses_api_is_read_by_its_own_names() {
        let usage = r#""usage":{"input_tokens":65,"input_tokens_details":{"cached_tokens":0}}"#;
        let whole = format!("{{\"object\":\"response\",{usage}}}");
        let event = format!(
            "data: {{\"type\":\"response.completed\",\"response\":{{\"id\":1,{usage}}},\"n\":1}}\n\n"
        );

        assert_eq!(reading(&whole, false, 7), told(65, Some(0)));
        assert_eq!(reading(&event, true, 7), told(65, Some(0)));
    }

    #[test]
    fn what_is_not_said_is_unknown_and_never_zero() {
        let absent = r#"{"choices":[],"usage":null}"#;
        assert_eq!(reading(absent, false, 4), Reading::Absent);
        assert_eq!(reading("no JSON \"usage\":{", false, 4), Reading::Absent);
        let empty = reading(r#"{"usage":{}}"#, false, 4);
        assert_eq!(empty, Reading::Told(Usage::default()));
        let negative = r#"{"usage":{"prompt_tokens":-1}}"#;
        assert_eq!(reading(negative, false, 4), Reading::Unfit);
        let long = format!("{{\"usage\":{{\"x\":\"{}\"}}}}", "y".repeat(10_000));
        assert_eq!(reading(&long, false, 100), Reading::Unfit);
    }

    #[test]
    fn a_compressed_answer_is_not_read() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let mut reader = UsageReader::new(&headers, false);

        reader.feed(WHOLE.as_bytes());

        assert_eq!(reader.reading(), Reading::Encoded);
    }
}
