//! A sender that obeys the window, over a simulated link.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use kvgrid_core::Instant as Sim;
use kvgrid_sim::{Fate, Link, LinkConfig};

use super::*;

const SIZE: usize = 1_400;
const PACKET: u64 = SIZE as u64;
/// Packets beyond a hole after which it counts as lost.
const REORDERED: u64 = 3;

/// Who says how much a flow may have under way.
trait Window {
    fn window(&self) -> u64;
    fn acknowledged(&mut self, sent: Instant, limited: bool, now: Instant);
    fn lost(&mut self, bytes: u64, sent: Instant, now: Instant);
    fn give_way(&mut self, _background: bool) {}
}

impl Window for Path {
    fn window(&self) -> u64 {
        Self::window(self)
    }

    fn acknowledged(&mut self, sent: Instant, limited: bool, now: Instant) {
        self.handle_acknowledged(PACKET, sent, limited, now);
    }

    fn lost(&mut self, bytes: u64, _sent: Instant, now: Instant) {
        self.handle_lost(bytes, false, now);
    }

    fn give_way(&mut self, background: bool) {
        self.set_background(background);
    }
}

/// Half as much at a loss, a packet more each round trip: what others on the path may do.
struct Halving {
    window: f64,
    cut: Instant,
}

impl Window for Halving {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a window is a few megabytes"
    )]
    fn window(&self) -> u64 {
        self.window as u64
    }

    fn acknowledged(&mut self, _sent: Instant, _limited: bool, _now: Instant) {
        self.window += (PACKET * PACKET) as f64 / self.window;
    }

    fn lost(&mut self, _bytes: u64, sent: Instant, now: Instant) {
        if sent >= self.cut {
            self.window = (self.window / 2.0).max(2.0 * PACKET as f64);
            self.cut = now;
        }
    }
}

struct Flow {
    control: Box<dyn Window>,
    /// Bytes that it has to send; endless when absent.
    left: Option<u64>,
    next: u64,
    sent: BTreeMap<u64, Instant>,
    under_way: u64,
    delivered: u64,
    lost: u64,
    /// Tokens of the pacer, and when they were filled.
    tokens: f64,
    filled: Instant,
    round_trip: Duration,
    longest: Duration,
}

impl Flow {
    fn new(control: Box<dyn Window>, start: Instant) -> Self {
        Self {
            control,
            left: None,
            next: 0,
            sent: BTreeMap::new(),
            under_way: 0,
            delivered: 0,
            lost: 0,
            tokens: 0.0,
            filled: start,
            round_trip: Duration::from_millis(333),
            longest: Duration::ZERO,
        }
    }
}

impl Flow {
    /// What nothing came back of for long is lost.
    fn give_up(&mut self, now: Instant) {
        let patience = self.round_trip * 2 + Duration::from_millis(50);
        let newest = match self.sent.last_key_value() {
            Some((_, &newest)) if now - newest > patience => newest,
            _ => return,
        };
        self.sent.clear();
        self.lost += self.under_way;
        self.control.lost(self.under_way, newest, now);
        self.under_way = 0;
    }
}

/// Flows that share one bottleneck; acknowledgements come back undisturbed.
struct World {
    link: Link,
    back: Duration,
    start: Instant,
    now: Duration,
    flows: Vec<Flow>,
    turn: usize,
    /// Packets that are lost next.
    lose: usize,
    /// What comes back when: flow and packet.
    returns: BTreeMap<(Duration, usize, u64), ()>,
}

const STEP: Duration = Duration::from_micros(500);

impl World {
    fn new(mbit: u64, round_trip: Duration, buffer: usize, loss: f64) -> Self {
        let config = LinkConfig {
            delay: round_trip / 2,
            rate: NonZeroU64::new(mbit * 1_000_000),
            buffer,
            loss,
            ..LinkConfig::default()
        };
        Self {
            link: Link::new(config, 5).unwrap(),
            back: round_trip / 2,
            start: Instant::now(),
            now: Duration::ZERO,
            flows: Vec::new(),
            turn: 0,
            lose: 0,
            returns: BTreeMap::new(),
        }
    }

