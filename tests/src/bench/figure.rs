//! One figure, as a line of JSON.

use std::io::Write as _;

use serde::Serialize;

/// Which way is better.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    Less,
    More,
}

/// Something measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure<'a> {
    pub(super) bench: &'a str,
    pub(super) metric: &'a str,
    pub(super) value: f64,
    pub(super) unit: &'a str,
    pub(super) better: Better,
    /// What it should keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bound: Option<f64>,
    /// What a peer did in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<f64>,
}

impl<'a> Figure<'a> {
    /// A figure that had better be small.
    pub(super) const fn less(bench: &'a str, metric: &'a str, value: f64, unit: &'a str) -> Self {
        Self {
            bench,
            metric,
            value,
            unit,
            better: Better::Less,
            bound: None,
            peer: None,
        }
    }

    /// A figure that had better be large.
    pub(super) const fn more(bench: &'a str, metric: &'a str, value: f64, unit: &'a str) -> Self {
        Self {
            better: Better::More,
            ..Self::less(bench, metric, value, unit)
        }
    }

    /// What it should keep.
    pub(super) const fn within(mut self, bound: f64) -> Self {
        self.bound = Some(bound);
        self
    }

    /// Writes the line.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        let line = serde_json::to_string(self)?;
        Ok(writeln!(std::io::stdout().lock(), "{line}")?)
    }
}

/// The middle of some values.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
