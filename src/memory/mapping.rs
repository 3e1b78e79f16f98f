//! The mapping under the arena: anonymous memory, huge pages where there are some, all of it faulted in.

use std::{io, ptr::NonNull};

/// Transparent huge pages are 2 MiB on x86-64 and on aarch64 with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The smallest page of any system that we run on.
const PAGE_BYTES: usize = 4096;

/// Anonymous memory that is unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, which gives out addresses and no references.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes`, asks for huge pages, and faults everything in: a page fault in the middle of a decode costs more
    /// than the decode of the page (3 us each on virtual machines).
    pub fn new(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
        let address = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        // From here on the drop unmaps.
        let mapping = Mapping { base, bytes };
        if bytes >= HUGE_PAGE_BYTES {
            // Advice only: where the system has no huge pages to give, small ones serve.
            // SAFETY: the range is the mapping made above.
            unsafe { libc::madvise(address, bytes, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: as above.
        if unsafe { libc::madvise(address, bytes, libc::MADV_POPULATE_WRITE) } != 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINVAL) {
                return Err(error);
            }
            // A kernel before 5.14 does not know the advice: touch each page instead.
            for offset in (0..bytes).step_by(PAGE_BYTES) {
                // SAFETY: offset is within the mapping, which nobody else has seen yet.
                unsafe { base.add(offset).write_volatile(0) };
            }
        }
        Ok(mapping)
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and bytes are those of the mapping; who hands out ranges of it keeps it alive as long as they live.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// The lines about a mapping in /proc/self/smaps, as (name, rest).
    fn described(mapping: &Mapping) -> Vec<(String, String)> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = mapping.base().as_ptr() as usize;
        let is_within = |line: &str| {
            let range = line.split(' ').next()?.split_once('-')?;
            let end = |text: &str| usize::from_str_radix(text, 16).ok();
            Some(end(range.0)? <= start && start < end(range.1)?)
        };
        let mut lines = smaps.lines().skip_while(|line| is_within(line) != Some(true));
        lines.next().expect("the mapping is there");
        let fields = lines.map_while(|line| is_within(line).is_none().then(|| line.split_once(':')).flatten());
        fields.map(|(name, rest)| (name.to_owned(), rest.trim().to_owned())).collect()
    }

    #[test]
    fn an_arena_is_there_from_the_start_and_asks_for_huge_pages() {
        let mapping = Mapping::new(8 << 20).unwrap();
        let fields = described(&mapping);
        let field = |name: &str| fields.iter().find(|(other, _)| other == name).map_or("", |(_, rest)| rest.as_str());
        let resident_kib: usize = field("Rss").split(' ').next().unwrap().parse().unwrap();
        assert!(resident_kib >= 8 << 10, "{resident_kib} KiB of it are resident");
        // Not there in a kernel without transparent huge pages.
        if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            assert!(field("VmFlags").split(' ').any(|flag| flag == "hg"), "{}", field("VmFlags"));
        }
    }
}
