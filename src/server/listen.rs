//! Sockets: accepting, limits of a connection, and an orderly end.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{
    net::TcpListener,
    sync::{Notify, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::linger::Lingering;
use crate::memory::limits;

/// Connections of one listener, where the process may have as many descriptors. More wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 16 << 10;

/// Descriptors that are not connections: sockets to workers and origins that idle, files, NIXL.
const OTHER_DESCRIPTORS: usize = 256;

/// Head of an HTTP/1 request.
const MAX_HEAD_BYTES: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

pub async fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| ListenError { address, source })
}

/// How patient a listener is.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For the head of a request to be there, from the connection's start or the answer before.
    pub idle: Duration,
    /// For requests under way to end after `stop`.
    pub grace: Duration,
}

/// Connections that leave descriptors for the other end of each.
fn max_connections() -> usize {
    (limits::descriptors().saturating_sub(OTHER_DESCRIPTORS) / 3).clamp(16, MAX_CONNECTIONS)
}

/// Serves until `stop`; then takes no new connections, and gives requests under way time to end.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken, patience: Patience) {
    let connections = Arc::new(Semaphore::new(max_connections()));
    let graceful = GracefulShutdown::new();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(patience.idle).max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30))
        .max_concurrent_streams(256)
        .max_header_list_size(MAX_HEAD_BYTES as u32);
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &connections) => accepted,
        };
        let Some((stream, permit)) = accepted else { continue };
        // hyper waits for ever for the first bytes of a connection, which tell HTTP/1 from HTTP/2.
        let asked = Arc::new(Notify::new());
        let silent = {
            let asked = asked.clone();
            async move {
                if timeout(patience.idle, asked.notified()).await.is_ok() {
                    std::future::pending().await
                }
            }
        };
        let service = router.clone().map_request(move |request: http::Request<Incoming>| {
            asked.notify_one();
            Lingering::request(request).map(axum::body::Body::new)
        });
        let service = TowerToHyperService::new(service);
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            tokio::select! {
                ended = watched => {
                    if let Err(error) = ended {
                        tracing::debug!(error, "connection ended early");
                    }
                }
                () = silent => tracing::debug!("no request came on a connection"),
            }
            drop(permit);
        });
    }
    drop(listener);
    if timeout(patience.grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were still under way after the grace time");
    }
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> Option<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = connections.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Chunks of a stream must not wait for one another; a socket that cannot do that still works.
            let _ = stream.set_nodelay(true);
            Some((stream, permit))
        }
        Err(error) => {
            // Out of descriptors, most likely: give others time to close theirs.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}
