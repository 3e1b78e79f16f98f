//! A worker's grant of landing memory, from the attach to its end: the lease is renewed, generations that nobody reads any
//! more are voided, and where pushes did not land, it is tried whether they do again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    attach::{self, AttachError, Attached, Identity, WorkerFacts},
    belief::Belief,
    circuit::Outcome,
    client::WorkerClient,
    probe::{Measured, Probe},
    state::Worker,
};
use crate::{
    media::resize::SmartResize,
    model::tested,
    observe,
    transfer::{Landing, Landings, NixlAgent, lane::Lane},
};

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

/// See the module's documentation. It ends with [`Self::detach`], or with an error of [`Self::keep`].
pub struct Attachment {
    worker: Arc<Worker>,
    client: WorkerClient,
    probe: Probe,
    landing: Arc<Landing>,
    /// Generations that are to be voided.
    orphans: UnboundedReceiver<u64>,
    lease: Duration,
    renewed: Instant,
    /// Of the renewals.
    seq: u64,
    /// How the worker's image processor sizes pictures.
    resize: Option<SmartResize>,
}

impl Attachment {
    /// Attaches to a worker, measures the connection, and makes known what the worker says of itself.
    pub async fn open(worker: &Arc<Worker>, client: &WorkerClient, transfers: &Transfers) -> Result<Self, AttachError> {
        let Transfers { agent, landings, probe, identity, want_bytes, pinned_bytes, inline_where_faster } = transfers;
        let Attached { grant, lease, facts } = attach::attach(worker, client, identity, agent, *want_bytes).await?;
        let renewed = Instant::now();
        let (landing, orphans) = Landing::open(grant, agent.clone(), *pinned_bytes);
        landings.add(&landing);
        let whereabouts = facts.whereabouts.as_ref();
        let measured = match probe.measure(worker, client, &landing, whereabouts, *inline_where_faster).await {
            Ok(measured) => measured,
            Err(error) => {
                landing.close();
                attach::give_back(worker, client, landing.grant()).await;
                return Err(error);
            }
        };
        landing.set_inline_is_faster(measured.inline_is_faster());
        landing.set_keeps_order(measured.lane.is_some_and(Lane::keeps_order));
        let resize = tested::rule_of_worker(facts.image_processor.as_ref());
        worker.set_models(facts.models.clone());
        worker.set_keeps_responses(facts.keeps_responses.unwrap_or(true));
        worker.set_landing(Some(landing.clone()), Some(Belief::new(&facts.processor_cache)));
        worker.set_resize(resize.as_ref().ok().copied());
        tell(worker, &landing, &facts, &measured);
        if let Err(reason) = &resize {
            tracing::info!(worker = %worker.label, %reason, "images for this worker are not resized");
        }
        Ok(Attachment {
            worker: worker.clone(),
            client: client.clone(),
            probe: probe.clone(),
            landing,
            orphans,
            lease,
            renewed,
            seq: 0,
            resize: resize.ok(),
        })
    }

    /// Renews the lease when it is time. Once the attachment is over, this says why, and has told the worker.
    pub async fn keep(&mut self) -> Result<(), String> {
        let kept = match self.landing.is_closed() {
            true => Err("a request was told that the grant is over".to_owned()),
            false if self.renewed.elapsed() < self.lease / 3 && !self.is_in_doubt() => Ok(()),
            false => self.renew().await,
        };
        if kept.is_err() {
            self.worker.set_landing(None, None);
        }
        kept
    }

    /// The worker was out of reach, and may have come back as another process: then it has another processor, too.
    fn is_in_doubt(&self) -> bool {
        self.worker.is_healthy() && self.worker.resize() != self.resize
    }

    async fn renew(&mut self) -> Result<(), String> {
        self.seq += 1;
        match attach::renew(&self.worker, &self.client, self.landing.grant(), self.seq).await {
            Ok(lease) => {
                self.lease = lease;
                self.renewed = Instant::now();
                // Only the process that gave the grant knows it, so what it said of its processor still holds.
                self.worker.set_resize(self.resize);
                Ok(())
            }
            Err(AttachError::Unreachable(_)) if self.renewed.elapsed() < self.lease => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Where pushes did not land: whether they do again.
    pub async fn try_landing(&self) {
        let Some(trial) = self.worker.landing_trial() else { return };
        let lands = self.probe.lands(&self.worker, &self.client, &self.landing, TRIAL_TIMEOUT).await;
        if let Err(error) = &lands {
            tracing::debug!(worker = %self.worker.label, %error, "pushes do not land yet");
        }
        let outcome = if lands.is_ok() { Outcome::Success } else { Outcome::Failure };
        self.worker.landing_tried(trial, outcome);
    }

    /// The next generation that is to be voided; `None` if there will be none.
    pub async fn next_orphan(&mut self) -> Option<u64> {
        self.orphans.recv().await
    }

    /// Has a generation voided, and with it all others that are to be.
    pub async fn void(&mut self, first: u64) {
        let mut generations = vec![first];
        while generations.len() < VOID_BATCH
            && let Ok(next) = self.orphans.try_recv()
        {
            generations.push(next);
        }
        match attach::void(&self.worker, &self.client, self.landing.grant(), &generations).await {
            Ok(void) => {
                self.landing.voided(&void);
                // A copy that takes long: the worker does not vouch for these yet.
                generations.retain(|generation| !void.contains(generation));
                self.landing.void_later(&generations);
            }
            Err(error) => {
                // Without an acknowledgement nothing says when the slots may be used again: start over.
                tracing::info!(worker = %self.worker.label, %error, "void failed, attaching again");
                self.landing.close();
            }
        }
    }

    /// Gives the grant back.
    pub async fn detach(self) {
        self.worker.set_landing(None, None);
        attach::give_back(&self.worker, &self.client, self.landing.grant()).await;
    }
}

/// Metrics and log of a new attachment.
fn tell(worker: &Worker, landing: &Landing, facts: &WorkerFacts, measured: &Measured) {
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
    if let (Some(Lane::Tcp), true, Some(whereabouts)) = (measured.lane, measured.here, &facts.whereabouts) {
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
}
