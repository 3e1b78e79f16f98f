//! JPEG by libjpeg-turbo, set as the reference sets it: accurate integer DCT, smooth chroma upsampling.
//!
//! libjpeg's own interface, behind a C shim, because TurboJPEG's mixes up warnings and errors: damaged data that
//! libjpeg gets over is a picture here, as in the reference; data that ends before the last row is an error; data that
//! ends after it is a picture again. Of an MPO file, the first picture is decoded.

mod binding;
mod header;

use binding::{Decoder, Failure};

use super::colour::cmyk_to_rgb;
use super::sniff::Format;
use super::{DecodeError, DecodeLimits, Found, Plan as AnyPlan, Size};

/// What libjpeg keeps besides coefficients: tables, and a few rows of every component before and after upsampling.
const FIXED_SCRATCH_BYTES: usize = 64 << 10;
const SCRATCH_BYTES_PER_COLUMN: usize = 128;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    components: u8,
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

pub(super) fn decode(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    decode_rows(bytes, plan, size, out).map_err(|failure| match failure {
        Failure::Truncated => DecodeError::Truncated(Format::Jpeg),
        Failure::TooManyScans => DecodeError::TooLarge {
            format: Format::Jpeg,
            what: "number of scans",
            value: u64::from(plan.max_scans) + 1,
            limit: u64::from(plan.max_scans),
        },
        Failure::Broken(cause) => DecodeError::corrupt(Format::Jpeg, cause),
    })
}

fn decode_rows(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Result<(), Failure> {
    let mut decoder = Decoder::start(bytes, size.width, size.height, plan.components, plan.max_scans)?;
    if plan.components == 4 {
        let width = size.width as usize;
        let mut row = vec![0; width * 4];
        for out in out.chunks_exact_mut(width * 3) {
            decoder.read(&mut row)?;
            for (rgb, stored) in out.chunks_exact_mut(3).zip(row.chunks_exact(4)) {
                // Stored with 255 for no ink. Files that store it the other way come out inverted, as in the reference.
                rgb.copy_from_slice(&cmyk_to_rgb([255 - stored[0], 255 - stored[1], 255 - stored[2], 255 - stored[3]]));
            }
        }
    } else {
        decoder.read(out)?;
    }
    decoder.finish()
}
