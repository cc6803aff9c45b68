//! A relay's proxy between an edge's connection and a frontend of the test's own.

use bytes::Bytes;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{Empty, StreamBody as FrameStream};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kvgrid_certs::{Accepts, CertAuthority, TrustDomain};
use kvgrid_core::EdgeId;
use kvgrid_runtime::stream::StreamBodyError;
use kvgrid_runtime::{Expected, Node, NodeConfig, Protocol};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, mpsc};

use super::*;

/// A POST to the completions path.
pub(super) fn prompt_head() -> RequestHead {
    RequestHead {
        method: "POST".into(),
        target: "/v1/completions".into(),
        number: 1,
        ..RequestHead::default()
    }
}

/// Fails a test that would wait for what does not come; a cancel has 250 ms.
pub(super) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_millis(250), future)
        .await
        .expect("it did not come soon")
}

/// Reads the head of an answer.
pub(super) async fn answer_of(receive: RecvStream) -> Result<(ResponseHead, StreamBody), String> {
    let reading = read_message(receive, HEAD_LIMIT);
    let read = tokio::time::timeout(Duration::from_secs(5), reading).await;
    read.expect("no answer came")
        .map_err(|error| error.to_string())
}

/// Reads the rest of an answer.
pub(super) async fn rest_of(body: StreamBody) -> Result<Bytes, StreamBodyError> {
    let read = tokio::time::timeout(Duration::from_secs(10), body.collect()).await;
    Ok(read.expect("the answer did not end")?.to_bytes())
}

/// What happens to the requests of a frontend that never answers.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) begun: Notify,
    pub(super) gone: Notify,
}

/// How the test's frontend answers.
#[derive(Clone)]
pub(super) enum Answer {
    /// With the request's body, and headers that say what was seen.
    Echo,
    /// Never.
    Silent(Arc<Requests>),
    /// With chunks that the test sends one by one.
    Stream(Arc<Mutex<Option<Chunks>>>),
}

/// The body of a streamed answer; says when it is dropped.
pub(super) struct Chunks {
    chunks: mpsc::Receiver<Bytes>,
    _gone: NotifyOnDrop,
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Answer {
    /// A stream, what feeds it, and what says that the frontend has dropped it.
    pub(super) fn streamed() -> (Self, mpsc::Sender<Bytes>, Arc<Notify>) {
        let (sender, chunks) = mpsc::channel(1);
        let gone = Arc::new(Notify::new());
        let chunks = Chunks {
            chunks,
            _gone: NotifyOnDrop(Arc::clone(&gone)),
        };
        (
            Self::Stream(Arc::new(Mutex::new(Some(chunks)))),
            sender,
            gone,
        )
    }

    async fn to(&self, request: Request<Incoming>) -> Response<BoxBody<Bytes, hyper::Error>> {
        match self {
            Self::Echo => echo(request).await,
            Self::Silent(requests) => {
                requests.begun.notify_one();
                let _gone = NotifyOnRef(requests);
                // A server that does not read does not notice that its client is gone.
                if request.collect().await.is_err() {
                    return empty(StatusCode::BAD_REQUEST);
                }
                std::future::pending().await
            }
            Self::Stream(chunks) => {
                let chunks = chunks.lock().await.take();
                let stream = futures_util::stream::unfold(chunks, |chunks| async {
                    let mut chunks = chunks?;
                    let chunk = chunks.chunks.recv().await?;
                    Some((Ok(Frame::data(chunk)), Some(chunks)))
                });
                Response::new(BoxBody::new(FrameStream::new(stream)))
            }
        }
    }
}

struct NotifyOnRef<'a>(&'a Requests);

impl Drop for NotifyOnRef<'_> {
    fn drop(&mut self) {
        self.0.gone.notify_one();
    }
}

fn empty(status: StatusCode) -> Response<BoxBody<Bytes, hyper::Error>> {
    let mut answer = Response::new(Empty::new().map_err(|e| match e {}).boxed());
    *answer.status_mut() = status;
    answer
}

async fn echo(request: Request<Incoming>) -> Response<BoxBody<Bytes, hyper::Error>> {
    let (head, body) = request.into_parts();
    let text = |value: Option<&HeaderValue>| value.cloned().unwrap_or(HeaderValue::from_static(""));
    let mut names: Vec<_> = head.headers.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    let seen = HeaderMap::from_iter(
        [
            (
                "x-seen",
                format!("{} {}", head.method, head.uri).parse().unwrap(),
            ),
            ("x-seen-host", text(head.headers.get("host"))),
            ("x-seen-length", text(head.headers.get("content-length"))),
            ("x-seen-headers", names.join(",").parse().unwrap()),
        ]
        .map(|(name, value)| (http::HeaderName::from_static(name), value)),
    );
    // Read whole before the answer begins, so that the test's two halves can't block each other.
    let Ok(body) = body.collect().await else {
        return empty(StatusCode::BAD_REQUEST);
    };
    let mut answer = Response::new(
        http_body_util::Full::new(body.to_bytes())
            .map_err(|e| match e {})
            .boxed(),
    );
    *answer.headers_mut() = seen;
    answer
}

