//! Relays that gossip over real connections on loopback.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvgrid_certs::{Accepts, CertAuthority, TrustDomain};
use kvgrid_runtime::{CloseReason, NodeConfig, Protocol};

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// A grid's certificates, and where its relays keep their generations.
struct Setting {
    authority: CertAuthority,
    dir: tempfile::TempDir,
}

/// A relay that does nothing but gossip.
struct TestRelay {
    name: &'static str,
    node: Node,
    gossip: Gossip,
    /// How often others have dialled it.
    dialled: Arc<AtomicUsize>,
    tasks: Tasks,
}

impl Setting {
    fn new() -> Self {
        let trust_domain = TrustDomain::new("grid.example").unwrap();
        Self {
            authority: CertAuthority::generate(trust_domain).unwrap(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn node(&self, name: &str, tasks: &Tasks) -> Node {
        let identity = format!("spiffe://grid.example/site/{name}/relay/{name}-1");
        let identity = identity.parse().unwrap();
        let credentials = self.authority.credentials(&identity).unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = NodeConfig::new(listen, credentials);
        let config = config.serve(Protocol::Gossip, Accepts::Relays);
        Node::bind(config, tasks).unwrap()
    }

    /// Starts a relay that knows these seeds.
    fn relay(&self, name: &'static str, seeds: &[SocketAddr]) -> TestRelay {
        let tasks = Tasks::new();
        let node = self.node(name, &tasks);
        let at = node.local_addr().to_string();
        let addresses = Addresses::new([("public", at.as_str())]).unwrap();
        self.start(name, (node, tasks), addresses, seeds)
    }

    /// Starts a relay that tells nobody where it is.
    fn unreachable(&self, name: &'static str, seeds: &[SocketAddr]) -> TestRelay {
        let tasks = Tasks::new();
        let node = self.node(name, &tasks);
        self.start(name, (node, tasks), Addresses::none(), seeds)
    }

    fn start(
        &self,
        name: &'static str,
        (node, tasks): (Node, Tasks),
        addresses: Addresses,
        seeds: &[SocketAddr],
    ) -> TestRelay {
        let generation = self.dir.path().join(name).join("generation");
        let config = GossipConfig {
            relay: RelayId::new(&format!("{name}-1")).unwrap(),
            addresses,
            seeds: seeds.iter().map(ToString::to_string).collect(),
            scopes: vec![Scope::new("public").unwrap()],
            generation: GenerationFile::next(&generation).unwrap(),
            members: watch::Sender::default(),
            luck: 7,
        };
        let gossip = start(config, &node, Clock::start(), &tasks);
        let (accepting, taking) = (node.clone(), gossip.clone());
        let dialled = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&dialled);
        tasks.spawn("accept", async move {
            while let Some(peer) = accepting.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                taking.accept(peer).await;
            }
        });
        TestRelay {
            name,
            node,
            gossip,
            dialled,
            tasks,
        }
    }
}

impl TestRelay {
    fn address(&self) -> SocketAddr {
        self.node.local_addr()
    }

    /// Waits until it knows these relays and no others.
    async fn until_members(&self, names: &[&str]) {
        let mut members = self.gossip.members();
        let wanted: std::collections::BTreeSet<_> =
            names.iter().map(|name| format!("{name}-1")).collect();
        let same = |members: &Members| {
            let known = members.iter().map(|(relay, _)| relay.to_string());
            known.collect::<std::collections::BTreeSet<_>>() == wanted
        };
        let reached = tokio::time::timeout(PATIENCE, members.wait_for(same)).await;
        let told = reached.is_ok();
        assert!(
            told,
            "{} knows {:?}",
            self.name,
            self.gossip.members().borrow()
        );
    }

    /// Ends as a process does that is told to.
    async fn leave(self) {
        self.gossip.leave().await;
        self.node.close(CloseReason::Stopping).await;
        assert!(self.tasks.finish(PATIENCE).await, "all tasks ended");
    }

