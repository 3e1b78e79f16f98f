//! Which worker gets a request.
//!
//! - [`router`]: from a request's terms and the candidates to a decision, and why it fell so.
//! - [`policy`]: the policies by name.
//! - [`prompt`]: what a prompt is known by: token ids, or hashes of ever longer beginnings.
//! - `kv`: what each worker holds in its KV cache, from the events that it publishes.
//! - [`affinity`]: which worker an image belongs to when nothing else is known.

pub mod affinity;
#[cfg(feature = "mm-routing")]
pub mod kv;
pub mod policy;
pub mod prompt;
pub mod router;

pub use affinity::{Affinity, Candidate};
pub use policy::RoutePolicy;
pub use router::{Asked, Decision, Reason, Router};
