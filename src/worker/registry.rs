//! The list of workers and what is known of each.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;
use url::{Host, Url};

use super::belief::Belief;
use crate::transfer::Landing;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WorkerUrlError {
    #[error("--worker {0:?} is not a URL: {1}")]
    Parse(String, url::ParseError),
    #[error("--worker {0:?} must be http://HOST:PORT or https://HOST:PORT, without user, query or fragment")]
    Shape(String),
    #[error("--worker {0:?} is named twice")]
    Twice(String),
}

/// A `vllm serve` behind the gateway.
#[derive(Debug)]
pub struct Worker {
    /// Position on the command line, from 0.
    pub index: usize,
    /// Ends with a slash.
    base: Url,
    /// `host:port`, for logs and metrics; never told to clients.
    pub label: String,
    healthy: AtomicBool,
    in_flight: AtomicUsize,
    landing: ArcSwapOption<Landing>,
    belief: ArcSwapOption<Belief>,
    models: ArcSwap<Vec<String>>,
    /// Wakes the monitor: something happened that it should look at now.
    pub look: Notify,
}

impl Worker {
    fn parse(index: usize, text: &str) -> Result<Self, WorkerUrlError> {
        let mut base = Url::parse(text).map_err(|error| WorkerUrlError::Parse(text.into(), error))?;
        let plain = matches!(base.scheme(), "http" | "https")
            && base.username().is_empty()
            && base.password().is_none()
            && base.query().is_none()
            && base.fragment().is_none();
        let (true, Some(host), Some(port)) = (plain, base.host_str(), base.port_or_known_default()) else {
            return Err(WorkerUrlError::Shape(text.into()));
        };
        let label = format!("{host}:{port}");
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        Ok(Worker {
            index,
            base,
            label,
            healthy: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            landing: ArcSwapOption::empty(),
            belief: ArcSwapOption::empty(),
            models: ArcSwap::default(),
            look: Notify::new(),
        })
    }

    /// The URL of a path of ours on this worker; `path` begins with a slash and is one of our constants.
    pub fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url
    }

    /// Whether its host is a loopback address, or the name that means one.
    pub fn is_loopback(&self) -> bool {
        match self.base.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
            None => false,
        }
    }

    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Whether this changes anything.
    pub fn set_healthy(&self, healthy: bool) -> bool {
        self.healthy.swap(healthy, Ordering::Relaxed) != healthy
    }

    /// Requests that are on this worker now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a request until the guard is dropped.
    pub fn enter(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self.clone())
    }

    /// The grant to push into, if the worker is attached.
    pub fn landing(&self) -> Option<Arc<Landing>> {
        self.landing.load_full().filter(|landing| !landing.is_closed())
    }

    /// What an attached worker is believed to hold processed.
    pub fn belief(&self) -> Option<Arc<Belief>> {
        self.belief.load_full()
    }

    /// A new attachment, or the end of one, with all that was believed.
    pub fn set_landing(&self, landing: Option<Arc<Landing>>, belief: Option<Belief>) {
        self.belief.store(belief.map(Arc::new));
        if let Some(old) = self.landing.swap(landing) {
            old.close();
        }
    }

    pub fn models(&self) -> Arc<Vec<String>> {
        self.models.load_full()
    }

    pub fn set_models(&self, models: Vec<String>) {
        self.models.store(Arc::new(models));
    }
}

/// A request on a worker; see [`Worker::enter`].
#[derive(Debug)]
pub struct InFlight(Arc<Worker>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All workers, in the order of the command line.
#[derive(Debug, Clone)]
pub struct Registry {
    workers: Arc<[Arc<Worker>]>,
}

impl Registry {
    pub fn new(urls: &[String]) -> Result<Self, WorkerUrlError> {
        let mut workers: Vec<Arc<Worker>> = Vec::new();
        for (index, text) in urls.iter().enumerate() {
            let worker = Worker::parse(index, text)?;
            if workers.iter().any(|other| other.base == worker.base) {
                return Err(WorkerUrlError::Twice(text.clone()));
            }
            workers.push(Arc::new(worker));
        }
        Ok(Registry { workers: workers.into() })
    }

    pub fn all(&self) -> &[Arc<Worker>] {
        &self.workers
    }

    pub fn healthy(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.workers.iter().filter(|worker| worker.is_healthy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(urls: &[&str]) -> Result<Registry, WorkerUrlError> {
        Registry::new(&urls.iter().map(|url| url.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn worker_urls_keep_their_path_prefix() {
        let registry = registry(&["http://10.0.0.1:8000", "https://h/prefix"]).unwrap();
        let urls: Vec<_> = registry.all().iter().map(|worker| worker.url("/v1/models").to_string()).collect();
        assert_eq!(urls, ["http://10.0.0.1:8000/v1/models", "https://h/prefix/v1/models"]);
        assert_eq!(registry.all()[1].label, "h:443");
    }

    #[test]
    fn what_is_no_plain_base_url_is_refused() {
        for url in ["10.0.0.1:8000", "ftp://x", "http://u:p@x", "http://x?a=b", "http://x#f", "x"] {
            assert!(registry(&[url]).is_err(), "{url}");
        }
        assert!(matches!(registry(&["http://x:80", "http://x/"]), Err(WorkerUrlError::Twice(_))));
    }

    #[test]
    fn loopback_is_seen_in_every_form() {
        let registry = registry(&["http://127.0.0.9:1", "http://[::1]:1", "http://localhost:1", "http://10.0.0.1:1"]);
        let loopback: Vec<_> = registry.unwrap().all().iter().map(|worker| worker.is_loopback()).collect();
        assert_eq!(loopback, [true, true, true, false]);
    }
}
