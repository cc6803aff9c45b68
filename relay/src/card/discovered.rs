//! The card as the site's workers tell it: found in discovery, its files got from the workers.
//!
//! The card is that of the workers that lead, of those that answer: who only computes prompts is
//! given tokens. It stays the same while none is alive at all: what such a worker had cached is
//! gone, but the next one will tokenise alike. A card that the live workers don't offer any more
//! is withdrawn, since its tokens may be wrong.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use kvgrid_core::ModelName;
use kvgrid_prompt::{Card, CardError};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

use super::plan::{Overrides, Plan, PlannedFile, Unsupported};
use super::store::Store;
use super::{CardReport, CardState, SiteCard};
use crate::discovery::{ModelCard, Role, ServedModel, Sighting, Sightings};
use crate::fetch::{FetchError, Fetcher};

/// How long a worker may take to give a file.
const PATIENCE: Duration = Duration::from_secs(30);

/// When to try again after no card could be made.
const RETRY: Duration = Duration::from_secs(1);

/// Which card to look for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// The model that clients ask for.
    pub(crate) model: ModelName,
    /// What workers' cards don't say.
    pub(crate) overrides: Overrides,
    /// Device blocks of all ranks together, if the configuration says so.
    pub(crate) capacity_blocks: Option<u64>,
    /// The relay's state directory.
    pub(crate) state: PathBuf,
}

/// Why there is no card now. Trying again may help, except where it is unsupported.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error("{url}: {error}")]
    Fetch { url: String, error: FetchError },
    #[error("{0} has another checksum than the card says")]
    Checksum(String),
    #[error(transparent)]
    Card(#[from] CardError),
    #[error("the files can't be read any more")]
    Gone,
}

/// Looks for the card until nobody sees anything any more.
pub(crate) async fn follow(
    wanted: Wanted,
    mut sightings: Sightings,
    reports: watch::Sender<CardReport>,
) {
    let mut finder = Finder {
        store: Store::below(&wanted.state),
        wanted,
        fetcher: Fetcher::new(),
        current: None,
        reports,
    };
    finder.remember().await;
    loop {
        let seen = sightings.borrow_and_update().clone();
        let settled = match &seen {
            Some(seen) => finder.take(seen).await,
            None => true,
        };
        // Both arms may be dropped while they wait.
        tokio::select! {
            changed = sightings.changed() => if changed.is_err() {
                return;
            },
            () = sleep(RETRY), if !settled => {}
        }
    }
}

/// Whether prompts are rendered by a worker's card.
fn renders(model: &ServedModel) -> bool {
    matches!(model.card.role(), Role::Whole | Role::Decode)
}

struct Finder {
    wanted: Wanted,
    store: Store,
    fetcher: Fetcher,
    /// What the card in the report was made of.
    current: Option<Plan>,
    reports: watch::Sender<CardReport>,
}

impl Finder {
    /// Takes the card that the site had when the relay last ran.
    async fn remember(&mut self) {
        let Some(text) = self.store.last(&self.wanted.model) else {
            return;
        };
        let raw = serde_json::from_slice(&text).ok();
        let Some(card) = raw.and_then(|raw| ModelCard::parse(raw).ok()) else {
            return;
        };
        let plan = Plan::of(&self.wanted.model, &card, &self.wanted.overrides);
        let made = match plan {
            Ok(plan) => {
                let files = self.kept(&plan);
                files.map(|files| (self.make(&plan, files), plan))
            }
            Err(_) => return,
        };
        if let Some((made, plan)) = made
            && let Ok(site_card) = made.await
        {
            self.tell(CardState::Remembered, Some(site_card), None);
            self.current = Some(plan);
        }
    }

    /// Brings the card up to date; says whether there is nothing more to try.
    async fn take(&mut self, seen: &Sighting) -> bool {
        let name = self.wanted.model.as_str();
        let ours = seen.models.values().filter(|m| m.card.is_called(name));
        let leading = seen.leadership.leading;
        let workers = ours.filter(|m| Some(m.card.cohort) == leading && renders(m));
        let workers: Vec<_> = workers.collect();
        if workers.is_empty() {
            let state = match self.current {
                Some(_) => CardState::Remembered,
                None => CardState::Missing,
            };
            self.set_state(state, None);
            return true;
        }
        let capacity = self.capacity(seen);
        let overrides = &self.wanted.overrides;
        let plans = workers
            .iter()
            .map(|m| (*m, Plan::of(&self.wanted.model, &m.card, overrides)));
        let plans: Vec<_> = plans.collect();
        if let Some(current) = &self.current {
            let same = |plan: &Plan| plan.makes_the_same_as(current);
            if plans.iter().any(|(_, plan)| plan.as_ref().is_ok_and(same)) {
                self.confirm(capacity);
                return true;
            }
        }
        self.find(plans, capacity).await
    }

