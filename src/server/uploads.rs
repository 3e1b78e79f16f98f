//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`: forms with a file, which stream through to a worker.

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, header::CONTENT_TYPE};

use super::{
    answer::Refusal,
    app::App,
    body,
    dispatch::Target,
    models,
    relay::{Outgoing, relay},
};

/// A route that takes a form with a file.
pub struct Upload {
    /// Here and on the worker.
    pub path: &'static str,
    /// What metrics call it.
    pub name: &'static str,
}

/// All of them. Each takes POST.
pub static UPLOADS: [Upload; 2] = [
    Upload { path: "/v1/audio/transcriptions", name: "transcriptions" },
    Upload { path: "/v1/audio/translations", name: "translations" },
];

/// The handler of an upload.
pub async fn upload(route: &'static Upload, State(app): State<App>, request: Request) -> Response {
    serve(&app, route, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn serve(app: &App, route: &'static Upload, request: Request) -> Result<Response, Box<Refusal>> {
    let (parts, body) = request.into_parts();
    app.keys.check(&parts.headers)?;
    let outgoing = |body| Outgoing { method: parts.method.clone(), path: route.path.into(), query: None, body };
    if models::all_serve_the_same(app) {
        return relay(app, &parts.headers, Target::Model(None), outgoing(body)).await;
    }
    // The model may stand behind the file.
    let whole = body::read(app, &parts.headers, body).await?;
    let model = model_of(&parts.headers, &whole.bytes);
    models::check(app, model).await?;
    let answer = relay(app, &parts.headers, Target::Model(model), outgoing(Body::from(whole.bytes.clone()))).await;
    drop(whole);
    answer
}

/// The field `model` of a form. A file that happens to have the words in it misleads its sender alone.
fn model_of<'a>(headers: &HeaderMap, form: &'a [u8]) -> Option<&'a str> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    if !kind.starts_with("multipart/form-data") {
        return None;
    }
    const NAME: &[u8] = b"name=\"model\"";
    let after = &form[memchr::memmem::find(form, NAME)? + NAME.len()..];
    let value = &after[memchr::memmem::find(after, b"\r\n\r\n")? + 4..];
    str::from_utf8(&value[..memchr::memmem::find(value, b"\r\n")?]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_a_form_is_found() {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, "multipart/form-data; boundary=x".parse().unwrap())]);
        let form = b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\xff\r\n--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--x--\r\n";
        assert_eq!(model_of(&headers, form), Some("whisper"));
        assert_eq!(model_of(&headers, &form[..130]), None);
        assert_eq!(model_of(&HeaderMap::new(), form), None);
    }
}
