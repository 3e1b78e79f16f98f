//! ICO: the largest picture, or of several as large the one with the fewest colours, which is what the reference takes.
//!
//! A picture is a PNG, of which neither transparent colours nor orientation count, or a bitmap with a mask: the fourth
//! byte of its pixels where the directory says 32 bits, else a plane of bits.

use std::cmp::Reverse;

use super::bytes::Endian::Little;
use super::colour::on_white;
use super::orientation::Orientation;
use super::raw::Layout;
use super::sniff::Format;
use super::{DecodeError, DecodeLimits, Found, Plan as AnyPlan, Size, bmp, png};

const FIXED_SCRATCH_BYTES: usize = 16 << 10;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    Png { at: usize, plan: Box<png::Plan> },
    Bitmap { plan: Box<bmp::Plan>, mask: Mask },
}

/// What is transparent, bottom row first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mask {
    /// The fourth byte of every four.
    Alpha { at: usize },
    /// A set bit is transparent; rows are padded to 32 bits.
    Bits { at: usize },
}

struct Entry {
    area: u32,
    depth: u32,
    bits: u16,
    length: u32,
    at: u32,
}

pub(super) fn probe(bytes: &[u8], limits: &DecodeLimits) -> Result<Found, DecodeError> {
    let entry = best_entry(bytes)?;
    let at = entry.at as usize;
    let picture = bytes.get(at..).ok_or_else(truncated)?;
    if Format::sniff(picture) == Some(Format::Png) {
        let found = png::probe_in_icon(picture, limits)?;
        let AnyPlan::Png(plan) = found.plan else { return Err(broken("no picture")) };
        return Ok(Found { plan: AnyPlan::Ico(Plan::Png { at, plan }), ..found });
    }
    let bmp::Bitmap { size, mut plan } = bmp::read(bytes, at, 0, Format::Ico)?;
    // The mask takes the place of an alpha channel.
    if let Layout::Bytes(order) = &mut plan.rows.layout {
        *order = order.without_alpha();
    }
    // The bitmap's height counts the mask as well.
    let size = Size { height: size.height / 2, width: size.width };
    if size.height == 0 {
        return Err(broken("no pixels"));
    }
    let mask = if entry.bits == 32 {
        Mask::Alpha { at: plan.rows.at }
    } else {
        let mask_bytes = mask_row_bytes(size.width) as u64 * u64::from(size.height);
        let end = u64::from(entry.at) + u64::from(entry.length);
        let at = end.checked_sub(mask_bytes).ok_or_else(|| broken("no room for a mask"))?;
        Mask::Bits { at: at as usize }
    };
    let indices = usize::try_from(size.pixels()).unwrap_or(usize::MAX);
    Ok(Found {
        size,
        orientation: Orientation::default(),
        scratch_bytes: FIXED_SCRATCH_BYTES.saturating_add(indices),
        plan: AnyPlan::Ico(Plan::Bitmap { plan: Box::new(plan), mask }),
    })
}

pub(super) fn decode(bytes: &[u8], plan: &Plan, size: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    match plan {
        Plan::Png { at, plan } => png::decode(bytes.get(*at..).unwrap_or_default(), plan, size, out),
        Plan::Bitmap { plan, mask } => {
            bmp::decode_bitmap(bytes, plan, size, out).ok_or_else(truncated)?;
            mask.apply(bytes, size.width as usize, out).ok_or_else(truncated)
        }
    }
}

impl Mask {
    fn apply(self, bytes: &[u8], width: usize, out: &mut [u8]) -> Option<()> {
        let rows = out.chunks_exact_mut(width * 3).rev();
        match self {
            Self::Alpha { at } => {
                let mut rest = bytes.get(at..)?;
                for row in rows {
                    let (stored, after) = rest.split_at_checked(width * 4)?;
                    rest = after;
                    for (rgb, pixel) in row.as_chunks_mut::<3>().0.iter_mut().zip(stored.as_chunks::<4>().0) {
                        *rgb = rgb.map(|channel| on_white(channel, pixel[3]));
                    }
                }
            }
            Self::Bits { at } => {
                let mut at = at;
                for row in rows {
                    let stored = bytes.get(at..at + width.div_ceil(8))?;
                    at += mask_row_bytes(width as u32);
                    for (column, rgb) in row.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                        if stored[column / 8] >> (7 - column % 8) & 1 == 1 {
                            *rgb = [255; 3];
                        }
                    }
                }
            }
        }
        Some(())
    }
}

fn mask_row_bytes(width: u32) -> usize {
    width.div_ceil(32) as usize * 4
}

fn best_entry(bytes: &[u8]) -> Result<Entry, DecodeError> {
    let count = Little.u16(bytes, 4).ok_or_else(truncated)?;
    let entries = bytes.get(6..6 + usize::from(count) * 16).ok_or_else(truncated)?;
    let entries = entries.as_chunks::<16>().0.iter().map(|entry| {
        let side = |byte: u8| if byte == 0 { 256 } else { u32::from(byte) };
        let bits = Little.u16(entry, 6).unwrap_or(0);
        let depth = match (bits, entry[2]) {
            (0, 0 | 1) => 256,
            (0, colours) => u32::from(colours).next_power_of_two().ilog2(),
            (bits, _) => bits.into(),
        };
        let (length, at) = (Little.u32(entry, 8).unwrap_or(0), Little.u32(entry, 12).unwrap_or(0));
        Entry { area: side(entry[0]) * side(entry[1]), depth, bits, length, at }
    });
    // Of equals, the first.
    entries.min_by_key(|entry| (Reverse(entry.area), entry.depth)).ok_or_else(|| broken("no pictures"))
}

fn broken(cause: &'static str) -> DecodeError {
    DecodeError::corrupt(Format::Ico, cause)
}

fn truncated() -> DecodeError {
    DecodeError::Truncated(Format::Ico)
}
