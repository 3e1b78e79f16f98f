//! The markers of a JPEG up to its first scan, read as the reference reads them.
//!
//! libjpeg would read them too, but the reference looks at them first, with rules of its own: it refuses what libjpeg
//! would take (12 bits, two components, malformed application segments), and its orientation comes from here.

use std::borrow::Cow;

use super::super::DecodeError;
use super::super::Size;
use super::super::bytes::Endian::Big;
use super::super::orientation::Orientation;
use super::super::sniff::Format;

/// What the markers say.
pub(super) struct Header {
    pub(super) size: Size,
    pub(super) components: u8,
    pub(super) orientation: Orientation,
    /// Bytes of the whole picture's DCT coefficients.
    pub(super) coefficient_bytes: usize,
    /// libjpeg keeps all coefficients: the file has, or may have, more than one scan.
    pub(super) many_scans: bool,
}

/// A frame header (SOF).
struct Frame {
    size: Size,
    progressive: bool,
    /// Horizontal and vertical sampling factor of each component.
    sampling: Vec<(u8, u8)>,
}

impl Frame {
    fn coefficient_bytes(&self) -> usize {
        let most = |factor: fn(&(u8, u8)) -> u8| u64::from(self.sampling.iter().map(factor).max().unwrap_or(1).max(1));
        let (most_across, most_down) = (most(|s| s.0), most(|s| s.1));
        let units_across = u64::from(self.size.width).div_ceil(8 * most_across);
        let units_down = u64::from(self.size.height).div_ceil(8 * most_down);
        let blocks: u64 = self.sampling.iter().map(|&(across, down)| u64::from(across) * u64::from(down)).sum();
        // 64 coefficients of two bytes a block.
        usize::try_from(units_across * units_down * blocks * 128).unwrap_or(usize::MAX)
    }
}

/// Reads the markers of `bytes`, which begin with `FF D8 FF`.
pub(super) fn read(bytes: &[u8]) -> Result<Header, DecodeError> {
    let mut walk = Walk { bytes, at: 3 };
    let mut frame: Option<Frame> = None;
    let mut exif: Option<Cow<'_, [u8]>> = None;
    let mut xmp: Option<&[u8]> = None;
    let mut first_profile_part: Option<&[u8]> = None;
    loop {
        match walk.marker()? {
            // Start of scan.
            0xda => {
                let scan = walk.segment()?;
                let frame = frame.ok_or_else(|| broken("a scan before any frame"))?;
                let components = frame.sampling.len() as u8;
                let in_scan = scan.first().copied().unwrap_or(0);
                return Ok(Header {
                    size: frame.size,
                    components,
                    orientation: Orientation::from_metadata(exif.as_deref(), xmp),
                    coefficient_bytes: frame.coefficient_bytes(),
                    many_scans: frame.progressive || in_scan < components,
                });
            }
            // Frame headers, and the hierarchical one that the reference reads as such.
            marker @ (0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf | 0xde) => {
                frame = Some(read_frame(marker, walk.segment()?)?);
                if first_profile_part.take().is_some_and(|part| part.len() < 14) {
                    return Err(broken("a colour profile segment without numbers"));
                }
            }
            // Quantization tables.
            0xdb => check_tables(walk.segment()?)?,
            // Huffman tables, arithmetic conditioning, DNL, DRI, EXP, comments.
            0xc4 | 0xcc | 0xdc | 0xdd | 0xdf | 0xfe => {
                walk.segment()?;
            }
            marker @ 0xe0..=0xef => {
                let segment = walk.segment()?;
                check_application_segment(marker, segment)?;
                match marker {
                    0xe1 if segment.starts_with(b"Exif\0\0") => match &mut exif {
                        Some(block) => block.to_mut().extend(&segment[6..]),
                        None => exif = Some(segment.into()),
                    },
                    0xe1 => xmp = segment.strip_prefix(b"http://ns.adobe.com/xap/1.0/\0").or(xmp),
                    // The reference sorts the parts of a profile as byte strings and looks at the first.
                    0xe2 if segment.starts_with(b"ICC_PROFILE\0") => {
                        first_profile_part = Some(first_profile_part.map_or(segment, |first| first.min(segment)));
                    }
                    _ => {}
                }
            }
            // Without a segment: JPG, RST, SOI, EOI, JPG0 to JPG13.
            0xc8 | 0xd0..=0xd9 | 0xf0..=0xfd => {}
            _ => return Err(broken("no marker where one belongs")),
        }
    }
}

