//! A map that forgets what was used the longest ago, to the second.

use std::{
    hash::Hash,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use lru::LruCache;

/// How often an entry is moved to the front of the list at most. Moving it touches its neighbours, which are in none of
/// the processor's caches when there are many; a second more or less means nothing for what is forgotten.
pub const MOVED_EVERY: Duration = Duration::from_secs(1);

/// At most so many entries, in the order in which they were last used, to [`MOVED_EVERY`].
#[derive(Debug)]
pub struct Recent<K: Hash + Eq, V>(LruCache<K, Entry<V>>);

#[derive(Debug)]
struct Entry<V> {
    value: V,
    moved: Instant,
}

impl<K: Hash + Eq + Copy, V> Recent<K, V> {
    pub fn new(most: NonZeroUsize) -> Self {
        Recent(LruCache::new(most))
    }

    /// The value of a key, which counts as used.
    pub fn get(&mut self, key: &K, now: Instant) -> Option<&V> {
        let entry = self.0.peek_mut(key)?;
        if now.saturating_duration_since(entry.moved) >= MOVED_EVERY {
            entry.moved = now;
            self.0.promote(key);
        }
        self.0.peek(key).map(|entry| &entry.value)
    }

    pub fn put(&mut self, key: K, value: V, now: Instant) {
        self.0.put(key, Entry { value, moved: now });
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.0.pop(key).map(|entry| entry.value)
    }

    /// Removes an entry if its value is as wanted.
    pub fn remove_if(&mut self, key: &K, wanted: impl FnOnce(&V) -> bool) -> Option<V> {
        if self.0.peek(key).is_some_and(|entry| wanted(&entry.value)) { self.remove(key) } else { None }
    }

    /// The entry that was used the longest ago among those wanted, and when that was.
    pub fn oldest(&self, wanted: impl Fn(&V) -> bool) -> Option<(Instant, K)> {
        let (key, entry) = self.0.iter().rev().find(|(_, entry)| wanted(&entry.value))?;
        Some((entry.moved, *key))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
