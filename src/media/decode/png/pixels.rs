//! From the rows of a PNG, as they are stored, to RGB: depth, palette, transparency.

use super::super::colour::{each_packed, entry, grey_to_rgb, indexed, on_white, rgba_on_white};

/// Colour type and depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColourMode {
    /// 1, 2, 4 or 8 bits.
    Grey(u8),
    /// The reference keeps the 16 bits and cuts off above 255: pictures of full range turn nearly white.
    Grey16,
    Rgb,
    /// The reference takes the high byte.
    Rgb16,
    /// 1, 2, 4 or 8 bits.
    Palette(u8),
    GreyAlpha,
    GreyAlpha16,
    Rgba,
    Rgba16,
}

impl ColourMode {
    /// By the bytes of the header; `None` for combinations that PNG does not have.
    pub(super) fn read(depth: u8, colour: u8) -> Option<Self> {
        Some(match (depth, colour) {
            (1 | 2 | 4 | 8, 0) => Self::Grey(depth),
            (16, 0) => Self::Grey16,
            (8, 2) => Self::Rgb,
            (16, 2) => Self::Rgb16,
            (1 | 2 | 4 | 8, 3) => Self::Palette(depth),
            (8, 4) => Self::GreyAlpha,
            (16, 4) => Self::GreyAlpha16,
            (8, 6) => Self::Rgba,
            (16, 6) => Self::Rgba16,
            _ => return None,
        })
    }

    pub(super) fn is_palette(self) -> bool {
        matches!(self, Self::Palette(_))
    }

    fn bits_per_pixel(self) -> usize {
        match self {
            Self::Grey(depth) | Self::Palette(depth) => depth.into(),
            Self::Grey16 | Self::GreyAlpha => 16,
            Self::Rgb => 24,
            Self::Rgb16 => 48,
            Self::GreyAlpha16 | Self::Rgba => 32,
            Self::Rgba16 => 64,
        }
    }

    /// Bytes of a pixel; 1 where several share one.
    pub(super) fn pixel_bytes(self) -> usize {
        self.bits_per_pixel().div_ceil(8)
    }

    /// Bytes of a stored row of `width` pixels.
    pub(super) fn row_bytes(self, width: u32) -> usize {
        (width as usize * self.bits_per_pixel()).div_ceil(8)
    }
}

/// A tRNS chunk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Transparency<'a> {
    /// The colour that is transparent, as the reference compares it: the low bytes, with the finished pixel.
    Key([u8; 3]),
    /// An alpha for each of the first entries of the palette.
    Alphas(&'a [u8]),
}

impl<'a> Transparency<'a> {
    /// By the chunk's content. `None`: too short. `Some(None)`: no meaning in this mode.
    pub(super) fn read(mode: ColourMode, content: &'a [u8]) -> Option<Option<Self>> {
        Some(match (mode, content) {
            (ColourMode::Palette(_), alphas) => Some(Self::Alphas(alphas)),
            (ColourMode::Grey(1), [high, low, ..]) => Some(Self::Key([if *high | *low == 0 { 0 } else { 255 }; 3])),
            (ColourMode::Grey(_) | ColourMode::Grey16, [_, low, ..]) => Some(Self::Key([*low; 3])),
            (ColourMode::Rgb | ColourMode::Rgb16, [_, red, _, green, _, blue, ..]) => {
                Some(Self::Key([*red, *green, *blue]))
            }
            (ColourMode::Grey(_) | ColourMode::Grey16 | ColourMode::Rgb | ColourMode::Rgb16, _) => return None,
            _ => None,
        })
    }
}

/// Turns stored rows into RGB.
#[derive(Clone, Debug)]
pub(super) struct Expander {
    mode: ColourMode,
    key: Option<[u8; 3]>,
    /// The palette, already laid on white; entries that the file does not have are black.
    palette: Box<[u32; 256]>,
}

impl Expander {
    /// `None` if the palette or its alphas are longer than 256 entries.
    pub(super) fn new(
        mode: ColourMode,
        palette: Option<&[u8]>,
        transparency: Option<Transparency<'_>>,
    ) -> Option<Self> {
        let mut expander = Self { mode, key: None, palette: Box::new([0; 256]) };
        if mode.is_palette() {
            let mut entries = [[0; 3]; 256];
            let stored = palette.unwrap_or_default().as_chunks::<3>().0;
            entries.get_mut(..stored.len())?.copy_from_slice(stored);
            if let Some(Transparency::Alphas(alphas)) = transparency {
                for (colour, alpha) in entries.get_mut(..alphas.len())?.iter_mut().zip(effective(alphas)) {
                    *colour = colour.map(|channel| on_white(channel, alpha));
                }
            }
            *expander.palette = entries.map(entry);
        } else if let Some(Transparency::Key(key)) = transparency {
            expander.key = Some(key);
        }
        Some(expander)
    }

    /// Whether stored rows are RGB as they are.
    pub(super) fn is_identity(&self) -> bool {
        self.mode == ColourMode::Rgb && self.key.is_none()
    }

