//! Routes of workers that an operator adds to the list: administrative ones, or those of a newer vLLM.
//!
//! They are forwarded as they come, to the worker with the least to do: bodies are not looked at, so that images in them
//! are the worker's to fetch. Clients' keys count as everywhere.

use std::str::FromStr;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::Method;

use super::{
    answer::Refusal,
    app::App,
    dispatch::Target,
    relay::{Outgoing, relay},
    surface::SURFACES,
    uploads::UPLOADS,
};

/// A method and a path that clients may use beside those that are on the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraRoute {
    pub method: Method,
    pub path: String,
}

impl FromStr for ExtraRoute {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (method, path) =
            text.split_once(' ').ok_or("must be a method, a space and a path, as in `GET /version`")?;
        let method = match method {
            "GET" => Method::GET,
            "POST" => Method::POST,
            "DELETE" => Method::DELETE,
            _ => return Err("the method must be GET, POST or DELETE"),
        };
        let plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte));
        let segments = || path.split('/').skip(1);
        if !path.starts_with('/') || !plain || segments().any(|segment| matches!(segment, "" | "." | "..")) {
            return Err("the path must be absolute and plain: letters, digits, `-`, `_`, `.` and single slashes");
        }
        if segments().next().is_some_and(|first| first.eq_ignore_ascii_case("mediagate")) {
            return Err("paths below /mediagate are between gateways and workers, and never forwarded");
        }
        let known = ["/v1/models", "/v1/responses", "/health", "/ready", "/admin"];
        let is_ours = SURFACES.iter().any(|surface| surface.path == path)
            || UPLOADS.iter().any(|upload| upload.path == path)
            || known
                .iter()
                .any(|known| path == *known || path.strip_prefix(known).is_some_and(|rest| rest.starts_with('/')));
        if is_ours {
            return Err("the path is one that the gateway serves itself");
        }
        Ok(ExtraRoute { method, path: path.into() })
    }
}

/// The handler of an added route.
pub async fn extra(route: ExtraRoute, State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        app.keys.check(&parts.headers)?;
        let query = parts.uri.query().map(str::to_owned);
        let outgoing = Outgoing { method: route.method, path: route.path, query, body };
        relay(&app, &parts.headers, Target::Model(None), outgoing).await
    };
    answer.await.unwrap_or_else(|refusal: Box<Refusal>| refusal.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_a_method_and_a_plain_path() {
        let route: ExtraRoute = "POST /v1/load_lora_adapter".parse().unwrap();
        assert_eq!((route.method, &*route.path), (Method::POST, "/v1/load_lora_adapter"));
        for text in [
            "/version",
            "get /version",
            "PATCH /version",
            "GET version",
            "GET /",
            "GET //version",
            "GET /a/../mediagate/attach",
            "GET /a/./b",
            "GET /%6dediagate/attach",
            "GET /a?b",
            "GET /a b",
            "GET /{x}",
            "POST /mediagate/attach",
            "POST /Mediagate",
            "POST /v1/chat/completions",
            "POST /v1/audio/translations",
            "GET /v1/models/x",
            "DELETE /v1/responses/x",
            "GET /health",
            "POST /admin/reload",
        ] {
            assert!(text.parse::<ExtraRoute>().is_err(), "{text}");
        }
    }
}
