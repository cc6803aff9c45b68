//! A relay that dials, and an edge that is dialled, on loopback.

use kvgrid_certs::{Accepts, CertAuthority, TrustDomain};
use kvgrid_core::filter::MixKey;
use kvgrid_core::replication::PublisherConfig;
use kvgrid_runtime::NodeConfig;

use super::*;
use crate::load::Gateway;
use crate::proxy::{Allowed, Frontend, FrontendSettings, ProxyContext, ProxyLimits};
use crate::publish::{Hub, HubConfig};

const RELAY: &str = "spiffe://grid.example/site/fra/relay/fra-1";

/// A grid of one relay, which dials.
struct Rig {
    authority: CertAuthority,
    tasks: Tasks,
}

impl Rig {
    fn new() -> Self {
        let domain = TrustDomain::new("grid.example").unwrap();
        Self {
            authority: CertAuthority::generate(domain).unwrap(),
            tasks: Tasks::new(),
        }
    }

    fn config(&self, uri: &str, listen: &str) -> NodeConfig {
        let credentials = self.authority.credentials(&uri.parse().unwrap()).unwrap();
        NodeConfig::new(listen.parse().unwrap(), credentials)
    }

    fn edge(&self, name: &str, listen: &str) -> Node {
        let uri = format!("spiffe://grid.example/region/eu/edge/{name}");
        let config = self
            .config(&uri, listen)
            .serve(Protocol::View, Accepts::Relays)
            .serve(Protocol::Request, Accepts::Relays);
        Node::bind(config, &self.tasks).unwrap()
    }

    fn dial(&self, names: &[String]) {
        let node = Node::bind(self.config(RELAY, "127.0.0.1:0"), &self.tasks).unwrap();
        let (clock, gateway) = (Clock::start(), Gateway::default());
        let hub = Hub::new(HubConfig {
            key: Arc::new(MixKey::from_bytes(&[9; 32])),
            incarnation: 1,
            publisher: PublisherConfig::default(),
            gateway: gateway.clone(),
            clock,
        });
        let frontend = Frontend::new(&FrontendSettings {
            url: "http://127.0.0.1:9".parse().unwrap(),
            connect_timeout: Duration::from_secs(1),
        });
        let proxy = ProxyContext::new(
            frontend.unwrap(),
            Allowed::default(),
            ProxyLimits::default(),
            gateway,
            (clock, self.tasks.clone()),
        );
        let services = Services::new(hub, Arc::new(proxy), self.tasks.clone());
        let dialler = Dialler::new(node, services, clock, self.tasks.clone());
        let (running, end) = (dialler.run(names.to_vec(), 1), self.tasks.token().clone());
        self.tasks.spawn("dial edges", async move {
            end.run_until_cancelled_owned(running).await;
        });
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

async fn next(edge: &Node) -> PeerConnection {
    let next = tokio::time::timeout(Duration::from_secs(20), edge.accept());
    let next = next.await.expect("the relay dials").unwrap();
    assert_eq!(next.peer.uri(), RELAY);
    next
}

async fn next_pair(edge: &Node) -> (PeerConnection, PeerConnection) {
    let (view, request) = (next(edge).await, next(edge).await);
    assert_eq!(view.protocol, Protocol::View);
    assert_eq!(request.protocol, Protocol::Request);
    (view, request)
}

#[tokio::test]
async fn both_connections_to_an_edge_are_kept_up() {
    let rig = Rig::new();
    let edge = rig.edge("eu-1", "127.0.0.1:0");
    rig.dial(&[edge.local_addr().to_string()]);

    for ends in [Protocol::View, Protocol::Request] {
        let (view, request) = next_pair(&edge).await;
        let (ended, other) = match ends {
            Protocol::View => (view, request),
            _ => (request, view),
        };

        ended.close(CloseReason::Done);

        let reason = CloseReason::of(&other.connection.closed().await);
        assert_eq!(reason, Some(CloseReason::Done));
    }
    next_pair(&edge).await;
}

#[tokio::test]
async fn an_edge_that_is_not_there_yet_is_reached_once_it_is() {
    let rig = Rig::new();
    let early = rig.edge("eu-1", "127.0.0.1:0");
    // Its socket stays bound until the test ends; the late edge listens beside it.
    let port = early.local_addr().port();
    let address = format!("127.0.0.2:{port}");
    rig.dial(&[address.clone(), early.local_addr().to_string()]);
    next_pair(&early).await;

    let late = rig.edge("eu-2", &address);

    next_pair(&late).await;
}

#[tokio::test]
async fn an_edge_that_several_addresses_lead_to_is_dialled_once() {
    let rig = Rig::new();
    let edge = rig.edge("eu-1", "0.0.0.0:0");
    let port = edge.local_addr().port();
    rig.dial(&[format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}")]);

    let three = [next(&edge).await, next(&edge).await, next(&edge).await];

    let closed: Vec<_> = three.iter().map(|peer| peer.connection.closed()).collect();
    let (ended, index, _) =
        futures_util::future::select_all(closed.into_iter().map(Box::pin)).await;
    assert_eq!(CloseReason::of(&ended), Some(CloseReason::Done));
    assert_eq!(three[index].protocol, Protocol::View);
    let open = three
        .iter()
        .filter(|peer| peer.connection.close_reason().is_none());
    let mut open: Vec<Protocol> = open.map(|peer| peer.protocol).collect();
    open.sort();
    assert_eq!(open, [Protocol::View, Protocol::Request]);
}

#[tokio::test]
async fn a_name_that_is_not_known_any_more_keeps_what_it_led_to() {
    let mut found = BTreeMap::new();
    let name = "127.0.0.1:7440".to_owned();
    assert!(look_up(std::slice::from_ref(&name), &mut found).await);
    let address: SocketAddr = "127.0.0.1:7440".parse().unwrap();
    assert_eq!(wanted(&found), BTreeSet::from([address]));

    found.insert("gone".into(), vec!["127.0.0.2:1".parse().unwrap()]);
    let all_known = look_up(&[name, "gone".into()], &mut found).await;

    assert!(!all_known);
    assert_eq!(wanted(&found).len(), 2);
}
