//! Properties of decisions over random grids, against a plain model.

use proptest::prelude::*;

use super::super::score::upload_ms;
use super::super::tiebreak::band_ms;
use super::*;
use crate::view::plan::Path;

/// One site of a random grid, in plain numbers.
#[derive(Clone, Debug)]
struct Plain {
    rtt_ms: u64,
    depth: u32,
    queued: u64,
    kv_percent: u8,
    obstacle: u8,
}

impl Plain {
    /// What the site costs, by the formula on paper.
    fn cost_ms(&self, prompt_tokens: u32) -> f64 {
        let blocks = self.depth.min((prompt_tokens - 1) / 16);
        let prefill = f64::from(prompt_tokens - blocks * 16) * 0.02;
        self.rtt_ms as f64 + self.queued as f64 * 0.02 + prefill
    }

    fn overlap(&self, prompt_tokens: u32) -> u32 {
        self.depth.min((prompt_tokens - 1) / 16) * 16
    }

    const fn eligible(&self) -> bool {
        self.obstacle > 3
    }

    fn site(&self, name: &str) -> Site {
        let site = Site::new(name, self.rtt_ms)
            .warm(self.depth)
            .queued(self.queued)
            .kv_use(f32::from(self.kv_percent) / 100.0);
        match self.obstacle {
            0 => site.dead(),
            1 => site.not_ready(),
            2 => site.draining(),
            3 => site.serves("other"),
            _ => site,
        }
    }
}

fn plain() -> impl Strategy<Value = Plain> {
    (0_u64..300, 0_u32..60, 0_u64..20_000, 0_u8..=100, 0_u8..20).prop_map(
        |(rtt_ms, depth, queued, kv_percent, obstacle)| Plain {
            rtt_ms,
            depth,
            queued,
            kv_percent,
            obstacle,
        },
    )
}

/// Sites close to one another, where the tiebreak has work to do.
fn crowd() -> impl Strategy<Value = Vec<Plain>> {
    let near = plain().prop_map(|site| Plain {
        rtt_ms: site.rtt_ms % 12,
        depth: site.depth % 4,
        queued: site.queued % 300,
        ..site
    });
    prop_oneof![
        prop::collection::vec(plain(), 1..8),
        prop::collection::vec(near, 1..8),
    ]
}

fn name(index: usize) -> String {
    format!("s{index}")
}

fn case(prompt_tokens: u32, sites: &[Plain]) -> Case {
    let built = sites.iter().enumerate();
    let built = built.map(|(index, site)| site.site(&name(index))).collect();
    Case::new(prompt_tokens, built)
}

fn index_of(site: &SiteId) -> usize {
    site.as_str()[1..].parse().unwrap()
}

proptest! {
    #[test]
    fn the_choice_is_eligible_and_the_deepest_of_the_band(
        sites in crowd(),
        prompt_tokens in 1_u32..1000,
        seed: u64,
    ) {
        let decision = case(prompt_tokens, &sites).decide(seed);

        let eligible: Vec<&Plain> = sites.iter().filter(|site| site.eligible()).collect();
        let Ok(choice) = decision.outcome else {
            prop_assert!(eligible.is_empty());
            return Ok(());
        };
        let chosen = &sites[index_of(&choice.site)];
        prop_assert!(chosen.eligible());
        let cost = |site: &Plain| site.cost_ms(prompt_tokens);
        let least = eligible.iter().map(|site| cost(site)).fold(f64::INFINITY, f64::min);
        let band = least + band_ms(least, &Policy::default()) + 1e-6;
        prop_assert!(cost(chosen) <= band);
        prop_assert_eq!(choice.overlap_tokens, chosen.overlap(prompt_tokens));
        let clearly_in = |site: &&&Plain| cost(site) <= band - 2e-6;
        for other in eligible.iter().filter(clearly_in) {
            prop_assert!(other.overlap(prompt_tokens) <= choice.overlap_tokens);
        }
    }

    #[test]
    fn each_site_is_explained_by_the_formula(
        sites in crowd(),
        prompt_tokens in 1_u32..1000,
    ) {
        let decision = case(prompt_tokens, &sites).decide(1);

        prop_assert_eq!(decision.candidates().len(), sites.len());
        for candidate in decision.candidates() {
            let plain = &sites[index_of(candidate.site)];
            match candidate.score() {
                Some(score) => {
                    prop_assert!(plain.eligible());
                    prop_assert!((score.total_ms - plain.cost_ms(prompt_tokens)).abs() < 1e-6);
                }
                None => prop_assert!(!plain.eligible()),
            }
        }
    }

    #[test]
    fn more_overlap_never_makes_a_site_worse(
        sites in crowd(),
        more in 1_u32..40,
        prompt_tokens in 1_u32..1000,
    ) {
        let mut warmer = sites.clone();
        warmer[0].depth += more;
        let total = |sites: &[Plain]| {
            let decision = case(prompt_tokens, sites).decide(1);
            let score = decision.candidates().next().unwrap().score().map(|score| score.total_ms);
            let chosen = decision.outcome.ok().map(|choice| index_of(&choice.site));
            (score, chosen)
        };

        let (before, _) = total(&sites);
        let (after, chosen) = total(&warmer);
        prop_assert_eq!(before.is_some(), after.is_some());
        if let (Some(before), Some(after)) = (before, after) {
            prop_assert!(after <= before);
        }
        // Alone in the band before, it is taken after, whatever the draw.
        let others = sites.iter().skip(1).filter(|site| site.eligible());
        let rival = others.map(|site| site.cost_ms(prompt_tokens)).fold(f64::INFINITY, f64::min);
        if let Some(before) = before
            && before + band_ms(before, &Policy::default()) < rival
        {
            prop_assert_eq!(chosen, Some(0));
        }
    }

    #[test]
    fn excluding_the_choice_moves_to_another_site_until_none_is_left(
        sites in crowd(),
        prompt_tokens in 1_u32..1000,
        seed: u64,
    ) {
        let mut case = case(prompt_tokens, &sites);

        while let Ok(choice) = case.decide(seed).outcome {
            prop_assert!(!case.exclude.contains(&choice.site));
            case.exclude.push(choice.site);
        }

        let eligible = sites.iter().filter(|site| site.eligible()).count();
        prop_assert_eq!(case.exclude.len(), eligible);
    }

    #[test]
    fn the_same_seed_gives_the_same_decision(sites in crowd(), seed: u64) {
        let case = case(500, &sites);

        prop_assert_eq!(case.decide(seed), case.decide(seed));
    }

    #[test]
    fn upload_takes_longer_for_more_bytes(
        bytes in 0_u64..10_000_000,
        more in 0_u64..10_000_000,
        rtt_ms in 0_u64..400,
        rate in prop::option::of(1e3_f64..1e10),
        window in prop::option::of(0_u64..10_000_000),
    ) {
        let mut site = Site::new("fra", rtt_ms).build();
        site.relays[0].path_rate = rate;
        site.relays[0].window = window;
        let upload = |bytes| upload_ms(bytes, &Path::to(&site.relays[0]));

        prop_assert!(upload(bytes).is_finite());
        prop_assert!(upload(bytes) <= upload(bytes + more) + 1e-6);
    }
}
