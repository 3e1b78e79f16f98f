//! Requests as bytes: find the media parts in one pass, and change those and nothing else.
//!
//! - [`json`]: a strict, non-recursive reader of JSON text that hands out byte positions.
//! - [`shape`]: which members of a surface's bodies hold conversations and media.
//! - [`read`]: what is known of a body after one pass: its model, where its images stand, where its messages do.
//! - `walker`: that pass, to wherever media can stand.
//! - `parts`, `blocks`: the content of a message, in OpenAI's and in Anthropic's words.
//! - [`image`]: one image: where it stands, and how something else is put in its place.
//! - [`rewrite`]: the body again, with some spans replaced.
//! - [`error`]: why a request is refused before anything is done for it.
//!
//! No `serde_json::Value` of a body and no `url::Url` of a data: URI is ever made: bodies are megabytes of base64.

mod blocks;
pub mod error;
pub mod image;
pub mod json;
mod parts;
#[cfg(test)]
mod properties;
pub mod read;
pub mod rewrite;
pub mod shape;
mod walker;

pub use error::RequestError;
pub use image::{ImagePart, ImageSource};
pub use json::JsonError;
pub use read::{ClientRequest, OtherContent};
