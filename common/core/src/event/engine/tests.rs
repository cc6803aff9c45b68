use std::collections::BTreeSet;

use proptest::prelude::*;
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::*;
use crate::block::{BlockHash, ChainHash, chain_hashes};
use crate::event::WorkerKey;
use crate::residency::{Copies, Residency, ResidencyConfig};

/// What an engine may send, written by another library than the one under test.
#[derive(Clone, Debug)]
enum V {
    Nil,
    U(u64),
    I(i64),
    F(f64),
    S(&'static str),
    B(&'static [u8]),
    A(Vec<Self>),
    M(Vec<(&'static str, Self)>),
}

impl Serialize for V {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nil => to.serialize_unit(),
            Self::U(value) => to.serialize_u64(*value),
            Self::I(value) => to.serialize_i64(*value),
            Self::F(value) => to.serialize_f64(*value),
            Self::S(text) => to.serialize_str(text),
            Self::B(bytes) => to.serialize_bytes(bytes),
            Self::A(values) => {
                let mut seq = to.serialize_seq(Some(values.len()))?;
                for value in values {
                    seq.serialize_element(value)?;
                }
                seq.end()
            }
            Self::M(pairs) => {
                let mut map = to.serialize_map(Some(pairs.len()))?;
                for (key, value) in pairs {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

use V::{A, B, F, I, M, Nil, S, U};

fn numbers(values: impl IntoIterator<Item = u64>) -> V {
    A(values.into_iter().map(U).collect())
}

fn payload(value: &V) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}

fn batch(events: Vec<V>) -> Vec<u8> {
    payload(&A(vec![F(1.5), A(events), U(0)]))
}

/// A decoder of blocks of four tokens.
fn decoder() -> Decoder {
    Decoder::new(DecoderConfig {
        block_size: NonZeroU32::new(4).unwrap(),
        format: HashFormat::Standard,
        max_salted: 100,
    })
}

fn decode(events: Vec<V>) -> EngineBatch {
    decoder().decode(0, &batch(events)).unwrap()
}

/// The local hashes of Dynamo's vectors, for tokens 1 to 4 and 5 to 8.
const FIRST: BlockHash = BlockHash(14643705804678351452);
const SECOND: BlockHash = BlockHash(16777012769546811212);

/// A stored map event of tokens 1 to 4 named 10, with more fields.
fn stored_map(more: Vec<(&'static str, V)>) -> V {
    let mut pairs = vec![
        ("type", S("BlockStored")),
        ("block_hashes", numbers([10])),
        ("parent_block_hash", Nil),
        ("token_ids", numbers(1..=4)),
        ("block_size", U(4)),
    ];
    pairs.extend(more);
    M(pairs)
}

/// The same as an array, from the adapter's number on.
fn stored_array(more: Vec<V>) -> V {
    let mut values = vec![S("BlockStored"), numbers([10]), Nil, numbers(1..=4), U(4)];
    values.extend(more);
    A(values)
}

fn run(parent: Option<u64>, blocks: &[(u64, BlockHash)]) -> KvEvent {
    on_tier(Tier::Device, parent, blocks)
}

fn on_tier(tier: Tier, parent: Option<u64>, blocks: &[(u64, BlockHash)]) -> KvEvent {
    let block = |(engine, local): &(u64, BlockHash)| StoredBlock {
        engine: EngineHash(*engine),
        local: *local,
    };
    KvEvent::Stored {
        parent: parent.map(EngineHash),
        tier,
        blocks: blocks.iter().map(block).collect(),
    }
}

fn only_local(batch: &EngineBatch) -> u64 {
    match batch.events.as_slice() {
        [KvEvent::Stored { blocks, .. }] if blocks.len() == 1 => blocks[0].local.0,
        other => panic!("not one stored block: {other:?}"),
    }
}

#[track_caller]
fn assert_refused(event: V, refusal: Refusal) {
    let batch = decode(vec![event]);
    assert_eq!(batch.refused.of(refusal), 1, "{batch:?}");
    assert_eq!(batch.events, []);
}

/// What Dynamo 1.6.1's mocker published while a small cache evicted.
const MOCKER: [&[u8]; 13] = [
    include_bytes!("fixtures/mocker_00.bin"),
    include_bytes!("fixtures/mocker_01.bin"),
    include_bytes!("fixtures/mocker_02.bin"),
    include_bytes!("fixtures/mocker_03.bin"),
    include_bytes!("fixtures/mocker_04.bin"),
    include_bytes!("fixtures/mocker_05.bin"),
    include_bytes!("fixtures/mocker_06.bin"),
    include_bytes!("fixtures/mocker_07.bin"),
    include_bytes!("fixtures/mocker_08.bin"),
    include_bytes!("fixtures/mocker_09.bin"),
    include_bytes!("fixtures/mocker_10.bin"),
    include_bytes!("fixtures/mocker_11.bin"),
    include_bytes!("fixtures/mocker_12.bin"),
];

#[test]
fn the_mockers_own_names_are_the_chains_that_come_out() {
    let mut decoder = Decoder::new(DecoderConfig {
        block_size: NonZeroU32::new(16).unwrap(),
        format: HashFormat::Standard,
        max_salted: 0,
    });
    let mut pool = Residency::new(ResidencyConfig {
        tier: Tier::Device,
        copies: Copies::Counted,
        max_entries: 1000,
        max_workers: 1,
    });
    let mut held = BTreeSet::new();

    for payload in MOCKER {
        let batch = decoder.decode(7, payload).unwrap();
        assert_eq!((batch.rank, batch.refused.total()), (Some(0), 0));
        for event in batch.events {
            match &event {
                KvEvent::Stored { blocks, .. } => held.extend(blocks.iter().map(|b| b.engine.0)),
                KvEvent::Removed { blocks, .. } => blocks.iter().for_each(|name| {
                    held.remove(&name.0);
                }),
                KvEvent::Cleared => panic!("the mocker never clears"),
            }
            let (publisher, rank) = (1, 0);
            pool.apply(WorkerKey { publisher, rank }, event);
        }
    }
    while pool.step(100) {}

    // The mocker names a block by its chain hash, which no other engine does.
    let published: BTreeSet<u64> = pool.published().map(|chain| chain.0).collect();
    assert_eq!(published, held);
    assert_eq!(pool.stats().unknown_removals, 0);
}

#[test]
fn map_events_are_decoded() {
    let batch = decode(vec![
        M(vec![
            ("type", S("BlockStored")),
            ("block_hashes", numbers([10, 11])),
            ("parent_block_hash", U(9)),
            ("token_ids", numbers(1..=8)),
            ("block_size", U(4)),
        ]),
        M(vec![
            ("type", S("BlockRemoved")),
            ("block_hashes", numbers([11])),
        ]),
        M(vec![("type", S("AllBlocksCleared"))]),
    ]);

    let removed = KvEvent::Removed {
        tier: Tier::Device,
        blocks: vec![EngineHash(11)],
    };
    let stored = run(Some(9), &[(10, FIRST), (11, SECOND)]);
    assert_eq!(batch.events, [stored, removed, KvEvent::Cleared]);
    assert_eq!((batch.at, batch.rank), (1.5, Some(0)));
}

#[test]
fn array_events_are_decoded() {
    let batch = decode(vec![
        A(vec![
            S("BlockStored"),
            numbers([10, 11]),
            U(9),
            numbers(1..=8),
            U(4),
        ]),
        A(vec![S("BlockRemoved"), numbers([11])]),
        A(vec![S("AllBlocksCleared")]),
    ]);

    let removed = KvEvent::Removed {
        tier: Tier::Device,
        blocks: vec![EngineHash(11)],
    };
    let stored = run(Some(9), &[(10, FIRST), (11, SECOND)]);
    assert_eq!(batch.events, [stored, removed, KvEvent::Cleared]);
}

#[test]
fn a_batch_may_be_a_map_and_need_not_name_a_rank() {
    let events = A(vec![stored_map(vec![])]);
    let map = M(vec![
        ("ts", F(2.0)),
        ("events", events.clone()),
        ("new", Nil),
    ]);
    let short = A(vec![F(2.0), events]);

    let from_map = decoder().decode(3, &payload(&map)).unwrap();
    let from_short = decoder().decode(3, &payload(&short)).unwrap();

    assert_eq!(from_map.events, [run(None, &[(10, FIRST)])]);
    assert_eq!(from_map.rank, None);
    assert_eq!(from_map, from_short);
}

#[test]
fn what_is_not_known_is_passed_over() {
    let keys = stored_map(vec![("session_id", S("s")), ("brand_new", A(vec![U(1)]))]);
    let elements = stored_array(vec![
        Nil,
        S("GPU"),
        Nil,
        Nil,
        U(0),
        S("full_attention"),
        Nil,
        S("LOCAL"),
        Nil,
        M(vec![("brand_new", U(1))]),
    ]);

    let batch = decode(vec![keys, elements, M(vec![("type", S("BlockMoved"))])]);

    assert_eq!(batch.events, vec![run(None, &[(10, FIRST)]); 2]);
    assert_eq!(batch.refused.of(Refusal::UnknownType), 1);
    assert!(!batch.unsound);
}

#[test]
fn names_may_be_signed_unsigned_or_bytes() {
    let removed = |names| {
        M(vec![
            ("type", S("BlockRemoved")),
            ("block_hashes", A(names)),
        ])
    };

    let batch = decode(vec![removed(vec![
        I(-1),
        U(u64::MAX),
        B(b"sha"),
        B(b"sha2"),
    ])]);

    let [KvEvent::Removed { blocks, .. }] = batch.events.as_slice() else {
        panic!("{batch:?}");
    };
    assert_eq!(blocks[0], blocks[1]);
    assert_eq!(blocks[2], EngineHash(xxh3_64(b"sha")));
    assert_ne!(blocks[2], blocks[3]);
}

#[test]
fn media_become_tiers() {
    let tier = |medium| {
        let batch = decode(vec![stored_map(vec![("medium", S(medium))])]);
        match batch.events.as_slice() {
            [KvEvent::Stored { tier, .. }] => *tier,
            other => panic!("{other:?}"),
        }
    };

    assert_eq!(tier("GPU"), Tier::Device);
    assert_eq!(tier("CPU_PINNED"), Tier::HostPinned);
    assert_eq!(tier("nvme"), Tier::Disk);
    assert_eq!(tier("SHARED"), Tier::External);
}

#[test]
fn events_that_are_not_this_workers_are_refused() {
    let with = |key, value| stored_map(vec![(key, S(value))]);

    assert_refused(with("medium", "FS"), Refusal::UnknownMedium);
    assert_refused(with("locality", "REMOTE"), Refusal::Remote);
    assert_refused(with("ownership", "kvcr"), Refusal::Ownership);
    let cleared = A(vec![S("AllBlocksCleared"), S("kvcr")]);
    assert_refused(cleared, Refusal::Ownership);
}

#[test]
fn another_block_size_is_refused() {
    let event = M(vec![
        ("type", S("BlockStored")),
        ("block_hashes", numbers([10])),
        ("token_ids", numbers(1..=8)),
        ("block_size", U(8)),
    ]);

    assert_refused(event, Refusal::BlockSize);
}

#[test]
fn a_run_ends_where_its_tokens_end() {
    let event = M(vec![
        ("type", S("BlockStored")),
        ("block_hashes", numbers([10, 11])),
        ("token_ids", numbers(1..=7)),
        ("block_size", U(4)),
    ]);

    let batch = decode(vec![event]);

    assert_eq!(batch.events, [run(None, &[(10, FIRST)])]);
    assert_eq!(batch.refused.of(Refusal::FewTokens), 1);
}

#[test]
fn an_event_that_makes_no_sense_costs_itself_only() {
    let bad_store = stored_map(vec![("token_ids", S("no"))]);
    let bad_removal = A(vec![S("BlockRemoved"), A(vec![S("x"), F(0.5)])]);

    let store = decode(vec![bad_store, stored_map(vec![])]);
    let removal = decode(vec![bad_removal, stored_map(vec![])]);

    assert_eq!(store.events.len(), 1);
    assert_eq!(store.refused.of(Refusal::Malformed), 1);
    assert!(!store.unsound, "a store that is lost only hides blocks");
    assert_eq!(removal.events.len(), 1);
    assert!(removal.unsound, "a removal may be lost");
}

#[test]
fn what_stands_before_a_removal_that_is_not_understood_is_not_believed() {
    for broken in [A(vec![S("BlockRemoved")]), U(7)] {
        let later = stored_map(vec![("block_hashes", numbers([20]))]);

        let batch = decode(vec![stored_map(vec![]), broken, later]);

        assert!(batch.unsound);
        assert_eq!(batch.events, [run(None, &[(20, FIRST)])]);
    }
}

#[test]
fn adapters_enter_the_hash() {
    let by_key = decode(vec![stored_map(vec![("lora_name", S("adapter-a"))])]);
    let by_place = decode(vec![stored_array(vec![U(3), Nil, S("adapter-a")])]);

    assert_eq!(only_local(&by_key), 11381080598872079209);
    assert_eq!(only_local(&by_place), 11381080598872079209);
}

#[test]
fn an_adapter_without_a_name_is_refused() {
    assert_refused(stored_map(vec![("lora_id", U(3))]), Refusal::Adapter);
}

#[test]
fn salts_enter_the_hash_wherever_they_stand() {
    let salted = 5738685477468498325;
    let key = A(vec![A(vec![S("dynamo-cache-salt:tenant-a")])]);

    let by_key = decode(vec![stored_map(vec![("cache_salt", S("tenant-a"))])]);
    let by_extra_key = decode(vec![stored_map(vec![("extra_keys", key)])]);
    let metadata = M(vec![("cache_salt", S("tenant-a"))]);
    let by_metadata = decode(vec![stored_array(vec![Nil, Nil, metadata])]);

    assert_eq!(only_local(&by_key), salted);
    assert_eq!(only_local(&by_extra_key), salted);
    assert_eq!(only_local(&by_metadata), salted);
}

#[test]
fn a_salt_beside_an_adapter_of_the_same_name_is_still_a_salt() {
    let keys = A(vec![A(vec![
        S("adapter-a"),
        S("dynamo-cache-salt:tenant-a"),
    ])]);

    let batch = decode(vec![stored_map(vec![
        ("lora_name", S("adapter-a")),
        ("extra_keys", keys),
    ])]);

    assert_eq!(only_local(&batch), 9967753091837871098);
}

fn child_of_ten(name: u64) -> V {
    M(vec![
        ("type", S("BlockStored")),
        ("block_hashes", numbers([name])),
        ("parent_block_hash", U(10)),
        ("token_ids", numbers(1..=4)),
        ("block_size", U(4)),
    ])
}

#[test]
fn a_salt_is_handed_down_the_chain_until_the_block_goes() {
    let mut decoder = decoder();
    let salted = stored_map(vec![("cache_salt", S("tenant-a"))]);
    let removed = M(vec![
        ("type", S("BlockRemoved")),
        ("block_hashes", numbers([10])),
    ]);
    decoder
        .decode(0, &batch(vec![salted.clone(), salted]))
        .unwrap();

    let both = decoder.decode(0, &batch(vec![child_of_ten(11)])).unwrap();
    decoder.decode(0, &batch(vec![removed.clone()])).unwrap();
    let one = decoder.decode(0, &batch(vec![child_of_ten(12)])).unwrap();
    decoder.decode(0, &batch(vec![removed])).unwrap();
    let none = decoder.decode(0, &batch(vec![child_of_ten(13)])).unwrap();

    assert_eq!(only_local(&both), 5738685477468498325);
    assert_eq!(only_local(&one), 5738685477468498325);
    assert_eq!(only_local(&none), FIRST.0);
}

#[test]
fn another_ranks_salt_is_not_inherited() {
    let mut decoder = decoder();
    let salted = stored_map(vec![("cache_salt", S("tenant-a"))]);
    let on_rank = |rank, event| payload(&A(vec![F(0.0), A(vec![event]), U(rank)]));
    decoder.decode(0, &on_rank(1, salted)).unwrap();

    let other = decoder.decode(0, &on_rank(2, child_of_ten(11))).unwrap();

    assert_eq!(only_local(&other), FIRST.0);
}

#[test]
fn below_an_ambiguous_name_nothing_is_believed() {
    let mut decoder = decoder();
    let salted = stored_map(vec![("cache_salt", S("tenant-a"))]);
    let events = vec![salted, stored_map(vec![]), child_of_ten(11)];

    let decoded = decoder.decode(0, &batch(events)).unwrap();

    assert_eq!(decoded.events.len(), 2);
    assert_eq!(decoded.refused.of(Refusal::Salt), 1);
}

#[test]
fn salted_blocks_past_the_limit_are_refused() {
    let config = DecoderConfig {
        max_salted: 0,
        ..decoder().config
    };
    let salted = stored_map(vec![("cache_salt", S("tenant-a"))]);

    let decoded = Decoder::new(config)
        .decode(0, &batch(vec![salted]))
        .unwrap();

    assert_eq!(decoded.refused.of(Refusal::Salt), 1);
    assert_eq!(decoded.events, []);
}

#[test]
fn blocks_with_images_end_a_run() {
    let image = A(vec![A(vec![S("image-0"), U(2)])]);
    let event = |key, value| {
        M(vec![
            ("type", S("BlockStored")),
            ("block_hashes", numbers([10, 11])),
            ("token_ids", numbers(1..=8)),
            ("block_size", U(4)),
            (key, value),
        ])
    };
    let infos = A(vec![Nil, M(vec![("mm_objects", A(vec![]))])]);

    for event in [
        event("extra_keys", A(vec![Nil, image])),
        event("extra_keys", A(vec![Nil, A(vec![S("bare")])])),
        event("block_mm_infos", infos),
    ] {
        let batch = decode(vec![event]);
        assert_eq!(batch.events, [run(None, &[(10, FIRST)])]);
        assert_eq!(batch.refused.of(Refusal::ExtraKeys), 1);
    }
}

#[test]
fn only_full_attention_counts_and_groups_are_learned() {
    let mut decoder = decoder();
    let removed = |group| {
        M(vec![
            ("type", S("BlockRemoved")),
            ("block_hashes", numbers([10])),
            ("group_idx", U(group)),
        ])
    };
    let stored = |group, kind| {
        stored_map(vec![
            ("group_idx", U(group)),
            ("kv_cache_spec_kind", S(kind)),
        ])
    };
    let mut count = |event| decoder.decode(0, &batch(vec![event])).unwrap().events.len();

    assert_eq!(count(removed(0)), 1, "group 0 until told otherwise");
    assert_eq!(count(removed(1)), 0, "another group is not");
    assert_eq!(count(stored(0, "mamba")), 0);
    assert_eq!(count(stored(1, "mla_attention")), 1);
    assert_eq!(count(removed(0)), 0, "learned");
    assert_eq!(count(removed(1)), 1, "learned");
}

#[test]
fn trailing_fields_of_older_engines_are_told_by_type() {
    let window = stored_array(vec![Nil, Nil, Nil, Nil, S("sliding_window"), U(1), U(128)]);
    let full = stored_array(vec![Nil, Nil, Nil, Nil, S("full_attention"), U(1)]);
    let remote = stored_array(vec![Nil, Nil, Nil, Nil, Nil, Nil, Nil, S("REMOTE")]);
    let image = stored_array(vec![Nil, Nil, Nil, Nil, A(vec![M(vec![])]), U(0)]);

    assert_refused(window, Refusal::Attention);
    assert_eq!(decode(vec![full]).events.len(), 1);
    assert_refused(remote, Refusal::Remote);
    assert_refused(image, Refusal::ExtraKeys);
}

#[test]
fn pairs_of_tokens_are_hashed_in_the_eagle_format() {
    let pairs = A((1..=4).map(|token| numbers([token, token + 1])).collect());
    let event = stored_map(vec![("token_ids", pairs)]);
    let config = DecoderConfig {
        format: HashFormat::Eagle,
        ..decoder().config
    };

    let batch = Decoder::new(config)
        .decode(0, &batch(vec![event.clone(), stored_map(vec![])]))
        .unwrap();

    assert_eq!(only_local(&batch), 1914873892905420881);
    assert_eq!(batch.refused.of(Refusal::HashFormat), 1);
    assert_refused(event, Refusal::HashFormat);
}

#[test]
fn a_payload_that_is_no_batch_is_an_error() {
    let mut decoder = decoder();

    assert!(decoder.decode(0, b"").is_err());
    assert!(decoder.decode(0, b"hello").is_err());
    assert!(decoder.decode(0, &payload(&A(vec![F(0.0)]))).is_err());
    assert!(decoder.decode(0, &payload(&A(vec![F(0.0), U(1)]))).is_err());
    let endless = [0x92, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff];
    assert!(decoder.decode(0, &endless).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
        let _ = decoder().decode(0, &bytes);
    }

    #[test]
    fn a_damaged_message_is_decoded_or_refused(
        message in 0usize..MOCKER.len(),
        place: prop::sample::Index,
        value: u8,
        cut: prop::sample::Index,
    ) {
        let mut bytes = MOCKER[message].to_vec();
        let place = place.index(bytes.len());
        bytes[place] = value;
        bytes.truncate(cut.index(bytes.len()) + 1);
        let _ = decoder().decode(0, &bytes);
    }

    #[test]
    fn both_forms_of_any_run_hash_alike(
        tokens in prop::collection::vec(any::<u32>(), 0..40),
        lora in prop::option::of(Just("adapter")),
    ) {
        let names = || numbers((0..tokens.len() as u64 / 4).map(|n| n + 1000));
        let ids = || numbers(tokens.iter().map(|token| u64::from(*token)));
        let adapter = || lora.map_or(Nil, S);
        let map = M(vec![
            ("type", S("BlockStored")),
            ("block_hashes", names()),
            ("token_ids", ids()),
            ("block_size", U(4)),
            ("lora_name", adapter()),
        ]);
        let array = A(vec![S("BlockStored"), names(), Nil, ids(), U(4), Nil, Nil, adapter()]);

        let from_map = decode(vec![map]);
        let from_array = decode(vec![array]);

        prop_assert_eq!(&from_map, &from_array);
        let seed = HashSeed::new(lora, None);
        let size = NonZeroU32::new(4).unwrap();
        let expected = chain_hashes(&tokens, size, HashFormat::Standard, seed);
        let mut chain: Option<ChainHash> = None;
        let mut found = Vec::new();
        for event in &from_map.events {
            let KvEvent::Stored { blocks, .. } = event else { continue };
            for block in blocks {
                let next = chain.map_or(ChainHash::root(block.local), |c| c.child(block.local));
                found.push(next);
                chain = Some(next);
            }
        }
        prop_assert_eq!(found, expected);
    }
}