fn broken(cause: &'static str) -> DecodeError {
    DecodeError::corrupt(Format::Jpeg, cause)
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    /// The code of the next marker; junk, padding and stuffed zeros before it are passed over.
    fn marker(&mut self) -> Result<u8, DecodeError> {
        // The last byte of the magic number is the first of a marker.
        let mut after_ff = self.at == 3;
        loop {
            let byte = *self.bytes.get(self.at).ok_or(DecodeError::Truncated(Format::Jpeg))?;
            self.at += 1;
            match (after_ff, byte) {
                (_, 0xff) => after_ff = true,
                (true, 0) => after_ff = false,
                (true, marker) => return Ok(marker),
                (false, _) => {}
            }
        }
    }

    /// The content of the segment that begins here. A length below two is an empty one.
    fn segment(&mut self) -> Result<&'a [u8], DecodeError> {
        let truncated = DecodeError::Truncated(Format::Jpeg);
        let Some(length) = Big.u16(self.bytes, self.at) else { return Err(truncated) };
        let start = self.at + 2;
        let end = start + usize::from(length).saturating_sub(2);
        let Some(segment) = self.bytes.get(start..end) else { return Err(truncated) };
        self.at = end;
        Ok(segment)
    }
}

fn read_frame(marker: u8, segment: &[u8]) -> Result<Frame, DecodeError> {
    let (&[bits, .., count], Some(height), Some(width)) = (
        segment.first_chunk::<6>().ok_or_else(|| broken("a short frame header"))?,
        Big.u16(segment, 1),
        Big.u16(segment, 3),
    ) else {
        return Err(broken("a short frame header"));
    };
    if matches!(marker, 0xc9..=0xcf) {
        return Err(broken("arithmetic coding"));
    }
    if bits != 8 {
        return Err(broken("samples of other than 8 bits"));
    }
    if !matches!(count, 1 | 3 | 4) {
        return Err(broken("neither 1, 3 nor 4 components"));
    }
    if height == 0 || width == 0 {
        return Err(broken("no pixels"));
    }
    let components = segment[6..].chunks_exact(3);
    if !components.remainder().is_empty() {
        return Err(broken("a short frame header"));
    }
    let mut sampling: Vec<_> = components.map(|component| (component[1] >> 4, component[1] & 15)).collect();
    if sampling.len() < usize::from(count) {
        return Err(broken("a short frame header"));
    }
    sampling.truncate(usize::from(count));
    let size = Size { height: height.into(), width: width.into() };
    Ok(Frame { size, progressive: matches!(marker, 0xc2 | 0xc6), sampling })
}

fn check_tables(mut segment: &[u8]) -> Result<(), DecodeError> {
    while let Some(first) = segment.first() {
        let length = if first >> 4 == 0 { 65 } else { 129 };
        segment = segment.get(length..).ok_or_else(|| broken("a short quantization table"))?;
    }
    Ok(())
}

/// What the reference insists on in segments whose content does not matter here.
fn check_application_segment(marker: u8, segment: &[u8]) -> Result<(), DecodeError> {
    let short = match marker {
        0xe0 => segment.starts_with(b"JFIF") && segment.len() < 7,
        0xee => segment.starts_with(b"Adobe") && segment.len() < 7,
        0xed => segment.starts_with(b"Photoshop 3.0\0") && resource_ends_at_its_name(segment),
        _ => false,
    };
    if short { Err(broken("a short application segment")) } else { Ok(()) }
}

/// Whether Photoshop's resources end just where a resource's name should begin. The reference survives every other end.
fn resource_ends_at_its_name(segment: &[u8]) -> bool {
    let even = |at: usize| at + (at & 1);
    let mut at = 14;
    while segment.get(at..at + 4) == Some(b"8BIM") {
        if segment.len() < at + 6 {
            return false;
        }
        let Some(name_length) = segment.get(at + 6) else { return true };
        at = even(at + 7 + usize::from(*name_length));
        let Some(size) = Big.u32(segment, at) else { return false };
        at = even(at + 4 + size as usize);
    }
    false
}
