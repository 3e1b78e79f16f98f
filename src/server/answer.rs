//! Errors in OpenAI's shape.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use serde_json::json;

use super::recent::ErrorCode;
use crate::{error::Fault, observe};

/// An error on its way to a client: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug)]
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

    pub fn about(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub fn not_found() -> Self {
        Refusal::new(StatusCode::NOT_FOUND, "not_found", "There is no such route here.")
    }

    pub fn no_worker() -> Self {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_worker", "No worker is available right now; try again.")
    }

    pub fn workers_overloaded() -> Self {
        let message = "All workers have as many requests as they may; try again.";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "workers_overloaded", message)
    }

    pub fn bad_gateway() -> Self {
        Refusal::new(StatusCode::BAD_GATEWAY, "worker_unreachable", "The worker did not answer.")
    }

    /// OpenAI's word for the kind of error.
    fn kind(&self) -> &'static str {
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

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        observe::error(self.code);
        let body = json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }});
        let mut response = (self.status, Json(body)).into_response();
        response.extensions_mut().insert(ErrorCode(self.code));
        if self.retryable && matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl IntoResponse for Box<Refusal> {
    fn into_response(self) -> Response {
        (*self).into_response()
    }
}
