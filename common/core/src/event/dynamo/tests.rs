use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::block::ChainHash;
use crate::event::WorkerKey;
use crate::residency::{Copies, Residency, ResidencyConfig};

/// What Dynamo 1.6.1's mocker published while a small cache filled and evicted.
const EVICTIONS: [&[u8]; 13] = [
    include_bytes!("fixtures/evictions_00.bin"),
    include_bytes!("fixtures/evictions_01.bin"),
    include_bytes!("fixtures/evictions_02.bin"),
    include_bytes!("fixtures/evictions_03.bin"),
    include_bytes!("fixtures/evictions_04.bin"),
    include_bytes!("fixtures/evictions_05.bin"),
    include_bytes!("fixtures/evictions_06.bin"),
    include_bytes!("fixtures/evictions_07.bin"),
    include_bytes!("fixtures/evictions_08.bin"),
    include_bytes!("fixtures/evictions_09.bin"),
    include_bytes!("fixtures/evictions_10.bin"),
    include_bytes!("fixtures/evictions_11.bin"),
    include_bytes!("fixtures/evictions_12.bin"),
];
const DYNAMO_1_3: &[u8] = include_bytes!("fixtures/dynamo_1_3.bin");
/// What a rank said that computes four requests at once while six waited.
const STEP: &[u8] = include_bytes!("fixtures/step.bin");
const METRICS: &[u8] = include_bytes!("fixtures/kv_metrics.bin");
/// A router's message, from Dynamo 1.3.1.
const METRICS_1_3: &[u8] = include_bytes!("fixtures/kv_metrics_1_3.bin");

fn envelope(frame: &[u8]) -> Envelope<'_> {
    Envelope::from_frame(frame).unwrap()
}

fn batch(value: &Value) -> KvBatch {
    kv_events(&rmp_serde::to_vec_named(value).unwrap()).unwrap()
}

/// An event with these fields beside the usual ones.
fn event(data: &Value, more: &Value) -> Value {
    let mut event = json!({"worker_id": 7, "event": {"event_id": 1, "data": data}});
    for (name, value) in more.as_object().unwrap() {
        event[name] = value.clone();
    }
    event
}

fn stored() -> Value {
    json!({"stored": {"parent_hash": null, "blocks": [{"block_hash": 1, "tokens_hash": 2}]}})
}

/// The reason for which one event alone is refused.
fn refusal(event: &Value) -> Option<Refusal> {
    let batch = batch(&json!([event]));
    assert_eq!(batch.events.len(), 1, "its number counts all the same");
    let refused = Refusal::ALL
        .into_iter()
        .find(|reason| batch.refused.of(*reason) == 1);
    assert_eq!(batch.events[0].event.is_none(), refused.is_some());
    refused
}

#[test]
fn captured_messages_count_up_and_so_do_their_events() {
    let mut numbers = Vec::new();
    for (sequence, frame) in (0..).zip(EVICTIONS) {
        let envelope = envelope(frame);
        let batch = kv_events(envelope.payload).unwrap();

        assert_eq!(envelope.publisher, 5_631_056_525_918_572);
        assert_eq!(envelope.sequence, sequence);
        assert_eq!(envelope.topic, KV_EVENTS);
        assert_eq!((batch.refused.total(), batch.unsound), (0, false));
        for event in batch.events {
            assert_eq!((event.worker, event.rank), (16_657_144_526_627_908_431, 0));
            numbers.push(event.number);
        }
    }

    assert_eq!(numbers, Vec::from_iter(1..=15));
}

/// The mocker names blocks by their chain hash, so what residency computes can be compared.
#[test]
fn captured_blocks_chain_up_to_the_mockers_own_names() {
    let mut residency = Residency::new(ResidencyConfig {
        tier: Tier::Device,
        copies: Copies::Once,
        max_entries: 1000,
        max_workers: 1,
    });
    let mut held = std::collections::BTreeSet::new();
    for frame in EVICTIONS {
        for event in kv_events(envelope(frame).payload).unwrap().events {
            let event_ = event.event.unwrap();
            match &event_ {
                KvEvent::Stored { blocks, .. } => held.extend(blocks.iter().map(|b| b.engine.0)),
                KvEvent::Removed { blocks, .. } => {
                    held.retain(|name| !blocks.contains(&EngineHash(*name)));
                }
                KvEvent::Cleared => panic!("nothing was cleared"),
            }
            let worker = WorkerKey {
                publisher: 1,
                rank: event.rank,
            };
            residency.apply(worker, event_);
        }
    }
    while residency.step(1000) {}

    let mut published: Vec<_> = residency.published().collect();
    published.sort_unstable();
    let held: Vec<_> = held.into_iter().map(ChainHash).collect();
    assert!(held.len() > 10);
    assert_eq!(published, held);
    assert_eq!(residency.stats().unknown_removals, 0);
}

