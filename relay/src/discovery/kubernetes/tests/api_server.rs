//! A Kubernetes API server of the test's own: lists in pages, watches, and everything that may
//! become of them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// What is said to open watches.
#[derive(Clone)]
enum Said {
    /// These bytes.
    Bytes(&'static str, Vec<u8>),
    /// That the watch has ended.
    End(&'static str),
}

/// A request that has come.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
}

impl Seen {
    pub(super) fn is_watch(&self) -> bool {
        self.query.contains_key("watch")
    }
}

/// What the server has.
#[derive(Default)]
pub(super) struct Contents {
    version: u64,
    objects: BTreeMap<&'static str, BTreeMap<String, Value>>,
    history: Vec<(u64, &'static str, &'static str, Value)>,
    /// Nothing can be watched from a version before this one.
    oldest: u64,
    /// What is left of lists that are under way, with the version that they are of.
    pages: BTreeMap<String, (String, Vec<Value>)>,
    /// Within which collection's next change the connection is to break.
    cut: Option<&'static str>,
    /// The token that must be shown.
    pub(super) token: Option<String>,
    /// Which collection is refused, and how.
    pub(super) refusal: Option<(&'static str, StatusCode, &'static str)>,
    /// Requests, in their order.
    pub(super) seen: Vec<Seen>,
}

/// A running server.
pub(super) struct ApiServer {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    contents: Mutex<Contents>,
    /// Counts whatever happens.
    events: watch::Sender<u64>,
    said: broadcast::Sender<Said>,
    is_away: watch::Sender<bool>,
}

impl ApiServer {
    pub(super) async fn start(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            contents: Mutex::new(Contents {
                version: 1000,
                ..Contents::default()
            }),
            events: watch::channel(0).0,
            said: broadcast::channel(64).0,
            is_away: watch::channel(false).0,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, tls, Arc::clone(&shared)));
        Self {
            address,
            shared,
            _tasks: tasks,
        }
    }

    /// What it has, to be looked at or changed.
    pub(super) fn contents(&self) -> MutexGuard<'_, Contents> {
        self.shared.contents.lock().unwrap()
    }

    /// Waits until it is as described.
    pub(super) async fn until(&self, is: impl Fn(&Contents) -> bool) {
        let mut events = self.shared.events.subscribe();
        let is_so = events.wait_for(|_| is(&self.contents()));
        let is_so = timeout(Duration::from_secs(20), is_so).await;
        is_so.expect("in time").unwrap();
    }

    /// Waits until so many watches of a collection have been asked for, and returns the version
    /// from which the last one was.
    pub(super) async fn watched(&self, plural: &'static str, times: usize) -> u64 {
        self.until(|contents| contents.watches(plural).count() >= times)
            .await;
        let contents = self.contents();
        let last = contents.watches(plural).last().unwrap();
        last.query["resourceVersion"].parse().unwrap()
    }

    /// Creates or replaces an object; returns the version of the collection with it.
    pub(super) fn put(&self, plural: &'static str, object: Value) -> u64 {
        let version = self.contents().put(plural, object);
        self.shared.note();
        version
    }

    pub(super) fn delete(&self, plural: &'static str, name: &str) {
        let mut contents = self.contents();
        contents.version += 1;
        let version = contents.version;
        let objects = contents.objects.get_mut(plural).unwrap();
        let mut object = objects.remove(name).unwrap();
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        contents.history.push((version, plural, "DELETED", object));
        drop(contents);
        self.shared.note();
    }

    /// Says to a collection's watches that nothing has happened up to a new version.
    pub(super) fn bookmark(&self, plural: &'static str) -> u64 {
        let mut contents = self.contents();
        contents.version += 1;
        let version = contents.version;
        drop(contents);
        let object = json!({"metadata": {"resourceVersion": version.to_string()}});
        self.say(plural, line("BOOKMARK", &object));
        version
    }

    /// Says something to a collection's watches.
    pub(super) fn say(&self, plural: &'static str, bytes: Vec<u8>) {
        self.shared.said.send(Said::Bytes(plural, bytes)).ok();
    }

    /// Ends a collection's watches, as is done after their time.
    pub(super) fn end(&self, plural: &'static str) {
        self.shared.said.send(Said::End(plural)).ok();
    }

    /// Breaks the connection in the midst of the next change of a collection.
    pub(super) fn cut_next(&self, plural: &'static str) {
        self.contents().cut = Some(plural);
    }

    /// Forgets how it became what it is, and may know that it has.
    pub(super) fn compact(&self, is_known: bool) {
        let mut contents = self.contents();
        contents.version += 1;
        contents.history.clear();
        if is_known {
            contents.oldest = contents.version;
        }
    }

    /// Breaks all connections and takes none, or takes them again.
    pub(super) fn set_away(&self, is_away: bool) {
        self.shared.is_away.send_replace(is_away);
    }
}

