//! Level two: which slot holds a content.

use std::{num::NonZeroUsize, sync::Arc, time::Instant};

use super::{
    recent::Recent,
    shards::{SHARDS, Shards},
};
use crate::{
    media::{
        content::{MediaId, Name},
        picture::Picture,
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
}

/// What is kept is leased to nobody.
type Shard = Recent<MediaId, Picture>;

impl Contents {
    pub fn new(arena: Arc<Arena>) -> Self {
        const EACH: NonZeroUsize = NonZeroUsize::new(MAX_CONTENTS.div_ceil(SHARDS)).unwrap();
        let shards = || Shards::new(|| Recent::new(EACH));
        Contents { arena, small: shards(), large: shards() }
    }

    fn shards(&self, zone: ZoneId) -> &Shards<Shard> {
        match zone {
            ZoneId::Small => &self.small,
            ZoneId::Large => &self.large,
        }
    }

    fn shards_of(&self, name: &Name) -> &Shards<Shard> {
        self.shards(self.arena.zone_of(name.rgb_bytes()))
    }

    /// Whether a picture is there. It counts as used.
    pub fn touch(&self, name: &Name, now: Instant) -> bool {
        let mut shard = self.shards_of(name).lock(name.media_id.spread());
        shard.get(&name.media_id, now).is_some()
    }

    /// A picture, held under a lease: it stays until the lease is over.
    pub fn pin(&self, name: &Name, lease: &Arc<Lease>, now: Instant) -> Option<Picture> {
        let mut shard = self.shards_of(name).lock(name.media_id.spread());
        Some(shard.get(&name.media_id, now)?.leased(lease.clone()))
    }

    /// Keeps a picture. If one of the same content is there already, that one is given back and `picture` is dropped, so
    /// that equal pixels are kept once.
    pub fn keep(&self, picture: Picture, now: Instant) -> (Picture, bool) {
        debug_assert!(!picture.slot.is_leased(), "what is kept for later is not counted for anybody");
        let id = picture.name.media_id;
        let mut shard = self.shards_of(&picture.name).lock(id.spread());
        if let Some(there) = shard.get(&id, now) {
            return (there.clone(), true);
        }
        shard.put(id, picture.clone(), now);
        (picture, false)
    }

    /// Drops the least recently used picture of a zone that nobody holds. Whether there was one.
    pub fn evict_one(&self, zone: ZoneId) -> bool {
        let shards = self.shards(zone);
        loop {
            let oldest = shards.each().filter_map(|shard| shard.oldest(is_unused)).min_by_key(|(used, _)| *used);
            let Some((_, id)) = oldest else { return false };
            // It may have been taken hold of meanwhile. The lock is gone before the picture is.
            let victim = shards.lock(id.spread()).remove_if(&id, is_unused);
            if victim.is_some() {
                return true;
            }
        }
    }

    /// Drops every picture that nobody holds.
    pub fn clear(&self) {
        for zone in ZoneId::ALL {
            while self.evict_one(zone) {}
        }
    }

    /// Pictures that are kept.
    pub fn len(&self) -> usize {
        ZoneId::ALL.into_iter().flat_map(|zone| self.shards(zone).each()).map(|shard| shard.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn is_unused(picture: &Picture) -> bool {
    picture.slot.is_sole()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::media::{cache::MOVED_EVERY, content::Scope};

    fn picture(arena: &Arc<Arena>, value: u8) -> Picture {
        let mut slot = arena.allocate(3).unwrap();
        slot.fill(value);
        Picture { name: Name::of(&Scope::default(), 1, 1, &[value; 3]), slot: slot.freeze() }
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
        assert_eq!(first.slot.address(), second.slot.address());
        assert_eq!(arena.usage().used_bytes, 4096);
    }

    #[test]
    fn what_is_held_is_not_evicted_and_the_least_recently_used_goes_first() {
        let (arena, contents) = contents();
        let lease = Arc::new(arena.try_lease(3).unwrap());
        let held = contents.keep(picture(&arena, 1), Instant::now()).0.name;
        let held = contents.pin(&held, &lease, Instant::now()).unwrap();
        let names = [2, 3, 4].map(|value| contents.keep(picture(&arena, value), Instant::now()).0.name);
        assert!(contents.touch(&names[0], Instant::now() + MOVED_EVERY));
        for gone in [1, 2, 0] {
            assert!(contents.evict_one(ZoneId::Small));
            assert!(contents.pin(&names[gone], &lease, Instant::now()).is_none(), "{gone}");
        }
        assert!(!contents.evict_one(ZoneId::Small), "the last one is held");
        drop(held);
        assert!(contents.evict_one(ZoneId::Small));
        assert_eq!((arena.usage().used_bytes, contents.len()), (0, 0));
    }
}
