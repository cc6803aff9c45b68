//! What a resync does to requests beside it.
//!
//! An edge reaches two sites over one link of 200 Mbit/s: one answers in small messages, fifty
//! a second in each of ten streams, and the other has a large cache that the edge is to learn.
//! How late messages are is told without the one-way delay, once before the edge reaches the
//! other site and once while it learns. Meanwhile a long prompt takes the idle way up.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::bench::fed::FedSite;
use crate::bench::figure::{Figure, median};
use crate::bench::frontend::Frontend;
use crate::bench::ground::Ground;
use crate::bench::prompts::Prompts;
use crate::client::Client;
use crate::harness::MODEL;
use crate::harness::config::ANY;
use crate::link::{ForwarderConfig, LinkProperties, Links, LinksConfig};
use crate::node::Daemon as _;

const BENCH: &str = "beside";
const LINK_BITS: u64 = 200_000_000;
/// What the link holds for 160 ms.
const LINK_BUFFER: usize = 4 << 20;
/// Round trips in milliseconds.
const PATHS: [u64; 3] = [4, 120, 239];
const STREAMS: usize = 10;
const WORKERS: usize = 2;
/// The site that answers, and the one that is learnt.
const NEAR: &str = "fra";
const LARGE: &str = "iad";
/// How long messages are looked at before the resync.
const ALONE: Duration = Duration::from_secs(5);
const MOVED_MS: f64 = 10.0;
const PROMPT_BYTES: usize = 380_000;
/// Seconds that the prompt may take at 239 ms.
const PROMPT_SECONDS: f64 = 0.4;

#[tokio::main]
pub(super) async fn run(quick: bool, program: &Path) -> Result<()> {
    let blocks = if quick { 1_000_000 } else { 10_000_000 };
    let ground = Ground::new(program)?;
    let frontend = Frontend::start(MODEL)?;
    let near = FedSite::start_behind(&ground, NEAR, 1, 1_000, &frontend.url()).await?;
    let mut large = FedSite::start(&ground, LARGE, WORKERS, blocks / WORKERS as u64).await?;
    let mut prompts = Prompts::of(WORKERS as u64, 1);
    large.publish_prompts(&mut prompts, blocks).await?;
    large.until_held().await?;
    for round_trip in PATHS {
        measure(round_trip, &ground, &frontend, (&near, &large)).await?;
    }
    Ok(())
}

async fn measure(
    round_trip: u64,
    ground: &Ground,
    frontend: &Frontend,
    (near, large): (&FedSite, &FedSite),
) -> Result<()> {
    let links = links(round_trip, near, large).await?;
    let addresses = links.addresses();
    let entrances = [addresses[NEAR], addresses[LARGE]];
    let way = links.switch(LARGE).context("a link is missing")?;
    way.cut();
    let edge = ground.edge(&format!("eu-{round_trip}"), &entrances).await?;
    edge.until("the near site is known", |known| {
        known.states(NEAR) == ["live"]
    })
    .await?;
    let messages = Messages::ask(&edge.client_url(), frontend).await?;
    messages.take();
    sleep(ALONE).await;
    let alone = messages.take();

    way.mend();
    edge.until("the large site is heard", |known| {
        !known.states(LARGE).is_empty()
    })
    .await?;
    messages.take();
    let begun = Instant::now();
    let whole = async {
        edge.until("the large site is known", |known| {
            known.states(LARGE) == ["live"] && known.blocks(LARGE) == large.published()
        })
        .await?;
        anyhow::Ok((begun.elapsed().as_secs_f64(), messages.take()))
    };
    let prompt = send_prompt(edge.client_url(), frontend);
    let ((seconds, beside), prompt_seconds) = tokio::try_join!(whole, prompt)?;
    edge.kill();

    let name = |what: &str| format!("{what}_{round_trip}_ms");
    let one_way = round_trip as f64 / 2.0;
    let (alone, beside) = (p99(alone)? - one_way, p99(beside)? - one_way);
    Figure::less(BENCH, &name("message_p99_alone"), alone, "ms").print()?;
    Figure::less(BENCH, &name("message_p99_moved"), beside - alone, "ms")
        .within(MOVED_MS)
        .print()?;
    Figure::less(BENCH, &name("whole_pool"), seconds, "s").print()?;
    let prompt = name("first_prompt");
    let prompt = Figure::less(BENCH, &prompt, prompt_seconds, "s");
    match round_trip {
        239 => prompt.within(PROMPT_SECONDS).print(),
        _ => prompt.print(),
    }
}

/// Links to both sites with one bottleneck.
async fn links(round_trip: u64, near: &FedSite, large: &FedSite) -> Result<Links> {
    let link = |name: &str, site: &FedSite| ForwarderConfig {
        name: name.to_owned(),
        listen: ANY,
        target: site.quic,
        seed: round_trip,
        link: LinkProperties {
            rate: NonZeroU64::new(LINK_BITS),
            buffer: LINK_BUFFER,
            ..LinkProperties::round_trip(Duration::from_millis(round_trip))
        },
        bottleneck: Some("shared".to_owned()),
    };
    Links::start(LinksConfig {
        ready_file: None,
        links: vec![link(NEAR, near), link(LARGE, large)],
    })
    .await
}

/// Streams of messages, and how long each message took. They end when it is dropped.
struct Messages {
    took_ms: Arc<Mutex<Vec<f64>>>,
    _streams: JoinSet<Result<()>>,
}

impl Messages {
    async fn ask(edge: &str, frontend: &Frontend) -> Result<Self> {
        let took_ms = Arc::new(Mutex::new(Vec::new()));
        let url = format!("{edge}/v1/chat/completions");
        let mut streams = JoinSet::new();
        for _ in 0..STREAMS {
            let question = json!({
                "model": MODEL, "stream": true,
                "messages": [{"role": "user", "content": "count"}],
            });
            let mut events = Client::default().stream(&url, &question).await?;
            ensure!(events.status.is_success(), "{}", events.rest().await?);
            let (took_ms, frontend) = (Arc::clone(&took_ms), frontend.clone());
            streams.spawn(async move {
                while let Some(sent) = events.next().await? {
                    let took = frontend.micros().saturating_sub(sent.parse()?);
                    let mut all = took_ms.lock().unwrap_or_else(PoisonError::into_inner);
                    all.push(took as f64 / 1_000.0);
                }
                Ok(())
            });
        }
        Ok(Self {
            took_ms,
            _streams: streams,
        })
    }

    /// How long those took that have come since.
    fn take(&self) -> Vec<f64> {
        let mut all = self.took_ms.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut all)
    }
}

fn p99(mut values: Vec<f64>) -> Result<f64> {
    ensure!(values.len() >= 100, "only {} messages came", values.len());
    median(&mut values);
    Ok(values[(values.len() * 99).div_ceil(100) - 1])
}

/// Seconds until a long prompt is at the site, whole.
async fn send_prompt(edge: String, frontend: &Frontend) -> Result<f64> {
    let question = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": "long ".repeat(PROMPT_BYTES / 5)}],
    });
    let begun = frontend.micros();
    let answer = Client::default()
        .post(&format!("{edge}/v1/chat/completions"), &question)
        .await?;
    ensure!(answer.status.is_success(), "{}", answer.text());
    let arrived = answer.json()?["arrived"].as_u64();
    let arrived = arrived.context("the answer says no time")?;
    Ok(Duration::from_micros(arrived.saturating_sub(begun)).as_secs_f64())
}
