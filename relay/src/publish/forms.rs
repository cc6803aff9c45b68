//! A pool's publishers: of a filter always, of whole hashes while an edge wants them.
//!
//! Whole hashes take four times a filter's memory, and every change is coded once more, so they
//! are published only on demand. The first wish has a table built from all live blocks; what an
//! edge that comes back after a while needs is kept for [`KEPT`].

use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::Instant;
use kvgrid_core::filter::{Form, Geometry};
use kvgrid_core::replication::{Epoch, Publisher, Replacement};

use super::pool::Pool;

/// How long whole hashes are published on after the last edge that wanted them: one that lost its
/// connection, or was started anew, resumes where it was.
const KEPT: Duration = Duration::from_secs(300);

/// The publishers of one pool, which are told the same.
pub(super) struct Publishers {
    pub(super) filter: Publisher,
    exact: Option<Publisher>,
    /// Subscriptions to whole hashes.
    wanting: usize,
    /// When the last of them ended; nothing while there are some, or none ever was.
    unwanted_since: Option<Instant>,
    /// The incarnation and generation of the epoch that whole hashes had last. Their epochs are
    /// those of incarnations to come, which the filter's never reach.
    last: (u64, u16),
}

impl Publishers {
    /// Only a filter's, of this incarnation and generation.
    pub(super) const fn new(filter: Publisher, life: (u64, u16)) -> Self {
        Self {
            filter,
            exact: None,
            wanting: 0,
            unwanted_since: None,
            last: life,
        }
    }

    /// The publisher of a form, if there is one.
    pub(super) const fn of(&mut self, form: Form) -> Option<&mut Publisher> {
        match form {
            Form::Filter => Some(&mut self.filter),
            Form::Exact => self.exact.as_mut(),
        }
    }

    /// Tells all the same.
    pub(super) fn each(&mut self, mut tell: impl FnMut(&mut Publisher)) {
        tell(&mut self.filter);
        if let Some(exact) = &mut self.exact {
            tell(exact);
        }
    }

    /// Whether subscribers of any form have something to poll since this was last asked.
    pub(super) fn take_news(&mut self) -> bool {
        let mut news = false;
        self.each(|publisher| news |= publisher.take_news());
        news
    }

    /// The larger geometry that should take over from the one of a form.
    pub(super) fn growth(&self, form: Form) -> Option<Geometry> {
        match form {
            Form::Filter => self.filter.growth(),
            Form::Exact => self.exact.as_ref()?.growth(),
        }
    }

    /// When a batch is due, or whole hashes are no more to be published.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let exact = self.exact.as_ref();
        let batches = [Some(&self.filter), exact].map(|it| it?.poll_timeout());
        let ends = exact.and(self.unwanted_since);
        let ends = ends.map(|since| since + KEPT);
        batches.into_iter().chain([ends]).flatten().min()
    }

    /// Whether whole hashes are wanted and not published yet.
    pub(super) const fn exact_is_due(&self) -> bool {
        self.wanting > 0 && self.exact.is_none()
    }

    /// Publishes whole hashes from now on, with a table of all live blocks.
    pub(super) fn begin_exact(&mut self, table: Replacement) {
        self.last.0 = self.last.0.wrapping_add(1);
        let (incarnation, generation) = self.last;
        let epoch = Epoch::new(incarnation, generation);
        self.exact = Some(self.filter.beside(table, epoch));
    }

    /// Drops whole hashes that nobody has wanted for a while; says whether there were some.
    pub(super) fn end_exact(&mut self, now: Instant) -> bool {
        let over = |since| now.saturating_since(since) >= KEPT;
        self.unwanted_since.is_some_and(over) && self.exact.take().is_some()
    }

    /// Drops whole hashes of a pool that is no more: subscriptions to it may outlive it.
    pub(super) fn withdraw_exact(&mut self) {
        self.exact = None;
    }
}

/// A subscription that wants whole hashes of a pool, for as long as it lives.
pub(super) struct Wanted(Arc<Pool>);

impl Wanted {
    pub(super) fn new(pool: &Arc<Pool>) -> Self {
        let is_due = {
            let mut publishers = pool.publishers();
            publishers.wanting += 1;
            publishers.unwanted_since = None;
            publishers.exact_is_due()
        };
        if is_due {
            pool.wishes.notify_one();
        }
        Self(Arc::clone(pool))
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        let pool = &self.0;
        {
            let mut publishers = pool.publishers();
            publishers.wanting -= 1;
            if publishers.wanting > 0 {
                return;
            }
            publishers.unwanted_since = Some(pool.clock.now());
        }
        pool.wishes.notify_one();
    }
}
