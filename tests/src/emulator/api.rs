//! The HTTP server of an emulated site: OpenAI's endpoints, and a few for tests.
//!
//! - `POST /v1/chat/completions`, `POST /v1/completions`, streaming or not
//! - `GET /v1/models`, `/health`, `/metrics`
//! - `GET /emulator/state`: how many messages of events were published, and requests answered
//! - `PUT /emulator/fault` with a [`Fault`], `DELETE /emulator/fault`

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use kvgrid_prompt::cache_namespace;
use kvgrid_sim::Refusal;

use super::answer::{AnswerBody, AnswerKind, Wording};
use super::engine::Engine;
use super::fault::{Fault, FaultKind, Faults};
use super::metrics;
use super::prompt::Prompter;
use super::question::{self, Question};

/// Largest request body; more gets 413.
const BODY_LIMIT: usize = 64 << 20;

/// What all requests of an emulated site share.
pub(super) struct Site {
    pub(super) model: String,
    pub(super) block_size: u32,
    pub(super) max_tokens: u32,
    pub(super) engine: Engine,
    pub(super) prompter: Arc<Prompter>,
    pub(super) faults: Faults,
}

/// An answer that is not a completion.
struct Plain {
    status: StatusCode,
    content_type: &'static str,
    body: String,
}

impl Plain {
    fn json(status: StatusCode, body: &serde_json::Value) -> Self {
        Self {
            status,
            content_type: "application/json",
            body: body.to_string(),
        }
    }

    fn error(status: StatusCode, message: &str) -> Self {
        let kind = if status.is_client_error() {
            "invalid_request_error"
        } else {
            "internal_server_error"
        };
        let error = serde_json::json!({
            "error": {"message": message, "type": kind, "code": status.as_u16()}
        });
        Self::json(status, &error)
    }
}

