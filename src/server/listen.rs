//! Sockets: accepting, limits of a connection, and an orderly end.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, response::Response};
use http::{Request, Version};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use super::{
    held::{Attended, Held},
    linger::Lingering,
    tls::Tls,
};

/// Most often, the port is taken.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// Listens at an address; connections wait until they are served.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| ListenError { address, source })
}

/// How patient a listener is.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For the head of a request to be there, from the connection's start or the answer before; TLS included.
    pub idle: Duration,
    /// For a client to read on.
    pub write: Duration,
    /// For requests under way to end after `stop`.
    pub grace: Duration,
}

/// What a listener is like.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub patience: Patience,
    /// At once; more wait in the kernel's queue.
    pub max_connections: usize,
    /// Of one request.
    pub max_head_bytes: usize,
}

/// Serves until `stop`; then takes no new connections, and gives requests under way time to end.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
    stop: CancellationToken,
    settings: Settings,
) {
    let places = Arc::new(Semaphore::new(settings.max_connections));
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let Some((stream, place)) = accepted else { continue };
        let connection = Connection { router: router.clone(), stop: stop.clone(), settings };
        let tls = tls.clone();
        connections.spawn(async move {
            match tls {
                None => connection.serve(stream).await,
                Some(tls) => match timeout(settings.patience.idle, tls.acceptor().accept(stream)).await {
                    Ok(Ok(stream)) => connection.serve(stream).await,
                    Ok(Err(error)) => tracing::debug!(%error, "TLS was not agreed on"),
                    Err(_) => tracing::debug!("TLS was not agreed on in time"),
                },
            }
            drop(place);
        });
    }
    drop(listener);
    connections.close();
    if timeout(settings.patience.grace, connections.wait()).await.is_err() {
        tracing::warn!("requests were still under way after the grace time");
    }
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Chunks of a stream must not wait for one another; a socket that cannot do that still works.
            let _ = stream.set_nodelay(true);
            Some((stream, place))
        }
        Err(error) => {
            // Out of descriptors, most likely: give others time to close theirs.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

/// One connection of a client.
struct Connection {
    router: Router,
    stop: CancellationToken,
    settings: Settings,
}

impl Connection {
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Send + 'static) {
        let Patience { idle, write, .. } = self.settings.patience;
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(write));

        let activity = Arc::new(Activity::default());
        let service = service_fn({
            let activity = activity.clone();
            move |request: Request<Incoming>| {
                let busy = Busy::begin(activity.clone());
                let router = self.router.clone();
                let multiplexed = request.version() == Version::HTTP_2;
                async move {
                    let response: Response = router.oneshot(Lingering::request(request).map(Body::new)).await?;
                    Ok::<_, std::convert::Infallible>(response.map(|body| {
                        let body = if multiplexed { Body::new(Attended::new(body, write)) } else { body };
                        Held::new(body, busy)
                    }))
                }
            }
        });

        let builder = builder(&self.settings);
        let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
        tokio::pin!(connection);
        let mut leaving = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(error, "connection ended early");
                    }
                    break;
                }
                () = self.stop.cancelled(), if !leaving => {}
                // hyper has a limit for HTTP/1, but none for the first bytes, which tell HTTP/1 from HTTP/2, and none for
                // an HTTP/2 connection that answers pings.
                () = activity.idle_for(idle), if !leaving => tracing::debug!("an idle connection is closed"),
            }
            leaving = true;
            connection.as_mut().graceful_shutdown();
        }
    }
}

fn builder(settings: &Settings) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.patience.idle)
        .max_buf_size(settings.max_head_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30))
        .max_concurrent_streams(256)
        .max_header_list_size(u32::try_from(settings.max_head_bytes).unwrap_or(u32::MAX));
    builder
}

/// Requests that are under way on one connection.
#[derive(Default)]
struct Activity {
    under_way: AtomicUsize,
    changed: Notify,
}

impl Activity {
    /// Waits until nothing was under way for so long.
    async fn idle_for(&self, idle: Duration) {
        loop {
            // Registered before the look, so that what happens in between is not missed.
            let changed = self.changed.notified();
            if self.under_way.load(Ordering::Relaxed) > 0 {
                changed.await;
            } else if timeout(idle, changed).await.is_err() {
                return;
            }
        }
    }
}

/// A request under way, until the last byte of its answer.
struct Busy(Arc<Activity>);

impl Busy {
    fn begin(activity: Arc<Activity>) -> Self {
        activity.under_way.fetch_add(1, Ordering::Relaxed);
        activity.changed.notify_waiters();
        Busy(activity)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
        self.0.changed.notify_waiters();
    }
}
