//! Level two: which slot holds a content.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    recent::{Recent, Used},
    shards::{SHARDS, Shards},
};
use crate::{
    media::{
        content::MediaId,
        picture::{Content, Media},
    },
    memory::{Arena, Lease, ZoneId},
};

/// Pictures that are kept in a zone, in all; about 200 bytes each beside the pixels. A zone full of pictures of a few
/// pixels would hold many more, and be slow to search for one to evict.
pub const MAX_CONTENTS: usize = 128 << 10;

/// See the module's documentation.
#[derive(Debug)]
pub struct Contents {
    arena: Arc<Arena>,
    small: Shards<Shard>,
    large: Shards<Shard>,
    /// What times count from.
    start: Instant,
}

/// What is kept is leased to nobody.
type Shard = Recent<MediaId, Media>;

/// The slot knows it, so that whoever finds it by another way than this table can tell.
impl Used for Media {
    fn mark_used(&mut self, at: Duration) {
        self.slot().mark_used(at);
    }

    fn last_used(&self) -> Duration {
        self.slot().last_used()
    }
}

impl Contents {
    pub fn new(arena: Arc<Arena>) -> Self {
        let shards = || Shards::new(|| Recent::new(MAX_CONTENTS.div_ceil(SHARDS)));
        Contents { arena, small: shards(), large: shards(), start: Instant::now() }
    }

    /// Whoever found something of what is kept here by another way says that it was used.
    pub fn mark_used(&self, media: &Media, now: Instant) {
        media.slot().mark_used(self.time_of(now));
    }

    fn time_of(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }

    fn shards(&self, zone: ZoneId) -> &Shards<Shard> {
        match zone {
            ZoneId::Small => &self.small,
            ZoneId::Large => &self.large,
        }
    }

    fn shards_of(&self, content: &Content) -> &Shards<Shard> {
        self.shards(self.arena.zone_of(content.slot_bytes()))
    }

    /// Whether a content is there. It counts as used.
    pub fn touch(&self, content: &Content, now: Instant) -> bool {
        let mut shard = self.shards_of(content).lock(content.id().spread());
        shard.get(content.id(), self.time_of(now)).is_some()
    }

    /// A content, held under a lease: it stays until the lease is over.
    pub fn pin(&self, content: &Content, lease: &Arc<Lease>, now: Instant) -> Option<Media> {
        let mut shard = self.shards_of(content).lock(content.id().spread());
        Some(shard.get(content.id(), self.time_of(now))?.leased(lease.clone()))
    }

    /// Keeps media. If the same content is there already, that is given back and `media` is dropped, so that equal pixels
    /// are kept once.
    pub fn keep(&self, media: Media, now: Instant) -> (Media, bool) {
        debug_assert!(!media.slot().is_leased(), "what is kept for later is not counted for anybody");
        let (content, now) = (media.content(), self.time_of(now));
        let mut shard = self.shards_of(&content).lock(content.id().spread());
        if let Some(there) = shard.get(content.id(), now) {
            return (there.clone(), true);
        }
        shard.put(*content.id(), media.clone(), now);
        (media, false)
    }

    /// Drops what was used the longest ago in a zone and nobody holds. Whether there was anything.
    pub fn evict_one(&self, zone: ZoneId) -> bool {
        let shards = self.shards(zone);
        loop {
            let oldest = shards.each().filter_map(|mut shard| shard.oldest(is_unused)).min_by_key(|(used, _)| *used);
            let Some((_, id)) = oldest else { return false };
            // It may have been taken hold of meanwhile. The lock is gone before what it guarded is.
            let victim = shards.lock(id.spread()).remove_if(&id, is_unused);
            if victim.is_some() {
                return true;
            }
        }
    }

    /// Drops everything that nobody holds.
    pub fn clear(&self) {
        for zone in ZoneId::ALL {
            while self.evict_one(zone) {}
        }
    }

    /// Contents that are kept.
    pub fn len(&self) -> usize {
        ZoneId::ALL.into_iter().flat_map(|zone| self.shards(zone).each()).map(|shard| shard.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn is_unused(media: &Media) -> bool {
    media.slot().is_sole()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::media::{
        content::{Name, Scope},
        picture::Picture,
    };

    fn picture(arena: &Arc<Arena>, value: u8) -> Media {
        let mut slot = arena.allocate(3).unwrap();
        slot.fill(value);
        Media::Picture(Picture { name: Name::of(&Scope::default(), 1, 1, &[value; 3]), slot: slot.freeze() })
    }

    fn contents() -> (Arc<Arena>, Contents) {
        let arena = Arena::new(1 << 20).unwrap();
        (arena.clone(), Contents::new(arena))
    }

    #[test]
    fn equal_pixels_are_kept_once() {
        let (arena, contents) = contents();
        let (first, was_there) = contents.keep(picture(&arena, 1), Instant::now());
        assert!(!was_there);
        let (second, was_there) = contents.keep(picture(&arena, 1), Instant::now());
        assert!(was_there);
        assert_eq!(first.slot().address(), second.slot().address());
        assert_eq!(arena.usage().used_bytes, 4096);
    }

    #[test]
    fn what_is_held_is_not_evicted_and_the_least_recently_used_goes_first() {
        let (arena, contents) = contents();
        let lease = Arc::new(arena.try_lease(3).unwrap());
        let held = contents.keep(picture(&arena, 1), Instant::now()).0.content();
        let held = contents.pin(&held, &lease, Instant::now()).unwrap();
        let kept = [2, 3, 4].map(|value| contents.keep(picture(&arena, value), Instant::now()).0.content());
        assert!(contents.touch(&kept[0], Instant::now()));
        for gone in [1, 2, 0] {
            assert!(contents.evict_one(ZoneId::Small));
            assert!(contents.pin(&kept[gone], &lease, Instant::now()).is_none(), "{gone}");
        }
        assert!(!contents.evict_one(ZoneId::Small), "the last one is held");
        drop(held);
        assert!(contents.evict_one(ZoneId::Small));
        assert_eq!((arena.usage().used_bytes, contents.len()), (0, 0));
    }
}
