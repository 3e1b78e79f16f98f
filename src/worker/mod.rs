//! The workers behind the gateway: who they are, whether they live, and what they granted.
//!
//! - [`registry`]: the list of workers and the state of each.
//! - [`client`]: HTTP to workers.
//! - [`attach`]: the gateway's side of attach, renew, void and detach (docs/PROTOCOL.md).
//! - [`belief`]: what a worker is believed to hold processed.
//! - [`probe`]: what a connection is worth, measured on attach.
//! - [`monitor`]: one task a worker that keeps that state true.

pub mod attach;
pub mod belief;
pub mod client;
pub mod monitor;
pub mod probe;
pub mod registry;

pub use belief::Belief;
pub use client::WorkerClient;
pub use registry::{InFlight, Registry, Worker};
