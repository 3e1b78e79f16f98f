//! Errors, in the shape that the caller understands: OpenAI's or Anthropic's.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use serde_json::json;

use crate::{error::Fault, observe};

/// An error on its way to a client.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    /// Which part of the request it is about.
    pub param: Option<String>,
    pub retryable: bool,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let retryable = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        Refusal { status, code, message: message.into(), param: None, retryable }
    }

    /// The public side of a typed error.
    pub fn of(fault: &(impl Fault + ?Sized)) -> Self {
        Refusal {
            status: fault.status(),
            code: fault.code(),
            message: fault.public().into_owned(),
            param: None,
            retryable: fault.retryable(),
        }
    }

    /// The same, about a part of the request: OpenAI's `param`.
    pub fn about(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// 404, of whatever is on no list of ours.
    pub fn not_found() -> Self {
        Refusal::new(StatusCode::NOT_FOUND, "not_found", "There is no such route here.")
    }

    /// 503: none that serves the model is healthy.
    pub fn no_worker() -> Self {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_worker", "No worker is available right now; try again.")
    }

    /// 503: those that are healthy are full.
    pub fn workers_overloaded() -> Self {
        let message = "All workers have as many requests as they may; try again.";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "workers_overloaded", message)
    }

    /// 502: a worker was asked, and no answer came.
    pub fn bad_gateway() -> Self {
        Refusal::new(StatusCode::BAD_GATEWAY, "worker_unreachable", "The worker did not answer.")
    }

    /// The answer in a dialect.
    ///
    /// OpenAI's: `{"error": {"message", "type", "param", "code"}}`. Anthropic's: `{"type": "error", "error": {"type",
    /// "message"}}`, in which `param` and `code` are ours.
    pub fn answer(&self, dialect: Dialect) -> Response {
        let mut body = json!({"error": {
            "message": self.message,
            "type": match dialect {
                Dialect::OpenAi => self.openai_type(),
                Dialect::Anthropic => self.anthropic_type(),
            },
            "param": self.param,
            "code": self.code,
        }});
        if dialect == Dialect::Anthropic {
            body["type"] = "error".into();
        }
        let mut response = (self.status, Json(body)).into_response();
        if self.retryable && matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }

    /// Anthropic's word for the kind of error.
    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 | 529 => "overloaded_error",
            504 => "timeout_error",
            _ => "api_error",
        }
    }

    /// OpenAI's word for the kind of error.
    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "service_unavailable_error",
            _ => "server_error",
        }
    }
}

/// Whose errors a client understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    Anthropic,
}

impl Dialect {
    /// That of whoever asks for this path, be it one of ours or not.
    pub fn of_path(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some("") => Dialect::Anthropic,
            Some(rest) if rest.starts_with('/') => Dialect::Anthropic,
            _ => Dialect::OpenAi,
        }
    }
}

/// In OpenAI's dialect; the refusal goes along, for whoever counts it or says it in another one.
impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        observe::error(self.code);
        let mut response = self.answer(Dialect::OpenAi);
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for Box<Refusal> {
    fn into_response(self) -> Response {
        (*self).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_for_messages_speaks_anthropics_dialect() {
        for (path, dialect) in [
            ("/v1/messages", Dialect::Anthropic),
            ("/v1/messages/count_tokens", Dialect::Anthropic),
            ("/v1/messages/batches", Dialect::Anthropic),
            ("/v1/messagesx", Dialect::OpenAi),
            ("/v1/chat/completions", Dialect::OpenAi),
            ("/", Dialect::OpenAi),
        ] {
            assert_eq!(Dialect::of_path(path), dialect, "{path}");
        }
    }
}
