//! What each worker holds in its KV cache, block by block, from the events that it publishes.
//!
//! - [`subscription`]: one task a worker: where its events come from, and that none is missed unknown.
//! - [`stream`]: one stream of events in order: gaps, replays, restarts.
//! - [`endpoint`]: the addresses that vLLM names, and which end has to connect.
//! - [`zmtp`]: the protocol of ZeroMQ's sockets.
//! - [`events`]: reading the events; [`msgpack`]: what they are written in.
//! - [`index`]: which worker holds how much of a prompt.
//! - [`lane`]: one stream of events, by which the index learns.
//! - [`ages`]: which of a stream's blocks go first.
//! - [`sent`]: prompts on their way, held against the events; [`names`]: what workers call images that pass by URL.
//! - [`blocks`]: the hash of a block, the same for an event and for a prompt.

pub mod ages;
pub mod blocks;
pub mod endpoint;
pub mod events;
pub mod index;
pub mod lane;
pub mod msgpack;
pub mod names;
pub mod sent;
pub mod stream;
pub mod subscription;
pub mod zmtp;

/// What is kept beside the blocks takes at most, about.
pub const MAX_BYTES: u64 = names::MAX_BYTES + sent::MAX_TOKENS as u64 * 4;

pub use index::{KvIndex, Overlaps, View};
pub use lane::Lane;