    /// Turns a stored row into `rgb`, three bytes for each of its pixels.
    pub(super) fn expand(&self, stored: &[u8], rgb: &mut [u8]) {
        let pixels = rgb.as_chunks_mut::<3>().0;
        match self.mode {
            ColourMode::Grey(8) => grey_to_rgb(stored, rgb),
            ColourMode::Grey(depth) => {
                // 255 is a multiple of the largest value of each depth.
                let scale = 255 / ((1u16 << depth) - 1) as u8;
                each_packed(stored, depth, pixels, |value| [value * scale; 3]);
            }
            ColourMode::Grey16 => {
                let values = stored.as_chunks::<2>().0;
                pixels.iter_mut().zip(values).for_each(|(out, &value)| {
                    *out = [u16::from_be_bytes(value).min(255) as u8; 3];
                });
            }
            ColourMode::Rgb => rgb.copy_from_slice(&stored[..rgb.len()]),
            ColourMode::Rgb16 => {
                let values = stored.as_chunks::<6>().0;
                pixels.iter_mut().zip(values).for_each(|(out, &[r, _, g, _, b, _])| *out = [r, g, b]);
            }
            ColourMode::Palette(8) => indexed(stored, &self.palette, rgb),
            ColourMode::Palette(depth) => each_packed(stored, depth, pixels, |index| {
                let [red, green, blue, _] = self.palette[usize::from(index)].to_le_bytes();
                [red, green, blue]
            }),
            ColourMode::GreyAlpha => {
                let values = stored.as_chunks::<2>().0;
                pixels.iter_mut().zip(values).for_each(|(out, &[grey, alpha])| *out = [on_white(grey, alpha); 3]);
            }
            ColourMode::GreyAlpha16 => {
                let values = stored.as_chunks::<4>().0;
                pixels.iter_mut().zip(values).for_each(|(out, &[grey, _, alpha, _])| *out = [on_white(grey, alpha); 3]);
            }
            ColourMode::Rgba => rgba_on_white(stored, rgb),
            ColourMode::Rgba16 => {
                let values = stored.as_chunks::<8>().0;
                pixels.iter_mut().zip(values).for_each(|(out, &[r, _, g, _, b, _, alpha, _])| {
                    *out = [r, g, b].map(|channel| on_white(channel, alpha));
                });
            }
        }
        if let Some(key) = self.key {
            let pixels = rgb.as_chunks_mut::<3>().0;
            pixels.iter_mut().filter(|pixel| **pixel == key).for_each(|pixel| *pixel = [255; 3]);
        }
    }
}

/// Alphas as the reference applies them: where one entry is transparent and all others are opaque, it remembers only
/// which one, and its pattern for that tolerates a final line feed in place of an alpha.
fn effective(alphas: &[u8]) -> impl Iterator<Item = u8> {
    let body = alphas.strip_suffix(b"\n").unwrap_or(alphas);
    let simple =
        body.iter().filter(|&&alpha| alpha == 0).count() == 1 && body.iter().all(|alpha| matches!(alpha, 0 | 255));
    let overlong = if simple { body.len() } else { alphas.len() };
    alphas.iter().enumerate().map(move |(index, &alpha)| if index < overlong { alpha } else { 255 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shallow_greys_reach_white() {
        for (depth, stored, expected) in
            [(1, 0b1010_0000, [255, 0, 255]), (2, 0b1101_1000, [255, 85, 170]), (4, 0xf1, [255, 17, 0])]
        {
            let expander = Expander::new(ColourMode::Grey(depth), None, None).unwrap();
            let mut rgb = [7; 9];
            expander.expand(&[stored, 0], &mut rgb);
            assert_eq!([rgb[0], rgb[3], rgb[6]], expected);
        }
    }

    #[test]
    fn sixteen_bits_as_the_reference_reduces_them() {
        let grey = Expander::new(ColourMode::Grey16, None, None).unwrap();
        let mut rgb = [7; 9];
        grey.expand(&[0, 200, 1, 0, 255, 255], &mut rgb);
        assert_eq!([rgb[0], rgb[3], rgb[6]], [200, 255, 255]);
        let colour = Expander::new(ColourMode::Rgb16, None, None).unwrap();
        colour.expand(&[1, 255, 2, 255, 3, 255], &mut rgb[..3]);
        assert_eq!(rgb[..3], [1, 2, 3]);
    }

    #[test]
    fn the_key_is_compared_by_its_low_byte_with_the_finished_pixel() {
        let key = Transparency::read(ColourMode::Rgb16, &[32, 0, 0, 5, 9, 6]).unwrap();
        let expander = Expander::new(ColourMode::Rgb16, None, key).unwrap();
        let mut rgb = [7; 6];
        expander.expand(&[0, 99, 5, 0, 6, 0, 32, 0, 0, 5, 9, 6], &mut rgb);
        assert_eq!(rgb, [255, 255, 255, 32, 0, 9]);
    }

    #[test]
    fn palettes_lie_on_white() {
        let alphas = Some(Transparency::Alphas(&[0, 128]));
        let expander = Expander::new(ColourMode::Palette(8), Some(&[1, 2, 3, 0, 0, 0, 9, 8, 7]), alphas).unwrap();
        let mut rgb = [7; 12];
        expander.expand(&[0, 1, 2, 3], &mut rgb);
        assert_eq!(rgb, [255, 255, 255, 127, 127, 127, 9, 8, 7, 0, 0, 0]);
        assert!(Expander::new(ColourMode::Palette(8), Some(&[0; 257 * 3]), None).is_none());
    }
}
