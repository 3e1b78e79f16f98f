//! A task for each worker, which keeps what is known of it true: whether it lives, and what it granted.
//!
//! It looks at the worker every so often, and at once when a request has met with something odd ([`Worker::look`]). In
//! between it has those places on the worker voided whose requests ended early.

use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{sleep, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    attach::AttachError,
    attachment::{Attachment, Transfers},
    changes::Change,
    client::WorkerClient,
    state::Worker,
};
use crate::observe;

const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait before attaching again after what time alone may cure.
const RETRY_SOON: Duration = Duration::from_secs(1);
/// The same after what needs an operator, who should not have to restart the gateway.
const RETRY_LATE: Duration = Duration::from_secs(30);

/// What all monitors have in common.
#[derive(Clone)]
pub struct MonitorSettings {
    pub client: WorkerClient,
    pub transfers: Option<Transfers>,
    /// From one look at a worker to the next.
    pub interval: Duration,
}

/// Starts a monitor for each worker that is there and that joins, until `stop`; ends when the last monitor has.
pub async fn watch(mut changes: UnboundedReceiver<Change>, settings: MonitorSettings, stop: CancellationToken) {
    let monitors = TaskTracker::new();
    while let Some(Some(change)) = stop.run_until_cancelled(changes.recv()).await {
        if let Change::Joined(worker) = change {
            monitors.spawn(Monitor::new(worker, settings.clone(), stop.clone()).run());
        }
    }
    monitors.close();
    monitors.wait().await;
}

/// Watches one worker until `stop`, or until it has left.
struct Monitor {
    worker: Arc<Worker>,
    settings: MonitorSettings,
    stop: CancellationToken,
    attachment: Option<Attachment>,
    attach_after: Instant,
    /// Why it is not attached, as it was said last.
    problem: Option<String>,
}

impl Monitor {
    fn new(worker: Arc<Worker>, settings: MonitorSettings, stop: CancellationToken) -> Self {
        Monitor { worker, settings, stop, attachment: None, attach_after: Instant::now(), problem: None }
    }

    async fn run(mut self) {
        loop {
            self.check().await;
            self.keep().await;
            self.attach().await;
            observe::worker_attached(&self.worker.series, self.attachment.is_some());
            if let Some(attachment) = &self.attachment {
                attachment.try_landing().await;
            }
            if self.until_next_look().await.is_break() {
                break;
            }
        }
        if self.worker.left.is_cancelled() {
            self.outlast_requests().await;
        }
        if let Some(attachment) = self.attachment {
            attachment.detach().await;
        }
    }

    /// Whether the worker lives. Over a new connection, as a new request may need one; every second, that costs the gateway a
    /// few ten-thousandths of a core for a worker.
    async fn check(&mut self) {
        let health = self.settings.client.fresh().get(self.worker.url("/health")).timeout(HEALTH_TIMEOUT);
        let healthy = health.send().await.is_ok_and(|response| response.status().is_success());
        observe::worker_healthy(&self.worker.series, healthy);
        if self.worker.set_healthy(healthy) {
            tracing::info!(worker = %self.worker.label, healthy, "worker health changed");
            self.attach_after = Instant::now();
        }
    }

    /// Keeps the attachment, if there is one, or notes that it is over.
    async fn keep(&mut self) {
        if let Some(attachment) = &mut self.attachment
            && let Err(reason) = attachment.keep().await
        {
            tracing::info!(worker = %self.worker.label, reason, "attachment over");
            self.attachment = None;
        }
    }

    /// Attaches to a worker that lives, unless that was tried just now.
    async fn attach(&mut self) {
        let Some(transfers) = &self.settings.transfers else { return };
        if self.attachment.is_some() || !self.worker.is_healthy() || Instant::now() < self.attach_after {
            return;
        }
        match Attachment::open(&self.worker, &self.settings.client, transfers).await {
            Ok(attachment) => {
                self.attachment = Some(attachment);
                self.problem = None;
            }
            Err(error) => self.not_attached(&error),
        }
    }

    fn not_attached(&mut self, error: &AttachError) {
        let retry = if error.needs_an_operator() { RETRY_LATE } else { RETRY_SOON };
        self.attach_after = Instant::now() + retry;
        // Said once, not at each try.
        let problem = Some(error.to_string());
        if self.problem != problem {
            tracing::warn!(worker = %self.worker.label, problem, "not attached: images go inline");
            self.problem = problem;
        }
    }

    /// Voids what is to be voided until it is time to look at the worker again; breaks when that time will not come.
    async fn until_next_look(&mut self) -> ControlFlow<()> {
        let next = tokio::time::Instant::now() + self.settings.interval;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return ControlFlow::Break(()),
                () = self.worker.left.cancelled() => return ControlFlow::Break(()),
                () = sleep_until(next) => return ControlFlow::Continue(()),
                () = self.worker.look.notified() => return ControlFlow::Continue(()),
                Some((attachment, generation)) = next_orphan(&mut self.attachment) => attachment.void(generation).await,
            }
        }
    }

    /// Keeps the attachment of a worker that has left for as long as requests are on it: their pixels may be on their way.
    async fn outlast_requests(&mut self) {
        while self.attachment.is_some() {
            tokio::select! {
                () = self.worker.idle() => return,
                () = self.stop.cancelled() => return,
                () = sleep(self.settings.interval) => {}
            }
            self.keep().await;
        }
    }
}

/// The next generation that is to be voided, with the attachment that it is of.
async fn next_orphan(attachment: &mut Option<Attachment>) -> Option<(&mut Attachment, u64)> {
    match attachment {
        Some(attachment) => {
            let generation = attachment.next_orphan().await?;
            Some((attachment, generation))
        }
        None => std::future::pending().await,
    }
}
