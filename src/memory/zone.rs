//! A zone: a run of the arena's pages with an allocator, and a budget, which also has word of what was given back.

use offset_allocator::{Allocation, Allocator, ext::min_allocator_size};

use super::{arena::SLOT_ALIGNMENT_BYTES, budget::Budget};
use crate::sync::Mutex;

/// How full a zone, or the arena, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArenaUse {
    pub total_bytes: usize,
    pub used_bytes: usize,
    /// Lower bound of the largest slot that can be had at once.
    pub largest_free_bytes: usize,
}

impl ArenaUse {
    /// Share of the free bytes that is not in the largest free range: 0 if they are all in one piece.
    pub fn fragmentation(&self) -> f64 {
        match self.total_bytes - self.used_bytes {
            0 => 0.0,
            free => 1.0 - self.largest_free_bytes.min(free) as f64 / free as f64,
        }
    }
}

pub(super) struct Zone {
    first_page: u32,
    pages: u32,
    state: Mutex<State>,
    /// Pixels that requests hold or will hold, in bytes of whole slots.
    pub budget: Budget,
}

struct State {
    allocator: Allocator,
    used: u32,
}

/// Pages that a slot of `bytes` bytes takes: at most an eighth more than it needs.
///
/// The allocator keeps free ranges in bins, an eighth of their size apart, and looks from the bin above, so that it would
/// not find the hole that a picture left for another of the same size. With every slot as large as its bin it does, and
/// whatever fits the budget of an empty zone finds its places there: no request is admitted to memory that cannot be had.
pub(super) fn pages_of(bytes: usize) -> Option<u32> {
    let pages = u32::try_from(bytes.div_ceil(SLOT_ALIGNMENT_BYTES).max(1)).ok()?;
    // Above half of what it can count the bin above does not exist.
    (pages <= 1 << 31).then(|| min_allocator_size(pages))
}

impl Zone {
    pub fn new(first_page: u32, pages: u32) -> Self {
        Zone {
            first_page,
            pages,
            state: Mutex::new(State { allocator: Allocator::new(pages), used: 0 }),
            budget: Budget::new(pages as usize * SLOT_ALIGNMENT_BYTES),
        }
    }

    /// A free range and its first page within the arena.
    pub fn allocate(&self, pages: u32) -> Option<(Allocation, u32)> {
        let mut state = self.state.lock();
        let allocation = state.allocator.allocate(pages)?;
        state.used += pages;
        Some((allocation, self.first_page + allocation.offset))
    }

    pub fn give_back(&self, allocation: Allocation, pages: u32) {
        let mut state = self.state.lock();
        state.allocator.free(allocation);
        state.used -= pages;
        drop(state);
        self.budget.announce();
    }

    pub fn usage(&self) -> ArenaUse {
        let state = self.state.lock();
        ArenaUse {
            total_bytes: self.pages as usize * SLOT_ALIGNMENT_BYTES,
            used_bytes: state.used as usize * SLOT_ALIGNMENT_BYTES,
            largest_free_bytes: state.allocator.storage_report().largest_free_region as usize * SLOT_ALIGNMENT_BYTES,
        }
    }
}
