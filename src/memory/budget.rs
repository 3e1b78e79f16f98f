//! Budgets: how many bytes of one kind (request bodies, fetched files, decoder scratch, pixels) may be held at once.
//!
//! What can never fit is refused at once; what would have to wait past its deadline is refused then. Who waits stands in
//! a line. Whoever stands behind and fits may pass one who does not fit yet, but each is passed a bounded number of times:
//! a small request need not wait for a large one, and a large one is not starved by small ones.
//!
//! While nobody waits, to take and to give back is an atomic operation or two each, on lines of memory that are a thread's
//! own most of the time.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    till::{Free, TILLS},
    watch::{Changes, Watch},
};
use crate::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
    stripe,
};

/// How often one who waits may be passed by others behind.
const MAX_PASSED: u32 = 16;

/// How far down the line one who fits is looked for.
const LOOK_AHEAD: usize = 64;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BudgetError {
    #[error("{wanted_bytes} bytes can never fit into a budget of {total_bytes}")]
    NeverFits { wanted_bytes: usize, total_bytes: usize },
    #[error("no {wanted_bytes} bytes became free within {waited:?}")]
    Busy { wanted_bytes: usize, waited: Duration },
}

/// A bounded number of bytes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Budget {
    shared: Arc<Shared>,
    tellers: Arc<[Arc<Teller>]>,
}

#[derive(Debug)]
struct Shared {
    total_bytes: usize,
    free: Free,
    /// Length of the line, to be seen without its lock.
    waiting: AtomicUsize,
    line: Mutex<VecDeque<Waiter>>,
    changes: Changes,
}

/// The budget as an admission knows it: one for each till, so that not all threads count their references at one place.
#[derive(Debug)]
#[repr(align(128))]
struct Teller {
    shared: Arc<Shared>,
    till: usize,
}

/// One who stands in line.
#[derive(Debug)]
struct Waiter {
    wanted_bytes: usize,
    passed: u32,
    place: Arc<Place>,
}

/// Where one who stands in line learns that it is served. Locked after the line, if both are.
#[derive(Debug, Default)]
struct Place(Mutex<Standing>);

#[derive(Debug, Default)]
enum Standing {
    #[default]
    New,
    Waiting(Waker),
    /// The bytes are taken and belong to the [`Turn`].
    Served,
    /// They belong to the [`Admission`] that came of it.
    Over,
}

/// Bytes of a [`Budget`] that are held; given back on drop.
#[derive(Debug)]
pub struct Admission {
    teller: Arc<Teller>,
    bytes: usize,
}

impl Budget {
    pub fn new(total_bytes: usize) -> Self {
        let shared = Arc::new(Shared {
            total_bytes,
            free: Free::new(total_bytes),
            waiting: AtomicUsize::new(0),
            line: Mutex::default(),
            changes: Changes::default(),
        });
        let tellers = (0..TILLS).map(|till| Arc::new(Teller { shared: shared.clone(), till })).collect();
        Budget { shared, tellers }
    }

    /// Waits in line for `bytes`, until `deadline` at most.
    pub async fn admit(&self, bytes: usize, deadline: Instant) -> Result<Admission, BudgetError> {
        match self.try_admit(bytes) {
            Err(BudgetError::Busy { .. }) => {}
            settled => return settled,
        }
        let start = Instant::now();
        let busy = |_| BudgetError::Busy { wanted_bytes: bytes, waited: start.elapsed() };
        tokio::time::timeout_at(deadline, self.stand_in_line(bytes)).await.map_err(busy)
    }

    /// As [`admit`](Self::admit), however long it takes.
    pub async fn acquire(&self, bytes: usize) -> Result<Admission, BudgetError> {
        match self.try_admit(bytes) {
            Err(BudgetError::Busy { .. }) => Ok(self.stand_in_line(bytes).await),
            settled => settled,
        }
    }

    /// `bytes` at once, if nobody waits and they are free. For nothing nobody waits.
    pub fn try_admit(&self, bytes: usize) -> Result<Admission, BudgetError> {
        let total_bytes = self.total_bytes();
        if bytes > total_bytes {
            return Err(BudgetError::NeverFits { wanted_bytes: bytes, total_bytes });
        }
        let teller = self.teller();
        if bytes == 0 || self.waiting() == 0 && self.shared.free.take(teller.till, bytes) {
            return Ok(Admission { teller: teller.clone(), bytes });
        }
        Err(BudgetError::Busy { wanted_bytes: bytes, waited: Duration::ZERO })
    }

    fn stand_in_line(&self, bytes: usize) -> Turn {
        let place = Arc::<Place>::default();
        let mut line = self.shared.line.lock();
        line.push_back(Waiter { wanted_bytes: bytes, passed: 0, place: place.clone() });
        self.shared.waiting.store(line.len(), Ordering::SeqCst);
        // What was given back before the store was not announced to anybody.
        self.shared.serve(&mut line);
        drop(line);
        Turn { budget: self.clone(), bytes, place }
    }

    pub fn total_bytes(&self) -> usize {
        self.shared.total_bytes
    }

    pub fn free_bytes(&self) -> usize {
        self.shared.free.sum()
    }

    /// How many stand in line.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::SeqCst)
    }

    /// Hears of what is given back. Take it before the attempt that may fail.
    pub fn watch(&self) -> Watch<'_> {
        self.shared.changes.watch()
    }

    /// Tells those who watch that what they look for may be there now.
    pub(super) fn announce(&self) {
        self.shared.changes.announce();
    }

    fn teller(&self) -> &Arc<Teller> {
        &self.tellers[stripe() % TILLS]
    }
}

