//! Settings of the listeners and their connections.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use clap::{ArgAction, Args};

use super::{ConfigError, address, size, usize_of};
use crate::{
    memory::limits,
    server::listen::{Patience, Settings},
};

/// Connections of one listener, where the process may have as many descriptors.
const MOST_CONNECTIONS: usize = 16 << 10;

/// Descriptors that are not connections: sockets to workers and origins that idle, files, NIXL.
const OTHER_DESCRIPTORS: usize = 256;

#[derive(Debug, Args)]
#[command(next_help_heading = "Listeners")]
pub struct ListenArgs {
    /// Where clients connect: the API, /health and /ready
    #[arg(long, env = "MEDIAGATE_LISTEN", value_name = "ADDR", value_parser = address, default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where operators connect: metrics, status page, administration of workers. Keep it off public networks
    #[arg(long, env = "MEDIAGATE_ADMIN_LISTEN", value_name = "ADDR", value_parser = address, default_value = "127.0.0.1:9090")]
    pub admin_listen: SocketAddr,
    /// Serve what operators reach under /admin/ on the public listener as well, to API keys that are marked `admin`
    #[arg(long, env = "MEDIAGATE_ADMIN_ON_PUBLIC", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub admin_on_public: bool,
    /// PEM file with the certificate of the public listener, and its chain [default: plain HTTP]
    #[arg(long, env = "MEDIAGATE_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert
    #[arg(long, env = "MEDIAGATE_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Connections of one listener; more wait in the kernel's queue [default: a third of the descriptors that the process
    /// may have, at most 16384]
    #[arg(long, env = "MEDIAGATE_MAX_CONNECTIONS", value_name = "N")]
    pub max_connections: Option<usize>,
    /// Largest head of a request
    #[arg(long, env = "MEDIAGATE_MAX_HEADER_BYTES", value_name = "BYTES", value_parser = size, default_value = "64KiB")]
    pub max_header_bytes: ByteSize,
    /// Time for the head of a request to arrive, on a new connection or after the answer before; keep it above the idle
    /// time of a load balancer in front
    #[arg(long, env = "MEDIAGATE_IDLE_TIMEOUT_MS", value_name = "MS", default_value = "75000")]
    pub idle_timeout_ms: u64,
    /// Time that a client may leave an answer unread before it is given up
    #[arg(long, env = "MEDIAGATE_WRITE_TIMEOUT_MS", value_name = "MS", default_value = "60000")]
    pub write_timeout_ms: u64,
    /// Time for requests under way to end on shutdown
    #[arg(long, env = "MEDIAGATE_SHUTDOWN_GRACE_MS", value_name = "MS", default_value = "30000")]
    pub shutdown_grace_ms: u64,
}

impl ListenArgs {
    /// What both listeners are like.
    pub fn settings(&self) -> Settings {
        // A request takes up to three descriptors: the client's, the worker's, an origin's.
        let default = (limits::descriptors().saturating_sub(OTHER_DESCRIPTORS) / 3).clamp(16, MOST_CONNECTIONS);
        Settings {
            patience: Patience {
                idle: Duration::from_millis(self.idle_timeout_ms),
                write: Duration::from_millis(self.write_timeout_ms),
                grace: Duration::from_millis(self.shutdown_grace_ms),
            },
            max_connections: self.max_connections.unwrap_or(default),
            max_head_bytes: usize_of(self.max_header_bytes),
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::Invalid(message.into()));
        if self.listen == self.admin_listen && self.listen.port() != 0 {
            return invalid("--listen and --admin-listen are the same address; give each its own");
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return invalid("--tls-cert and --tls-key belong together; give both, or neither for plain HTTP");
        }
        if self.max_connections == Some(0) {
            return invalid("--max-connections is 0, so that nobody could connect; leave it out for the default");
        }
        if !(8 << 10..=16 << 20).contains(&self.max_header_bytes.as_u64()) {
            return invalid("--max-header-bytes must be from 8KiB to 16MiB");
        }
        if self.idle_timeout_ms == 0 || self.write_timeout_ms == 0 {
            return invalid("--idle-timeout-ms and --write-timeout-ms must be above 0");
        }
        Ok(())
    }
}
