//! Two levels of memory for pictures: which content a source has, and which slot holds a content.
//!
//! Level one ([`sources`]) is keyed by source and scope, and forgets after a while, since what a URL shows may change; it
//! also remembers for a moment that an origin failed. Level two ([`contents`]) is keyed by the media id, which is a function
//! of scope and pixels: equal pixels share one slot, whatever URL or format they came by. A slot that a request or a
//! transfer holds is never evicted; of the rest goes first what was used the longest ago. Files of formats that are not
//! decoded are contents too, and lie in slots as pictures do.
//!
//! Both are cut into [`shards`] with a lock each. Level one has a short way to the slot beside the content's name, which a hit
//! takes: it reads one entry and one slot's count, however many there are. Whoever gets pixels from either level was
//! admitted to them: nothing leaves without a lease.

mod contents;
mod key;
mod recent;
mod shards;
mod sources;

pub use contents::{Contents, MAX_CONTENTS};
pub use key::SourceKey;
pub use sources::{Known, MAX_SOURCES, MAX_VALIDATORS_BYTES, Sources};
