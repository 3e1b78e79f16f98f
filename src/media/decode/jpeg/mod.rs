//! JPEG by libjpeg-turbo, set as the reference sets it: accurate integer DCT, smooth chroma upsampling.
//!
//! libjpeg's own interface, behind a C shim, because TurboJPEG's mixes up warnings and errors: damaged data that
//! libjpeg gets over is a picture here, as in the reference; data that ends before the last row is an error; data that
//! ends after it is a picture again. Of an MPO file, the first picture is decoded.

mod binding;
mod header;

use binding::{Decoder, Failure};

use super::colour::cmyk_to_rgb;
use super::orientation::Orientation;
use super::sniff::Format;
use super::{DecodeError, DecodeLimits, Found, Plan as AnyPlan, Size};

/// What libjpeg keeps besides coefficients: tables, and a few rows of every component before and after upsampling.
const FIXED_SCRATCH_BYTES: usize = 64 << 10;
const SCRATCH_BYTES_PER_COLUMN: usize = 128;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) components: u8,
    max_scans: u32,
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
        plan: AnyPlan::Jpeg(Plan { components: header.components, max_scans }),
    })
}

/// Rows that are decoded before they are turned together.
const BAND_ROWS: usize = 64;

/// What turning on its side costs, beyond decoding.
pub(super) fn turning_bytes(size: Size) -> usize {
    size.width as usize * 3 * BAND_ROWS
}

pub(super) fn decode(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    let mut decode = || {
        let mut rows = Rows::start(bytes, plan, size)?;
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
    let (height, width) = (size.height as usize, size.width as usize);
    let mut band = vec![0; BAND_ROWS.min(height) * width * 3];
    let mut decode = || {
        let mut rows = Rows::start(bytes, plan, size)?;
        for top in (0..height).step_by(BAND_ROWS) {
            let band = &mut band[..BAND_ROWS.min(height - top) * width * 3];
            rows.read(band)?;
            orientation.turn(band, top, width, out);
        }
        rows.decoder.finish()
    };
    decode().map_err(|failure| plan.refused(failure))
}

impl Plan {
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

/// Rows of RGB, whatever the file has.
struct Rows<'data> {
    decoder: Decoder<'data>,
    width: usize,
    /// A row of four components; empty for other files.
    inks: Vec<u8>,
}

impl<'data> Rows<'data> {
    fn start(bytes: &'data [u8], plan: &Plan, size: Size) -> Result<Self, Failure> {
        let decoder = Decoder::start(bytes, size.width, size.height, plan.components, plan.max_scans)?;
        let width = size.width as usize;
        let inks = if plan.components == 4 { vec![0; width * 4] } else { Vec::new() };
        Ok(Self { decoder, width, inks })
    }

    fn read(&mut self, out: &mut [u8]) -> Result<(), Failure> {
        if self.inks.is_empty() {
            return self.decoder.read(out);
        }
        for row in out.chunks_exact_mut(self.width * 3) {
            self.decoder.read(&mut self.inks)?;
            for (rgb, inks) in row.as_chunks_mut::<3>().0.iter_mut().zip(self.inks.as_chunks::<4>().0) {
                // Stored with 255 for no ink. Files that store it the other way come out inverted, as in the reference.
                *rgb = cmyk_to_rgb(inks.map(|ink| 255 - ink));
            }
        }
        Ok(())
    }
}
