//! The join against a plain one, which is worked out anew each time.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::discovery::kubernetes::objects::ReadyWorker;

/// A resource: of which worker, in which life, of which pod, and what it says, if it says something.
type Resource = (u8, u8, u8, Option<u8>);

/// A slice, and the pods of workers that are ready by it.
type Slice = (u8, BTreeSet<(u8, u8)>);

#[derive(Clone, Debug)]
enum Op {
    Worker(Resource),
    WorkerGone(u8),
    Workers(BTreeMap<u8, Resource>),
    Slice(Slice),
    SliceGone(u8),
    Slices(BTreeMap<u8, Slice>),
    /// Of the workers' collection, or of the other.
    Lost(bool),
    Again(bool),
}

fn resource() -> impl Strategy<Value = Resource> {
    (
        0..3_u8,
        0..2_u8,
        0..2_u8,
        prop::option::weighted(0.8, 0..3_u8),
    )
}

fn slice() -> impl Strategy<Value = Slice> {
    (
        0..3_u8,
        prop::collection::btree_set((0..3_u8, 0..2_u8), 0..3),
    )
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let resources = prop::collection::vec(resource(), 0..3);
    let resources = resources.prop_map(|all| all.into_iter().map(|one| (one.0, one)).collect());
    let slices = prop::collection::vec(slice(), 0..3);
    let slices = slices.prop_map(|all| all.into_iter().map(|one| (one.0, one)).collect());
    let op = prop_oneof![
        6 => resource().prop_map(Op::Worker),
        2 => (0..3_u8).prop_map(Op::WorkerGone),
        2 => resources.prop_map(Op::Workers),
        6 => slice().prop_map(Op::Slice),
        2 => (0..3_u8).prop_map(Op::SliceGone),
        2 => slices.prop_map(Op::Slices),
        1 => any::<bool>().prop_map(Op::Lost),
        1 => any::<bool>().prop_map(Op::Again),
    ];
    prop::collection::vec(op, 0..60)
}

fn object((worker, life, pod, says): Resource) -> WorkerMetadata {
    let data = says.map(|says| json!({"event_channels": {"c": says, format!("d{says}"): 1}}));
    let object = json!({
        "metadata": {
            "name": worker.to_string(), "uid": life.to_string(), "resourceVersion": "1",
            "ownerReferences": [
                {"kind": "Other", "uid": "x"}, {"kind": "Pod", "uid": pod.to_string()},
            ],
        },
        "spec": {"data": data},
    });
    serde_json::from_str(&object.to_string()).unwrap()
}

fn ready((object, workers): Slice) -> Ready {
    let workers = workers.into_iter().map(|(worker, pod)| ReadyWorker {
        worker: worker.to_string(),
        pod: pod.to_string(),
    });
    Ready {
        object: object.to_string(),
        workers: workers.collect(),
    }
}

/// What there is, written down plainly.
#[derive(Default)]
struct Plain {
    workers: BTreeMap<u8, Resource>,
    slices: BTreeMap<u8, Slice>,
    /// Of both collections: whether it has been read, and whether it is lost.
    read: [bool; 2],
    lost: [bool; 2],
}

impl Plain {
    /// A resource that says nothing is as it was, if it is the same.
    fn put(&mut self, resource: Resource, before: Option<Resource>) {
        let (worker, life, pod, says) = resource;
        let before = before.filter(|before| (before.1, before.2) == (life, pod));
        let says = says.or(before.and_then(|before| before.3));
        self.workers.insert(worker, (worker, life, pod, says));
    }

