//! Sites that do as they are told, and an edge's API before them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use http::{HeaderName, HeaderValue, StatusCode};
use http_body::{Body, Frame};
use kvgrid_core::id::{ModelName, RelayId, SiteId};
use kvgrid_core::label::Labels;
use kvgrid_core::load::SiteLoad;
use kvgrid_core::view::{CardInfo, GridView, ModelView, RelayView, SiteView};
use kvgrid_prompt::CardsConfig;
use kvgrid_runtime::http::{HttpLimits, listen, serve};
use kvgrid_runtime::{Clock, Tasks};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::sites::{FailureKind, SendError, SiteRequest};
use super::super::*;
use crate::open::OpenRequests;
use crate::route::RouterConfig;

/// What a site does with a request.
pub(super) enum Play {
    /// It can't be reached.
    Unreached,
    /// Its relay takes no more just now.
    Busy,
    /// Its relay takes no request as large.
    TooLarge,
    /// It takes the request and says nothing.
    Silent,
    /// The code on the way to it is wrong.
    Panic,
    /// It answers.
    Answer(u16, &'static [(&'static str, &'static str)], FakeBody),
}

pub(super) const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
pub(super) const EVENTS: &[(&str, &str)] = &[("content-type", "text/event-stream; charset=utf-8")];

/// A body whose pieces a test sends, and which tells when it is dropped.
pub(super) struct FakeBody {
    pieces: UnboundedReceiver<Result<Bytes, &'static str>>,
    _gone: Option<DropGuard>,
}

/// Sends pieces; dropping it ends the body.
pub(super) type Pieces = UnboundedSender<Result<Bytes, &'static str>>;

impl FakeBody {
    /// A body that the test feeds.
    pub(super) fn fed() -> (Self, Pieces) {
        let (sender, pieces) = unbounded_channel();
        (
            Self {
                pieces,
                _gone: None,
            },
            sender,
        )
    }

    /// A body of these pieces.
    pub(super) fn of(given: &[Result<&'static str, &'static str>]) -> Self {
        let (body, sender) = Self::fed();
        for piece in given {
            let piece = piece.map(|text| Bytes::from_static(text.as_bytes()));
            sender.send(piece).unwrap();
        }
        body
    }
}

impl Body for FakeBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.pieces
            .poll_recv(cx)
            .map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// An answer whose body is this text.
pub(super) fn says(status: u16, text: &'static str) -> Play {
    Play::Answer(status, JSON, FakeBody::of(&[Ok(text)]))
}

/// The sites of a test.
#[derive(Default)]
pub(super) struct FakeSites {
    plays: Mutex<BTreeMap<String, Vec<Play>>>,
    seen: Mutex<Vec<(String, SiteRequest)>>,
    /// Cancelled when a request was given up, answered or not.
    given_up: CancellationToken,
}

impl Sites for Arc<FakeSites> {
    type Body = FakeBody;

