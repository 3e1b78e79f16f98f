//! The list of routes. What is not on it is 404: nothing reaches a worker that nobody thought of.

use std::{net::IpAddr, time::SystemTime};

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{HOST, ORIGIN},
    uri::Authority,
};
use rand::RngCore;
use tokio::time::Instant;

use super::{
    admin, admission,
    answer::{Dialect, Refusal},
    app::App,
    extra::{ExtraRoute, extra},
    forward::forward,
    framing, headers, health, models,
    recent::RecentError,
    responses, status,
    surface::SURFACES,
    uploads::{UPLOADS, upload},
    warm,
};
use crate::observe;

/// What clients reach; and, where that is asked for, what operators reach, under `/admin`.
pub fn public(app: App, extra_routes: &[ExtraRoute], with_admin: bool) -> Router {
    let mut api = Router::new()
        .route("/v1/models", get(models::models))
        .route("/v1/models/{*id}", get(models::model).fallback(nothing_here))
        .route("/v1/responses/{id}", get(responses::retrieve))
        .route("/v1/responses/{id}/cancel", post(responses::cancel));
    for surface in &SURFACES {
        api = api.route(surface.path, post(move |state, request| forward(surface, state, request)));
    }
    for route in &UPLOADS {
        api = api.route(route.path, post(move |state, request| upload(route, state, request)));
    }
    for route in extra_routes {
        let handler = {
            let route = route.clone();
            move |state, request| extra(route, state, request)
        };
        // Validated: one of these three.
        api = match route.method {
            Method::GET => api.route(&route.path, get(handler)),
            Method::DELETE => api.route(&route.path, delete(handler)),
            _ => api.route(&route.path, post(handler)),
        };
    }
    let api = api.route_layer(middleware::from_fn_with_state(app.clone(), admission::admit));
    let mut router = api.route("/health", get(health::health)).route("/ready", get(health::ready));
    if with_admin {
        let guarded = operators().route_layer(middleware::from_fn_with_state(app.clone(), only_admins));
        router = router.nest("/admin", guarded);
    }
    router
        .fallback(nothing_here)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(framing::sound))
        .layer(middleware::from_fn_with_state(app.clone(), every_answer))
        .with_state(app)
}

/// What operators reach, on a listener of its own; on a loopback address it is asked by none but local names.
pub fn admin(app: App, is_loopback: bool) -> Router {
    let router = operators()
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .fallback(nothing_here)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app);
    if is_loopback { router.layer(middleware::from_fn(local_names)) } else { router }
}

fn operators() -> Router<App> {
    Router::new()
        .route("/", get(status::page))
        .route("/metrics", get(metrics))
        .route("/warm", post(warm::warm))
        .route("/workers", get(admin::list).post(admin::add))
        .route("/workers/{id}", get(admin::show).delete(admin::remove))
        .route("/workers/{id}/drain", post(admin::drain).delete(admin::undrain))
        .route("/reload", post(admin::reload))
        .route_layer(middleware::from_fn(no_web_pages))
}

/// No page of ours gives orders, so an order that a browser sends comes from somebody else's: a web site that an operator
/// looks at could drain workers, since it needs no answer for that. Browsers say where each of theirs comes from.
async fn no_web_pages(request: Request, next: Next) -> Response {
    if !request.method().is_safe() && request.headers().contains_key(ORIGIN) {
        let message = "Orders are not taken from web pages: this request has the header `Origin`.";
        return Refusal::new(StatusCode::FORBIDDEN, "from_web_page", message).into_response();
    }
    next.run(request).await
}

/// A web site can have its own name lead to 127.0.0.1 (DNS rebinding), and so have an operator's browser read to it what
/// stands there. The browser then asks for that name.
async fn local_names(request: Request, next: Next) -> Response {
    let header = request.headers().get(HOST).and_then(|value| Authority::try_from(value.as_bytes()).ok());
    let authority = request.uri().authority().or(header.as_ref());
    if authority.is_none_or(|authority| is_local_name(authority.host())) {
        return next.run(request).await;
    }
    let message =
        "On a loopback address this listener is asked for by address or as localhost; `Host` has another name.";
    Refusal::new(StatusCode::FORBIDDEN, "from_web_page", message).into_response()
}

/// An address, which no name server can have lead elsewhere, or the one name that leads to this machine alone.
fn is_local_name(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

/// On the public listener, operators show a key that is marked as one of theirs.
async fn only_admins(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.keys.check(request.headers()) {
        Ok(rights) if rights.admin => next.run(request).await,
        Ok(_) => {
            let message = "This route needs an API key that is marked `admin`.";
            Refusal::new(StatusCode::FORBIDDEN, "not_admin", message).into_response()
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn nothing_here() -> Refusal {
    Refusal::not_found()
}

async fn method_not_allowed() -> Refusal {
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "This route does not take that method.")
}

async fn metrics(State(app): State<App>) -> impl IntoResponse {
    ([(http::header::CONTENT_TYPE, "text/plain; version=0.0.4")], rendered(&app))
}

/// All metrics as they are now.
pub(super) fn rendered(app: &App) -> String {
    if let Some(loader) = &app.loader {
        loader.observe();
    }
    let workers = app.registry.all();
    for worker in workers.iter() {
        observe::worker_in_flight(&worker.series, worker.in_flight());
        observe::worker_circuit(&worker.series, worker.circuit().openness());
        observe::worker_landing_circuit(&worker.series, worker.landing_circuit().openness());
        observe::landing_pinned(&worker.series, worker.landing().map_or(0, |landing| landing.pinned_bytes()));
        observe::landing_open(&worker.series, worker.landing().map_or(0, |landing| landing.open_generations()));
    }
    observe::in_flight(app.places.taken());
    app.bodies.observe();
    observe::budget("worker_bodies", &app.worker_bodies);
    if app.other_media.total_bytes() > 0 {
        observe::budget("other_media", &app.other_media);
    }
    let workers = observe::render_workers(workers.iter().map(|worker| &worker.series));
    app.metrics.render() + &workers
}

/// Gives every request an id, every answer that id, and counts it.
async fn every_answer(
    State(app): State<App>,
    matched: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let dialect = Dialect::of_path(request.uri().path());
    let id = request.headers().get(headers::REQUEST_ID).filter(|id| is_sane(id)).cloned().unwrap_or_else(new_id);
    request.headers_mut().insert(headers::REQUEST_ID, id.clone());
    let mut response = next.run(request).await;
    let route = matched.as_ref().map_or("other", |matched| name_of(matched.as_str()));
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        let (status, code) = (response.status().as_u16(), refusal.code);
        let request_id = id.to_str().unwrap_or_default().to_owned();
        app.recent.add(RecentError { at: SystemTime::now(), route, status, code, request_id });
        if dialect != Dialect::OpenAi {
            response = in_dialect(&refusal, dialect, response.headers());
        }
    }
    observe::request(route, response.status().as_u16());
    observe::first_byte(route, start.elapsed());
    response.headers_mut().insert(headers::REQUEST_ID, id);
    response
}

/// A refusal as another client understands it, with the headers of the answer that it was.
fn in_dialect(refusal: &Refusal, dialect: Dialect, headers: &HeaderMap) -> Response {
    let mut response = refusal.answer(dialect);
    // Those that are about the route or the connection, such as `allow`, stay.
    for (name, value) in headers {
        if !response.headers().contains_key(name) {
            response.headers_mut().append(name, value.clone());
        }
    }
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
