//! How wrong the depths are that a search has found.

use crate::bench::figure::Figure;

/// Depths found, against those that are right.
#[derive(Debug, Default)]
pub(super) struct Errors {
    pub(super) depths: u64,
    /// Blocks found too many, of all depths together.
    pub(super) over: u64,
    /// Of one depth at most.
    pub(super) most_over: u32,
    /// Depths that were too small.
    pub(super) under: u64,
}

impl Errors {
    pub(super) fn add(&mut self, found: &[u32], right: &[u32]) {
        for (found, right) in found.iter().zip(right) {
            let over = found.saturating_sub(*right);
            self.depths += 1;
            self.over += u64::from(over);
            self.most_over = self.most_over.max(over);
            self.under += u64::from(found < right);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.depths += other.depths;
        self.over += other.over;
        self.most_over = self.most_over.max(other.most_over);
        self.under += other.under;
    }

    fn mean_over(&self) -> f64 {
        self.over as f64 / self.depths as f64
    }

    /// Prints what was found, beside what a peer has found of the same prompts.
    pub(super) fn print(&self, name: &str, peer: Option<&Self>) -> anyhow::Result<()> {
        let print = |figure: &str, value: fn(&Self) -> f64, unit: &str, bound: Option<f64>| {
            let metric = format!("{figure}_{name}");
            Figure {
                bound,
                peer: peer.map(value),
                ..Figure::less("decision", &metric, value(self), unit)
            }
            .print()
        };
        Figure::more(
            "decision",
            &format!("depths_{name}"),
            self.depths as f64,
            "depths",
        )
        .print()?;
        print("overestimate_mean", Self::mean_over, "blocks", Some(0.001))?;
        print(
            "overestimate_most",
            |it| f64::from(it.most_over),
            "blocks",
            Some(2.0),
        )?;
        print("underestimates", |it| it.under as f64, "depths", Some(0.0))
    }
}
