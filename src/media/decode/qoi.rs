//! QOI.

use super::bytes::Endian::Big;
use super::colour::on_white;
use super::orientation::Orientation;
use super::sniff::Format;
use super::{DecodeError, Found, Plan as AnyPlan, Size};

const HEADER_BYTES: usize = 14;
const SCRATCH_BYTES: usize = 1 << 10;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) has_alpha: bool,
}

pub(super) fn probe(bytes: &[u8]) -> Result<Found, DecodeError> {
    let truncated = || DecodeError::Truncated(Format::Qoi);
    let width = Big.u32(bytes, 4).ok_or_else(truncated)?;
    let height = Big.u32(bytes, 8).ok_or_else(truncated)?;
    let channels = *bytes.get(12).ok_or_else(truncated)?;
    let size = Size { height, width };
    if size.pixels() == 0 {
        return Err(DecodeError::corrupt(Format::Qoi, "no pixels"));
    }
    Ok(Found {
        size,
        orientation: Orientation::default(),
        scratch_bytes: SCRATCH_BYTES,
        plan: AnyPlan::Qoi(Plan { has_alpha: channels != 3 }),
    })
}

pub(super) fn decode(bytes: &[u8], plan: &Plan, out: &mut [u8]) -> Result<(), DecodeError> {
    decode_pixels(bytes.get(HEADER_BYTES..).unwrap_or_default(), plan.has_alpha, out)
        .ok_or(DecodeError::Truncated(Format::Qoi))
}

/// `None` where the data ends before the last pixel.
fn decode_pixels(bytes: &[u8], has_alpha: bool, out: &mut [u8]) -> Option<()> {
    let mut bytes = bytes.iter().copied();
    let mut seen = [[0u8; 4]; 64];
    let mut pixel = [0, 0, 0, 255];
    let mut out = out.as_chunks_mut::<3>().0.iter_mut();
    let rgb = |[r, g, b, a]: [u8; 4]| if has_alpha { [r, g, b].map(|channel| on_white(channel, a)) } else { [r, g, b] };
    while let Some(target) = out.next() {
        let [r, g, b, a] = pixel;
        let tag = bytes.next()?;
        let low = tag & 63;
        pixel = match (tag, tag >> 6) {
            (0xfe, _) => [bytes.next()?, bytes.next()?, bytes.next()?, a],
            (0xff, _) => [bytes.next()?, bytes.next()?, bytes.next()?, bytes.next()?],
            (_, 0) => seen[usize::from(low)],
            (_, 1) => {
                let step = |channel: u8, shift: u8| channel.wrapping_add(low >> shift & 3).wrapping_sub(2);
                [step(r, 4), step(g, 2), step(b, 0), a]
            }
            (_, 2) => {
                let steps = bytes.next()?;
                let green = low.wrapping_sub(32);
                let step = |channel: u8, by: u8| channel.wrapping_add(green).wrapping_add(by);
                [step(r, (steps >> 4).wrapping_sub(8)), step(g, 0), step(b, (steps & 15).wrapping_sub(8)), a]
            }
            _ => {
                *target = rgb(pixel);
                out.by_ref().take(usize::from(low)).for_each(|target| *target = rgb(pixel));
                continue;
            }
        };
        let [r, g, b, a] = pixel.map(usize::from);
        seen[(r * 3 + g * 5 + b * 7 + a * 11) % 64] = pixel;
        *target = rgb(pixel);
    }
    Some(())
}
