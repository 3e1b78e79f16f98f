//! Which worker gets a request.
//!
//! Today: media affinity against load. A request with the same first picture (or, without pictures, the same beginning)
//! goes to the same worker, whose processor, encoder and prefix caches know it, unless that worker is clearly busier than
//! the others.

mod affinity;
pub mod prompt;

pub use affinity::{Affinity, Candidate, choose};
