//! `POST /warm` on the admin listener: loads an image, so that the first client finds it there.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::{answer::Refusal, app::App, extract::Order, resize};
use crate::media::{content::Scope, picture::Media};

/// What is to be loaded, and for whom.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    url: String,
    /// Whose workers decide to which size it is brought; may be left out where all workers serve one model.
    model: Option<String>,
    /// As the header that `--tenancy` names has it.
    tenant: Option<String>,
    cache_salt: Option<String>,
}

/// The handler: says the size and the name of the picture that is there now.
pub async fn warm(State(app): State<App>, Order(wanted): Order<Wanted>) -> Response {
    let Some(loader) = &app.loader else {
        let message = "Without --frontend-decoding the gateway keeps no images.";
        return Refusal::new(StatusCode::CONFLICT, "not_decoding", message).into_response();
    };
    let tenant = match &wanted.tenant {
        Some(tenant) => app.tenancy.named(tenant),
        None => app.tenancy.of(&HeaderMap::new()),
    };
    let scope = Scope::new(tenant.as_deref(), wanted.cache_salt.as_deref());
    let deadline = Instant::now() + app.limits.admission_timeout;
    let resize = resize::of_model(app.resize, &app.registry, wanted.model.as_deref());
    match loader.load_resized(&[wanted.url.into()], &scope, resize.as_ref(), deadline).await {
        // One, as was asked for.
        Ok(loaded) => Json(match loaded.first().map(|loaded| &loaded.media) {
            Some(Media::Picture(picture)) => json!({
                "height": picture.name.height,
                "width": picture.name.width,
                "media_id": picture.name.media_id.to_string(),
            }),
            Some(Media::Original(original)) => json!({"format": original.name.format.name()}),
            None => json!({}),
        })
        .into_response(),
        Err(error) => Refusal::of(&*error.error).into_response(),
    }
}
