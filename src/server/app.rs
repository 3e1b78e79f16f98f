//! Everything a handler needs, built once at start.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;

use super::{
    admission::Places, auth::ApiKeys, body::Bodies, headers, models::Asked, recent::RecentErrors, reload::Reloading,
    resize::Resize, responses::Responses, scan::Scans, tenant::Tenancy, tls::Tls,
};
#[cfg(feature = "mm-routing")]
use crate::{media::dimensions::Dimensions, prompt::PromptModel};
use crate::{
    media::{fetch::Fetcher, loader::MediaLoader, url_names::UrlNames},
    memory::Budget,
    model::Models,
    routing::Router,
    transfer::Landings,
    worker::{Registry, WorkerClient},
};

/// Shared by all requests. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

/// The parts of an [`App`].
pub struct Inner {
    pub registry: Registry,
    pub router: Arc<Router>,
    pub client: WorkerClient,
    /// In frontend decoding; `None` in passthrough mode.
    pub loader: Option<MediaLoader>,
    /// What workers granted; nothing where there is no NIXL.
    pub landings: Arc<Landings>,
    /// Judges the URLs that pass to workers, and fetches video and audio.
    pub fetcher: Arc<Fetcher>,
    /// In frontend decoding, whether video and audio go to workers.
    pub pass_other_media: bool,
    /// Names the images that pass by URL.
    pub url_names: UrlNames,
    pub keys: ApiKeys,
    pub tenancy: Tenancy,
    /// `Authorization` for the workers, where they want one of their own.
    pub worker_authorization: ArcSwapOption<HeaderValue>,
    /// Requests that are under way at once, in all.
    pub places: Places,
    /// Request bodies that are held at once, in all.
    pub bodies: Bodies,
    /// Bodies as they are written anew for workers, in all.
    pub worker_bodies: Budget,
    /// Video and audio that is fetched for workers, in all.
    pub other_media: Budget,
    pub scans: Scans,
    pub limits: Limits,
    pub resize: Resize,
    /// What is known of the served models.
    pub models: Models,
    /// What routing makes of their files.
    #[cfg(feature = "mm-routing")]
    pub prompts: Models<PromptModel>,
    /// Sizes of images that pass by URL, where they are needed.
    #[cfg(feature = "mm-routing")]
    pub dimensions: Option<Dimensions>,
    /// When workers were asked for theirs.
    pub asked_for_models: Asked,
    pub responses: Responses,
    /// Cancelled when the gateway is told to end: it is not ready from then on.
    pub leaving: CancellationToken,
    pub metrics: PrometheusHandle,
    pub recent: RecentErrors,
    /// Of the public listener.
    pub tls: Option<Arc<Tls>>,
    pub reloading: Reloading,
    /// What this gateway is, for operators: version, mode, since when it runs.
    pub about: About,
}

/// See [`Inner::about`].
#[derive(Debug, Clone)]
pub struct About {
    pub started: SystemTime,
    pub frontend_decoding: bool,
    /// The configured memory, in bytes.
    pub memory_bytes: u64,
}

/// What one request may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub body_bytes: usize,
    /// For a body to arrive whole.
    pub body_timeout: Duration,
    /// From the head of a request to that of its answer.
    pub request_timeout: Duration,
    /// For memory to become free: before that, 503.
    pub admission_timeout: Duration,
    /// For a landing slot on a worker: after that, inline.
    pub landing_timeout: Duration,
    /// How long a worker may wait for pixels, and a push may take.
    pub push_timeout: Duration,
}

impl App {
    pub fn new(inner: Inner) -> Self {
        App(Arc::new(inner))
    }

    /// A client's headers as a worker gets them.
    pub fn to_worker(&self, client: &HeaderMap) -> HeaderMap {
        headers::to_worker(client, self.authorization(client))
    }

    /// `Authorization` for a worker: our own for the workers, else the client's where it is not the key to the gateway.
    pub fn authorization(&self, client: &HeaderMap) -> Option<HeaderValue> {
        match &*self.worker_authorization.load() {
            Some(ours) => Some(HeaderValue::clone(ours)),
            None if self.keys.required() => None,
            None => client.get(AUTHORIZATION).cloned(),
        }
    }
}

impl std::ops::Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
