//! A client's request to one of the [`surface`](super::surface)s: read, load the images, choose a worker, send, pass the answer on.

use std::{fmt::Write, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt, future::try_join_all, stream};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::Instant;

use super::{
    answer::Refusal,
    app::App,
    body,
    deadline::Deadline,
    dispatch::{Dispatched, dispatch},
    headers, resize,
    send::{Answer, AnswerBody, LoadedRequest, SendTimes},
    surface::Surface,
    terms,
    told::Told,
};
use crate::{
    error::Fault,
    media::{
        content::Scope,
        error::{LoadError, MediaError},
        loader::{LoadTimes, MediaLoader},
        picture::Media,
        resize::SmartResize,
        source::Source,
    },
    memory::SharedText,
    request::{ClientRequest, ImagePart},
    routing::Decision,
    worker::InFlight,
};

/// The handler of a surface.
pub async fn forward(surface: &'static Surface, State(app): State<App>, request: Request) -> Response {
    let answer = match Deadline::of(request.headers(), app.limits.request_timeout) {
        Ok(deadline) => deadline.within(serve(&app, surface, request, deadline)).await,
        Err(refusal) => Err(Box::new(refusal)),
    };
    answer.unwrap_or_else(IntoResponse::into_response)
}

async fn serve(
    app: &App,
    surface: &'static Surface,
    request: Request,
    deadline: Deadline,
) -> Result<Response, Box<Refusal>> {
    let (parts, body) = request.into_parts();
    let rights = app.keys.check(&parts.headers)?;
    let mut stages = Stages::new();
    let body = body::read(app, &parts.headers, body).await?;
    stages.end("body");
    let client = ClientRequest::read(&body.bytes).map_err(|error| {
        let refusal = Refusal::of(&error);
        Box::new(match error.param() {
            Some(param) => refusal.about(param),
            None => refusal,
        })
    })?;
    stages.end("scan");

    let mut resize = None;
    let media = match &app.loader {
        Some(loader) => {
            resize = resize::of_request(app.resize, &app.registry, &client);
            load(app, loader, &parts.headers, &body.bytes, &client, resize, &mut stages).await?
        }
        None => {
            judge_urls(app, &client).await?;
            Vec::new()
        }
    };
    let asked = terms::asked(&body.bytes, &client, &media);
    let request_id = parts.headers.get(headers::REQUEST_ID).cloned().unwrap_or(HeaderValue::from_static(""));
    let to_worker = headers::to_worker(&parts.headers, app.authorization(&parts.headers), &request_id);
    let loaded = LoadedRequest { surface, body: &body.bytes, request: &client, media: &media, resize, deadline };
    let Dispatched { answer, in_flight, work, decision } = dispatch(app, to_worker, &loaded, &asked).await?;

    let debug = rights.debug && parts.headers.get(headers::DEBUG).is_some_and(|value| value == "1");
    let debugging = debug.then(|| Debugging::of(&stages, &answer, &decision, &loaded));
    Ok(pass_on(*answer, in_flight, Told::new(work, &decision), debugging))
}

/// Loads all images of a request.
async fn load(
    app: &App,
    loader: &MediaLoader,
    headers: &HeaderMap,
    body: &Bytes,
    client: &ClientRequest<'_>,
    resize: Option<SmartResize>,
    stages: &mut Stages,
) -> Result<Vec<Media>, Box<Refusal>> {
    if let Some((path, kind)) = &client.other_media {
        let message = format!("A content part ({kind}) is not supported by this server; only text and images are.");
        let refusal = Refusal::new(StatusCode::BAD_REQUEST, "unsupported_media", message);
        return Err(Box::new(refusal.about(path.to_string())));
    }
    let scope = Scope::new(app.tenancy.of(headers).as_deref(), client.cache_salt.as_deref());
    let deadline = Instant::now() + app.limits.admission_timeout;
    let sources: Vec<_> = client.images.iter().map(|part| SharedText::within(body, &part.url)).collect();
    let loaded = loader.load_resized(&sources, &scope, resize.as_ref(), deadline).await;
    let loaded = loaded.map_err(|LoadError { index, error }| about_image(index, &client.images[index], &*error))?;
    stages.loaded(loaded.iter().map(|loaded| loaded.times));
    Ok(loaded.into_iter().map(|loaded| loaded.media).collect())
}

