//! The arena: one anonymous mapping, cut into slots.

use std::{io, ptr::NonNull, sync::Arc};

use offset_allocator::{Allocation, Allocator};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

use super::slot::SlotMut;

/// Slots begin at multiples of this. A page: a source or target off 64-byte alignment made NIXL's CMA writes
/// 7 times slower, and a page keeps two slots from sharing one.
pub const SLOT_ALIGNMENT_BYTES: usize = 4096;

/// Transparent huge pages are 2 MiB on x86-64 and on aarch64 with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    #[error("the arena must have between {SLOT_ALIGNMENT_BYTES} bytes and 16 TiB, not {0}")]
    Size(usize),
    #[error("cannot map {bytes} bytes for the arena: {source}")]
    Map { bytes: usize, source: io::Error },
}

/// How full an arena is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaUse {
    pub total_bytes: usize,
    pub used_bytes: usize,
    /// Lower bound of the largest slot that can be had at once.
    pub largest_free_bytes: usize,
}

/// Memory for pixels; see the module's documentation.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    pages: Mutex<Pages>,
    freed: Notify,
}

struct Pages {
    allocator: Allocator,
    used: u32,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("used", &self.used).finish_non_exhaustive()
    }
}

// SAFETY: the mapping belongs to the arena alone and outlives every slot (slots hold an Arc of it); disjoint ranges are
// handed out under the mutex, so threads never share a range mutably.
unsafe impl Send for Arena {}
// SAFETY: as above; `&Arena` gives out no reference into the mapping.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes` (rounded up to a page), asks for huge pages, and faults everything in: a page fault in the middle of
    /// a decode costs more than the decode of the page (3 us each on virtual machines).
    pub fn new(bytes: usize) -> Result<Arc<Self>, ArenaError> {
        let pages = bytes.div_ceil(SLOT_ALIGNMENT_BYTES);
        let page_count = u32::try_from(pages).ok().filter(|&n| n > 0).ok_or(ArenaError::Size(bytes))?;
        let bytes = pages * SLOT_ALIGNMENT_BYTES;
        let base = map(bytes).map_err(|source| ArenaError::Map { bytes, source })?;
        let allocator = Allocator::new(page_count);
        Ok(Arc::new(Arena { base, bytes, pages: Mutex::new(Pages { allocator, used: 0 }), freed: Notify::new() }))
    }

    /// A slot of `bytes` bytes, or `None` if no free range is large enough now. Its content is whatever was there before.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Option<SlotMut> {
        let count = u32::try_from(bytes.div_ceil(SLOT_ALIGNMENT_BYTES).max(1)).ok()?;
        let allocation = {
            let mut pages = self.lock();
            let allocation = pages.allocator.allocate(count)?;
            pages.used += count;
            allocation
        };
        Some(SlotMut::new(self.clone(), allocation, count, bytes))
    }

    /// Resolves after a slot was given back since this was called. Take it before the attempt that may fail.
    pub fn freed(&self) -> impl Future<Output = ()> + '_ {
        self.freed.notified()
    }

    pub(super) fn give_back(&self, allocation: Allocation, count: u32) {
        let mut pages = self.lock();
        pages.allocator.free(allocation);
        pages.used -= count;
        drop(pages);
        self.freed.notify_waiters();
    }

    pub fn usage(&self) -> ArenaUse {
        let pages = self.lock();
        ArenaUse {
            total_bytes: self.bytes,
            used_bytes: pages.used as usize * SLOT_ALIGNMENT_BYTES,
            largest_free_bytes: pages.allocator.storage_report().largest_free_region as usize * SLOT_ALIGNMENT_BYTES,
        }
    }

    /// Address of the first byte, for registration.
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn pointer(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes);
        // SAFETY: offsets come from the allocator, which hands out ranges within the mapping only.
        unsafe { self.base.add(offset) }
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        // The allocator is never left half changed: a panic in it would be a bug of the library, after which the
        // state it had is still the best there is.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: base and bytes are those of the mapping; no slot is left, since each holds an Arc of the arena.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

fn map(bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
    let address = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if bytes >= HUGE_PAGE_BYTES {
        // Advice only: where the system has no huge pages to give, small ones serve.
        // SAFETY: the range is the mapping made above.
        unsafe { libc::madvise(address, bytes, libc::MADV_HUGEPAGE) };
    }
    // SAFETY: as above.
    let populated = unsafe { libc::madvise(address, bytes, libc::MADV_POPULATE_WRITE) };
    if populated != 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            // SAFETY: the range is the mapping made above, which nobody has seen yet.
            unsafe { libc::munmap(address, bytes) };
            return Err(error);
        }
        // A kernel before 5.14 does not know the advice: touch each page instead.
        for offset in (0..bytes).step_by(SLOT_ALIGNMENT_BYTES) {
            // SAFETY: offset is within the mapping, which nobody else has seen yet.
            unsafe { address.cast::<u8>().add(offset).write_volatile(0) };
        }
    }
    NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))
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
    fn an_empty_or_absurd_arena_is_refused() {
        assert!(matches!(Arena::new(0), Err(ArenaError::Size(0))));
        assert!(matches!(Arena::new(usize::MAX), Err(ArenaError::Size(_))));
    }

    proptest! {
        /// Random allocations and frees against a plain list of ranges.
        #[test]
        fn ranges_never_overlap_and_usage_is_exact(steps in proptest::collection::vec((any::<bool>(), 1usize..20), 1..200)) {
            let arena = Arena::new(256 * SLOT_ALIGNMENT_BYTES).unwrap();
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
                let used: usize = held.iter().map(|s| s.len()).sum();
                prop_assert_eq!(arena.usage().used_bytes, used);
            }
        }
    }
}
