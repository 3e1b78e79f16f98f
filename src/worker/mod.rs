//! The workers behind the gateway: who they are, whether they live, and what they granted.
//!
//! - [`registry`]: the list of workers, which may change; [`changes`]: who hears of it.
//! - [`url`]: where a worker is. [`state`]: one worker, and what is known of it; [`circuit`]: whether it is left alone for a while.
//! - [`load`]: how busy a worker is; [`reports`]: what workers say of that themselves.
//! - [`client`]: HTTP to workers.
//! - [`attach`]: the gateway's side of attach, renew, void and detach (docs/PROTOCOL.md).
//! - [`attachment`]: a grant from its beginning to its end.
//! - [`belief`]: what a worker is believed to hold processed.
//! - [`probe`]: what a connection is worth, measured on attach.
//! - [`monitor`]: a task for each worker that keeps that state true.

pub mod attach;
pub mod attachment;
pub mod belief;
pub mod changes;
pub mod circuit;
pub mod client;
pub mod load;
pub mod monitor;
pub mod probe;
pub mod registry;
pub mod reports;
pub mod state;
pub mod url;

pub use belief::Belief;
pub use changes::Change;
pub use client::WorkerClient;
pub use registry::Registry;
pub use state::{InFlight, Worker, WorkerId, WorkerSettings};
pub use url::{WorkerUrl, WorkerUrlError};
