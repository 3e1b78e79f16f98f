//! What runs beside the router: who listens to workers, asks them, and forgets them.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    policy::{RoutePolicy, Weights},
    router::Router,
};
use crate::worker::{Change, Registry, WorkerClient, reports};

/// How routing is set up.
#[derive(Debug, Clone, Copy)]
pub struct RoutingSettings {
    pub policy: RoutePolicy,
    pub weights: Weights,
    /// Blocks of KV caches that are known at once.
    pub index_blocks: usize,
    /// How often workers are asked how busy they are.
    pub load_interval: Duration,
}

/// Makes the router, and starts what its policy needs, until `stop`.
pub fn start(
    settings: &RoutingSettings,
    registry: &Registry,
    client: &WorkerClient,
    stop: &CancellationToken,
) -> Arc<Router> {
    let RoutingSettings { policy, weights, load_interval, .. } = *settings;
    #[cfg(feature = "mm-routing")]
    let router = {
        let index = Arc::new(super::kv::KvIndex::new(settings.index_blocks));
        if policy == RoutePolicy::MmKv {
            let listening =
                super::kv::subscription::subscribe(index.clone(), client.clone(), registry.changes(), stop.clone());
            tokio::spawn(listening);
        }
        Arc::new(Router::new(policy, weights, index))
    };
    #[cfg(not(feature = "mm-routing"))]
    let router = Arc::new(Router::new(policy, weights));
    if !matches!(policy, RoutePolicy::MediaAffinity | RoutePolicy::RoundRobin) {
        tokio::spawn(reports::ask(client.clone(), registry.changes(), load_interval, stop.clone()));
    }
    tokio::spawn(forget(router.clone(), registry.clone(), stop.clone()));
    tracing::info!(policy = policy.name(), "routing");
    router
}

/// Tells the router of workers that hold nothing any more.
async fn forget(router: Arc<Router>, registry: Registry, stop: CancellationToken) {
    let mut changes = registry.changes();
    while let Some(Some(change)) = stop.run_until_cancelled(changes.recv()).await {
        match change {
            Change::Joined(_) => {}
            Change::Restarted(worker) | Change::Left(worker) => router.forget(worker.id.index()),
        }
    }
}
