//! Which worker gets a request.
//!
//! - [`router`]: from a request's terms and the candidates to a decision, and why it fell so.
//! - [`policy`]: the policies by name, and what weighs how much.
//! - [`score`]: what a request costs on each worker.
//! - [`prompt`]: what a prompt is known by: token ids, or hashes of ever longer beginnings.
//! - [`chain`]: the hashes of a prompt whose model's files are not known.
//! - `kv`: what each worker holds in its KV cache, from the events that it publishes.
//! - [`expected`]: what workers were just sent.
//! - [`watch`]: what runs beside the router.
//! - [`affinity`]: which worker an image belongs to when nothing else is known.

pub mod affinity;
pub mod chain;
pub mod expected;
#[cfg(feature = "mm-routing")]
pub mod kv;
pub mod policy;
pub mod prompt;
pub mod router;
pub mod score;
pub mod watch;

pub use affinity::Affinity;
pub use policy::{RoutePolicy, Weights};
pub use router::{Asked, Candidate, Decision, Reason, Router};
pub use watch::RoutingSettings;

/// Memory that routing takes at most, about.
pub fn bytes(settings: &RoutingSettings) -> u64 {
    match settings.policy {
        #[cfg(feature = "mm-routing")]
        RoutePolicy::MmKv => {
            expected::MAX_BYTES + settings.index_blocks as u64 * kv::index::BLOCK_BYTES + kv::MAX_BYTES
        }
        RoutePolicy::MediaPrefix => expected::MAX_BYTES,
        _ => 0,
    }
}
