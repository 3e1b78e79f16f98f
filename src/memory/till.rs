//! The free bytes of a budget, spread so that threads which take and give back at once do not write to the same lines of
//! memory: on many cores the lines would travel between them all the time, and that would be the price of a cache hit.

use crate::sync::atomic::{AtomicUsize, Ordering};

/// Threads beyond as many share tills.
pub(super) const TILLS: usize = 16;

/// The most in a till, as a share of all: what lies in tills has to be collected for who needs much.
const TILL_SHARE: usize = 64;

/// On a cache line of its own (two, since they are prefetched in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicUsize);

#[derive(Debug)]
pub(super) struct Free {
    /// What is in no till.
    common: Line,
    tills: [Line; TILLS],
    most_in_till_bytes: usize,
}

impl Free {
    pub fn new(total_bytes: usize) -> Self {
        Free {
            common: Line(AtomicUsize::new(total_bytes)),
            tills: Default::default(),
            most_in_till_bytes: total_bytes / TILL_SHARE,
        }
    }

    /// Takes bytes from a till, or from all there are.
    pub fn take(&self, till: usize, bytes: usize) -> bool {
        self.tills[till].take(bytes) || self.common.take(bytes) || {
            self.collect();
            self.common.take(bytes)
        }
    }

    /// Takes bytes that were [collected](Self::collect).
    pub fn take_common(&self, bytes: usize) -> bool {
        self.common.take(bytes)
    }

    pub fn give_back(&self, till: usize, bytes: usize) {
        let till = &self.tills[till];
        let fits = till.0.load(Ordering::Relaxed).saturating_add(bytes) <= self.most_in_till_bytes;
        let line = if fits { till } else { &self.common };
        line.0.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Empties all tills, for who needs more than one has.
    pub fn collect(&self) {
        for till in &self.tills {
            if till.0.load(Ordering::SeqCst) > 0 {
                self.common.0.fetch_add(till.0.swap(0, Ordering::SeqCst), Ordering::SeqCst);
            }
        }
    }

    /// Exact when nobody takes or gives back meanwhile.
    pub fn sum(&self) -> usize {
        [&self.common].into_iter().chain(&self.tills).map(|line| line.0.load(Ordering::SeqCst)).sum()
    }
}

impl Line {
    fn take(&self, bytes: usize) -> bool {
        let less = |free: usize| free.checked_sub(bytes);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }
}
