//! Rows of uncompressed pixels, as the simple formats store them, to RGB.

use super::colour::{each_packed, on_white, ordered, ordered_on_white};

/// 256 colours; those that a file does not have are black.
pub(super) type Palette = Box<[[u8; 3]]>;

/// Where a pixel's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Rgb,
    Bgr,
    /// Which of four bytes are red, green and blue.
    Four([u8; 3]),
    /// Which of four bytes are red, green, blue and alpha.
    FourWithAlpha([u8; 4]),
}

impl Order {
    pub(super) const BGRX: Self = Self::Four([2, 1, 0]);
    pub(super) const BGRA: Self = Self::FourWithAlpha([2, 1, 0, 3]);

    /// Bytes of a pixel.
    fn step(self) -> usize {
        match self {
            Self::Rgb | Self::Bgr => 3,
            Self::Four(_) | Self::FourWithAlpha(_) => 4,
        }
    }

    /// The same colours, whatever their alpha.
    pub(super) fn without_alpha(self) -> Self {
        match self {
            Self::FourWithAlpha([red, green, blue, _]) => Self::Four([red, green, blue]),
            order => order,
        }
    }

    /// Which bytes are red, green and blue.
    fn colours(self) -> [u8; 3] {
        match self {
            Self::Rgb => [0, 1, 2],
            Self::Bgr => [2, 1, 0],
            Self::Four(order) => order,
            Self::FourWithAlpha([red, green, blue, _]) => [red, green, blue],
        }
    }
}

/// How a row is stored.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    /// 1, 2, 4 or 8 bits, from the highest of each byte on, into a palette.
    Index(u8, Palette),
    /// Grey and alpha.
    GreyAlpha,
    Bytes(Order),
    /// Little-endian words of five bits a channel.
    Bgr555,
    /// As `Bgr555`; where the highest bit is set, the pixel is transparent.
    Bgra5551,
    /// Little-endian words of five, six and five bits.
    Bgr565,
}

impl Layout {
    /// 8 bits of grey.
    pub(super) fn grey() -> Self {
        Self::Index(8, (0..=255).map(|value| [value; 3]).collect())
    }

    /// One bit: the colours of 0 and 1.
    pub(super) fn bits(zero: u8, one: u8) -> Self {
        Self::Index(1, palette(&[zero, zero, zero, one, one, one], Order::Rgb).unwrap_or_default())
    }

    pub(super) fn bits_per_pixel(&self) -> usize {
        match self {
            Self::Index(depth, _) => usize::from(*depth),
            Self::GreyAlpha | Self::Bgr555 | Self::Bgra5551 | Self::Bgr565 => 16,
            Self::Bytes(order) => order.step() * 8,
        }
    }

    /// Bytes of a stored row, without padding.
    pub(super) fn row_bytes(&self, width: u32) -> usize {
        (width as usize * self.bits_per_pixel()).div_ceil(8)
    }

    /// Turns a stored row into `rgb`, three bytes for each of its pixels.
    pub(super) fn expand(&self, stored: &[u8], rgb: &mut [u8]) {
        let pixels = rgb.as_chunks_mut::<3>().0;
        let words = || stored.as_chunks::<2>().0.iter().map(|word| u16::from_le_bytes(*word));
        match self {
            Self::Index(8, palette) => {
                pixels.iter_mut().zip(stored).for_each(|(out, &index)| *out = palette[usize::from(index)]);
            }
            Self::Index(depth, palette) => each_packed(stored, *depth, pixels, |index| palette[usize::from(index)]),
            Self::GreyAlpha => {
                let values = stored.as_chunks::<2>().0;
                pixels.iter_mut().zip(values).for_each(|(out, &[grey, alpha])| *out = [on_white(grey, alpha); 3]);
            }
            Self::Bytes(Order::Rgb) => rgb.copy_from_slice(&stored[..rgb.len()]),
            Self::Bytes(Order::Bgr) => {
                pixels.iter_mut().zip(stored.as_chunks::<3>().0).for_each(|(out, &[b, g, r])| *out = [r, g, b]);
            }
            Self::Bytes(Order::Four(order)) => ordered(stored, *order, rgb),
            Self::Bytes(Order::FourWithAlpha(order)) => ordered_on_white(stored, *order, rgb),
            Self::Bgr555 => pixels.iter_mut().zip(words()).for_each(|(out, word)| *out = bgr555(word)),
            Self::Bgra5551 => pixels.iter_mut().zip(words()).for_each(|(out, word)| {
                *out = if word >> 15 == 0 { bgr555(word) } else { [255; 3] };
            }),
            Self::Bgr565 => pixels.iter_mut().zip(words()).for_each(|(out, word)| {
                *out = [scale(word >> 11, 31), scale(word >> 5, 63), scale(word, 31)];
            }),
        }
    }
}

