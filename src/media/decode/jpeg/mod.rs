//! JPEG by libjpeg-turbo, set as the reference sets it: accurate integer DCT, smooth chroma upsampling.
//!
//! libjpeg's own interface, behind a C shim, because TurboJPEG's mixes up warnings and errors: damaged data that
//! libjpeg gets over is a picture here, as in the reference; data that ends before the last row is an error; data that
//! ends after it is a picture again. Of an MPO file, the first picture is decoded.

mod binding;
mod header;

use binding::{Decoder, Failure};

use super::colour::{cmyk_to_rgb, grey_to_rgb};
use super::orientation::Orientation;
use super::sniff::Format;
use super::turn::{BAND_ROWS, Turner, turner_bytes};
use super::{DecodeError, DecodeLimits, Found, Plan as AnyPlan, Size};

/// What is kept besides coefficients: tables, and a few rows of every component before, during and after upsampling.
const FIXED_SCRATCH_BYTES: usize = 64 << 10;
const SCRATCH_BYTES_PER_COLUMN: usize = 192;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) components: u8,
    max_scans: u32,
    /// As the file stores it.
    full: Size,
    /// Of the full size, in which it is decoded.
    denominator: u32,
}

pub(super) fn probe(bytes: &[u8], limits: &DecodeLimits) -> Result<Found, DecodeError> {
    let header = header::read(bytes)?;
    let max_scans = u32::try_from(limits.max_scan_pixels / header.size.pixels().max(1)).unwrap_or(u32::MAX).max(1);
    let coefficients = if header.many_scans { header.coefficient_bytes } else { 0 };
    let rows = FIXED_SCRATCH_BYTES + header.size.width as usize * SCRATCH_BYTES_PER_COLUMN;
    Ok(Found {
        size: header.size,
        orientation: header.orientation,
        scratch_bytes: coefficients.saturating_add(rows),
        plan: AnyPlan::Jpeg(Plan { components: header.components, max_scans, full: header.size, denominator: 1 }),
    })
}

/// libjpeg's vector code writes rows that begin at a multiple of 32 past the processor's cache, to memory. What is to be read
/// at once should not begin there: behind the start of an allocation by this.
pub const CACHED_OFFSET_BYTES: usize = 1;

/// What turning on its side costs, beyond decoding.
pub(super) fn turning_bytes(plan: &Plan, size: Size) -> usize {
    let Band { row_bytes, rows, .. } = Band::new(plan, size);
    (row_bytes * rows + BAND_ALIGNMENT_BYTES * 2).saturating_add(turner_bytes(size))
}

/// Rows that are turned together, as they are decoded.
struct Band {
    pixel_bytes: u8,
    row_bytes: usize,
    rows: usize,
}

impl Band {
    fn new(plan: &Plan, size: Size) -> Self {
        let rows = BAND_ROWS.min(size.height as usize);
        if plan.components != 3 {
            return Self { pixel_bytes: 3, row_bytes: size.row_bytes(), rows };
        }
        // Words are quicker to turn, and libjpeg makes them as quickly as three bytes. An odd number of lines apart, rows lie in
        // different parts of the processor's cache.
        Self { pixel_bytes: 4, row_bytes: (size.width as usize * 4).next_multiple_of(64) | 64, rows }
    }
}

/// A band begins half of this behind a multiple of it: aligned for the instructions that read it, and not where
/// [`CACHED_OFFSET_BYTES`] says that it should not.
const BAND_ALIGNMENT_BYTES: usize = 32;

pub(super) fn decode(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    let mut decode = || {
        let mut rows = Rows::start(bytes, plan, size, 3, size.row_bytes())?;
        rows.read(out)?;
        rows.decoder.finish()
    };
    decode().map_err(|failure| plan.refused(failure))
}