/// In passthrough the worker fetches: the gateway judges what it is asked for, and can vouch for that first hop only.
async fn judge_urls(app: &App, client: &ClientRequest<'_>) -> Result<(), Box<Refusal>> {
    let Some(fetcher) = &app.url_check else { return Ok(()) };
    let checks = client.images.iter().enumerate().map(|(index, part)| async move {
        let judged = match Source::parse(&part.url) {
            Ok(Source::Http(url)) => fetcher.check(&url).await.map_err(MediaError::from),
            Ok(Source::Data(_)) => Ok(()),
            Err(error) => Err(error.into()),
        };
        judged.map_err(|error| about_image(index, part, &error))
    });
    try_join_all(checks).await.map(drop)
}

fn about_image(index: usize, part: &ImagePart<'_>, error: &dyn Fault) -> Box<Refusal> {
    tracing::info!(index, code = error.code(), %error, "image refused");
    let mut refusal = Refusal::of(error);
    refusal.message = format!("Image at index {index}: {}", refusal.message);
    Box::new(refusal.about(format!("{}.image_url", part.path)))
}

/// The worker's answer as the client's: status, headers and bytes as they come.
fn pass_on(answer: Answer, in_flight: InFlight, mut told: Told, debugging: Option<Debugging>) -> Response {
    let Answer { status, headers, body, slots, .. } = answer;
    let AnswerBody { begun, rest } = body;
    let body = match rest {
        None => {
            told.chunk(&begun);
            Body::from(begun)
        }
        Some(response) => {
            // Held until the last byte is through, or the client has left: then the places on the worker are given back,
            // and the connection to the worker is closed, which ends its work.
            let held = (slots, in_flight);
            let begun = stream::iter((!begun.is_empty()).then_some(Ok(begun)));
            Body::from_stream(begun.chain(response.bytes_stream()).map(move |chunk| {
                let _ = &held;
                if let Ok(chunk) = &chunk {
                    told.chunk(chunk);
                }
                chunk
            }))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers::to_client(&headers);
    if let Some(Debugging { timing, route }) = debugging {
        response.headers_mut().insert(headers::SERVER_TIMING, timing);
        response.headers_mut().insert(headers::ROUTE, route);
    }
    response
}

/// Times of one request, for the header `server-timing`.
struct Stages {
    start: Instant,
    last: Instant,
    stages: Vec<(&'static str, Duration)>,
}

impl Stages {
    fn new() -> Self {
        let now = Instant::now();
        Stages { start: now, last: now, stages: Vec::new() }
    }

    fn end(&mut self, stage: &'static str) {
        let now = Instant::now();
        self.stages.push((stage, now - self.last));
        self.last = now;
    }

    /// Images load side by side: each stage by the longest.
    fn loaded(&mut self, times: impl Iterator<Item = LoadTimes>) {
        let longest = times.fold(LoadTimes::default(), |a, b| LoadTimes {
            fetch: a.fetch.max(b.fetch),
            admission: a.admission.max(b.admission),
            decode: a.decode.max(b.decode),
        });
        self.stages.push(("fetch", longest.fetch));
        self.stages.push(("admission", longest.admission));
        self.stages.push(("decode", longest.decode));
        self.last = Instant::now();
    }
}

/// What `x-mediagate-debug: 1` shows.
struct Debugging {
    timing: HeaderValue,
    route: HeaderValue,
}

impl Debugging {
    fn of(stages: &Stages, answer: &Answer, decision: &Decision, loaded: &LoadedRequest<'_>) -> Self {
        let SendTimes { prepare, push, worker: answered } = answer.times;
        let mut timing = String::new();
        let sent = [("prepare", prepare), ("push", push), ("worker", answered), ("total", stages.start.elapsed())];
        for (name, took) in stages.stages.iter().copied().chain(sent) {
            let comma = if timing.is_empty() { "" } else { ", " };
            // Writing to a String cannot fail.
            let _ = write!(timing, "{comma}{name};dur={:.3}", took.as_secs_f64() * 1000.0);
        }
        let transfers = if answer.transfers.is_empty() { "none".to_owned() } else { answer.transfers.join("+") };
        let mut route = format!("worker={}; transfer={transfers}; {decision}", decision.index);
        let sizes: Vec<_> = loaded.media.iter().filter_map(shipped_size).collect();
        if !sizes.is_empty() {
            let resize = if loaded.resize.is_some() { "auto" } else { "off" };
            let _ = write!(route, "; resize={resize}; sizes={}", sizes.join("+"));
        }
        // ASCII letters, digits and punctuation only.
        let header = |text: String| HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
        Debugging { timing: header(timing), route: header(route) }
    }
}

/// Width and height as they go to the worker.
fn shipped_size(media: &Media) -> Option<String> {
    match media {
        Media::Picture(picture) => Some(format!("{}x{}", picture.name.width, picture.name.height)),
        Media::Original(_) => None,
    }
}
