use proptest::prelude::*;

use super::*;

const CONFIG: BreakerConfig = BreakerConfig {
    failures: NonZeroU32::new(3).unwrap(),
    probes: NonZeroU32::new(2).unwrap(),
    first: ms(100),
    most: ms(1_000),
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(ms: u64) -> Instant {
    Instant::from_micros(ms * 1_000)
}

fn fail(breaker: &mut Breaker, now: Instant) {
    let pass = breaker.admit(now).unwrap();
    breaker.failure(pass, now);
}

fn succeed(breaker: &mut Breaker, now: Instant) {
    let pass = breaker.admit(now).unwrap();
    breaker.success(pass, now);
}

/// A breaker that opened at 0.
fn opened() -> Breaker {
    let mut breaker = Breaker::new(CONFIG);
    for _ in 0..3 {
        fail(&mut breaker, at(0));
    }
    breaker
}

#[test]
fn failures_in_a_row_open_it() {
    let mut breaker = Breaker::new(CONFIG);

    fail(&mut breaker, at(0));
    fail(&mut breaker, at(1));
    assert_eq!(breaker.state(at(1)), State::Closed);
    fail(&mut breaker, at(2));

    assert_eq!(breaker.state(at(2)), State::Open { until: at(102) });
    assert_eq!(breaker.admit(at(101)), None);
}

#[test]
fn a_success_in_between_starts_the_count_over() {
    let mut breaker = Breaker::new(CONFIG);

    for _ in 0..10 {
        fail(&mut breaker, at(0));
        fail(&mut breaker, at(0));
        succeed(&mut breaker, at(0));
    }

    assert_eq!(breaker.state(at(0)), State::Closed);
}

#[test]
fn one_probe_at_a_time_is_let_through() {
    let mut breaker = opened();

    let probe = breaker.admit(at(100)).unwrap();
    assert_eq!(breaker.state(at(100)), State::HalfOpen);
    assert!(!breaker.admits(at(101)));
    breaker.success(probe, at(101));

    assert!(breaker.admits(at(101)));
}

#[test]
fn enough_good_probes_close_it() {
    let mut breaker = opened();

    succeed(&mut breaker, at(100));
    assert_eq!(breaker.state(at(100)), State::HalfOpen);
    succeed(&mut breaker, at(100));

    assert_eq!(breaker.state(at(100)), State::Closed);
}

#[test]
fn bad_probes_make_it_wait_longer_up_to_the_limit() {
    let mut breaker = opened();
    let mut now = at(100);

    for cool_down in [200, 400, 800, 1_000, 1_000] {
        fail(&mut breaker, now);
        let until = now + ms(cool_down);
        assert_eq!(breaker.state(now), State::Open { until });
        now = until;
    }
}

#[test]
fn a_relapse_soon_after_closing_waits_longer_and_a_late_one_does_not() {
    for (closed_for, cool_down) in [(999, 200), (1_000, 100)] {
        let mut breaker = opened();
        succeed(&mut breaker, at(100));
        succeed(&mut breaker, at(100));
        let now = at(100) + ms(closed_for);

        for _ in 0..3 {
            fail(&mut breaker, now);
        }

        let until = now + ms(cool_down);
        assert_eq!(breaker.state(now), State::Open { until });
    }
}

#[test]
fn an_abandoned_probe_makes_way_for_another() {
    let mut breaker = opened();

    let probe = breaker.admit(at(100)).unwrap();
    breaker.abandon(probe);

    assert!(breaker.admits(at(100)));
    assert_eq!(breaker.state(at(100)), State::HalfOpen);
}

#[test]
fn a_probe_that_never_ends_makes_way_for_another() {
    let mut breaker = opened();

    let _lost = breaker.admit(at(100)).unwrap();

    assert!(!breaker.admits(at(1_099)));
    assert!(breaker.admits(at(1_100)));
}

#[test]
fn a_request_from_before_it_opened_says_nothing() {
    let mut breaker = Breaker::new(CONFIG);
    let old: Vec<_> = (0..3).map(|_| breaker.admit(at(0)).unwrap()).collect();
    for _ in 0..3 {
        fail(&mut breaker, at(0));
    }

    let mut old = old.into_iter();
    breaker.failure(old.next().unwrap(), at(100));
    breaker.success(old.next().unwrap(), at(100));
    breaker.abandon(old.next().unwrap());

    assert_eq!(breaker.state(at(99)), State::Open { until: at(100) });
    succeed(&mut breaker, at(100));
    assert_eq!(breaker.state(at(100)), State::HalfOpen);
}

#[derive(Clone, Debug)]
enum Op {
    Wait(u64),
    Admit,
    Succeed(prop::sample::Index),
    Fail(prop::sample::Index),
    Abandon(prop::sample::Index),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let which = any::<prop::sample::Index>;
    let op = prop_oneof![
        2 => (0_u64..300).prop_map(Op::Wait),
        4 => Just(Op::Admit),
        1 => which().prop_map(Op::Succeed),
        4 => which().prop_map(Op::Fail),
        1 => which().prop_map(Op::Abandon),
    ];
    prop::collection::vec(op, 0..200)
}

/// What the breaker should do, told by everything that happened since it last changed.
#[derive(Debug, Default)]
struct Model {
    now: u64,
    /// When it last closed, and when and for how long it last opened.
    closed_at: Option<u64>,
    opened: Option<(u64, u64)>,
    is_open: bool,
    /// What passes given out since the last change reported: true for success.
    reports: Vec<bool>,
    /// When the probe under way began.
    probe: Option<u64>,
    changes: usize,
}

impl Model {
    fn half_open(&self) -> bool {
        self.is_open && self.opened.is_some_and(|(at, wait)| self.now >= at + wait)
    }

    fn admits(&self) -> bool {
        let probing = self.probe.is_some_and(|at| self.now < at + 1_000);
        !self.is_open || (self.half_open() && !probing)
    }

    fn report(&mut self, success: bool) {
        self.reports.push(success);
        self.probe = None;
        let row = self
            .reports
            .iter()
            .rev()
            .take_while(|it| **it == success)
            .count();
        let was_healthy = self.closed_at.is_none_or(|at| self.now >= at + 1_000);
        match (self.is_open, success) {
            (false, false) if row == 3 => {
                self.change(Some(if was_healthy { 100 } else { self.longer() }));
            }
            (true, false) => self.change(Some(self.longer())),
            (true, true) if row == 2 => self.change(None),
            (false, false) | (_, true) => {}
        }
    }

    fn longer(&self) -> u64 {
        self.opened.map_or(100, |(_, wait)| (wait * 2).min(1_000))
    }

    fn change(&mut self, open_for: Option<u64>) {
        self.is_open = open_for.is_some();
        match open_for {
            Some(wait) => self.opened = Some((self.now, wait)),
            None => self.closed_at = Some(self.now),
        }
        self.reports.clear();
        self.changes += 1;
    }

    fn state(&self) -> State {
        match self.opened {
            Some((at_ms, wait)) if self.is_open && !self.half_open() => State::Open {
                until: at(at_ms + wait),
            },
            _ if self.is_open => State::HalfOpen,
            _ => State::Closed,
        }
    }
}

/// Takes one of the passes out, and says whether it is from before the last change.
fn take(
    passes: &mut Vec<(Pass, usize)>,
    which: prop::sample::Index,
    model: &Model,
) -> Option<(Pass, bool)> {
    if passes.is_empty() {
        return None;
    }
    let (pass, changes) = passes.swap_remove(which.index(passes.len()));
    Some((pass, changes < model.changes))
}

proptest! {
    #[test]
    fn it_does_what_the_model_does(ops in ops()) {
        let (mut breaker, mut model) = (Breaker::new(CONFIG), Model::default());
        let mut passes = Vec::new();

        for op in ops {
            let now = at(model.now);
            match op {
                Op::Wait(ms) => model.now += ms,
                Op::Admit => {
                    let pass = breaker.admit(now);
                    prop_assert_eq!(pass.is_some(), model.admits());
                    if let Some(pass) = pass {
                        model.probe = model.is_open.then_some(model.now);
                        passes.push((pass, model.changes));
                    }
                }
                Op::Succeed(which) => if let Some((pass, stale)) = take(&mut passes, which, &model) {
                    breaker.success(pass, now);
                    if !stale { model.report(true); }
                },
                Op::Fail(which) => if let Some((pass, stale)) = take(&mut passes, which, &model) {
                    breaker.failure(pass, now);
                    if !stale { model.report(false); }
                },
                Op::Abandon(which) => if let Some((pass, stale)) = take(&mut passes, which, &model) {
                    breaker.abandon(pass);
                    if !stale { model.probe = None; }
                },
            }
            prop_assert_eq!(breaker.state(at(model.now)), model.state());
            prop_assert_eq!(breaker.admits(at(model.now)), model.admits());
        }
    }
}
