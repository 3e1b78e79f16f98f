//! The place between the head of a response and its body, where whoever fetches may have to wait for memory.
//!
//! Only the head tells how large an image is. A fetch that waits here has a connection and nothing else: no turn, so that others
//! can ask the same origin meanwhile, and no bytes of the body. What it waits is not counted as the origin's time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::error::FetchError;
use super::freshness::Freshness;

/// What the head of an image's response says about the body.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    /// Bytes of memory that reading it takes: its length, or the most that an image may have where that is not told.
    pub bytes: usize,
    /// Of this response, redirects before it left out.
    pub freshness: Freshness,
}

/// Whoever has to agree before the body of an image is read.
pub trait Gate: Send + Sync {
    /// Waits until `announced.bytes` may be read. It is asked again if another attempt is made.
    ///
    /// # Errors
    ///
    /// If another attempt announces more than what the first was let through with.
    fn pass(&self, announced: Announced) -> BoxFuture<'_, Result<(), FetchError>>;
}

/// One fetch on its way through a gate, if there is one, and the time that it has.
pub(super) struct Passage<'a> {
    gate: Option<&'a dyn Gate>,
    start: Instant,
    total: Duration,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    before: Duration,
    since: Option<Instant>,
}

impl<'a> Passage<'a> {
    pub fn new(gate: Option<&'a dyn Gate>, total: Duration) -> Self {
        Passage { gate, start: Instant::now(), total, waiting: Mutex::default() }
    }

    pub fn is_gated(&self) -> bool {
        self.gate.is_some()
    }

    /// When the fetch has to be over. It moves on while the fetch waits at the gate.
    pub fn deadline(&self) -> Instant {
        let waiting = self.lock();
        let now = waiting.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.start + self.total + waiting.before + now
    }

    pub async fn pass(&self, announced: Announced) -> Result<(), FetchError> {
        let Some(gate) = self.gate else { return Ok(()) };
        self.lock().since = Some(Instant::now());
        let passed = gate.pass(announced).await;
        let mut waiting = self.lock();
        let now = waiting.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        waiting.before += now;
        passed
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
