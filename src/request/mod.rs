//! Requests as bytes: find the media parts in one pass, and change those and nothing else.
//!
//! - [`json`]: a strict, non-recursive reader of JSON text that hands out byte positions.
//! - [`read`]: what the gateway needs to know of a body: its model, where its images stand, where its messages do.
//! - [`rewrite`]: the body again, with some spans replaced.
//!
//! No `serde_json::Value` of a body and no `url::Url` of a data: URI is ever made: bodies are megabytes of base64.

pub mod json;
pub mod read;
pub mod rewrite;

pub use json::JsonError;
pub use read::{ClientRequest, ImagePart};
