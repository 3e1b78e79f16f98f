//! Who must know when workers come, go, or start over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::state::Worker;

/// Something has happened to the list of workers.
#[derive(Debug, Clone)]
pub enum Change {
    /// A worker was added.
    Joined(Arc<Worker>),
    /// It is another process now, or may be: what it was known to hold, it holds no longer.
    Restarted(Arc<Worker>),
    /// It was taken off the list.
    Left(Arc<Worker>),
}

/// Runs a task for each worker that is there and that joins, until it has left, and all of them until `stop`.
pub async fn for_each_worker<F: Future + Send + 'static>(
    mut changes: UnboundedReceiver<Change>,
    stop: CancellationToken,
    task: impl Fn(Arc<Worker>) -> F,
) {
    // The tasks end with it.
    let mut tasks = JoinSet::new();
    while let Some(Some(change)) = stop.run_until_cancelled(changes.recv()).await {
        if let Change::Joined(worker) = change {
            let (left, task) = (worker.left.clone(), task(worker));
            tasks.spawn(async move {
                left.run_until_cancelled(task).await;
            });
        }
        while tasks.try_join_next().is_some() {}
    }
}

/// Tells all who asked, in order. Nothing is lost: changes are as rare as what operators do.
#[derive(Debug, Default)]
pub struct Changes {
    listeners: Mutex<Vec<UnboundedSender<Change>>>,
}

impl Changes {
    pub(super) fn announce(&self, change: &Change) {
        self.listeners().retain(|listener| listener.send(change.clone()).is_ok());
    }

    /// From now on, after these.
    pub(super) fn listen(&self, before: impl IntoIterator<Item = Change>) -> UnboundedReceiver<Change> {
        let (sender, receiver) = unbounded_channel();
        for change in before {
            // The receiver is here.
            let _ = sender.send(change);
        }
        self.listeners().push(sender);
        receiver
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<UnboundedSender<Change>>> {
        // A list of senders, whole at any moment.
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
