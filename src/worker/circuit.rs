//! A circuit breaker: a worker that fails request after request is left alone for a while, and then tried with one.
//!
//! - **Closed**: requests pass. So many failures in a row, with no success between them, open it.
//! - **Open**: nothing passes for a time, which doubles with each opening in a row.
//! - **Half-open**: one request at a time passes, as a probe. Its success closes the circuit, its failure opens it again.
//!
//! Failures are what says something about the worker and not about the request: no connection, one that broke before the
//! answer was whole, no answer in time, 502, 503 and 504, a failed health check. A worker's 500 is not one of them: a request
//! that no worker can answer would take down the fleet, one circuit after another.
//!
//! A success is an answer that is whole. Since that may take minutes, a probe whose answer has begun closes the circuit
//! on probation: should the next request fail, it opens again, and for longer.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// When a circuit opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitSettings {
    /// Failures in a row that open it, at least 1.
    pub failures: u32,
    /// How long it stays open the first time.
    pub first_wait: Duration,
    /// How long at most.
    pub longest_wait: Duration,
}

impl Default for CircuitSettings {
    fn default() -> Self {
        CircuitSettings { failures: 5, first_wait: Duration::from_secs(1), longest_wait: Duration::from_secs(30) }
    }
}

/// What a circuit is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Closed,
    HalfOpen,
    Open,
}

impl Phase {
    /// For logs and operators.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Closed => "closed",
            Phase::HalfOpen => "half-open",
            Phase::Open => "open",
        }
    }

    /// As the metric has it: 0 closed, 1 open.
    pub fn openness(self) -> f64 {
        match self {
            Phase::Closed => 0.0,
            Phase::HalfOpen => 0.5,
            Phase::Open => 1.0,
        }
    }
}

/// See the module's documentation. Times are given from outside, so that tests need not wait.
#[derive(Debug)]
pub struct Circuit {
    settings: CircuitSettings,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// `wait`: for how long it will open.
    Closed {
        failures: u32,
        wait: Duration,
    },
    Open {
        until: Instant,
        wait: Duration,
    },
    HalfOpen {
        wait: Duration,
        probing: bool,
    },
}

/// Leave to send one request. It must be given back with its outcome ([`Circuit::end`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    probe: bool,
}

/// How a request ended, as far as it tells something about the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Failure,
    /// The client left, or it was never sent.
    Unknown,
}

impl Circuit {
    pub fn new(settings: CircuitSettings) -> Self {
        Circuit { settings, state: Mutex::new(Self::fresh(&settings)) }
    }

    fn fresh(settings: &CircuitSettings) -> State {
        State::Closed { failures: 0, wait: settings.first_wait }
    }

    /// As new: what it guards is another.
    pub fn reset(&self) {
        *self.state() = Self::fresh(&self.settings);
    }

    /// What it is doing at this time.
    pub fn phase(&self, now: Instant) -> Phase {
        match *self.state() {
            State::Closed { .. } => Phase::Closed,
            State::Open { until, .. } if now < until => Phase::Open,
            State::Open { .. } | State::HalfOpen { .. } => Phase::HalfOpen,
        }
    }

    /// Whether [`Self::pass`] would give one now.
    pub fn lets_pass(&self, now: Instant) -> bool {
        match *self.state() {
            State::Closed { .. } => true,
            State::Open { until, .. } => now >= until,
            State::HalfOpen { probing, .. } => !probing,
        }
    }

    /// Leave to send a request, if the circuit gives it.
    pub fn pass(&self, now: Instant) -> Option<Pass> {
        let mut state = self.state();
        let wait = match *state {
            State::Closed { .. } => return Some(Pass { probe: false }),
            State::Open { until, wait } if now >= until => wait,
            State::HalfOpen { wait, probing: false } => wait,
            State::Open { .. } | State::HalfOpen { .. } => return None,
        };
        *state = State::HalfOpen { wait, probing: true };
        Some(Pass { probe: true })
    }

    /// The answer to a request that had a pass has begun. Gives the phase if this has changed it.
    pub fn answering(&self, pass: &mut Pass) -> Option<Phase> {
        // Only once, and without the lock for all but probes.
        if !std::mem::take(&mut pass.probe) {
            return None;
        }
        let mut state = self.state();
        let State::HalfOpen { wait, .. } = *state else { return None };
        let wait = (wait * 2).min(self.settings.longest_wait);
        *state = State::Closed { failures: self.settings.failures.saturating_sub(1), wait };
        Some(Phase::Closed)
    }

