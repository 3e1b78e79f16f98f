//! From the source of an image to its pixels.
//!
//! - [`loader`]: the MediaLoader, which puts the others together and does each thing once.
//! - [`cache`]: which content a source has, and which slot holds a content.
//! - [`picture`]: what comes out, and [`error`] what comes out instead.
//! - [`content`]: what a picture is called: content hash and media id.
//! - [`decode`]: encoded bytes to RGB8, exactly as vLLM would decode them; a file a format.
//! - [`resize`]: pictures in the size that the model will see, as the worker would have resized them.
//! - [`source`]: the text that a client sends as an image's URL, taken apart and not changed.
//! - [`dimensions`]: how large pictures are, by the beginning of their files.
//! - [`url_names`]: what an image is called where its pixels are not looked at.
//! - [`fetch`]: http(s) URLs to bytes, within a policy and limits.

pub mod cache;
pub mod content;
pub mod decode;
#[cfg(feature = "mm-routing")]
pub mod dimensions;
pub mod error;
pub mod fetch;
pub mod loader;
pub mod picture;
pub mod resize;
pub mod source;
pub mod url_names;
