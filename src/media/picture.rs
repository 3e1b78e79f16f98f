//! What a source becomes: pixels in the arena, or the file as it came.

use std::sync::Arc;

use bytes::Bytes;

use super::{content::Name, decode::Format};
use crate::memory::{Admission, Lease, Slot};

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
    /// Counts the bytes as long as anybody has them.
    pub(super) _admission: Arc<Admission>,
}

/// One image of a request, loaded.
#[derive(Debug, Clone)]
pub enum Media {
    Picture(Picture),
    Original(Original),
}

impl Picture {
    /// The same picture, held under a lease.
    pub fn leased(&self, lease: Arc<Lease>) -> Picture {
        Picture { name: self.name, slot: self.slot.leased(lease) }
    }
}