    /// A request that had a pass is over. Gives the phase if this has changed it.
    ///
    /// Once the circuit is not closed, only its probe has a say: whatever else ends now was sent before.
    pub fn end(&self, pass: Pass, outcome: Outcome, now: Instant) -> Option<Phase> {
        let mut state = self.state();
        match (*state, outcome) {
            (State::HalfOpen { .. }, Outcome::Success) if pass.probe => {
                *state = Self::fresh(&self.settings);
                Some(Phase::Closed)
            }
            (State::HalfOpen { wait, .. }, Outcome::Failure) if pass.probe => {
                let wait = (wait * 2).min(self.settings.longest_wait);
                *state = State::Open { until: now + wait, wait };
                Some(Phase::Open)
            }
            (State::HalfOpen { wait, .. }, Outcome::Unknown) if pass.probe => {
                *state = State::HalfOpen { wait, probing: false };
                None
            }
            (State::Closed { .. }, Outcome::Success) => {
                *state = Self::fresh(&self.settings);
                None
            }
            (State::Closed { failures, wait }, Outcome::Failure) => self.failed(&mut state, failures, wait, now),
            _ => None,
        }
    }

    /// Something went well that had no pass.
    pub fn succeed(&self) {
        let mut state = self.state();
        if matches!(*state, State::Closed { .. }) {
            *state = Self::fresh(&self.settings);
        }
    }

    /// Something failed that had no pass, such as a health check. Gives the phase if this has changed it.
    pub fn fail(&self, now: Instant) -> Option<Phase> {
        let mut state = self.state();
        match *state {
            State::Closed { failures, wait } => self.failed(&mut state, failures, wait, now),
            _ => None,
        }
    }

    /// The worker is healthy again after it was not: most likely it is a new process, and worth a probe now.
    pub fn came_back(&self) -> Option<Phase> {
        let mut state = self.state();
        match *state {
            State::Open { .. } => {
                *state = State::HalfOpen { wait: self.settings.first_wait, probing: false };
                Some(Phase::HalfOpen)
            }
            _ => None,
        }
    }

