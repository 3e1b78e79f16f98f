//! `GET /v1/models`: the models of all healthy workers, each once.

use std::{collections::HashSet, time::Duration};

use axum::{Json, extract::State};
use futures_util::future::join_all;
use http::{HeaderMap, header::AUTHORIZATION};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{answer::Refusal, app::App};
use crate::worker::Worker;

/// Listing models is cheap; a worker that takes longer is left out.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A list of models takes some hundred bytes each.
const MAX_BYTES: usize = 4 << 20;

/// OpenAI's list of models, whose entries pass as they are.
#[derive(Debug, Serialize, Deserialize)]
pub struct ModelList {
    object: String,
    data: Vec<Value>,
}

pub async fn models(State(app): State<App>, headers: HeaderMap) -> Result<Json<ModelList>, Refusal> {
    app.keys.check(&headers)?;
    let workers = app.registry.available();
    if workers.is_empty() {
        return Err(Refusal::no_worker());
    }
    let lists = join_all(workers.iter().map(|worker| list(&app, worker, &headers))).await;
    let mut seen = HashSet::new();
    let mut data = Vec::new();
    let mut answered = false;
    for list in lists.into_iter().flatten() {
        answered = true;
        for model in list.data {
            if model["id"].as_str().is_some_and(|id| seen.insert(id.to_owned())) {
                data.push(model);
            }
        }
    }
    if answered { Ok(Json(ModelList { object: "list".into(), data })) } else { Err(Refusal::bad_gateway()) }
}

async fn list(app: &App, worker: &Worker, headers: &HeaderMap) -> Option<ModelList> {
    let mut request = app.client.http().get(worker.url("/v1/models")).timeout(TIMEOUT);
    if let Some(authorization) = app.authorization(headers) {
        request = request.header(AUTHORIZATION, authorization);
    }
    let mut response = request.send().await.ok()?.error_for_status().ok()?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if body.len() + chunk.len() > MAX_BYTES {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&body).ok()
}
