//! BMP with its file header and without (a DIB), and the bitmaps inside ICO: 1, 4, 8, 16, 24 and 32 bits, bit fields of
//! the usual shapes, run lengths.
//!
//! As in the reference, 32-bit pixels have alpha only where bit fields say so, and a palette that is a ramp of greys is
//! taken for no palette: the pixels are then greys (or, with two colours, single bits), whatever their depth.

use super::bytes::Endian::Little;
use super::orientation::Orientation;
use super::raw::{Layout, Order, Rows, palette};
use super::sniff::{Format, is_dib};
use super::{DecodeError, Found, Plan as AnyPlan, Size};

/// Rows of the picture as it is found, and palettes.
const FIXED_SCRATCH_BYTES: usize = 16 << 10;

const RAW: u32 = 0;
const RLE8: u32 = 1;
const RLE4: u32 = 2;
const BIT_FIELDS: u32 = 3;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) rows: Rows,
    run_lengths: Option<RunLengths>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunLengths {
    Nibbles,
    Bytes,
}

/// A bitmap header and what follows from it.
pub(super) struct Bitmap {
    pub(super) size: Size,
    pub(super) plan: Plan,
}

pub(super) fn probe(bytes: &[u8]) -> Result<Found, DecodeError> {
    let bitmap = if is_dib(bytes) {
        read(bytes, 0, 0, Format::Bmp)?
    } else {
        let offset = Little.u32(bytes, 10).ok_or(DecodeError::Truncated(Format::Bmp))?;
        read(bytes, 14, offset as usize, Format::Bmp)?
    };
    let run_lengths = bitmap.plan.run_lengths.is_some();
    // Runs are undone into indices first.
    let indices = if run_lengths { usize::try_from(bitmap.size.pixels()).unwrap_or(usize::MAX) } else { 0 };
    Ok(Found {
        size: bitmap.size,
        orientation: Orientation::default(),
        scratch_bytes: indices.saturating_add(FIXED_SCRATCH_BYTES),
        plan: AnyPlan::Bmp(bitmap.plan),
    })
}

pub(super) fn decode(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    decode_bitmap(bytes, plan, size, out).ok_or(DecodeError::Truncated(Format::Bmp))
}

