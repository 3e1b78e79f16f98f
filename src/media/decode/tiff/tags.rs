//! The tags of a TIFF directory that decide how it is decoded.

use std::ops::ControlFlow;

use super::super::bytes::Endian;
use super::super::ifd;

/// More samples than that are refused by the reference.
const MAX_SAMPLES: u32 = 6;
/// Longer directories are refused by libtiff.
const MAX_ENTRIES: u16 = 4096;

/// Tags as they are stored, defaults filled in.
#[derive(Debug)]
pub(super) struct Tags<'a> {
    pub(super) width: Option<u32>,
    pub(super) height: Option<u32>,
    pub(super) compression: u32,
    photometric: Option<u32>,
    pub(super) fill_order: u32,
    pub(super) planar: bool,
    pub(super) rows_per_strip: Option<u32>,
    pub(super) tile_width: Option<u32>,
    pub(super) tile_height: Option<u32>,
    pub(super) predictor: u32,
    pub(super) colour_map: Option<Vec<u32>>,
    pub(super) xmp: Option<&'a [u8]>,
    samples: Option<u32>,
    bits: Option<Vec<u32>>,
    sample_format: Option<Vec<u32>>,
    extra: Option<Vec<u32>>,
    strip_offsets: Option<Vec<u32>>,
    strip_lengths: Option<Vec<u32>>,
    tile_offsets: Option<Vec<u32>>,
    tile_lengths: Option<Vec<u32>>,
    /// A tag has a type or number of values of which the reference makes something of its own.
    pub(super) is_odd: bool,
    /// Entries that the reference passes over, and libtiff, which it asks for compressed files, may stumble on.
    pub(super) is_damaged: bool,
}

/// Bits and meaning of the samples of a pixel.
#[derive(Debug)]
pub(super) struct Samples {
    pub(super) bits: Vec<u32>,
    pub(super) sample_format: Vec<u32>,
    pub(super) extra: Vec<u32>,
}

impl<'a> Tags<'a> {
    pub(super) fn read(bytes: &'a [u8], endian: Endian, at: usize) -> Self {
        let mut tags = Tags {
            width: None,
            height: None,
            compression: 1,
            photometric: None,
            fill_order: 1,
            planar: false,
            rows_per_strip: None,
            tile_width: None,
            tile_height: None,
            predictor: 1,
            colour_map: None,
            xmp: None,
            samples: None,
            bits: None,
            sample_format: None,
            extra: None,
            strip_offsets: None,
            strip_lengths: None,
            tile_offsets: None,
            tile_lengths: None,
            is_odd: false,
            is_damaged: false,
        };
        let all = ifd::walk(bytes, endian, at, |entry| {
            tags.take(entry, endian);
            ControlFlow::Continue(())
        });
        let next_directory = endian
            .u16(bytes, at)
            .filter(|count| *count <= MAX_ENTRIES)
            .and_then(|count| endian.u32(bytes, at + 2 + usize::from(count) * 12));
        let per_sample =
            |list: &Option<Vec<u32>>| list.as_ref().is_none_or(|list| list.len() == tags.samples.unwrap_or(1) as usize);
        let has_tiles = tags.tile_width.or(tags.tile_height).is_some() || tags.tile_offsets.is_some();
        tags.is_damaged |= all == ifd::Seen::Some
            || tags.strip_offsets.is_some() && has_tiles
            || next_directory.is_none()
            || tags.photometric.is_none()
            || tags.photometric == Some(3) && !tags.has_whole_palette()
            || !per_sample(&tags.bits)
            || !per_sample(&tags.sample_format);
        tags
    }

