//! When the NIXL thread sleeps, when it looks without sleeping, and when it drains notifications.
//!
//! Waking a thread takes as long as writing some hundred kilobytes. So whoever sees that a push will follow wakes it before: when a
//! picture was decoded, and, for those that were in the cache, when a place on a worker is claimed. It looks for the push, and for
//! more after each, for a moment without sleeping.
//!
//! No clock of its own: time comes in as an argument.

use std::time::{Duration, Instant};

/// How often notifications are drained: while somebody waits for one, and otherwise.
const DRAIN_AWAITED: Duration = Duration::from_millis(2);
const DRAIN_IDLE: Duration = Duration::from_millis(100);

/// A push that is expected does not wait for a drain, unless they have been put off for so long.
const DRAIN_LATEST: Duration = Duration::from_millis(4);

/// How long it looks without sleeping for the end of a transfer or a push that was announced, and for more work after some.
const LOOK_EXPECTING: Duration = Duration::from_micros(200);
const LOOK_AFTER_WORK: Duration = Duration::from_micros(50);

/// Between two looks at transfers that take longer.
const POLL_PAUSE: Duration = Duration::from_micros(50);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Pace {
    may_look: bool,
    look_until: Instant,
    woken: Instant,
    drained: Instant,
}

impl Pace {
    /// `may_look`: whether it may look without sleeping. On one core, whoever has the push could not run meanwhile.
    pub(super) fn new(may_look: bool, now: Instant) -> Self {
        Pace { may_look, look_until: now, woken: now, drained: now }
    }

    pub(super) fn is_looking(&self, now: Instant) -> bool {
        now < self.look_until
    }

    /// How long to sleep at most: with transfers in flight, with somebody who waits for a notification.
    pub(super) fn pause(in_flight: bool, awaited: bool) -> Duration {
        match (in_flight, awaited) {
            (true, _) => POLL_PAUSE,
            (false, true) => DRAIN_AWAITED,
            (false, false) => DRAIN_IDLE,
        }
    }

    pub(super) fn woke(&mut self, now: Instant) {
        self.woken = now;
    }

    /// A command came.
    pub(super) fn expects(&mut self, now: Instant) {
        self.look(now, LOOK_EXPECTING);
    }

    /// Something moved; `more` is in flight.
    pub(super) fn worked(&mut self, now: Instant, more: bool) {
        self.look(now, if more { LOOK_EXPECTING } else { LOOK_AFTER_WORK });
    }

    fn look(&mut self, now: Instant, time: Duration) {
        if self.may_look {
            self.look_until = now + time;
        }
    }

    /// Whether to drain now. One that was due while the thread slept comes after the push for which it was woken.
    pub(super) fn drain_is_due(&self, now: Instant) -> bool {
        let due = match self.is_looking(now) {
            true => self.woken.max(self.drained) + DRAIN_LATEST,
            false => self.drained + DRAIN_AWAITED,
        };
        now >= due
    }

    pub(super) fn drained(&mut self, now: Instant) {
        self.drained = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn an_idle_thread_sleeps_long_and_drains_whenever_it_wakes() {
        let start = Instant::now();
        let mut pace = Pace::new(true, start);
        assert!(!pace.is_looking(start));
        assert_eq!(Pace::pause(false, false), DRAIN_IDLE);
        pace.woke(start + DRAIN_IDLE);
        assert!(pace.drain_is_due(start + DRAIN_IDLE));
    }

    #[test]
    fn a_push_that_is_expected_after_a_sleep_does_not_wait_for_the_drain_that_was_due_meanwhile() {
        let start = Instant::now();
        let mut pace = Pace::new(true, start);
        let woken = start + DRAIN_IDLE - MICRO;
        pace.woke(woken);
        pace.expects(woken);
        assert!(pace.is_looking(woken + LOOK_EXPECTING - MICRO));
        assert!(!pace.drain_is_due(woken + LOOK_EXPECTING - MICRO));
        // It did not come: nothing is in the way any more.
        assert!(pace.drain_is_due(woken + LOOK_EXPECTING));
    }

    #[test]
    fn pushes_without_end_do_not_put_drains_off_for_ever() {
        let start = Instant::now();
        let mut pace = Pace::new(true, start);
        pace.woke(start);
        let mut drains = 0;
        for step in 0..10_000 {
            let now = start + step * 10 * MICRO;
            pace.worked(now, true);
            if pace.drain_is_due(now) {
                pace.drained(now);
                drains += 1;
            }
        }
        assert_eq!(drains, 24, "in 100 ms, each 4 ms");
    }

    #[test]
    fn on_one_core_it_never_looks_without_sleeping() {
        let start = Instant::now();
        let mut pace = Pace::new(false, start);
        pace.expects(start);
        pace.worked(start, true);
        assert!(!pace.is_looking(start));
    }
}