#[test]
fn a_single_event_of_an_older_site_is_read() {
    let envelope = envelope(DYNAMO_1_3);

    let batch = kv_events(envelope.payload).unwrap();

    assert_eq!(batch.refused.total(), 0);
    assert_eq!(batch.events.len(), 1);
    assert_eq!(batch.events[0].number, FIRST_EVENT);
    assert_eq!(batch.events[0].event.as_ref().map(KvEvent::blocks), Some(4));
}

#[test]
fn use_is_the_workers_word_alone() {
    let worker = kv_use(envelope(METRICS).payload).unwrap();
    let router = kv_use(envelope(METRICS_1_3).payload).unwrap();

    assert_eq!((worker.rank, worker.used_blocks), (0, Some(5)));
    assert_eq!(router.used_blocks, None);
}

#[test]
fn a_step_says_what_is_computed_and_what_waits() {
    let step = step(envelope(STEP).payload).unwrap();

    assert_eq!((step.worker, step.rank), (6_539_705_089_485_933_447, 0));
    assert_eq!((step.running, step.waiting), (4, 6));
    assert_eq!(step.waiting_tokens, 6307);
}

#[test]
fn a_step_that_leaves_something_out_or_is_of_another_form_is_none() {
    let requests = json!({"num_prefill_requests": 1, "num_decode_requests": 2,
        "sum_prefill_tokens": 3});
    let whole = json!({"version": 1, "worker_id": "7", "dp_rank": 1,
        "scheduled_requests": requests, "queued_requests": requests});
    let read = |value: &Value| step(&rmp_serde::to_vec_named(value).unwrap());
    let with = |name: &str, value: Value| {
        let mut changed = whole.clone();
        changed[name] = value;
        changed
    };

    assert_eq!(read(&whole).unwrap().running, 3);
    assert_eq!(read(&with("worker_id", json!(7))), read(&whole));
    for name in [
        "worker_id",
        "dp_rank",
        "scheduled_requests",
        "queued_requests",
    ] {
        let mut lacking = whole.clone();
        lacking.as_object_mut().unwrap().remove(name);
        assert!(read(&lacking).is_err(), "{name}");
    }
    for (name, odd) in [
        ("version", json!(2)),
        ("worker_id", json!("seven")),
        ("dp_rank", json!(-1)),
        ("queued_requests", json!({"num_prefill_requests": 1})),
    ] {
        assert!(read(&with(name, odd)).is_err(), "{name}");
    }
}

#[test]
fn what_is_absent_is_the_workers_own_device() {
    let batch = batch(&json!([event(&stored(), &json!({}))]));

    let blocks = vec![StoredBlock {
        engine: EngineHash(1),
        local: BlockHash(2),
    }];
    let event = KvEvent::Stored {
        parent: None,
        tier: Tier::Device,
        blocks,
    };
    let (worker, rank, number) = (7, 0, 1);
    assert_eq!(
        batch.events,
        [RankEvent {
            worker,
            rank,
            number,
            event: Some(event)
        }]
    );
}

#[test]
fn tiers_are_told_apart() {
    for (name, tier) in [
        ("host_pinned", Tier::HostPinned),
        ("disk", Tier::Disk),
        ("external", Tier::External),
    ] {
        let removed = json!({"removed": {"block_hashes": [5]}});
        let batch = batch(&json!([event(&removed, &json!({"storage_tier": name}))]));

        let blocks = vec![EngineHash(5)];
        assert_eq!(
            batch.events[0].event,
            Some(KvEvent::Removed { tier, blocks })
        );
    }
}

#[test]
fn cleared_is_a_word_or_a_map() {
    for data in [json!("cleared"), json!({"cleared": null})] {
        let batch = batch(&json!([event(&data, &json!({}))]));

        assert_eq!(batch.events[0].event, Some(KvEvent::Cleared));
    }
}