    fn take(&mut self, entry: ifd::Entry<'a>, endian: Endian) {
        if entry.tag == 700 {
            self.xmp = matches!(entry.kind, 1 | 7).then_some(entry.value);
            return;
        }
        if matches!(entry.tag, 34665 | 34853 | 40965) {
            // Directories of EXIF: a place before the beginning of the file is an error to the reference.
            self.is_odd |= entry.tag == 40965 || matches!(entry.kind, 6 | 8 | 9 | 16);
            return;
        }
        if matches!(entry.tag, 280 | 281 | 340 | 341 | 32996) {
            // Nothing to the reference, but libtiff wants as many as there are samples, all alike.
            let values = entry.numbers(endian).unwrap_or_default();
            let count = self.samples.unwrap_or(1) as usize;
            self.is_damaged |= values.len() != count || values.iter().any(|value| *value != values[0]);
            return;
        }
        let is_ours =
            matches!(entry.tag, 256..=259 | 262 | 266 | 273 | 277..=279 | 284 | 317 | 320 | 322..=325 | 338 | 339);
        if !is_ours {
            return;
        }
        let Some(values) = entry.numbers(endian) else {
            self.is_odd = true;
            return;
        };
        let list = match entry.tag {
            258 => &mut self.bits,
            273 => &mut self.strip_offsets,
            279 => &mut self.strip_lengths,
            320 => {
                // libtiff has to know by then how many colours there should be.
                self.is_damaged |= self.bits.is_none();
                &mut self.colour_map
            }
            324 => &mut self.tile_offsets,
            325 => &mut self.tile_lengths,
            338 => &mut self.extra,
            339 => &mut self.sample_format,
            tag => {
                self.is_odd |= values.len() != 1;
                self.take_one(tag, values[0]);
                return;
            }
        };
        *list = Some(values);
    }

    fn take_one(&mut self, tag: u16, value: u32) {
        match tag {
            256 => self.width = Some(value),
            257 => self.height = Some(value),
            259 => self.compression = value,
            262 => self.photometric = Some(value),
            266 => self.fill_order = value,
            277 => self.samples = Some(value),
            278 => self.rows_per_strip = Some(value),
            284 => {
                self.planar = value == 2;
                self.is_damaged |= !matches!(value, 1 | 2);
            }
            317 => self.predictor = value,
            322 => self.tile_width = Some(value),
            323 => self.tile_height = Some(value),
            _ => {}
        }
    }

    /// Whether there is a colour for each index, as libtiff wants it of indices of less than a byte.
    fn has_whole_palette(&self) -> bool {
        match (self.bits.as_deref(), &self.colour_map) {
            (Some([bits @ 0..8, ..]), Some(colours)) => colours.len() == 3 << bits,
            (bits, _) => bits.is_some(),
        }
    }

    /// What the samples mean. Old JPEG has YCbCr, whatever it says.
    pub(super) fn photometric(&self) -> u32 {
        if self.compression == 6 { 6 } else { self.photometric.unwrap_or(0) }
    }

    pub(super) fn is_tiled(&self) -> bool {
        self.strip_offsets.is_none()
    }

    /// Where strips or tiles are; at least one.
    pub(super) fn offsets(&self) -> Option<&[u32]> {
        self.strip_offsets.as_deref().or(self.tile_offsets.as_deref())
    }

    pub(super) fn lengths(&self) -> &[u32] {
        let lengths = if self.is_tiled() { &self.tile_lengths } else { &self.strip_lengths };
        lengths.as_deref().unwrap_or_default()
    }

    /// The samples of a pixel, as the reference completes them. `None` where it cannot.
    pub(super) fn layout(&self, is_other_compression: bool) -> Option<Samples> {
        let mut bits = self.bits.clone().unwrap_or_else(|| vec![1]);
        let mut extra = self.extra.clone().unwrap_or_default();
        let mut sample_format = self.sample_format.clone().unwrap_or_else(|| vec![1]);
        if sample_format.iter().all(|format| *format == sample_format[0]) {
            sample_format.truncate(1);
        }
        let old_jpeg = is_other_compression && self.compression == 6 && matches!(self.photometric(), 2 | 6);
        let mut samples = self.samples.unwrap_or(if old_jpeg { 3 } else { 1 });
        if self.planar && !extra.is_empty() && extra.iter().all(|kind| *kind == 0) {
            // Planes without a meaning are left out.
            bits.truncate(bits.len().saturating_sub(extra.len()));
            samples = samples.checked_sub(extra.len() as u32)?;
            extra.clear();
        }
        if samples > MAX_SAMPLES {
            return None;
        }
        let samples = samples as usize;
        if samples < bits.len() {
            bits.truncate(samples);
        } else if bits.len() == 1 {
            bits.resize(samples, bits[0]);
        }
        (bits.len() == samples && samples > 0).then_some(Samples { bits, sample_format, extra })
    }
}
