//! What can be seen of a running gateway: metrics (docs/METRICS.md) and logs.

mod metrics;
pub mod panics;
pub mod tracing;

pub use metrics::*;
