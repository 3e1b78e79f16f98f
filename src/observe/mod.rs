//! What can be seen of a running gateway: metrics (docs/METRICS.md) and logs.

mod metrics;
pub mod panics;
mod tally;
pub mod tracing;

pub use metrics::*;
pub use tally::Tally;
