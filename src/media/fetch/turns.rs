//! How much is fetched at one time, in all and from one origin.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::media::source::{Host, HttpUrl};

type Origin = (Host, u16);

/// Hands out turns. An origin's own turn comes first, so that requests that queue for a slow origin take no turn from others.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    per_origin: usize,
    /// Origins that somebody waits for or fetches from, and how many do.
    origins: Mutex<HashMap<Origin, (Arc<Semaphore>, usize)>>,
}

/// The right to have one request under way.
pub(super) struct Turn<'a> {
    _all: OwnedSemaphorePermit,
    _origin: OwnedSemaphorePermit,
    _user: User<'a>,
}

/// Counts as a user of an origin until dropped, waiting or not.
struct User<'a> {
    turns: &'a Turns,
    origin: Origin,
    semaphore: Arc<Semaphore>,
}

impl Turns {
    pub(super) fn new(all: usize, per_origin: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all.min(Semaphore::MAX_PERMITS))),
            per_origin: per_origin.min(Semaphore::MAX_PERMITS),
            origins: Mutex::default(),
        }
    }

    /// Waits for a turn, first come, first served.
    pub(super) async fn take(&self, url: &HttpUrl) -> Turn<'_> {
        let user = self.user_of((url.host().clone(), url.port()));
        let origin = acquire(&user.semaphore).await;
        let all = acquire(&self.all).await;
        Turn { _all: all, _origin: origin, _user: user }
    }

    fn user_of(&self, origin: Origin) -> User<'_> {
        let mut origins = self.lock();
        let (semaphore, users) =
            origins.entry(origin.clone()).or_insert_with(|| (Arc::new(Semaphore::new(self.per_origin)), 0));
        *users += 1;
        User { turns: self, origin, semaphore: Arc::clone(semaphore) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Origin, (Arc<Semaphore>, usize)>> {
        self.origins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        let mut origins = self.turns.lock();
        if let Some((_, users)) = origins.get_mut(&self.origin) {
            *users -= 1;
            if *users == 0 {
                origins.remove(&self.origin);
            }
        }
    }
}

async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_owned().await.expect("these semaphores are never closed")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn turns_are_bounded_in_all_and_per_origin_and_leave_no_trace() {
        let turns = Turns::new(3, 2);
        let a = HttpUrl::parse("http://a.example/").unwrap();
        let b = HttpUrl::parse("http://b.example/").unwrap();
        let a1 = turns.take(&a).await;
        let _a2 = turns.take(&a).await;
        assert!(turns.take(&a).now_or_never().is_none(), "the third of one origin waits");
        let b1 = turns.take(&b).await;
        assert!(turns.take(&b).now_or_never().is_none(), "the fourth in all waits");
        drop(a1);
        assert!(turns.take(&b).now_or_never().is_some());
        drop(b1);
        assert!(turns.take(&a).now_or_never().is_some());
        assert_eq!(turns.lock().len(), 1);
        drop(_a2);
        assert!(turns.lock().is_empty());
    }
}
