//! How pools are fed, for operators at edges.

use std::sync::Arc;
use std::time::Duration;

use kvgrid_core::event::Refusal;
use kvgrid_core::view::PoolFacts;
use tokio::sync::watch;

use super::PoolReport;
use crate::publish::Facts;

/// Pause between two tellings: counts of a busy pool change all the time.
const PAUSE: Duration = Duration::from_secs(1);

/// Tells how the pools are fed, whenever that changes, until they end.
pub(crate) async fn tell(
    mut reports: watch::Receiver<Vec<PoolReport>>,
    facts: watch::Sender<Facts>,
) {
    reports.mark_changed();
    while reports.changed().await.is_ok() {
        let now: Vec<_> = {
            let reports = reports.borrow_and_update();
            let of_report = |report: &PoolReport| {
                let facts = facts_of(report);
                let pools = report.pools.clone().into_iter();
                pools.map(move |pool| (pool, facts.clone()))
            };
            reports.iter().flat_map(of_report).collect()
        };
        facts.send_if_modified(|told| {
            let changed = **told != now;
            if changed {
                *told = Arc::new(now);
            }
            changed
        });
        tokio::time::sleep(PAUSE).await;
    }
}

/// Of several pools of one source, which are counted together, each gets the sum.
fn facts_of(report: &PoolReport) -> PoolFacts {
    let refused = Refusal::ALL.map(|reason| (reason.name(), report.refused.of(reason)));
    let refused = refused.into_iter().filter(|(_, count)| *count > 0);
    PoolFacts {
        accepted: Some(report.blocks),
        refused: refused
            .map(|(reason, count)| (reason.into(), count))
            .collect(),
        refused_blocks: Some(report.stats.refused),
        copies: report.counts_copies.then_some(report.stats.copies),
        orphans: report.counts_orphans.then_some(report.stats.orphans as u64),
        gaps: Some(report.gaps),
        repairs: report.repairs,
        heard_at: report.heard_at,
    }
}
