//! HTTP to workers.

use std::time::Duration;

use reqwest::redirect::Policy;

/// uvicorn, under vLLM, closes idle connections after 5 seconds; ours go first, so that no request meets a closing one.
const POOL_IDLE: Duration = Duration::from_secs(4);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The HTTP client for all workers.
#[derive(Debug, Clone)]
pub struct WorkerClient(reqwest::Client);

#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client for workers: {0}")]
pub struct ClientError(reqwest::Error);

impl WorkerClient {
    pub fn new() -> Result<Self, ClientError> {
        reqwest::Client::builder()
            // A proxy of the environment is meant for the internet, and workers never redirect.
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(POOL_IDLE)
            .tcp_nodelay(true)
            .http1_only()
            .build()
            .map(WorkerClient)
            .map_err(ClientError)
    }

    pub fn http(&self) -> &reqwest::Client {
        &self.0
    }
}
