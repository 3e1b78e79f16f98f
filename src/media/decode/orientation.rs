//! Which way up a picture is: what EXIF and XMP say of it, and turning it in place.
//!
//! EXIF is a TIFF directory; XMP counts only where EXIF has no orientation; a directory that cannot be opened at all
//! turns both off, as in the reference. The walk over the directory stops where the reference's stops, so that a
//! damaged entry before the orientation has the same effect.

use std::ops::ControlFlow;

use memchr::memmem;

use super::bytes::Endian;
use super::ifd;
use super::rewrite;
#[cfg(target_arch = "x86_64")]
use super::shuffles;

/// EXIF's tag 274.
const ORIENTATION_TAG: u16 = 274;

/// How a stored picture has to be turned to be upright: EXIF's values 1 to 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Orientation {
    #[default]
    Upright,
    FlipHorizontal,
    Rotate180,
    FlipVertical,
    Transpose,
    Rotate270,
    Transverse,
    Rotate90,
}

impl Orientation {
    /// The value of a tag; what is not between 2 and 8 means upright.
    fn from_value(value: u32) -> Self {
        match value {
            2 => Self::FlipHorizontal,
            3 => Self::Rotate180,
            4 => Self::FlipVertical,
            5 => Self::Transpose,
            6 => Self::Rotate270,
            7 => Self::Transverse,
            8 => Self::Rotate90,
            _ => Self::Upright,
        }
    }

    /// The value of a tag that says so.
    pub(super) fn value(self) -> u8 {
        self as u8 + 1
    }

