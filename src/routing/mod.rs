//! Which worker gets a request.
//!
//! - [`router`]: from a request's terms and the candidates to a decision, and why it fell so.
//! - [`policy`]: the policies by name.
//! - [`prompt`]: what a prompt is known by: token ids, or hashes of ever longer beginnings.
//! - [`chain`]: the hashes of a prompt whose model's files are not known.
//! - [`affinity`]: which worker an image belongs to when nothing else is known.

pub mod affinity;
pub mod chain;
pub mod policy;
pub mod prompt;
pub mod router;

pub use affinity::{Affinity, Candidate};
pub use policy::RoutePolicy;
pub use router::{Asked, Decision, Reason, Router};
