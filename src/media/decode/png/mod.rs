//! PNG, and the first frame of APNG, by the `png` crate for the image data and rules of our own for the rest.
//!
//! The reference reads PNG with a parser of its own that is lenient (no end chunk needed, checksums of image data not
//! looked at) and strict (checksums of all chunks before it) in its own places, and has habits with 16 bits and with
//! transparent colours. [`chunks`] does the parsing, [`texts`] finds the orientation, [`data`] hands the decoder nothing but image data, [`pixels`] does
//! the colours.

mod chunks;
mod data;
mod inflate;
mod pixels;
mod texts;

use png::{DecodeOptions, Decoder, DecodingError, Limits, Reader, Transformations};

use self::chunks::{Chunks, Frame};
use self::data::Data;
use self::pixels::{ColourMode, Expander};
use super::orientation::Orientation;
use super::sniff::Format;
use super::{DecodeError, DecodeLimits, Found, Plan as AnyPlan, Size};

/// The decoder's window and buffers.
const FIXED_SCRATCH_BYTES: usize = 512 << 10;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    mode: ColourMode,
    expander: Expander,
    interlaced: bool,
    data_at: usize,
    cut: bool,
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
        cut: chunks.cut,
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
    let whole = Frame { top: 0, left: 0, size };
    let frame = plan.frame.unwrap_or(whole);
    let row_bytes = size.width as usize * 3;
    if frame.size != size || plan.interlaced {
        // What the data does not reach is what a stored zero is.
        fill_with_zero(plan, out, row_bytes);
    }
    let left = frame.left as usize * 3;
    let canvas = Canvas {
        rgb: &mut out[frame.top as usize * row_bytes..],
        row_bytes,
        left,
        width: frame.size.width as usize * 3,
    };
    let data = Data::new(bytes, plan.data_at, frame.size, plan.mode, plan.interlaced);
    decode_data(data, plan, frame.size, canvas).map_err(|error| match error {
        DecodingError::IoError(_) => DecodeError::Truncated(Format::Png),
        error => DecodeError::corrupt(Format::Png, error.to_string()),
    })?;
    if plan.cut && !inflate::reaches_its_end(bytes, plan.data_at, all_but_last_row(plan, frame.size)) {
        return Err(DecodeError::Truncated(Format::Png));
    }
    Ok(())
}

/// Bytes of the uncompressed image data before its last row; each row has a byte more, which names its filter.
fn all_but_last_row(plan: &Plan, size: Size) -> usize {
    let row = |columns: usize| 1 + plan.mode.row_bytes(columns as u32);
    if !plan.interlaced {
        return (size.height as usize - 1) * row(size.width as usize);
    }
    let passes = PASSES.iter().map(|pass| (pass.rows(size), pass.columns(size)));
    let mut passes: Vec<_> = passes.filter(|&(rows, columns)| rows > 0 && columns > 0).collect();
    if let Some((rows, _)) = passes.last_mut() {
        *rows -= 1;
    }
    passes.into_iter().map(|(rows, columns)| rows * row(columns)).sum()
}

/// The part of the output that the data fills.
struct Canvas<'a> {
    rgb: &'a mut [u8],
    row_bytes: usize,
    /// Bytes left of the part in each row.
    left: usize,
    /// Bytes of a row of the part.
    width: usize,
}

impl Canvas<'_> {
    fn row(&mut self, row: usize) -> &mut [u8] {
        let start = row * self.row_bytes + self.left;
        &mut self.rgb[start..start + self.width]
    }
}

fn decode_data(data: Data<'_>, plan: &Plan, size: Size, mut canvas: Canvas<'_>) -> Result<(), DecodingError> {
    let mut options = DecodeOptions::default();
    options.set_ignore_crc(true);
    options.set_ignore_adler32(false);
    let mut decoder = Decoder::new_with_options(data, options);
    // The caller has counted what a row needs.
    decoder.set_limits(Limits { bytes: usize::MAX });
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder.read_info()?;
    if plan.interlaced {
        for pass in &PASSES {
            pass.decode(&mut reader, plan, size, &mut canvas)?;
        }
    } else if plan.expander.is_identity() {
        for row in 0..size.height as usize {
            reader.read_row(canvas.row(row))?;
        }
    } else {
        let mut stored = vec![0; plan.mode.row_bytes(size.width)];
        for row in 0..size.height as usize {
            reader.read_row(&mut stored)?;
            plan.expander.expand(&stored, canvas.row(row));
        }
    }
    Ok(())
}

/// One of the seven passes of Adam7: every how many rows and columns, and from which on.
struct Pass {
    row_step: usize,
    first_row: usize,
    column_step: usize,
    first_column: usize,
}

const fn pass(row_step: usize, first_row: usize, column_step: usize, first_column: usize) -> Pass {
    Pass { row_step, first_row, column_step, first_column }
}

const PASSES: [Pass; 7] = [
    pass(8, 0, 8, 0),
    pass(8, 0, 8, 4),
    pass(8, 4, 4, 0),
    pass(4, 0, 4, 2),
    pass(4, 2, 2, 0),
    pass(2, 0, 2, 1),
    pass(2, 1, 1, 0),
];

impl Pass {
    fn rows(&self, size: Size) -> usize {
        (size.height as usize).saturating_sub(self.first_row).div_ceil(self.row_step)
    }

    fn columns(&self, size: Size) -> usize {
        (size.width as usize).saturating_sub(self.first_column).div_ceil(self.column_step)
    }

    fn decode(
        &self,
        reader: &mut Reader<Data<'_>>,
        plan: &Plan,
        size: Size,
        canvas: &mut Canvas<'_>,
    ) -> Result<(), DecodingError> {
        let columns = self.columns(size);
        if columns == 0 {
            return Ok(());
        }
        let mut stored = vec![0; plan.mode.row_bytes(columns as u32)];
        let mut pixels = vec![0; columns * 3];
        for row in (self.first_row..size.height as usize).step_by(self.row_step) {
            reader.read_row(&mut stored)?;
            plan.expander.expand(&stored, &mut pixels);
            let targets = canvas.row(row)[self.first_column * 3..].chunks_mut(3 * self.column_step);
            targets.zip(pixels.chunks_exact(3)).for_each(|(target, pixel)| target[..3].copy_from_slice(pixel));
        }
        Ok(())
    }
}

fn fill_with_zero(plan: &Plan, out: &mut [u8], row_bytes: usize) {
    let stored = vec![0; plan.mode.row_bytes((row_bytes / 3) as u32)];
    for row in out.chunks_exact_mut(row_bytes) {
        plan.expander.expand(&stored, row);
    }
}
