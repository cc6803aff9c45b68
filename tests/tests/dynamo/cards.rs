//! Sites whose workers don't all have one card, or not always the same.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use kvgrid_tests::dynamo::{Answer, Dynamo, Grid, KvSource, OtherWorker, SiteOptions};
use kvgrid_tests::harness::{Known, KnownApart, KnownModel, MODEL};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::header;

const PATIENCE: Duration = Duration::from_secs(60);
/// A subscription is acknowledged by nobody: how long it takes at most until a worker that is
/// followed is heard.
const HEARD: Duration = Duration::from_secs(1);
const LARGE: NonZeroU32 = NonZeroU32::new(32).unwrap();
const USUAL: NonZeroU32 = NonZeroU32::new(16).unwrap();
const TEMPLATE: &str =
    "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}";
const CHAT: &str = "/v1/chat/completions";

async fn one_site(dynamo: &Dynamo, change: impl FnOnce(&mut SiteOptions)) -> Grid {
    let mut options = SiteOptions {
        source: KvSource::DynamoEvents,
        ..SiteOptions::named("fra")
    };
    change(&mut options);
    let program = Path::new(env!("CARGO_BIN_EXE_kvgrid-demo"));
    Grid::start(dynamo, vec![options], program).await.unwrap()
}

/// Prompts of some conversations, each longer from one time to the next.
fn chat(number: usize) -> Value {
    let who = number % 4;
    let text = format!("{who} ").repeat(60) + &"and so on ".repeat(number / 4);
    json!({"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": text}]})
}

/// What the edge told of an answered request, and what the site had cached.
fn overlaps(answer: &Answer) -> (u64, u64) {
    let told = header(answer, "x-kvgrid-overlap-tokens").parse().unwrap();
    (told, answer.cached_tokens().unwrap())
}

/// Asks over and over until the edge knows something that is answered like this; no answer may
/// find less cached than the edge took it to find.
async fn ask_until(grid: &Grid, number: &mut usize, done: impl Fn(&Known, u64) -> bool) -> Known {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = grid.post(CHAT, &chat(*number)).await.unwrap();
        let known = grid.known().await.unwrap();
        if answer.status == StatusCode::OK {
            *number += 1;
            let (told, cached) = overlaps(&answer);
            assert!(told <= cached, "{:?}", answer.headers);
            if done(&known, told) {
                return known;
            }
        }
        assert!(Instant::now() < deadline, "{answer:?} {known:#?}");
    }
}

