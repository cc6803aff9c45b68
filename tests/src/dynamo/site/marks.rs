//! How tests know that all a site has done is published: by the event of a question that
//! nobody has asked before, put to each rank of each worker.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kvgrid_core::block::{HashFormat, HashSeed, block_hashes};
use rand::RngExt as _;
use serde_json::json;
use tokio::time::Instant;

use super::{START_PATIENCE, Site};
use crate::dynamo::Answer;
use crate::dynamo::heard::{Heard, Place};
use crate::dynamo::options::KvSource;
use crate::dynamo::plane::Published;
use crate::harness::MODEL;

/// How long a mark's event may take before the question is put again.
const MARK_PATIENCE: Duration = Duration::from_secs(2);
/// Ids that aren't special in the fixture's vocabulary.
const IDS: Range<u32> = 10..2000;

impl Site {
    /// Waits until all that the site has done is published, on Dynamo's event plane or by
    /// Dynamo's relay, and heard, and says how far that goes for each rank of each worker.
    /// Takes a question of a block for each, for its event comes last.
    pub async fn until_published(&mut self) -> Result<Vec<Published>> {
        let mut published = Vec::new();
        for place in self.places().await? {
            published.push(self.until_marked(place).await?);
        }
        Ok(published)
    }

    /// Begins to hear Dynamo's event plane; all that is asked for afterwards is heard.
    pub async fn listen(&mut self) -> Result<()> {
        for place in self.places().await? {
            self.until_heard(place).await?;
        }
        Ok(())
    }

    /// What was heard on Dynamo's event plane so far.
    pub fn heard(&mut self) -> Result<&[Heard]> {
        self.plane.heard()
    }

    /// The ranks of the workers, found by asking until each has answered.
    async fn places(&mut self) -> Result<BTreeSet<Place>> {
        let deadline = Instant::now() + START_PATIENCE;
        while self.places.len() < self.engines.len() {
            let (answer, _) = self.ask_mark(None).await?;
            self.places
                .insert(answer.place().context("who has answered")?);
            ensure!(Instant::now() < deadline, "only {:?} answer", self.places);
        }
        Ok(self.places.clone())
    }

    async fn until_marked(&mut self, place: Place) -> Result<Published> {
        if self.options.source != KvSource::DynamoRelay {
            return self.until_heard(place).await;
        }
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            let (_, name) = self.ask_mark(Some(place)).await?;
            if let Some(published) = self.filter.hear(name, MARK_PATIENCE).await {
                return Ok(published);
            }
            ensure!(Instant::now() < deadline, "{place:?} isn't in the filter");
        }
    }

    async fn until_heard(&mut self, place: Place) -> Result<Published> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            let (_, name) = self.ask_mark(Some(place)).await?;
            if let Some(published) = self.plane.hear(name, MARK_PATIENCE).await? {
                return Ok(published);
            }
            // The subscription was not in place yet.
            ensure!(Instant::now() < deadline, "{place:?} publishes nothing");
        }
    }

    /// Asks what nobody has asked before, of a rank or of any, and gives the name of its block.
    async fn ask_mark(&mut self, place: Option<Place>) -> Result<(Answer, u64)> {
        let mut rng = rand::rng();
        let block_size = self.options.block_size;
        let ids = (0..block_size.get()).map(|_| rng.random_range(IDS));
        let ids: Vec<u32> = ids.collect();
        let name = block_hashes(&ids, block_size, HashFormat::Standard, HashSeed::default());
        let name = name.into_iter().next().context("a whole block")?;
        let mut question = json!({
            "model": MODEL,
            "max_tokens": 1,
            "prompt": ids,
            "nvext": {"extra_fields": ["worker_id"]},
        });
        if let Some(place) = place {
            let (worker, rank) = match self.options.prefill_workers {
                0 => ("backend_instance_id", "dp_rank"),
                _ => ("prefill_worker_id", "prefill_dp_rank"),
            };
            question["nvext"][worker] = place.worker.into();
            question["nvext"][rank] = place.rank.into();
        }
        let answer = self.until_answered("/v1/completions", &question).await?;
        Ok((answer, name.0))
    }
}