    /// The orientation by a file's EXIF block and XMP packet.
    pub(super) fn from_metadata(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> Self {
        let from_xmp = || xmp.and_then(xmp_orientation).unwrap_or_default();
        let tiff = exif.map(without_prefix).unwrap_or_default();
        let orientation = match exif_orientation(tiff) {
            Exif::Says(orientation) => orientation,
            Exif::Silent => from_xmp(),
            Exif::Broken => Self::Upright,
        };
        let is_turned = orientation == Self::Upright
            || ifd::header(tiff).is_none_or(|(endian, at)| rewrite::succeeds(tiff, endian, at));
        if is_turned { orientation } else { Self::Upright }
    }

    /// Whether height and width change places.
    pub(super) fn swaps_sides(self) -> bool {
        matches!(self, Self::Transpose | Self::Rotate270 | Self::Transverse | Self::Rotate90)
    }

    /// Turns RGB rows of `width` pixels without other memory. Those that swap sides need a [`Turner`](super::turn::Turner).
    pub(super) fn turn_in_place(self, rgb: &mut [u8], width: usize) {
        debug_assert!(!self.swaps_sides());
        match self {
            Self::FlipHorizontal => {
                rgb.chunks_exact_mut(width * 3).for_each(reverse);
            }
            Self::Rotate180 => reverse(rgb),
            Self::FlipVertical => {
                let mut rows = rgb.chunks_exact_mut(width * 3);
                while let (Some(top), Some(bottom)) = (rows.next(), rows.next_back()) {
                    top.swap_with_slice(bottom);
                }
            }
            _ => {}
        }
    }
}

/// Reverses the order of RGB pixels.
fn reverse(rgb: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    let done = if is_x86_feature_detected!("ssse3") {
        // SAFETY: the processor has what the function is compiled for.
        unsafe { shuffles::reverse(rgb) }
    } else {
        0
    };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    let pixels = rgb.as_chunks_mut::<3>().0;
    let left = done..pixels.len() - done;
    pixels[left].reverse();
}

/// What an EXIF block has to say of orientation.
#[derive(Debug, PartialEq)]
enum Exif {
    Says(Orientation),
    /// Readable, no such tag: XMP may speak.
    Silent,
    /// Not a TIFF header: nobody is asked any more.
    Broken,
}

/// An EXIF block without its `Exif\0\0`, of which there may be up to two.
fn without_prefix(block: &[u8]) -> &[u8] {
    const PREFIX: &[u8] = b"Exif\0\0";
    let tiff = block.strip_prefix(PREFIX).unwrap_or(block);
    if tiff.len() < block.len() { tiff.strip_prefix(PREFIX).unwrap_or(tiff) } else { tiff }
}

/// Orientation by an EXIF block without prefix.
fn exif_orientation(tiff: &[u8]) -> Exif {
    if tiff.is_empty() {
        return Exif::Silent;
    }
    match ifd::header(tiff) {
        None => Exif::Broken,
        Some((endian, at)) => directory_orientation(tiff, endian, at).map_or(Exif::Silent, Exif::Says),
    }
}

/// The orientation in the TIFF directory at `at`, if it has one that can be read.
pub(super) fn directory_orientation(tiff: &[u8], endian: Endian, at: usize) -> Option<Orientation> {
    let mut found = None;
    ifd::walk(tiff, endian, at, |entry| {
        if entry.tag != ORIENTATION_TAG {
            return ControlFlow::Continue(());
        }
        found = Some(entry.number(endian).map_or(Orientation::Upright, Orientation::from_value));
        ControlFlow::Break(())
    });
    found
}

/// The first `tiff:Orientation="6"` or `<tiff:Orientation>6` of an XMP packet.
pub(super) fn xmp_orientation(packet: &[u8]) -> Option<Orientation> {
    const NAME: &[u8] = b"tiff:Orientation";
    memmem::find_iter(packet, NAME).find_map(|at| {
        let rest = &packet[at + NAME.len()..];
        let value = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">"))?.first()?;
        value.is_ascii_digit().then(|| Orientation::from_value(u32::from(value - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Size, turn::Turner};
    use super::*;

    fn exif(kind: u16, count: u32, value: [u8; 4]) -> Vec<u8> {
        let mut block = b"II\x2a\0\x08\0\0\0\x01\0".to_vec();
        block.extend(ORIENTATION_TAG.to_le_bytes());
        block.extend(kind.to_le_bytes());
        block.extend(count.to_le_bytes());
        block.extend(value);
        block.extend([0; 4]);
        block
    }

    #[test]
    fn a_number_of_any_type_counts_and_bytes_do_not() {
        let six = Exif::Says(Orientation::Rotate270);
        assert_eq!(exif_orientation(&exif(3, 1, [6, 0, 0, 0])), six);
        assert_eq!(exif_orientation(&exif(4, 1, [6, 0, 0, 0])), six);
        assert_eq!(exif_orientation(&exif(11, 1, 6f32.to_le_bytes())), six);
        assert_eq!(exif_orientation(&exif(1, 1, [6, 0, 0, 0])), Exif::Says(Orientation::Upright));
        assert_eq!(exif_orientation(&exif(3, 1, [9, 0, 0, 0])), Exif::Says(Orientation::Upright));
    }

    #[test]
    fn prefixes_are_optional() {
        let block = exif(3, 1, [3, 0, 0, 0]);
        for prefixes in 0..=2 {
            let prefixed = [b"Exif\0\0".repeat(prefixes), block.clone()].concat();
            assert_eq!(exif_orientation(without_prefix(&prefixed)), Exif::Says(Orientation::Rotate180));
        }
    }

    #[test]
    fn xmp_speaks_only_where_exif_is_silent() {
        let xmp: &[u8] = b"<x tiff:Orientation='1' tiff:Orientation=\"8\"/>";
        let says_one = exif(3, 1, [1, 0, 0, 0]);
        assert_eq!(Orientation::from_metadata(None, Some(xmp)), Orientation::Rotate90);
        assert_eq!(Orientation::from_metadata(Some(b""), Some(xmp)), Orientation::Rotate90);
        assert_eq!(Orientation::from_metadata(Some(b"MM\0\x2a\0\0\0\x08"), Some(xmp)), Orientation::Rotate90);
        assert_eq!(Orientation::from_metadata(Some(b"garbage!"), Some(xmp)), Orientation::Upright);
        assert_eq!(Orientation::from_metadata(Some(&says_one), Some(xmp)), Orientation::Upright);
    }

    #[test]
    fn pixels_are_reversed_whatever_their_number() {
        for pixels in (0..70).chain([1000, 1001]) {
            let stored: Vec<u8> = (0..pixels * 3).map(|at| (at * 7 % 251) as u8).collect();
            let mut reversed = stored.clone();
            reverse(&mut reversed);
            let expected: Vec<u8> = stored.as_chunks::<3>().0.iter().rev().flatten().copied().collect();
            assert_eq!(reversed, expected, "{pixels} pixels");
        }
    }

    #[test]
    fn turning() {
        // A picture of two rows and three columns; each pixel is its letter three times.
        let pixels = |letters: &str| letters.bytes().flat_map(|b| [b; 3]).collect::<Vec<u8>>();
        let stored = pixels("abcdef");
        for (orientation, upright) in [
            (Orientation::Upright, "abcdef"),
            (Orientation::FlipHorizontal, "cbafed"),
            (Orientation::Rotate180, "fedcba"),
            (Orientation::FlipVertical, "defabc"),
            (Orientation::Transpose, "adbecf"),
            (Orientation::Rotate270, "daebfc"),
            (Orientation::Transverse, "fcebda"),
            (Orientation::Rotate90, "cfbead"),
        ] {
            let mut out = stored.clone();
            if orientation.swaps_sides() {
                Turner::new(orientation, Size { height: 2, width: 3 }, &mut out).turn::<3>(&stored, 9);
            } else {
                orientation.turn_in_place(&mut out, 3);
            }
            assert_eq!(out, pixels(upright), "{orientation:?}");
        }
    }
}
