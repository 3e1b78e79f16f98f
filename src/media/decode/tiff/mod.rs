//! The first picture of a TIFF: the usual colours, compressions and layouts.
//!
//! What the reference reads and is not followed here goes to the worker as it is: fax, JPEG and rarer compressions,
//! YCbCr, CIELab, BigTIFF, files whose tables do not fit together. What the reference refuses is refused.

mod compression;
mod pixels;
mod tags;

use self::compression::{Compression, Decoder, undo_differences};
use self::pixels::{Alpha, Description, Expander, Kind, Known};
use self::tags::Tags;
use super::bytes::Endian;
use super::orientation::{directory_orientation, xmp_orientation};
use super::raw::palette;
use super::sniff::Format;
use super::{DecodeError, Found, Plan as AnyPlan, Size, ifd, raw};

/// Code tables, and what is small.
const FIXED_SCRATCH_BYTES: usize = 256 << 10;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    expander: Expander,
    /// Byte order of the file.
    endian: Endian,
    compression: Compression,
    differences: bool,
    /// Bits in a byte go from the lowest to the highest.
    reversed_bits: bool,
    /// Samples of a pixel of one plane.
    samples: usize,
    bits_per_sample: usize,
    planes: usize,
    /// Size of a strip or tile; the last strip may be lower.
    chunk: Size,
    tiled: bool,
    /// Where each strip or tile begins, all of one plane before those of the next.
    offsets: Vec<u32>,
    /// Where the file says how long they are; empty without compression.
    lengths: Vec<u32>,
}