/// Decodes without a file header; `None` where the data ends early.
pub(super) fn decode_bitmap(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Option<()> {
    match plan.run_lengths {
        None => plan.rows.decode(bytes, size.width, out),
        Some(kind) => {
            let indices = undo_run_lengths(bytes, plan.rows.at, kind, size)?;
            let rows = Rows { at: 0, stride: size.width as usize, ..plan.rows.clone() };
            rows.decode(&indices, size.width, out)
        }
    }
}

/// Reads the bitmap header at `at`. `pixels_at` is where the file header says that the pixels are, 0 if there is none.
pub(super) fn read(bytes: &[u8], at: usize, pixels_at: usize, format: Format) -> Result<Bitmap, DecodeError> {
    let broken = |cause: &'static str| DecodeError::corrupt(format, cause);
    let truncated = || DecodeError::Truncated(format);
    let header_bytes = Little.u32(bytes, at).ok_or_else(truncated)? as usize;
    if !matches!(header_bytes, 12 | 40 | 52 | 56 | 64 | 108 | 124) {
        return Err(broken("an unknown header"));
    }
    let header = bytes.get(at..at + header_bytes).ok_or_else(truncated)?;
    let word = |at| Little.u16(header, at).map_or(0, u32::from);
    let double = |at| Little.u32(header, at).unwrap_or(0);
    let old = header_bytes == 12;
    let top_down = !old && header[11] == 0xff;
    let (width, height, bits, compression, colours) = if old {
        (word(4), word(6), word(10), RAW, 0)
    } else {
        let height = if top_down { double(8).wrapping_neg() } else { double(8) };
        (double(4), height, word(14), double(16), double(32))
    };
    let size = Size { height, width };
    if size.pixels() == 0 || height > i32::MAX as u32 || width > i32::MAX as u32 {
        return Err(broken("no size"));
    }
    let mut after_header = at + header_bytes;
    let entry_bytes = if old { 3 } else { 4 };
    let colours = match colours {
        0 => 1u64 << bits.min(32),
        colours => colours.into(),
    };
    let layout = match (compression, bits) {
        (BIT_FIELDS, _) => {
            // Old headers are followed by the masks, younger ones contain them.
            let masks_at = at + 40;
            after_header = after_header.max(at + 52);
            let mask = |index: usize| Little.u32(bytes, masks_at + index * 4).ok_or_else(truncated);
            let alpha = if header_bytes >= 56 { mask(3)? } else { 0 };
            bit_fields(bits, [mask(0)?, mask(1)?, mask(2)?], alpha).ok_or_else(|| broken("unknown bit fields"))?
        }
        (RAW | RLE8 | RLE4, 1 | 4 | 8) => {
            if colours > 65_536 {
                return Err(broken("a palette of more than 65,536 colours"));
            }
            let length = colours as usize * entry_bytes;
            let stored = &bytes[after_header.min(bytes.len())..(after_header + length).min(bytes.len())];
            after_header = (after_header + length).min(bytes.len());
            // Runs are of whole bytes, whatever the depth.
            let depth = if compression == RAW { Some(bits as u8) } else { None };
            indexed(depth, stored, entry_bytes, colours as usize).ok_or_else(|| broken("too large a palette"))?
        }
        (RAW, 16) => Layout::Bgr555,
        (RAW, 24) => Layout::Bytes(Order::Bgr),
        (RAW, 32) => Layout::Bytes(Order::BGRX),
        _ => return Err(broken("an unknown compression or depth")),
    };
    let run_lengths = match compression {
        RLE8 => Some(RunLengths::Bytes),
        RLE4 => Some(RunLengths::Nibbles),
        _ => None,
    };
    let pixels_at = match pixels_at {
        0 => after_header,
        // Some writers do not count the palette.
        offset if offset == 14 + header_bytes && bits <= 8 => offset + entry_bytes * colours as usize,
        offset => offset,
    };
    let stride = (width as usize * bits as usize).div_ceil(32) * 4;
    if run_lengths.is_none() && stride < layout.row_bytes(width) {
        return Err(broken("rows that overlap"));
    }
    let rows = Rows { layout, at: pixels_at, stride, bottom_up: !top_down };
    Ok(Bitmap { size, plan: Plan { rows, run_lengths } })
}

/// The layout of indices of a depth, or of bytes, by the palette as it is stored. `None` if it is too large.
fn indexed(depth: Option<u8>, stored: &[u8], entry_bytes: usize, colours: usize) -> Option<Layout> {
    let ramp = |index: usize| if colours == 2 { (index * 255) as u8 } else { index as u8 };
    let is_ramp = (0..colours).all(|index| {
        stored.get(index * entry_bytes..index * entry_bytes + 3).is_some_and(|entry| entry == [ramp(index); 3])
    });
    match (is_ramp, colours) {
        (true, ..=2) if depth.is_some() => Some(Layout::bits(0, 255)),
        // Bytes that were made of bits: all but 0 are set.
        (true, ..=2) => {
            Some(Layout::Index(8, (0..=255).map(|byte: u8| [if byte == 0 { 0 } else { 255 }; 3]).collect()))
        }
        (true, _) => Some(Layout::grey()),
        (false, _) => {
            let order = if entry_bytes == 4 { Order::BGRX } else { Order::Bgr };
            palette(stored, order).map(|palette| Layout::Index(depth.unwrap_or(8), palette))
        }
    }
}

/// The bit fields that the reference knows.
fn bit_fields(bits: u32, masks: [u32; 3], alpha: u32) -> Option<Layout> {
    let four = |order| Some(Layout::Bytes(Order::Four(order)));
    let with_alpha = |order| Some(Layout::Bytes(Order::FourWithAlpha(order)));
    match (bits, masks, alpha) {
        (32, [0xff_0000, 0xff00, 0xff], 0) => four([2, 1, 0]),
        (32, [0xff00_0000, 0xff_0000, 0xff00], 0) => four([3, 2, 1]),
        (32, [0xff00_0000, 0xff00, 0xff], 0) => four([3, 1, 0]),
        (32, [0xff00_0000, 0xff_0000, 0xff00], 0xff) => with_alpha([3, 2, 1, 0]),
        (32, [0xff, 0xff00, 0xff_0000], 0xff00_0000) => with_alpha([0, 1, 2, 3]),
        (32, [0xff_0000, 0xff00, 0xff], 0xff00_0000) | (32, [0, 0, 0], 0) => with_alpha([2, 1, 0, 3]),
        (32, [0xff00_0000, 0xff00, 0xff], 0xff_0000) => with_alpha([3, 1, 0, 2]),
        (24, [0xff_0000, 0xff00, 0xff], _) => Some(Layout::Bytes(Order::Bgr)),
        (16, [0xf800, 0x7e0, 0x1f], _) => Some(Layout::Bgr565),
        (16, [0x7c00, 0x3e0, 0x1f], _) => Some(Layout::Bgr555),
        _ => None,
    }
}

/// Indices, a byte each, row after row; `None` where the data ends before the picture does.
fn undo_run_lengths(bytes: &[u8], at: usize, kind: RunLengths, size: Size) -> Option<Vec<u8>> {
    // A few bytes may skip gigabytes: whether the data suffices is seen before memory is taken.
    each_stretch(bytes, at, kind, size, |_, _| {})?;
    let mut indices: Vec<u8> = Vec::with_capacity(size.pixels() as usize);
    each_stretch(bytes, at, kind, size, |stretch, count| match stretch {
        Stretch::Zeros => indices.resize(indices.len() + count, 0),
        Stretch::Bytes(literal) => indices.extend(literal),
        Stretch::Nibbles(literal) => {
            indices.extend(literal.iter().flat_map(|pair| [pair >> 4, pair & 15]).take(count));
        }
        Stretch::Run(pair) => indices.extend(pair.iter().cycle().take(count)),
    })?;
    Some(indices)
}

/// Indices of one piece of run-length data.
enum Stretch<'a> {
    Zeros,
    Bytes(&'a [u8]),
    Nibbles(&'a [u8]),
    /// One after the other, again and again.
    Run([u8; 2]),
}

/// Calls `each` with what comes, and how many indices it is; `None` where the data ends before the picture does.
fn each_stretch<'a>(
    bytes: &'a [u8],
    at: usize,
    kind: RunLengths,
    size: Size,
    mut each: impl FnMut(Stretch<'a>, usize),
) -> Option<()> {
    let width = size.width as usize;
    let length = width * size.height as usize;
    let (mut at, mut filled, mut column) = (at, 0usize, 0);
    while filled < length {
        let &[count, value] = bytes.get(at..)?.first_chunk::<2>()?;
        at += 2;
        let (stretch, count) = match (count, value) {
            (0, 0) => {
                column = 0;
                (Stretch::Zeros, filled.next_multiple_of(width) - filled)
            }
            (0, 1) => return None,
            (0, 2) => {
                let &[right, up] = bytes.get(at..)?.first_chunk::<2>()?;
                at += 2;
                let skipped = (usize::from(right) + usize::from(up) * width).min(length - filled);
                column = (filled + skipped) % width;
                (Stretch::Zeros, skipped)
            }
            (0, count) => {
                let wanted = usize::from(count).min(length - filled);
                let stored = if kind == RunLengths::Nibbles { wanted.div_ceil(2) } else { wanted };
                let literal = bytes.get(at..at + stored)?;
                at = (at + stored).next_multiple_of(2);
                column += usize::from(count);
                match kind {
                    RunLengths::Bytes => (Stretch::Bytes(literal), wanted),
                    RunLengths::Nibbles => (Stretch::Nibbles(literal), wanted),
                }
            }
            (count, value) => {
                let count = usize::from(count).min(width.saturating_sub(column));
                column += count;
                match kind {
                    RunLengths::Bytes => (Stretch::Run([value, value]), count),
                    RunLengths::Nibbles => (Stretch::Run([value >> 4, value & 15]), count),
                }
            }
        };
        each(stretch, count);
        filled += count;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs() {
        let size = Size { height: 2, width: 4 };
        let runs = [3, 7, 0, 0, 0, 4, 1, 2, 3, 4];
        assert_eq!(undo_run_lengths(&runs, 0, RunLengths::Bytes, size).unwrap(), [7, 7, 7, 0, 1, 2, 3, 4]);
        assert_eq!(
            undo_run_lengths(&[3, 0x12, 0, 0, 4, 0x34], 0, RunLengths::Nibbles, size).unwrap(),
            [1, 2, 1, 0, 3, 4, 3, 4]
        );
        assert_eq!(undo_run_lengths(&[3, 7, 0, 1], 0, RunLengths::Bytes, size), None);
    }
}
