//! Arithmetic on pixels that has to round as the reference does.

/// `a * b / 255` as Pillow rounds it.
#[inline]
pub(super) fn mul_div_255(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    (((product >> 8) + product) >> 8) as u8
}

/// One channel of a pixel laid on white, rounded as Pillow's `paste` with a mask does.
#[inline]
pub(super) fn on_white(channel: u8, alpha: u8) -> u8 {
    let sum = u32::from(channel) * u32::from(alpha) + 255 * (255 - u32::from(alpha)) + 128;
    (((sum >> 8) + sum) >> 8) as u8
}

/// RGBA pixels laid on white. `rgba` has four bytes a pixel, `rgb` three.
pub(super) fn rgba_on_white(rgba: &[u8], rgb: &mut [u8]) {
    ordered_on_white(rgba, [0, 1, 2, 3], rgb);
}

/// Pixels of four bytes laid on white; `order` says which of them are red, green, blue and alpha.
pub(super) fn ordered_on_white(stored: &[u8], order: [u8; 4], rgb: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    let done = if is_x86_feature_detected!("ssse3") {
        // SAFETY: the processor has what the function is compiled for.
        unsafe { super::shuffles::on_white(stored, order, rgb) }
    } else {
        0
    };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    let pixels = rgb[done * 3..].as_chunks_mut::<3>().0;
    for (out, pixel) in pixels.iter_mut().zip(stored[done * 4..].as_chunks::<4>().0) {
        let [red, green, blue, alpha] = order.map(|at| pixel[usize::from(at)]);
        *out = [red, green, blue].map(|channel| on_white(channel, alpha));
    }
}

/// Pixels of four bytes, of which `order` says which are red, green and blue.
pub(super) fn ordered(stored: &[u8], order: [u8; 3], rgb: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    let done = if is_x86_feature_detected!("ssse3") {
        // SAFETY: the processor has what the function is compiled for.
        unsafe { super::shuffles::pick(stored, order, rgb) }
    } else {
        0
    };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    let pixels = rgb[done * 3..].as_chunks_mut::<3>().0;
    for (out, pixel) in pixels.iter_mut().zip(stored[done * 4..].as_chunks::<4>().0) {
        *out = order.map(|at| pixel[usize::from(at)]);
    }
}

/// Greys of 8 bits.
pub(super) fn grey_to_rgb(grey: &[u8], rgb: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    let done = if is_x86_feature_detected!("ssse3") {
        // SAFETY: the processor has what the function is compiled for.
        unsafe { super::shuffles::grey(grey, rgb) }
    } else {
        0
    };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    let pixels = rgb[done * 3..].as_chunks_mut::<3>().0;
    pixels.iter_mut().zip(&grey[done..]).for_each(|(out, &grey)| *out = [grey; 3]);
}

/// A colour as an entry of the table of [`indexed`].
pub(super) fn entry([red, green, blue]: [u8; 3]) -> u32 {
    u32::from_le_bytes([red, green, blue, 0])
}

/// Indices of 8 bits into a table of [`entry`], four pixels in three words.
pub(super) fn indexed(indices: &[u8], table: &[u32; 256], rgb: &mut [u8]) {
    let (blocks, rest) = rgb.as_chunks_mut::<12>();
    let (fours, last) = indices.as_chunks::<4>();
    for (out, four) in blocks.iter_mut().zip(fours) {
        let [a, b, c, d] = four.map(|index| table[usize::from(index)]);
        let words = [a | b << 24, b >> 8 | c << 16, c >> 16 | d << 8].map(u32::to_le_bytes);
        out.copy_from_slice(words.as_flattened());
    }
    for (out, &index) in rest.as_chunks_mut::<3>().0.iter_mut().zip(last) {
        out.copy_from_slice(&table[usize::from(index)].to_le_bytes()[..3]);
    }
}

/// CMYK, with 255 for full ink, to RGB as Pillow converts: no profile, `(255 - k)` darkened by each ink.
pub(super) fn cmyk_to_rgb(cmyk: [u8; 4]) -> [u8; 3] {
    let [c, m, y, k] = cmyk;
    let white = 255 - k;
    [c, m, y].map(|ink| white.saturating_sub(mul_div_255(ink, white)))
}

