//! A task for each worker: is it alive, are we attached, does the lease hold, which generations are to be voided.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc::UnboundedReceiver, time::sleep_until};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    attach::{self, AttachError, Attached, Identity},
    belief::Belief,
    changes::Change,
    circuit::Outcome,
    client::WorkerClient,
    probe::Probe,
    state::Worker,
};
use crate::{
    model::tested,
    observe,
    transfer::{Landing, Landings, NixlAgent, lane::Lane},
};

const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait before attaching again after what time alone may cure.
const RETRY_SOON: Duration = Duration::from_secs(1);
/// The same after what needs an operator (no plugin, a wrong key), who should not have to restart the gateway.
const RETRY_LATE: Duration = Duration::from_secs(30);

/// How long a push may take that shows that pushes land again. Shorter than a lease, which is not renewed meanwhile.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(3);

/// Voids are gathered for as long as one call takes, up to this many.
const VOID_BATCH: usize = 1024;

/// What is needed to push: absent where NIXL is not there, or in passthrough mode.
#[derive(Clone)]
pub struct Transfers {
    pub agent: NixlAgent,
    pub landings: Arc<Landings>,
    pub probe: Probe,
    pub identity: Identity,
    /// Landing memory to ask each worker for.
    pub want_bytes: u64,
    /// Of the arena, that pushes to one worker may pin at a time.
    pub pinned_bytes: u64,
    /// Whether a worker that is reached over TCP alone gets pixels inside the request, where that is faster.
    pub inline_where_faster: bool,
}

/// Starts a monitor for each worker that is there and that joins, until `stop`; ends when the last monitor has.
pub async fn watch(mut changes: UnboundedReceiver<Change>, settings: MonitorSettings, stop: CancellationToken) {
    let monitors = TaskTracker::new();
    loop {
        let change = tokio::select! {
            () = stop.cancelled() => break,
            change = changes.recv() => change,
        };
        match change {
            Some(Change::Joined(worker)) => {
                monitors.spawn(Monitor { worker, settings: settings.clone(), stop: stop.clone() }.run());
            }
            Some(Change::Restarted(_) | Change::Left(_)) => {}
            None => break,
        }
    }
    monitors.close();
    monitors.wait().await;
}

/// What all monitors have in common.
#[derive(Clone)]
pub struct MonitorSettings {
    pub client: WorkerClient,
    pub transfers: Option<Transfers>,
    pub interval: Duration,
}

/// Watches one worker until `stop`, or until it has left.
struct Monitor {
    worker: Arc<Worker>,
    settings: MonitorSettings,
    stop: CancellationToken,
}

/// An attachment under way.
struct Attachment {
    landing: Arc<Landing>,
    orphans: UnboundedReceiver<u64>,
    lease: Duration,
    renewed: Instant,
    seq: u64,
}