/// `None` for what is not followed here.
pub(super) fn probe(bytes: &[u8]) -> Result<Option<Found>, DecodeError> {
    // BigTIFF.
    if bytes.starts_with(b"II\x2b\0") || bytes.starts_with(b"MM\0\x2b") {
        return Ok(None);
    }
    let (endian, at) = ifd::header(bytes).ok_or(DecodeError::Truncated(Format::Tiff))?;
    let tags = Tags::read(bytes, endian, at);
    if tags.is_odd {
        return Ok(None);
    }
    let Some(width) = tags.width else { return Err(broken("no width")) };
    let Some(height) = tags.height else { return Err(broken("no height")) };
    let size = Size { height, width };
    if size.pixels() == 0 {
        return Err(broken("no pixels"));
    }
    let known_compression = Compression::read(tags.compression).ok_or_else(|| broken("an unknown compression"))?;
    let Some(layout) = tags.layout(known_compression.is_none()) else {
        return Err(broken("bits and samples disagree"));
    };
    let description = Description {
        endian,
        photometric: tags.photometric(),
        sample_format: &layout.sample_format,
        fill_order: tags.fill_order,
        bits: &layout.bits,
        extra: &layout.extra,
    };
    let kind = match description.known() {
        None => return Err(broken("an unknown kind of pixels")),
        Some(Known::Other) => return Ok(None),
        Some(Known::Kind(kind)) => kind,
    };
    let Some(compression) = known_compression else { return Ok(None) };
    let compressed = compression != Compression::None;
    // The reference reads each plane as plain bytes, also where there is only one.
    let plain_planes = tags.planar && !compressed;
    let reversed_bits = tags.fill_order == 2 && !plain_planes;
    if reversed_bits && !compressed && matches!(kind, Kind::Index(1 | 2 | 4) | Kind::Grey { depth: 8, inverted: true })
    {
        // Listed by the reference, which has no decoder for them.
        return Err(broken("bits in an order that is not known for their kind"));
    }
    let kind = match kind {
        Kind::Grey { depth, .. } if plain_planes => Kind::Grey { depth, inverted: false },
        // A fourth plane of which the file does not say what it is: libtiff takes it for an alpha, multiplied in.
        Kind::Rgb(Alpha::Straight) if tags.planar && compressed && layout.extra.is_empty() => {
            Kind::Rgb(Alpha::Premultiplied)
        }
        kind => kind,
    };
    if compressed && !ifd::is_proper_header(bytes) {
        // libtiff, which the reference asks for these, forgives less.
        return Err(broken("an improper header"));
    }
    let offsets = match tags.offsets() {
        Some(offsets) => offsets,
        // libtiff may find a way.
        None if compressed => return Ok(None),
        None => return Err(broken("neither strips nor tiles")),
    };
    let samples = layout.bits.len();
    let bits_per_sample = layout.bits[0] as usize;
    let planes = if tags.planar && samples > 1 { samples } else { 1 };
    let tiled = tags.is_tiled();
    let chunk = if tiled {
        match (tags.tile_width, tags.tile_height) {
            (Some(width @ 1..), Some(height @ 1..)) => Size { height, width },
            _ => return Err(broken("tiles without a size")),
        }
    } else {
        Size { height: tags.rows_per_strip.unwrap_or(height).min(height), width }
    };
    let predictor = if compression.has_predictor() { tags.predictor } else { 1 };
    let followed = chunk.height > 0
        // The reference reads planes as bytes, and 16-bit ones only where they are compressed.
        && (planes == 1 || !tiled && (bits_per_sample == 8 || bits_per_sample == 16 && compressed))
        && (planes == 1 || matches!(kind, Kind::Rgb(_) | Kind::Cmyk) && layout.extra.is_empty())
        && !(compressed && (tags.is_damaged || tags.fill_order != 1 || tags.photometric() == 6))
        && (predictor == 1 || predictor == 2 && matches!(bits_per_sample, 8 | 16))
        // Of tiles at the right edge, the reference counts whole bytes a row.
        && !(tiled && !compressed && !(chunk.width as usize * samples * bits_per_sample).is_multiple_of(8))
        && !(plain_planes && planes == 1 && (bits_per_sample != 8 || tiled && tags.photometric() == 6));
    let chunks_across = width.div_ceil(chunk.width) as usize;
    let chunks_down = if followed { height.div_ceil(chunk.height) as usize } else { 0 };
    let count = chunks_across.saturating_mul(chunks_down).saturating_mul(planes);
    let mut offsets = offsets.to_vec();
    if !compressed && chunk == size && !tags.planar {
        // Each would be the whole picture; the reference takes the last, or, of strips that say to be higher, the one furthest
        // behind in the file.
        let are_higher = !tiled && tags.rows_per_strip.is_some_and(|rows| rows > height);
        let taken = if are_higher { offsets.iter().max() } else { offsets.last() };
        offsets = taken.copied().into_iter().collect();
    }
    let lengths = if compressed { tags.lengths().to_vec() } else { Vec::new() };
    // Of an only strip or tile that says to be empty, libtiff guesses the length.
    let is_guessed = compressed && lengths == [0];
    if !followed || offsets.len() != count || compressed && lengths.len() != count || is_guessed {
        return Ok(None);
    }
    let palette = match kind {
        Kind::Index(_) | Kind::IndexAlpha => colour_map(&tags)?,
        _ => raw::Palette::default(),
    };
    let pixel_bytes = (samples * bits_per_sample / 8).max(1);
    let sample_endian = match kind {
        // Libtiff turns samples round where the file is big-endian, and the reference, of these kinds, once more.
        Kind::Signed16 | Kind::Signed32 | Kind::Float32 if compressed => Endian::Little,
        _ => endian,
    };
    let sample_bytes = bits_per_sample.div_ceil(8);
    let plan = Plan {
        expander: Expander { kind, endian: sample_endian, pixel_bytes, sample_bytes, palette },
        endian,
        compression,
        differences: predictor == 2,
        reversed_bits,
        samples: if planes > 1 { 1 } else { samples },
        bits_per_sample,
        planes,
        chunk,
        tiled,
        offsets,
        lengths,
    };
    if compressed && !tiled && tags.rows_per_strip.is_some_and(|rows| rows != u32::MAX && rows > i32::MAX as u32) {
        // One more would say that there is one strip.
        return Err(broken("strips of more than two thousand million rows"));
    }
    if compression == Compression::Lzw
        && plan.data(bytes, 0).is_some_and(|data| matches!(data, [0, second, ..] if second & 1 == 1))
    {
        // Bits in the wrong order: an old mistake that is forgiven by the reference.
        return Ok(None);
    }
    let orientation =
        directory_orientation(bytes, endian, at).or(tags.xmp.and_then(xmp_orientation)).unwrap_or_default();
    let chunk_rows = if compressed { chunk.height } else { chunk.height.min(height) };
    let whole_chunks = plan.planes.saturating_mul(plan.chunk_bytes(chunk_rows));
    let found = Found {
        size,
        orientation,
        scratch_bytes: whole_chunks.saturating_add(FIXED_SCRATCH_BYTES + plan.row_bytes() * 8),
        plan: AnyPlan::Tiff(Box::new(plan)),
    };
    Ok(Some(found))
}

