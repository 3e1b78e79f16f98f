//! Two levels of memory for pictures: which content a source has, and which slot holds a content.
//!
//! Level one ([`sources`]) is keyed by source and scope, and forgets after a while, since what a URL shows may change; it
//! also remembers for a moment that an origin failed. Level two ([`contents`]) is keyed by the media id, which is a function
//! of scope and pixels: equal pixels share one slot, whatever URL or format they came by. A slot that a request or a
//! transfer holds is never evicted; the rest is least recently used.
//!
//! Both are cut into [`shards`] with a lock each. Level one gives names and never pixels: holding pixels is up to those who
//! were admitted to it.

mod contents;
mod key;
mod recent;
mod shards;
mod sources;

pub use contents::{Contents, MAX_CONTENTS};
pub use key::SourceKey;
pub use recent::MOVED_EVERY;
pub use sources::{Known, MAX_SOURCES, Sources};