/// A running proxy with an edge's connection to it.
pub(super) struct Rig {
    pub(super) frontend: SocketAddr,
    pub(super) connections: Arc<AtomicUsize>,
    pub(super) connection: quinn::Connection,
    pub(super) gateway: Gateway,
    pub(super) clock: Clock,
    pub(super) edge: EdgeId,
    tasks: Tasks,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

impl Rig {
    pub(super) async fn echoing() -> Self {
        Self::start(Answer::Echo, Allowed::default(), ProxyLimits::default()).await
    }

    pub(super) async fn silent() -> (Self, Arc<Requests>) {
        let requests = Arc::new(Requests::default());
        let answer = Answer::Silent(Arc::clone(&requests));
        let rig = Self::start(answer, Allowed::default(), ProxyLimits::default()).await;
        (rig, requests)
    }

    pub(super) async fn streaming() -> (Self, mpsc::Sender<Bytes>, Arc<Notify>) {
        let (answer, chunks, gone) = Answer::streamed();
        let rig = Self::start(answer, Allowed::default(), ProxyLimits::default()).await;
        (rig, chunks, gone)
    }

    /// A frontend at an address where nobody listens.
    pub(super) async fn refusing() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        Self::before(
            address,
            Allowed::default(),
            ProxyLimits::default(),
            Tasks::new(),
        )
        .await
    }

    /// A frontend that speaks whatever `speak` says.
    pub(super) async fn raw<F>(speak: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = Tasks::new();
        let serving = tasks.clone();
        tasks.spawn("frontend", async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.spawn("frontend connection", speak(stream));
            }
        });
        Self::before(address, Allowed::default(), ProxyLimits::default(), tasks).await
    }

    pub(super) async fn start(answer: Answer, allowed: Allowed, limits: ProxyLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = Tasks::new();
        let (serving, connections) = (tasks.clone(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&connections);
        tasks.spawn("frontend", async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let answer = answer.clone();
                let service = service_fn(move |request| {
                    let answer = answer.clone();
                    async move { Ok::<_, Infallible>(answer.to(request).await) }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                serving.spawn("frontend connection", served);
            }
        });
        let mut rig = Self::before(address, allowed, limits, tasks).await;
        rig.connections = connections;
        rig
    }

    async fn before(
        frontend: SocketAddr,
        allowed: Allowed,
        limits: ProxyLimits,
        tasks: Tasks,
    ) -> Self {
        let (gateway, clock) = (Gateway::default(), Clock::start());
        let settings = FrontendSettings {
            url: format!("http://{frontend}").parse().unwrap(),
            connect_timeout: Duration::from_secs(2),
        };
        let context = ProxyContext::new(
            Frontend::new(&settings).unwrap(),
            allowed,
            limits,
            gateway.clone(),
            (clock, tasks.clone()),
        );
        let connection = connect(Arc::new(context), &tasks).await;
        Self {
            frontend,
            connections: Arc::default(),
            connection,
            gateway,
            clock,
            edge: EdgeId::new("eu-1").unwrap(),
            tasks,
        }
    }

    pub(super) async fn open_raw(&self) -> (GuardedSend, RecvStream) {
        let (send, receive) = self.connection.open_bi().await.unwrap();
        (GuardedSend::new(send), receive)
    }

    /// Sends a head and the beginning of a body.
    pub(super) async fn open(&self, head: &RequestHead, body: Bytes) -> (GuardedSend, RecvStream) {
        let (mut send, receive) = self.open_raw().await;
        send.write(encode(head, HEAD_LIMIT).unwrap()).await.unwrap();
        // The relay may have refused by the head alone.
        let _ = send.write(body).await;
        (send, receive)
    }

    /// Sends a whole request.
    pub(super) async fn ask(&self, head: &RequestHead, body: Bytes) -> RecvStream {
        let (send, receive) = self.open(head, body).await;
        send.finish();
        receive
    }

    /// Waits until the relay counts no request any more.
    pub(super) async fn until_idle(&self) {
        let in_flight = || -> u32 {
            let load = self.gateway.load(self.clock.now());
            load.iter().map(|(_, load)| load.in_flight).sum()
        };
        soon(async {
            while in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

/// An edge's request connection to a relay with this proxy.
async fn connect(context: Arc<ProxyContext>, tasks: &Tasks) -> quinn::Connection {
    let grid = CertAuthority::generate(TrustDomain::new("grid.example").unwrap()).unwrap();
    let node = |uri: &str| {
        let credentials = grid.credentials(&uri.parse().unwrap()).unwrap();
        NodeConfig::new("127.0.0.1:0".parse().unwrap(), credentials)
    };
    let relay =
        node("spiffe://grid.example/site/fra/relay/fra-1").serve(Protocol::Request, Accepts::Edges);
    let relay = Node::bind(relay, tasks).unwrap();
    let edge = Node::bind(node("spiffe://grid.example/region/eu/edge/eu-1"), tasks).unwrap();
    let dialled = edge
        .connect(relay.local_addr(), Protocol::Request, &Expected::AnyRelay)
        .await
        .unwrap();
    let taken = relay.accept().await.unwrap();
    tasks.spawn("proxy", serve_requests(taken, context));
    dialled.connection
}