fn broken(cause: &'static str) -> DecodeError {
    DecodeError::corrupt(Format::Tiff, cause)
}

/// The palette: all reds, all greens, all blues, of which the high bytes count.
fn colour_map(tags: &Tags<'_>) -> Result<raw::Palette, DecodeError> {
    let values = tags.colour_map.as_deref().ok_or_else(|| broken("no palette"))?;
    let count = values.len() / 3;
    let byte = |index: usize| (values[index] / 256) as u8;
    let entries: Vec<u8> = (0..count).flat_map(|at| [byte(at), byte(at + count), byte(at + 2 * count)]).collect();
    palette(&entries, raw::Order::Rgb).ok_or_else(|| broken("too large a palette"))
}

impl Plan {
    /// Bytes of a row of a strip or tile, in one plane.
    fn row_bytes(&self) -> usize {
        (self.chunk.width as usize).saturating_mul(self.samples * self.bits_per_sample).div_ceil(8)
    }

    fn chunk_bytes(&self, rows: u32) -> usize {
        self.row_bytes().saturating_mul(rows as usize)
    }

    /// The stored bytes of a strip or tile, of which there may be too few.
    fn data<'a>(&self, bytes: &'a [u8], index: usize) -> Option<&'a [u8]> {
        let at = *self.offsets.get(index)? as usize;
        match self.lengths.get(index) {
            None => bytes.get(at..),
            Some(&length) => {
                // libtiff takes no length at its word that is far beyond what the strip can need.
                let plausible = self.chunk_bytes(self.chunk.height).saturating_mul(10).saturating_add(4096);
                let length = length as usize;
                let length = if length > 1 << 20 && length > plausible { plausible } else { length };
                bytes.get(at..at.checked_add(length)?)
            }
        }
    }

    /// Whether strips are rows of the output as they are, so that they need no other place.
    fn is_identity(&self) -> bool {
        self.expander.is_identity() && self.planes == 1 && !self.tiled
    }

    /// The first `rows` rows of a strip or tile, of which `columns` columns are needed: uncompressed ones where they lie
    /// in the file, the last row perhaps without its padding, and others in `scratch`.
    fn chunk<'a>(
        &self,
        bytes: &'a [u8],
        index: usize,
        rows: u32,
        columns: u32,
        decoder: Option<&mut Decoder>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], DecodeError> {
        if self.compression == Compression::None && !self.reversed_bits {
            return self.uncompressed(bytes, index, rows, columns);
        }
        let rows_there = if self.tiled && self.compression != Compression::None { self.chunk.height } else { rows };
        let length = self.chunk_bytes(rows_there);
        // Before memory is taken for a tile that may be much larger than the picture.
        if !self.data(bytes, index).is_some_and(|data| self.compression.can_fill(data.len(), length)) {
            return Err(DecodeError::Truncated(Format::Tiff));
        }
        scratch.resize(length, 0);
        self.fill(bytes, index, columns, decoder, scratch)?;
        Ok(scratch)
    }

    fn uncompressed<'a>(
        &self,
        bytes: &'a [u8],
        index: usize,
        rows: u32,
        columns: u32,
    ) -> Result<&'a [u8], DecodeError> {
        let last_row = (columns as usize * self.samples * self.bits_per_sample).div_ceil(8);
        let length = self.chunk_bytes(rows - 1) + last_row;
        self.data(bytes, index).and_then(|data| data.get(..length)).ok_or(DecodeError::Truncated(Format::Tiff))
    }

    /// Fills `out`, which is whole rows, with a strip or tile, of whose rows `columns` columns are needed.
    fn fill(
        &self,
        bytes: &[u8],
        index: usize,
        columns: u32,
        decoder: Option<&mut Decoder>,
        out: &mut [u8],
    ) -> Result<(), DecodeError> {
        if let Some(decoder) = decoder {
            let data = self.data(bytes, index).ok_or(DecodeError::Truncated(Format::Tiff))?;
            decoder.fill(data, out).ok_or_else(|| broken("broken compressed data"))?;
        } else {
            let rows = (out.len() / self.row_bytes()) as u32;
            let stored = self.uncompressed(bytes, index, rows, columns)?;
            out[..stored.len()].copy_from_slice(stored);
        }
        if self.reversed_bits {
            out.iter_mut().for_each(|byte| *byte = byte.reverse_bits());
        }
        if self.differences {
            let (samples, sample_bytes) = (self.samples, self.bits_per_sample / 8);
            let rows = out.chunks_exact_mut(self.row_bytes());
            rows.for_each(|row| undo_differences(row, samples, sample_bytes, self.endian));
        }
        Ok(())
    }
}

