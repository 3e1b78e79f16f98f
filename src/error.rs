//! What every typed error of mediagate can say of itself.
//!
//! Errors are made where they arise, each module with its own `thiserror` enum. An error that may reach a client
//! implements [`Fault`]: the status and the sentence a client sees are decided where the error is made, never by
//! matching strings at the edge. The error's `Display` is for the log and may hold the private cause; [`Fault::public`]
//! is for the client and holds no URL query, no host of ours, no memory address and no text of a library.

use std::borrow::Cow;

use http::StatusCode;

/// An error that knows how it looks from outside.
pub trait Fault: std::error::Error {
    /// HTTP status of the answer.
    fn status(&self) -> StatusCode;

    /// Stable machine-readable code (snake_case): OpenAI's `error.code`, and the label `code` of the error metrics.
    fn code(&self) -> &'static str;

    /// One sentence for the client.
    fn public(&self) -> Cow<'static, str>;

    /// Whether the same request may succeed if it is sent again later.
    fn retryable(&self) -> bool {
        matches!(
            self.status(),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS | StatusCode::GATEWAY_TIMEOUT
        )
    }
}
