//! The kinds of pixels that TIFF has, and turning them into RGB.

use super::super::bytes::Endian;
use super::super::colour::{cmyk_to_rgb, each_packed, grey_to_rgb, on_white, rgba_on_white};
use super::super::raw::Palette;

/// How a pixel is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// 1, 2, 4 or 8 bits.
    Grey {
        depth: u8,
        inverted: bool,
    },
    /// Two samples a byte and a half; cut off above 255, as all greys of more than 8 bits.
    Grey12,
    Grey16,
    Signed16,
    Signed32,
    Float32,
    GreyAlpha,
    /// 1, 2, 4 or 8 bits of a palette.
    Index(u8),
    IndexAlpha,
    Rgb(Alpha),
    Cmyk,
}

/// What follows red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alpha {
    None,
    Straight,
    /// Colours were multiplied by it.
    Premultiplied,
}

/// What tells the kind.
#[derive(Debug)]
pub(super) struct Description<'a> {
    pub(super) endian: Endian,
    pub(super) photometric: u32,
    pub(super) sample_format: &'a [u32],
    pub(super) fill_order: u32,
    pub(super) bits: &'a [u32],
    pub(super) extra: &'a [u32],
}

/// Whether the reference knows a description, and we do.
pub(super) enum Known {
    Kind(Kind),
    /// The reference reads it in ways that are not followed here.
    Other,
}

impl Description<'_> {
    /// `None` for what the reference refuses.
    pub(super) fn known(&self) -> Option<Known> {
        let little = self.endian == Endian::Little;
        let depth = *self.bits.first()? as u8;
        let uniform = self.bits.iter().all(|bits| *bits == self.bits[0]);
        let kind = match (self.photometric, self.sample_format, self.fill_order, self.bits, self.extra) {
            (0 | 1, [1], 1 | 2, [1 | 2 | 4 | 8], []) => Kind::Grey { depth, inverted: self.photometric == 0 },
            (1, [2], 1, [8], []) | (6, [1], 1, [8], []) => Kind::Grey { depth, inverted: false },
            (1, [1], 1, [12], []) if little => Kind::Grey12,
            (0, [1], 1, [16], []) if little => Kind::Grey16,
            (1, [1], 1, [16], []) => Kind::Grey16,
            (1, [1], 2, [16], []) if little => return Some(Known::Other),
            (1, [2], 1, [16], []) => Kind::Signed16,
            (1, [1], 1, [32], []) if little => Kind::Signed32,
            (1, [2], 1, [32], []) => Kind::Signed32,
            (0 | 1, [3], 1, [32], []) => Kind::Float32,
            (1, [1], 1, [8, 8], [0]) => Kind::Grey { depth, inverted: false },
            (1, [1], 1, [8, 8], [1]) => return Some(Known::Other),
            (1, [1], 1, [8, 8], [2]) => Kind::GreyAlpha,
            (2, [1], 1 | 2, [8, 8, 8], []) => Kind::Rgb(Alpha::None),
            (2, [1], 1, [8, _, _, _], [] | [2 | 999]) if uniform => Kind::Rgb(Alpha::Straight),
            (2, [1], 1, [16, _, _, _], [] | [2]) if uniform => Kind::Rgb(Alpha::Straight),
            (2, [1], 1, [16, _, _], []) if uniform => Kind::Rgb(Alpha::None),
            (2, [1], 1, [8 | 16, _, _, _], [first])
            | (2, [1], 1, [8, _, _, _, _], [first, 0])
            | (2, [1], 1, [8, _, _, _, _, _], [first, 0, 0])
                if uniform =>
            {
                Kind::Rgb(match first {
                    0 => Alpha::None,
                    1 => Alpha::Premultiplied,
                    2 => Alpha::Straight,
                    _ => return None,
                })
            }
            (3, [1], 1 | 2, [1 | 2 | 4 | 8], []) | (3, [1], 1, [8, 8], [0]) => Kind::Index(depth),
            (3, [1], 1, [8, 8], [2]) => Kind::IndexAlpha,
            (5, [1], 1, [8 | 16, _, _, _], [])
            | (5, [1], 1, [8, _, _, _, _], [0])
            | (5, [1], 1, [8, _, _, _, _, _], [0, 0])
                if uniform =>
            {
                Kind::Cmyk
            }
            (6 | 8, [1], 1, [8, 8, 8], []) => return Some(Known::Other),
            _ => return None,
        };
        Some(Known::Kind(kind))
    }
}

/// Turns stored rows into RGB.
#[derive(Clone, Debug)]
pub(super) struct Expander {
    pub(super) kind: Kind,
    pub(super) endian: Endian,
    /// Bytes of a whole pixel, where it has any.
    pub(super) pixel_bytes: usize,
    /// 1 or 2.
    pub(super) sample_bytes: usize,
    pub(super) palette: Palette,
}