impl Site {
    /// Answers one request.
    pub(super) async fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, Infallible> {
        let request_id = request.headers().get("x-request-id").cloned();
        let mut response = match self.route(request).await {
            Ok(response) => response,
            Err(plain) => response(
                plain.status,
                plain.content_type,
                AnswerBody::whole(plain.body),
            ),
        };
        if let Some(id) = request_id {
            response.headers_mut().insert("x-request-id", id);
        }
        Ok(response)
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Response<AnswerBody>, Plain> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/v1/chat/completions") => {
                self.complete(AnswerKind::Chat, request).await
            }
            (&Method::POST, "/v1/completions") => self.complete(AnswerKind::Text, request).await,
            (&Method::GET, "/v1/models") => Err(self.models()),
            (&Method::GET, "/health") => {
                let healthy = serde_json::json!({"status": "healthy"});
                Err(Plain::json(StatusCode::OK, &healthy))
            }
            (&Method::GET, "/metrics") => Err(Plain {
                status: StatusCode::OK,
                content_type: "text/plain; version=0.0.4",
                body: metrics::page(&self.model, &self.engine.stats(), self.block_size),
            }),
            (&Method::GET, "/emulator/state") => {
                let stats = self.engine.stats();
                let state = serde_json::json!({
                    "published": stats.published,
                    "answers": stats.answers,
                });
                Err(Plain::json(StatusCode::OK, &state))
            }
            (&Method::PUT, "/emulator/fault") => Err(self.set_fault(request).await?),
            (&Method::DELETE, "/emulator/fault") => {
                self.faults.set(None);
                Err(Plain::json(StatusCode::OK, &serde_json::Value::Null))
            }
            (_, path) => Err(Plain::error(
                StatusCode::NOT_FOUND,
                &format!("there is no {path} here"),
            )),
        }
    }

    fn models(&self) -> Plain {
        let models = serde_json::json!({
            "object": "list",
            "data": [{"id": self.model, "object": "model", "created": 0, "owned_by": "kvgrid-emulator"}]
        });
        Plain::json(StatusCode::OK, &models)
    }

    async fn set_fault(&self, request: Request<Incoming>) -> Result<Plain, Plain> {
        let body = body(request).await?;
        let fault: Fault = serde_json::from_slice(&body)
            .map_err(|error| Plain::error(StatusCode::BAD_REQUEST, &error.to_string()))?;
        self.faults.set(Some(fault));
        Ok(Plain::json(StatusCode::OK, &serde_json::Value::Null))
    }

    async fn complete(
        &self,
        kind: AnswerKind,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, Plain> {
        let headers = request.headers().clone();
        let body = body(request).await?;
        let (mut broken_after, mut tool_tokens) = (None, 0);
        match self.faults.take() {
            None => {}
            Some(FaultKind::Break(tokens)) => broken_after = Some(tokens),
            Some(FaultKind::ToolTokens(tokens)) => tool_tokens = tokens,
            Some(FaultKind::Stall) => std::future::pending().await,
            Some(FaultKind::Status(status)) => {
                let status = StatusCode::from_u16(status).map_err(|_| {
                    Plain::error(StatusCode::INTERNAL_SERVER_ERROR, "a wrong fault")
                })?;
                return Err(Plain::error(status, "this site was told to fail"));
            }
        }
        let mut question = self.question(kind, &headers, &body).await?;
        if question.has_tools {
            question.lengthen(tool_tokens);
        }
        let wording = self.wording(kind, &question, broken_after);
        let stream = question.stream;
        let answer = self
            .engine
            .request(question.into_request())
            .await
            .ok_or_else(|| Plain::error(StatusCode::SERVICE_UNAVAILABLE, "the engine is gone"))?
            .map_err(|refusal| refused(&refusal))?;
        if stream {
            let body = AnswerBody::streamed(answer, wording);
            return Ok(response(StatusCode::OK, "text/event-stream", body));
        }
        let whole = wording.whole(answer).await;
        let body = whole.map_or_else(AnswerBody::broken, AnswerBody::whole);
        Ok(response(StatusCode::OK, "application/json", body))
    }

    async fn question(
        &self,
        kind: AnswerKind,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Question, Plain> {
        let tenants = headers.get_all("x-tenant-id");
        let tenant = cache_namespace(tenants.iter().filter_map(|id| id.to_str().ok()));
        let question = question::read(kind, body, tenant, &self.prompter, self.max_tokens)
            .await
            .map_err(|error| Plain::error(StatusCode::BAD_REQUEST, &error.to_string()))?;
        if question.model != self.model {
            let message = format!("the model {} does not exist", question.model);
            return Err(Plain::error(StatusCode::NOT_FOUND, &message));
        }
        Ok(question)
    }

    fn wording(&self, kind: AnswerKind, question: &Question, broken_after: Option<u32>) -> Wording {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Wording {
            kind,
            id: format!("{}-{:016x}", kind.id_prefix(), rand_id()),
            created: since.map_or(0, |since| since.as_secs()),
            model: self.model.clone(),
            include_usage: question.include_usage,
            prompt_token_ids: question.echo_ids.then(|| question.tokens.clone()),
            prompter: self.prompter.clone(),
            broken_after,
        }
    }
}

/// Request ids only have to differ within a run.
fn rand_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn refused(refusal: &Refusal) -> Plain {
    let status = match refusal {
        Refusal::Empty | Refusal::TooLong { .. } => StatusCode::BAD_REQUEST,
        Refusal::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
    };
    Plain::error(status, &refusal.to_string())
}

async fn body(request: Request<Incoming>) -> Result<Bytes, Plain> {
    match Limited::new(request.into_body(), BODY_LIMIT)
        .collect()
        .await
    {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(Plain::error(
            StatusCode::PAYLOAD_TOO_LARGE,
            &error.to_string(),
        )),
    }
}

fn response(
    status: StatusCode,
    content_type: &'static str,
    body: AnswerBody,
) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
