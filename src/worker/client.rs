//! HTTP to workers.

use std::{path::Path, path::PathBuf, time::Duration};

use reqwest::{Certificate, redirect::Policy};

/// uvicorn, under vLLM, closes idle connections after 5 seconds; ours go first, so that no request meets a closing one.
const POOL_IDLE: Duration = Duration::from_secs(4);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The HTTP client for all workers.
#[derive(Debug, Clone)]
pub struct WorkerClient(reqwest::Client);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot set up the HTTP client for workers: {0}")]
    Client(reqwest::Error),
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} holds no certificate in PEM; --worker-ca-file takes those of the authorities")]
    NoCertificate { path: PathBuf },
}

impl WorkerClient {
    /// A client that trusts the authorities of a PEM file, else the system's.
    pub fn new(ca_file: Option<&Path>) -> Result<Self, ClientError> {
        let mut builder = reqwest::Client::builder();
        if let Some(path) = ca_file {
            builder = builder.tls_certs_only(authorities(path)?);
        }
        builder
            // A proxy of the environment is meant for the internet, and workers never redirect.
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(POOL_IDLE)
            .tcp_nodelay(true)
            .http1_only()
            .build()
            .map(WorkerClient)
            .map_err(ClientError::Client)
    }

    pub fn http(&self) -> &reqwest::Client {
        &self.0
    }
}

fn authorities(path: &Path) -> Result<Vec<Certificate>, ClientError> {
    let pem = std::fs::read(path).map_err(|source| ClientError::Read { path: path.into(), source })?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(authorities) if !authorities.is_empty() => Ok(authorities),
        _ => Err(ClientError::NoCertificate { path: path.into() }),
    }
}
