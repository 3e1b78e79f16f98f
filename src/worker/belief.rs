//! What a worker is believed to hold processed, so that naming a picture is enough.
//!
//! vLLM keeps processed images in an LRU of bytes, keyed by uuid, and answers a request that names one it lacks with 400
//! "Cache miss" before anything else happens. So a picture that it was sent before goes as its uuid alone, and if that
//! proves wrong, once more with its pixels. Measured on the API server, for a 1080p JPEG: 60 ms of CPU by itself, 43 by
//! reference, 9 by uuid.
//!
//! A belief is about one incarnation of a worker. Where several API processes have a cache each, or others use the worker
//! too, it may prove wrong often; below one in two it costs more than it saves, and is given up.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use lru::LruCache;

use super::attach::ProcessorCache;
use crate::media::content::{MediaId, Name};

/// Bytes that a processor makes of a byte of RGB, at most: two frames (temporal patches) of float32. An estimate that is
/// too high makes us forget early, which costs a push; one that is too low would cost a request sent twice.
const PROCESSED_PER_RGB_BYTE: u64 = 8;

/// What an item takes beside its pixels.
const ITEM_OVERHEAD_BYTES: u64 = 4096;

/// Requests by uuid that must have been answered before their share of misses means anything.
const TRIALS: u32 = 16;

/// See the module's documentation.
#[derive(Debug)]
pub struct Belief {
    capacity_bytes: u64,
    items: Mutex<Items>,
    right: AtomicU32,
    wrong: AtomicU32,
    given_up: AtomicBool,
}

#[derive(Debug)]
struct Items {
    by_id: LruCache<MediaId, u64>,
    bytes: u64,
}

impl Belief {
    /// Of a worker that has just been attached, and of which nothing is believed yet.
    pub fn new(cache: &ProcessorCache) -> Self {
        let capacity_bytes = if cache.kind == "none" { 0 } else { cache.bytes };
        Belief {
            capacity_bytes,
            items: Mutex::new(Items { by_id: LruCache::unbounded(), bytes: 0 }),
            right: AtomicU32::new(0),
            wrong: AtomicU32::new(0),
            given_up: AtomicBool::new(capacity_bytes == 0),
        }
    }

    /// Whether the worker is believed to hold this picture.
    pub fn holds(&self, id: &MediaId) -> bool {
        !self.given_up.load(Ordering::Relaxed) && self.items().by_id.get(id).is_some()
    }

    /// The same, for who only wants to know: asking for every worker must not keep a picture young on all.
    pub fn still_holds(&self, id: &MediaId) -> bool {
        !self.given_up.load(Ordering::Relaxed) && self.items().by_id.contains(id)
    }

    /// The worker has answered a request with this picture, so it holds it now.
    pub fn learn(&self, name: &Name) {
        let rgb = u64::from(name.height) * u64::from(name.width) * 3;
        let bytes = rgb * PROCESSED_PER_RGB_BYTE + ITEM_OVERHEAD_BYTES;
        // What does not fit, vLLM does not keep.
        if bytes > self.capacity_bytes || self.given_up.load(Ordering::Relaxed) {
            return;
        }
        let mut items = self.items();
        if items.by_id.put(name.media_id, bytes).is_none() {
            items.bytes += bytes;
        }
        while items.bytes > self.capacity_bytes {
            let Some((_, bytes)) = items.by_id.pop_lru() else { break };
            items.bytes -= bytes;
        }
    }

    /// A request by uuid was answered.
    pub fn was_right(&self) {
        self.right.fetch_add(1, Ordering::Relaxed);
    }

    /// A request by uuid was refused, and the same with pixels was not: these pictures are not there.
    pub fn was_wrong<'a>(&self, ids: impl IntoIterator<Item = &'a MediaId>) {
        let mut items = self.items();
        for id in ids {
            if let Some(bytes) = items.by_id.pop(id) {
                items.bytes -= bytes;
            }
        }
        let wrong = self.wrong.fetch_add(1, Ordering::Relaxed) + 1;
        let right = self.right.load(Ordering::Relaxed);
        if right + wrong >= TRIALS && right < wrong {
            self.given_up.store(true, Ordering::Relaxed);
            items.by_id.clear();
            items.bytes = 0;
        }
    }

    /// Whether it has been wrong too often, or there is no cache to believe in.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    fn items(&self) -> MutexGuard<'_, Items> {
        // What an LRU holds after a panic is still only a belief.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::content::Scope;

    fn cache(kind: &str, bytes: u64) -> ProcessorCache {
        ProcessorCache { kind: kind.into(), bytes }
    }

    fn picture(value: u8) -> Name {
        Name::of(&Scope::default(), 10, 10, &[value; 300])
    }

    const ITEM: u64 = 300 * PROCESSED_PER_RGB_BYTE + ITEM_OVERHEAD_BYTES;

    #[test]
    fn what_was_answered_is_held_until_newer_ones_push_it_out() {
        let belief = Belief::new(&cache("lru", 2 * ITEM));
        let [a, b, c] = [1, 2, 3].map(picture);
        belief.learn(&a);
        belief.learn(&b);
        assert!(belief.holds(&a.media_id), "and looking makes it the most recent");
        belief.learn(&c);
        assert!(belief.holds(&a.media_id) && belief.holds(&c.media_id) && !belief.holds(&b.media_id));
    }

    #[test]
    fn without_a_cache_or_room_nothing_is_held() {
        for belief in
            [Belief::new(&cache("none", 1 << 30)), Belief::new(&cache("lru", 0)), Belief::new(&cache("lru", ITEM - 1))]
        {
            belief.learn(&picture(1));
            assert!(!belief.holds(&picture(1).media_id));
        }
    }

    #[test]
    fn a_miss_forgets_the_picture_and_many_give_the_belief_up() {
        let belief = Belief::new(&cache("processor_only", 1 << 20));
        let a = picture(1);
        belief.learn(&a);
        belief.was_wrong([&a.media_id]);
        assert!(!belief.holds(&a.media_id));
        for _ in 0..TRIALS {
            belief.was_right();
        }
        belief.learn(&a);
        assert!(belief.holds(&a.media_id), "one miss among many hits");
        for _ in 0..=TRIALS {
            belief.was_wrong([]);
        }
        belief.learn(&a);
        assert!(belief.is_given_up() && !belief.holds(&a.media_id));
    }
}
