//! The arena: one mapping, cut into zones, which are cut into slots.

use std::{io, ptr::NonNull, sync::Arc};

use offset_allocator::Allocation;

use super::{
    budget::{Budget, BudgetError},
    mapping::Mapping,
    slot::{Lease, Slot, SlotMut},
    watch::Watch,
    zone::{self, ArenaUse, Zone},
};

/// Slots begin at multiples of this. A page: a source or target off 64-byte alignment made NIXL's CMA writes
/// 7 times slower, and a page keeps two slots from sharing one.
pub const SLOT_ALIGNMENT_BYTES: usize = 4096;

/// A slot above this share of the arena is large.
const LARGE_SHARE: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    #[error("the arena must have between {SLOT_ALIGNMENT_BYTES} bytes and 16 TiB, not {0}")]
    Size(usize),
    #[error("a zone of {large_zone_bytes} bytes for large images leaves too little of an arena of {bytes}")]
    Zones { bytes: usize, large_zone_bytes: usize },
    #[error("cannot map {bytes} bytes for the arena: {source}")]
    Map { bytes: usize, source: io::Error },
}

/// The parts of the arena. Large slots have one of their own, so that a few of them, waiting for room, block no small ones,
/// and so that small ones do not cut up the room of the large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZoneId {
    Small,
    Large,
}

impl ZoneId {
    /// In the order in which whoever needs both takes them.
    pub const ALL: [ZoneId; 2] = [ZoneId::Large, ZoneId::Small];

    pub fn name(self) -> &'static str {
        match self {
            ZoneId::Small => "small",
            ZoneId::Large => "large",
        }
    }
}

/// How an arena is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub bytes: usize,
    /// Of `bytes`; zero for an arena without zones.
    pub large_zone_bytes: usize,
    /// Slots of this size and more are large.
    pub large_from_bytes: usize,
}

impl Layout {
    /// An arena of one zone.
    pub fn plain(bytes: usize) -> Self {
        Layout { bytes, large_zone_bytes: 0, large_from_bytes: usize::MAX }
    }

    /// A quarter for large images, more if the largest needs it, none if no image is large.
    pub fn new(bytes: usize, largest_image_bytes: usize) -> Self {
        if largest_image_bytes <= bytes / LARGE_SHARE {
            return Self::plain(bytes);
        }
        let large_zone_bytes = (bytes / 4).max(Arena::charge(largest_image_bytes));
        Layout { bytes, large_zone_bytes, large_from_bytes: bytes / LARGE_SHARE + 1 }
    }

    /// With room in the small zone for what will be [reserved](Arena::reserve) there.
    pub fn with_reserve(self, bytes: usize) -> Self {
        Layout { bytes: self.bytes.saturating_add(bytes), ..self }
    }

    /// Whether the small zone is large enough for what goes there.
    pub fn is_possible(&self) -> bool {
        let small = self.bytes.checked_sub(self.large_zone_bytes);
        small.is_some_and(|small| self.large_zone_bytes == 0 || small >= self.large_from_bytes)
    }
}

