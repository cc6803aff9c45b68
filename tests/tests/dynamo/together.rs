//! Requests that come at once: what the edge knew when it decided, and what the site had when
//! it computed, are then not the same moment.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use kvgrid_tests::dynamo::{Answer, Dynamo, Grid, Heard, Held, KvSource, Place};

use crate::prompts::{Tokens, depth, overlap};
use crate::traffic::{Question, Traffic, requests};
use crate::{header, two_sites_with};

/// How many come at once.
const AT_ONCE: usize = 8;

#[tokio::test]
async fn dynamo_overlap_of_eight_at_once_is_what_the_site_had_cached() {
    overlap_of_eight_at_once_is_what_the_site_had_cached(
        "dynamo_overlap_of_eight_at_once_is_what_the_site_had_cached",
        KvSource::EngineZmq,
    )
    .await;
}

#[tokio::test]
async fn dynamo_overlap_of_eight_at_once_is_what_the_site_had_cached_by_dynamos_events() {
    overlap_of_eight_at_once_is_what_the_site_had_cached(
        "dynamo_overlap_of_eight_at_once_is_what_the_site_had_cached_by_dynamos_events",
        KvSource::DynamoEvents,
    )
    .await;
}

#[tokio::test]
async fn dynamo_overlap_of_eight_at_once_is_what_the_site_had_cached_by_dynamos_relay() {
    overlap_of_eight_at_once_is_what_the_site_had_cached(
        "dynamo_overlap_of_eight_at_once_is_what_the_site_had_cached_by_dynamos_relay",
        KvSource::DynamoRelay,
    )
    .await;
}

#[tokio::test]
async fn dynamo_overlap_of_eight_at_once_is_what_the_site_had_cached_by_nats_and_etcd() {
    overlap_of_eight_at_once_is_what_the_site_had_cached(
        "dynamo_overlap_of_eight_at_once_is_what_the_site_had_cached_by_nats_and_etcd",
        KvSource::DynamoNats,
    )
    .await;
}

async fn overlap_of_eight_at_once_is_what_the_site_had_cached(test: &str, source: KvSource) {
    let Some(dynamo) = Dynamo::for_test(test) else {
        return;
    };
    let mut grid = two_sites_with(&dynamo, |options| {
        options.source = source;
        (options.workers, options.ranks) = (2, 2);
        options.blocks = 400;
    })
    .await;
    let tokens = Tokens::new();
    let mut clients: Vec<_> = (0..AT_ONCE)
        .map(|client| Traffic::new(100 + u64::try_from(client).unwrap(), &tokens))
        .collect();
    let mut witness = Witness::of(&mut grid).await;
    let (mut asked, mut chosen, mut differ) = (0, 0, Vec::new());

    while asked < requests() {
        let questions: Vec<Question> = clients.iter_mut().map(Traffic::next).collect();
        let answers = ask_at_once(&grid, &questions).await;
        grid.until_applied().await.unwrap();
        let round = witness.take_round(&mut grid).await;
        for (question, answer) in questions.iter().zip(&answers) {
            asked += 1;
            let served = Served::of(answer);
            if served.told == served.cached {
                continue;
            }
            let prompt = tokens.of(question);
            assert!(
                round.explains(&served, &prompt),
                "request {asked}: {:?} {served:?} {:?}, {}",
                question.kind,
                answer.headers,
                round.began(&served, &prompt),
            );
            match round.is_sites_choice(&served, &prompt) {
                true => chosen += 1,
                false => differ.push((question.kind, served)),
            }
        }
    }

    // Else there was not much to compare.
    assert!(chosen * 5 < asked, "{chosen} of {asked}");
    assert!(differ.len() * 100 <= asked, "of {asked}: {differ:#?}");
}

async fn ask_at_once(grid: &Grid, questions: &[Question]) -> Vec<Answer> {
    let asked = questions
        .iter()
        .map(|question| grid.post(question.path, &question.body));
    let answers = futures_util::future::join_all(asked).await;
    let answers: Vec<Answer> = answers.into_iter().map(Result::unwrap).collect();
    for answer in &answers {
        assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.headers);
    }
    answers
}

/// What became of a request.
#[derive(Debug)]
struct Served {
    site: String,
    place: Place,
    told: u64,
    cached: u64,
}

impl Served {
    fn of(answer: &Answer) -> Self {
        Self {
            site: header(answer, "x-kvgrid-site"),
            place: answer.place().unwrap(),
            told: header(answer, "x-kvgrid-overlap-tokens").parse().unwrap(),
            cached: answer.cached_tokens().unwrap(),
        }
    }
}

/// What the workers say on Dynamo's event plane, whatever the relays follow.
struct Witness {
    /// What each site held before a round.
    held: BTreeMap<String, Held>,
    heard: BTreeMap<String, usize>,
}

/// What was held before a round, and what happened in it.
struct Round {
    sites: BTreeMap<String, (Held, Vec<Heard>)>,
}

impl Witness {
    async fn of(grid: &mut Grid) -> Self {
        let mut witness = Self {
            held: BTreeMap::new(),
            heard: BTreeMap::new(),
        };
        witness.take_round(grid).await;
        witness
    }

    /// All that has happened since the last round.
    async fn take_round(&mut self, grid: &mut Grid) -> Round {
        let mut sites = BTreeMap::new();
        for name in grid.site_names() {
            let site = grid.site(&name);
            site.listen().await.unwrap();
            let heard = site.heard().unwrap();
            let before = self.heard.insert(name.clone(), heard.len());
            let new = heard[before.unwrap_or(0)..].to_vec();
            let held = self.held.entry(name.clone()).or_default();
            let began = held.clone();
            new.iter().for_each(|heard| held.apply(heard));
            sites.insert(name, (began, new));
        }
        Round { sites }
    }
}

impl Round {
    /// Whether at some moment of the round the site's best rank held what the edge took it to
    /// hold, and the one that has served the request what it had cached: then only events or
    /// the site's choice of a worker stand between the two.
    fn explains(&self, served: &Served, prompt: &[u32]) -> bool {
        let (began, heard) = &self.sites[&served.site];
        let tokens = |depth| overlap(depth, prompt.len());
        let mut held = began.clone();
        let (mut told, mut cached) = (false, false);
        for next in std::iter::once(None).chain(heard.iter().map(Some)) {
            if let Some(heard) = next {
                held.apply(heard);
            }
            let best = held.all().map(|held| depth(held, prompt)).max();
            told |= tokens(best.unwrap_or(0)) == served.told;
            cached |= tokens(depth(&held.at(served.place), prompt)) == served.cached;
        }
        told && cached
    }

    /// What each rank held of a prompt as the round began.
    fn began(&self, served: &Served, prompt: &[u32]) -> String {
        let (began, heard) = &self.sites[&served.site];
        let all: Vec<usize> = began.all().map(|held| depth(held, prompt)).collect();
        let union: BTreeSet<u64> = began.all().flatten().copied().collect();
        format!(
            "{all:?} blocks, {} of them all, then {} changes",
            depth(&union, prompt),
            heard.len()
        )
    }

    /// Whether the site had a better rank for the prompt than the one that has served it,
    /// before the round began.
    fn is_sites_choice(&self, served: &Served, prompt: &[u32]) -> bool {
        let (began, _) = &self.sites[&served.site];
        let best = began.all().map(|held| depth(held, prompt)).max();
        best > Some(depth(&began.at(served.place), prompt))
    }
}
