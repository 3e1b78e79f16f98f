//! WebP by libwebp: lossy, lossless, with transparency, and the first frame of an animation.
//!
//! The reference decodes every file as an animation: a canvas of transparent black, on which the first frame is put as
//! it is. Whether transparency counts at all is what the file's header says.

mod binding;

use self::binding::{Demuxer, Failure, FirstFrame, Pixels};
use super::colour::rgba_on_white;
use super::orientation::Orientation;
use super::sniff::Format;
use super::{DecodeError, Found, Plan as AnyPlan, Scratch, Size};

/// Tables, and per pixel what a lossless picture is decoded to first: four bytes of colour. A lossy one needs less.
const FIXED_SCRATCH_BYTES: usize = 1 << 20;
const SCRATCH_BYTES_PER_PIXEL: usize = 4;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) has_alpha: bool,
}

pub(super) fn probe(bytes: &[u8]) -> Result<Found, DecodeError> {
    let demuxer = Demuxer::new(bytes).map_err(refused)?;
    let (height, width) = demuxer.canvas();
    let size = Size { height, width };
    // libwebp's demultiplexer forgives headers that its decoder does not, and the reference asks both.
    let has_alpha = binding::has_alpha(bytes).ok_or_else(|| DecodeError::corrupt(Format::WebP, "a broken header"))?;
    let orientation = Orientation::from_metadata(demuxer.chunk(c"EXIF"), demuxer.chunk(c"XMP "));
    let pixels = usize::try_from(size.pixels()).unwrap_or(usize::MAX);
    let rgba = if has_alpha { 4 } else { 0 };
    Ok(Found {
        size,
        orientation,
        scratch_bytes: pixels.saturating_mul(SCRATCH_BYTES_PER_PIXEL + rgba).saturating_add(FIXED_SCRATCH_BYTES),
        plan: AnyPlan::WebP(Plan { has_alpha }),
    })
}

pub(super) fn decode(
    bytes: &[u8],
    plan: &Plan,
    canvas: Size,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), DecodeError> {
    let demuxer = Demuxer::new(bytes).map_err(refused)?;
    let frame = demuxer.first_frame().ok_or(DecodeError::Truncated(Format::WebP))?;
    let inside =
        |from: u32, length: u32, whole: u32| length > 0 && u64::from(from) + u64::from(length) <= u64::from(whole);
    if demuxer.canvas() != (canvas.height, canvas.width)
        || !inside(frame.top, frame.height, canvas.height)
        || !inside(frame.left, frame.width, canvas.width)
    {
        return Err(DecodeError::corrupt(Format::WebP, "a frame outside the canvas"));
    }
    let row_bytes = canvas.width as usize * 3;
    if (frame.height, frame.width) != (canvas.height, canvas.width) {
        // Transparent black: white where transparency counts.
        out.fill(if plan.has_alpha { 255 } else { 0 });
    }
    let out = &mut out[frame.top as usize * row_bytes + frame.left as usize * 3..];
    if plan.has_alpha {
        decode_on_white(&frame, out, row_bytes, scratch).map_err(refused)
    } else {
        binding::decode(&frame, Pixels::Rgb, out, row_bytes).map_err(refused)
    }
}

fn decode_on_white(
    frame: &FirstFrame<'_>,
    out: &mut [u8],
    row_bytes: usize,
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    let (height, width) = (frame.height as usize, frame.width as usize);
    // libwebp writes to one piece of memory that holds the whole frame, and has no place for white in between.
    let rgba = scratch.bytes(height * width * 4);
    binding::decode(frame, Pixels::Rgba, rgba, width * 4)?;
    for (out, rgba) in out.chunks_mut(row_bytes).zip(rgba.chunks_exact(width * 4)) {
        rgba_on_white(rgba, &mut out[..width * 3]);
    }
    Ok(())
}

fn refused(failure: Failure) -> DecodeError {
    match failure {
        Failure::Truncated => DecodeError::Truncated(Format::WebP),
        Failure::Broken(cause) => DecodeError::corrupt(Format::WebP, cause),
    }
}