/// Memory for pixels; see the module's documentation.
pub struct Arena {
    mapping: Mapping,
    small: Zone,
    large: Option<Zone>,
    large_from_bytes: usize,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl Arena {
    /// An arena of one zone, of `bytes` rounded up to a page.
    pub fn new(bytes: usize) -> Result<Arc<Self>, ArenaError> {
        Self::with_layout(Layout::plain(bytes))
    }

    /// Maps an arena and faults it in, which takes a while: half a second a gigabyte.
    pub fn with_layout(layout: Layout) -> Result<Arc<Self>, ArenaError> {
        let Layout { bytes, large_zone_bytes, large_from_bytes } = layout;
        let page_count = |bytes: usize| u32::try_from(bytes.div_ceil(SLOT_ALIGNMENT_BYTES)).ok();
        let pages = page_count(bytes).filter(|&pages| pages > 0).ok_or(ArenaError::Size(bytes))?;
        let unfit = ArenaError::Zones { bytes, large_zone_bytes };
        let large_pages = page_count(large_zone_bytes).filter(|&large| large < pages).ok_or(unfit)?;
        let bytes = pages as usize * SLOT_ALIGNMENT_BYTES;
        let mapping = Mapping::new(bytes).map_err(|source| ArenaError::Map { bytes, source })?;
        let small_pages = pages - large_pages;
        Ok(Arc::new(Arena {
            mapping,
            small: Zone::new(0, small_pages),
            large: (large_pages > 0).then(|| Zone::new(small_pages, large_pages)),
            large_from_bytes,
        }))
    }

    /// Where a slot of `bytes` bytes belongs.
    pub fn zone_of(&self, bytes: usize) -> ZoneId {
        if bytes >= self.large_from_bytes { ZoneId::Large } else { ZoneId::Small }
    }

    /// A slot of `bytes` bytes, or `None` if no free range is large enough now. Its content is whatever was there before.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Option<SlotMut> {
        self.allocate_in(self.zone_of(bytes), bytes)
    }

    fn allocate_in(self: &Arc<Self>, zone: ZoneId, bytes: usize) -> Option<SlotMut> {
        let pages = zone::pages_of(bytes)?;
        let (allocation, first_page) = self.zone(zone).allocate(pages)?;
        Some(SlotMut::new(self.clone(), zone, allocation, first_page, pages, bytes))
    }

    /// A slot to be held for good, of the small zone whatever its size, with the content that `fill` writes. It is leased,
    /// and so not counted on for pictures.
    pub fn reserve(self: &Arc<Self>, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Option<Slot> {
        let zone = ZoneId::Small;
        let admission = self.budget(zone).try_admit(Self::charge(bytes)).ok()?;
        let lease = Arc::new(Lease::new(admission));
        let mut slot = self.allocate_in(zone, bytes)?;
        fill(&mut slot);
        Some(slot.freeze().leased(lease))
    }

    /// What a slot of `bytes` bytes takes, and counts in its zone's budget.
    pub fn charge(bytes: usize) -> usize {
        zone::pages_of(bytes).map_or(usize::MAX, |pages| pages as usize * SLOT_ALIGNMENT_BYTES)
    }

    /// Pixels that may be held by requests in a zone. Whoever pins slots is admitted to it first, in full; then what is
    /// not in use (and can be evicted) is always enough for those who were admitted.
    pub fn budget(&self, zone: ZoneId) -> &Budget {
        &self.zone(zone).budget
    }

    /// A lease of a slot of `bytes` bytes, without waiting.
    pub fn try_lease(&self, bytes: usize) -> Result<Lease, BudgetError> {
        let admission = self.budget(self.zone_of(bytes)).try_admit(Self::charge(bytes))?;
        Ok(Lease::new(admission))
    }

    /// Hears of what is given back in a zone. Take it before the attempt that may fail.
    pub fn watch(&self, zone: ZoneId) -> Watch<'_> {
        self.zone(zone).budget.watch()
    }

    pub(super) fn give_back(&self, zone: ZoneId, allocation: Allocation, pages: u32) {
        self.zone(zone).give_back(allocation, pages);
    }

    pub fn usage(&self) -> ArenaUse {
        let zones = ZoneId::ALL.map(|zone| self.zone_usage(zone));
        ArenaUse {
            total_bytes: zones.iter().map(|zone| zone.total_bytes).sum(),
            used_bytes: zones.iter().map(|zone| zone.used_bytes).sum(),
            largest_free_bytes: zones.iter().map(|zone| zone.largest_free_bytes).max().unwrap_or(0),
        }
    }

    /// All zero for a zone that there is not.
    pub fn zone_usage(&self, zone: ZoneId) -> ArenaUse {
        match (zone, &self.large) {
            (ZoneId::Small, _) => self.small.usage(),
            (ZoneId::Large, Some(large)) => large.usage(),
            (ZoneId::Large, None) => ArenaUse::default(),
        }
    }