    fn take(&mut self, op: Op) -> Option<Heard> {
        Some(match op {
            Op::Worker(resource) => {
                let before = self.workers.get(&resource.0).copied();
                self.put(resource, before);
                Heard::Workers(Told::Changed(object(resource)))
            }
            Op::WorkerGone(worker) => {
                self.workers.remove(&worker);
                Heard::Workers(Told::Gone(worker.to_string()))
            }
            Op::Workers(all) => {
                let before = std::mem::take(&mut self.workers);
                for (worker, resource) in &all {
                    self.put(*resource, before.get(worker).copied());
                }
                (self.read[0], self.lost[0]) = (true, false);
                Heard::Workers(Told::All(all.into_values().map(object).collect()))
            }
            Op::Slice(slice) => {
                self.slices.insert(slice.0, slice.clone());
                Heard::Readiness(Told::Changed(ready(slice)))
            }
            Op::SliceGone(slice) => {
                self.slices.remove(&slice);
                Heard::Readiness(Told::Gone(slice.to_string()))
            }
            Op::Slices(all) => {
                self.slices.clone_from(&all);
                (self.read[1], self.lost[1]) = (true, false);
                Heard::Readiness(Told::All(all.into_values().map(ready).collect()))
            }
            Op::Lost(of_workers) => {
                self.lost[usize::from(!of_workers)] = true;
                match of_workers {
                    true => Heard::Workers(Told::Lost("x".into())),
                    false => Heard::Readiness(Told::Lost("x".into())),
                }
            }
            Op::Again(of_workers) => {
                let side = usize::from(!of_workers);
                // Only what was read and then lost is found again.
                if !self.read[side] || !std::mem::take(&mut self.lost[side]) {
                    return None;
                }
                match of_workers {
                    true => Heard::Workers(Told::Again),
                    false => Heard::Readiness(Told::Again),
                }
            }
        })
    }

    /// What counts, as it would be told.
    fn all(&self) -> BTreeMap<String, Vec<u8>> {
        let mut all = BTreeMap::new();
        for (worker, _, pod, says) in self.workers.values() {
            let slices = self.slices.values().flat_map(|(_, workers)| workers);
            let of_it = slices.filter(|(of, _)| of == worker);
            let pods: BTreeSet<u8> = of_it.map(|(_, pod)| *pod).collect();
            if pods != [*pod].into() {
                continue;
            }
            if let Some(says) = says {
                let prefix = format!("event_channels/{worker}");
                all.insert(format!("{prefix}/c"), says.to_string().into_bytes());
                all.insert(format!("{prefix}/d{says}"), b"1".to_vec());
            }
        }
        all
    }
}

proptest! {
    #[test]
    fn what_is_told_comes_to_what_there_is(ops in ops()) {
        let (mut join, mut plain) = (Join::default(), Plain::default());
        let mut told: Option<BTreeMap<String, Vec<u8>>> = None;
        for op in ops {
            let is_lost = matches!(op, Op::Lost(_));
            let is_news = matches!(op, Op::Workers(_) | Op::Slices(_) | Op::Again(_));
            let Some(heard) = plain.take(op) else { continue };

            let change = join.handle(heard);

            prop_assert_eq!(matches!(change, Some(Change::Lost(_))), is_lost);
            let is_whole = is_news && plain.read == [true; 2] && plain.lost == [false; 2];
            prop_assert_eq!(matches!(change, Some(Change::All(_))), is_whole);
            match change {
                Some(Change::All(all)) => told = Some(all),
                Some(Change::Some(changes)) => {
                    // While one has been lost since before the other was read, nobody has been
                    // told all: then the first changes are all there is.
                    let told = told.get_or_insert_default();
                    for (name, document) in changes {
                        let before = match document.clone() {
                            Some(document) => told.insert(name, document),
                            None => told.remove(&name),
                        };
                        prop_assert_ne!(before, document, "it is a change");
                    }
                }
                Some(Change::Lost(_)) | None => {}
            }
            match plain.read {
                [true, true] => prop_assert_eq!(told.clone().unwrap_or_default(), plain.all()),
                _ => prop_assert_eq!(&told, &None),
            }
        }
    }
}

#[test]
fn what_is_beyond_the_bound_is_passed_over() {
    let slice = |number: usize| Ready {
        object: number.to_string(),
        workers: BTreeSet::new(),
    };
    let mut join = Join::default();

    join.handle(Heard::Readiness(Told::All(
        (0..OBJECTS).map(slice).collect(),
    )));
    join.handle(Heard::Readiness(Told::Changed(slice(OBJECTS))));
    join.handle(Heard::Readiness(Told::Changed(slice(1))));

    assert_eq!((join.readiness.objects(), join.passed_over), (OBJECTS, 1));
}
