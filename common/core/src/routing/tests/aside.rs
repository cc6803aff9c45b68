//! Sites that make other tokens of a request than this edge does.

use super::*;

fn near_and_warm() -> Case {
    let warm = Site::new("iad", 30).warm(600);
    Case::new(10_000, vec![Site::new("fra", 4), warm])
}

#[test]
fn a_site_that_is_set_aside_is_weighed_as_if_no_tokens_were_known() {
    let mut case = near_and_warm();
    assert_eq!(case.chosen(), "iad");

    case.aside = vec![SiteId::new("iad").unwrap()];

    let decision = case.decide(1);
    let iad = decision.candidates().nth(1).unwrap().score().unwrap();
    assert_eq!(iad.overlap, Overlap::default());
    assert_eq!(case.chosen(), "fra");
    let told = decision.to_string();
    assert!(told.ends_with("tokens, set aside"), "{told}");
}

#[test]
fn a_choice_that_is_set_aside_knows_no_tokens() {
    let mut case = near_and_warm();
    case.aside = ["fra", "iad"].map(|name| SiteId::new(name).unwrap()).into();

    let choice = case.decide(1).outcome.unwrap();

    assert_eq!(choice.prompt_tokens, None);
    assert_eq!(choice.overlap_tokens, 0);
}

#[test]
fn where_all_sites_are_set_aside_prompts_that_begin_alike_meet() {
    let names = ["a", "b", "c", "d"];
    let mut case = Case::new(1_000, names.map(|name| Site::new(name, 4)).into());
    case.aside = names.map(|name| SiteId::new(name).unwrap()).into();

    let first = case.chosen();

    for seed in 0..20 {
        let choice = case.decide(seed).outcome.unwrap();
        assert_eq!(choice.site.as_str(), first);
        assert_eq!(choice.pick, Pick::Affine(4));
    }
}

#[test]
fn what_each_pool_holds_is_told_apart_whether_or_not_it_is_believed() {
    let site = Site::new("iad", 30).warm(10).warm_on_disk(20);
    let mut case = Case::new(1_000, vec![site, Site::new("fra", 4).without_card()]);
    let model = ModelName::new(MODEL).unwrap().id();
    case.chains.hash_for(&case.view, model);
    let at = |site: &str, chains| {
        let site = case.view.site(&SiteId::new(site).unwrap()).unwrap();
        held(site, model, chains)
    };

    let iad = at("iad", &case.chains).unwrap();
    assert_eq!(iad.pools, [(PoolId(1), 160), (PoolId(2), 320)]);
    assert_eq!((iad.prompt_tokens, iad.block_size), (1_000, 16));
    assert!(iad.beginning.is_some());
    assert_eq!(at("fra", &case.chains), None);
}

#[test]
fn a_prompt_of_one_block_has_no_beginning_to_be_known_by() {
    let mut case = Case::new(31, vec![Site::new("fra", 4)]);
    let model = ModelName::new(MODEL).unwrap().id();
    case.chains.hash_for(&case.view, model);

    let held = held(&case.view.sites()[0], model, &case.chains).unwrap();

    assert_eq!(held.beginning, None);
}
