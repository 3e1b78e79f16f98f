//! Which size a model's image processor gives to a picture.

use crate::media::decode::Size;

/// Beyond this side ratio the processor refuses a picture.
const MAX_ASPECT: f64 = 200.0;

/// Longer than any side that is decoded; up to here all of the arithmetic below is exact where Python's is.
const MAX_SIDE: u32 = 1 << 20;

/// Beyond this, the weights of so many pixels are so small that fixed point may be chosen one bit apart in the two
/// implementations (seen from a hundred and fifty on).
const MAX_SHRINK: u32 = 64;

/// The rule of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: `smart_resize` of transformers'
/// `models/qwen2_vl/image_processing_qwen2_vl.py`. Sides become multiples of `factor`, and the number of pixels comes to
/// lie between `min_pixels` and `max_pixels`, with the sides' ratio kept as well as that allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SmartResize {
    factor: u32,
    min_pixels: u64,
    max_pixels: u64,
}

impl SmartResize {
    /// `factor` is the side in pixels of what becomes one token: patch size times merge size. `None` for numbers with which
    /// the processor does not work, or that are so large that it is not certain how it would.
    pub fn new(factor: u32, min_pixels: u64, max_pixels: u64) -> Option<Self> {
        let sane = (1..=1024).contains(&factor) && (1..=1 << 40).contains(&max_pixels) && min_pixels <= max_pixels;
        sane.then_some(SmartResize { factor, min_pixels, max_pixels })
    }

    /// All of the rule, for hashing.
    pub fn to_bytes(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&self.factor.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.min_pixels.to_le_bytes());
        bytes[12..].copy_from_slice(&self.max_pixels.to_le_bytes());
        bytes
    }

    /// The size to which the gateway may resize a picture, so that the processor makes of the result what it would have
    /// made of the picture: the size that the processor chooses, if that enlarges no side, shrinks one, and is the size that
    /// the processor would choose again.
    pub fn target(&self, size: Size) -> Option<Size> {
        let target = self.processed(size)?;
        let shrinks = target.height <= size.height && target.width <= size.width && target != size;
        let little = size.height / target.height < MAX_SHRINK && size.width / target.width < MAX_SHRINK;
        (shrinks && little && self.processed(target) == Some(target)).then_some(target)
    }

    /// The size that the processor gives to a picture of this size; `None` if it refuses the picture, or for sizes that no
    /// picture of ours has.
    ///
    /// Each operation is Python's: `/` of integers is the correctly rounded quotient, `round` goes to even.
    pub fn processed(&self, Size { height, width }: Size) -> Option<Size> {
        let (short, long) = (height.min(width), height.max(width));
        if short == 0 || long > MAX_SIDE || f64::from(long) / f64::from(short) > MAX_ASPECT {
            return None;
        }
        let factor = f64::from(self.factor);
        let (height, width) = (f64::from(height), f64::from(width));
        let (pixels, min_pixels, max_pixels) = (height * width, self.min_pixels as f64, self.max_pixels as f64);
        let nearest = |side: f64| (side / factor).round_ties_even() * factor;
        let (mut to_height, mut to_width) = (nearest(height), nearest(width));
        let to_pixels = to_height * to_width;
        if to_pixels > max_pixels {
            let beta = (pixels / max_pixels).sqrt();
            let below = |side: f64| ((side / beta / factor).floor() * factor).max(factor);
            (to_height, to_width) = (below(height), below(width));
        } else if to_pixels < min_pixels {
            let beta = (min_pixels / pixels).sqrt();
            let above = |side: f64| (side * beta / factor).ceil() * factor;
            (to_height, to_width) = (above(height), above(width));
        }
        let whole = |side: f64| (1.0..=f64::from(u32::MAX)).contains(&side).then_some(side as u32);
        Some(Size { height: whole(to_height)?, width: whole(to_width)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QWEN2_5: (u32, u64, u64) = (28, 3136, 12_845_056);
    const QWEN3: (u32, u64, u64) = (32, 65_536, 16_777_216);

    fn rule((factor, min, max): (u32, u64, u64)) -> SmartResize {
        SmartResize::new(factor, min, max).unwrap()
    }

    fn size((height, width): (u32, u32)) -> Size {
        Size { height, width }
    }

    #[test]
    fn sizes_are_those_of_transformers() {
        // Made by transformers 5.19; the test against the processors themselves has many more.
        for (of, from, to) in [
            (QWEN2_5, (1080, 1920), Some((1092, 1932))),
            (QWEN2_5, (3024, 4032), Some((3024, 4032))),
            (QWEN2_5, (6000, 8000), Some((3080, 4116))),
            (QWEN2_5, (28, 28), Some((56, 56))),
            // To even: 1.5 and 2.5 both become 2, and 42 x 28 is too few pixels.
            (QWEN2_5, (70, 154), Some((56, 168))),
            (QWEN2_5, (98, 98), Some((112, 112))),
            (QWEN2_5, (10, 2001), None),
            (QWEN3, (480, 640), Some((480, 640))),
            (QWEN3, (1080, 1920), Some((1088, 1920))),
            (QWEN3, (1, 1), Some((256, 256))),
        ] {
            assert_eq!(rule(of).processed(size(from)), to.map(size), "{of:?} {from:?}");
        }
    }

    #[test]
    fn only_what_shrinks_has_a_target() {
        let small = rule((28, 3136, 1_003_520));
        assert_eq!(small.target(size((3024, 4032))), Some(size((840, 1148))));
        // Rounded up on one side.
        assert_eq!(rule(QWEN3).target(size((1080, 1920))), None);
        assert_eq!(rule(QWEN3).target(size((1088, 1920))), None);
        assert_eq!(rule(QWEN3).target(size((1089, 1929))), Some(size((1088, 1920))));
        assert_eq!(rule(QWEN3).target(size((0, 1920))), None);
    }

    #[test]
    fn numbers_that_mean_nothing_are_no_rule() {
        for (factor, min, max) in [(0, 1, 2), (28, 0, 0), (28, 5, 4), (28, 1, u64::MAX), (u32::MAX, 1, 2)] {
            assert_eq!(SmartResize::new(factor, min, max), None);
        }
    }

    proptest! {
        #[test]
        fn a_target_is_smaller_and_its_own_target_is_itself(
            height in 1u32..=16_384, width in 1u32..=16_384,
            factor in prop::sample::select(vec![14u32, 28, 32]), min in 0u64..4_000_000, more in 1u64..20_000_000,
        ) {
            let rule = rule((factor, min, min + more));
            if let Some(target) = rule.target(Size { height, width }) {
                prop_assert!(target.height <= height && target.width <= width);
                prop_assert_eq!(rule.processed(target), Some(target));
                prop_assert_eq!(rule.target(target), None);
                prop_assert!(target.height % factor == 0 && target.width % factor == 0);
            }
        }
    }
}
