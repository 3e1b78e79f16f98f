//! The last errors that clients were answered with, for the status page.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

/// How many are kept.
const KEPT: usize = 50;

/// One error, with nothing in it that a client could choose but an id that was found sane.
#[derive(Debug, Clone)]
pub struct RecentError {
    pub at: SystemTime,
    pub route: &'static str,
    pub status: u16,
    pub code: &'static str,
    pub request_id: String,
}

/// See the module's documentation; with a bound, so that errors cannot fill the memory.
#[derive(Debug, Default)]
pub struct RecentErrors(Mutex<VecDeque<RecentError>>);

impl RecentErrors {
    /// One more; the oldest goes if there are too many.
    pub fn add(&self, error: RecentError) {
        let mut errors = self.lock();
        errors.truncate(KEPT - 1);
        errors.push_front(error);
    }

    /// The latest first.
    pub fn all(&self) -> Vec<RecentError> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<RecentError>> {
        // A list that is whole at any moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
