//! Level one: which content a source has.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    key::SourceKey,
    recent::{Recent, Used},
    shards::{SHARDS, Shards},
};
use crate::{
    media::{
        error::MediaError,
        fetch::Validators,
        picture::{Content, Media},
    },
    memory::{Admission, Budget, Lease, WeakSlot},
};

/// Sources that are remembered, in all.
pub const MAX_SOURCES: usize = 128 << 10;

/// What origins say may be asked with, of all sources: entity tags, dates, URLs. A source that finds no room is fetched
/// anew when it is no longer fresh.
pub const MAX_VALIDATORS_BYTES: usize = 32 << 20;

/// The most for one source. A presigned URL has a kilobyte or two, and is kept twice.
const MAX_VALIDATOR_BYTES: usize = 6 << 10;

/// What is known of a source.
#[derive(Debug, Clone)]
pub enum Known {
    /// What it shows, still fresh.
    Fresh(Content),
    /// What it did show, and how to ask the origin whether it still does.
    Stale(Content, Validators),
    /// Its origin failed a moment ago.
    Failed(Arc<MediaError>),
}

/// As small as it can be: a lookup reads all of it.
#[derive(Debug)]
struct Entry {
    used_ns: u64,
    /// `u64::MAX` for ever.
    until_ns: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    Shows {
        content: Content,
        /// Where it was last found, so that a hit need not look into level two.
        slot: WeakSlot,
        validators: Option<Box<Counted>>,
    },
    Failed(Arc<MediaError>),
}

/// Validators, and their bytes in the budget of all of them.
#[derive(Debug)]
struct Counted {
    validators: Validators,
    _bytes: Admission,
}

impl Used for Entry {
    fn mark_used(&mut self, at: Duration) {
        self.used_ns = self.used_ns.max(nanoseconds(at));
    }

    fn last_used(&self) -> Duration {
        Duration::from_nanos(self.used_ns)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Sources {
    shards: Shards<Recent<SourceKey, Entry>>,
    validators: Budget,
    /// What times count from.
    start: Instant,
}

impl Default for Sources {
    fn default() -> Self {
        Sources {
            shards: Shards::new(|| Recent::new(MAX_SOURCES.div_ceil(SHARDS))),
            validators: Budget::new(MAX_VALIDATORS_BYTES),
            start: Instant::now(),
        }
    }
}

impl Sources {
    /// What a source shows, if it is fresh and still where it was last found, under the lease that is given for the bytes of
    /// its slot. This is the shortest way to a picture: where it ends in nothing, [`lookup`](Self::lookup) may know more.
    pub fn hit(&self, key: &SourceKey, now: Instant, lease: impl FnOnce(usize) -> Option<Lease>) -> Option<Media> {
        let now = self.time_of(now);
        let mut shard = self.shards.lock(key.spread());
        let entry = shard.get(key, now)?;
        match &entry.what {
            What::Shows { content, slot, .. } if nanoseconds(now) < entry.until_ns => {
                // First the lease: what is held without one for a moment would be missed by those who look for room.
                let lease = lease(content.slot_bytes())?;
                Some(content.in_slot(slot.upgrade()?.leased(Arc::new(lease))))
            }
            _ => None,
        }
    }

    /// What is known of a source at `now`. What is stale and cannot be asked about is forgotten.
    pub fn lookup(&self, key: &SourceKey, now: Instant) -> Option<Known> {
        let now = self.time_of(now);
        let mut shard = self.shards.lock(key.spread());
        let entry = shard.get(key, now)?;
        let fresh = nanoseconds(now) < entry.until_ns;
        match &entry.what {
            What::Shows { content, .. } if fresh => return Some(Known::Fresh(*content)),
            What::Shows { content, validators: Some(counted), .. } => {
                return Some(Known::Stale(*content, counted.validators.clone()));
            }
            What::Failed(error) if fresh => return Some(Known::Failed(error.clone())),
            What::Shows { .. } | What::Failed(_) => {}
        }
        shard.remove(key);
        None
    }

    /// Remembers what a source shows: for `fresh` from `now`, or for ever.
    pub fn remember(
        &self,
        key: SourceKey,
        content: Content,
        fresh: Option<Duration>,
        validators: Validators,
        now: Instant,
    ) {
        let validators = self.counted(validators);
        let until_ns = fresh.map_or(u64::MAX, |fresh| nanoseconds(self.time_of(now).saturating_add(fresh)));
        self.put(key, What::Shows { content, slot: WeakSlot::default(), validators }, until_ns, now);
    }

    /// Remembers where what a source shows was found.
    pub fn found(&self, key: &SourceKey, media: &Media, now: Instant) {
        let mut shard = self.shards.lock(key.spread());
        if let Some(Entry { what: What::Shows { content, slot, .. }, .. }) = shard.get(key, self.time_of(now))
            && content.id() == media.content().id()
        {
            *slot = media.slot().downgrade();
        }
    }

    /// Remembers for a while that a source cannot be had.
    pub fn remember_failure(&self, key: SourceKey, error: Arc<MediaError>, lasting: Duration, now: Instant) {
        if !lasting.is_zero() {
            let until_ns = nanoseconds(self.time_of(now).saturating_add(lasting));
            self.put(key, What::Failed(error), until_ns, now);
        }
    }

    pub fn forget(&self, key: &SourceKey) {
        self.shards.lock(key.spread()).remove(key);
    }

    /// Sources that are remembered, failures included.
    pub fn len(&self) -> usize {
        self.shards.each().map(|shard| shard.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn put(&self, key: SourceKey, what: What, until_ns: u64, now: Instant) {
        self.shards.lock(key.spread()).put(key, Entry { used_ns: 0, until_ns, what }, self.time_of(now));
    }

    fn counted(&self, validators: Validators) -> Option<Box<Counted>> {
        let bytes = validators.bytes();
        if validators.is_empty() || bytes > MAX_VALIDATOR_BYTES {
            return None;
        }
        let admission = self.validators.try_admit(bytes + size_of::<Counted>()).ok()?;
        Some(Box::new(Counted { validators, _bytes: admission }))
    }

    fn time_of(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }
}

/// Enough for five centuries.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::media::{
        content::{Name, Scope},
        fetch::FetchError,
    };

    fn key(text: &str) -> SourceKey {
        SourceKey::url(&Scope::default(), text)
    }

    fn name() -> Content {
        Content::Picture(Name::of(&Scope::default(), 1, 1, &[1, 2, 3]))
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
        sources.remember(key("a"), name(), Some(Duration::ZERO), tagged(&"x".repeat(7000)), Instant::now());
        assert!(sources.lookup(&key("a"), Instant::now() + Duration::from_secs(1)).is_none());
    }

    #[test]
    fn origins_together_cannot_fill_memory_with_tags() {
        let sources = Sources::default();
        let tag = "x".repeat(2900);
        let count = MAX_VALIDATORS_BYTES / tag.len() + 1000;
        let now = Instant::now();
        for number in 0..count {
            sources.remember(key(&number.to_string()), name(), Some(Duration::ZERO), tagged(&tag), now);
        }
        let known = |number: usize| sources.lookup(&key(&number.to_string()), now).is_some();
        assert!(known(0));
        assert!(!known(count - 1), "kept without a way to ask, and so not at all");
        sources.forget(&key("0"));
        sources.remember(key("0"), name(), Some(Duration::ZERO), tagged(&tag), now);
        assert!(known(0), "what is forgotten makes room");
    }

    #[test]
    fn an_entry_takes_two_lines_of_memory() {
        assert!(size_of::<(SourceKey, Entry)>() <= 128, "{}", size_of::<(SourceKey, Entry)>());
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
