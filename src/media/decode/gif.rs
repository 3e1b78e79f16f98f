//! The first frame of a GIF.
//!
//! The frame lies on a canvas of the transparent colour, or else of colour 0, which grows where the frame reaches beyond
//! it. A palette that is the ramp of greys counts as none. The data has to fill the frame, past empty blocks if need be;
//! what follows it is not looked at.

use super::bytes::Endian::Little;
use super::orientation::Orientation;
use super::raw::{Order, Palette, palette};
use super::sniff::Format;
use super::{DecodeError, Found, Plan as AnyPlan, Size};

/// The code table, and a string of pixels.
const FIXED_SCRATCH_BYTES: usize = 64 << 10;
/// Codes have at most twelve bits.
const TABLE: usize = 1 << 12;

/// What is kept of the header.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// With the transparent colour already white.
    palette: Palette,
    background: u8,
    top: u32,
    left: u32,
    frame: Size,
    interlaced: bool,
    code_bits: u8,
    /// Where the first block of codes begins.
    at: usize,
}

pub(super) fn probe(bytes: &[u8]) -> Result<Found, DecodeError> {
    let mut reader = Reader { bytes, at: 6 };
    let (width, height) = (reader.u16()?, reader.u16()?);
    let [flags, _, _] = reader.array()?;
    let global = if flags & 128 != 0 { reader.palette(flags)? } else { None };
    let mut transparent = None;
    loop {
        match reader.array()? {
            // An extension.
            [b'!'] => {
                let [label] = reader.array()?;
                let block = reader.block();
                match (label, block) {
                    (0xf9, Some(control)) => {
                        let Some(&[flags, _, _, index]) = control.first_chunk::<4>() else {
                            // Without transparency, three bytes are enough.
                            if control.len() == 3 && control[0] & 1 == 0 {
                                reader.skip_blocks();
                                continue;
                            }
                            return Err(truncated());
                        };
                        if flags & 1 != 0 {
                            transparent = Some(index);
                        }
                    }
                    // A comment that is empty has no further blocks; other extensions that begin so may have.
                    (0xfe, None) => continue,
                    _ => {}
                }
                reader.skip_blocks();
            }
            [b';'] => return Err(truncated()),
            [b','] => break,
            _ => {}
        }
    }
    let (left, top, frame_width, frame_height) = (reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?);
    let [flags] = reader.array()?;
    let local = if flags & 128 != 0 { Some(reader.palette(flags)?) } else { None };
    let [code_bits] = reader.array()?;
    let canvas = Size { height: height.max(top + frame_height), width: width.max(left + frame_width) };
    let frame = Size { height: frame_height, width: frame_width };
    if frame.pixels() == 0 {
        return Err(broken("an empty frame"));
    }
    if code_bits > 12 {
        return Err(broken("codes of more than twelve bits"));
    }
    // Where a frame's own palette is a ramp of greys, the reference falls back to the global one.
    let mut palette = local.flatten().or(global).unwrap_or_else(|| (0..=255).map(|grey| [grey; 3]).collect());
    if let Some(index) = transparent {
        palette[usize::from(index)] = [255; 3];
    }
    let plan = Plan {
        palette,
        background: transparent.unwrap_or(0),
        top,
        left,
        frame,
        interlaced: flags & 64 != 0,
        code_bits,
        at: reader.at,
    };
    Ok(Found {
        size: canvas,
        orientation: Orientation::default(),
        scratch_bytes: FIXED_SCRATCH_BYTES,
        plan: AnyPlan::Gif(plan),
    })
}

pub(super) fn decode(bytes: &[u8], plan: &Plan, canvas: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    let row_bytes = canvas.width as usize * 3;
    if plan.frame != canvas {
        let background = plan.palette[usize::from(plan.background)];
        out.as_chunks_mut::<3>().0.fill(background);
    }
    let (height, width) = (plan.frame.height as usize, plan.frame.width as usize);
    // Interlaced rows come in four passes.
    let passes: &[(usize, usize)] = if plan.interlaced { &[(0, 8), (4, 8), (2, 4), (1, 2)] } else { &[(0, 1)] };
    let mut rows = passes.iter().flat_map(|&(first, step)| (first..height).step_by(step));
    let mut next_row = || {
        let start = (plan.top as usize + rows.next()?) * row_bytes + plan.left as usize * 3;
        Some(start..start + width * 3)
    };
    let mut codes = Codes::new(bytes.get(plan.at..).unwrap_or_default(), plan.code_bits);
    let mut string = Vec::with_capacity(TABLE);
    let Some(mut target) = next_row() else { return Err(broken("an empty frame")) };
    loop {
        codes.next_string(&mut string)?;
        let mut rest = &string[..];
        while !rest.is_empty() {
            let row = out[target.clone()].as_chunks_mut::<3>().0;
            let count = rest.len().min(row.len());
            let (after, now) = rest.split_at(rest.len() - count);
            row.iter_mut().zip(now.iter().rev()).for_each(|(out, &index)| *out = plan.palette[usize::from(index)]);
            rest = after;
            target.start += count * 3;
            if target.is_empty() {
                match next_row() {
                    Some(next) => target = next,
                    None => return Ok(()),
                }
            }
        }
    }
}

