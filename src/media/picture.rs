//! What a source becomes: pixels in the arena, or the file as it came.

use bytes::Bytes;

use super::{content::Name, decode::Format};
use crate::memory::Slot;

/// RGB8 pixels of shape (height, width, 3) in the arena, and what they are called.
#[derive(Debug, Clone)]
pub struct Picture {
    pub name: Name,
    pub slot: Slot,
}

/// An image file of a format that vLLM takes and the gateway does not decode.
#[derive(Debug, Clone)]
pub struct Original {
    pub format: Format,
    pub bytes: Bytes,
}

/// One image of a request, loaded.
#[derive(Debug, Clone)]
pub enum Media {
    Picture(Picture),
    Original(Original),
}
