//! mediagate: a gateway in front of `vllm serve` workers that decodes every image once.
//!
//! The modules in the order in which a request meets them; a module knows only those listed after it and [`error`].
//!
//! - [`media`]: a source (http URL or data: URI) becomes bytes, bytes become pixels in the arena, pixels get a name.

pub mod error;
pub mod media;
