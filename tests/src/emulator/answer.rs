//! What an emulated site answers, in OpenAI's JSON: whole, or as server-sent events.

use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use kvgrid_sim::Usage;
use serde_json::{Value, json};

use super::engine::{Answer, Piece};
use super::prompt::Prompter;

/// Which of the two endpoints answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerKind {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
}

impl AnswerKind {
    pub(super) const fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text => "cmpl",
        }
    }

    const fn object(self, streamed: bool) -> &'static str {
        match (self, streamed) {
            (Self::Chat, false) => "chat.completion",
            (Self::Chat, true) => "chat.completion.chunk",
            (Self::Text, _) => "text_completion",
        }
    }
}

/// How one answer is put into words.
pub(super) struct Wording {
    pub(super) kind: AnswerKind,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) include_usage: bool,
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    pub(super) prompter: Arc<Prompter>,
    /// After how many tokens the connection breaks.
    pub(super) broken_after: Option<u32>,
}

impl Wording {
    /// The whole answer as JSON; `None` when it broke.
    pub(super) async fn whole(self, mut answer: Answer) -> Option<String> {
        let mut text = String::new();
        let mut tokens = 0;
        loop {
            match answer.next().await? {
                Piece::Token(_) if self.broken_after == Some(tokens) => return None,
                Piece::Token(token) => {
                    text.push_str(&self.prompter.vocabulary().word(token));
                    tokens += 1;
                }
                Piece::Done(usage) => return Some(self.completion(&text, usage)),
            }
        }
    }

    fn completion(&self, text: &str, usage: Usage) -> String {
        let choice = match self.kind {
            AnswerKind::Chat => json!({
                "index": 0,
                "message": {"content": text, "refusal": null, "role": "assistant"},
                "finish_reason": "length",
                "logprobs": null,
            }),
            AnswerKind::Text => json!({
                "text": text, "index": 0, "finish_reason": "length", "logprobs": null,
            }),
        };
        let mut completion = json!({
            "id": self.id,
            "choices": [choice],
            "created": self.created,
            "model": self.model,
            "object": self.kind.object(false),
            "usage": usage_json(usage),
        });
        if let Some(ids) = &self.prompt_token_ids {
            completion["nvext"] = json!({"prompt_token_ids": ids});
        }
        completion.to_string()
    }

    fn token_event(&self, number: u32, token: u32) -> String {
        let word = Value::from(&*self.prompter.vocabulary().word(token));
        let choice = match self.kind {
            AnswerKind::Chat if number == 0 => format!(
                r#"{{"index":0,"delta":{{"content":{word},"role":"assistant"}},"finish_reason":null,"logprobs":null}}"#
            ),
            AnswerKind::Chat => format!(
                r#"{{"index":0,"delta":{{"content":{word}}},"finish_reason":null,"logprobs":null}}"#
            ),
            AnswerKind::Text => {
                format!(r#"{{"text":{word},"index":0,"finish_reason":null,"logprobs":null}}"#)
            }
        };
        let mut event = self.event(&choice);
        if let Some(ids) = self.prompt_token_ids.as_ref().filter(|_| number == 0) {
            let _ = write!(event, r#","nvext":{}"#, json!({"prompt_token_ids": ids}));
        }
        event + "}\n\n"
    }

    fn last_events(&self, usage: Usage) -> String {
        let choice = match self.kind {
            AnswerKind::Chat => {
                r#"{"index":0,"delta":{},"finish_reason":"length","logprobs":null}"#
            }
            AnswerKind::Text => r#"{"text":"","index":0,"finish_reason":"length","logprobs":null}"#,
        };
        let mut events = self.event(choice) + "}\n\n";
        if self.include_usage {
            let _ = write!(
                events,
                "{},\"usage\":{}}}\n\n",
                self.event(""),
                usage_json(usage)
            );
        }
        events + "data: [DONE]\n\n"
    }

    /// An event without its end, so that more fields can be added.
    fn event(&self, choice: &str) -> String {
        let Self {
            id, created, model, ..
        } = self;
        let object = self.kind.object(true);
        let model = Value::from(&**model);
        format!(
            r#"data: {{"id":"{id}","choices":[{choice}],"created":{created},"model":{model},"object":"{object}""#
        )
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens as u64 + u64::from(usage.output_tokens),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

/// The body of a response.
pub(super) enum AnswerBody {
    /// All of it is here already.
    Whole(Option<Bytes>),
    /// It comes token by token.
    Streamed(Box<Stream>),
    /// It ends in the middle.
    Broken,
}

pub(super) struct Stream {
    answer: Answer,
    wording: Wording,
    tokens: u32,
    breaking: bool,
    ended: bool,
}

impl AnswerBody {
    pub(super) fn whole(body: String) -> Self {
        Self::Whole(Some(body.into()))
    }

    pub(super) const fn broken() -> Self {
        Self::Broken
    }

    pub(super) fn streamed(answer: Answer, wording: Wording) -> Self {
        Self::Streamed(Box::new(Stream {
            answer,
            wording,
            tokens: 0,
            breaking: false,
            ended: false,
        }))
    }
}

impl Stream {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<String, Broken>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.breaking {
            self.ended = true;
            return Poll::Ready(Some(Err(Broken)));
        }
        let event = match ready!(self.answer.poll_next(context)) {
            Some(Piece::Token(_)) if self.wording.broken_after == Some(self.tokens) => {
                return self.break_off(context);
            }
            None => return self.break_off(context),
            Some(Piece::Token(token)) => {
                self.tokens += 1;
                self.wording.token_event(self.tokens - 1, token)
            }
            Some(Piece::Done(usage)) => {
                self.ended = true;
                self.wording.last_events(usage)
            }
        };
        Poll::Ready(Some(Ok(event)))
    }

    /// Breaks off at the next poll, so that the server sends what it has until then.
    fn break_off<T>(&mut self, context: &Context<'_>) -> Poll<T> {
        self.breaking = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The connection is broken off, because a fault says so or the engine is gone.
#[derive(Debug, thiserror::Error)]
#[error("the answer was broken off")]
pub(super) struct Broken;

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Broken => Poll::Ready(Some(Err(Broken))),
            Self::Streamed(stream) => {
                let event = ready!(stream.poll_event(context));
                Poll::Ready(event.map(|event| event.map(|event| Frame::data(event.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_none(),
            Self::Streamed(stream) => stream.ended,
            Self::Broken => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => {
                SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64))
            }
            Self::Streamed(_) | Self::Broken => SizeHint::default(),
        }
    }
}
