//! In which size a picture goes into the arena, and the memory that decoding and resizing use again and again.

use super::{Loader, MediaConfig, fetches::File, identify::Wanted, pool::Urgency};
use crate::{
    media::{
        decode::{DecodeError, Format, Header, Probe, Size},
        resize::{self, Scratch, SmartResize},
    },
    sync::Mutex,
};

/// The share of the scratch budget that may be kept for the next picture instead of given back, in all.
const KEPT_SHARE: usize = 8;

/// Pixels from which an image takes so long (15 to 60 ms) that others must not wait for it.
const LARGE_PIXELS: u64 = 4 << 20;

/// Memory for decoding and resizing of which nobody makes use now. What it may keep is taken off the scratch budget for good, and so
/// counted.
#[derive(Debug)]
pub struct Stash {
    idle: Mutex<Vec<Scratch>>,
    bytes: usize,
    threads: usize,
}

impl Stash {
    /// Of a budget that must leave enough for the largest picture.
    pub fn new(config: &MediaConfig) -> Self {
        let spare_bytes = config.scratch_bytes.saturating_sub(config.decode.max_scratch_bytes);
        Stash {
            idle: Mutex::default(),
            bytes: (config.scratch_bytes / KEPT_SHARE).min(spare_bytes),
            threads: config.decode_threads(),
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
        scratch.keep_at_most(self.bytes / self.threads);
        self.idle.lock().push(scratch);
    }
}

/// What is done with a file to bring it into the arena.
#[derive(Debug, Clone)]
pub enum Treatment {
    Decode(Sizing),
    /// It is of a format that is not decoded.
    Copy(Format),
}

impl Treatment {
    pub fn of(loader: &Loader, resize: Option<&SmartResize>, probe: &Probe) -> Self {
        match probe {
            Probe::Decodable(header) => Treatment::Decode(Sizing::of(loader, resize, header)),
            Probe::Opaque(format) => Treatment::Copy(*format),
        }
    }

    /// What it takes beside the slot.
    pub fn scratch_bytes(&self) -> usize {
        match self {
            Treatment::Decode(sizing) => sizing.scratch_bytes,
            Treatment::Copy(_) => 0,
        }
    }

    pub fn urgency(&self) -> Urgency {
        match self {
            Treatment::Decode(sizing) if sizing.header.size().pixels() >= LARGE_PIXELS => Urgency::Large,
            _ => Urgency::Long,
        }
    }
}

/// How a picture goes into the arena.
#[derive(Debug, Clone)]
pub struct Sizing {
    /// What is decoded: the picture, or the same at a fraction of its size.
    header: Header,
    /// To which size it is brought, if to any.
    target: Option<Size>,
    scratch_bytes: usize,
    /// Bytes of the picture in full.
    full_bytes: usize,
}

impl Sizing {
    /// A picture for whose resizing there would never be the memory stays as it is.
    fn of(loader: &Loader, resize: Option<&SmartResize>, header: &Header) -> Self {
        let (scratch_bytes, full_bytes) = (header.scratch_bytes(), header.rgb_bytes());
        let whole = Sizing { header: header.clone(), target: None, scratch_bytes, full_bytes };
        let Some(target) = resize.and_then(|rule| rule.target(header.size())) else { return whole };
        let reduced = if loader.config.jpeg_scaling { header.reduced_to_cover(target) } else { None };
        let header = reduced.unwrap_or_else(|| header.clone());
        let scratch_bytes = header.scratch_bytes().saturating_add(resize::scratch_bytes(&header, target));
        let most_bytes = loader.config.decode.max_scratch_bytes.min(loader.scratch.total_bytes());
        let resized = Sizing { header, target: Some(target), scratch_bytes, full_bytes };
        if scratch_bytes > most_bytes { whole } else { resized }
    }

    /// Of what goes into the arena.
    pub fn size(&self) -> Size {
        self.target.unwrap_or(self.header.size())
    }

    /// Bytes of pixels that resizing saves; `None` if the picture stays as it is.
    pub fn saved_bytes(&self) -> Option<usize> {
        self.target.map(|target| self.full_bytes.saturating_sub(target.rgb_bytes()))
    }

    /// Decodes into `out`, which has [`size`](Self::size).
    pub fn decode(&self, bytes: &[u8], out: &mut [u8], stash: &Stash) -> Result<(), DecodeError> {
        let mut scratch = stash.take();
        let result = resize::decode_resized(bytes, &self.header, self.size(), out, &mut scratch);
        stash.put(scratch);
        result
    }
}

/// Bytes of the slot that a file will need: for its pixels, or for itself where it is not decoded.
pub fn slot_bytes(loader: &Loader, wanted: &Wanted, file: &File) -> usize {
    match Treatment::of(loader, wanted.resize.as_ref(), &file.probe) {
        Treatment::Decode(sizing) => sizing.size().rgb_bytes(),
        Treatment::Copy(_) => file.bytes.len(),
    }
}