pub(super) fn decode(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    let rgb_row_bytes = size.width as usize * 3;
    let across = size.width.div_ceil(plan.chunk.width);
    let down = size.height.div_ceil(plan.chunk.height);
    let per_plane = across as usize * down as usize;
    let mut decoder = plan.compression.decoder();
    let mut scratch = vec![Vec::new(); plan.planes];
    let mut pixels = Vec::new();
    for index in 0..per_plane {
        let top = index as u32 / across * plan.chunk.height;
        let left = index as u32 % across * plan.chunk.width;
        let rows = plan.chunk.height.min(size.height - top);
        let columns = plan.chunk.width.min(size.width - left);
        let start = top as usize * rgb_row_bytes + left as usize * 3;
        if plan.is_identity() {
            plan.fill(bytes, index, columns, decoder.as_mut(), &mut out[start..][..rows as usize * rgb_row_bytes])?;
            continue;
        }
        let planes = scratch.iter_mut().enumerate().map(|(number, scratch)| {
            plan.chunk(bytes, number * per_plane + index, rows, columns, decoder.as_mut(), scratch)
        });
        let planes = planes.collect::<Result<Vec<_>, _>>()?;
        for row in 0..rows as usize {
            let target = &mut out[start + row * rgb_row_bytes..][..columns as usize * 3];
            let stored = |plane: &[u8]| row * plan.row_bytes()..((row + 1) * plan.row_bytes()).min(plane.len());
            match &planes[..] {
                [plane] => plan.expander.expand(&plane[stored(plane)], target),
                planes => {
                    interleave(planes.iter().map(|plane| &plane[stored(plane)]), plan.bits_per_sample / 8, &mut pixels);
                    plan.expander.expand(&pixels, target);
                }
            }
        }
    }
    Ok(())
}

/// Makes pixels of rows of planes.
fn interleave<'a>(rows: impl ExactSizeIterator<Item = &'a [u8]>, sample_bytes: usize, pixels: &mut Vec<u8>) {
    let step = rows.len() * sample_bytes;
    for (plane, row) in rows.enumerate() {
        pixels.resize(row.len() / sample_bytes * step, 0);
        let targets = pixels.chunks_exact_mut(step);
        for (pixel, sample) in targets.zip(row.chunks_exact(sample_bytes)) {
            pixel[plane * sample_bytes..][..sample_bytes].copy_from_slice(sample);
        }
    }
}
