//! Decoding a picture to its target size, with as little of the full picture in memory as its format allows.

use super::passes::pass;
use crate::media::decode::{self, CACHED_OFFSET_BYTES, DecodeError, Header, Size};

/// Rows of a picture that are decoded before they are narrowed together: enough that computing the weights anew for each
/// band is lost in the work, few enough to be a small part of a large picture.
const BAND_BYTES: usize = if cfg!(test) { 32 << 10 } else { 4 << 20 };

/// Memory for decoding and resizing, to be used again for the next picture: fresh memory of this size costs as much as the resize.
#[derive(Debug, Default)]
pub struct Scratch {
    decoding: decode::Scratch,
    /// The full picture, or a band of it.
    full: decode::Scratch,
    /// The picture with its final width and all of its rows.
    narrow: decode::Scratch,
}

impl Scratch {
    /// What it keeps from the system.
    pub fn held_bytes(&self) -> usize {
        [&self.decoding, &self.full, &self.narrow].map(decode::Scratch::held_bytes).iter().sum()
    }

    /// Gives memory back unless it is at most `bytes`.
    pub fn keep_at_most(&mut self, bytes: usize) {
        if self.held_bytes() > bytes {
            *self = Scratch::default();
        }
    }
}

/// What [`decode_resized`] allocates beside its output and what [`Header::scratch_bytes`] counts.
pub fn scratch_bytes(header: &Header, target: Size) -> usize {
    let from = header.size();
    if from == target {
        return 0;
    }
    let between = Size { width: target.width, ..from };
    if between == from {
        return from.rgb_bytes();
    }
    let narrow = if between == target { 0 } else { between.rgb_bytes() };
    (CACHED_OFFSET_BYTES + header.band_bytes(BAND_BYTES)).saturating_add(narrow)
}