#[test]
fn what_is_not_the_workers_or_not_known_is_refused_by_reason() {
    let more = |more: Value| refusal(&event(&stored(), &more));

    assert_eq!(
        more(json!({"residency_domain": "worker", "odd": [1]})),
        None
    );
    assert_eq!(
        more(json!({"residency_domain": "cache_owner", "state_source": "o"})),
        Some(Refusal::Ownership)
    );
    assert_eq!(
        more(json!({"residency_domain": null})),
        Some(Refusal::Malformed)
    );
    assert_eq!(
        more(json!({"storage_tier": "cloud"})),
        Some(Refusal::UnknownMedium)
    );
    assert_eq!(
        refusal(&event(&json!({"pinned": {}}), &json!({}))),
        Some(Refusal::UnknownType)
    );
    let owner = json!({"residency_domain": "cache_owner"});
    assert_eq!(
        refusal(&event(&json!("cleared"), &owner)),
        Some(Refusal::Ownership),
        "a cache owner clears nothing of the worker's"
    );
}

#[test]
fn a_removal_that_is_not_understood_makes_the_rest_unsound() {
    let removed = json!({"removed": {"block_hashes": ["a"]}});

    let broken = batch(&json!([event(&removed, &json!({}))]));
    let numberless = batch(&json!([{"worker_id": 7, "event": {"data": stored()}}]));
    let unknown = batch(&json!([event(&json!("pinned"), &json!({}))]));

    assert!(broken.unsound && numberless.unsound && !unknown.unsound);
    assert_eq!(numberless.refused.of(Refusal::Malformed), 1);
}

#[test]
fn what_stands_before_a_removal_that_is_not_understood_is_not_believed() {
    let removed = json!({"removed": {"block_hashes": ["a"]}});
    let good = || event(&stored(), &json!({}));

    let batch = batch(&json!([good(), event(&removed, &json!({})), good()]));

    let kept: Vec<_> = batch.events.iter().map(|it| it.event.is_some()).collect();
    assert_eq!(kept, [false, false, true], "numbers are kept");
}

#[test]
fn a_frame_that_lies_about_itself_is_refused() {
    let good = EVICTIONS[0];
    let mut longer = good.to_vec();
    longer.push(0);
    let mut newer = good.to_vec();
    newer[0] = 2;

    for end in 0..good.len() {
        assert_eq!(
            Envelope::from_frame(&good[..end]),
            Err(EnvelopeError::Length),
            "{end}"
        );
    }
    assert_eq!(Envelope::from_frame(&longer), Err(EnvelopeError::Length));
    assert_eq!(Envelope::from_frame(&newer), Err(EnvelopeError::Version(2)));
    let nameless = rmp_serde::to_vec_named(&json!({"publisher_id": 1})).unwrap();
    assert_eq!(
        Envelope::from_message(&nameless),
        Err(EnvelopeError::Missing("sequence"))
    );
}

#[test]
fn a_claimed_number_of_blocks_takes_no_memory() {
    // An array head that claims four thousand million blocks, in place of a real list.
    let mut bytes = rmp_serde::to_vec_named(&json!([event(
        &json!({"stored": {"blocks": 0xc1}}),
        &json!({})
    )]))
    .unwrap();
    let at = bytes.windows(2).position(|pair| pair == [0xcc, 0xc1]);
    let at = at.unwrap();
    bytes.splice(at..at + 2, [0xdd, 0xff, 0xff, 0xff, 0xff]);

    assert_eq!(kv_events(&bytes), Err(Malformed::Truncated));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let _ = Envelope::from_frame(&bytes);
        let _ = Envelope::from_message(&bytes);
        let _ = kv_events(&bytes);
        let _ = kv_use(&bytes);
        let _ = step(&bytes);
    }

    /// Damage that keeps most of a message intact comes further in than random bytes do.
    #[test]
    fn damaged_messages_are_read_or_refused(
        which in 0..EVICTIONS.len(),
        changes in prop::collection::vec((0_usize..400, any::<u8>()), 1..6),
    ) {
        let mut frame = EVICTIONS[which].to_vec();
        for (at, byte) in changes {
            let at = at % frame.len();
            frame[at] = byte;
        }

        if let Ok(envelope) = Envelope::from_frame(&frame)
            && let Ok(batch) = kv_events(envelope.payload)
        {
            let blocks: usize = batch
                .events
                .iter()
                .filter_map(|event| event.event.as_ref())
                .map(KvEvent::blocks)
                .sum();
            prop_assert!(blocks <= frame.len());
        }
    }
}
