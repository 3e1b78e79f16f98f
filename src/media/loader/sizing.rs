//! In which size a picture goes into the arena, and the memory that resizing uses again and again.

use super::{Loader, MediaConfig, identify::Wanted};
use crate::{
    media::{
        decode::{DecodeError, Header, Size, decode_into},
        resize::{self, Scratch},
    },
    sync::Mutex,
};

/// The share of the scratch budget that may be kept for the next resize instead of given back, in all.
const KEPT_SHARE: usize = 8;

/// Memory for resizing of which nobody makes use now. What it may keep is taken off the scratch budget for good, and so
/// counted.
#[derive(Debug)]
pub struct Stash {
    idle: Mutex<Vec<Scratch>>,
    bytes: usize,
    decoders: usize,
}

impl Stash {
    /// Of a budget that must leave enough for the largest picture.
    pub fn new(config: &MediaConfig) -> Self {
        let spare_bytes = config.scratch_bytes.saturating_sub(config.decode.max_scratch_bytes);
        Stash {
            idle: Mutex::default(),
            bytes: (config.scratch_bytes / KEPT_SHARE).min(spare_bytes),
            decoders: config.decoders.max(1),
        }
    }

    /// What it may keep in all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn take(&self) -> Scratch {
        self.idle.lock().pop().unwrap_or_default()
    }

    /// Never more of them than there are threads: each has but one at a time.
    fn put(&self, mut scratch: Scratch) {
        scratch.keep_at_most(self.bytes / self.decoders);
        self.idle.lock().push(scratch);
    }
}

/// How a picture goes into the arena.
#[derive(Debug, Clone)]
pub struct Sizing {
    /// What is decoded: the picture, or the same at a fraction of its size.
    header: Header,
    /// To which size it is brought, if to any.
    target: Option<Size>,
    pub scratch_bytes: usize,
    /// Bytes of pixels that the file's picture has more than what goes into the arena.
    pub saved_bytes: usize,
}

impl Sizing {
    /// A picture for whose resizing there would never be the memory stays as it is.
    pub fn of(loader: &Loader, wanted: &Wanted, header: &Header) -> Self {
        let whole =
            Sizing { header: header.clone(), target: None, scratch_bytes: header.scratch_bytes(), saved_bytes: 0 };
        let Some(target) = wanted.resize.and_then(|rule| rule.target(header.size())) else { return whole };
        let reduced = if loader.config.jpeg_scaling { header.reduced_to_cover(target) } else { None };
        let header = reduced.unwrap_or_else(|| header.clone());
        let scratch_bytes = header.scratch_bytes().saturating_add(resize::scratch_bytes(&header, target));
        let most_bytes = loader.config.decode.max_scratch_bytes.min(loader.scratch.total_bytes());
        if scratch_bytes > most_bytes {
            return whole;
        }
        let saved_bytes = whole.header.rgb_bytes().saturating_sub(target.rgb_bytes());
        Sizing { header, target: Some(target), scratch_bytes, saved_bytes }
    }

    /// Of what goes into the arena.
    pub fn size(&self) -> Size {
        self.target.unwrap_or(self.header.size())
    }

    pub fn is_resized(&self) -> bool {
        self.target.is_some()
    }

    /// Decodes into `out`, which has [`size`](Self::size).
    pub fn decode(&self, bytes: &[u8], out: &mut [u8], stash: &Stash) -> Result<(), DecodeError> {
        let Some(target) = self.target else { return decode_into(bytes, &self.header, out) };
        let mut scratch = stash.take();
        let result = resize::decode_resized(bytes, &self.header, target, out, &mut scratch);
        stash.put(scratch);
        result
    }
}
