//! A frontend that says when: streams tell when each message was sent, and other answers when
//! the question was there.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use kvgrid_runtime::Tasks;
use kvgrid_runtime::http::{HttpLimits, listen, serve};
use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tower::service_fn;

use crate::harness::config::ANY;

/// Time between two messages of a stream.
const EVERY: Duration = Duration::from_millis(20);
const LIMITS: HttpLimits = HttpLimits {
    connections: 1_024,
    head_timeout: Duration::from_secs(60),
};

/// Clones are of one server, which ends with the last of them.
#[derive(Clone)]
pub(super) struct Frontend(Arc<Server>);

struct Server {
    address: SocketAddr,
    begun: Instant,
    tasks: Tasks,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

type Answer = Either<Full<Bytes>, Messages>;

impl Frontend {
    /// Serves this model.
    pub(super) fn start(model: &'static str) -> Result<Self> {
        let listener = listen(ANY)?;
        let address = listener.local_addr()?;
        let (begun, tasks) = (Instant::now(), Tasks::new());
        let service = service_fn(move |request| answer(model, begun, request));
        let (token, connections) = (tasks.token().clone(), tasks.clone());
        tasks.spawn("frontend", async move {
            let serving = serve(listener, LIMITS, connections, service);
            token.run_until_cancelled(serving).await;
        });
        Ok(Self(Arc::new(Server {
            address,
            begun,
            tasks,
        })))
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.0.address)
    }

    /// The time now, as messages tell it.
    pub(super) fn micros(&self) -> u64 {
        micros(self.0.begun)
    }
}

fn micros(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
}

async fn answer(
    model: &str,
    begun: Instant,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let plain = |value: Value| {
        let answer = Either::Left(Full::from(value.to_string()));
        let mut answer = Response::new(answer);
        answer.headers_mut().insert(
            CONTENT_TYPE,
            http::HeaderValue::from_static("application/json"),
        );
        answer
    };
    if request.method() != Method::POST {
        return Ok(plain(json!({"object": "list", "data": [{"id": model}]})));
    }
    let question = request.into_body().collect().await;
    let arrived = micros(begun);
    let question = question.map(http_body_util::Collected::to_bytes);
    let question: Value = question
        .ok()
        .and_then(|body| serde_json::from_slice(&body).ok())
        .unwrap_or_default();
    if question["stream"] != true {
        return Ok(plain(json!({"arrived": arrived})));
    }
    let mut every = interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut answer = Response::new(Either::Right(Messages { begun, every }));
    answer.headers_mut().insert(
        CONTENT_TYPE,
        http::HeaderValue::from_static("text/event-stream"),
    );
    Ok(answer)
}

/// Events with the time, without end.
struct Messages {
    begun: Instant,
    every: Interval,
}

impl Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        ready!(self.every.poll_tick(context));
        let event = format!("data: {}\n\n", micros(self.begun));
        Poll::Ready(Some(Ok(Frame::data(event.into()))))
    }
}
