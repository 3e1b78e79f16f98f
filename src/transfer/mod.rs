//! Pixels from the arena into a worker's landing memory, over NIXL.
//!
//! - [`library`]: finds and loads NIXL at run time; without it, mediagate goes inline.
//! - [`agent`]: the handle of the NIXL agent: what is to be pushed, and what became of it.
//! - `driver`: the one thread that makes every NIXL call, and moves every push in pieces.
//! - `pace`: when that thread sleeps, looks, and drains notifications.
//! - [`landing`]: the gateway's book of one grant: slots on the worker, generations, uses.
//! - [`landings`]: the books of all grants, and what workers notify of.
//! - [`descriptor`]: what stands in a request in place of an image.
//! - [`lane`]: by which lane pixels go (CMA, shared memory, RDMA, TCP), as far as it can be seen.
//! - [`mark`]: how a worker learns that all pixels of a push are there.
//! - [`mac`]: the keyed hashes of docs/PROTOCOL.md.

pub mod agent;
pub mod descriptor;
mod driver;
pub mod landing;
pub mod landings;
pub mod lane;
pub mod library;
pub mod mac;
pub mod mark;
mod pace;

pub use agent::{NixlAgent, PushError, PushReport};
pub use descriptor::RdmaMediaDataDescriptor;
pub use landing::{Grant, Landing, LandingError, LandingSlot, Pin};
pub use landings::Landings;