/// Waits until something has been so for as long as it takes to hear whom the relay follows: what
/// a worker says before is said for nobody, and its pool knows only part.
async fn until_heard(grid: &Grid, is: impl Fn(&Known) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut since = Instant::now();
    while since.elapsed() < HEARD {
        let known = grid.known().await.unwrap();
        if !is(&known) {
            since = Instant::now();
        }
        assert!(Instant::now() < deadline, "{known:#?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Asks all through a change of the workers. Those that were asked before they were heard are
/// started again, if their pool says so.
async fn ask_through(grid: &mut Grid, number: &mut usize, is: impl Fn(&Known) -> bool) {
    for _ in 0..8 {
        ask_until(grid, number, |known, _| is(known)).await;
    }
    if !grid.known().await.unwrap().complete("fra") {
        let site = grid.site("fra");
        site.stop_workers().await;
        site.start_workers().unwrap();
        until_heard(grid, |known| is(known) && known.complete("fra")).await;
    }
}

/// One request after the other, when all is known of those before it.
async fn ask_exactly(grid: &mut Grid, number: &mut usize, requests: usize) {
    for _ in 0..requests {
        grid.until_applied().await.unwrap();
        let answer = grid.post(CHAT, &chat(*number)).await.unwrap();
        *number += 1;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let (told, cached) = overlaps(&answer);
        assert_eq!(told, cached, "{:?}", answer.headers);
        let prompt: Option<u64> = header(&answer, "x-kvgrid-prompt-tokens").parse().ok();
        assert_eq!(prompt, answer.prompt_tokens());
    }
}

fn model(known: &Known) -> &KnownModel {
    &known.site("fra").unwrap().models[0]
}

fn digest(known: &Known) -> Option<String> {
    let card = model(known).card.as_ref();
    card.map(|card| card.digest.clone())
}

#[tokio::test]
async fn dynamo_model_that_changes_its_card_is_followed_as_it_is() {
    let test = "dynamo_model_that_changes_its_card_is_followed_as_it_is";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = one_site(&dynamo, |_| {}).await;
    let mut number = 0;
    ask_exactly(&mut grid, &mut number, 12).await;

    for (size, template) in [
        (LARGE, None),
        (LARGE, Some(TEMPLATE)),
        (USUAL, Some(TEMPLATE)),
        (USUAL, None),
    ] {
        let before = digest(&grid.known().await.unwrap());
        let site = grid.site("fra");
        site.change_workers(size, template).await.unwrap();
        let changed = |known: &Known| digest(known) != before;
        ask_through(&mut grid, &mut number, changed).await;
        let new = |known: &Known, told| changed(known) && known.complete("fra") && told > 0;
        ask_until(&grid, &mut number, new).await;
        ask_exactly(&mut grid, &mut number, 12).await;
    }
    grid.site("fra").stop_workers().await;
    grid.until("the model is gone", PATIENCE, |known| !model(known).ready)
        .await
        .unwrap();
    let without = grid.models().await.unwrap();
    grid.site("fra").start_workers().unwrap();
    until_heard(&grid, |known| known.complete("fra")).await;
    ask_until(&grid, &mut number, |known, told| {
        known.complete("fra") && told > 0
    })
    .await;
    ask_exactly(&mut grid, &mut number, 12).await;

    assert_eq!(without, [""; 0]);
}

#[tokio::test]
async fn dynamo_workers_with_another_card_are_told_apart_until_they_serve() {
    let test = "dynamo_workers_with_another_card_are_told_apart_until_they_serve";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let other = OtherWorker {
        component: "backend",
        block_size: LARGE,
        chat_template: Some(TEMPLATE),
    };
    let mut grid = one_site(&dynamo, |options| options.others = vec![other]).await;
    let mut number = 0;
    let first = digest(&grid.known().await.unwrap());

    grid.site("fra").start_other(0).unwrap();
    let line = format!("workers_apart{{model=\"{MODEL}\"}} 1");
    grid.until_relay_says("fra", &[&line]).await.unwrap();
    let apart = |known: &Known| !model(known).apart.is_empty();
    let mixed = grid.until("the other is told", PATIENCE, apart).await;
    let mixed = mixed.unwrap();
    for _ in 0..40 {
        ask_until(&grid, &mut number, |known, _| digest(known) == first).await;
    }
    let warm = ask_until(&grid, &mut number, |_, told| told > 0).await;
    grid.site("fra").stop_workers().await;
    let over = ask_until(&grid, &mut number, |known, told| {
        digest(known) != first && told > 0 && told % 32 == 0
    })
    .await;

    let differs = ["kv_cache_block_size", "prompt_formatter"];
    let differs = differs.map(str::to_owned).to_vec();
    let workers = 1;
    assert_eq!(model(&mixed).apart, [KnownApart { workers, differs }]);
    assert_eq!(warm.site("fra").unwrap().pools.len(), 1, "{warm:#?}");
    assert_eq!(over.site("fra").unwrap().pools.len(), 1, "{over:#?}");
    assert_eq!(model(&over).apart, []);
}

#[tokio::test]
async fn dynamo_endpoints_of_one_model_are_a_pool_each() {
    let test = "dynamo_endpoints_of_one_model_are_a_pool_each";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let other = OtherWorker {
        component: "spare",
        block_size: USUAL,
        chat_template: None,
    };
    let mut grid = one_site(&dynamo, |options| options.others = vec![other]).await;
    grid.site("fra").start_other(0).unwrap();
    let two = |known: &Known| {
        let pools = &known.site("fra").unwrap().pools;
        pools.len() == 2 && pools.iter().all(|pool| pool.completeness == "whole")
    };
    until_heard(&grid, two).await;

    // Dynamo's frontend takes an endpoint by chance, and what is cached at one is not at the other.
    let question = chat(0);
    let (mut missed, mut hits) = (0, 0);
    for number in 0..40 {
        let least = if number < 2 { 0 } else { 4 };
        let known = |known: &Known| known.blocks("fra") >= least;
        grid.until("the first is told", PATIENCE, known)
            .await
            .unwrap();
        let answer = grid.post(CHAT, &question).await.unwrap();
        let (told, cached) = overlaps(&answer);
        assert!(told >= cached || number < 2, "{:?}", answer.headers);
        missed += usize::from(told > 0 && cached == 0);
        hits += usize::from(told > 0 && cached == told);
    }
    let known = grid.known().await.unwrap();

    let pools = &known.site("fra").unwrap().pools;
    assert!(pools.iter().all(|pool| pool.blocks > 0), "{pools:#?}");
    assert!(
        missed <= 2,
        "each endpoint has it after it was asked: {missed}"
    );
    assert!(hits >= 36, "{hits}");
}

#[tokio::test]
async fn dynamo_other_names_of_a_model_are_the_model() {
    let test = "dynamo_other_names_of_a_model_are_the_model";
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let names = vec!["org/tiny", "small"];
    let mut grid = one_site(&dynamo, |options| options.aliases = names.clone()).await;
    grid.until("all names are known", PATIENCE, |known| {
        model(known).aliases.len() == 2
    })
    .await
    .unwrap();
    let all = [MODEL, "org/tiny", "small"];

    for number in 0..24 {
        let mut question = chat(number % 8);
        question["model"] = all[number % 3].into();
        grid.until_applied().await.unwrap();
        let answer = grid.post(CHAT, &question).await.unwrap();

        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let (told, cached) = overlaps(&answer);
        assert_eq!(told, cached, "{:?}", answer.headers);
        assert!(told > 0 || number < 4, "request {number}: {answer:?}");
        let prompt: Option<u64> = header(&answer, "x-kvgrid-prompt-tokens").parse().ok();
        assert_eq!(prompt, answer.prompt_tokens());
    }

    let mut listed = grid.models().await.unwrap();
    listed.sort_unstable();
    assert_eq!(listed, ["org/tiny", "small", MODEL]);
    let known = grid.known().await.unwrap();
    let plain = known.parity("fra", "plain").unwrap();
    assert!(plain.tokens.compared >= 24 && plain.tokens.different == 0);
}
