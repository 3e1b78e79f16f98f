//! Two levels of memory for pictures: which content a source has, and which slot holds a content.
//!
//! Level one is keyed by the exact source (full URL, or digest of a data URI) and scope, and forgets after a while, since
//! what a URL shows may change. Level two is keyed by the media id, which is a function of scope and pixels: equal pixels
//! share one slot, whatever URL or format they came by. A slot that a request or a transfer holds is never evicted; the
//! rest is least recently used.

use std::{
    num::NonZeroUsize,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use lru::LruCache;

use super::{
    content::{MediaId, Scope},
    fetch::Validators,
    picture::Picture,
};

/// Sources that are remembered; an entry is its URL and about 100 bytes.
const MAX_SOURCES: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// The exact source of an image, within a scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SourceKey {
    scope: Scope,
    source: ExactSource,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ExactSource {
    Url(Box<str>),
    /// BLAKE3 of the base64 text.
    Data([u8; 32]),
}

impl SourceKey {
    pub fn url(scope: &Scope, exact: &str) -> Self {
        SourceKey { scope: *scope, source: ExactSource::Url(exact.into()) }
    }

    pub fn data(scope: &Scope, payload: &str) -> Self {
        SourceKey { scope: *scope, source: ExactSource::Data(*blake3::hash(payload.as_bytes()).as_bytes()) }
    }
}

/// What is known of a source.
#[derive(Debug, Clone)]
struct KnownSource {
    content: MediaId,
    fresh_until: Instant,
    validators: Validators,
}

/// What the cache has for a source.
#[derive(Debug)]
pub enum Known {
    /// The picture, still fresh.
    Fresh(Picture),
    /// A picture that was right, and how to ask the origin whether it still is.
    Stale(Picture, Validators),
}

/// See the module's documentation.
#[derive(Debug)]
pub struct MediaCache {
    sources: Mutex<LruCache<SourceKey, KnownSource>>,
    contents: Mutex<LruCache<MediaId, Picture>>,
}

impl Default for MediaCache {
    fn default() -> Self {
        MediaCache {
            sources: Mutex::new(LruCache::new(MAX_SOURCES)),
            // Bounded by the arena, whose slots its entries hold.
            contents: Mutex::new(LruCache::unbounded()),
        }
    }
}

impl MediaCache {
    /// The picture of a source, if both levels know it.
    pub fn lookup(&self, key: &SourceKey) -> Option<Known> {
        let known = lock(&self.sources).get(key)?.clone();
        let picture = self.content(&known.content)?;
        if Instant::now() < known.fresh_until {
            Some(Known::Fresh(picture))
        } else if known.validators.is_empty() {
            None
        } else {
            Some(Known::Stale(picture, known.validators))
        }
    }

    /// Remembers what a source showed, for `fresh` from now.
    pub fn remember(&self, key: SourceKey, content: MediaId, fresh: Duration, validators: Validators) {
        let known = KnownSource { content, fresh_until: Instant::now() + fresh, validators };
        lock(&self.sources).put(key, known);
    }

    /// Forgets a source.
    pub fn forget(&self, key: &SourceKey) {
        lock(&self.sources).pop(key);
    }

    pub fn content(&self, id: &MediaId) -> Option<Picture> {
        lock(&self.contents).get(id).cloned()
    }

    /// Keeps a picture. If one of the same content is there already, that one is given back and `picture` is dropped, so
    /// that equal pixels are kept once.
    pub fn keep(&self, picture: Picture) -> (Picture, bool) {
        let mut contents = lock(&self.contents);
        if let Some(there) = contents.get(&picture.name.media_id) {
            return (there.clone(), true);
        }
        contents.put(picture.name.media_id, picture.clone());
        (picture, false)
    }

    /// Drops the least recently used picture that nobody holds. Whether there was one.
    pub fn evict_one(&self) -> bool {
        let mut contents = lock(&self.contents);
        let victim = contents.iter().rev().find(|(_, picture)| picture.slot.is_sole()).map(|(id, _)| *id);
        victim.is_some_and(|id| contents.pop(&id).is_some())
    }

    /// Pictures that are kept.
    pub fn len(&self) -> usize {
        lock(&self.contents).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // An LRU that panicked half way would be a bug of the library; its entries are still whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{media::content::Name, memory::Arena};

    fn picture(arena: &std::sync::Arc<Arena>, value: u8) -> Picture {
        let mut slot = arena.allocate(3).unwrap();
        slot.fill(value);
        Picture { name: Name::of(&Scope::default(), 1, 1, &[value; 3]), slot: slot.freeze() }
    }

    #[test]
    fn equal_pixels_are_kept_once() {
        let arena = Arena::new(1 << 20).unwrap();
        let cache = MediaCache::default();
        let (first, was_there) = cache.keep(picture(&arena, 1));
        assert!(!was_there);
        let (second, was_there) = cache.keep(picture(&arena, 1));
        assert!(was_there);
        assert_eq!(first.slot.address(), second.slot.address());
        assert_eq!(arena.usage().used_bytes, 4096);
    }

    #[test]
    fn what_is_held_is_not_evicted_and_the_least_recently_used_goes_first() {
        let arena = Arena::new(1 << 20).unwrap();
        let cache = MediaCache::default();
        let held = cache.keep(picture(&arena, 1)).0;
        let old = cache.keep(picture(&arena, 2)).0.name.media_id;
        let recent = cache.keep(picture(&arena, 3)).0.name.media_id;
        assert!(cache.evict_one());
        assert!(cache.content(&old).is_none() && cache.content(&recent).is_some());
        assert!(cache.evict_one());
        assert!(!cache.evict_one(), "the last one is held");
        drop(held);
        assert!(cache.evict_one());
        assert_eq!(arena.usage().used_bytes, 0);
    }

    #[test]
    fn a_source_is_keyed_by_its_exact_text_and_scope() {
        let arena = Arena::new(1 << 20).unwrap();
        let cache = MediaCache::default();
        let kept = cache.keep(picture(&arena, 1)).0;
        let key = SourceKey::url(&Scope::default(), "https://h/A?x=1");
        cache.remember(key.clone(), kept.name.media_id, Duration::from_secs(60), Validators::default());
        assert!(matches!(cache.lookup(&key), Some(Known::Fresh(_))));
        for other in [
            SourceKey::url(&Scope::default(), "https://h/a?x=1"),
            SourceKey::url(&Scope::new(Some("tenant"), None), "https://h/A?x=1"),
            SourceKey::data(&Scope::default(), "https://h/A?x=1"),
        ] {
            assert!(cache.lookup(&other).is_none());
        }
    }

    #[test]
    fn a_stale_source_is_asked_about_if_the_origin_gave_means_to() {
        let arena = Arena::new(1 << 20).unwrap();
        let cache = MediaCache::default();
        let id = cache.keep(picture(&arena, 1)).0.name.media_id;
        let key = SourceKey::url(&Scope::default(), "https://h/a");
        cache.remember(key.clone(), id, Duration::ZERO, Validators::default());
        assert!(cache.lookup(&key).is_none());
        let validators = Validators { etag: Some(http::HeaderValue::from_static("\"1\"")), ..Validators::default() };
        cache.remember(key.clone(), id, Duration::ZERO, validators);
        assert!(matches!(cache.lookup(&key), Some(Known::Stale(..))));
    }
}
