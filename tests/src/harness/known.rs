//! What an edge says it knows of the grid (`/kvgrid/v1/sites`), as far as tests look at it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::process::POLL;
use crate::client::Client;

/// All that an edge knows.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Known {
    /// Sites that it has heard of.
    pub sites: Vec<KnownSite>,
}

/// What an edge knows of one site.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownSite {
    /// Its name.
    pub site: String,
    /// Whether a relay of it is connected.
    pub alive: bool,
    /// `closed`, `half_open` or `open`.
    pub breaker: String,
    /// Its relays.
    pub relays: Vec<KnownRelay>,
    /// What it serves.
    pub models: Vec<KnownModel>,
    /// The relay by which that is known.
    pub known_by: Option<String>,
    /// What it has cached.
    pub pools: Vec<KnownPool>,
    /// How busy it is.
    pub load: KnownLoad,
}

/// What an edge knows of a relay.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownRelay {
    /// Its name.
    pub id: String,
    /// Whether the edge has a connection to it.
    pub connected: bool,
    /// The models that its frontend serves.
    pub serves: Vec<String>,
    /// Measured round trip.
    pub rtt_ms: f64,
}

/// What an edge knows of a model at a site.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownModel {
    /// Other names that clients may use.
    pub aliases: Vec<String>,
    /// Whether it is served now.
    pub ready: bool,
    /// How to tokenise for it.
    pub card: Option<KnownCard>,
    /// Whether prompts are there what they are here, by kind of request.
    pub parity: Vec<KnownParity>,
    /// Workers with another card.
    pub apart: Vec<KnownApart>,
}

/// Workers whose card the site doesn't serve by.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct KnownApart {
    /// How many.
    pub workers: u32,
    /// The fields that differ.
    pub differs: Vec<String>,
}

/// What an edge knows of one kind of request for a model.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownParity {
    /// The kind: `plain`, or its traits.
    pub kind: String,
    /// Whether it is routed without tokens.
    pub set_aside: bool,
    /// Whether prompts are as long as expected.
    pub tokens: KnownAgreement,
    /// Whether as much is cached as expected, by source.
    pub caches: Vec<KnownAgreement>,
}

/// How often two counts were the same.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownAgreement {
    /// `unknown`, `agrees` or `differs`.
    pub state: String,
    /// How often they were compared.
    pub compared: u64,
    /// How often they differed.
    pub different: u64,
}

/// What an edge knows of a card.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownCard {
    /// Whether prompts can be tokenised with it.
    pub usable: bool,
    /// Names it.
    pub digest: String,
}

/// What an edge knows of a pool.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownPool {
    /// `empty`, `syncing`, `live` or `stale`.
    pub state: String,
    /// `whole`, `partial`, `incomplete` or `none`.
    pub completeness: String,
    /// Names the life of its publisher.
    pub epoch: Option<String>,
    /// How much is known of each block's hash: `filter` or `exact`.
    pub form: Option<String>,
    /// How many blocks are in it.
    pub blocks: u64,
    /// At what age the site evicts what nobody uses, in milliseconds.
    pub eviction_age_ms: Option<f64>,
    /// Up to where each of the source's publishers is applied.
    pub applied: Vec<Applied>,
    /// How it is fed.
    pub facts: Option<KnownFacts>,
    /// How it matches what is sent to its site.
    pub matching: Option<KnownMatching>,
}

/// What an edge knows of how a pool is fed.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownFacts {
    /// Blocks that were taken in.
    pub accepted_blocks: Option<u64>,
    /// Events that were not, by reason.
    pub refused_events: BTreeMap<String, u64>,
    /// Blocks that were not, as a limit was reached.
    pub refused_blocks: Option<u64>,
    /// Physical copies.
    pub copies: Option<u64>,
    /// Blocks without an ancestor.
    pub orphans: Option<u64>,
    /// Losses for good.
    pub gaps: Option<u64>,
    /// Losses that were had again.
    pub repairs: Option<u64>,
    /// Age of the last message.
    pub last_event_age_ms: Option<f64>,
}

/// How a pool matches.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownMatching {
    /// Requests of two blocks or more.
    pub requests: u64,
    /// Those of which it held some.
    pub matched: u64,
    /// What is wrong with it, if it never matches.
    pub warning: Option<String>,
}

/// What an edge knows of how busy a site is.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownLoad {
    /// By model.
    pub models: Vec<KnownModelLoad>,
}

/// What an edge knows of how busy a site is with one model.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct KnownModelLoad {
    /// Requests that are there.
    pub requests: Option<u64>,
    /// Prompt tokens to be computed before another request's.
    pub backlog_tokens: Option<u64>,
    /// What engines say, or frontends of them.
    pub engines: Option<KnownEngines>,
}

/// What engines say of their load.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownEngines {
    /// How many ranks.
    pub ranks: Option<u64>,
    /// Requests that are computed.
    pub running: u64,
    /// Requests that wait.
    pub waiting: Option<u64>,
    /// Prompt tokens of these.
    pub waiting_tokens: Option<u64>,
    /// Requests that are computed at once.
    pub max_requests: Option<u64>,
    /// Share of the cache that requests hold.
    pub kv_use: Option<f64>,
    /// Share of it that is kept for reuse.
    pub kv_cached: Option<f64>,
    /// Tokens that it has room for.
    pub kv_tokens: Option<u64>,
    /// What came past the relays.
    pub foreign: KnownForeign,
}