/// As [`decode::decode_into`], with the picture resized to `target`, a size of [`SmartResize::target`].
///
/// Rows are narrowed as they come, where the format gives them one after the other; the full picture is then never in
/// memory.
///
/// [`SmartResize::target`]: super::SmartResize::target
///
/// # Errors
///
/// Those of decoding.
pub fn decode_resized(
    bytes: &[u8],
    header: &Header,
    target: Size,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), DecodeError> {
    let Scratch { decoding, full, narrow } = scratch;
    let from = header.size();
    if from == target {
        return decode::decode_into(bytes, header, out, decoding);
    }
    let between = Size { width: target.width, ..from };
    if between == from {
        let full = full.bytes(from.rgb_bytes());
        decode::decode_into(bytes, header, full, decoding)?;
        return pass(full, from, out, target);
    }
    let band = full.bytes(CACHED_OFFSET_BYTES + header.band_bytes(BAND_BYTES));
    let band = &mut band[CACHED_OFFSET_BYTES..];
    let narrow_rows = |rows: &[u8], narrow: &mut [u8]| {
        let height = (rows.len() / from.row_bytes()) as u32;
        pass(rows, Size { height, ..from }, narrow, Size { height, ..target })
    };
    let mut narrow_all = |narrow: &mut [u8]| {
        let mut left = narrow;
        decode::decode_in_bands(bytes, header, band, decoding, &mut |rows| {
            let narrow_bytes = rows.len() / from.row_bytes() * target.row_bytes();
            let Some((these, rest)) = std::mem::take(&mut left).split_at_mut_checked(narrow_bytes) else {
                return Err(DecodeError::OutputLength { expected: narrow_bytes, actual: 0 });
            };
            left = rest;
            narrow_rows(rows, these)
        })
    };
    if between == target {
        return narrow_all(out);
    }
    let narrow = narrow.bytes(between.rgb_bytes());
    narrow_all(narrow)?;
    pass(narrow, between, out, target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::decode::{DecodeLimits, Probe, decode_into, probe};

    const PHOTOGRAPH: &[u8] = include_bytes!("../../../tests/data/paris.jpg");
    const ON_ITS_SIDE: &[u8] = include_bytes!("../../../tests/data/images/exif_6.jpg");
    const DRAWING: &[u8] = include_bytes!("../../../tests/data/images/rgb.png");

    fn header(file: &[u8]) -> Header {
        match probe(file, &DecodeLimits::default()) {
            Ok(Probe::Decodable(header)) => header,
            other => panic!("{other:?}"),
        }
    }

    /// The whole picture first, then each pass over all of it.
    fn simply(file: &[u8], target: Size) -> Vec<u8> {
        let header = header(file);
        let (from, between) = (header.size(), Size { width: target.width, ..header.size() });
        let mut full = vec![0; from.rgb_bytes()];
        decode_into(file, &header, &mut full, &mut decode::Scratch::default()).unwrap();
        let mut narrow = vec![0; between.rgb_bytes()];
        pass(&full, from, &mut narrow, between).unwrap();
        let mut out = vec![0; target.rgb_bytes()];
        pass(&narrow, between, &mut out, target).unwrap();
        out
    }

    #[test]
    fn rows_that_are_narrowed_as_they_come_give_the_same_picture() {
        let mut scratch = Scratch::default();
        for file in [PHOTOGRAPH, ON_ITS_SIDE, DRAWING] {
            let header = header(file);
            let Size { height, width } = header.size();
            for (height, width) in
                [(height / 2, width / 3), (height, width / 2), (height / 2, width), (1, 1), (height - 1, width - 1)]
            {
                let target = Size { height, width };
                let mut out = vec![0xa5; target.rgb_bytes()];
                decode_resized(file, &header, target, &mut out, &mut scratch).unwrap();
                assert!(out == simply(file, target), "{target:?}");
            }
        }
    }

    #[test]
    fn a_photograph_is_never_whole_in_memory() {
        let header = header(PHOTOGRAPH);
        let Size { height, width } = header.size();
        let mut scratch = Scratch::default();
        let target = Size { height: height / 4, width: width / 4 };
        let counted = scratch_bytes(&header, target);
        decode_resized(PHOTOGRAPH, &header, target, &mut vec![0; target.rgb_bytes()], &mut scratch).unwrap();
        assert_eq!(scratch.held_bytes(), counted);
        assert!(header.rgb_bytes() > 8 * BAND_BYTES && counted < header.rgb_bytes() / 2);
        scratch.keep_at_most(counted);
        assert_eq!(scratch.held_bytes(), counted);
        scratch.keep_at_most(counted - 1);
        assert_eq!(scratch.held_bytes(), 0);
    }

    #[test]
    fn a_jpeg_at_a_fraction_of_its_size_shows_nearly_the_same() {
        let full = header(PHOTOGRAPH);
        let sizes = |of: [(u32, u32); 2]| of.map(|(height, width)| Size { height, width });
        // A pattern of single pixels differs more.
        for (file, [target, reduced_size], most) in
            [(PHOTOGRAPH, sizes([(70, 90), (76, 101)]), 4), (ON_ITS_SIDE, sizes([(12, 6), (19, 12)]), 12)]
        {
            let reduced = header(file).reduced_to_cover(target).unwrap();
            assert_eq!(reduced.size(), reduced_size);
            let mut out = vec![0; target.rgb_bytes()];
            decode_resized(file, &reduced, target, &mut out, &mut Scratch::default()).unwrap();
            let expected = simply(file, target);
            let sum: u64 = out.iter().zip(&expected).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
            assert!(
                out != expected && sum < most * out.len() as u64,
                "{} levels a value",
                sum as f64 / out.len() as f64
            );
        }
        // Not even a half would cover it.
        assert!(full.reduced_to_cover(Size { height: 152, width: 20 }).is_none());
        assert!(header(DRAWING).reduced_to_cover(Size { height: 1, width: 1 }).is_none());
        let half = full.reduced_to_cover(Size { height: 151, width: 202 }).unwrap();
        assert_eq!(half.size(), Size { height: 151, width: 202 });
        let mut out = vec![0; half.rgb_bytes()];
        decode_resized(PHOTOGRAPH, &half, half.size(), &mut out, &mut Scratch::default()).unwrap();
    }

    #[test]
    fn a_broken_file_is_refused_as_ever() {
        let header = header(PHOTOGRAPH);
        let target = Size { height: 28, width: 28 };
        let half = &PHOTOGRAPH[..PHOTOGRAPH.len() / 2];
        let result = decode_resized(half, &header, target, &mut vec![0; target.rgb_bytes()], &mut Scratch::default());
        assert!(matches!(result, Err(DecodeError::Truncated(_))), "{result:?}");
        let result = decode_resized(PHOTOGRAPH, &header, target, &mut [0; 5], &mut Scratch::default());
        assert!(matches!(result, Err(DecodeError::OutputLength { .. })), "{result:?}");
    }
}