impl Shared {
    fn give_back(&self, till: usize, bytes: usize) {
        self.free.give_back(till, bytes);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.serve(&mut self.line.lock());
        }
        self.changes.announce();
    }

    /// Serves everybody who may be served now, from the front.
    fn serve(&self, line: &mut VecDeque<Waiter>) {
        self.free.collect();
        let mut index = 0;
        while let Some(waiter) = line.get(index).filter(|_| index < LOOK_AHEAD) {
            if self.free.take_common(waiter.wanted_bytes) {
                waiter.place.served();
                line.remove(index);
                line.iter_mut().take(index).for_each(|waiter| waiter.passed += 1);
                // One of them may not be passed any more.
                index = 0;
            } else if waiter.passed >= MAX_PASSED {
                break;
            } else {
                index += 1;
            }
        }
        self.waiting.store(line.len(), Ordering::SeqCst);
    }
}

impl Place {
    fn served(&self) {
        let before = std::mem::replace(&mut *self.0.lock(), Standing::Served);
        if let Standing::Waiting(waker) = before {
            waker.wake();
        }
    }
}

/// Standing in line.
struct Turn {
    budget: Budget,
    bytes: usize,
    place: Arc<Place>,
}

impl Future for Turn {
    type Output = Admission;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Admission> {
        let mut standing = self.place.0.lock();
        if matches!(*standing, Standing::Served) {
            *standing = Standing::Over;
            return Poll::Ready(Admission { teller: self.budget.teller().clone(), bytes: self.bytes });
        }
        *standing = Standing::Waiting(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if matches!(*self.place.0.lock(), Standing::Over) {
            return;
        }
        let shared = &self.budget.shared;
        let mut line = shared.line.lock();
        line.retain(|waiter| !Arc::ptr_eq(&waiter.place, &self.place));
        // Served after all, but nobody will hold what was taken.
        if matches!(*self.place.0.lock(), Standing::Served) {
            shared.free.give_back(self.budget.teller().till, self.bytes);
        }
        // Either way those behind may have their turn.
        shared.serve(&mut line);
    }
}

impl Admission {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Cuts off `bytes` of it, if it has as many.
    pub fn split(&mut self, bytes: usize) -> Option<Admission> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Admission { teller: self.teller.clone(), bytes })
    }

    /// Takes in another of the same budget.
    pub fn merge(&mut self, mut other: Admission) {
        debug_assert!(Arc::ptr_eq(&self.teller.shared, &other.teller.shared));
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Gives back what is held beyond `bytes`: the real size came out smaller than the one that was asked for.
    pub fn shrink_to(&mut self, bytes: usize) {
        if let Some(excess) = self.bytes.checked_sub(bytes) {
            drop(self.split(excess));
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.teller.shared.give_back(self.teller.till, self.bytes);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use futures_util::{FutureExt, poll};

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(10)
    }

    #[tokio::test]
    async fn what_can_never_fit_is_refused_at_once() {
        let budget = Budget::new(10);
        let far = Instant::now() + Duration::from_secs(3600);
        let refused = budget.admit(11, far).await.unwrap_err();
        assert_eq!(refused, BudgetError::NeverFits { wanted_bytes: 11, total_bytes: 10 });
    }

    #[tokio::test]
    async fn held_bytes_come_back_on_drop_and_on_shrinking() {
        let budget = Budget::new(10);
        let mut held = budget.admit(10, soon()).await.unwrap();
        assert!(matches!(budget.admit(1, soon()).await, Err(BudgetError::Busy { .. })));
        held.shrink_to(5);
        assert_eq!(budget.free_bytes(), 5);
        let piece = held.split(2).unwrap();
        assert!(held.split(4).is_none());
        held.merge(piece);
        assert_eq!((held.bytes(), budget.free_bytes()), (5, 5));
        drop(held);
        assert_eq!(budget.free_bytes(), 10);
    }

    #[test]
    fn what_lies_in_the_tills_of_other_threads_is_there_for_who_needs_all() {
        let budget = Budget::new(64 << 10);
        std::thread::scope(|scope| {
            for _ in 0..2 * TILLS {
                // Small enough to stay in a till.
                scope.spawn(|| drop(budget.try_admit(700).unwrap()));
            }
        });
        assert_eq!(budget.free_bytes(), 64 << 10);
        assert_eq!(budget.try_admit(64 << 10).unwrap().bytes(), 64 << 10);
    }

    #[tokio::test]
    async fn one_in_line_is_passed_by_those_who_fit_but_not_for_ever() {
        let budget = Budget::new(10);
        let first = budget.try_admit(6).unwrap();
        let mut large = std::pin::pin!(budget.acquire(8));
        assert!(poll!(&mut large).is_pending());
        for passed in 0..MAX_PASSED {
            let small = budget.acquire(1).now_or_never();
            assert!(small.is_some(), "{passed} passed");
        }
        let mut late = std::pin::pin!(budget.acquire(1));
        assert!(poll!(&mut late).is_pending(), "the large one has been passed often enough");
        drop(first);
        let large = large.await.unwrap();
        assert_eq!(late.await.unwrap().bytes() + large.bytes(), 9);
    }

    #[tokio::test]
    async fn who_leaves_the_line_makes_way_and_keeps_nothing() {
        let budget = Budget::new(10);
        let held = budget.try_admit(10).unwrap();
        let mut large = Box::pin(budget.acquire(10));
        let mut small = Box::pin(budget.acquire(1));
        assert!(poll!(&mut large).is_pending() && poll!(&mut small).is_pending());
        drop(held);
        // Served, but not yet polled.
        assert_eq!(budget.free_bytes(), 0);
        drop(large);
        assert_eq!(budget.free_bytes(), 9);
        drop(small.await);
        assert_eq!((budget.free_bytes(), budget.waiting()), (10, 0));
    }
}
