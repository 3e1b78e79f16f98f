//! The list of routes. What is not on it is 404: nothing reaches a worker that nobody thought of.

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use http::{HeaderValue, StatusCode};
use rand::RngCore;
use tokio::time::Instant;

use super::{
    answer::Refusal,
    app::App,
    forward::forward,
    headers, health, models,
    surface::{CHAT_COMPLETIONS, Surface},
    warm,
};
use crate::observe;

/// What clients reach.
pub fn public(app: App) -> Router {
    Router::new()
        .route(CHAT_COMPLETIONS.path, on(&CHAT_COMPLETIONS))
        .route("/v1/models", get(models::models))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .fallback(|| async { Refusal::not_found() })
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(every_answer))
        .with_state(app)
}

/// What operators reach, on a listener of its own.
pub fn admin(app: App) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/warm", post(warm::warm))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .fallback(|| async { Refusal::not_found() })
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app)
}

/// A surface's handler.
fn on(surface: &'static Surface) -> MethodRouter<App> {
    post(move |state, request| forward(surface, state, request))
}

async fn method_not_allowed() -> Refusal {
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "This route does not take that method.")
}

async fn metrics(State(app): State<App>) -> impl IntoResponse {
    if let Some(loader) = &app.loader {
        loader.observe();
    }
    for worker in app.registry.all().iter() {
        observe::worker_circuit(&worker.label, worker.circuit().openness());
        observe::landing_pinned(&worker.label, worker.landing().map_or(0, |landing| landing.pinned_bytes()));
        observe::landing_open(&worker.label, worker.landing().map_or(0, |landing| landing.open_generations()));
    }
    observe::budget("bodies", &app.bodies);
    ([(http::header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render())
}

/// Gives every request an id, every answer that id, and counts it.
async fn every_answer(matched: Option<MatchedPath>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request.headers().get(headers::REQUEST_ID).filter(|id| is_sane(id)).cloned().unwrap_or_else(new_id);
    request.headers_mut().insert(headers::REQUEST_ID, id.clone());
    let mut response = next.run(request).await;
    let route = match matched.as_ref().map(MatchedPath::as_str) {
        Some(path) if path == CHAT_COMPLETIONS.path => CHAT_COMPLETIONS.name,
        Some("/v1/models") => "models",
        Some("/health" | "/ready") => "health",
        _ => "other",
    };
    observe::request(route, response.status().as_u16());
    observe::first_byte(route, start.elapsed());
    response.headers_mut().insert(headers::REQUEST_ID, id);
    response
}

/// A client's id is kept if it can do no harm in logs.
fn is_sane(id: &HeaderValue) -> bool {
    let id = id.as_bytes();
    (1..=128).contains(&id.len()) && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte))
}

fn new_id() -> HeaderValue {
    let mut bytes = [0; 16];
    rand::rng().fill_bytes(&mut bytes);
    let id: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    // Hex digits are valid in a header.
    HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("-"))
}