    fn at(&self) -> Instant {
        self.start + self.now
    }

    fn add(&mut self, control: Box<dyn Window>) {
        self.flows.push(Flow::new(control, self.start + self.now));
    }

    fn rated(&mut self, limits: Limits) {
        let path = Path::new(limits, self.at());
        self.add(Box::new(path));
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            // None is always the first at a full queue.
            self.turn = self.turn.wrapping_add(7);
            let flows = self.flows.len();
            for flow in 0..flows {
                self.send((flow + self.turn) % flows);
            }
            self.now += STEP;
            while let Some((&(when, flow, packet), ())) = self.returns.first_key_value()
                && when <= self.now
            {
                self.returns.pop_first();
                self.take(flow, packet, when);
            }
        }
    }

    fn send(&mut self, index: usize) {
        let at = self.at();
        let flow = &mut self.flows[index];
        flow.give_up(at);
        let window = flow.control.window();
        let gained = at.duration_since(flow.filled).as_secs_f64() / flow.round_trip.as_secs_f64()
            * window as f64
            * 1.25;
        flow.filled = at;
        flow.tokens = (flow.tokens + gained).min(256.0 * PACKET as f64);
        while flow.under_way + PACKET <= window
            && flow.tokens >= PACKET as f64
            && flow.left != Some(0)
        {
            flow.tokens -= PACKET as f64;
            flow.left = flow.left.map(|left| left.saturating_sub(PACKET));
            flow.sent.insert(flow.next, at);
            flow.under_way += PACKET;
            let sim = Sim::from_micros(u64::try_from(self.now.as_micros()).unwrap());
            if self.lose > 0 {
                self.lose -= 1;
            } else if let Fate::Arrives(when) = self.link.handle_packet(sim, SIZE) {
                let back = Duration::from_micros(when.as_micros()) + self.back;
                self.returns.insert((back, index, flow.next), ());
            }
            flow.next += 1;
        }
    }

    fn take(&mut self, index: usize, packet: u64, when: Duration) {
        let now = self.start + when;
        let flow = &mut self.flows[index];
        let Some(sent) = flow.sent.remove(&packet) else {
            return;
        };
        flow.under_way -= PACKET;
        flow.delivered += PACKET;
        flow.round_trip = (flow.round_trip * 7 + (now - sent)) / 8;
        flow.longest = flow.longest.max(now - sent);
        let limited = flow.left == Some(0);
        flow.control.acknowledged(sent, limited, now);
        let gone: Vec<_> = flow
            .sent
            .range(..packet.saturating_sub(REORDERED))
            .map(|(&packet, &sent)| (packet, sent))
            .collect();
        let Some(&(_, newest)) = gone.last() else {
            return;
        };
        for (packet, _) in &gone {
            flow.sent.remove(packet);
        }
        let bytes = gone.len() as u64 * PACKET;
        flow.under_way -= bytes;
        flow.lost += bytes;
        flow.control.lost(bytes, newest, now);
    }

    /// Mbit/s of each flow in the time to come.
    fn rates(&mut self, time: Duration) -> Vec<f64> {
        let before: Vec<_> = self.flows.iter().map(|flow| flow.delivered).collect();
        self.run(time);
        self.flows
            .iter()
            .zip(before)
            .map(|(flow, before)| (flow.delivered - before) as f64 * 8.0 / 1e6 / time.as_secs_f64())
            .collect()
    }
}

mod background;

const LIMITS: Limits = Limits {
    start: 10_000_000,
    most: 125_000_000,
};
const FAR: Duration = Duration::from_millis(239);
const NEAR: Duration = Duration::from_millis(4);

