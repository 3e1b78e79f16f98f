//! Settings of the workers: which there are, how to reach them, when to leave them alone.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use super::ConfigError;
use crate::worker::{WorkerSettings, circuit::CircuitSettings};

#[derive(Debug, Args)]
#[command(next_help_heading = "Workers")]
pub struct FleetArgs {
    /// Base URL of a `vllm serve` (repeatable; in the variable separated by commas)
    #[arg(long = "worker", id = "worker", env = "MEDIAGATE_WORKER", value_name = "URL", value_delimiter = ',')]
    pub workers: Vec<String>,
    /// File with more of them, one a line; blank lines and lines that begin with # do not count. It may be empty, and is
    /// read again on SIGHUP
    #[arg(long, env = "MEDIAGATE_WORKERS_FILE", value_name = "FILE")]
    pub workers_file: Option<PathBuf>,
    /// File with the API key of the workers (vLLM's --api-key) [default: the client's Authorization passes]
    #[arg(long, env = "MEDIAGATE_WORKER_API_KEY_FILE", value_name = "FILE")]
    pub worker_api_key_file: Option<PathBuf>,
    /// PEM file with the authorities that sign the certificates of https workers [default: the system's]
    #[arg(long, env = "MEDIAGATE_WORKER_CA_FILE", value_name = "FILE")]
    pub worker_ca_file: Option<PathBuf>,
    /// Requests on one worker at once; more go to others, or get 503
    #[arg(long, env = "MEDIAGATE_MAX_WORKER_REQUESTS", value_name = "N", default_value = "1024")]
    pub max_worker_requests: usize,
    /// How often each worker's health is asked for
    #[arg(long, env = "MEDIAGATE_HEALTH_INTERVAL_MS", value_name = "MS", default_value = "1000")]
    pub health_interval_ms: u64,
    /// Requests that must fail in a row before a worker is left alone for a while
    #[arg(long, env = "MEDIAGATE_CIRCUIT_FAILURES", value_name = "N", default_value = "5")]
    pub circuit_failures: u32,
    /// How long it is left alone the first time; each time in a row takes twice as long
    #[arg(long, env = "MEDIAGATE_CIRCUIT_WAIT_MS", value_name = "MS", default_value = "1000")]
    pub circuit_wait_ms: u64,
    /// How long it is left alone at most
    #[arg(long, env = "MEDIAGATE_CIRCUIT_LONGEST_WAIT_MS", value_name = "MS", default_value = "30000")]
    pub circuit_longest_wait_ms: u64,
}

impl FleetArgs {
    /// What each worker may be given, and when it is left alone.
    pub fn settings(&self) -> WorkerSettings {
        WorkerSettings {
            max_requests: self.max_worker_requests,
            circuit: CircuitSettings {
                failures: self.circuit_failures,
                first_wait: Duration::from_millis(self.circuit_wait_ms),
                longest_wait: Duration::from_millis(self.circuit_longest_wait_ms),
            },
        }
    }

    /// The workers of the flags and of the file.
    pub fn worker_urls(&self) -> Result<Vec<String>, ConfigError> {
        let mut urls = self.workers.clone();
        if let Some(path) = &self.workers_file {
            urls.extend(read_list(path)?);
        }
        Ok(urls)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::Invalid(message.into()));
        if self.workers.is_empty() && self.workers_file.is_none() {
            return invalid(
                "there is no worker: name each `vllm serve` with --worker URL, or a file with --workers-file",
            );
        }
        if self.health_interval_ms < 10 {
            return invalid("--health-interval-ms is below 10, which would keep the workers busy answering it");
        }
        if self.max_worker_requests == 0 {
            return invalid("--max-worker-requests is 0, so that no worker would ever get a request");
        }
        if self.circuit_failures == 0 {
            return invalid(
                "--circuit-failures is 0, so that workers would be left alone without a reason; 1 is the least",
            );
        }
        if self.circuit_wait_ms == 0 || self.circuit_wait_ms > self.circuit_longest_wait_ms {
            return invalid("--circuit-wait-ms must be above 0, and not above --circuit-longest-wait-ms");
        }
        Ok(())
    }
}

/// The lines of a file that are neither blank nor comments.
fn read_list(path: &Path) -> Result<Vec<String>, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}