    /// Address of the first byte, for registration.
    pub fn address(&self) -> usize {
        self.mapping.base().as_ptr() as usize
    }

    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    pub(super) fn pointer(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes());
        // SAFETY: offsets come from the allocators, which hand out ranges within the mapping only.
        unsafe { self.mapping.base().add(offset) }
    }

    fn zone(&self, zone: ZoneId) -> &Zone {
        match (zone, &self.large) {
            (ZoneId::Large, Some(large)) => large,
            // Without zones nothing is large.
            _ => &self.small,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_aligned_disjoint_and_reusable_at_once() {
        let arena = Arena::new(64 * SLOT_ALIGNMENT_BYTES).unwrap();
        let a = arena.allocate(1).unwrap();
        let b = arena.allocate(SLOT_ALIGNMENT_BYTES + 1).unwrap();
        assert_eq!(a.address() % SLOT_ALIGNMENT_BYTES, 0);
        assert_eq!(b.address() % SLOT_ALIGNMENT_BYTES, 0);
        assert_eq!(arena.usage().used_bytes, 3 * SLOT_ALIGNMENT_BYTES);
        drop(a);
        drop(b);
        assert_eq!(arena.usage().used_bytes, 0);
        assert!(arena.allocate(60 * SLOT_ALIGNMENT_BYTES).is_some());
    }

    #[test]
    fn a_frozen_slot_lives_until_its_last_holder_lets_go() {
        let arena = Arena::new(16 * SLOT_ALIGNMENT_BYTES).unwrap();
        let mut slot = arena.allocate(5).unwrap();
        slot.copy_from_slice(b"pixel");
        let frozen = slot.freeze();
        let other = frozen.clone();
        drop(frozen);
        assert_eq!(&other[..], b"pixel");
        assert_ne!(arena.usage().used_bytes, 0);
        drop(other);
        assert_eq!(arena.usage().used_bytes, 0);
    }

    #[test]
    fn a_leased_slot_counts_in_its_zone_until_its_last_clone_is_gone() {
        let arena = Arena::new(64 * SLOT_ALIGNMENT_BYTES).unwrap();
        let kept = arena.allocate(5).unwrap().freeze();
        let lease = Arc::new(arena.try_lease(5).unwrap());
        let leased = kept.leased(lease);
        assert!(!kept.is_sole());
        let in_transfer = leased.clone();
        drop(leased);
        let budget = arena.budget(ZoneId::Small);
        assert_eq!(budget.free_bytes(), budget.total_bytes() - SLOT_ALIGNMENT_BYTES);
        drop(in_transfer);
        assert!(kept.is_sole());
        assert_eq!(budget.free_bytes(), budget.total_bytes());
    }

    #[test]
    fn an_empty_or_absurd_arena_is_refused() {
        assert!(matches!(Arena::new(0), Err(ArenaError::Size(0))));
        assert!(matches!(Arena::new(usize::MAX), Err(ArenaError::Size(_))));
        let all_large = Layout { large_zone_bytes: 1 << 20, ..Layout::plain(1 << 20) };
        assert!(matches!(Arena::with_layout(all_large), Err(ArenaError::Zones { .. })));
    }

    #[test]
    fn large_slots_live_in_a_zone_of_their_own() {
        let layout = Layout::new(64 << 20, 12 << 20);
        assert_eq!(layout.large_zone_bytes, 16 << 20);
        assert!(layout.is_possible());
        let arena = Arena::with_layout(layout).unwrap();
        assert_eq!((arena.zone_of(2 << 20), arena.zone_of((2 << 20) + 1)), (ZoneId::Small, ZoneId::Large));
        let large = arena.allocate(12 << 20).unwrap();
        assert!(arena.allocate(12 << 20).is_none(), "the large zone is full");
        assert_eq!(arena.zone_usage(ZoneId::Small).used_bytes, 0);
        assert!(large.address() >= arena.address() + (48 << 20));
        let small: Vec<_> = std::iter::from_fn(|| arena.allocate(2 << 20)).collect();
        assert_eq!(small.len(), 24);
    }

    #[test]
    fn the_largest_image_always_has_a_place_or_the_layout_is_impossible() {
        assert_eq!(Layout::new(4 << 30, 100 << 20).large_zone_bytes, 0);
        let tight = Layout::new(200 << 20, 150_000_000);
        assert!(tight.large_zone_bytes >= 150_000_000 && tight.is_possible());
        assert!(!Layout::new(140 << 20, 150_000_000).is_possible());
        let arena = Arena::with_layout(Layout::new(64 << 20, 40_000_000)).unwrap();
        assert!(arena.allocate(40_000_000).is_some());
    }

    #[test]
    fn what_is_reserved_is_taken_from_nobody() {
        let layout = Layout::new(2 << 20, 300_000).with_reserve(1 << 20);
        let arena = Arena::with_layout(layout).unwrap();
        let reserved = arena.reserve(1 << 20, |_| {}).unwrap();
        assert!(reserved.is_leased());
        assert_eq!(arena.zone_usage(ZoneId::Large).used_bytes, 0);
        assert_eq!(arena.budget(ZoneId::Small).free_bytes(), (2 << 20) - (2 << 20) / 4);
    }

    #[test]
    fn fragmentation_is_the_share_of_free_bytes_that_one_slot_cannot_have() {
        let arena = Arena::new(8 * SLOT_ALIGNMENT_BYTES).unwrap();
        assert_eq!(arena.usage().fragmentation(), 0.0);
        let mut held: Vec<_> = (0..8).map(|_| arena.allocate(1).unwrap()).collect();
        assert_eq!(arena.usage().fragmentation(), 0.0, "nothing is free");
        for index in [6, 4, 2, 0] {
            held.remove(index);
        }
        assert_eq!(arena.usage().fragmentation(), 0.75);
    }

    proptest! {
        /// Random allocations and frees against a plain list of ranges.
        #[test]
        fn ranges_never_overlap_and_usage_is_exact(steps in proptest::collection::vec((any::<bool>(), 1usize..20), 1..200)) {
            let layout = Layout::new(256 * SLOT_ALIGNMENT_BYTES, 20 * SLOT_ALIGNMENT_BYTES);
            let arena = Arena::with_layout(layout).unwrap();
            let mut held: Vec<SlotMut> = Vec::new();
            for (free, pages) in steps {
                if free && !held.is_empty() {
                    held.swap_remove(pages % held.len());
                } else if let Some(slot) = arena.allocate(pages * SLOT_ALIGNMENT_BYTES) {
                    let (start, end) = (slot.address(), slot.address() + slot.len());
                    prop_assert!(start >= arena.address() && end <= arena.address() + arena.bytes());
                    for other in &held {
                        prop_assert!(end <= other.address() || start >= other.address() + other.len());
                    }
                    held.push(slot);
                }
                let used: usize = held.iter().map(|s| Arena::charge(s.len())).sum();
                prop_assert_eq!(arena.usage().used_bytes, used);
            }
        }

        /// What the budget admits finds its places in an empty zone, in any order.
        #[test]
        fn what_is_charged_also_fits(sizes in proptest::collection::vec(1usize..40_000, 1..200)) {
            let arena = Arena::new(4096 * SLOT_ALIGNMENT_BYTES).unwrap();
            let mut left = arena.bytes();
            let mut held = Vec::new();
            for bytes in sizes.into_iter().map(|pages| pages * 97) {
                let Some(rest) = left.checked_sub(Arena::charge(bytes)) else { continue };
                left = rest;
                held.push(arena.allocate(bytes).unwrap());
            }
        }
    }
}
