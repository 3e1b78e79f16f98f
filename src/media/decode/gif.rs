//! The first frame of a GIF.
//!
//! The frame lies on a canvas of the transparent colour, or else of colour 0, which grows where the frame reaches beyond
//! it. A palette that is the ramp of greys counts as none. The data has to fill the frame, past empty blocks if need be;
//! what follows it is not looked at.

use super::bytes::Endian::Little;
use super::colour::{entry, indexed};
use super::lzw::{Strings, Table};
use super::orientation::Orientation;
use super::raw::{Order, Palette, palette};
use super::sniff::Format;
use super::{DecodeError, Found, Plan as AnyPlan, Size};

/// The code table.
const FIXED_SCRATCH_BYTES: usize = 64 << 10;

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
                    // The block that says how often to loop is taken whether it is there or not.
                    (0xff, Some(name)) if name.starts_with(b"NETSCAPE2.0") => drop(reader.block()),
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
        scratch_bytes: usize::try_from(frame.pixels()).unwrap_or(usize::MAX).saturating_add(FIXED_SCRATCH_BYTES),
        plan: AnyPlan::Gif(plan),
    })
}

pub(super) fn decode(bytes: &[u8], plan: &Plan, canvas: Size, out: &mut [u8]) -> Result<(), DecodeError> {
    let mut colours = [0; 256];
    colours.iter_mut().zip(&plan.palette).for_each(|(out, colour)| *out = entry(*colour));
    let mut indices = vec![0; plan.frame.pixels() as usize];
    decode_indices(bytes.get(plan.at..).unwrap_or_default(), plan.code_bits, &mut indices)?;
    if plan.frame == canvas && !plan.interlaced {
        indexed(&indices, &colours, out);
        return Ok(());
    }
    let row_bytes = canvas.width as usize * 3;
    if plan.frame != canvas {
        let background = plan.palette[usize::from(plan.background)];
        out.as_chunks_mut::<3>().0.fill(background);
    }
    let (height, width) = (plan.frame.height as usize, plan.frame.width as usize);
    // Interlaced rows come in four passes.
    let passes: &[(usize, usize)] = if plan.interlaced { &[(0, 8), (4, 8), (2, 4), (1, 2)] } else { &[(0, 1)] };
    let rows = passes.iter().flat_map(|&(first, step)| (first..height).step_by(step));
    for (row, stored) in rows.zip(indices.chunks_exact(width)) {
        let start = (plan.top as usize + row) * row_bytes + plan.left as usize * 3;
        indexed(stored, &colours, &mut out[start..start + width * 3]);
    }
    Ok(())
}

/// Fills `indices`, in the order in which they are stored.
fn decode_indices(bytes: &[u8], start_bits: u8, indices: &mut [u8]) -> Result<(), DecodeError> {
    const MOST_BITS: u32 = 12;
    let (start_bits, clear_code) = (u32::from(start_bits), 1 << start_bits);
    let mut codes = Codes::new(bytes);
    let mut table = Table::new(clear_code, clear_code + 2);
    let mut strings = Strings::new(indices, &mut table).ok_or_else(|| broken("too large a frame"))?;
    let mut code_bits = start_bits + 1;
    while !strings.is_full() {
        let code = codes.code(code_bits)?;
        if code == clear_code {
            strings.clear();
            code_bits = start_bits + 1;
        } else if code == clear_code + 1 {
            // The end comes too early: pixels are missing.
            return Err(truncated());
        } else {
            let defined = strings.write(code).map_err(|_| broken("a code that was not defined"))?;
            if defined && strings.next() == 1 << code_bits && code_bits < MOST_BITS {
                code_bits += 1;
            }
        }
    }
    Ok(())
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
        let is_ramp = stored.chunks(3).zip(0..=u8::MAX).all(|(entry, grey)| entry == [grey; 3]);
        if is_ramp {
            return Ok(None);
        }
        palette(stored, Order::Rgb).map(Some).ok_or_else(|| broken("a palette of more than 256 colours"))
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

/// Codes, from the lowest bit of each byte on, out of blocks of at most 255 bytes.
struct Codes<'a> {
    bytes: &'a [u8],
    /// Bytes left of the current block.
    block: usize,
    bits: u64,
    bit_count: u32,
}

impl<'a> Codes<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, block: 0, bits: 0, bit_count: 0 }
    }

    /// The next code of `width` bits, of which there may be none.
    fn code(&mut self, width: u32) -> Result<usize, DecodeError> {
        if self.bit_count < width {
            self.refill();
            if self.bit_count < width {
                return Err(truncated());
            }
        }
        let code = self.bits & ((1 << width) - 1);
        self.bits >>= width;
        self.bit_count -= width;
        Ok(code as usize)
    }

    fn refill(&mut self) {
        while self.bit_count < u64::BITS - 8 && self.enter_block() {
            let (taken, bits) = match self.bytes.first_chunk() {
                Some(word) if self.block >= size_of::<u64>() => {
                    let taken = (u64::BITS - 1 - self.bit_count) / 8;
                    (taken, u64::from_le_bytes(*word) & ((1 << (taken * 8)) - 1))
                }
                _ => (1, self.bytes[0].into()),
            };
            self.bits |= bits << self.bit_count;
            self.bit_count += taken * 8;
            self.bytes = &self.bytes[taken as usize..];
            self.block -= taken as usize;
        }
    }

    /// Whether there is a byte left in a block; empty ones are passed over, and a block counts only if it is whole.
    fn enter_block(&mut self) -> bool {
        while self.block == 0 {
            match self.bytes.split_first() {
                Some((&length, rest)) if rest.len() >= usize::from(length) => {
                    self.block = usize::from(length);
                    self.bytes = rest;
                }
                _ => return false,
            }
        }
        true
    }
}