/// Colours of values of `depth` bits (1, 2 or 4), which are packed from the highest bit of each byte on.
pub(super) fn each_packed(stored: &[u8], depth: u8, pixels: &mut [[u8; 3]], colour: impl Fn(u8) -> [u8; 3]) {
    let per_byte = usize::from(8 / depth);
    let mask = ((1u16 << depth) - 1) as u8;
    for (pixels, byte) in pixels.chunks_mut(per_byte).zip(stored) {
        for (index, out) in pixels.iter_mut().enumerate() {
            *out = colour(byte >> (8 - depth * (index as u8 + 1)) & mask);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_is_exact_at_both_ends() {
        for channel in 0..=255 {
            assert_eq!(on_white(channel, 255), channel);
            assert_eq!(on_white(channel, 0), 255);
        }
    }

    #[test]
    fn alpha_rounds_to_nearest() {
        for channel in 0..=255u8 {
            for alpha in 0..=255u8 {
                let exact = (f64::from(channel) * f64::from(alpha) + 255.0 * (255.0 - f64::from(alpha))) / 255.0;
                assert!((f64::from(on_white(channel, alpha)) - exact).abs() <= 0.5);
            }
        }
    }

    /// Whatever the processor can do: rows of every length, and nothing beyond them.
    #[test]
    fn rows_are_as_their_pixels() {
        let stored: Vec<u8> = (0..4 * 70u32).map(|at| ((at * at * 31) >> 3) as u8).collect();
        let table: [u32; 256] = std::array::from_fn(|index| entry([index as u8, !(index as u8), 7]));
        for width in 0..70 {
            let row = |fill: &dyn Fn(&mut [u8])| {
                let mut rgb = vec![0xa5; width * 3 + 32];
                fill(&mut rgb[..width * 3]);
                assert!(rgb[width * 3..].iter().all(|&byte| byte == 0xa5));
                rgb[..width * 3].to_vec()
            };
            let pixels: Vec<_> = stored.as_chunks::<4>().0[..width].to_vec();
            let on_white: Vec<_> = pixels.iter().map(|&[r, g, b, a]| [r, g, b].map(|c| on_white(c, a))).collect();
            assert_eq!(row(&|rgb| rgba_on_white(pixels.as_flattened(), rgb)), on_white.as_flattened());
            let turned: Vec<_> = pixels.iter().map(|&[r, g, b, a]| [a, b, g, r]).collect();
            assert_eq!(row(&|rgb| ordered_on_white(turned.as_flattened(), [3, 2, 1, 0], rgb)), on_white.as_flattened());
            let picked: Vec<_> = pixels.iter().map(|&[r, g, b, _]| [r, g, b]).collect();
            assert_eq!(row(&|rgb| ordered(turned.as_flattened(), [3, 2, 1], rgb)), picked.as_flattened());
            let greys: Vec<_> = stored[..width].iter().map(|&grey| [grey; 3]).collect();
            assert_eq!(row(&|rgb| grey_to_rgb(&stored[..width], rgb)), greys.as_flattened());
            let colours: Vec<_> = stored[..width].iter().map(|&index| [index, !index, 7]).collect();
            assert_eq!(row(&|rgb| indexed(&stored[..width], &table, rgb)), colours.as_flattened());
        }
    }

    /// Every channel and alpha, through whatever does whole rows.
    #[test]
    fn white_is_the_same_in_rows() {
        for alpha in 0..=255 {
            let rgba: Vec<_> = (0..=255u8).flat_map(|c| [c, 255 - c, c / 2, alpha]).collect();
            let mut rgb = vec![0; 256 * 3];
            rgba_on_white(&rgba, &mut rgb);
            for (out, pixel) in rgb.as_chunks::<3>().0.iter().zip(rgba.as_chunks::<4>().0) {
                assert_eq!(*out, [0, 1, 2].map(|channel| on_white(pixel[channel], alpha)));
            }
        }
    }

    #[test]
    fn inks_darken() {
        assert_eq!(cmyk_to_rgb([0, 0, 0, 0]), [255, 255, 255]);
        assert_eq!(cmyk_to_rgb([0, 0, 0, 255]), [0, 0, 0]);
        assert_eq!(cmyk_to_rgb([255, 0, 0, 0]), [0, 255, 255]);
        assert_eq!(cmyk_to_rgb([128, 64, 32, 16]), [119, 179, 209]);
    }
}
