//! One worker: where it is, and what is known of it now.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    belief::Belief,
    changes::{Change, Changes},
    circuit::{Circuit, CircuitSettings, Outcome, Pass, Phase},
    load::Load,
    url::WorkerUrl,
};
use crate::{
    media::resize::SmartResize,
    observe::{self, Series},
    transfer::Landing,
};

/// What each worker may be given, and when it is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Requests at once.
    pub max_requests: usize,
    pub circuit: CircuitSettings,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        WorkerSettings { max_requests: 1024, circuit: CircuitSettings::default() }
    }
}

/// Of the landing. Few failures are enough: meanwhile pixels go inside the requests, and it is the monitor that tries whether
/// pushes land again, and no request.
const LANDING_CIRCUIT: CircuitSettings =
    CircuitSettings { failures: 3, first_wait: Duration::from_secs(1), longest_wait: Duration::from_secs(10) };

/// Names a worker for as long as the gateway runs: counted from 0, and never given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

impl WorkerId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for WorkerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A `vllm serve` behind the gateway.
#[derive(Debug)]
pub struct Worker {
    pub id: WorkerId,
    base: WorkerUrl,
    /// `host:port`, for logs and metrics; never told to clients.
    pub label: String,
    /// Its metrics.
    pub series: Series,
    /// A hash of its URL: what it is known by to all gateways that were given the same.
    pub name_hash: u64,
    healthy: AtomicBool,
    was_healthy: AtomicBool,
    draining: AtomicBool,
    circuit: Circuit,
    landing_circuit: Circuit,
    /// Health checks that have failed in a row. Another question than the circuit's, which is whether requests are worth
    /// sending: a worker that answers all of them with 503 does not hang.
    failed_checks: watch::Sender<u32>,
    /// How many of them show that it hangs.
    hangs_after: u32,
    in_flight: AtomicUsize,
    max_in_flight: usize,
    /// Woken when the last request has left.
    idle: Notify,
    /// How busy it is.
    pub load: Arc<Load>,
    landing: ArcSwapOption<Landing>,
    belief: ArcSwapOption<Belief>,
    resize: ArcSwapOption<SmartResize>,
    models: ArcSwap<Vec<String>>,
    keeps_responses: AtomicBool,
    incarnation: ArcSwapOption<String>,
    changes: Arc<Changes>,
    /// Itself, for what is announced.
    me: Weak<Worker>,
    /// Wakes the monitor: something happened that it should look at now.
    pub look: Notify,
    /// Cancelled when it is taken off the list. Whatever runs for this worker alone ends then.
    pub left: CancellationToken,
}

impl Worker {
    pub(super) fn new(id: WorkerId, base: WorkerUrl, settings: WorkerSettings, changes: Arc<Changes>) -> Arc<Self> {
        let label = base.label();
        Arc::new_cyclic(|me| Worker {
            id,
            name_hash: base.hash(),
            base,
            series: Series::new("worker", label.clone()),
            label,
            healthy: AtomicBool::new(false),
            was_healthy: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            circuit: Circuit::new(settings.circuit),
            landing_circuit: Circuit::new(LANDING_CIRCUIT),
            failed_checks: watch::Sender::new(0),
            hangs_after: settings.circuit.failures,
            in_flight: AtomicUsize::new(0),
            max_in_flight: settings.max_requests,
            idle: Notify::new(),
            load: Arc::default(),
            landing: ArcSwapOption::empty(),
            belief: ArcSwapOption::empty(),
            resize: ArcSwapOption::empty(),
            models: ArcSwap::default(),
            keeps_responses: AtomicBool::new(true),
            incarnation: ArcSwapOption::empty(),
            changes,
            me: me.clone(),
            look: Notify::new(),
            left: CancellationToken::new(),
        })
    }

    /// Where it is.
    pub fn base(&self) -> &WorkerUrl {
        &self.base
    }

    /// The URL of a path of ours on this worker.
    pub fn url(&self, path: &str) -> Url {
        self.base.join(path)
    }

    /// Whether it may be given new requests: alive, not draining, not full, its circuit not open.
    pub fn is_available(&self) -> bool {
        self.is_healthy() && !self.is_draining() && !self.is_full() && self.circuit.lets_pass(Instant::now())
    }

