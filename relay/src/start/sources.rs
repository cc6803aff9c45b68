//! Starts what the configured sources need, each kind its own tasks, and the pools they feed.

use std::collections::BTreeMap;

use kvgrid_core::ModelName;
use kvgrid_runtime::luck;
use tokio::sync::{mpsc, watch};

use super::{Relay, Usages};
use crate::config::{Feeds, PeerSettings, SourceSettings};
use crate::discovery::Sightings;
use crate::pools::{PoolReport, Pools};
use crate::sources::dynamo_events::{self, EventSettings, Usage};
use crate::sources::dynamo_relay::{self, RelaySettings};
use crate::sources::{CHANNEL_CAPACITY, FeedId, SourceEvent, engine_zmq};

impl Relay {
    /// Follows all sources; `sightings` are those of the sources that have a discovery.
    pub(super) fn follow_sources(
        &self,
        sightings: &BTreeMap<usize, Sightings>,
    ) -> (watch::Receiver<Vec<PoolReport>>, Usages) {
        let (sender, events) = mpsc::channel(CHANNEL_CAPACITY);
        let config = &self.prepared.config;
        let mut usages = Vec::new();
        for (source, settings) in config.sources.iter().enumerate() {
            let usage = self.follow_source(source, settings, sightings.get(&source), &sender);
            usages.extend(usage.map(|usage| (settings.model.id(), usage)));
        }
        let capacity = |model: &ModelName| {
            let card = self.prepared.card.as_ref()?;
            card.info.capacity_blocks.filter(|_| card.model == *model)
        };
        let pools = Pools::new(
            &config.sources,
            &config.file.limits,
            &self.hub,
            capacity,
            (events, self.clock),
        );
        let reports = pools.reports();
        if !config.sources.is_empty() {
            self.spawn("pools", pools.run());
        }
        (reports, usages)
    }

    /// Follows one source; gives what it tells of its workers' use, if it does.
    fn follow_source(
        &self,
        source: usize,
        settings: &SourceSettings,
        sightings: Option<&Sightings>,
        events: &mpsc::Sender<SourceEvent>,
    ) -> Option<watch::Receiver<Usage>> {
        let (model, shape) = (settings.model.clone(), settings.shape);
        let usage = watch::Sender::new(Usage::default());
        let told = usage.subscribe();
        match &settings.feeds {
            Feeds::EngineZmq(feeds) => {
                for (endpoint, feed) in feeds.iter().enumerate() {
                    let id = FeedId { source, endpoint };
                    let following = engine_zmq::run(id, feed.clone(), events.clone());
                    self.spawn("event feed", following);
                }
                return None;
            }
            Feeds::DynamoEvents(dynamo) => {
                let settings = EventSettings {
                    source,
                    model,
                    shape,
                    scope: dynamo.discovery.scope.clone(),
                    nats: dynamo.nats.clone(),
                    max_publishers: usize::from(self.prepared.config.file.limits.workers),
                };
                let sightings = sightings?.clone();
                let (clock, events) = (self.clock, events.clone());
                let following = dynamo_events::run(settings, sightings, clock, events, usage);
                self.spawn("event source", following);
            }
            Feeds::DynamoRelay(peer) => {
                let settings = RelaySettings {
                    source,
                    model,
                    shape,
                    peer: PeerSettings::clone(peer),
                };
                let luck = luck().wrapping_add(source as u64);
                let following =
                    dynamo_relay::run(settings, (self.clock, luck), events.clone(), usage);
                self.spawn("filter source", following);
            }
        }
        Some(told)
    }
}
