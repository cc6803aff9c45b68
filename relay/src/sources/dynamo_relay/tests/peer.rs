//! A peer whose every word a test decides.

use std::pin::Pin;

use futures_util::Stream;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::{Request, Response, Status};

use super::super::peer::{MARKER, VERSION};
use super::super::v1::kv_event_relay_server::{KvEventRelay, KvEventRelayServer};
use super::super::v1::*;

/// One subscription to a pool; dropping it ends the stream.
pub(super) struct Subscription {
    pub(super) producer: ProducerIdentity,
    updates: mpsc::UnboundedSender<Result<FilterUpdate, Status>>,
}

impl Subscription {
    pub(super) fn say(&self, update: FilterUpdate) {
        self.updates.send(Ok(update)).unwrap();
    }

    pub(super) fn fail(self, status: Status) {
        self.updates.send(Err(status)).unwrap();
    }
}

/// What the peer says of its pools; counts up so that the same list can be told again.
type List = (u64, KvPoolCatalogUpdate);

#[derive(Clone)]
struct Answers {
    list: watch::Receiver<List>,
    subscriptions: mpsc::UnboundedSender<Subscription>,
}

pub(super) struct FakePeer {
    pub(super) url: String,
    list: watch::Sender<List>,
    subscriptions: mpsc::UnboundedReceiver<Subscription>,
    _serving: JoinSet<()>,
}

impl FakePeer {
    /// A peer with no pools.
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (list, listed) = watch::channel((0, update(1, Vec::new())));
        let (sender, subscriptions) = mpsc::unbounded_channel();
        let answers = Answers {
            list: listed,
            subscriptions: sender,
        };
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, answers));
        Self {
            url,
            list,
            subscriptions,
            _serving: serving,
        }
    }

    /// Tells this list from now on.
    pub(super) fn tell(&self, update: KvPoolCatalogUpdate) {
        self.list.send_modify(|(count, told)| {
            *count += 1;
            *told = update;
        });
    }

    /// In this life of its own it lists these pools from now on.
    pub(super) fn list(&self, life: u64, pools: Vec<KvPoolDescriptor>) {
        self.tell(update(life, pools));
    }

    /// The next subscription.
    pub(super) async fn subscription(&mut self) -> Subscription {
        let next = tokio::time::timeout(super::PATIENCE, self.subscriptions.recv());
        next.await.expect("in time").unwrap()
    }
}

async fn serve(listener: TcpListener, answers: Answers) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let service = TowerToHyperService::new(KvEventRelayServer::new(answers.clone()));
        connections.spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new()).http2_only();
            // A client that goes is no failure.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

pub(super) fn relay(life: u64) -> RelayIdentity {
    RelayIdentity {
        drt_instance_id: 1,
        relay_incarnation: life,
    }
}

pub(super) fn update(life: u64, pools: Vec<KvPoolDescriptor>) -> KvPoolCatalogUpdate {
    KvPoolCatalogUpdate {
        protocol_version: VERSION,
        relay: Some(relay(life)),
        revision: 1,
        snapshot: Some(KvPoolCatalogSnapshot { pools }),
        contract_marker: MARKER,
    }
}

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl KvEventRelay for Answers {
    async fn get_relay_info(
        &self,
        _: Request<RelayInfoRequest>,
    ) -> Result<Response<RelayInfo>, Status> {
        let (_, list) = self.list.borrow().clone();
        Ok(Response::new(RelayInfo {
            protocol_version: list.protocol_version,
            relay: list.relay,
            contract_marker: list.contract_marker,
        }))
    }

    type WatchKvPoolCatalogStream = Streamed<KvPoolCatalogUpdate>;

    async fn watch_kv_pool_catalog(
        &self,
        _: Request<WatchKvPoolCatalogRequest>,
    ) -> Result<Response<Self::WatchKvPoolCatalogStream>, Status> {
        let mut list = self.list.clone();
        list.mark_changed();
        let lists = futures_util::stream::unfold(list, |mut list| async move {
            list.changed().await.ok()?;
            let told = list.borrow_and_update().1.clone();
            Some((Ok(told), list))
        });
        Ok(Response::new(Box::pin(lists)))
    }

    type SubscribeKvPoolStream = Streamed<FilterUpdate>;

    async fn subscribe_kv_pool(
        &self,
        request: Request<SubscribeKvPoolRequest>,
    ) -> Result<Response<Self::SubscribeKvPoolStream>, Status> {
        let request = request.into_inner();
        assert_eq!(request.contract_marker, MARKER);
        let (updates, receiver) = mpsc::unbounded_channel();
        let producer = request.expected_producer.unwrap();
        let subscription = Subscription { producer, updates };
        let gone = |_| Status::unavailable("the test is over");
        self.subscriptions.send(subscription).map_err(gone)?;
        let updates = futures_util::stream::unfold(receiver, |mut receiver| async move {
            Some((receiver.recv().await?, receiver))
        });
        Ok(Response::new(Box::pin(updates)))
    }

    type SubscribeServingReadinessStream = Streamed<ServingReadinessUpdate>;

    async fn subscribe_serving_readiness(
        &self,
        _: Request<SubscribeServingReadinessRequest>,
    ) -> Result<Response<Self::SubscribeServingReadinessStream>, Status> {
        Err(Status::unimplemented("readiness"))
    }

    type SubscribeKvPoolLoadStream = Streamed<KvPoolLoadUpdate>;

    async fn subscribe_kv_pool_load(
        &self,
        _: Request<SubscribeKvPoolLoadRequest>,
    ) -> Result<Response<Self::SubscribeKvPoolLoadStream>, Status> {
        Err(Status::unimplemented("load"))
    }
}