    fn failed(&self, state: &mut State, failures: u32, wait: Duration, now: Instant) -> Option<Phase> {
        if failures + 1 < self.settings.failures {
            *state = State::Closed { failures: failures + 1, wait };
            return None;
        }
        *state = State::Open { until: now + wait, wait };
        Some(Phase::Open)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A state is replaced whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETTINGS: CircuitSettings =
        CircuitSettings { failures: 3, first_wait: Duration::from_secs(1), longest_wait: Duration::from_secs(5) };

    fn opened(at: Instant) -> Circuit {
        let circuit = Circuit::new(SETTINGS);
        for _ in 0..3 {
            let pass = circuit.pass(at).unwrap();
            circuit.end(pass, Outcome::Failure, at);
        }
        assert_eq!(circuit.phase(at), Phase::Open);
        circuit
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let (circuit, now) = (Circuit::new(SETTINGS), Instant::now());
        let pass = circuit.pass(now).unwrap();
        for outcome in [Outcome::Failure, Outcome::Failure, Outcome::Success, Outcome::Failure, Outcome::Unknown] {
            assert_eq!(circuit.end(pass, outcome, now), None);
        }
        assert_eq!(circuit.fail(now), None);
        assert_eq!(circuit.end(pass, Outcome::Failure, now), Some(Phase::Open));
        assert!(!circuit.lets_pass(now) && circuit.pass(now).is_none());
    }

    #[test]
    fn one_probe_at_a_time_decides_and_each_failed_one_doubles_the_wait() {
        let mut now = Instant::now();
        let circuit = opened(now);
        for wait in [1, 2, 4, 5, 5] {
            assert!(circuit.pass(now + Duration::from_secs(wait) - Duration::from_millis(1)).is_none(), "{wait}");
            now += Duration::from_secs(wait);
            assert_eq!(circuit.phase(now), Phase::HalfOpen);
            let probe = circuit.pass(now).unwrap();
            assert!(circuit.pass(now).is_none(), "a second probe");
            assert_eq!(circuit.end(probe, Outcome::Failure, now), Some(Phase::Open));
        }
        now += Duration::from_secs(5);
        let probe = circuit.pass(now).unwrap();
        assert_eq!(circuit.end(probe, Outcome::Success, now), Some(Phase::Closed));
        assert_eq!(circuit.phase(now), Phase::Closed);
    }

    #[test]
    fn a_probe_whose_answer_breaks_off_opens_it_again_for_longer_and_a_whole_answer_makes_it_as_new() {
        let mut now = Instant::now();
        let circuit = opened(now);
        for wait in [1, 2, 4, 5, 5] {
            now += Duration::from_secs(wait);
            let mut probe = circuit.pass(now).unwrap();
            assert_eq!(circuit.answering(&mut probe), Some(Phase::Closed));
            assert_eq!(circuit.answering(&mut probe), None, "said once");
            assert_eq!(circuit.end(probe, Outcome::Failure, now), Some(Phase::Open), "{wait}");
            assert!(circuit.pass(now + Duration::from_secs(wait) - Duration::from_millis(1)).is_none(), "{wait}");
        }
        now += Duration::from_secs(5);
        let mut probe = circuit.pass(now).unwrap();
        circuit.answering(&mut probe);
        circuit.end(probe, Outcome::Success, now);
        for _ in 0..2 {
            assert_eq!(circuit.fail(now), None);
        }
        assert_eq!(circuit.fail(now), Some(Phase::Open));
        assert!(circuit.pass(now + SETTINGS.first_wait).is_some());
    }

    #[test]
    fn a_probe_whose_client_leaves_makes_room_for_another() {
        let now = Instant::now();
        let circuit = opened(now);
        let later = now + Duration::from_secs(1);
        let probe = circuit.pass(later).unwrap();
        circuit.end(probe, Outcome::Unknown, later);
        assert!(circuit.pass(later).is_some());
    }

    #[test]
    fn requests_from_before_have_no_say_once_it_is_open() {
        let now = Instant::now();
        let circuit = Circuit::new(SETTINGS);
        let early = circuit.pass(now).unwrap();
        for _ in 0..3 {
            circuit.fail(now);
        }
        assert_eq!(circuit.end(early, Outcome::Success, now), None);
        assert_eq!(circuit.phase(now), Phase::Open);
        let later = now + Duration::from_secs(1);
        let _probe = circuit.pass(later).unwrap();
        assert_eq!(circuit.end(early, Outcome::Failure, later), None);
        assert_eq!(circuit.phase(later), Phase::HalfOpen);
    }

    #[test]
    fn a_worker_that_is_healthy_again_is_probed_at_once() {
        let now = Instant::now();
        let circuit = opened(now);
        assert_eq!(circuit.came_back(), Some(Phase::HalfOpen));
        assert!(circuit.pass(now).is_some());
        assert_eq!(Circuit::new(SETTINGS).came_back(), None);
    }

    proptest! {
        /// Whatever happens, it neither stays shut for longer than the longest wait after the last event, nor lets more
        /// than one probe through.
        #[test]
        fn it_always_recovers(events in proptest::collection::vec((0u8..6, 0u64..3000), 0..60)) {
            let circuit = Circuit::new(SETTINGS);
            let mut now = Instant::now();
            let mut passes: Vec<Pass> = Vec::new();
            for (event, wait_ms) in events {
                now += Duration::from_millis(wait_ms);
                match event {
                    0 => {
                        let allowed = circuit.lets_pass(now);
                        let pass = circuit.pass(now);
                        prop_assert_eq!(pass.is_some(), allowed);
                        passes.extend(pass);
                    }
                    1 => drop(circuit.fail(now)),
                    2 => for pass in &mut passes {
                        circuit.answering(pass);
                    },
                    _ => if let Some(pass) = passes.pop() {
                        let outcome = [Outcome::Success, Outcome::Failure, Outcome::Unknown][usize::from(event) - 3];
                        circuit.end(pass, outcome, now);
                    },
                }
                prop_assert!(passes.iter().filter(|pass| pass.probe).count() <= 1);
            }
            for pass in passes.drain(..) {
                circuit.end(pass, Outcome::Unknown, now);
            }
            prop_assert!(circuit.lets_pass(now + SETTINGS.longest_wait));
        }
    }
}
