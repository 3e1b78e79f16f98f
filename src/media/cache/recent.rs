//! A map that forgets what was used the longest ago.
//!
//! A use notes the time in what was looked up and touches nothing else. A list in the order of use would have to be mended
//! at three places each time, which are in none of the processor's caches when there are many. Only when something is to
//! be forgotten is the order looked for: a heap has the entries by the times that it last saw, and one that was used since
//! goes back into it with its new time.

use std::{collections::BinaryHeap, hash::Hash, time::Duration};

use hashbrown::HashMap;

/// What knows when it was used. Times count from a beginning that all in one map have in common.
pub trait Used {
    fn mark_used(&mut self, at: Duration);
    fn last_used(&self) -> Duration;
}

/// At most so many entries.
#[derive(Debug)]
pub struct Recent<K, V> {
    most: usize,
    entries: HashMap<K, V>,
    /// Each entry once at least. There may be others, of what was removed.
    seen: BinaryHeap<Seen<K>>,
}

/// When an entry was used at the latest, as far as the heap knows. The oldest is the greatest.
#[derive(Debug)]
struct Seen<K> {
    used: Duration,
    key: K,
}

impl<K: Hash + Eq + Copy, V: Used> Recent<K, V> {
    pub fn new(most: usize) -> Self {
        Recent { most, entries: HashMap::new(), seen: BinaryHeap::new() }
    }

    /// The value of a key, which counts as used.
    pub fn get(&mut self, key: &K, now: Duration) -> Option<&mut V> {
        let value = self.entries.get_mut(key)?;
        value.mark_used(now);
        Some(value)
    }

    pub fn put(&mut self, key: K, mut value: V, now: Duration) {
        value.mark_used(now);
        if self.entries.insert(key, value).is_some() {
            return;
        }
        // What was removed and never looked for.
        if self.seen.len() > 2 * self.entries.len() + 16 {
            let all = self.entries.iter().map(|(key, value)| Seen { used: value.last_used(), key: *key });
            self.seen = all.collect();
        } else {
            self.seen.push(Seen { used: now, key });
        }
        if self.entries.len() > self.most
            && let Some((_, oldest)) = self.oldest(|_| true)
        {
            self.entries.remove(&oldest);
        }
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key)
    }

    /// Removes an entry if its value is as wanted.
    pub fn remove_if(&mut self, key: &K, wanted: impl FnOnce(&V) -> bool) -> Option<V> {
        if self.entries.get(key).is_some_and(wanted) { self.entries.remove(key) } else { None }
    }

    /// The entry that was used the longest ago among those wanted, and when that was.
    pub fn oldest(&mut self, wanted: impl Fn(&V) -> bool) -> Option<(Duration, K)> {
        let mut passed = Vec::new();
        let mut found = None;
        while found.is_none()
            && let Some(mut seen) = self.seen.pop()
        {
            let Some(value) = self.entries.get(&seen.key) else { continue };
            let used = value.last_used();
            if used > seen.used {
                seen.used = used;
                self.seen.push(seen);
                continue;
            }
            found = wanted(value).then_some((seen.used, seen.key));
            passed.push(seen);
        }
        self.seen.extend(passed);
        found
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

impl<K> Ord for Seen<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.used.cmp(&self.used)
    }
}

impl<K> PartialOrd for Seen<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> PartialEq for Seen<K> {
    fn eq(&self, other: &Self) -> bool {
        self.used == other.used
    }
}

impl<K> Eq for Seen<K> {}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug)]
    struct Value(Duration, bool);

    impl Used for Value {
        fn mark_used(&mut self, at: Duration) {
            self.0 = at;
        }

        fn last_used(&self) -> Duration {
            self.0
        }
    }

    proptest! {
        /// Against a list that is moved at each use.
        #[test]
        fn what_was_used_the_longest_ago_is_forgotten(steps in proptest::collection::vec((0u8..6, 0u8..12), 1..300)) {
            let mut recent = Recent::new(8);
            let mut list: Vec<(u8, bool)> = Vec::new();
            for (step, (what, key)) in steps.into_iter().enumerate() {
                let now = Duration::from_nanos(step as u64 + 1);
                let at = list.iter().position(|(other, _)| *other == key);
                match what {
                    0 | 1 => {
                        let wanted = what == 0;
                        recent.put(key, Value(Duration::ZERO, wanted), now);
                        if let Some(at) = at {
                            list.remove(at);
                        }
                        list.push((key, wanted));
                        if list.len() > 8 {
                            list.remove(0);
                        }
                    }
                    2 | 3 => {
                        prop_assert_eq!(recent.get(&key, now).is_some(), at.is_some());
                        if let Some(at) = at {
                            let entry = list.remove(at);
                            list.push(entry);
                        }
                    }
                    4 => {
                        prop_assert_eq!(recent.remove(&key).is_some(), at.is_some());
                        if let Some(at) = at {
                            list.remove(at);
                        }
                    }
                    _ => {
                        let oldest = recent.oldest(|value| value.1).map(|(_, key)| key);
                        prop_assert_eq!(oldest, list.iter().find(|(_, wanted)| *wanted).map(|(key, _)| *key));
                    }
                }
                prop_assert_eq!(recent.len(), list.len());
                prop_assert!(recent.seen.len() <= 2 * 9 + 17);
            }
        }
    }
}
