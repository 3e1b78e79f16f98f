//! TGA: colour maps, greys, 16, 24 and 32 bits, with and without run lengths.

use super::bytes::Endian::Little;
use super::orientation::Orientation;
use super::raw::{Layout, Order, Rows, palette, palette_of_words};
use super::sniff::Format;
use super::{DecodeError, Found, Plan as AnyPlan, Size};

const FIXED_SCRATCH_BYTES: usize = 16 << 10;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    rows: Rows,
    run_lengths: bool,
}

/// `None` for what the reference reads in ways of its own.
pub(super) fn probe(bytes: &[u8]) -> Result<Option<Found>, DecodeError> {
    let broken = |cause: &'static str| DecodeError::corrupt(Format::Tga, cause);
    let header: &[u8; 18] = bytes.first_chunk().ok_or(DecodeError::Truncated(Format::Tga))?;
    let word = |at: usize| Little.u16(header, at).unwrap_or(0);
    let size = Size { height: word(14).into(), width: word(12).into() };
    let (kind, depth, flags) = (header[2], header[16], header[17]);
    let mapped = header[1] == 1;
    let mut at = 18 + usize::from(header[0]);
    let mut map = None;
    if mapped {
        let (start, count) = (usize::from(word(3)), usize::from(word(5)));
        let entry_bytes = match header[7] {
            16 => 2,
            24 => 3,
            32 => 4,
            _ => return Err(broken("an unknown depth of the colour map")),
        };
        let end = bytes.len().min(at + count * entry_bytes);
        let mut stored = vec![0; start * entry_bytes];
        stored.extend(&bytes[at.min(bytes.len())..end]);
        at += count * entry_bytes;
        let colours = match entry_bytes {
            2 => palette_of_words(&stored),
            3 => palette(&stored, Order::Bgr),
            _ => palette(&stored, Order::BGRX),
        };
        map = Some(colours.ok_or_else(|| broken("a colour map of more than 256 colours"))?);
    }
    let layout = match (kind & 7, depth, map) {
        // A map that belongs to greys is applied to them nevertheless.
        (1 | 3, 8, Some(map)) => Layout::Index(8, map),
        (3, 8, None) => Layout::grey(),
        (3, 1, None) if kind == 3 => Layout::bits(0, 255),
        (3, 16, None) => Layout::GreyAlpha,
        (2, 16, None) => opaque_by_footer(bytes, Layout::Bgra5551, Layout::Bgr555),
        (2, 24, None) => Layout::Bytes(Order::Bgr),
        (2, 32, None) => opaque_by_footer(bytes, Layout::Bytes(Order::BGRA), Layout::Bytes(Order::BGRX)),
        (3, 16, Some(_)) => return Ok(None),
        _ => return Err(broken("a kind and depth that do not go together")),
    };
    let rows = Rows { stride: layout.row_bytes(size.width), layout, at, bottom_up: flags & 0x20 == 0 };
    let orientation = if flags & 0x10 != 0 { Orientation::FlipHorizontal } else { Orientation::Upright };
    let scratch_bytes = FIXED_SCRATCH_BYTES + rows.stride;
    Ok(Some(Found { size, orientation, scratch_bytes, plan: AnyPlan::Tga(Plan { rows, run_lengths: kind & 8 != 0 }) }))
}

/// The file's extension area can say that alpha is no alpha.
fn opaque_by_footer(bytes: &[u8], with_alpha: Layout, opaque: Layout) -> Layout {
    let says_so = || {
        let footer = bytes.last_chunk::<26>()?;
        if !footer.ends_with(b"TRUEVISION-XFILE.\0") {
            return None;
        }
        let extension = Little.u32(footer, 0).filter(|&at| at != 0)? as usize;
        bytes.get(extension.checked_add(494)?).map(|&kind| kind == 0)
    };
    if says_so() == Some(true) { opaque } else { with_alpha }
}

pub(super) fn decode(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    let truncated = || DecodeError::Truncated(Format::Tga);
    if !plan.run_lengths {
        return plan.rows.decode(bytes, size.width, out).ok_or_else(truncated);
    }
    let rgb_row_bytes = size.width as usize * 3;
    let mut packets = Packets {
        bytes: bytes.get(plan.rows.at..).unwrap_or_default(),
        pixel_bytes: plan.rows.layout.bits_per_pixel() / 8,
        literal: 0..0,
    };
    let mut stored = vec![0; plan.rows.stride];
    for row in 0..size.height as usize {
        packets.row(&mut stored)?;
        let row = if plan.rows.bottom_up { size.height as usize - 1 - row } else { row };
        plan.rows.layout.expand(&stored, &mut out[row * rgb_row_bytes..(row + 1) * rgb_row_bytes]);
    }
    Ok(())
}

/// Runs and literals. A run ends with its row; a literal may go on in the next.
struct Packets<'a> {
    bytes: &'a [u8],
    pixel_bytes: usize,
    /// What is left of a literal.
    literal: std::ops::Range<usize>,
}

impl Packets<'_> {
    fn row(&mut self, stored: &mut [u8]) -> Result<(), DecodeError> {
        let truncated = || DecodeError::Truncated(Format::Tga);
        let mut filled = 0;
        while filled < stored.len() {
            let rest = &mut stored[filled..];
            if !self.literal.is_empty() {
                let count = self.literal.len().min(rest.len());
                rest[..count].copy_from_slice(&self.bytes[self.literal.start..self.literal.start + count]);
                self.literal.start += count;
                filled += count;
                if self.literal.is_empty() {
                    self.bytes = &self.bytes[self.literal.end..];
                    self.literal = 0..0;
                }
                continue;
            }
            let head = *self.bytes.first().ok_or_else(truncated)?;
            let count = (usize::from(head & 127) + 1) * self.pixel_bytes;
            if head & 128 == 0 {
                if self.bytes.len() < 1 + count {
                    return Err(truncated());
                }
                self.literal = 1..1 + count;
            } else {
                let pixel = self.bytes.get(1..1 + self.pixel_bytes).ok_or_else(truncated)?;
                let run =
                    rest.get_mut(..count).ok_or_else(|| DecodeError::corrupt(Format::Tga, "a run beyond its row"))?;
                run.chunks_exact_mut(self.pixel_bytes).for_each(|out| out.copy_from_slice(pixel));
                self.bytes = &self.bytes[1 + self.pixel_bytes..];
                filled += count;
            }
        }
        Ok(())
    }
}
