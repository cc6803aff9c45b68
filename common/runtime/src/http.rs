//! An HTTP/1.1 server that stops in good order.
//!
//! Connections are counted: at the limit no more are accepted, and the kernel's backlog holds
//! them. A client that does not send its head in time is cut off. When the tasks are told to
//! stop, idle connections close at once and busy ones after their response.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::Service;
use tracing::{debug, warn};

use crate::tasks::Tasks;

/// Pause after a failed accept: it fails when descriptors run out, and then again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections at the same time; more wait in the kernel's backlog.
    pub connections: usize,
    /// How long a client may take to send a request's head, an idle connection's next one too.
    pub head_timeout: Duration,
}

/// An address cannot be bound.
#[derive(Debug, Error)]
#[error("{address} cannot be bound: {error}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// What the system says.
    pub error: io::Error,
}

/// Binds a TCP listener; must run within the runtime.
pub fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let bound = || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    bound().map_err(|error| ListenError { address, error })
}

/// Serves connections until the tasks are told to stop; open ones go on as tasks.
pub async fn serve<S, B>(listener: TcpListener, limits: HttpLimits, tasks: Tasks, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let permits = Arc::new(Semaphore::new(limits.connections));
    loop {
        // Both arms may be dropped while they wait: nothing is lost but a place in a queue.
        let (stream, permit) = tokio::select! {
            () = tasks.stopping() => return,
            accepted = accept(&listener, &permits) => accepted,
        };
        let service = TowerToHyperService::new(service.clone());
        let connection = connection(stream, limits, tasks.clone(), service);
        tasks.spawn("http connection", async move {
            connection.await;
            drop(permit);
        });
    }
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, tokio::sync::OwnedSemaphorePermit) {
    let permit = Arc::clone(permits)
        .acquire_owned()
        .await
        .expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                warn!(%error, "Connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection<S, B>(stream: TcpStream, limits: HttpLimits, tasks: Tasks, service: S)
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // Tokens are small writes that must not wait for an acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "TCP_NODELAY not set");
    }
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = tasks.stopping() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "Connection ended early");
    }
}