impl Monitor {
    async fn run(self) {
        let mut attachment: Option<Attachment> = None;
        let mut attach_after = Instant::now();
        let mut last_problem: Option<String> = None;
        'watch: loop {
            let healthy = self.probe().await;
            observe::worker_healthy(&self.worker.series, healthy);
            if self.worker.set_healthy(healthy) {
                tracing::info!(worker = %self.worker.label, healthy, "worker health changed");
                attach_after = Instant::now();
            }
            if let Some(held) = attachment.take() {
                attachment = self.keep(held).await;
            }
            if attachment.is_none()
                && healthy
                && let Some(transfers) = &self.settings.transfers
                && Instant::now() >= attach_after
            {
                match self.attach(transfers).await {
                    Ok(new) => {
                        attachment = Some(new);
                        last_problem = None;
                    }
                    Err(error) => {
                        let late = matches!(
                            error,
                            AttachError::NoPlugin
                                | AttachError::KeyNeeded
                                | AttachError::Denied
                                | AttachError::NotAuthentic
                        );
                        attach_after = Instant::now() + if late { RETRY_LATE } else { RETRY_SOON };
                        // Said once, not at each try.
                        let problem = error.to_string();
                        if last_problem.as_ref() != Some(&problem) {
                            tracing::warn!(worker = %self.worker.label, %problem, "not attached: images go inline");
                            last_problem = Some(problem);
                        }
                    }
                }
            }
            observe::worker_attached(&self.worker.series, attachment.is_some());
            if let (Some(held), Some(transfers)) = (&attachment, &self.settings.transfers) {
                self.try_landing(held, &transfers.probe).await;
            }

            let next = tokio::time::Instant::now() + self.settings.interval;
            loop {
                tokio::select! {
                    () = self.stop.cancelled() => break 'watch,
                    () = self.worker.left.cancelled() => break 'watch,
                    () = sleep_until(next) => break,
                    () = self.worker.look.notified() => break,
                    Some(generation) = next_orphan(&mut attachment) => self.void(&mut attachment, generation).await,
                }
            }
        }
        if self.worker.left.is_cancelled() {
            self.outlast_requests(&mut attachment).await;
        }
        if let Some(held) = attachment {
            self.worker.set_landing(None, None);
            attach::give_back(&self.worker, &self.settings.client, held.landing.grant()).await;
        }
    }

    /// Keeps the attachment of a worker that has left for as long as requests are on it: their pixels may be on their way.
    async fn outlast_requests(&self, attachment: &mut Option<Attachment>) {
        while let Some(held) = attachment.take() {
            tokio::select! {
                () = self.worker.idle() => {
                    *attachment = Some(held);
                    return;
                }
                () = self.stop.cancelled() => {
                    *attachment = Some(held);
                    return;
                }
                () = tokio::time::sleep(self.settings.interval) => {}
            }
            *attachment = self.keep(held).await;
        }
    }

    async fn probe(&self) -> bool {
        // Can it be connected to? An old connection would not tell, and may be closed just now.
        let health = self.settings.client.fresh().get(self.worker.url("/health")).timeout(HEALTH_TIMEOUT);
        health.send().await.is_ok_and(|response| response.status().is_success())
    }

    async fn attach(&self, transfers: &Transfers) -> Result<Attachment, AttachError> {
        let worker = &self.worker;
        let Transfers { agent, landings, probe, identity, want_bytes, pinned_bytes, inline_where_faster } = transfers;
        let Attached { grant, lease, facts } =
            attach::attach(worker, &self.settings.client, identity, agent, *want_bytes).await?;
        let renewed = Instant::now();
        let (landing, orphans) = Landing::open(grant, agent.clone(), *pinned_bytes);
        landings.add(&landing);
        let whereabouts = facts.whereabouts.as_ref();
        let measured =
            match probe.measure(worker, &self.settings.client, &landing, whereabouts, *inline_where_faster).await {
                Ok(measured) => measured,
                Err(error) => {
                    landing.close();
                    attach::give_back(worker, &self.settings.client, landing.grant()).await;
                    return Err(error);
                }
            };
        landing.set_inline_is_faster(measured.inline_is_faster());
        worker.set_models(facts.models.clone());
        worker.set_keeps_responses(facts.keeps_responses.unwrap_or(true));
        worker.set_landing(Some(landing.clone()), Some(Belief::new(&facts.processor_cache)));
        let resize = tested::rule_of_worker(facts.image_processor.as_ref());
        worker.set_resize(resize.as_ref().ok().copied());
        observe::worker_push_speed(&worker.series, measured.speed);
        observe::worker_prefers_inline(&worker.series, measured.inline_is_faster());
        for lane in Lane::ALL {
            observe::worker_lane(&worker.series, lane.name(), measured.lane == Some(lane));
        }
        tracing::info!(
            worker = %worker.label,
            engine = %facts.engine.name,
            version = %facts.engine.version,
            grant_bytes = landing.grant().bytes,
            processor_cache = %facts.processor_cache.kind,
            processor_cache_bytes = facts.processor_cache.bytes,
            api_processes = facts.api_processes,
            lane = measured.lane.map_or("unknown", Lane::name),
            mib_per_second = measured.speed >> 20,
            "attached"
        );
        if let Err(reason) = resize {
            tracing::info!(worker = %worker.label, %reason, "images for this worker are not resized");
        }
        if let (Some(Lane::Tcp), true, Some(whereabouts)) = (measured.lane, measured.here, whereabouts) {
            let obstacle = whereabouts.obstacle(landing.grant().address);
            tracing::warn!(worker = %worker.label, "pixels go over TCP to a worker on the same machine: {obstacle}");
        }
        if let Some(ways) = measured.ways {
            tracing::info!(
                worker = %worker.label,
                pushed_mib_per_second = ways.pushed >> 20,
                inline_mib_per_second = ways.inline >> 20,
                way = if measured.inline_is_faster() { "inline" } else { "push" },
                "the faster way to this worker is taken"
            );
        }
        Ok(Attachment { landing, orphans, lease, renewed, seq: 0 })
    }

    /// Renews the lease when it is time; `None` when the attachment is over.
    async fn keep(&self, mut held: Attachment) -> Option<Attachment> {
        let worker = &self.worker;
        if !held.landing.is_closed() && held.renewed.elapsed() < held.lease / 3 {
            return Some(held);
        }
        let reason = if held.landing.is_closed() {
            "a request was told that the grant is over".to_owned()
        } else {
            held.seq += 1;
            match attach::renew(worker, &self.settings.client, held.landing.grant(), held.seq).await {
                Ok(lease) => {
                    held.lease = lease;
                    held.renewed = Instant::now();
                    return Some(held);
                }
                Err(AttachError::Unreachable(_)) if held.renewed.elapsed() < held.lease => return Some(held),
                Err(error) => error.to_string(),
            }
        };
        tracing::info!(worker = %worker.label, reason, "attachment over");
        worker.set_landing(None, None);
        None
    }

    /// Where pushes did not land: whether they do again.
    async fn try_landing(&self, held: &Attachment, probe: &Probe) {
        let Some(trial) = self.worker.landing_trial() else { return };
        let lands = probe.lands(&self.worker, &self.settings.client, &held.landing, TRIAL_TIMEOUT).await;
        if let Err(error) = &lands {
            tracing::debug!(worker = %self.worker.label, %error, "pushes do not land yet");
        }
        let outcome = if lands.is_ok() { Outcome::Success } else { Outcome::Failure };
        self.worker.landing_tried(trial, outcome);
    }

    async fn void(&self, attachment: &mut Option<Attachment>, first: u64) {
        let Some(held) = attachment else { return };
        let mut generations = vec![first];
        while generations.len() < VOID_BATCH
            && let Ok(next) = held.orphans.try_recv()
        {
            generations.push(next);
        }
        match attach::void(&self.worker, &self.settings.client, held.landing.grant(), &generations).await {
            Ok(void) => {
                held.landing.voided(&void);
                // A copy that takes long: the worker does not vouch for these yet.
                generations.retain(|generation| !void.contains(generation));
                held.landing.void_later(&generations);
            }
            Err(error) => {
                // Without an acknowledgement nothing says when the slots may be used again: start over.
                tracing::info!(worker = %self.worker.label, %error, "void failed, attaching again");
                held.landing.close();
            }
        }
    }
}

async fn next_orphan(attachment: &mut Option<Attachment>) -> Option<u64> {
    match attachment {
        Some(held) => held.orphans.recv().await,
        None => std::future::pending().await,
    }
}
