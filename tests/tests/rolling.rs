//! Every node of a grid is replaced, one by one, while clients go on.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and the in-tests switch does not cover helpers"
)]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvgrid_tests::client::Client;
use kvgrid_tests::harness::{Grid, GridPlan, MODEL};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

const SITES: [&str; 4] = ["fra", "iad", "icn", "syd"];
const EDGES: [&str; 4] = ["eu-1", "us-1", "ap-1", "au-1"];
/// Clients that have a stream open at any time.
const STREAMS: usize = 200;
/// Tokens of a stream, each of about 60 ms.
const TOKENS: u32 = 40;
/// Requests that come in between, and how often.
const SHORT_EVERY: Duration = Duration::from_millis(20);

/// Where edges are, and whether they are ready: what a load balancer knows.
#[derive(Clone, Default)]
struct Balancer(Arc<Mutex<Vec<(String, bool)>>>);

impl Balancer {
    /// Tells where the edges are.
    fn set(&self, grid: &Grid) {
        let known = |edge| (grid.url(edge).unwrap(), true);
        *self.0.lock().unwrap() = EDGES.into_iter().map(known).collect();
    }

    /// An edge that is ready.
    fn pick(&self, number: u64) -> String {
        let edges = self.0.lock().unwrap();
        let ready: Vec<&String> = edges
            .iter()
            .filter(|(_, r)| *r)
            .map(|(url, _)| url)
            .collect();
        ready[usize::try_from(number).unwrap() % ready.len()].clone()
    }

    /// Asks the edges again and again whether they are ready.
    async fn watch(self) {
        let client = Client::default();
        loop {
            let urls: Vec<String> = self
                .0
                .lock()
                .unwrap()
                .iter()
                .map(|(u, _)| u.clone())
                .collect();
            for url in urls {
                let answer = client.get(&format!("{url}/readyz")).await;
                let ready = answer.is_ok_and(|answer| answer.status.is_success());
                let mut edges = self.0.lock().unwrap();
                if let Some(edge) = edges.iter_mut().find(|(known, _)| *known == url) {
                    edge.1 = ready;
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What all clients together have seen.
#[derive(Default)]
struct Tally {
    asked: AtomicU64,
    open: AtomicU64,
    answered: AtomicU64,
    failures: Mutex<Vec<String>>,
}

/// Clients until they are told to stop; each then still reads its answer to the end.
struct Clients {
    balancer: Balancer,
    tally: Arc<Tally>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Clients {
    fn start(grid: &Grid) -> Self {
        let mut clients = Self {
            balancer: Balancer::default(),
            tally: Arc::default(),
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
        };
        clients.balancer.set(grid);
        clients.tasks.spawn(
            clients
                .stop
                .clone()
                .run_until_cancelled_owned(clients.balancer.clone().watch())
                .map_drop(),
        );
        for client in 0..STREAMS {
            clients.spawn(client, TOKENS, Duration::ZERO);
        }
        clients.spawn(STREAMS, 2, SHORT_EVERY);
        clients
    }

    fn spawn(&mut self, client: usize, tokens: u32, pause: Duration) {
        let (balancer, tally, stop) = (
            self.balancer.clone(),
            Arc::clone(&self.tally),
            self.stop.clone(),
        );
        self.tasks.spawn(async move {
            let http = Client::default();
            while !stop.is_cancelled() {
                let number = tally.asked.fetch_add(1, Ordering::Relaxed);
                let url = balancer.pick(number);
                let body = request(client, number, tokens);
                tally.open.fetch_add(1, Ordering::Relaxed);
                match ask(&http, &url, &body).await {
                    Ok(()) => drop(tally.answered.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => tally.failures.lock().unwrap().push(format!("{error:#}")),
                }
                tally.open.fetch_sub(1, Ordering::Relaxed);
                sleep(pause).await;
            }
        });
    }

    async fn stop(mut self) -> Arc<Tally> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.tally
    }
}

/// Takes a future's outcome for nothing.
trait MapDrop: Future + Sized {
    async fn map_drop(self) {
        drop(self.await);
    }
}

impl<F: Future> MapDrop for F {}

fn request(client: usize, number: u64, tokens: u32) -> Value {
    let question = format!("client {client} asks for the {number}th time");
    json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
}

/// Reads an answer to its end, with as many tokens as it says it has.
async fn ask(http: &Client, url: &str, body: &Value) -> anyhow::Result<()> {
    let url = format!("{url}/v1/chat/completions");
    let mut events = http.stream(&url, body).await?;
    anyhow::ensure!(events.status.is_success(), "status {}", events.status);
    let (mut tokens, mut usage, mut done) = (0, None, false);
    while let Some(event) = events.next().await? {
        if event == "[DONE]" {
            done = true;
            continue;
        }
        let event: Value = serde_json::from_str(&event)?;
        anyhow::ensure!(event.get("error").is_none(), "{event}");
        let text = event["choices"][0]["delta"]["content"].as_str();
        tokens += u64::from(text.is_some_and(|text| !text.is_empty()));
        usage = event["usage"]["completion_tokens"].as_u64().or(usage);
    }
    anyhow::ensure!(done, "the answer has no end");
    anyhow::ensure!(usage == Some(tokens), "{tokens} tokens came, of {usage:?}");
    Ok(())
}

async fn until_open(tally: &Tally) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while tally.open.load(Ordering::Relaxed) < STREAMS as u64 {
        assert!(Instant::now() < deadline, "clients don't get their streams");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_is_replaced_while_clients_go_on_and_nothing_is_lost_or_doubled() {
    let mut plan = GridPlan::default().mesh();
    for site in SITES {
        let slow = |engine: &mut kvgrid_tests::emulator::EngineConfig| {
            engine.factor = 10.0;
            engine.slots = 2 * STREAMS / SITES.len();
            engine.prefills = 16;
        };
        plan = plan.site_with(site, site, slow).relays(2);
    }
    for edge in EDGES {
        plan = plan.edge(edge, &edge[..2], &[]);
    }
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    let mut grid = Grid::start_alone(plan, program).await.unwrap();
    let clients = Clients::start(&grid);
    until_open(&clients.tally).await;

    for site in SITES {
        for relay in [format!("{site}-1"), format!("{site}-2")] {
            grid.stop_relay(&relay).await.unwrap();
            grid.restart_relay(&relay).await.unwrap();
            grid.until_complete().await.unwrap();
        }
    }
    for edge in EDGES {
        grid.restart_edge(edge).await.unwrap();
        grid.until_complete().await.unwrap();
        clients.balancer.set(&grid);
    }

    let tally = clients.stop().await;
    let failures = tally.failures.lock().unwrap().clone();
    let asked = tally.asked.load(Ordering::Relaxed);
    assert!(
        failures.is_empty(),
        "{} of {asked}: {failures:#?}",
        failures.len()
    );
    assert!(asked > 10 * STREAMS as u64, "{asked}");
    assert_eq!(tally.answered.load(Ordering::Relaxed), asked);
    assert_eq!(
        grid.answers().await.unwrap(),
        asked,
        "each was answered once"
    );
    grid.stop().await.unwrap();
}
