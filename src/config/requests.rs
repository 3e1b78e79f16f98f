//! Settings of requests: how many there may be, how large, how long they may take.

use bytesize::ByteSize;
use clap::Args;

use super::{ConfigError, budgets, size, usize_of};

#[derive(Debug, Args)]
#[command(next_help_heading = "Requests")]
pub struct RequestArgs {
    /// Requests under way at once, in all; more get 503
    #[arg(long, env = "MEDIAGATE_MAX_REQUESTS", value_name = "N", default_value = "4096")]
    pub max_requests: usize,
    /// Largest request body
    #[arg(long, env = "MEDIAGATE_MAX_BODY_BYTES", value_name = "BYTES", value_parser = size, default_value = "64MiB")]
    pub max_body_bytes: ByteSize,
    /// Request bodies held at once, in all [default: an eighth of the memory that the process may have, at most 1 GiB]
    #[arg(long, env = "MEDIAGATE_BODY_BUDGET_BYTES", value_name = "BYTES", value_parser = size)]
    pub body_budget_bytes: Option<ByteSize>,
    /// Request bodies that are written anew for workers, held at once, in all, until they are sent: with pixels inline they
    /// are four thirds of those [default: an eighth of the memory that the process may have, at most 1 GiB]
    #[arg(long, env = "MEDIAGATE_WORKER_BODY_BUDGET_BYTES", value_name = "BYTES", value_parser = size)]
    pub worker_body_budget_bytes: Option<ByteSize>,
    /// Time for a request body to arrive
    #[arg(long, env = "MEDIAGATE_BODY_TIMEOUT_MS", value_name = "MS", default_value = "30000")]
    pub body_timeout_ms: u64,
    /// Time from a request to the first byte of its answer, which is the whole answer where it is not streamed. A client
    /// can ask for less with the header x-request-timeout, in seconds
    #[arg(long, env = "MEDIAGATE_REQUEST_TIMEOUT_MS", value_name = "MS", default_value = "600000")]
    pub request_timeout_ms: u64,
    /// Time to wait for memory before a request is answered with 503
    #[arg(long, env = "MEDIAGATE_ADMISSION_TIMEOUT_MS", value_name = "MS", default_value = "10000")]
    pub admission_timeout_ms: u64,
}

impl RequestArgs {
    /// Request bodies held at once, in all, in bytes.
    pub fn body_budget_bytes(&self) -> usize {
        usize_of(self.body_budget_bytes.unwrap_or_else(budgets::default_eighth))
    }

    /// Bodies that are written anew for workers, held at once, in all, in bytes.
    pub fn worker_body_budget_bytes(&self) -> usize {
        usize_of(self.worker_body_budget_bytes.unwrap_or_else(budgets::default_eighth))
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::Invalid(message.into()));
        if self.max_requests == 0 {
            return invalid("--max-requests is 0, so that every request would be refused");
        }
        if self.request_timeout_ms == 0 {
            return invalid("--request-timeout-ms is 0, so that no request would ever be answered");
        }
        if usize_of(self.max_body_bytes) > self.body_budget_bytes() {
            return invalid("--max-body-bytes is above --body-budget-bytes, so that no such body would ever be taken");
        }
        if usize_of(self.max_body_bytes) > self.worker_body_budget_bytes() {
            return invalid(
                "--max-body-bytes is above --worker-body-budget-bytes, so that no such body could be changed for a worker",
            );
        }
        Ok(())
    }
}
