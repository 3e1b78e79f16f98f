//! Is the gateway alive, and can it serve.

use axum::{extract::State, response::IntoResponse};
use http::StatusCode;

use super::{answer::Refusal, app::App};

/// The process runs.
pub async fn health() -> impl IntoResponse {
    (StatusCode::OK, "ok\n")
}

/// At least one worker is healthy, and the gateway is not about to leave.
pub async fn ready(State(app): State<App>) -> Result<impl IntoResponse, Refusal> {
    if app.leaving.is_cancelled() {
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", "The gateway is shutting down."));
    }
    // A circuit that is open for a second is no reason to take the whole gateway out.
    match app.registry.all().iter().any(|worker| worker.is_healthy() && !worker.is_draining()) {
        true => Ok((StatusCode::OK, "ready\n")),
        false => Err(Refusal::no_worker()),
    }
}
