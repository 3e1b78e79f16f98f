//! Level one: which content a source has.

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    key::SourceKey,
    recent::Recent,
    shards::{SHARDS, Shards},
};
use crate::media::{content::Name, error::MediaError, fetch::Validators};

/// Sources that are remembered, in all.
pub const MAX_SOURCES: usize = 128 << 10;

/// What is longer, entity tag, date and the URL that said so, is not kept: its source is fetched anew when it is no longer
/// fresh. A presigned URL has a kilobyte or two.
const MAX_VALIDATOR_BYTES: usize = 3 << 10;

/// What is known of a source.
#[derive(Debug, Clone)]
pub enum Known {
    /// What it shows, still fresh.
    Fresh(Name),
    /// What it did show, and how to ask the origin whether it still does.
    Stale(Name, Validators),
    /// Its origin failed a moment ago.
    Failed(Arc<MediaError>),
}

#[derive(Debug)]
enum Entry {
    Shows { name: Name, fresh_until: Option<Instant>, validators: Option<Box<Validators>> },
    Failed { error: Arc<MediaError>, until: Instant },
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Sources(Shards<Recent<SourceKey, Entry>>);

impl Default for Sources {
    fn default() -> Self {
        const EACH: NonZeroUsize = NonZeroUsize::new(MAX_SOURCES.div_ceil(SHARDS)).unwrap();
        Sources(Shards::new(|| Recent::new(EACH)))
    }
}

impl Sources {
    /// What is known of a source at `now`. What is stale and cannot be asked about is forgotten.
    pub fn lookup(&self, key: &SourceKey, now: Instant) -> Option<Known> {
        let mut shard = self.0.lock(key.spread());
        match shard.get(key, now)? {
            Entry::Shows { name, fresh_until, .. } if fresh_until.is_none_or(|until| now < until) => {
                return Some(Known::Fresh(*name));
            }
            Entry::Shows { name, validators: Some(validators), .. } => {
                return Some(Known::Stale(*name, (**validators).clone()));
            }
            Entry::Failed { error, until } if now < *until => return Some(Known::Failed(error.clone())),
            Entry::Shows { .. } | Entry::Failed { .. } => {}
        }
        shard.remove(key);
        None
    }

    /// Remembers what a source shows: for `fresh` from `now`, or for ever.
    pub fn remember(&self, key: SourceKey, name: Name, fresh: Option<Duration>, validators: Validators, now: Instant) {
        let fields = [&validators.etag, &validators.last_modified].into_iter().flatten();
        let url_bytes = validators.from.as_ref().map_or(0, |url| url.raw().len());
        let bytes = url_bytes + fields.map(|value| value.len()).sum::<usize>();
        let kept = !validators.is_empty() && bytes <= MAX_VALIDATOR_BYTES;
        let validators = kept.then(|| Box::new(validators));
        // A time too far to be told is for ever.
        let fresh_until = fresh.and_then(|fresh| now.checked_add(fresh));
        self.put(key, Entry::Shows { name, fresh_until, validators }, now);
    }

    /// Remembers for a while that a source cannot be had.
    pub fn remember_failure(&self, key: SourceKey, error: Arc<MediaError>, lasting: Duration, now: Instant) {
        if let Some(until) = now.checked_add(lasting).filter(|_| !lasting.is_zero()) {
            self.put(key, Entry::Failed { error, until }, now);
        }
    }

    pub fn forget(&self, key: &SourceKey) {
        self.0.lock(key.spread()).remove(key);
    }

    /// Sources that are remembered, failures included.
    pub fn len(&self) -> usize {
        self.0.each().map(|shard| shard.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn put(&self, key: SourceKey, entry: Entry, now: Instant) {
        self.0.lock(key.spread()).put(key, entry, now);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::media::{content::Scope, fetch::FetchError};

    fn key(text: &str) -> SourceKey {
        SourceKey::url(&Scope::default(), text)
    }

    fn name() -> Name {
        Name::of(&Scope::default(), 1, 1, &[1, 2, 3])
    }

    fn tagged(tag: &str) -> Validators {
        Validators { etag: Some(tag.parse().unwrap()), ..Validators::default() }
    }

    #[test]
    fn a_source_is_fresh_then_stale_then_forgotten() {
        let sources = Sources::default();
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(61));
        sources.remember(key("a"), name(), Some(Duration::from_secs(60)), tagged("\"1\""), now);
        sources.remember(key("b"), name(), Some(Duration::from_secs(60)), Validators::default(), Instant::now());
        sources.remember(key("c"), name(), None, Validators::default(), Instant::now());
        assert!(matches!(sources.lookup(&key("a"), now), Some(Known::Fresh(_))));
        assert!(matches!(sources.lookup(&key("a"), later), Some(Known::Stale(_, v)) if v == tagged("\"1\"")));
        assert!(matches!(sources.lookup(&key("b"), now), Some(Known::Fresh(_))));
        assert!(sources.lookup(&key("b"), later).is_none(), "nothing to ask with");
        assert!(matches!(sources.lookup(&key("c"), later), Some(Known::Fresh(_))));
        assert_eq!(sources.len(), 2);
        sources.forget(&key("a"));
        assert!(sources.lookup(&key("a"), now).is_none());
    }

    #[test]
    fn a_failure_is_remembered_for_a_moment() {
        let sources = Sources::default();
        let error = Arc::new(MediaError::from(FetchError::Empty));
        sources.remember_failure(key("a"), error.clone(), Duration::from_secs(2), Instant::now());
        sources.remember_failure(key("b"), error, Duration::ZERO, Instant::now());
        assert!(matches!(sources.lookup(&key("a"), Instant::now()), Some(Known::Failed(_))));
        assert!(sources.lookup(&key("b"), Instant::now()).is_none());
        assert!(sources.lookup(&key("a"), Instant::now() + Duration::from_secs(3)).is_none());
    }

    #[test]
    fn an_origin_cannot_fill_memory_with_tags() {
        let sources = Sources::default();
        sources.remember(key("a"), name(), Some(Duration::ZERO), tagged(&"x".repeat(4000)), Instant::now());
        assert!(sources.lookup(&key("a"), Instant::now() + Duration::from_secs(1)).is_none());
    }

    #[test]
    fn the_number_of_sources_is_bounded() {
        let sources = Sources::default();
        for number in 0..MAX_SOURCES + MAX_SOURCES / 2 {
            sources.remember(key(&number.to_string()), name(), None, Validators::default(), Instant::now());
        }
        assert!(sources.len() <= MAX_SOURCES + SHARDS);
    }
}
