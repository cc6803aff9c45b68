//! The protocol of reader and writer, in all its interleavings and reorderings.
//!
//! Each model is a chunk of four buckets with a reader that looks for one class while the
//! writer does what could hide it. Words that promise less than they should are shown to be
//! found out, so that a passing model means something.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::*;
use crate::filter::bucket;
use crate::filter::{Form, Header};

/// The words that the table is meant to have, under the model checker.
struct Sound;

impl Words for Sound {
    type Entries = Ordered;
    type Moves = Ordered;
}

/// Entries may be seen in any order.
struct Unordered;

impl Words for Unordered {
    type Entries = Relaxed;
    type Moves = Ordered;
}

/// Moves may be seen before or after the entries they move.
struct LooselyCounted;

impl Words for LooselyCounted {
    type Entries = Ordered;
    type Moves = Relaxed;
}

/// Moves are not counted at all, so a reader that missed never looks again.
struct Uncounted;

impl Words for Uncounted {
    type Entries = Ordered;
    type Moves = Deaf;
}

type Ordered = Checked<true>;
type Relaxed = Checked<false>;

/// A word of the model checker's, with orderings or without.
///
/// The writer reads its own stores from a plain copy: loom remembers only the last access to
/// a word, and so would take a reader's load, if the writer's own comes after it, to be no
/// race with the writer's next store.
struct Checked<const ORDERED: bool> {
    shared: AtomicU64,
    own: std::sync::atomic::AtomicU64,
}

impl<const ORDERED: bool> Word for Checked<ORDERED> {
    fn new(value: u64) -> Self {
        Self {
            shared: AtomicU64::new(value),
            own: std::sync::atomic::AtomicU64::new(value),
        }
    }

    fn load(&self) -> u64 {
        let acquire = if ORDERED {
            Ordering::Acquire
        } else {
            Ordering::Relaxed
        };
        self.shared.load(acquire)
    }

    fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    fn store(&self, value: u64) {
        let release = if ORDERED {
            Ordering::Release
        } else {
            Ordering::Relaxed
        };
        self.own.store(value, Ordering::Relaxed);
        self.shared.store(value, release);
    }
}

/// A word that keeps nothing.
struct Deaf;

impl Word for Deaf {
    fn new(_: u64) -> Self {
        Self
    }

    fn load(&self) -> u64 {
        0
    }

    fn own(&self) -> u64 {
        0
    }

    fn store(&self, _: u64) {}
}

const FORMS: [Form; 2] = [Form::Filter, Form::Exact];

fn geometry(form: Form) -> Geometry {
    let geometry = Geometry::from_header(Header {
        chunks: 1,
        chunk_buckets: 4,
        slots: 4,
        fingerprint_bits: 16,
        key_id: 0,
    });
    geometry.unwrap().with_form(form)
}

/// Classes of different fingerprints whose candidates are these two buckets.
fn between(form: Form, even: u16, odd: u16, count: usize) -> Vec<Class> {
    let geometry = geometry(form);
    let class = |fingerprint| match form {
        Form::Filter => geometry.class_at(0, even, fingerprint).unwrap(),
        // The mixed hash of that fingerprint and bucket.
        Form::Exact => {
            let high = (u64::from(fingerprint) << 20).div_ceil(65_535);
            geometry.class_of_mixed(high << 12 | u64::from(even))
        }
    };
    let fits = |class: &Class| geometry.indices(geometry.seat(*class)) == (even.into(), odd.into());
    (1..u16::MAX).map(class).filter(fits).take(count).collect()
}

/// A full bucket 3, one of whose classes has room in bucket 0.
struct Crowded<W: Words> {
    writer: Writer<W>,
    /// The class that has to move, from the bucket that is read last to the one read first.
    wanted: Class,
    /// The class it has to make room for.
    newcomer: Class,
}

impl<W: Words> Crowded<W> {
    fn new(form: Form) -> Self {
        let mut writer = Writer::with_words(geometry(form));
        let wanted = between(form, 0, 3, 1)[0];
        // It makes bucket 3 the emptier one for the wanted class.
        let blocker = between(form, 0, 1, 1)[0];
        let mut others = between(form, 2, 3, 8);
        let newcomer = others.pop().unwrap();
        for class in [blocker, wanted].into_iter().chain(others) {
            writer.insert(class).unwrap();
        }
        Self {
            writer,
            wanted,
            newcomer,
        }
    }
}

/// Looks for a class while the writer works.
fn look_beside<W: Words>(
    mut writer: Writer<W>,
    wanted: Class,
    work: impl FnOnce(&mut Writer<W>) + Send + 'static,
) {
    let reader = writer.reader();
    let work = thread::spawn(move || work(&mut writer));

    assert!(reader.contains(wanted), "missed");

    work.join().unwrap();
}

