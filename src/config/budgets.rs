//! What memory the settings add up to, and the defaults that follow what the process may have.

use std::fmt;

use bytesize::ByteSize;

use super::ServeArgs;
#[cfg(feature = "mm-routing")]
use crate::media::dimensions;
use crate::{
    media::cache::{MAX_CONTENTS, MAX_SOURCES, MAX_VALIDATORS_BYTES},
    memory::{SLOT_ALIGNMENT_BYTES, limits},
    routing,
};

/// The program itself. At rest it has 46 MiB beside the arena with NIXL's libraries in it (30 MiB of them are files, which the
/// system can drop), 21 MiB without; the rest is for connections, and for what the allocator keeps of what was given back.
pub const BASE_BYTES: u64 = 96 << 20;

/// An entry of the cache: keys, times, validators, the tables around them.
const SOURCE_BYTES: u64 = 400;
const CONTENT_BYTES: u64 = 300;

/// Where nothing tells how much memory there is.
const UNKNOWN_MEMORY_BYTES: u64 = 4 << 30;

/// The memory that a gateway may use, by what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    items: Vec<(&'static str, u64)>,
}

/// A quarter of what there is, at most 4 GiB, and no more than may be registered.
pub(super) fn default_arena_bytes() -> u64 {
    arena_bytes_of(limits::memory_bytes().unwrap_or(UNKNOWN_MEMORY_BYTES), limits::lockable_bytes())
}

fn arena_bytes_of(memory_bytes: u64, lockable_bytes: Option<u64>) -> u64 {
    let quarter = (memory_bytes / 4).min(4 << 30);
    // What NIXL registers besides is small.
    lockable_bytes.map_or(quarter, |lockable| quarter.min(lockable / 16 * 15))
}

/// An eighth of what there is, at most 1 GiB: with an arena of a quarter, six eighths in all.
pub(super) fn default_eighth() -> ByteSize {
    ByteSize((limits::memory_bytes().unwrap_or(UNKNOWN_MEMORY_BYTES) / 8).min(1 << 30))
}

impl Budgets {
    pub(super) fn of(args: &ServeArgs) -> Self {
        let mut items = vec![("base", BASE_BYTES), ("bodies", args.requests.body_budget_bytes() as u64)];
        items.push(("worker bodies", args.requests.worker_body_budget_bytes() as u64));
        items.push(("routing", routing::bytes(&args.routing.settings())));
        if args.images.frontend_decoding {
            let (media, arena) = (args.media.config(), args.arena_layout());
            let contents = (arena.bytes / SLOT_ALIGNMENT_BYTES).min(2 * MAX_CONTENTS) as u64;
            items.extend([
                ("arena", arena.bytes as u64),
                ("encoded files", media.encoded_bytes as u64),
                ("other media", args.other_media_bytes() as u64),
                ("decoder scratch", media.scratch_bytes as u64),
                // A client may leave while its data: URI is being read: the job ends with nobody to count it for.
                (
                    "abandoned jobs",
                    media.decode_threads() as u64
                        * (args.requests.max_body_bytes.as_u64() + media.fetch.max_bytes as u64),
                ),
                (
                    "cache index",
                    MAX_SOURCES as u64 * SOURCE_BYTES + MAX_VALIDATORS_BYTES as u64 + contents * CONTENT_BYTES,
                ),
            ]);
        }
        #[cfg(feature = "mm-routing")]
        if !args.images.frontend_decoding && !args.routing.model_paths.is_empty() {
            items.push(("image sizes", dimensions::MEMORY_BYTES));
        }
        Budgets { items }
    }

    pub fn sum(&self) -> u64 {
        self.items.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl fmt::Display for Budgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = self.items.iter().copied().chain([("sum", self.sum())]);
        for (name, bytes) in items {
            writeln!(f, "# {name:<16} {bytes:>14} bytes  {}", ByteSize(bytes))?;
        }
        match limits::memory_bytes() {
            Some(bytes) => {
                writeln!(f, "# of              {bytes:>14} bytes  {} that the process may have", ByteSize(bytes))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arena_is_a_quarter_bounded_by_4_gib_and_by_what_may_be_locked() {
        const GIB: u64 = 1 << 30;
        assert_eq!(arena_bytes_of(8 * GIB, None), 2 * GIB);
        assert_eq!(arena_bytes_of(64 * GIB, None), 4 * GIB);
        assert_eq!(arena_bytes_of(64 * GIB, Some(GIB)), GIB / 16 * 15);
        assert_eq!(arena_bytes_of(8 * GIB, Some(64 * GIB)), 2 * GIB);
    }
}