    /// Makes a card of the first worker's files that can be had.
    async fn find(
        &mut self,
        plans: Vec<(&ServedModel, Result<Plan, Unsupported>)>,
        capacity: Option<u64>,
    ) -> bool {
        let mut failure = None;
        for (model, plan) in plans {
            let made = match plan {
                Ok(plan) => self.get_and_make(&plan).await.map(|card| (card, plan)),
                Err(error) => Err(error.into()),
            };
            match made {
                Ok((mut card, plan)) => {
                    card.info.capacity_blocks = capacity;
                    info!(model = %card.model, digest = ?card.info.digest, "Card found");
                    self.keep(&model.card);
                    self.current = Some(plan);
                    let reason = card.unsupported.clone();
                    self.tell(CardState::Current, Some(card), reason);
                    return true;
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        self.current = None;
        let failure = failure.unwrap_or(Failure::Gone);
        let settled = matches!(failure, Failure::Unsupported(_) | Failure::Card(_));
        let state = match settled {
            true => CardState::Unsupported,
            false => CardState::Unreachable,
        };
        self.tell(state, None, Some(failure.to_string()));
        settled
    }

    async fn get_and_make(&self, plan: &Plan) -> Result<SiteCard, Failure> {
        let mut files = BTreeMap::new();
        for (name, file) in &plan.files {
            files.insert((*name).to_owned(), self.get(file).await?);
        }
        self.make(plan, files).await
    }

    /// A file from the disk, else from its worker.
    async fn get(&self, file: &PlannedFile) -> Result<Vec<u8>, Failure> {
        if let Some(bytes) = self.store.file(&file.hash) {
            return Ok(bytes);
        }
        let url = file.url.clone();
        let got = self.fetcher.get_at_most(url, Card::MAX_BYTES, PATIENCE);
        let bytes: Bytes = got.await.map_err(|error| Failure::Fetch {
            url: file.url.to_string(),
            error,
        })?;
        if blake3::hash(&bytes) != file.hash {
            return Err(Failure::Checksum(file.url.to_string()));
        }
        if let Err(error) = self.store.keep(&bytes) {
            warn!(%error, "Card's file can't be kept");
        }
        Ok(bytes.into())
    }

    /// All of a plan's files, if the disk has them.
    fn kept(&self, plan: &Plan) -> Option<BTreeMap<String, Vec<u8>>> {
        let file = |(name, file): (&&'static str, &PlannedFile)| {
            Some(((*name).to_owned(), self.store.file(&file.hash)?))
        };
        plan.files.iter().map(file).collect()
    }

    /// Encoding and hashing a large card takes a moment.
    fn make(
        &self,
        plan: &Plan,
        files: BTreeMap<String, Vec<u8>>,
    ) -> impl Future<Output = Result<SiteCard, Failure>> + use<> {
        let (model, options) = (self.wanted.model.clone(), plan.options.clone());
        let making = spawn_blocking(move || {
            let card = Card::from_files(files, options)?;
            SiteCard::of(&card, model)
        });
        async move { Ok(making.await.map_err(|_| Failure::Gone)??) }
    }

    fn keep(&self, card: &ModelCard) {
        let text = card.raw.to_string();
        if let Err(error) = self.store.keep_last(&self.wanted.model, text.as_bytes()) {
            warn!(%error, "Card can't be kept");
        }
    }

    /// Blocks of those that compute prompts.
    fn capacity(&self, seen: &Sighting) -> Option<u64> {
        let name = self.wanted.model.as_str();
        let ours = seen.models.values().filter(|m| m.card.is_called(name));
        let leading = seen.leadership.leading;
        let computes = ours.filter(|m| match m.card.role() {
            Role::Whole => Some(m.card.cohort) == leading,
            Role::Prefill => true,
            Role::Decode | Role::Other => false,
        });
        let mut blocks = computes.map(|model| model.card.worker_blocks());
        let told = blocks.try_fold(0_u64, |sum, blocks| Some(sum.saturating_add(blocks?)));
        self.wanted.capacity_blocks.or(told)
    }

    /// The card that is told is the workers' own; their number may have changed.
    fn confirm(&self, capacity: Option<u64>) {
        self.reports.send_if_modified(|report| {
            let Some(card) = &mut report.card else {
                return false;
            };
            let changed = card.info.capacity_blocks != capacity;
            card.info.capacity_blocks = capacity;
            let state = std::mem::replace(&mut report.state, CardState::Current);
            changed || state != CardState::Current
        });
    }

    fn set_state(&self, state: CardState, reason: Option<String>) {
        let card = self.reports.borrow().card.clone();
        self.tell(state, card, reason);
    }

    fn tell(&self, state: CardState, card: Option<SiteCard>, reason: Option<String>) {
        self.reports.send_if_modified(|report| {
            if report.reason != reason
                && let Some(reason) = &reason
            {
                warn!(model = %self.wanted.model, reason, "Model's prompts can't be tokenised");
            }
            let now = CardReport {
                card,
                state,
                reason,
            };
            let changed = *report != now;
            *report = now;
            changed
        });
    }
}
