//! One map, many locks.

use crate::sync::{Mutex, MutexGuard};

/// More than the cores that would ask at once, of which each holds a lock for well under a microsecond.
pub const SHARDS: usize = 64;

/// `SHARDS` maps, of which a key belongs to one.
#[derive(Debug)]
pub struct Shards<T>(Box<[Shard<T>]>);

/// On a cache line of its own (two, since they are prefetched in pairs), so that locks do not disturb their neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<T>(Mutex<T>);

impl<T> Shards<T> {
    pub fn new(mut make: impl FnMut() -> T) -> Self {
        Shards((0..SHARDS).map(|_| Shard(Mutex::new(make()))).collect())
    }

    /// The shard of a key, by a byte of it that is evenly spread.
    pub fn lock(&self, spread: u8) -> MutexGuard<'_, T> {
        self.0[usize::from(spread) % SHARDS].0.lock()
    }

    /// All shards, one after the other.
    pub fn each(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.0.iter().map(|shard| shard.0.lock())
    }
}
