//! A client's request to one of the [`surface`](super::surface)s: read, load the images, choose a worker, send, pass the
//! answer on.

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::future::try_join_all;
use http::StatusCode;
use tokio::time::Instant;

use super::{
    answer::Refusal,
    app::App,
    body,
    deadline::Deadline,
    debugging::{Debugging, Stages},
    dispatch::{Dispatched, Target, dispatch},
    headers,
    loaded::LoadedRequest,
    models,
    others::{self, OtherFiles},
    pass_on, resize, responses,
    send::{Answer, AnswerBody},
    surface::Surface,
    terms,
    told::Told,
};
use crate::{
    error::Fault,
    media::{
        content::Scope,
        error::{LoadError, MediaError},
        fetch::Fetcher,
        loader::MediaLoader,
        picture::Media,
        resize::SmartResize,
        source::{Source, SourceError},
    },
    request::{ClientRequest, OtherContent},
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
    let mut stages = Stages::begin();
    let body = body::read(app, &parts.headers, body).await?;
    stages.end("body");
    let client = app.scans.read(surface.shape, &body.bytes).await.map_err(|error| {
        let refusal = Refusal::of(&error);
        Box::new(match error.param() {
            Some(param) => refusal.about(param),
            None => refusal,
        })
    })?;
    stages.end("scan");

    let scope = Scope::new(app.tenancy.of(&parts.headers).as_deref(), client.cache_salt.as_deref());
    let model = client.model.as_deref();
    let target = match &client.previous_response_id {
        Some(id) if surface.makes_responses => responses::maker(app, app.tenancy.of(&parts.headers).as_deref(), id)?,
        _ => {
            models::check(app, model).await?;
            Target::Model(model)
        }
    };
    let mut resize = None;
    let loaded = match &app.loader {
        Some(loader) => {
            resize = resize::of_request(app.resize, &app.registry, &client);
            load(app, loader, &scope, &body.bytes, &client, resize, &mut stages).await?
        }
        None => {
            judge_urls(&app.fetcher, &body.bytes, &client).await?;
            Loaded::default()
        }
    };
    let Loaded { media, others } = loaded;
    let name = || terms::names(&app.url_names, &scope, &client, &media);
    let names = app.scans.aside(terms::named_bytes(&client, &media), name).await;
    let loaded = LoadedRequest {
        surface,
        body: &body.bytes,
        client: &client,
        scope: &scope,
        media: &media,
        names: &names,
        others: &others.files,
        resize,
        deadline,
    };
    let asked = loaded.terms(app).await;
    stages.end("terms");
    let Dispatched { answer, in_flight, work, decision } =
        dispatch(app, app.to_worker(&parts.headers), &loaded, &target, &asked).await?;
    #[cfg(feature = "mm-routing")]
    if answer.status.is_success() {
        super::verify::later(app, asked, &decision);
    }

    let debug = rights.debug && parts.headers.get(headers::DEBUG).is_some_and(|value| value == "1");
    let debugging = debug.then(|| Debugging::of(&stages, &answer, &decision, &loaded));
    let made = (surface.makes_responses && answer.status.is_success())
        .then(|| responses::Made::new(app, app.tenancy.of(&parts.headers), in_flight.worker()));
    let Answer { status, headers, body, slots, .. } = *answer;
    let AnswerBody { begun, rest } = body;
    let told = Told::new(work, &decision);
    let body = match rest {
        None => Body::from(begun),
        Some(response) => pass_on::Rest::body(begun, response, made, Some(told), in_flight, slots),
    };
    let mut response = pass_on::answer(status, &headers, body);
    if let Some(debugging) = debugging {
        debugging.show(response.headers_mut());
    }
    Ok(response)
}

/// What a request needs of its media.
#[derive(Default)]
struct Loaded {
    media: Vec<Media>,
    others: OtherFiles,
}

/// Loads all media of a request.
async fn load(
    app: &App,
    loader: &MediaLoader,
    scope: &Scope,
    body: &Bytes,
    client: &ClientRequest<'_>,
    resize: Option<SmartResize>,
    stages: &mut Stages,
) -> Result<Loaded, Box<Refusal>> {
    for part in &client.others {
        if !app.pass_other_media || part.content == OtherContent::Untrusted {
            let kind = part.kind;
            let message = format!("A content part ({kind}) is not supported by this server; only text and images are.");
            let refusal = Refusal::new(StatusCode::BAD_REQUEST, "unsupported_media", message);
            return Err(Box::new(refusal.about(part.param.clone())));
        }
    }
    let deadline = Instant::now() + app.limits.admission_timeout;
    let sources: Vec<_> = client.images.iter().map(|part| part.source.text(body)).collect();
    let loaded = loader.load_resized(&sources, scope, resize.as_ref(), deadline).await;
    let about = |index: usize, error: &dyn Fault| about_image(index, &client.images[index].param, error);
    let loaded = loaded.map_err(|LoadError { index, error }| about(index, &*error))?;
    stages.loaded(loaded.iter().map(|loaded| loaded.times));
    // What was decoded just now is most likely on no worker.
    if loaded.iter().any(|image| image.is_new()) {
        app.landings.expect_push();
    }
    let others = others::fetch(app, client, Instant::now() + app.limits.admission_timeout).await?;
    Ok(Loaded { media: loaded.into_iter().map(|loaded| loaded.media).collect(), others })
}

/// In passthrough the worker fetches: the gateway judges what it is asked for, and can vouch for that first hop only.
async fn judge_urls(fetcher: &Fetcher, body: &Bytes, client: &ClientRequest<'_>) -> Result<(), Box<Refusal>> {
    let images = client.images.iter().enumerate().map(async |(index, part)| {
        judge(fetcher, part.source.text(body).parse()).await.map_err(|error| about_image(index, &part.param, &error))
    });
    let others = client.others.iter().map(async |part| {
        let OtherContent::Url { url, .. } = &part.content else { return Ok(()) };
        judge(fetcher, Source::parse(url)).await.map_err(|error| about_other(&part.param, &error))
    });
    try_join_all(images).await?;
    try_join_all(others).await.map(drop)
}

async fn judge(fetcher: &Fetcher, source: Result<Source<'_>, SourceError>) -> Result<(), MediaError> {
    match source? {
        Source::Http(url) => Ok(fetcher.check(&url).await?),
        Source::Data(_) => Ok(()),
    }
}

fn about_image(index: usize, param: &str, error: &dyn Fault) -> Box<Refusal> {
    tracing::info!(index, code = error.code(), %error, "image refused");
    let mut refusal = Refusal::of(error);
    refusal.message = format!("Image at index {index}: {}", refusal.message);
    Box::new(refusal.about(param))
}

/// Why a medium that is no image is refused, in the log as well.
pub fn about_other(param: &str, error: &dyn Fault) -> Box<Refusal> {
    tracing::info!(param, code = error.code(), %error, "medium refused");
    Box::new(Refusal::of(error).about(param))
}
