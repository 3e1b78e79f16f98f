//! A count that all threads add to all the time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::stripe;

/// Threads beyond as many share a place.
const PLACES: usize = 16;

/// Each thread adds at a place of its own, so that the places stay in the caches of the cores that write them.
#[derive(Debug, Default)]
pub struct Tally([Place; PLACES]);

/// On a cache line of its own (two, since they are prefetched in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Place(AtomicU64);

impl Tally {
    pub fn add(&self, count: u64) {
        self.0[stripe() % PLACES].0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn sum(&self) -> u64 {
        self.0.iter().map(|place| place.0.load(Ordering::Relaxed)).sum()
    }
}
