//! From a URL to a connection that a request can be sent on: resolve, judge, dial, TLS, HTTP/1.1.
//!
//! The policy stands between resolving and dialling: [`dial`] takes [`Vetted`] addresses and nothing else. The name of the
//! URL, not the address, goes into SNI and is what the certificate has to prove.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http_body_util::Empty;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::config::{FetchConfig, FetchConfigError};
use super::error::FetchError;
use super::policy::{Policy, Vetted};
use super::resolver::Resolve;
use crate::media::source::{Host, HttpUrl, Scheme};

/// Makes connections.
pub(super) struct Connector {
    policy: Arc<Policy>,
    resolver: Arc<dyn Resolve>,
    tls: TlsConnector,
    connect_timeout: Duration,
    max_header_bytes: usize,
}

/// An open connection. Dropping it closes the socket at once, whatever is under way on it.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Empty<Bytes>>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connector {
    pub(super) fn new(
        config: &FetchConfig,
        policy: Arc<Policy>,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, FetchConfigError> {
        Ok(Self {
            policy,
            resolver,
            tls: TlsConnector::from(Arc::new(tls_config(config)?)),
            connect_timeout: config.connect_timeout,
            max_header_bytes: config.max_header_bytes,
        })
    }

    /// A new connection to the host of a URL that [`Policy::check_url`] has passed.
    pub(super) async fn connect(&self, url: &HttpUrl) -> Result<Connection, FetchError> {
        self.in_time(self.connect_unbounded(url)).await
    }

    /// The addresses of a URL's host, if all of them pass.
    pub(super) async fn vetted(&self, url: &HttpUrl) -> Result<Vetted, FetchError> {
        self.in_time(self.resolve(url)).await
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, FetchError>>) -> Result<T, FetchError> {
        timeout(self.connect_timeout, work).await.unwrap_or(Err(FetchError::ConnectTimeout(self.connect_timeout)))
    }

    async fn resolve(&self, url: &HttpUrl) -> Result<Vetted, FetchError> {
        let addresses = match url.host() {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => self.resolver.resolve(name).await?,
        };
        Ok(self.policy.vet(url, &addresses)?)
    }

    async fn connect_unbounded(&self, url: &HttpUrl) -> Result<Connection, FetchError> {
        let vetted = self.resolve(url).await?;
        let tcp = dial(&vetted).await.map_err(|error| FetchError::Connect(Arc::new(error)))?;
        // Requests are one small packet each; waiting to fill it would only cost time.
        let _ = tcp.set_nodelay(true);
        match url.scheme() {
            Scheme::Http => self.handshake(tcp).await,
            Scheme::Https => {
                let name = server_name(url.host())?;
                let tls = self.tls.connect(name, tcp).await.map_err(tls_error)?;
                self.handshake(tls).await
            }
        }
    }

    async fn handshake<Io>(&self, io: Io) -> Result<Connection, FetchError>
    where
        Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(self.max_header_bytes)
            .max_header_size(self.max_header_bytes)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|error| FetchError::Connect(Arc::new(error)))?;
        // Errors of the driver reach whoever waits on the sender.
        let task = tokio::spawn(async move { drop(driver.await) }).abort_handle();
        Ok(Connection { sender, task })
    }
}

/// The first address that accepts a connection, tried in order; the next one is tried when one fails, or does not answer
/// within RFC 8305's 250 ms, the first one going on meanwhile.
async fn dial(vetted: &Vetted) -> io::Result<TcpStream> {
    const HEAD_START: Duration = Duration::from_millis(250);
    /// A name with hundreds of addresses is no reason for hundreds of sockets.
    const MOST_ADDRESSES: usize = 8;

    let mut addresses = vetted.addresses().iter().copied().take(MOST_ADDRESSES);
    let mut attempts = FuturesUnordered::new();
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    attempts.extend(addresses.next().map(TcpStream::connect::<SocketAddr>));
    loop {
        let is_last = addresses.len() == 0;
        tokio::select! {
            attempt = attempts.next() => match attempt {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => {
                    last_error = error;
                    attempts.extend(addresses.next().map(TcpStream::connect::<SocketAddr>));
                }
                None => return Err(last_error),
            },
            () = sleep(HEAD_START), if !is_last => {
                attempts.extend(addresses.next().map(TcpStream::connect::<SocketAddr>));
            }
        }
    }
}

/// A failed TLS handshake is final if TLS itself says no, transient if the connection broke.
fn tls_error(error: io::Error) -> FetchError {
    if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
        FetchError::Tls(Arc::new(error))
    } else {
        FetchError::Connect(Arc::new(error))
    }
}

fn server_name(host: &Host) -> Result<ServerName<'static>, FetchError> {
    match host {
        Host::Name(name) => ServerName::try_from(name.to_string()).map_err(|error| FetchError::Tls(Arc::new(error))),
        Host::Ip(ip) => Ok(ServerName::from(IpAddr::to_canonical(ip))),
    }
}

/// TLS 1.2 and 1.3 with the system's authorities and those of `ca_files`. HTTP/1.1 is the only protocol that is offered.
fn tls_config(config: &FetchConfig) -> Result<ClientConfig, FetchConfigError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    // Systems carry a few certificates that no library reads; they are no reason not to start.
    roots.add_parsable_certificates(system.certs);
    for path in &config.ca_files {
        let unreadable = |cause| FetchConfigError::CaFile { path: path.clone(), cause };
        let certificates = CertificateDer::pem_file_iter(path)
            .map_err(unreadable)?
            .collect::<Result<Vec<_>, _>>()
            .map_err(unreadable)?;
        if roots.add_parsable_certificates(certificates).0 == 0 {
            return Err(FetchConfigError::CaFileEmpty { path: path.clone() });
        }
    }
    if roots.is_empty() {
        tracing::warn!(
            "no certificate authorities are installed (package ca-certificates): https images cannot be fetched"
        );
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("aws-lc-rs has cipher suites for TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}
