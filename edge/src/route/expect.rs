//! What was sent where, and is expected to be cached there by now.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvgrid_core::Instant;
use kvgrid_core::block::ChainHash;
use kvgrid_core::filter::MixKey;
use kvgrid_core::id::ModelId;
use kvgrid_core::prediction::{NoteId, Predicted, PredictionConfig, Predictions};
use kvgrid_core::view::SiteView;

use crate::config::PredictTable;

/// How long a prompt counts while its answer has not begun; the answer's own deadline ends it
/// sooner.
const WAITING: Duration = Duration::from_secs(3_600);

/// One request's prompt, expected somewhere.
#[derive(Debug)]
pub(super) struct Expected {
    note: NoteId,
    /// Whether events will tell of it.
    is_told: bool,
}

/// All that is expected. Decisions look into [`Self::predicted`] and never wait; the lock is
/// taken when a request is sent, when its answer begins and when it fails.
#[derive(Debug)]
pub(super) struct Expectations {
    config: PredictTable,
    notes: Mutex<Predictions>,
    predicted: Predicted,
}

impl Expectations {
    pub(super) fn new(config: PredictTable) -> Self {
        let bounds = PredictionConfig {
            max_blocks: config.max_blocks,
        };
        // Nobody else reads it: a key of this process's own will do.
        let notes = Predictions::new(bounds, MixKey::from_bytes(&rand::random()));
        Self {
            config,
            predicted: notes.predicted(),
            notes: Mutex::new(notes),
        }
    }

    /// What decisions read, if they should.
    pub(super) const fn predicted(&self) -> Option<&Predicted> {
        if self.config.enabled {
            Some(&self.predicted)
        } else {
            None
        }
    }

    /// A prompt is sent to a site.
    pub(super) fn sent(
        &self,
        site: &SiteView,
        model: ModelId,
        blocks: &[ChainHash],
        now: Instant,
    ) -> Option<Expected> {
        if !self.config.enabled || blocks.is_empty() {
            return None;
        }
        let place = self.predicted.place(&site.site, model);
        let note = self.lock().note(&place, blocks, now + WAITING);
        Some(Expected {
            note,
            is_told: site.has_pool(model),
        })
    }

    /// Its answer has begun: it is computed, and cached for a while.
    pub(super) fn computed(&self, expected: &Expected, now: Instant) {
        let lasts = if expected.is_told {
            self.config.until_told
        } else {
            self.config.ttl
        };
        self.lock().extend(expected.note, now + lasts);
    }

    /// It was not computed.
    pub(super) fn failed(&self, expected: &Expected) {
        self.lock().end(expected.note);
    }

    /// Forgets what has lasted long enough.
    pub(super) fn expire(&self, now: Instant) {
        self.lock().handle_timeout(now);
    }

    fn lock(&self) -> MutexGuard<'_, Predictions> {
        // Of a note that was half made when a thread died, the rest is missing; no more.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
