//! The URLs that one fetch asked for, for people who ask why it ended as it did.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::media::source::HttpUrl;

/// Filled while a fetch goes on: the first URL, and where it was redirected to; once more from the start for each retry.
#[derive(Debug, Default)]
pub struct Trail(Mutex<Vec<String>>);

impl Trail {
    pub(super) fn add(&self, url: &HttpUrl) {
        self.lock().push(url.raw().to_owned());
    }

    /// In the order in which they were asked for, as they were written.
    pub fn urls(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        // A list that is whole at any moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