#[test]
fn the_first_window_is_rate_times_round_trip_within_bounds() {
    let window = |round_trip| first_window(10_000_000, round_trip);

    assert_eq!(window(Duration::from_millis(239)), 2_390_000);
    assert_eq!(window(Duration::from_millis(4)), 40_000);
    assert_eq!(window(Duration::from_micros(100)), MIN_WINDOW);
    assert_eq!(window(Duration::from_secs(9)), MAX_START);
}

#[test]
fn a_long_path_is_filled_in_spite_of_single_losses() {
    for loss in [0.0, 0.001, 0.01] {
        let mut world = World::new(200, FAR, 4 << 20, loss);
        world.rated(LIMITS);
        world.run(Duration::from_secs(2));

        let rate = world.rates(Duration::from_secs(8))[0];

        assert!(rate > 170.0, "{rate} of 200 Mbit/s at a loss of {loss}");
    }
}

#[test]
fn a_short_path_is_filled_and_its_queue_stays_short() {
    let mut world = World::new(200, NEAR, 4 << 20, 0.0);
    world.rated(LIMITS);
    world.run(Duration::from_secs(1));
    world.flows[0].longest = Duration::ZERO;

    let rate = world.rates(Duration::from_secs(5))[0];

    assert!(rate > 180.0, "{rate} of 200 Mbit/s");
    let longest = world.flows[0].longest;
    assert!(longest < Duration::from_millis(16), "{longest:?}");
}

#[test]
fn a_path_that_is_slower_than_the_start_rate_is_known_soon() {
    let mut world = World::new(10, FAR, 256 << 10, 0.0);
    world.rated(LIMITS);
    world.run(Duration::from_secs(5));
    world.flows[0].lost = 0;

    let rate = world.rates(Duration::from_secs(10))[0];

    assert!(rate > 8.0, "{rate} of 10 Mbit/s");
    let lost = world.flows[0].lost as f64 * 8.0 / 1e6 / 10.0;
    assert!(lost < rate * 0.03, "{lost} Mbit/s lost beside {rate}");
}

#[test]
fn nothing_is_sent_faster_than_the_highest_rate() {
    let limits = Limits {
        most: 12_500_000,
        ..LIMITS
    };
    let mut world = World::new(1_000, FAR, 4 << 20, 0.0);
    world.rated(limits);
    world.run(Duration::from_secs(3));

    let rate = world.rates(Duration::from_secs(5))[0];

    assert!(
        (80.0..105.0).contains(&rate),
        "{rate} Mbit/s of at most 100"
    );
}

#[test]
fn flows_that_share_a_path_get_comparable_shares() {
    for round_trip in [NEAR, FAR] {
        let mut world = World::new(200, round_trip, 4 << 20, 0.0);
        world.rated(LIMITS);
        world.run(Duration::from_secs(5));
        world.rated(LIMITS);
        world.run(Duration::from_secs(10));

        let rates = world.rates(Duration::from_secs(20));

        let sum: f64 = rates.iter().sum();
        assert!(sum > 160.0, "{rates:?} at {round_trip:?}");
        let share = rates[0].min(rates[1]) / sum;
        assert!(share > 0.2, "{rates:?} at {round_trip:?}");
    }
}

#[test]
fn a_flow_that_halves_at_each_loss_is_left_a_share() {
    let mut world = World::new(100, Duration::from_millis(40), 1 << 20, 0.0);
    let cut = world.at();
    world.add(Box::new(Halving {
        window: 500_000.0,
        cut,
    }));
    world.run(Duration::from_secs(5));
    world.rated(LIMITS);
    world.run(Duration::from_secs(10));

    let rates = world.rates(Duration::from_secs(30));

    assert!(rates[0] > 15.0, "{rates:?}");
    assert!(rates[1] > 15.0, "{rates:?}");
}

#[test]
fn an_idle_path_keeps_what_is_known_of_it() {
    let mut world = World::new(200, FAR, 4 << 20, 0.0);
    world.rated(LIMITS);
    world.run(Duration::from_secs(3));
    world.flows[0].left = Some(0);
    world.run(Duration::from_secs(60));
    let window = world.flows[0].control.window();

    assert!(window > 4_000_000, "{window}");
    world.flows[0].left = Some(380_000);
    let before = world.flows[0].delivered;
    world.run(FAR + Duration::from_millis(60));
    assert!(world.flows[0].delivered - before >= 380_000);
}

