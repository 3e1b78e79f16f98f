//! The list of workers, which may change while the gateway runs.
//!
//! Readers take the list as it is at one moment ([`Registry::all`]) and keep it for as long as they decide something: a
//! worker that is taken off meanwhile still ends what it was given. Whoever keeps something for each worker hears of
//! changes ([`Registry::changes`]), and drops it when the worker has left.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    changes::{Change, Changes},
    state::{Worker, WorkerId, WorkerSettings},
    url::{WorkerUrl, WorkerUrlError},
};

/// The workers, in the order in which they were added. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Registry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    workers: ArcSwap<Vec<Arc<Worker>>>,
    settings: WorkerSettings,
    changes: Arc<Changes>,
    /// Held by whoever changes the list; the id of the next worker.
    next_id: Mutex<u32>,
}

/// How many workers an update has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Updated {
    pub added: usize,
    pub removed: usize,
}

impl Registry {
    /// A list of these, each of which may be given what the settings say.
    pub fn new(urls: &[String], settings: WorkerSettings) -> Result<Self, WorkerUrlError> {
        let registry = Registry(Arc::new(Inner {
            workers: ArcSwap::default(),
            settings,
            changes: Arc::default(),
            next_id: Mutex::new(0),
        }));
        registry.update(&[], urls)?;
        Ok(registry)
    }

    /// All workers as they are now.
    pub fn all(&self) -> Arc<Vec<Arc<Worker>>> {
        self.0.workers.load_full()
    }

    /// Those that may be given new requests now.
    pub fn available(&self) -> Vec<Arc<Worker>> {
        self.0.workers.load().iter().filter(|worker| worker.is_available()).cloned().collect()
    }

    /// The worker of this id, while it is on the list.
    pub fn get(&self, id: WorkerId) -> Option<Arc<Worker>> {
        self.0.workers.load().iter().find(|worker| worker.id == id).cloned()
    }

    /// What happens from now on, after a [`Change::Joined`] for each worker that is there already.
    pub fn changes(&self) -> UnboundedReceiver<Change> {
        let _changing = self.changing();
        self.0.changes.listen(self.all().iter().cloned().map(Change::Joined))
    }

    /// Adds a worker.
    pub fn add(&self, url: &str) -> Result<Arc<Worker>, WorkerUrlError> {
        let mut next_id = self.changing();
        let base: WorkerUrl = url.parse()?;
        if self.all().iter().any(|worker| *worker.base() == base) {
            return Err(WorkerUrlError::Twice(url.into()));
        }
        Ok(self.join(&mut next_id, base))
    }

    /// Takes a worker off the list. Requests that are on it go on.
    pub fn remove(&self, id: WorkerId) -> Option<Arc<Worker>> {
        let _changing = self.changing();
        let worker = self.get(id)?;
        self.leave(&worker);
        Some(worker)
    }

    /// Follows a list that was `before` and is `now`: adds who is new on it, and removes who is no longer on it. Whoever
    /// else is here stays. A list with a mistake changes nothing.
    pub fn update(&self, before: &[String], now: &[String]) -> Result<Updated, WorkerUrlError> {
        let mut next_id = self.changing();
        let mut bases: Vec<WorkerUrl> = Vec::with_capacity(now.len());
        for url in now {
            let base: WorkerUrl = url.parse()?;
            if bases.contains(&base) {
                return Err(WorkerUrlError::Twice(url.clone()));
            }
            bases.push(base);
        }
        let before: Vec<WorkerUrl> = before.iter().filter_map(|url| url.parse().ok()).collect();
        let here = self.all();
        let mut updated = Updated::default();
        for base in &bases {
            if !before.contains(base) && !here.iter().any(|worker| worker.base() == base) {
                self.join(&mut next_id, base.clone());
                updated.added += 1;
            }
        }
        for worker in here.iter().filter(|worker| before.contains(worker.base()) && !bases.contains(worker.base())) {
            self.leave(worker);
            updated.removed += 1;
        }
        Ok(updated)
    }

    fn join(&self, next_id: &mut u32, base: WorkerUrl) -> Arc<Worker> {
        let worker = Worker::new(WorkerId(*next_id), base, self.0.settings, self.0.changes.clone());
        *next_id += 1;
        let mut workers = Vec::clone(&self.all());
        workers.push(worker.clone());
        self.0.workers.store(Arc::new(workers));
        self.0.changes.announce(&Change::Joined(worker.clone()));
        worker
    }

    fn leave(&self, worker: &Arc<Worker>) {
        let workers = self.all().iter().filter(|other| other.id != worker.id).cloned().collect();
        self.0.workers.store(Arc::new(workers));
        worker.set_draining(true);
        worker.left.cancel();
        self.0.changes.announce(&Change::Left(worker.clone()));
    }

    fn changing(&self) -> MutexGuard<'_, u32> {
        // The list is replaced whole, and an id that was not used does no harm.
        self.0.next_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::circuit::{CircuitSettings, Outcome};

