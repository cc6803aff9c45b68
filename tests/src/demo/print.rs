//! What the demo shows.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{Grid, GridPlan, MODEL, Turn};

/// Writes to standard output; in colour when that is a terminal.
#[derive(Debug)]
pub(super) struct Printer {
    colour: bool,
    /// Whether nobody reads any more.
    unread: AtomicBool,
}

impl Default for Printer {
    fn default() -> Self {
        Self {
            colour: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            unread: AtomicBool::new(false),
        }
    }
}

const BOLD: &str = "1";
const DIM: &str = "2";
const GREEN: &str = "32";
const RED: &str = "31";

impl Printer {
    /// A line. A reader that is gone, such as `head`, is no reason to fail.
    pub(super) fn line(&self, text: &str) {
        if writeln!(io::stdout(), "{text}").is_err() {
            self.unread.store(true, Ordering::Relaxed);
        }
    }

    /// Whether nobody reads any more.
    pub(super) fn is_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    fn painted(&self, style: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{style}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// What is about to be started.
    pub(super) fn plan(&self, plan: &GridPlan, seed: u64) {
        let title = "kvgrid: three emulated sites, two edges, an ocean between them";
        self.line(&self.painted(BOLD, title));
        self.line("");
        let mut head = format!("  {:<6}{:<8}", "site", "region");
        for edge in &plan.edges {
            head.push_str(&format!("{:>14}", format!("from {}", edge.name)));
        }
        self.line(&self.painted(DIM, &head));
        for site in &plan.sites {
            let mut row = format!("  {:<6}{:<8}", site.name, site.region);
            for edge in &plan.edges {
                let delay = edge.links.get(&site.name).map(|link| link.delay);
                let ms = (delay.unwrap_or_default() * 2).as_millis();
                row.push_str(&format!("{:>14}", format!("{ms} ms")));
            }
            self.line(&row);
        }
        self.line("");
        self.line(&format!(
            "Starting {} processes, with certificates made on the spot (seed {seed}) ...",
            plan.sites.len() * 2 + plan.edges.len()
        ));
        self.line("");
    }

    /// Where clients go.
    pub(super) fn addresses(&self, grid: &Grid, plan: &GridPlan) -> anyhow::Result<()> {
        for edge in &plan.edges {
            let (url, admin) = (grid.url(&edge.name)?, grid.admin_url(&edge.name)?);
            let seen = self.painted(DIM, &format!("what it knows: {admin}/kvgrid/v1/sites"));
            self.line(&format!(
                "  {}  {url}  {seen}",
                self.painted(BOLD, &edge.name)
            ));
        }
        let Some(edge) = plan.edges.first() else {
            return Ok(());
        };
        let url = grid.url(&edge.name)?;
        self.line("");
        self.line("Try it:");
        self.line("");
        self.line(&format!(
            "  curl -i {url}/v1/chat/completions -H 'content-type: application/json' \\"
        ));
        self.line(&format!(
            "    -d '{{\"model\":\"{MODEL}\",\"max_tokens\":8,\
             \"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'"
        ));
        self.line("");
        Ok(())
    }

    /// The head of a table of turns.
    pub(super) fn turns_head(&self) {
        let head = format!(
            "  {:>4}  {:<6}  {:<5}  {:>8} of {:>8}  {:>11}",
            "turn", "asked", "site", "cached", "prompt", "first token"
        );
        self.line(&self.painted(DIM, &head));
    }

    /// Where a turn went, and why.
    pub(super) fn turn(&self, number: usize, turn: &Turn) {
        self.line(&format!(
            "  {number:>4}  {:<6}  {}  {:>8} of {:>8}  {:>8} ms",
            turn.asked,
            self.painted(BOLD, &format!("{:<5}", turn.site)),
            grouped(turn.cached_tokens),
            grouped(turn.prompt_tokens),
            millis(turn.first_token),
        ));
        // The decision's line names one candidate after the other; here each has its own.
        let reasons = turn.decision.iter().flat_map(|line| line.split("; "));
        for reason in reasons {
            self.line(&self.painted(DIM, &format!("        {reason}")));
        }
    }

    /// Whether a claim was kept.
    pub(super) fn claim(&self, kept: bool, claim: &str) {
        let mark = if kept {
            self.painted(GREEN, "kept  ")
        } else {
            self.painted(RED, "BROKEN")
        };
        self.line(&format!("  {mark}  {claim}"));
    }

    /// A heading.
    pub(super) fn heading(&self, text: &str) {
        self.line("");
        self.line(&self.painted(BOLD, text));
        self.line("");
    }
}

pub(super) fn millis(time: Duration) -> String {
    grouped(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// With a comma before every third digit.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_third_digit_has_a_comma_before_it() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(20_031), "20,031");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
