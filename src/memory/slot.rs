//! Slots: ranges of the arena, exclusive while they are written, shared and read-only after.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Weak},
    time::Duration,
};

use offset_allocator::Allocation;

use super::{
    arena::{Arena, SLOT_ALIGNMENT_BYTES, ZoneId},
    budget::Admission,
};
use crate::sync::atomic::{AtomicU64, Ordering};

/// A range of the arena that one owner may write. Freed on drop.
pub struct SlotMut(Range);

/// A range of the arena that many may read. Freed when the last clone is dropped.
#[derive(Clone)]
pub struct Slot {
    range: Arc<Range>,
    /// Declared, and so dropped, after the range: when the end of the lease is told, the range can be evicted.
    lease: Option<Arc<Lease>>,
}

/// A slot that may be gone: what it points to is not kept by it.
#[derive(Debug, Clone, Default)]
pub struct WeakSlot(Weak<Range>);

/// The right to hold one slot, counted in the budget of its zone.
///
/// It goes wherever a clone of the [`Slot`] that was [`leased`](Slot::leased) goes, into a transfer or the body of a
/// request, and ends with the last of them. What the cache keeps for later has no lease.
#[derive(Debug)]
pub struct Lease {
    _admission: Admission,
}

struct Range {
    arena: Arc<Arena>,
    zone: ZoneId,
    allocation: Allocation,
    /// Page of the arena at which it begins.
    first_page: u32,
    /// Pages that the allocator counted, which may be more than `bytes` needs.
    pages: u32,
    bytes: usize,
    /// Nanoseconds since a time that is its keeper's.
    used_ns: AtomicU64,
}

impl Lease {
    /// `admission` is of the budget of the slot's zone.
    pub fn new(admission: Admission) -> Self {
        Lease { _admission: admission }
    }
}

impl SlotMut {
    pub(super) fn new(
        arena: Arc<Arena>,
        zone: ZoneId,
        allocation: Allocation,
        first_page: u32,
        pages: u32,
        bytes: usize,
    ) -> Self {
        SlotMut(Range { arena, zone, allocation, first_page, pages, bytes, used_ns: AtomicU64::new(0) })
    }

    /// Ends writing.
    pub fn freeze(self) -> Slot {
        Slot { range: Arc::new(self.0), lease: None }
    }

    pub fn address(&self) -> usize {
        self.0.address()
    }
}

impl Slot {
    /// Address of the first byte, for transfers.
    pub fn address(&self) -> usize {
        self.range.address()
    }

    /// The same slot, held under `lease`.
    pub fn leased(&self, lease: Arc<Lease>) -> Slot {
        Slot { range: self.range.clone(), lease: Some(lease) }
    }

    /// Whether it is held under a lease, and so counted.
    pub fn is_leased(&self) -> bool {
        self.lease.is_some()
    }

    /// The same slot, for whoever wants to find it as long as somebody holds it.
    pub fn downgrade(&self) -> WeakSlot {
        WeakSlot(Arc::downgrade(&self.range))
    }

    /// Notes when it was used, for whoever keeps slots and forgets the one that was used the longest ago. What it counts
    /// from is up to that keeper.
    pub fn mark_used(&self, at: Duration) {
        let ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.range.used_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// The latest time that was noted.
    pub fn last_used(&self) -> Duration {
        Duration::from_nanos(self.range.used_ns.load(Ordering::Relaxed))
    }

    /// Whether nobody but the caller holds this slot, so that dropping it frees memory.
    pub fn is_sole(&self) -> bool {
        Arc::strong_count(&self.range) == 1
    }
}

impl WeakSlot {
    /// The slot, without a lease, if somebody still holds it.
    pub fn upgrade(&self) -> Option<Slot> {
        Some(Slot { range: self.0.upgrade()?, lease: None })
    }
}

impl Range {
    fn address(&self) -> usize {
        self.arena.address() + self.first_page as usize * SLOT_ALIGNMENT_BYTES
    }

    fn pointer(&self) -> *mut u8 {
        self.arena.pointer(self.first_page as usize * SLOT_ALIGNMENT_BYTES).as_ptr()
    }
}

impl Deref for SlotMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped (the arena is held), initialised (anonymous memory), and this is its only owner.
        unsafe { std::slice::from_raw_parts(self.0.pointer(), self.0.bytes) }
    }
}

impl DerefMut for SlotMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for Deref, and `&mut self` proves that nobody reads it meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.0.pointer(), self.0.bytes) }
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped and initialised; nothing writes to a frozen slot (NIXL only reads it).
        unsafe { std::slice::from_raw_parts(self.range.pointer(), self.range.bytes) }
    }
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.arena.give_back(self.zone, self.allocation, self.pages);
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.range.fmt(f)
    }
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SlotMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotMut").field("bytes", &self.0.bytes).finish_non_exhaustive()
    }
}