impl Expander {
    /// Whether stored rows are RGB as they are.
    pub(super) fn is_identity(&self) -> bool {
        self.kind == Kind::Rgb(Alpha::None) && self.pixel_bytes == 3
    }

    /// Turns a stored row into `rgb`, three bytes for each of its pixels.
    pub(super) fn expand(&self, stored: &[u8], rgb: &mut [u8]) {
        match (self.kind, self.pixel_bytes) {
            (Kind::Rgb(Alpha::None), 3) => rgb.copy_from_slice(&stored[..rgb.len()]),
            (Kind::Rgb(Alpha::Straight), 4) => rgba_on_white(stored, rgb),
            (Kind::Grey { depth: 8, inverted: false }, 1) => grey_to_rgb(stored, rgb),
            _ => self.expand_each(stored, rgb),
        }
    }

    fn expand_each(&self, stored: &[u8], rgb: &mut [u8]) {
        let rgb = rgb.as_chunks_mut::<3>().0;
        let endian = self.endian;
        match self.kind {
            Kind::Grey { depth: depth @ (1 | 2 | 4), inverted } => {
                let scale = 255 / ((1u16 << depth) - 1) as u8;
                each_packed(stored, depth, rgb, |value| [(value * scale) ^ if inverted { 255 } else { 0 }; 3]);
            }
            Kind::Index(depth @ (1 | 2 | 4)) => {
                each_packed(stored, depth, rgb, |index| self.palette[usize::from(index)])
            }
            Kind::Grey12 => {
                for (index, out) in rgb.iter_mut().enumerate() {
                    let at = index / 2 * 3;
                    let value = match index % 2 {
                        0 => u16::from(stored[at]) << 4 | u16::from(stored[at + 1] >> 4),
                        _ => u16::from(stored[at + 1] & 15) << 8 | u16::from(stored[at + 2]),
                    };
                    *out = [value.min(255) as u8; 3];
                }
            }
            Kind::Grey { inverted, .. } => {
                self.each(stored, rgb, |pixel| [pixel[0] ^ if inverted { 255 } else { 0 }; 3])
            }
            Kind::Index(_) => self.each(stored, rgb, |pixel| self.palette[usize::from(pixel[0])]),
            Kind::IndexAlpha => self.each(stored, rgb, |pixel| {
                self.palette[usize::from(pixel[0])].map(|channel| on_white(channel, pixel[1]))
            }),
            Kind::GreyAlpha => self.each(stored, rgb, |pixel| [on_white(pixel[0], pixel[1]); 3]),
            Kind::Grey16 => self.each(stored, rgb, |pixel| [endian.u16(pixel, 0).unwrap_or(0).min(255) as u8; 3]),
            Kind::Signed16 => {
                self.each(stored, rgb, |pixel| [(endian.u16(pixel, 0).unwrap_or(0) as i16).clamp(0, 255) as u8; 3])
            }
            Kind::Signed32 => {
                self.each(stored, rgb, |pixel| [(endian.u32(pixel, 0).unwrap_or(0) as i32).clamp(0, 255) as u8; 3])
            }
            // Casting cuts off at both ends, drops the fraction, and makes 0 of what is no number.
            Kind::Float32 => {
                self.each(stored, rgb, |pixel| [f32::from_bits(endian.u32(pixel, 0).unwrap_or(0)) as u8; 3])
            }
            Kind::Rgb(Alpha::None) => self.each(stored, rgb, |pixel| [0, 1, 2].map(|index| self.sample(pixel, index))),
            Kind::Rgb(alpha) => self.each(stored, rgb, |pixel| {
                let [r, g, b, a] = [0, 1, 2, 3].map(|index| self.sample(pixel, index));
                [r, g, b].map(|channel| {
                    let straight = match (alpha, a) {
                        (Alpha::Premultiplied, 1..) => (u32::from(channel) * 255 / u32::from(a)).min(255) as u8,
                        _ => channel,
                    };
                    on_white(straight, a)
                })
            }),
            Kind::Cmyk => {
                self.each(stored, rgb, |pixel| cmyk_to_rgb([0, 1, 2, 3].map(|index| self.sample(pixel, index))))
            }
        }
    }

    fn each(&self, stored: &[u8], rgb: &mut [[u8; 3]], colour: impl Fn(&[u8]) -> [u8; 3]) {
        rgb.iter_mut().zip(stored.chunks_exact(self.pixel_bytes)).for_each(|(out, pixel)| *out = colour(pixel));
    }

    /// A sample's byte, or its high byte.
    fn sample(&self, pixel: &[u8], index: usize) -> u8 {
        match (self.sample_bytes, self.endian) {
            (1, _) => pixel[index],
            (_, Endian::Big) => pixel[index * 2],
            (_, Endian::Little) => pixel[index * 2 + 1],
        }
    }
}
