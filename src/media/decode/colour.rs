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
    for (out, pixel) in rgb.chunks_exact_mut(3).zip(rgba.chunks_exact(4)) {
        let alpha = pixel[3];
        out[0] = on_white(pixel[0], alpha);
        out[1] = on_white(pixel[1], alpha);
        out[2] = on_white(pixel[2], alpha);
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

    #[test]
    fn inks_darken() {
        assert_eq!(cmyk_to_rgb([0, 0, 0, 0]), [255, 255, 255]);
        assert_eq!(cmyk_to_rgb([0, 0, 0, 255]), [0, 0, 0]);
        assert_eq!(cmyk_to_rgb([255, 0, 0, 0]), [0, 255, 255]);
        assert_eq!(cmyk_to_rgb([128, 64, 32, 16]), [119, 179, 209]);
    }
}