fn broken(cause: &'static str) -> DecodeError {
    DecodeError::corrupt(Format::Gif, cause)
}

fn truncated() -> DecodeError {
    DecodeError::Truncated(Format::Gif)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let array = super::bytes::array(self.bytes, self.at).ok_or_else(truncated)?;
        self.at += N;
        Ok(array)
    }

    fn u16(&mut self) -> Result<u32, DecodeError> {
        let value = Little.u16(self.bytes, self.at).ok_or_else(truncated)?;
        self.at += 2;
        Ok(value.into())
    }

    /// A palette of the size in `flags`; `None` if it is the ramp of greys, or does not begin at all.
    fn palette(&mut self, flags: u8) -> Result<Option<Palette>, DecodeError> {
        let start = self.at.min(self.bytes.len());
        let end = self.bytes.len().min(start + (6 << (flags & 7)));
        let stored = &self.bytes[start..end];
        self.at = end;
        let is_ramp = stored.chunks(3).zip(0u8..).all(|(entry, grey)| entry == [grey; 3]);
        if is_ramp {
            return Ok(None);
        }
        palette(stored, Order::RGB).map(Some).ok_or_else(|| broken("a palette of more than 256 colours"))
    }

    /// A block's content; `None` for the empty one, and at the end of the file.
    fn block(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(*self.bytes.get(self.at)?);
        let start = self.at + 1;
        let end = self.bytes.len().min(start + length);
        self.at = end;
        (start < end).then(|| &self.bytes[start..end])
    }

    fn skip_blocks(&mut self) {
        while self.block().is_some() {}
    }
}

/// The strings of pixels for which the codes stand.
struct Codes<'a> {
    bytes: &'a [u8],
    /// Bytes left of the current block.
    block: usize,
    bits: u32,
    bit_count: u32,
    start_bits: u8,
    code_bits: u32,
    /// The next free entry.
    next: usize,
    last: Option<Last>,
    /// For each code above the clear code: its last pixel, and the code of what comes before.
    table: Vec<(u8, u16)>,
}

#[derive(Clone, Copy)]
struct Last {
    code: usize,
    first_pixel: u8,
}

impl<'a> Codes<'a> {
    fn new(bytes: &'a [u8], start_bits: u8) -> Self {
        let mut codes = Self {
            bytes,
            block: 0,
            bits: 0,
            bit_count: 0,
            start_bits,
            code_bits: 0,
            next: 0,
            last: None,
            table: vec![(0, 0); TABLE],
        };
        codes.clear();
        codes
    }

    fn clear_code(&self) -> usize {
        1 << self.start_bits
    }

    fn clear(&mut self) {
        self.code_bits = u32::from(self.start_bits) + 1;
        self.next = self.clear_code() + 2;
        self.last = None;
    }

    fn code(&mut self) -> Result<usize, DecodeError> {
        while self.bit_count < self.code_bits {
            while self.block == 0 {
                let (&length, rest) = self.bytes.split_first().ok_or_else(truncated)?;
                // A block counts only if it is whole.
                if rest.len() < usize::from(length) {
                    return Err(truncated());
                }
                self.block = usize::from(length);
                self.bytes = rest;
            }
            let (&byte, rest) = self.bytes.split_first().ok_or_else(truncated)?;
            self.bytes = rest;
            self.block -= 1;
            self.bits |= u32::from(byte) << self.bit_count;
            self.bit_count += 8;
        }
        let code = self.bits & ((1 << self.code_bits) - 1);
        self.bits >>= self.code_bits;
        self.bit_count -= self.code_bits;
        Ok(code as usize)
    }

    /// Puts the next string into `string`, last pixel first.
    fn next_string(&mut self, string: &mut Vec<u8>) -> Result<(), DecodeError> {
        string.clear();
        let clear_code = self.clear_code();
        let code = loop {
            match self.code()? {
                code if code == clear_code => self.clear(),
                // The end comes too early: pixels are missing.
                code if code == clear_code + 1 => return Err(truncated()),
                code => break code,
            }
        };
        let Some(last) = self.last else {
            if code > clear_code {
                return Err(broken("a code that was not defined"));
            }
            self.last = Some(Last { code, first_pixel: code as u8 });
            string.push(code as u8);
            return Ok(());
        };
        if code > self.next {
            return Err(broken("a code that was not defined"));
        }
        let mut at = code;
        if code == self.next {
            string.push(last.first_pixel);
            at = last.code;
        }
        while at >= clear_code {
            let &(pixel, before) = self.table.get(at).ok_or_else(|| broken("a code beyond the table"))?;
            if string.len() >= TABLE {
                return Err(broken("too long a string"));
            }
            string.push(pixel);
            at = usize::from(before);
        }
        let first_pixel = at as u8;
        string.push(first_pixel);
        if self.next < TABLE {
            self.table[self.next] = (first_pixel, last.code as u16);
            if self.next == (1 << self.code_bits) - 1 && self.code_bits < 12 {
                self.code_bits += 1;
            }
            self.next += 1;
        }
        self.last = Some(Last { code, first_pixel });
        Ok(())
    }
}