#[test]
fn a_small_request_that_loses_packets_leaves_most_of_what_is_known() {
    let mut world = World::new(200, FAR, 4 << 20, 0.0);
    world.rated(LIMITS);
    world.run(Duration::from_secs(3));
    world.flows[0].left = Some(0);
    world.run(Duration::from_secs(30));
    for _ in 0..10 {
        world.lose = 6;
        world.flows[0].left = Some(40_000);
        world.run(Duration::from_secs(2));
        world.flows[0].left = Some(40_000);
        world.run(Duration::from_secs(20));
    }

    let window = world.flows[0].control.window();
    assert!(window > 380_000, "{window}");
}

#[test]
fn a_path_that_another_flow_has_left_is_filled_again() {
    let mut world = World::new(200, FAR, 1 << 20, 0.0);
    world.rated(LIMITS);
    let cut = world.at();
    world.add(Box::new(Halving {
        window: 6_000_000.0,
        cut,
    }));
    world.run(Duration::from_secs(20));
    world.flows[1].left = Some(0);
    world.run(Duration::from_secs(15));

    let rate = world.rates(Duration::from_secs(5))[0];

    assert!(rate > 150.0, "{rate} of 200 Mbit/s");
}

#[test]
fn a_path_that_has_become_slower_is_followed() {
    let mut world = World::new(200, FAR, 2 << 20, 0.0);
    world.rated(LIMITS);
    world.run(Duration::from_secs(5));
    let config = LinkConfig {
        delay: FAR / 2,
        rate: NonZeroU64::new(50_000_000),
        buffer: 2 << 20,
        ..LinkConfig::default()
    };
    world.link = Link::new(config, 6).unwrap();
    world.run(Duration::from_secs(5));
    world.flows[0].lost = 0;

    let rate = world.rates(Duration::from_secs(10))[0];

    assert!(rate > 40.0, "{rate} of 50 Mbit/s");
    let lost = world.flows[0].lost as f64 * 8.0 / 1e6 / 10.0;
    assert!(lost < 3.0, "{lost} Mbit/s lost");
}

#[test]
fn persistent_loss_begins_anew_with_the_least() {
    let now = Instant::now();
    let mut path = Path::new(LIMITS, now);
    path.handle_acknowledged(PACKET, now, false, now + FAR);
    assert!(path.window() > 2_000_000);

    path.handle_lost(PACKET, true, now + FAR * 2);

    assert_eq!(path.window(), MIN_WINDOW);
    path.handle_acknowledged(PACKET, now + FAR * 2, false, now + FAR * 3);
    assert!(path.window() <= MIN_WINDOW + PACKET);
}

#[test]
fn no_order_of_events_makes_a_window_of_nothing_or_more_than_allowed() {
    use rand::{RngExt, SeedableRng};
    let start = Instant::now();
    for seed in 0..200 {
        let mut rng = rand::rngs::SmallRng::seed_from_u64(seed);
        let mut path = Path::new(LIMITS, start);
        let mut now = start;
        for _ in 0..300 {
            now += Duration::from_micros(rng.random_range(0..20_000));
            if rng.random_bool(0.2) {
                let bytes = rng.random_range(0..1 << 20);
                path.handle_lost(bytes, rng.random_bool(0.05), now);
            } else {
                let ago = Duration::from_micros(rng.random_range(0..300_000));
                let sent = now.checked_sub(ago).unwrap_or(start);
                path.handle_acknowledged(PACKET, sent, rng.random_bool(0.3), now);
            }
            let window = path.window();
            assert!(window >= MIN_WINDOW, "seed {seed}: {window}");
            assert!(window <= 125_000_000 / 2, "seed {seed}: {window}");
        }
    }
}