    /// Whether its last health check succeeded, and no connection to it has failed since.
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// A health check has ended. Whether this changes anything.
    pub fn set_healthy(&self, healthy: bool) -> bool {
        let changed = self.healthy.swap(healthy, Ordering::Relaxed) != healthy;
        self.failed_checks.send_modify(|failed| *failed = if healthy { 0 } else { failed.saturating_add(1) });
        if !healthy {
            self.set_resize(None);
            self.circuit_changed(self.circuit.fail(Instant::now()));
        } else if changed {
            self.circuit_changed(self.circuit.came_back());
            // Without the plugin nothing tells a worker that was restarted from one that was out of reach.
            if self.was_healthy.swap(true, Ordering::Relaxed) && self.incarnation.load().is_none() {
                self.announce(Change::Restarted);
            }
        }
        changed
    }

    /// Waits until so many health checks have failed in a row as open its circuit. What waits for an answer of its then waits in
    /// vain, and keeps its pictures in the arena.
    pub async fn hangs(&self) {
        // Never closed, since the sender is ours.
        let _ = self.failed_checks.subscribe().wait_for(|failed| *failed >= self.hangs_after).await;
    }

    /// No connection to it can be made: it is not healthy until a check says so.
    pub fn unreachable(&self) {
        self.healthy.store(false, Ordering::Relaxed);
        self.set_resize(None);
        self.look.notify_one();
    }

    /// Whether it gets no new requests, while those that are on it end.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether this changes anything.
    pub fn set_draining(&self, draining: bool) -> bool {
        self.draining.swap(draining, Ordering::Relaxed) != draining
    }

    /// Whether it is left alone.
    pub fn circuit(&self) -> Phase {
        self.circuit.phase(Instant::now())
    }

    /// Requests that are on this worker now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether it has as many requests as it may.
    pub fn is_full(&self) -> bool {
        self.in_flight() >= self.max_in_flight
    }

    /// Counts a request until the guard is dropped. `None` if the circuit lets none pass now, or the worker is full.
    pub fn enter(self: &Arc<Self>) -> Option<InFlight> {
        // Counted first, so that no two see the last place free; given back on drop if there was none.
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let mut in_flight = InFlight { worker: self.clone(), pass: None, answer_by: None };
        if before < self.max_in_flight {
            in_flight.pass = self.circuit.pass(Instant::now());
        }
        in_flight.pass.is_some().then_some(in_flight)
    }

    /// Waits until no request is on it.
    pub async fn idle(&self) {
        loop {
            // Registered before the look, so that the last to leave in between is not missed.
            let idle = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// The grant to push into, if the worker is attached.
    pub fn landing(&self) -> Option<Arc<Landing>> {
        self.landing.load_full().filter(|landing| !landing.is_closed())
    }

    /// What its landing is doing: open, nothing is pushed, and pixels go inside the requests.
    pub fn landing_circuit(&self) -> Phase {
        self.landing_circuit.phase(Instant::now())
    }

    /// A request whose pictures were pushed was answered.
    pub fn landed(&self) {
        self.landing_circuit.succeed();
    }

    /// A push into this landing was not there in time, or the worker did not get to see it in time.
    pub fn did_not_land(&self, landing: &Arc<Landing>) {
        // Of an earlier attachment it says nothing about this one.
        if self.landing.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, landing)) {
            self.landing_circuit_changed(self.landing_circuit.fail(Instant::now()));
        }
    }

    /// Leave to try whether pushes land again, if it is time.
    pub fn landing_trial(&self) -> Option<Pass> {
        let now = Instant::now();
        (self.landing_circuit.phase(now) != Phase::Closed).then(|| self.landing_circuit.pass(now)).flatten()
    }

    /// The outcome of a trial.
    pub fn landing_tried(&self, trial: Pass, outcome: Outcome) {
        self.landing_circuit_changed(self.landing_circuit.end(trial, outcome, Instant::now()));
    }

    /// What an attached worker is believed to hold processed.
    pub fn belief(&self) -> Option<Arc<Belief>> {
        self.belief.load_full()
    }

    /// A new attachment, or the end of one, with all that was believed.
    pub fn set_landing(&self, landing: Option<Arc<Landing>>, belief: Option<Belief>) {
        if let Some(landing) = &landing {
            self.set_incarnation(&landing.grant().worker);
        }
        self.belief.store(belief.map(Arc::new));
        // Attaching has shown that pushes land.
        self.landing_circuit.reset();
        if let Some(old) = self.landing.swap(landing) {
            old.close();
        }
    }

