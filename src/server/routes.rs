//! The list of routes. What is not on it is 404: nothing reaches a worker that nobody thought of.

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use http::{HeaderValue, Method, StatusCode};
use rand::RngCore;
use tokio::time::Instant;

use super::{
    answer::{Dialect, Refusal},
    app::App,
    extra::{ExtraRoute, extra},
    forward::forward,
    headers, health, models, responses,
    surface::SURFACES,
    uploads::{UPLOADS, upload},
    warm,
};
use crate::observe;

/// What clients reach.
pub fn public(app: App, extra_routes: &[ExtraRoute]) -> Router {
    let mut routes = Router::new()
        .route("/v1/models", get(models::models))
        .route("/v1/models/{*id}", get(models::model).fallback(nothing_here))
        .route("/v1/responses/{id}", get(responses::retrieve))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready));
    for surface in &SURFACES {
        routes = routes.route(surface.path, post(move |state, request| forward(surface, state, request)));
    }
    for route in &UPLOADS {
        routes = routes.route(route.path, post(move |state, request| upload(route, state, request)));
    }
    for route in extra_routes {
        let handler = {
            let route = route.clone();
            move |state, request| extra(route, state, request)
        };
        // Validated: one of these three.
        routes = match route.method {
            Method::GET => routes.route(&route.path, get(handler)),
            Method::DELETE => routes.route(&route.path, delete(handler)),
            _ => routes.route(&route.path, post(handler)),
        };
    }
    routes
        .fallback(nothing_here)
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

async fn nothing_here() -> Refusal {
    Refusal::not_found()
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
    let dialect = Dialect::of_path(request.uri().path());
    let id = request.headers().get(headers::REQUEST_ID).filter(|id| is_sane(id)).cloned().unwrap_or_else(new_id);
    request.headers_mut().insert(headers::REQUEST_ID, id.clone());
    let mut response = next.run(request).await;
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>()
        && dialect != Dialect::OpenAi
    {
        let told = refusal.answer(dialect);
        // Headers that are about the route, such as `allow`, stay.
        let (mut parts, body) = told.into_parts();
        for (name, value) in response.headers() {
            if !parts.headers.contains_key(name) {
                parts.headers.append(name, value.clone());
            }
        }
        response = Response::from_parts(parts, body);
    }
    let route = matched.as_ref().map_or("other", |matched| name_of(matched.as_str()));
    observe::request(route, response.status().as_u16());
    observe::first_byte(route, start.elapsed());
    response.headers_mut().insert(headers::REQUEST_ID, id);
    response
}

/// What metrics call a route.
fn name_of(path: &str) -> &'static str {
    let surface = SURFACES.iter().find(|surface| surface.path == path).map(|surface| surface.name);
    let upload = || UPLOADS.iter().find(|route| route.path == path).map(|route| route.name);
    surface.or_else(upload).unwrap_or(match path {
        "/health" | "/ready" => "health",
        _ if path.starts_with("/v1/models") => "models",
        _ if path.starts_with("/v1/responses/") => "responses",
        _ => "other",
    })
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