/// A line of a watch.
pub(super) fn line(kind: &str, object: &Value) -> Vec<u8> {
    format!("{}\n", json!({"type": kind, "object": object})).into_bytes()
}

impl Contents {
    pub(super) fn watches(&self, plural: &'static str) -> impl Iterator<Item = &Seen> {
        self.seen
            .iter()
            .filter(move |seen| seen.is_watch() && seen.path.ends_with(plural))
    }

    pub(super) fn lists(&self, plural: &'static str) -> usize {
        let of = |seen: &&Seen| !seen.is_watch() && seen.path.ends_with(plural);
        self.seen.iter().filter(of).count()
    }

    fn put(&mut self, plural: &'static str, mut object: Value) -> u64 {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let objects = self.objects.entry(plural).or_default();
        let kind = match objects.insert(name, object.clone()) {
            None => "ADDED",
            Some(_) => "MODIFIED",
        };
        self.history.push((self.version, plural, kind, object));
        self.version
    }

    fn list(&mut self, plural: &'static str, query: &BTreeMap<String, String>) -> Value {
        let (version, mut rest) = match query.get("continue") {
            Some(page) => self.pages.remove(page).unwrap(),
            None => {
                let objects = self.objects.get(plural).into_iter().flatten();
                let objects = objects.map(|(_, object)| object.clone());
                (self.version.to_string(), objects.collect())
            }
        };
        let limit: usize = query["limit"].parse().unwrap();
        let after = rest.split_off(limit.min(rest.len()));
        let mut metadata = json!({"resourceVersion": version});
        if !after.is_empty() {
            let page = format!("{plural}, {version}");
            metadata["continue"] = json!(page);
            self.pages.insert(page, (version, after));
        }
        json!({"kind": "List", "metadata": metadata, "items": rest})
    }
}

impl Shared {
    fn note(&self) {
        self.events.send_modify(|events| *events += 1);
    }

    /// What to say next to a watch, and up to where all is said with it; whether it breaks.
    fn next(&self, plural: &'static str, from: u64) -> Option<(Vec<u8>, u64, bool)> {
        let mut contents = self.contents.lock().unwrap();
        let after =
            |(version, of, ..): &&(u64, &str, &str, Value)| *version > from && *of == plural;
        let (version, _, kind, object) = contents.history.iter().find(after)?;
        let (mut bytes, version) = (line(kind, object), *version);
        let is_cut = contents.cut.take_if(|cut| *cut == plural).is_some();
        if is_cut {
            bytes.truncate(bytes.len() / 2);
        }
        Some((bytes, version, is_cut))
    }

    fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Response<Body> {
        let uri = request.uri();
        let query = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        let query: BTreeMap<String, String> = query.into_owned().collect();
        let plural = ["dynamoworkermetadatas", "endpointslices", "pods"];
        let plural = plural
            .into_iter()
            .find(|plural| uri.path().ends_with(plural));
        let Some(plural) = plural else {
            return refusal(StatusCode::NOT_FOUND, "the server could not find it");
        };
        let said = self.said.subscribe();
        let seen = Seen {
            path: uri.path().to_owned(),
            query: query.clone(),
        };
        let answer = self.answer_to(request, plural, &seen, said);
        self.contents.lock().unwrap().seen.push(seen);
        self.note();
        answer
    }

