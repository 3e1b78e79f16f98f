//! What a source becomes: pixels in the arena, or the file as it came, in the arena too.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    content::{MediaId, Name},
    decode::Format,
};
use crate::memory::{Lease, Slot};

/// RGB8 pixels of shape (height, width, 3) in the arena, and what they are called.
#[derive(Debug, Clone)]
pub struct Picture {
    pub name: Name,
    pub slot: Slot,
}

/// An image file of a format that vLLM takes and the gateway does not decode.
#[derive(Debug, Clone)]
pub struct Original {
    pub name: OriginalName,
    pub slot: Slot,
}

/// What such a file is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginalName {
    pub format: Format,
    pub file_bytes: usize,
    pub id: MediaId,
}

/// One image of a request, loaded.
#[derive(Debug, Clone)]
pub enum Media {
    Picture(Picture),
    Original(Original),
}

/// What a source shows, and how much of the arena that takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Picture(Name),
    Original(OriginalName),
}

impl Original {
    /// The file, which is held as long as this is.
    pub fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.slot.clone())
    }
}

impl Media {
    pub fn content(&self) -> Content {
        match self {
            Media::Picture(picture) => Content::Picture(picture.name),
            Media::Original(original) => Content::Original(original.name),
        }
    }

    pub fn slot(&self) -> &Slot {
        match self {
            Media::Picture(picture) => &picture.slot,
            Media::Original(original) => &original.slot,
        }
    }

    /// The same, held under a lease.
    pub fn leased(&self, lease: Arc<Lease>) -> Media {
        self.content().in_slot(self.slot().leased(lease))
    }
}

impl Content {
    pub fn id(&self) -> &MediaId {
        match self {
            Content::Picture(name) => &name.media_id,
            Content::Original(name) => &name.id,
        }
    }

    /// Bytes of the slot that holds it.
    pub fn slot_bytes(&self) -> usize {
        match self {
            Content::Picture(name) => name.rgb_bytes(),
            Content::Original(name) => name.file_bytes,
        }
    }

    /// What it is, from the slot that holds it.
    pub(super) fn in_slot(self, slot: Slot) -> Media {
        match self {
            Content::Picture(name) => Media::Picture(Picture { name, slot }),
            Content::Original(name) => Media::Original(Original { name, slot }),
        }
    }
}
