//! The admin server: health, metrics and whatever else a daemon shows of itself.
//!
//! `/livez` says that the process answers, `/readyz` that it can do its work (or why not), and
//! `/metrics` has the numbers. A daemon adds routes of its own. It is for operators: it listens
//! on the loopback interface unless the configuration says otherwise.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::http::{HttpLimits, serve};
use crate::tasks::Tasks;

/// Few people look at once, and a scraper keeps one connection.
const LIMITS: HttpLimits = HttpLimits {
    connections: 64,
    head_timeout: Duration::from_secs(30),
};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An answer of the admin server, whole in memory.
pub type Answer = Response<Full<Bytes>>;

type Route = Arc<dyn Fn(&Parts) -> Answer + Send + Sync>;
type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Table `[admin]`: where the admin server listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// The address; the daemon has its own default.
    pub listen: Option<std::net::SocketAddr>,
    /// A file that is written when the node has started, with the addresses it listens on.
    pub ready_file: Option<PathBuf>,
}

/// What a process says of its health; the edge says it on its client port too. Clones agree.
#[derive(Clone)]
pub struct Health {
    ready: Readiness,
    leaving: Arc<AtomicBool>,
}

impl Health {
    /// Asks `ready` each time: `Err` says in words what is missing.
    pub fn new(ready: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self {
            ready: Arc::new(ready),
            leaving: Arc::default(),
        }
    }

    /// Is never ready from now on, because the process leaves.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    fn readiness(&self) -> Result<(), String> {
        if self.leaving.load(Ordering::Relaxed) {
            return Err("leaving".to_owned());
        }
        (self.ready)()
    }

    /// The answer for `/livez` or `/readyz`, if `path` is one of them.
    pub fn answer(&self, path: &str) -> Option<Answer> {
        match path {
            "/livez" => Some(text(StatusCode::OK, "live\n")),
            "/readyz" => Some(match self.readiness() {
                Ok(()) => text(StatusCode::OK, "ready\n"),
                Err(missing) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{missing}\n")),
            }),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Health({:?})", self.readiness())
    }
}

/// The admin server's routes.
#[derive(Clone)]
pub struct Admin {
    health: Health,
    registry: Arc<Registry>,
    routes: BTreeMap<&'static str, Route>,
}

impl Admin {
    /// Health and metrics.
    pub fn new(health: Health, registry: Arc<Registry>) -> Self {
        Self {
            health,
            registry,
            routes: BTreeMap::new(),
        }
    }

    /// Answers GET requests for `path` with what `route` gives, which must not block.
    pub fn route(
        mut self,
        path: &'static str,
        route: impl Fn(&Parts) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.routes.insert(path, Arc::new(route));
        self
    }

    /// Serves until the tasks are told to stop.
    pub async fn serve(self, listener: TcpListener, tasks: Tasks) {
        let admin = Arc::new(self);
        let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| {
            let (head, _body) = request.into_parts();
            ready(Ok::<_, Infallible>(admin.answer(&head)))
        });
        serve(listener, LIMITS, tasks, service).await;
    }

    fn answer(&self, head: &Parts) -> Answer {
        let path = head.uri.path();
        let known = self.health.answer(path).or_else(|| match path {
            "/metrics" => Some(self.metrics()),
            _ => self.routes.get(path).map(|route| route(head)),
        });
        match known {
            None => text(StatusCode::NOT_FOUND, "no such page\n"),
            Some(_) if head.method != Method::GET && head.method != Method::HEAD => {
                let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
                let get = HeaderValue::from_static("GET, HEAD");
                answer.headers_mut().insert(header::ALLOW, get);
                answer
            }
            Some(answer) => answer,
        }
    }

    fn metrics(&self) -> Answer {
        let mut page = String::new();
        match prometheus_client::encoding::text::encode(&mut page, &self.registry) {
            Ok(()) => typed(StatusCode::OK, OPENMETRICS, page),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "metrics have no text\n"),
        }
    }
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let routes: Vec<_> = self.routes.keys().collect();
        f.debug_struct("Admin")
            .field("routes", &routes)
            .finish_non_exhaustive()
    }
}

/// An answer in plain text.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(status, "text/plain; charset=utf-8", body)
}

/// An answer in JSON, encoded already.
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(status, "application/json", body)
}

fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

#[cfg(test)]
mod tests;
