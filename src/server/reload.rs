//! What can change while the gateway runs: the list of workers, the keys of clients and workers, the certificate.
//!
//! All of it is read before any of it is put to use: a mistake in one file leaves everything as it was. Of the workers,
//! only what has changed in the configuration since it was last read is changed: those that the admin API added stay, and
//! those that it removed are not brought back.

use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use rustls::ServerConfig;
use serde::Serialize;

use super::{app::App, auth::ApiKeys};
use crate::worker::WorkerUrlError;

/// What the configuration says now.
pub struct Fresh {
    pub workers: Vec<String>,
    pub keys: ApiKeys,
    pub worker_authorization: Option<HeaderValue>,
    pub tls: Option<Arc<ServerConfig>>,
}

/// Reads the configuration again; its errors are for operators.
pub type ReadAgain = Box<dyn Fn() -> Result<Fresh, String> + Send + Sync>;

/// How a reload is done, and what the last one found.
pub struct Reloading {
    pub read: ReadAgain,
    /// The workers as they were configured when they were last read.
    pub workers: Mutex<Vec<String>>,
}

/// What a reload has changed.
#[derive(Debug, Serialize)]
pub struct Reloaded {
    pub workers_added: usize,
    pub workers_removed: usize,
    pub api_keys: usize,
}

impl App {
    /// Reads the files of the configuration again, and puts them to use.
    pub async fn reload(&self) -> Result<Reloaded, String> {
        let app = self.clone();
        let done = tokio::task::spawn_blocking(move || app.reload_now()).await;
        let outcome = done.unwrap_or_else(|error| Err(error.to_string()));
        crate::observe::reloaded(outcome.is_ok());
        match &outcome {
            Ok(Reloaded { workers_added, workers_removed, api_keys }) => {
                tracing::info!(workers_added, workers_removed, api_keys, "configuration read again");
            }
            Err(error) => tracing::error!(error, "configuration not read again: everything stays as it is"),
        }
        outcome
    }

    fn reload_now(&self) -> Result<Reloaded, String> {
        // One at a time, reading included: what was read first must not be put to use last.
        let mut before = self.reloading.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let Fresh { workers, keys, worker_authorization, tls } = (self.reloading.read)()?;
        if self.tls.is_some() != tls.is_some() {
            return Err("TLS cannot be turned on or off while the gateway runs: start it anew".into());
        }
        let changed = self.registry.update(&before, &workers).map_err(|error: WorkerUrlError| error.to_string())?;
        // From here on nothing fails.
        *before = workers;
        if let (Some(used), Some(tls)) = (&self.tls, tls) {
            used.replace(tls);
        }
        let api_keys = keys.count();
        self.keys.replace(keys);
        self.worker_authorization.store(worker_authorization.map(Arc::new));
        Ok(Reloaded { workers_added: changed.added, workers_removed: changed.removed, api_keys })
    }
}