    /// Ends without a word.
    fn kill(self) {
        let endpoint_gone = self.node.clone();
        self.tasks.token().cancel();
        drop(endpoint_gone);
    }
}

async fn until_all_know(relays: &[&TestRelay], names: &[&str]) {
    for relay in relays {
        relay.until_members(names).await;
    }
}

#[tokio::test]
async fn relays_that_know_one_other_each_find_all() {
    let setting = Setting::new();
    let a = setting.relay("a", &[]);
    let b = setting.relay("b", &[a.address()]);
    let c = setting.relay("c", &[b.address()]);
    let d = setting.relay("d", &[c.address()]);

    until_all_know(&[&a, &b, &c, &d], &["a", "b", "c", "d"]).await;

    let told = a.gossip.members().borrow().clone();
    let (_, address) = told
        .iter()
        .find(|(relay, _)| relay.as_str() == "d-1")
        .unwrap();
    let public = [Scope::new("public").unwrap()];
    let address: Vec<_> = address.reachable(&public).collect();
    assert_eq!(address, [d.address().to_string()]);
}

#[tokio::test]
async fn a_relay_that_nobody_reaches_is_a_member_and_never_dialled() {
    let setting = Setting::new();
    let b = setting.relay("b", &[]);
    let c = setting.relay("c", &[b.address()]);
    let d = setting.relay("d", &[b.address()]);
    // One before and one behind the others by name, for the lower name's connection is kept.
    let a = setting.unreachable("a", &[b.address()]);
    let z = setting.unreachable("z", &[c.address()]);

    // These two can't meet, and know each other by the word of others.
    until_all_know(&[&a, &b, &c, &d, &z], &["a", "b", "c", "d", "z"]).await;

    // Both meet each of the others, without having to wait for their turn to ask.
    for met in [&b, &c, &d] {
        let both = async {
            while met.dialled.load(Ordering::Relaxed) < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let both = tokio::time::timeout(Duration::from_secs(3), both).await;
        assert!(both.is_ok(), "{} was not met", met.name);
    }
    for relay in [&a, &z] {
        assert_eq!(relay.dialled.load(Ordering::Relaxed), 0, "{}", relay.name);
    }
}

#[tokio::test]
async fn a_seed_that_is_up_later_is_found_later() {
    let setting = Setting::new();
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    let a = setting.relay("a", &[address]);
    a.until_members(&["a"]).await;
    drop(free);

    let b = setting.relay("b", &[a.address()]);

    until_all_know(&[&a, &b], &["a", "b"]).await;
}

#[tokio::test]
async fn a_relay_that_leaves_is_no_member_a_moment_later() {
    let setting = Setting::new();
    let a = setting.relay("a", &[]);
    let b = setting.relay("b", &[a.address()]);
    let c = setting.relay("c", &[a.address()]);
    until_all_know(&[&a, &b, &c], &["a", "b", "c"]).await;
    let started = tokio::time::Instant::now();

    c.leave().await;

    until_all_know(&[&a, &b], &["a", "b"]).await;
    // Being found dead takes several seconds longer.
    assert!(started.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn a_relay_that_starts_again_elsewhere_is_known_there() {
    let setting = Setting::new();
    let a = setting.relay("a", &[]);
    let b = setting.relay("b", &[a.address()]);
    until_all_know(&[&a, &b], &["a", "b"]).await;
    b.kill();

    let b = setting.relay("b", &[a.address()]);

    let wanted = b.address().to_string();
    let public = [Scope::new("public").unwrap()];
    let moved = |members: &Members| {
        members.iter().any(|(relay, addresses)| {
            relay.as_str() == "b-1" && addresses.reachable(&public).eq([wanted.as_str()])
        })
    };
    let mut members = a.gossip.members();
    let known = tokio::time::timeout(PATIENCE, members.wait_for(moved)).await;
    assert!(known.is_ok(), "{:?}", a.gossip.members().borrow());
}

#[tokio::test]
async fn a_datagram_in_the_name_of_another_is_refused_and_counted() {
    let setting = Setting::new();
    let a = setting.relay("a", &[]);
    let tasks = Tasks::new();
    let mallory = setting.node("m", &tasks);
    let expected = kvgrid_runtime::Expected::AnyRelay;
    let forged = mallory
        .connect(a.address(), Protocol::Gossip, &expected)
        .await
        .unwrap();
    // What b would say, over m's connection.
    let own = Member {
        relay: RelayId::new("b-1").unwrap(),
        generation: 1,
        addresses: Addresses::none(),
    };
    let clock = Clock::start();
    let mut b = Membership::new(own, MembershipConfig::default(), 1);
    b.handle_peer(RelayId::new("a-1").unwrap(), Addresses::none(), clock.now());
    let packet = b.poll_transmit().unwrap().payload;

    let refused = async {
        while a.gossip.counters().wrong_sender == 0 {
            forged.connection.send_datagram(packet.clone()).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.unwrap();

    a.until_members(&["a"]).await;
    tasks.stop();
}

#[tokio::test]
async fn an_address_where_another_relay_answers_is_refused_with_both_names() {
    let setting = Setting::new();
    let (b, tasks) = (setting.relay("b", &[]), Tasks::new());
    let a = setting.node("a", &tasks);
    let expected = kvgrid_runtime::Expected::Relay(RelayId::new("c-1").unwrap());

    let error = a
        .connect(b.address(), Protocol::Gossip, &expected)
        .await
        .unwrap_err()
        .to_string();

    assert!(error.contains("b-1") && error.contains("c-1"), "{error}");
    tasks.stop();
}