    fn answer_to(
        self: &Arc<Self>,
        request: &Request<Incoming>,
        plural: &'static str,
        seen: &Seen,
        said: broadcast::Receiver<Said>,
    ) -> Response<Body> {
        let mut contents = self.contents.lock().unwrap();
        let shown = request.headers().get("authorization");
        let shown = shown.map(|value| value.to_str().unwrap().to_owned());
        let wanted = contents
            .token
            .as_ref()
            .map(|token| format!("Bearer {token}"));
        if wanted.is_some() && shown != wanted {
            return refusal(StatusCode::UNAUTHORIZED, "Unauthorized");
        }
        if let Some((_, status, message)) = contents.refusal.filter(|(of, ..)| *of == plural) {
            return refusal(status, message);
        }
        if !seen.is_watch() {
            let list = contents.list(plural, &seen.query);
            return Response::new(whole(&list));
        }
        let from: u64 = seen.query["resourceVersion"].parse().unwrap();
        if from < contents.oldest {
            return refusal(StatusCode::GONE, "too old resource version");
        }
        let feed = Feed {
            shared: Arc::clone(self),
            events: self.events.subscribe(),
            plural,
            from,
            said,
            is_cut: false,
        };
        let frames = futures_util::stream::unfold(feed, Feed::next);
        Response::new(BoxBody::new(StreamBody::new(Box::pin(frames))))
    }
}

type Body = BoxBody<Bytes, io::Error>;

fn whole(document: &Value) -> Body {
    let body = Full::new(Bytes::from(document.to_string()));
    body.map_err(|e| match e {}).boxed()
}

fn refusal(status: StatusCode, message: &str) -> Response<Body> {
    let document = json!({"kind": "Status", "code": status.as_u16(), "message": message});
    let mut answer = Response::new(whole(&document));
    *answer.status_mut() = status;
    answer
}

/// A watch that is open.
struct Feed {
    shared: Arc<Shared>,
    events: watch::Receiver<u64>,
    plural: &'static str,
    from: u64,
    said: broadcast::Receiver<Said>,
    is_cut: bool,
}

impl Feed {
    async fn next(mut self) -> Option<(io::Result<Frame<Bytes>>, Self)> {
        if self.is_cut {
            return Some((Err(io::Error::other("cut")), self));
        }
        loop {
            if let Some((bytes, version, is_cut)) = self.shared.next(self.plural, self.from) {
                (self.from, self.is_cut) = (version, is_cut);
                return Some((Ok(Frame::data(bytes.into())), self));
            }
            // Both arms may be dropped while they wait.
            tokio::select! {
                said = self.said.recv() => match said.ok()? {
                    Said::Bytes(plural, bytes) if plural == self.plural => {
                        return Some((Ok(Frame::data(bytes.into())), self));
                    }
                    Said::End(plural) if plural == self.plural => return None,
                    Said::Bytes(..) | Said::End(_) => {}
                },
                changed = self.events.changed() => changed.ok()?,
            }
        }
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        if *shared.is_away.borrow() {
            continue;
        }
        connections.spawn(connection(stream, tls.clone(), Arc::clone(&shared)));
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut is_away = shared.is_away.subscribe();
    let served = async {
        match tls {
            None => serve(TokioIo::new(stream), &shared).await,
            Some(tls) => match tls.accept(stream).await {
                Ok(stream) => serve(TokioIo::new(stream), &shared).await,
                Err(error) => println!("no connection: {error}"),
            },
        }
    };
    // A server that goes away drops what it is at.
    tokio::select! {
        () = served => {}
        _ = is_away.wait_for(|is_away| *is_away) => {}
    }
}

async fn serve<S>(stream: S, shared: &Arc<Shared>)
where
    S: Read + Write + Unpin + Send + 'static,
{
    let answer = service_fn(async |request| Ok::<_, Infallible>(shared.answer(&request)));
    let served = hyper::server::conn::http1::Builder::new()
        .serve_connection(stream, answer)
        .await;
    if let Err(error) = served {
        println!("a connection ended: {error}");
    }
}
