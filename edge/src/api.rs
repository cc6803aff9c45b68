//! The API that clients see: OpenAI's chat completions, completions and models.
//!
//! A request's body is read whole, understood (its model, and its prompt in tokens), and sent
//! to the site that the router chooses, unchanged to the byte. A site that fails before the
//! first byte of its answer is passed over for the next best; after that byte the client gets
//! the answer as it comes, and if the site breaks off, one clear error. A client that leaves
//! takes its request with it: everything a request holds is owned by its response.
//!
//! Around the handler stand layers: each request has an id, and a panic is an answer.

mod answer;
mod body;
mod canary;
mod error;
mod events;
mod forwarded;
mod headers;
mod models;
mod receive;
mod sites;
mod tries;
mod understand;
mod usage;

use std::any::Any;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use kvgrid_prompt::Cards;
use kvgrid_runtime::admin::Health;
use tokio::sync::Semaphore;
use tower::{Service, ServiceBuilder};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{PropagateRequestIdLayer, SetRequestIdLayer};
use tracing::error;

use crate::config::Config;
use crate::metrics::Metrics;
use crate::route::Router;
use answer::Holds;
use body::ApiBody;
use error::ApiError;
use headers::REQUEST_ID;
use sites::Sites;
use understand::Endpoint;

/// What the API takes from the configuration.
#[derive(Clone, Debug)]
pub(crate) struct ApiConfig {
    /// Whether answers carry `x-kvgrid-*` headers.
    pub(crate) explain: bool,
    /// Largest request body, in bytes.
    pub(crate) body_bytes: usize,
    /// How long a client may take to send it.
    pub(crate) body_timeout: Duration,
    /// Requests at the same time, their streams included.
    pub(crate) requests: usize,
    /// How long a request waits for its tokens.
    pub(crate) prompt_deadline: Duration,
    /// Sites that one request is sent to at most.
    pub(crate) sites: usize,
    /// How long a site may take until its answer begins.
    pub(crate) answer_timeout: Duration,
}

impl ApiConfig {
    /// What `config` says of the API.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            explain: config.headers.explain,
            body_bytes: config.limits.body_bytes,
            body_timeout: config.limits.body_timeout,
            requests: config.limits.requests,
            prompt_deadline: config.prompt.deadline,
            sites: config.retry.sites,
            answer_timeout: config.retry.answer_timeout,
        }
    }
}

/// What the API works with; clones share it.
pub(crate) struct Api<S>(Arc<Shared<S>>);

struct Shared<S> {
    config: ApiConfig,
    router: Router,
    sites: S,
    cards: Arc<Cards>,
    health: Health,
    metrics: Metrics,
    /// One permit for each request that is being answered.
    places: Arc<Semaphore>,
    /// One permit for each thread that may tokenise a large body.
    tokenisers: Arc<Semaphore>,
    started_unix: u64,
}

/// The parts that an [`Api`] is made of.
pub(crate) struct ApiParts<S> {
    /// Decides.
    pub(crate) router: Router,
    /// Carries requests to sites.
    pub(crate) sites: S,
    /// Tokenise.
    pub(crate) cards: Arc<Cards>,
    /// Answers the health checks.
    pub(crate) health: Health,
    /// Count.
    pub(crate) metrics: Metrics,
}

impl<S> Clone for Api<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Sites> Api<S> {
    /// An API over these parts.
    pub(crate) fn new(config: ApiConfig, parts: ApiParts<S>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self(Arc::new(Shared {
            places: Arc::new(Semaphore::new(config.requests)),
            // One core is left for everything else.
            tokenisers: Arc::new(Semaphore::new(cores.saturating_sub(1).max(1))),
            started_unix: unix.map_or(0, |since| since.as_secs()),
            config,
            router: parts.router,
            sites: parts.sites,
            cards: parts.cards,
            health: parts.health,
            metrics: parts.metrics,
        }))
    }

    /// The API as a service for an HTTP server.
    pub(crate) fn into_service(
        self,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<impl http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static {
        ServiceBuilder::new()
            .map_request(headers::without_unsound_id)
            .layer(SetRequestIdLayer::new(REQUEST_ID, headers::NewRequestId))
            .layer(PropagateRequestIdLayer::new(REQUEST_ID))
            .layer(CatchPanicLayer::custom(|panic: Box<dyn Any + Send>| {
                panicked(panic.as_ref())
            }))
            .service_fn(move |request: Request<Incoming>| {
                let api = self.clone();
                async move { Ok::<_, Infallible>(api.answer(request).await) }
            })
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<ApiBody<S::Body>> {
        let path = request.uri().path();
        if let Some(answer) = self.0.health.answer(path) {
            return match get_only(request.method()) {
                Ok(()) => answer.map(ApiBody::Whole),
                Err(error) => whole(&error),
            };
        }
        let answered = match path {
            "/v1/models" => get_only(request.method()).map(|()| self.models()),
            "/v1/chat/completions" => self.generate(Endpoint::Chat, request).await,
            "/v1/completions" => self.generate(Endpoint::Completion, request).await,
            unknown => Err(ApiError::UnknownPath(unknown.to_owned())),
        };
        answered.unwrap_or_else(|error| whole(&error))
    }

    fn models(&self) -> Response<ApiBody<S::Body>> {
        let page = models::page(&self.0.router.view(), self.0.started_unix);
        kvgrid_runtime::admin::json(http::StatusCode::OK, page).map(ApiBody::Whole)
    }

    async fn generate(
        &self,
        endpoint: Endpoint,
        request: Request<Incoming>,
    ) -> Result<Response<ApiBody<S::Body>>, ApiError> {
        if request.method() != Method::POST {
            return Err(ApiError::Method("POST"));
        }
        let shared = &self.0;
        let place = Arc::clone(&shared.places)
            .try_acquire_owned()
            .map_err(|_| ApiError::Overloaded)?;
        let holds = Holds::new(place, shared.metrics.begin());
        let answered = self.serve(endpoint, request, holds).await;
        if let Err(error) = &answered {
            shared.metrics.answered(None, error.status().as_u16());
        }
        answered
    }

    async fn serve(
        &self,
        endpoint: Endpoint,
        request: Request<Incoming>,
        holds: Holds,
    ) -> Result<Response<ApiBody<S::Body>>, ApiError> {
        let config = &self.0.config;
        let (head, body) = request.into_parts();
        let body =
            receive::whole(&head.headers, body, config.body_bytes, config.body_timeout).await?;
        let asked = self.understand(endpoint, &head.headers, &body).await?;
        self.0.metrics.prompt(asked.tokens);
        let begun = self.try_sites(&head, body, asked).await?;
        let site = begun.choice.site.clone();
        let response = begun.into_response(holds, &self.0.metrics, config.explain);
        let status = response.status().as_u16();
        self.0.metrics.answered(Some(&site), status);
        Ok(response)
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn get_only(method: &Method) -> Result<(), ApiError> {
    if method == Method::GET || method == Method::HEAD {
        Ok(())
    } else {
        Err(ApiError::Method("GET"))
    }
}

fn whole<B>(error: &ApiError) -> Response<ApiBody<B>> {
    error.response().map(|json| ApiBody::Whole(json.into()))
}

fn panicked(panic: &(dyn Any + Send)) -> Response<http_body_util::Full<Bytes>> {
    let text = panic.downcast_ref::<&str>().copied();
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    let panic = text.or(owned).unwrap_or("no text");
    error!(panic, "Request handler panicked");
    ApiError::Internal.response().map(Into::into)
}

#[cfg(test)]
mod tests;
