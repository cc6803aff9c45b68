//! Metrics of model cards: which are in use, and how their prompts are tokenised.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kvgrid_prompt::{CardState, Cards, EncoderKind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// Reads the cards when it is asked.
pub(crate) struct CardMetrics(pub(crate) Arc<Cards>);

impl fmt::Debug for CardMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CardMetrics")
    }
}

impl Collector for CardMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut counts = BTreeMap::from(STATES.map(|state| (state, 0_i64)));
        for (_, state) in self.0.list() {
            *counts.entry(state_name(&state)).or_default() += 1;
        }
        let help = "Model cards, by what became of them: with the fast tokenizer, with the slow \
                    one, loading, or not usable";
        let mut family = encoder.encode_descriptor("cards", help, None, MetricType::Gauge)?;
        for (state, count) in counts {
            let labels = [("state", state)];
            ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

const STATES: [&str; 4] = ["fast", "slow", "loading", "refused"];

fn state_name(state: &CardState) -> &'static str {
    match state {
        CardState::Loading => "loading",
        CardState::Refused(_) => "refused",
        CardState::Ready(prompter) => match prompter.encoder() {
            EncoderKind::Fast => "fast",
            EncoderKind::Slow { .. } => "slow",
        },
    }
}

#[cfg(test)]
mod tests {
    use kvgrid_prompt::CardsConfig;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn every_state_is_shown_even_while_no_card_is_in_it() {
        let cards = Arc::new(Cards::new(CardsConfig::default()).unwrap());
        let mut registry = Registry::with_prefix("kvgrid_edge");
        registry.register_collector(Box::new(CardMetrics(Arc::clone(&cards))));
        cards.offer([7; 32], b"no card".to_vec());
        while matches!(cards.state(&[7; 32]), Some(CardState::Loading)) {
            std::thread::yield_now();
        }

        let mut page = String::new();
        encode(&mut page, &registry).unwrap();

        assert!(
            page.contains("kvgrid_edge_cards{state=\"refused\"} 1"),
            "{page}"
        );
        assert!(
            page.contains("kvgrid_edge_cards{state=\"fast\"} 0"),
            "{page}"
        );
    }
}
