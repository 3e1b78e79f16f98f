//! Requests as bytes: find the media parts in one pass, and change those and nothing else.
//!
//! - [`json`]: a strict, non-recursive reader of JSON text that hands out byte positions.
//! - [`chat`]: where images stand in a chat completion request.
//! - [`rewrite`]: the body again, with some spans replaced.
//!
//! No `serde_json::Value` of a body and no `url::Url` of a data: URI is ever made: bodies are megabytes of base64.

pub mod chat;
pub mod json;
pub mod rewrite;

pub use chat::{ChatRequest, ImagePart};
pub use json::JsonError;
