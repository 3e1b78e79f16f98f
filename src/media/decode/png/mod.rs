//! PNG, and the first frame of APNG.
//!
//! The reference reads PNG with a parser of its own that is lenient (no end chunk needed, checksums of image data not
//! looked at) and strict (checksums of all chunks before it) in its own places, and has habits with 16 bits and with
//! transparent colours. A library for PNG is right elsewhere; what one would save us is little beside inflating, for which
//! there are good ones. [`chunks`] does the parsing, [`texts`] finds the orientation, [`data`] inflates the image data,
//! [`mod@rows`] knows where the rows go, [`filter`] undoes their filters, [`pixels`] does the colours.

mod chunks;
mod data;
mod filter;
mod inflate;
mod pixels;
mod rows;
mod texts;

use self::chunks::{Chunks, Frame};
use self::data::Data;
use self::pixels::{ColourMode, Expander};
use self::rows::{Canvas, Rows};
use super::orientation::Orientation;
use super::sniff::Format;
use super::{DecodeError, DecodeLimits, Found, Plan as AnyPlan, Size};

/// The decoders' windows and buffers.
const FIXED_SCRATCH_BYTES: usize = 256 << 10;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    mode: ColourMode,
    expander: Expander,
    interlaced: bool,
    data_at: usize,
    frame: Option<Frame>,
}

impl Plan {
    /// What the colours are stored as, and what is done about them.
    pub(super) fn conversion(&self) -> &'static str {
        match self.mode {
            ColourMode::Grey(_) => "grey, repeated for each colour",
            ColourMode::Grey16 => "16-bit grey, cut off above 255: a picture of full range turns nearly white",
            ColourMode::Rgb => "none: RGB",
            ColourMode::Rgb16 => "16-bit RGB, of which the high bytes are kept",
            ColourMode::Palette(_) => "a palette; its transparent colours are laid on white",
            ColourMode::GreyAlpha => "grey with transparency, laid on white",
            ColourMode::GreyAlpha16 => "16-bit grey with transparency: the high bytes, laid on white",
            ColourMode::Rgba => "RGB with transparency, laid on white",
            ColourMode::Rgba16 => "16-bit RGB with transparency: the high bytes, laid on white",
        }
    }
}

pub(super) fn probe(bytes: &[u8], limits: &DecodeLimits) -> Result<Found, DecodeError> {
    found(chunks::read(bytes, limits)?)
}

/// A PNG inside an icon, for which its transparent colours and its orientation are lost.
pub(super) fn probe_in_icon(bytes: &[u8], limits: &DecodeLimits) -> Result<Found, DecodeError> {
    let chunks = chunks::read(bytes, limits)?;
    found(Chunks { transparency: None, orientation: Orientation::default(), ..chunks })
}

fn found(chunks: Chunks<'_>) -> Result<Found, DecodeError> {
    let expander = Expander::new(chunks.mode, chunks.palette, chunks.transparency)
        .ok_or_else(|| DecodeError::corrupt(Format::Png, "a palette of more than 256 entries"))?;
    let rows = 4 * chunks.mode.row_bytes(chunks.size.width) + 3 * chunks.size.width as usize;
    let plan = Plan {
        mode: chunks.mode,
        expander,
        interlaced: chunks.interlaced,
        data_at: chunks.data_at,
        frame: chunks.frame,
    };
    Ok(Found {
        size: chunks.size,
        orientation: chunks.orientation,
        scratch_bytes: FIXED_SCRATCH_BYTES + rows,
        plan: AnyPlan::Png(Box::new(plan)),
    })
}

pub(super) fn decode(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    let data = Data::new(bytes, plan.data_at);
    if plan.frame.is_some_and(|frame| frame.size != size) {
        fill_with_zero(plan, size, out);
    }
    if data.fill_from_whole(&mut rows(plan, size, out)).is_some() {
        return Ok(());
    }
    let mut rows = rows(plan, size, out);
    data.fill_as_reference(&mut rows)?;
    rows.fill_with_zero();
    Ok(())
}

/// The rows that the image data stands for, where they belong in `out`, which is of this size.
fn rows<'a>(plan: &'a Plan, size: Size, out: &'a mut [u8]) -> Rows<'a> {
    let frame = plan.frame.unwrap_or(Frame { top: 0, left: 0, size });
    // An interlaced frame begins in the corner, wherever it belongs: so the reference has it.
    let (top, left) = if plan.interlaced { (0, 0) } else { (frame.top as usize, frame.left as usize) };
    let row_bytes = size.width as usize * 3;
    let width = frame.size.width as usize * 3;
    let canvas = Canvas { rgb: &mut out[top * row_bytes..], row_bytes, left: left * 3, width };
    Rows::new(&plan.expander, plan.mode, frame.size, plan.interlaced, canvas)
}

/// What the reference shows where there is no data: a stored zero.
fn fill_with_zero(plan: &Plan, size: Size, out: &mut [u8]) {
    let stored = vec![0; plan.mode.row_bytes(size.width)];
    for row in out.chunks_exact_mut(size.width as usize * 3) {
        plan.expander.expand(&stored, row);
    }
}