    /// How its image processor sizes pictures, where that is known and covered by a test.
    pub fn resize(&self) -> Option<SmartResize> {
        self.resize.load().as_deref().copied()
    }

    /// What was learnt when it was attached. It stays true when the attachment ends, until the worker may be another process.
    pub fn set_resize(&self, rule: Option<SmartResize>) {
        self.resize.store(rule.map(Arc::new));
    }

    fn set_incarnation(&self, incarnation: &str) {
        let before = self.incarnation.swap(Some(Arc::new(incarnation.to_owned())));
        if before.is_some_and(|before| *before != incarnation) {
            self.announce(Change::Restarted);
        }
    }

    /// What it said that it serves, adapters included; empty until it has.
    pub fn models(&self) -> Arc<Vec<String>> {
        self.models.load_full()
    }

    /// It says that it serves these.
    pub fn set_models(&self, models: Vec<String>) {
        self.models.store(Arc::new(models));
    }

    /// Whether it may keep responses: what it was shown for one, it is to show again when that is gone on from.
    pub fn keeps_responses(&self) -> bool {
        self.keeps_responses.load(Ordering::Relaxed)
    }

    /// What was learnt when it was attached.
    pub fn set_keeps_responses(&self, keeps: bool) {
        self.keeps_responses.store(keeps, Ordering::Relaxed);
    }

    fn announce(&self, change: fn(Arc<Worker>) -> Change) {
        if let Some(me) = self.me.upgrade() {
            self.changes.announce(&change(me));
        }
    }

    fn circuit_changed(&self, phase: Option<Phase>) {
        let Some(phase) = phase else { return };
        match phase {
            Phase::Open => {
                observe::circuit_opened(&self.series);
                tracing::warn!(worker = %self.label, "circuit opened: the worker gets no requests for a while");
            }
            Phase::HalfOpen => tracing::info!(worker = %self.label, "circuit half-open: one request is tried"),
            Phase::Closed => tracing::info!(worker = %self.label, "circuit closed: the worker answers again"),
        }
    }

    fn landing_circuit_changed(&self, phase: Option<Phase>) {
        match phase {
            Some(Phase::Open) => {
                observe::landing_circuit_opened(&self.series);
                tracing::warn!(
                    worker = %self.label,
                    "landing circuit opened: pushes do not land in time, pixels go inside the requests for a while"
                );
            }
            Some(Phase::Closed) => tracing::info!(worker = %self.label, "landing circuit closed: pushes land again"),
            Some(Phase::HalfOpen) | None => {}
        }
    }
}

/// A request on a worker; see [`Worker::enter`]. What it tells about the worker is said with [`Self::ended`]; dropped
/// without, it tells nothing.
#[derive(Debug)]
pub struct InFlight {
    worker: Arc<Worker>,
    /// `None` once an outcome was recorded.
    pass: Option<Pass>,
    answer_by: Option<tokio::time::Instant>,
}

impl InFlight {
    /// Records what the request told about the worker. It stays counted.
    pub fn ended(&mut self, outcome: Outcome) {
        if let Some(pass) = self.pass.take() {
            self.worker.circuit_changed(self.worker.circuit.end(pass, outcome, Instant::now()));
        }
    }

    /// The head of an answer is there, and says this. If it is not bad, the outcome is that of the rest.
    pub fn head(&mut self, outcome: Outcome) {
        self.answer_by = None;
        if outcome == Outcome::Failure {
            self.ended(outcome);
        }
    }

    /// Some of the answer's body is there.
    pub fn answering(&mut self) {
        if let Some(pass) = &mut self.pass {
            self.worker.circuit_changed(self.worker.circuit.answering(pass));
        }
    }

    /// If there is no head of an answer by then, that is a failure of the worker's. `None`: whoever leaves, leaves for reasons of
    /// their own.
    pub fn must_answer_by(&mut self, deadline: Option<tokio::time::Instant>) {
        self.answer_by = deadline;
    }

    /// The one that it is on.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let late = self.answer_by.is_some_and(|deadline| tokio::time::Instant::now() >= deadline);
        self.ended(if late { Outcome::Failure } else { Outcome::Unknown });
        if self.worker.in_flight.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.worker.idle.notify_waiters();
        }
    }
}
