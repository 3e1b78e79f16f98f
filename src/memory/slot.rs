//! Slots: ranges of the arena, exclusive while they are written, shared and read-only after.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use offset_allocator::Allocation;

use super::arena::{Arena, SLOT_ALIGNMENT_BYTES};

/// A range of the arena that one owner may write. Freed on drop.
pub struct SlotMut(Range);

/// A range of the arena that many may read. Freed when the last clone is dropped.
#[derive(Clone)]
pub struct Slot(Arc<Range>);

struct Range {
    arena: Arc<Arena>,
    allocation: Allocation,
    /// Pages that the allocator counted, which may be more than `bytes` needs.
    pages: u32,
    bytes: usize,
}

impl SlotMut {
    pub(super) fn new(arena: Arc<Arena>, allocation: Allocation, pages: u32, bytes: usize) -> Self {
        SlotMut(Range { arena, allocation, pages, bytes })
    }

    /// Ends writing.
    pub fn freeze(self) -> Slot {
        Slot(Arc::new(self.0))
    }

    pub fn address(&self) -> usize {
        self.0.address()
    }
}

impl Slot {
    /// Address of the first byte, for transfers.
    pub fn address(&self) -> usize {
        self.0.address()
    }

    /// Whether nobody but the caller holds this slot, so that dropping it frees memory.
    pub fn is_sole(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Range {
    fn address(&self) -> usize {
        self.arena.address() + self.allocation.offset as usize * SLOT_ALIGNMENT_BYTES
    }

    fn pointer(&self) -> *mut u8 {
        self.arena.pointer(self.allocation.offset as usize * SLOT_ALIGNMENT_BYTES).as_ptr()
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
        unsafe { std::slice::from_raw_parts(self.0.pointer(), self.0.bytes) }
    }
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.arena.give_back(self.allocation, self.pages);
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("bytes", &self.0.bytes).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SlotMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotMut").field("bytes", &self.0.bytes).finish_non_exhaustive()
    }
}
