//! Is the gateway alive, and can it serve.

use axum::{extract::State, response::IntoResponse};
use http::StatusCode;

use super::{answer::Refusal, app::App};

/// The process runs.
pub async fn health() -> impl IntoResponse {
    (StatusCode::OK, "ok\n")
}

/// At least one worker is healthy.
pub async fn ready(State(app): State<App>) -> Result<impl IntoResponse, Refusal> {
    match app.registry.healthy().next() {
        Some(_) => Ok((StatusCode::OK, "ready\n")),
        None => Err(Refusal::no_worker()),
    }
}
