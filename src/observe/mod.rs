//! What can be seen of a running gateway: metrics (docs/METRICS.md) and logs.

mod metrics;
pub mod panics;
mod series;
mod tally;
pub mod tracing;
mod workers;

pub use metrics::*;
pub use series::Series;
pub use tally::Tally;
pub use workers::*;
