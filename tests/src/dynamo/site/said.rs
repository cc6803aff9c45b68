//! What a site's processes say of their own: workers on their pages, frontends in their logs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::{Instant, sleep};

use super::{POLL, Site, metrics_url};

/// How long a line may take to be written.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineRequests {
    /// Those that are computed.
    pub running: u64,
    /// Those that wait.
    pub waiting: u64,
}

impl Site {
    /// Waits until the first frontend has logged this.
    pub async fn until_frontend_says(&self, text: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let frontend = self.frontends.first().context("no frontend")?;
        while !std::fs::read_to_string(&frontend.log)?.contains(text) {
            ensure!(Instant::now() < deadline, "it doesn't say {text}");
            sleep(POLL).await;
        }
        Ok(())
    }

    /// The requests that the engines have now.
    pub async fn engine_requests(&self) -> Result<EngineRequests> {
        let mut sum = EngineRequests::default();
        for worker in &self.ports.workers {
            let page = self.client.get(&metrics_url(worker.system)).await?;
            let page = page.text();
            sum.running += total(&page, "vllm:num_requests_running")?;
            sum.waiting += total(&page, "vllm:num_requests_waiting")?;
        }
        Ok(sum)
    }
}

/// The sum of a metric's samples.
fn total(page: &str, metric: &str) -> Result<u64> {
    let lines = page.lines().filter(|line| {
        let rest = line.strip_prefix(metric);
        rest.is_some_and(|rest| rest.starts_with('{'))
    });
    let values = lines.map(|line| -> Result<u64> {
        let (_, value) = line.rsplit_once(' ').context("a line without a value")?;
        Ok(value.parse()?)
    });
    values.sum()
}
