//! A window that follows the rate at which a path delivers.
//!
//! Windows that follow losses are small wherever a long path loses a packet now and then: at
//! 239 ms and one loss in a thousand CUBIC takes a minute for what fits in two seconds. Here the
//! window is the rate that the path was seen to deliver, times its shortest round-trip time and
//! a little more. Losses count when they are many, for then the path has no more to give.
//!
//! Time is cut into rounds: a round ends with the acknowledgement of a packet that was sent in
//! it. [`Path`] is told what was acknowledged and lost, and says how much may be under way.

use std::time::{Duration, Instant};

use super::recent::{Highest, Lowest};

/// Ten packets, as TCP starts with; no path is too short for that.
pub(super) const MIN_WINDOW: u64 = 14_720;
/// More in flight on an unknown path is a gamble at any rate.
const MAX_START: u64 = 4 << 20;
/// Rounds are at least this long, or those of short paths would hold a few packets each.
const SHORTEST_ROUND: Duration = Duration::from_millis(5);
/// What may wait in the path's queue beyond the round-trip time: the time that a busy receiver
/// takes to answer.
const SLACK: Duration = Duration::from_millis(4);
/// Of a round's bytes, what may be lost for other reasons than a full queue: one in 50.
const LOSS_IN: u64 = 50;
/// Fewer lost bytes in a round are chance.
const FEW_LOST: u64 = 4 * 1_500;
/// What a flow keeps in the queue and tries to have more of, whatever its rate: so that those
/// with less catch up with those with more.
const OWN: u64 = 8 * 1_400;
/// What is taken of a window that was too much: one part of this many.
const CUT: u64 = 4;
/// What is tried again in a cycle: one part of this many.
const GROW: u64 = 8;
/// Rounds that a measured rate counts, as many as are in a cycle of probing.
const CYCLE: u8 = 8;
/// Rounds after a cut in which losses are those of the time before it.
const AFTER_CUT: u8 = 2;

/// What an operator allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// What an unknown path is sent at first, in bytes per second.
    pub(super) start: u64,
    /// What no path is sent more than, in bytes per second.
    pub(super) most: u64,
}

/// How much is known of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing: no acknowledgement yet.
    Unknown,
    /// It delivers at least what it was given: more is given each round.
    Rising {
        /// The rate of the best round.
        best: u64,
        /// Rounds since that were not much better.
        flat: u8,
    },
    /// Its rate is known. Now and then more is tried.
    Known {
        /// The round in its cycle.
        round: u8,
    },
}

impl Phase {
    /// Nothing was measured yet.
    const RISING: Self = Self::Rising { best: 0, flat: 0 };
}

/// What happened since the round began.
#[derive(Clone, Copy, Debug)]
struct Round {
    began: Instant,
    delivered: u64,
    lost: u64,
    /// When the first packet was sent that was acknowledged in it: there may have been nothing
    /// to send before.
    first_sent: Option<Instant>,
    /// Whether there was less to send than allowed.
    limited: bool,
    shortest: Duration,
}

impl Round {
    const fn new(began: Instant) -> Self {
        Self {
            began,
            delivered: 0,
            lost: 0,
            first_sent: None,
            limited: false,
            shortest: Duration::MAX,
        }
    }

    const fn is_lossy(&self) -> bool {
        self.lost > FEW_LOST && self.lost > (self.delivered + self.lost) / LOSS_IN
    }

    /// Bytes per second.
    fn rate(&self, now: Instant) -> u64 {
        let sent = self.first_sent.unwrap_or(self.began);
        let took = now.saturating_duration_since(self.began.max(sent));
        let took = took.max(self.shortest);
        per_second(self.delivered, took)
    }
}

/// What is known of a path, and what may be under way on it.
#[derive(Clone, Debug)]
pub(super) struct Path {
    limits: Limits,
    phase: Phase,
    window: u64,
    round: Round,
    rates: Highest,
    round_trip: Lowest,
    /// The shortest round trips of this cycle and of the one before. Where the queue doesn't run
    /// empty although this flow let it, others fill it, and who doesn't follow loses its share.
    cycle: Duration,
    standing: Duration,
    /// What was too much under way once, less a part of it; more is tried again slowly.
    bound: u64,
    /// Rounds in which losses don't count.
    forgiven: u8,
    /// Whether it gives way to what is urgent.
    background: bool,
    /// Rounds in which the queue isn't judged.
    held: u8,
}