/// What came to engines past the relays.
#[derive(Clone, Debug, Deserialize)]
pub struct KnownForeign {
    /// Requests.
    pub requests: u64,
}

/// How far a publisher's events have come.
#[derive(Clone, Debug, Deserialize)]
pub struct Applied {
    /// The publisher, as hexadecimal digits.
    pub publisher: String,
    /// The last sequence that can be searched.
    pub sequence: u64,
}

impl Known {
    /// Asks the edge whose admin server is at `admin_url`.
    pub(crate) async fn ask(client: &Client, admin_url: &str) -> anyhow::Result<Self> {
        let url = format!("{admin_url}/kvgrid/v1/sites");
        let page = client.get(&url).await?;
        serde_json::from_slice(&page.body).with_context(|| format!("{url} is not understood"))
    }

    /// Asks until a condition is met.
    pub(crate) async fn until(
        client: &Client,
        admin_url: &str,
        what: &str,
        patience: Duration,
        is: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<Self> {
        let deadline = Instant::now() + patience;
        loop {
            let known = Self::ask(client, admin_url).await?;
            if is(&known) {
                return Ok(known);
            }
            if Instant::now() > deadline {
                bail!("not after {patience:?}: {what}; {known:#?}");
            }
            sleep(POLL).await;
        }
    }

    /// What is known of this site.
    pub fn site(&self, name: &str) -> Option<&KnownSite> {
        self.sites.iter().find(|site| site.site == name)
    }

    /// Whether requests may go to the site, as far as the edge can see.
    pub fn eligible(&self, name: &str) -> bool {
        self.site(name).is_some_and(|site| {
            site.alive && site.breaker == "closed" && site.models.iter().any(|model| model.ready)
        })
    }

    /// What is known of a kind of request at the site, of whatever model it serves.
    pub fn parity(&self, name: &str, kind: &str) -> Option<&KnownParity> {
        let mut parity = self
            .site(name)?
            .models
            .iter()
            .flat_map(|model| &model.parity);
        parity.find(|parity| parity.kind == kind)
    }

    /// How busy the site is with its only model, as far as that is known.
    pub fn load(&self, name: &str) -> KnownModelLoad {
        let load = self.site(name).and_then(|site| site.load.models.first());
        load.cloned().unwrap_or_default()
    }

    /// Whether requests may go to the relay.
    pub fn serves(&self, relay: &str) -> bool {
        let mut relays = self.sites.iter().flat_map(|site| &site.relays);
        relays.any(|known| known.id == relay && known.connected && !known.serves.is_empty())
    }

    /// Whether the edge can tokenise for the site, and send requests there.
    pub fn usable(&self, name: &str) -> bool {
        let usable = |model: &KnownModel| model.card.as_ref().is_some_and(|card| card.usable);
        let models = self.site(name).map_or(&[][..], |site| &site.models);
        self.eligible(name) && models.iter().all(usable)
    }

    /// Whether the edge can route to the site by what that has cached.
    pub fn complete(&self, name: &str) -> bool {
        let whole = |pool: &KnownPool| pool.state == "live" && pool.completeness == "whole";
        let pools = self.site(name).map_or(&[][..], |site| &site.pools);
        self.usable(name) && !pools.is_empty() && pools.iter().all(whole)
    }

    /// Whether the messages of a site's engines up to these sequences, one for each that has
    /// published any, can be searched. They may have published more since.
    pub fn applied(&self, name: &str, sequences: &[u64]) -> bool {
        self.site(name).is_some_and(|site| {
            let applied = site.pools.iter().flat_map(|pool| &pool.applied);
            let mut applied: Vec<u64> = applied.map(|applied| applied.sequence).collect();
            let mut sequences = sequences.to_vec();
            // Which engine is which doesn't show, so that the highest are compared.
            applied.sort_unstable_by(|one, other| other.cmp(one));
            sequences.sort_unstable_by(|one, other| other.cmp(one));
            let mut pairs = applied.iter().zip(&sequences);
            applied.len() >= sequences.len() && pairs.all(|(applied, last)| applied >= last)
        })
    }

    /// Whether this publisher's messages up to this sequence can be searched.
    pub fn applied_of(&self, name: &str, publisher: u64, sequence: u64) -> bool {
        let publisher = format!("{publisher:016x}");
        self.site(name).is_some_and(|site| {
            let mut applied = site.pools.iter().flat_map(|pool| &pool.applied);
            applied.any(|of| of.publisher == publisher && of.sequence >= sequence)
        })
    }

    /// How the edge's replicas of the site's pools stand: `empty`, `syncing`, `live`, `stale`.
    pub fn states(&self, name: &str) -> Vec<&str> {
        let pools = self.site(name).map_or(&[][..], |site| &site.pools);
        pools.iter().map(|pool| pool.state.as_str()).collect()
    }

    /// The lives of the site's pools' publishers.
    pub fn epochs(&self, name: &str) -> Vec<Option<String>> {
        let pools = self.site(name).map_or(&[][..], |site| &site.pools);
        pools.iter().map(|pool| pool.epoch.clone()).collect()
    }

    /// How many blocks the edge knows at the site.
    pub fn blocks(&self, name: &str) -> u64 {
        let pools = self.site(name).map_or(&[][..], |site| &site.pools);
        pools.iter().map(|pool| pool.blocks).sum()
    }
}