fn bgr555(word: u16) -> [u8; 3] {
    [scale(word >> 10, 31), scale(word >> 5, 31), scale(word, 31)]
}

/// The low bits of a value, spread over a byte; rounded down, as in the reference.
fn scale(value: u16, most: u16) -> u8 {
    ((value & most) * 255 / most) as u8
}

/// Colours as they are stored; their alpha plays no part. `None` if there are more than 256.
pub(super) fn palette(stored: &[u8], order: Order) -> Option<Palette> {
    let mut palette = vec![[0; 3]; 256];
    let entries = stored.chunks_exact(order.step());
    for (out, entry) in palette.get_mut(..entries.len())?.iter_mut().zip(entries) {
        *out = order.colours().map(|at| entry[usize::from(at)]);
    }
    Some(palette.into())
}

/// A palette of 16-bit words, as TGA has it.
pub(super) fn palette_of_words(stored: &[u8]) -> Option<Palette> {
    let mut palette = vec![[0; 3]; 256];
    let words = stored.as_chunks::<2>().0;
    for (out, word) in palette.get_mut(..words.len())?.iter_mut().zip(words) {
        *out = bgr555(u16::from_le_bytes(*word));
    }
    Some(palette.into())
}

/// Rows one after another in a file.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pub(super) layout: Layout,
    /// Where the first begins.
    pub(super) at: usize,
    /// From the beginning of one row to that of the next; no less than a row.
    pub(super) stride: usize,
    /// The last row comes first.
    pub(super) bottom_up: bool,
}

impl Rows {
    /// Fills `out` with rows of `width` pixels; `None` where the data ends before.
    pub(super) fn decode(&self, bytes: &[u8], width: u32, out: &mut [u8]) -> Option<()> {
        let row_bytes = self.layout.row_bytes(width);
        let rgb_row_bytes = width as usize * 3;
        let mut at = self.at;
        let mut row = |out: &mut [u8]| {
            let stored = bytes.get(at..at.checked_add(row_bytes)?)?;
            self.layout.expand(stored, out);
            at += self.stride;
            Some(())
        };
        if self.bottom_up {
            out.chunks_exact_mut(rgb_row_bytes).rev().try_for_each(&mut row)
        } else {
            out.chunks_exact_mut(rgb_row_bytes).try_for_each(&mut row)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_and_six_bits_round_down() {
        let mut rgb = [0; 6];
        Layout::Bgr555.expand(&[0b0010_0001, 0b1111_1100, 0xff, 0x7f], &mut rgb);
        assert_eq!(rgb, [255, 8, 8, 255, 255, 255]);
        Layout::Bgr565.expand(&[0b0010_0001, 0b1111_1000, 0xff, 0xff], &mut rgb);
        assert_eq!(rgb, [255, 4, 8, 255, 255, 255]);
        Layout::Bgra5551.expand(&[0, 0, 0, 0x80], &mut rgb);
        assert_eq!(rgb, [0, 0, 0, 255, 255, 255]);
    }

    #[test]
    fn rows_may_be_padded_and_upside_down() {
        let rows = Rows { layout: Layout::Bytes(Order::Bgr), at: 1, stride: 4, bottom_up: true };
        let mut rgb = [0; 6];
        assert_eq!(rows.decode(&[9, 1, 2, 3, 0, 4, 5, 6], 1, &mut rgb), Some(()));
        assert_eq!(rgb, [6, 5, 4, 3, 2, 1]);
        assert_eq!(rows.decode(&[9, 1, 2, 3, 0, 4, 5], 1, &mut rgb), None);
    }
}