impl Path {
    pub(super) fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            phase: Phase::Unknown,
            window: MIN_WINDOW,
            round: Round::new(now),
            rates: Highest::default(),
            round_trip: Lowest::default(),
            cycle: Duration::MAX,
            standing: Duration::ZERO,
            bound: u64::MAX,
            forgiven: 0,
            background: false,
            held: 0,
        }
    }

    /// Bytes that may be sent and not acknowledged.
    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    /// A packet that was sent at `sent` was acknowledged. `limited`: there is less to send than
    /// the window allows.
    pub(super) fn handle_acknowledged(
        &mut self,
        bytes: u64,
        sent: Instant,
        limited: bool,
        now: Instant,
    ) {
        let took = now.saturating_duration_since(sent);
        self.round_trip.put(took, now);
        self.round.shortest = self.round.shortest.min(took);
        self.round.delivered += bytes;
        self.round.first_sent.get_or_insert(sent);
        self.round.limited |= limited;
        match self.phase {
            Phase::Unknown => self.begin(now),
            _ if self.background && !limited => self.grow_in_background(bytes, took),
            Phase::Rising { .. } if !limited => self.set_window(self.window.saturating_add(bytes)),
            Phase::Rising { .. } | Phase::Known { .. } => {}
        }
        if sent >= self.round.began
            && now.saturating_duration_since(self.round.began) >= SHORTEST_ROUND
        {
            self.end_round(now);
        }
    }

    /// Packets were lost, or marked by a full queue if `bytes` is 0.
    pub(super) fn handle_lost(&mut self, bytes: u64, persistent: bool, now: Instant) {
        if persistent {
            let background = self.background;
            *self = Self::new(self.limits, now);
            self.background = background;
            // What it is to begin with has just proved too much.
            self.phase = Phase::RISING;
            return;
        }
        let marked = if bytes == 0 { FEW_LOST + 1 } else { 0 };
        self.round.lost += bytes + marked;
        if self.phase == Phase::Unknown {
            self.phase = Phase::RISING;
        }
        // A queue that has overflown is not filled until the round ends.
        if self.round.lost > FEW_LOST * 4
            && self.round.lost > self.round.delivered
            && self.forgiven == 0
        {
            self.end_round(now);
        }
    }

    fn begin(&mut self, now: Instant) {
        self.phase = Phase::RISING;
        self.set_window(first_window(self.limits.start, self.shortest()));
        self.round = Round::new(now);
    }

    fn end_round(&mut self, now: Instant) {
        let round = std::mem::replace(&mut self.round, Round::new(now));
        let rate = round.rate(now);
        let known = self.rates.get();
        self.cycle = self.cycle.min(round.shortest);
        // What was not asked to deliver says nothing of what it could.
        if !(round.limited || self.background) || rate > known {
            self.rates.put(rate);
        }
        if self.forgiven > 0 {
            self.forgiven -= 1;
        } else if round.is_lossy() {
            self.cut(rate, &round);
            return;
        }
        if round.limited {
            return;
        }
        if self.background {
            self.end_background_round(&round);
            return;
        }
        match self.phase {
            Phase::Unknown => {}
            Phase::Rising { best, flat } => self.rise(best, flat, rate, &round),
            Phase::Known { round: at } => {
                // What more was tried in the first round is acknowledged in the second.
                let risen =
                    at == 2 && rate > known.saturating_add(known / 8) && !self.is_queued(&round);
                if risen {
                    self.phase = Phase::Rising {
                        best: rate,
                        flat: 0,
                    };
                } else {
                    self.go_on((at + 1) % CYCLE);
                }
            }
        }
    }

    fn rise(&mut self, best: u64, flat: u8, rate: u64, round: &Round) {
        let queued = self.is_queued(round);
        if !queued && rate > best.saturating_add(best / 4) {
            self.phase = Phase::Rising {
                best: rate,
                flat: 0,
            };
            return;
        }
        if queued || flat >= 2 {
            // So much has got through: what was too much before is not any more.
            let passed = over(best.max(rate), self.shortest() + SLACK);
            self.bound = self.bound.max(passed);
            // The queue that has grown is let run empty.
            self.go_on(2);
        } else {
            self.phase = Phase::Rising {
                best,
                flat: flat + 1,
            };
        }
    }

    /// Whether packets wait for others all through a round.
    fn is_queued(&self, round: &Round) -> bool {
        let shortest = self.shortest();
        round.shortest > shortest + shortest / 8 + SLACK
    }

    /// The path is full: from here on it is what it has delivered in this round. That stays its
    /// rate while others press, so what may be under way is bounded besides.
    fn cut(&mut self, rate: u64, round: &Round) {
        let mut fits = self.window;
        // What it was not asked to deliver it may well be able to.
        if !round.limited {
            self.rates = Highest::default();
            self.rates.put(rate);
            fits = fits.min(over(rate, round.shortest));
        }
        self.bound = (fits - fits / CUT).max(MIN_WINDOW);
        self.forgiven = AFTER_CUT;
        self.go_on(2);
    }

    /// Goes on at the rate that is known: a quarter more in the first round of a cycle, less in
    /// the one after it, so that what was too much leaves the queue.
    fn go_on(&mut self, round: u8) {
        self.phase = Phase::Known { round };
        self.bound = self.bound.saturating_add(OWN);
        if round == 0 {
            self.bound = self.bound.saturating_add(self.bound / GROW);
            self.standing = std::mem::replace(&mut self.cycle, Duration::MAX);
        }
        let shortest = self.shortest();
        let around = self.standing.clamp(shortest, shortest * 2);
        let (time, slack) = match round {
            1 => (around + around / 4, SLACK),
            2 => (shortest - shortest / 8, SLACK / 4),
            _ => (around + around / 16, SLACK),
        };
        let rate = self.rates.get();
        self.set_window((over(rate, time + slack) + OWN).min(self.bound));
    }

    fn set_window(&mut self, window: u64) {
        let most = over(self.limits.most, self.shortest() + SLACK);
        self.window = window.min(most).max(MIN_WINDOW);
    }

    fn shortest(&self) -> Duration {
        self.round_trip.get().unwrap_or(Duration::ZERO)
    }
}

/// What a fresh connection may have under way: what its start rate makes in a round trip.
pub(super) fn first_window(bytes_per_second: u64, round_trip: Duration) -> u64 {
    over(bytes_per_second, round_trip).clamp(MIN_WINDOW, MAX_START)
}

/// What a rate makes in a time.
fn over(bytes_per_second: u64, time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let bytes = u128::from(bytes_per_second) * u128::from(micros) / 1_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let micros = time.as_micros().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX)
}

mod background;

#[cfg(test)]
mod tests;