    fn registry(urls: &[&str]) -> Result<Registry, WorkerUrlError> {
        Registry::new(&owned(urls), WorkerSettings::default())
    }

    fn owned(urls: &[&str]) -> Vec<String> {
        urls.iter().map(|url| url.to_string()).collect()
    }

    fn labels(registry: &Registry) -> Vec<String> {
        registry.all().iter().map(|worker| worker.label.clone()).collect()
    }

    #[test]
    fn a_worker_is_named_once_however_its_url_is_written() {
        assert!(matches!(registry(&["http://x:80", "http://x/"]), Err(WorkerUrlError::Twice(_))));
    }

    #[test]
    fn an_update_leaves_alone_who_stays_and_never_gives_an_id_again() {
        let registry = registry(&["http://a:1", "http://b:1"]).unwrap();
        let b = registry.get(WorkerId(1)).unwrap();
        let updated = registry.update(&owned(&["http://a:1", "http://b:1"]), &owned(&["http://b:1/", "http://c:1"]));
        assert_eq!(updated, Ok(Updated { added: 1, removed: 1 }));
        assert_eq!(labels(&registry), ["b:1", "c:1"]);
        assert!(Arc::ptr_eq(&registry.get(WorkerId(1)).unwrap(), &b));
        assert!(registry.get(WorkerId(0)).is_none());
        assert_eq!(registry.add("http://a:1").unwrap().id, WorkerId(3));
        assert!(matches!(registry.add("http://a:1/"), Err(WorkerUrlError::Twice(_))));
    }

    #[test]
    fn an_update_does_not_undo_what_was_done_beside_the_list() {
        let list = owned(&["http://a:1", "http://b:1"]);
        let registry = Registry::new(&list, WorkerSettings::default()).unwrap();
        registry.add("http://extra:1").unwrap();
        registry.remove(WorkerId(0)).unwrap();
        assert_eq!(registry.update(&list, &list), Ok(Updated::default()));
        assert_eq!(labels(&registry), ["b:1", "extra:1"]);
    }

    #[test]
    fn an_update_with_a_mistake_changes_nothing() {
        let registry = registry(&["http://a:1"]).unwrap();
        let before = owned(&["http://a:1"]);
        assert!(registry.update(&before, &owned(&["http://b:1", "nonsense"])).is_err());
        assert!(registry.update(&before, &owned(&["http://b:1", "http://b:1"])).is_err());
        assert_eq!(labels(&registry), ["a:1"]);
    }

    #[test]
    fn a_worker_has_no_more_requests_than_it_may() {
        let settings = WorkerSettings { max_requests: 2, ..WorkerSettings::default() };
        let registry = Registry::new(&owned(&["http://a:1"]), settings).unwrap();
        let worker = registry.all()[0].clone();
        worker.set_healthy(true);
        let (first, _second) = (worker.enter().unwrap(), worker.enter().unwrap());
        assert!(worker.enter().is_none() && worker.is_full() && !worker.is_available());
        drop(first);
        assert!(worker.is_available() && worker.enter().is_some());
    }

    #[test]
    fn who_listens_hears_of_everybody_once() {
        let registry = registry(&["http://a:1", "http://b:1"]).unwrap();
        let mut changes = registry.changes();
        registry.add("http://c:1").unwrap();
        registry.remove(WorkerId(0)).unwrap();
        let b = registry.get(WorkerId(1)).unwrap();
        // It comes up, goes away, and comes back: perhaps as another process.
        b.set_healthy(true);
        b.set_healthy(false);
        b.set_healthy(true);
        let mut heard = Vec::new();
        while let Ok(change) = changes.try_recv() {
            heard.push(match change {
                Change::Joined(worker) => format!("+{}", worker.id),
                Change::Restarted(worker) => format!("!{}", worker.id),
                Change::Left(worker) => format!("-{}", worker.id),
            });
        }
        assert_eq!(heard, ["+0", "+1", "+2", "-0", "!1"]);
    }

    #[tokio::test]
    async fn a_worker_that_was_removed_gets_nothing_new_and_is_waited_for() {
        let registry = registry(&["http://a:1"]).unwrap();
        let worker = registry.all()[0].clone();
        worker.set_healthy(true);
        assert_eq!(registry.available().len(), 1);
        let in_flight = worker.enter().unwrap();
        registry.remove(worker.id).unwrap();
        assert!(registry.available().is_empty() && !worker.is_available() && worker.left.is_cancelled());
        let idle = tokio::spawn({
            let worker = worker.clone();
            async move { worker.idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!idle.is_finished());
        drop(in_flight);
        idle.await.unwrap();
    }

    #[test]
    fn a_worker_whose_requests_fail_is_not_available() {
        let registry = registry(&["http://a:1"]).unwrap();
        let worker = registry.all()[0].clone();
        worker.set_healthy(true);
        for _ in 0..CircuitSettings::default().failures {
            worker.enter().unwrap().ended(Outcome::Failure);
        }
        assert!(registry.available().is_empty() && worker.enter().is_none());
    }
}