/// Decodes into `out` for an orientation that swaps the sides.
pub(super) fn decode_turned(
    bytes: &[u8],
    plan: &Plan,
    size: Size,
    orientation: Orientation,
    out: &mut [u8],
) -> Result<(), DecodeError> {
    let Band { pixel_bytes, row_bytes, rows: band_rows } = Band::new(plan, size);
    let (height, band_bytes) = (size.height as usize, row_bytes * band_rows);
    let mut scratch = vec![0; band_bytes + BAND_ALIGNMENT_BYTES * 2];
    let start = scratch.as_ptr().align_offset(BAND_ALIGNMENT_BYTES) + BAND_ALIGNMENT_BYTES / 2;
    let band = &mut scratch[start..start + band_bytes];
    let mut turner = Turner::new(orientation, size, out);
    let mut decode = || {
        let mut rows = Rows::start(bytes, plan, size, pixel_bytes, row_bytes)?;
        for top in (0..height).step_by(BAND_ROWS) {
            let band = &mut band[..BAND_ROWS.min(height - top) * row_bytes];
            rows.read(band)?;
            if pixel_bytes == 4 {
                turner.turn::<4>(band, row_bytes);
            } else {
                turner.turn::<3>(band, row_bytes);
            }
        }
        rows.decoder.finish()
    };
    decode().map_err(|failure| plan.refused(failure))
}

/// Decodes as many rows at a time as fit into `band`, at least one, and hands them on.
pub(super) fn decode_in_bands(
    bytes: &[u8],
    plan: &Plan,
    size: Size,
    band: &mut [u8],
    each: &mut dyn FnMut(&[u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let refused = |failure| plan.refused(failure);
    let rows_in_band = band.len() / size.row_bytes();
    if rows_in_band == 0 {
        return Err(DecodeError::OutputLength { expected: size.row_bytes(), actual: band.len() });
    }
    let mut rows = Rows::start(bytes, plan, size, 3, size.row_bytes()).map_err(refused)?;
    let mut left = size.height as usize;
    while left > 0 {
        let count = rows_in_band.min(left);
        let band = &mut band[..count * size.row_bytes()];
        rows.read(band).map_err(refused)?;
        each(band)?;
        left -= count;
    }
    rows.decoder.finish().map_err(refused)
}

impl Plan {
    /// The same for a half, a quarter or an eighth of the size, and that size. libjpeg transforms fewer coefficients then.
    pub(super) fn reduced(&self, denominator: u32) -> (Self, Size) {
        let Size { height, width } = self.full;
        let size = Size { height: height.div_ceil(denominator), width: width.div_ceil(denominator) };
        (Plan { denominator, ..self.clone() }, size)
    }

    fn refused(&self, failure: Failure) -> DecodeError {
        match failure {
            Failure::Truncated => DecodeError::Truncated(Format::Jpeg),
            Failure::TooManyScans => DecodeError::TooLarge {
                format: Format::Jpeg,
                what: "number of scans",
                value: u64::from(self.max_scans) + 1,
                limit: u64::from(self.max_scans),
            },
            Failure::Broken(cause) => DecodeError::corrupt(Format::Jpeg, cause),
        }
    }
}

/// Rows of RGB, whatever the file has; of colours also with a fourth byte that means nothing.
struct Rows<'data> {
    decoder: Decoder<'data>,
    width: usize,
    components: usize,
    /// A few rows of grey or of four components; empty for other files.
    stored: Vec<u8>,
}

/// As many as libjpeg hands out together.
const STORED_ROWS: usize = 16;

impl<'data> Rows<'data> {
    /// Of files with other components than three, pixels have three bytes and follow each other without a gap.
    fn start(bytes: &'data [u8], plan: &Plan, size: Size, pixel_bytes: u8, row_bytes: usize) -> Result<Self, Failure> {
        let (width, components) = (size.width as usize, usize::from(plan.components));
        let decoder = match components {
            3 => Decoder::start(bytes, plan, pixel_bytes, row_bytes)?,
            _ => Decoder::start(bytes, plan, plan.components, width * components)?,
        };
        let stored = if components == 3 { Vec::new() } else { vec![0; STORED_ROWS * width * components] };
        Ok(Self { decoder, width, components, stored })
    }

    fn read(&mut self, out: &mut [u8]) -> Result<(), Failure> {
        if self.components == 3 {
            return self.decoder.read(out);
        }
        for rgb in out.chunks_mut(STORED_ROWS * self.width * 3) {
            let stored = &mut self.stored[..rgb.len() / 3 * self.components];
            self.decoder.read(stored)?;
            if self.components == 1 {
                grey_to_rgb(stored, rgb);
                continue;
            }
            for (rgb, inks) in rgb.as_chunks_mut::<3>().0.iter_mut().zip(stored.as_chunks::<4>().0) {
                // Stored with 255 for no ink. Files that store it the other way come out inverted, as in the reference.
                *rgb = cmyk_to_rgb(inks.map(|ink| 255 - ink));
            }
        }
        Ok(())
    }
}
