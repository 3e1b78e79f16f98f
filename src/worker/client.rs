//! HTTP to workers.
//!
//! Connections are kept, and a worker may close an idle one in the moment in which a request is written to it. Where
//! nothing was written yet, the client takes another connection by itself. Else nobody can tell that from a worker that the
//! request has ended: [`is_closed`] says that it may be so. So it matters over which connection a request goes:
//!
//! - [`WorkerClient::kept`]: any that is there, for what may be sent again.
//! - [`WorkerClient::recent`]: one that was in use just now, for what may not.
//! - [`WorkerClient::fresh`]: a new one, for who tries again, and to see whether a worker can be connected to: one that has no
//!   descriptor left still answers over the connections that it has.

use std::{error::Error, io, iter::successors, path::Path, path::PathBuf, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use reqwest::{Body, Certificate, Response, redirect::Policy};

/// uvicorn, under vLLM, closes idle connections after 5 seconds (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`); ours go first, so that a
/// request meets a closing one only where one of the two processes stood still.
const KEPT: Duration = Duration::from_secs(4);

/// How long ago a connection may have been in use that is taken for what may not be sent twice. A worker closes what was idle for
/// seconds, so nothing but a process that stands still for as long makes up the difference. One that ends closes all
/// connections, but so it does with new ones that wait to be accepted.
///
/// A new connection for each such request took 190 us more of the gateway's CPU and 210 us more time over loopback, and 550 us
/// and 1 ms with TLS; a whole request of text over a kept one takes 260 us.
const RECENT: Duration = Duration::from_secs(1);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The HTTP client for all workers.
#[derive(Debug, Clone)]
pub struct WorkerClient {
    kept: reqwest::Client,
    recent: reqwest::Client,
    fresh: reqwest::Client,
}

/// Why there is no client.
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
        let authorities = ca_file.map(authorities).transpose()?;
        let client = |idle: Duration| {
            let mut builder = reqwest::Client::builder();
            if let Some(authorities) = &authorities {
                builder = builder.tls_certs_only(authorities.iter().cloned());
            }
            builder
                // A proxy of the environment is meant for the internet, and workers never redirect.
                .no_proxy()
                .redirect(Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_idle_timeout(idle)
                .pool_max_idle_per_host(if idle.is_zero() { 0 } else { usize::MAX })
                .tcp_nodelay(true)
                .http1_only()
                .build()
                .map_err(ClientError::Client)
        };
        Ok(WorkerClient { kept: client(KEPT)?, recent: client(RECENT)?, fresh: client(Duration::ZERO)? })
    }

    /// Requests go over connections that were kept, as long as there are some.
    pub fn kept(&self) -> &reqwest::Client {
        &self.kept
    }

    /// Requests go over connections that were in use just now, or over new ones.
    pub fn recent(&self) -> &reqwest::Client {
        &self.recent
    }

    /// Each request goes over a new connection.
    pub fn fresh(&self) -> &reqwest::Client {
        &self.fresh
    }
}

/// The body of an answer that is known to be short: more than so many bytes of it are an error.
pub async fn whole(response: Response, max_bytes: usize) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    Ok(Limited::new(Body::from(response), max_bytes).collect().await?.to_bytes())
}

/// Whether the other side closed the connection while an answer was waited for.
pub fn is_closed(error: &reqwest::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    successors(error.source(), |error| (**error).source()).any(|cause| {
        let http = cause.downcast_ref::<hyper::Error>();
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        http.is_some_and(hyper::Error::is_incomplete_message)
            || matches!(io, Some(BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
    })
}

fn authorities(path: &Path) -> Result<Vec<Certificate>, ClientError> {
    let pem = std::fs::read(path).map_err(|source| ClientError::Read { path: path.into(), source })?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(authorities) if !authorities.is_empty() => Ok(authorities),
        _ => Err(ClientError::NoCertificate { path: path.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_short_answer_is_read_whole_and_a_long_one_not_at_all() {
        for (max_bytes, expected) in [(5, Some("short")), (4, None)] {
            let answer = whole(http::Response::new("short").into(), max_bytes).await.ok();
            assert_eq!(answer.as_deref(), expected.map(str::as_bytes));
        }
    }
}