/// Looks as a search does: first for many classes at once, and again if anything moved.
fn glimpse_beside_a_move<W: Words>(form: Form) {
    let Crowded {
        mut writer,
        wanted,
        newcomer,
    } = Crowded::<W>::new(form);
    let reader = writer.reader();
    let work = thread::spawn(move || writer.insert(newcomer).unwrap());

    let table = reader.open();
    let since = table.glance();
    let seen = table.glimpse(table.spot(wanted));
    let stood_still = table.stood_still(since);
    assert!(seen || !stood_still, "missed");
    assert!(seen || reader.contains(wanted), "missed");

    work.join().unwrap();
}

fn look_beside_a_move<W: Words>(form: Form) {
    let Crowded {
        writer,
        wanted,
        newcomer,
    } = Crowded::<W>::new(form);
    look_beside(writer, wanted, move |writer| {
        writer.insert(newcomer).unwrap();
    });
}

fn look_beside_an_overflowed_entry_that_settles<W: Words>(form: Form) {
    let mut writer = Writer::<W>::with_words(geometry(form));
    let classes = between(form, 0, 3, 9);
    let (wanted, first) = (classes[8], classes[0]);
    for class in classes {
        writer.insert(class).unwrap();
    }
    assert_eq!(writer.overflowed(), 1);
    look_beside(writer, wanted, move |writer| {
        assert!(writer.remove(first));
        assert_eq!(writer.overflowed(), 0);
    });
}

#[test]
fn the_model_moves_the_wanted_class() {
    for form in FORMS {
        loom::model(move || {
            let mut table = Crowded::<Sound>::new(form);
            let in_bucket = |table: &Crowded<Sound>, at: usize| {
                let Table {
                    store, geometry, ..
                } = &*table.writer.table;
                let wanted = geometry.seat(table.wanted).fingerprint();
                bucket::holds(store.fingerprints(geometry, at), wanted)
            };
            assert!(in_bucket(&table, 3) && !in_bucket(&table, 0));

            table.writer.insert(table.newcomer).unwrap();

            assert!(in_bucket(&table, 0) && !in_bucket(&table, 3));
        });
    }
}

#[test]
fn a_class_is_found_while_it_moves() {
    for form in FORMS {
        loom::model(move || look_beside_a_move::<Sound>(form));
    }
}

#[test]
#[should_panic(expected = "missed")]
fn a_class_is_missed_if_moves_are_not_counted() {
    loom::model(|| look_beside_a_move::<Uncounted>(Form::Filter));
}

#[test]
#[should_panic(expected = "missed")]
fn a_class_is_missed_if_entries_are_unordered() {
    loom::model(|| look_beside_a_move::<Unordered>(Form::Filter));
}

#[test]
#[should_panic(expected = "missed")]
fn a_class_is_missed_if_moves_are_counted_loosely() {
    loom::model(|| look_beside_a_move::<LooselyCounted>(Form::Filter));
}

#[test]
fn a_class_is_found_by_a_glimpse_while_it_moves() {
    for form in FORMS {
        loom::model(move || glimpse_beside_a_move::<Sound>(form));
    }
}

#[test]
#[should_panic(expected = "missed")]
fn a_class_is_missed_by_a_glimpse_if_moves_are_not_counted() {
    loom::model(|| glimpse_beside_a_move::<Uncounted>(Form::Filter));
}

#[test]
#[should_panic(expected = "missed")]
fn a_class_is_missed_by_a_glimpse_if_moves_are_counted_loosely() {
    loom::model(|| glimpse_beside_a_move::<LooselyCounted>(Form::Filter));
}

#[test]
fn a_class_is_found_while_it_moves_to_and_fro() {
    for form in FORMS {
        loom::model(move || {
            let Crowded { writer, wanted, .. } = Crowded::<Sound>::new(form);
            look_beside(writer, wanted, move |writer| {
                let fingerprint = writer.geometry().seat(wanted).fingerprint();
                writer.push(0, 3, 0, fingerprint);
                writer.push(0, 0, 3, fingerprint);
                writer.push(0, 3, 0, fingerprint);
            });
        });
    }
}

#[test]
fn a_class_is_found_while_its_overflowed_entry_settles() {
    for form in FORMS {
        loom::model(move || look_beside_an_overflowed_entry_that_settles::<Sound>(form));
    }
}

#[test]
#[should_panic(expected = "missed")]
fn a_class_is_missed_if_settling_is_not_counted() {
    loom::model(|| look_beside_an_overflowed_entry_that_settles::<Uncounted>(Form::Filter));
}

#[test]
fn a_class_is_found_while_its_double_comes_and_goes() {
    for form in FORMS {
        loom::model(move || {
            let Crowded { writer, wanted, .. } = Crowded::<Sound>::new(form);
            look_beside(writer, wanted, move |writer| {
                writer.insert(wanted).unwrap();
                assert!(writer.remove(wanted));
            });
        });
    }
}

#[test]
fn a_class_is_found_while_its_chunk_is_replaced() {
    for form in FORMS {
        loom::model(move || {
            let Crowded {
                writer,
                wanted,
                newcomer,
            } = Crowded::<Sound>::new(form);
            let mut classes = [wanted, newcomer];
            classes.sort_unstable();
            look_beside(writer, wanted, move |writer| {
                writer.replace_chunk(0, &classes).unwrap();
            });
        });
    }
}
