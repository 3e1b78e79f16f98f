//! What operators can do to a running gateway: add, drain and remove workers, read the files of the configuration again.

use std::sync::Arc;

use axum::{Json, extract::State};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{
    answer::Refusal,
    app::App,
    extract::{Order, Path},
    reload::Reloaded,
};
use crate::worker::{Worker, WorkerId, WorkerUrlError};

/// A worker, for operators.
#[derive(Debug, Serialize)]
pub struct WorkerView {
    pub id: u32,
    pub url: String,
    /// `host:port`, as in logs and metrics.
    pub label: String,
    pub healthy: bool,
    pub draining: bool,
    pub circuit: &'static str,
    pub in_flight: usize,
    /// Whether it granted landing memory.
    pub attached: bool,
    /// Whether what is pushed there lands.
    pub landing_circuit: &'static str,
    pub models: Vec<String>,
}

impl WorkerView {
    pub fn of(worker: &Worker) -> Self {
        WorkerView {
            id: worker.id.0,
            url: worker.base().to_string(),
            label: worker.label.clone(),
            healthy: worker.is_healthy(),
            draining: worker.is_draining(),
            circuit: worker.circuit().name(),
            in_flight: worker.in_flight(),
            attached: worker.landing().is_some(),
            landing_circuit: worker.landing_circuit().name(),
            models: worker.models().to_vec(),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct WorkerList {
    workers: Vec<WorkerView>,
}

/// A worker to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewWorker {
    url: String,
}

/// `GET /workers`
pub async fn list(State(app): State<App>) -> Json<WorkerList> {
    Json(WorkerList { workers: app.registry.all().iter().map(|worker| WorkerView::of(worker)).collect() })
}

/// `POST /workers`
pub async fn add(
    State(app): State<App>,
    Order(NewWorker { url }): Order<NewWorker>,
) -> Result<(StatusCode, Json<WorkerView>), Refusal> {
    let worker = app.registry.add(&url).map_err(|error| match error {
        WorkerUrlError::Twice(_) => Refusal::new(StatusCode::CONFLICT, "worker_exists", error.to_string()),
        error => Refusal::new(StatusCode::BAD_REQUEST, "invalid_worker_url", error.to_string()),
    })?;
    tracing::info!(worker = %worker.label, id = %worker.id, "worker added");
    Ok((StatusCode::CREATED, Json(WorkerView::of(&worker))))
}

/// `GET /workers/{id}`
pub async fn show(State(app): State<App>, Path(id): Path<u32>) -> Result<Json<WorkerView>, Refusal> {
    find(&app, id).map(|worker| Json(WorkerView::of(&worker)))
}

/// `DELETE /workers/{id}`: it gets nothing new, and leaves when the requests that are on it have ended.
pub async fn remove(State(app): State<App>, Path(id): Path<u32>) -> Result<Json<WorkerView>, Refusal> {
    let worker = app.registry.remove(WorkerId(id)).ok_or_else(|| unknown(id))?;
    tracing::info!(worker = %worker.label, id = %worker.id, in_flight = worker.in_flight(), "worker removed");
    Ok(Json(WorkerView::of(&worker)))
}

/// `POST /workers/{id}/drain`: it gets nothing new, and stays on the list.
pub async fn drain(State(app): State<App>, Path(id): Path<u32>) -> Result<Json<WorkerView>, Refusal> {
    set_draining(&app, id, true)
}

/// `DELETE /workers/{id}/drain`: it gets requests again.
pub async fn undrain(State(app): State<App>, Path(id): Path<u32>) -> Result<Json<WorkerView>, Refusal> {
    set_draining(&app, id, false)
}

/// `POST /reload`: what SIGHUP does.
pub async fn reload(State(app): State<App>) -> Result<Json<Reloaded>, Refusal> {
    // The private cause is for whoever runs the gateway, which is who asks here.
    app.reload().await.map(Json).map_err(|error| Refusal::new(StatusCode::CONFLICT, "reload_failed", error))
}

fn set_draining(app: &App, id: u32, draining: bool) -> Result<Json<WorkerView>, Refusal> {
    let worker = find(app, id)?;
    if worker.set_draining(draining) {
        tracing::info!(worker = %worker.label, id = %worker.id, draining, "worker draining changed");
    }
    Ok(Json(WorkerView::of(&worker)))
}

fn find(app: &App, id: u32) -> Result<Arc<Worker>, Refusal> {
    app.registry.get(WorkerId(id)).ok_or_else(|| unknown(id))
}

fn unknown(id: u32) -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "worker_not_found",
        format!("There is no worker {id}; GET /workers lists them."),
    )
}