    async fn send(
        &self,
        relay: &RelayId,
        request: SiteRequest,
    ) -> Result<Response<FakeBody>, SendError> {
        let (site, _) = relay.as_str().rsplit_once('-').unwrap();
        let site = site.to_owned();
        let given_up = self.given_up.clone().drop_guard();
        self.seen.lock().unwrap().push((site.clone(), request));
        let play = {
            let mut plays = self.plays.lock().unwrap();
            let of_site = plays.get_mut(&site).expect("the test said nothing of it");
            assert!(!of_site.is_empty(), "{site} was asked once too often");
            of_site.remove(0)
        };
        match play {
            Play::Unreached => Err(SendError {
                reason: "unreached",
                detail: "nobody listens".into(),
                kind: FailureKind::Fault,
                may_have_run: false,
            }),
            Play::Busy => Err(SendError {
                reason: "busy",
                detail: "no more requests".into(),
                kind: FailureKind::RelayRefusal,
                may_have_run: false,
            }),
            Play::TooLarge => Err(SendError {
                reason: "too_large",
                detail: "1 byte is too many".into(),
                kind: FailureKind::TooLarge,
                may_have_run: false,
            }),
            Play::Silent => std::future::pending().await,
            Play::Panic => panic!("as the test wants"),
            Play::Answer(status, headers, mut body) => {
                body._gone = Some(given_up);
                let mut response = Response::new(body);
                *response.status_mut() = StatusCode::from_u16(status).unwrap();
                for (name, value) in headers {
                    response.headers_mut().append(
                        HeaderName::from_static(name),
                        HeaderValue::from_static(value),
                    );
                }
                Ok(response)
            }
        }
    }
}

/// An edge with two sites: fra, which is near, and iad, which is far.
pub(super) struct Edge {
    pub(super) address: SocketAddr,
    pub(super) cards: Arc<Cards>,
    pub(super) router: Router,
    pub(super) api: Api<Arc<FakeSites>>,
    sites: Arc<FakeSites>,
    view: Arc<ArcSwap<GridView>>,
    registry: Registry,
    tasks: Tasks,
}

pub(super) fn config() -> ApiConfig {
    ApiConfig {
        explain: true,
        body_bytes: 1 << 20,
        body_timeout: Duration::from_secs(20),
        requests: 100,
        prompt_deadline: Duration::from_secs(20),
        sites: 3,
        answer_timeout: Duration::from_secs(20),
    }
}

pub(super) fn model() -> ModelName {
    ModelName::new("tiny-chat").unwrap()
}

impl Edge {
    pub(super) fn start(config: ApiConfig, plays: Vec<(&str, Play)>) -> Self {
        let sites = Arc::new(FakeSites::default());
        for (site, play) in plays {
            let mut plays = sites.plays.lock().unwrap();
            plays.entry(site.to_owned()).or_default().push(play);
        }
        let view = Arc::new(ArcSwap::from_pointee(grid(1, None)));
        let (metrics, registry) = Metrics::new(Arc::clone(&view), OpenRequests::default());
        let router = Router::new(
            Arc::clone(&view),
            RouterConfig::default(),
            (Clock::start(), 7),
            metrics.clone(),
        );
        let cards = Arc::new(Cards::new(CardsConfig::default()).unwrap());
        let parts = ApiParts {
            router: router.clone(),
            sites: Arc::clone(&sites),
            cards: Arc::clone(&cards),
            health: Health::new(|| Ok(())),
            metrics,
        };
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let limits = HttpLimits {
            connections: 100,
            head_timeout: Duration::from_secs(20),
        };
        let tasks = Tasks::new();
        let api = Api::new(config, parts);
        let service = api.clone().into_service();
        tasks.spawn("api", serve(listener, limits, tasks.clone(), service));
        Self {
            address,
            cards,
            router,
            api,
            sites,
            view,
            registry,
            tasks,
        }
    }

    /// An edge with the defaults of these tests.
    pub(super) fn with(plays: Vec<(&str, Play)>) -> Self {
        Self::start(config(), plays)
    }

    /// Both sites serve the model by this card from now on.
    pub(super) fn use_card(&self, card: &CardInfo) {
        self.view.store(Arc::new(grid(1, Some(card))));
    }

    /// Both sites have so many relays from now on.
    pub(super) fn use_relays(&self, relays: usize) {
        self.view.store(Arc::new(grid(relays, None)));
    }

    /// The edge's metrics, as they are scraped.
    pub(super) fn metrics(&self) -> String {
        let mut page = String::new();
        encode(&mut page, &self.registry).unwrap();
        page
    }

    /// Which sites were asked, in order.
    pub(super) fn asked(&self) -> Vec<String> {
        let seen = self.sites.seen.lock().unwrap();
        seen.iter().map(|(site, _)| site.clone()).collect()
    }

    /// The first request that a site got.
    pub(super) fn request(&self) -> SiteRequest {
        self.sites.seen.lock().unwrap()[0].1.clone()
    }

    /// All requests that sites got.
    pub(super) fn requests(&self) -> Vec<SiteRequest> {
        let seen = self.sites.seen.lock().unwrap();
        seen.iter().map(|(_, request)| request.clone()).collect()
    }

    /// Waits until a request reached a site.
    pub(super) async fn reached(&self) {
        while self.sites.seen.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until a request was given up at its site.
    pub(super) async fn given_up(&self) {
        let waiting = self.sites.given_up.cancelled();
        tokio::time::timeout(Duration::from_secs(20), waiting)
            .await
            .expect("the request goes on although its client left");
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

fn grid(relays: usize, card: Option<&CardInfo>) -> GridView {
    let relay = |site: &str, number, rtt_ms| RelayView {
        id: RelayId::new(&format!("{site}-{number}")).unwrap(),
        connected: true,
        draining: false,
        serves: vec![model().id()],
        rtt: Duration::from_millis(rtt_ms),
        path_rate: None,
        window: None,
    };
    let site = |name: &str, rtt_ms| SiteView {
        site: SiteId::new(name).unwrap(),
        region: None,
        labels: Labels::new(),
        alive: true,
        relays: (1..=relays)
            .map(|number| relay(name, number, rtt_ms))
            .collect(),
        models: vec![ModelView {
            aliases: Vec::new(),
            apart: Vec::new(),
            id: model().id(),
            name: model(),
            ready: true,
            card: card.cloned(),
        }],
        known_by: None,
        pools: Vec::new(),
        load: SiteLoad::default(),
    };
    GridView::new(vec![site("fra", 4), site("iad", 90)])
}
