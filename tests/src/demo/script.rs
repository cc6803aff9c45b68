//! The fixed script of `kvgrid-demo --once`, and what it claims.

use super::SYSTEM_TOKENS;
use super::print::{Printer, grouped, millis};
use crate::harness::{Conversation, Grid, Turn};

/// The edge that has the conversation, and the one that sees it once.
const HOME: &str = "eu-1";
const AWAY: &str = "ap-1";
/// The nearest site of each.
const NEAR_HOME: &str = "fra";
const NEAR_AWAY: &str = "icn";
/// The turn that the other edge is asked for.
const AWAY_TURN: usize = 5;
/// The turns until the warm site is stopped, and all of them.
const WARM_TURNS: usize = 6;
const TURNS: usize = 8;

/// Plays the script; says whether every claim was kept.
pub(super) async fn play(seed: u64, grid: &mut Grid, printer: &Printer) -> anyhow::Result<bool> {
    let mut conversation = Conversation::new(seed, SYSTEM_TOKENS)?;
    let mut turns = Vec::new();
    printer.turns_head();
    for number in 1..=TURNS {
        if number == WARM_TURNS + 1 {
            printer.line(&format!("        {NEAR_HOME} is stopped"));
            grid.stop_site(NEAR_HOME).await?;
        }
        let edge = if number == AWAY_TURN { AWAY } else { HOME };
        let turn = grid.turn(edge, &mut conversation).await?;
        printer.turn(number, &turn);
        // A client reads and thinks for longer than the news of its blocks takes.
        grid.until_applied(&turn.site).await?;
        turns.push(turn);
    }
    printer.heading("What this run showed");
    let mut all_kept = true;
    for (kept, claim) in claims(&turns) {
        printer.claim(kept, &claim);
        all_kept &= kept;
    }
    Ok(all_kept)
}

/// Each claim, and whether the turns keep it.
fn claims(turns: &[Turn]) -> Vec<(bool, String)> {
    let [first, warm @ .., cold, last] = turns else {
        return vec![(false, "there are turns".to_owned())];
    };
    let away = turns.iter().find(|turn| turn.asked == AWAY);
    vec![
        (
            first.site == NEAR_HOME && first.overlap_tokens == 0,
            format!(
                "Turn 1 is warm nowhere and goes to {NEAR_HOME}, the nearest: \
                 first token after {} ms",
                millis(first.first_token)
            ),
        ),
        (
            warm.iter()
                .all(|turn| turn.site == first.site && is_warm(turn)),
            format!(
                "Turns 2 to {WARM_TURNS} stay where the conversation is warm: \
                 first token after {} ms at best",
                millis(
                    warm.iter()
                        .map(|turn| turn.first_token)
                        .min()
                        .unwrap_or_default()
                )
            ),
        ),
        (
            away.is_some_and(|turn| turn.site == first.site && is_warm(turn)),
            format!(
                "{AWAY} never saw the conversation, yet sends turn {AWAY_TURN} across the ocean \
                 to {NEAR_HOME}, not next door to {NEAR_AWAY}: {} of {} tokens are warm there, \
                 first token after {} ms",
                grouped(away.map_or(0, |turn| turn.overlap_tokens)),
                grouped(away.map_or(0, |turn| turn.prompt_tokens)),
                away.map_or_else(String::new, |turn| millis(turn.first_token)),
            ),
        ),
        (
            cold.site != first.site && !cold.site.is_empty(),
            format!(
                "Once {NEAR_HOME} is stopped, turn {} goes on at {}, cold",
                WARM_TURNS + 1,
                cold.site
            ),
        ),
        (
            last.site == cold.site && is_warm(last),
            format!("Turn {TURNS} finds {} warm", last.site),
        ),
        (
            turns
                .iter()
                .all(|turn| turn.overlap_tokens == turn.cached_tokens),
            "What the edges expected to be cached is what the engines found cached".to_owned(),
        ),
    ]
}

/// Whether at least the system prompt was warm, but for its last block.
fn is_warm(turn: &Turn) -> bool {
    turn.overlap_tokens + 100 > SYSTEM_TOKENS as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn turn(asked: &str, site: &str, overlap: u64) -> Turn {
        Turn {
            asked: asked.into(),
            site: site.into(),
            overlap_tokens: overlap,
            prompt_tokens: 20_050,
            cached_tokens: overlap,
            first_token: Duration::from_millis(20),
            decision: None,
            answer: String::new(),
        }
    }

    /// A run as it should be.
    fn good() -> Vec<Turn> {
        let mut turns = vec![turn(HOME, "fra", 0)];
        turns.extend((2..=6).map(|n| {
            let edge = if n == AWAY_TURN { AWAY } else { HOME };
            turn(edge, "fra", 20_000)
        }));
        turns.extend([turn(HOME, "iad", 0), turn(HOME, "iad", 20_000)]);
        turns
    }

    fn broken(turns: &[Turn]) -> usize {
        claims(turns).iter().filter(|(kept, _)| !kept).count()
    }

    #[test]
    fn a_good_run_keeps_every_claim() {
        assert_eq!(broken(&good()), 0);
    }

    #[test]
    fn each_turn_that_goes_wrong_breaks_a_claim() {
        for index in 0..TURNS {
            let mut turns = good();
            turns[index].site = "icn".into();
            turns[index].overlap_tokens = 7;
            assert!(broken(&turns) > 0, "turn {}", index + 1);
        }
    }
}
