//! The size of a picture by the first bytes of its file.

use crate::media::decode::{self, DecodeError, DecodeLimits, Format, Probe};

/// Height and width of a picture in pixels, upright: as a model is shown it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PictureSize {
    pub height: u32,
    pub width: u32,
}

/// What the beginning of a file says of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Size(PictureSize),
    /// More of the file may say more.
    Incomplete,
    /// No picture, or one of a format whose size is not read here.
    Unknown,
}

/// Whether a picture may be had is the worker's question: the header is only read.
const NO_LIMITS: DecodeLimits = DecodeLimits {
    max_pixels: u64::MAX,
    max_side: u32::MAX,
    max_scratch_bytes: usize::MAX,
    max_scan_pixels: u64::MAX,
    max_metadata_bytes: 1 << 20,
};

/// Reads the size from the beginning of a file; `whole` says that there is no more of it.
///
/// The beginning of a file says what all of it says, or [`Reading::Incomplete`], with one exception: the orientation of a
/// PNG may stand behind its image data, where only the whole file shows it. Hardly any encoder puts it there.
pub fn read(bytes: &[u8], whole: bool) -> Reading {
    let incomplete = if whole { Reading::Unknown } else { Reading::Incomplete };
    if bytes.len() < 64 && !whole {
        return Reading::Incomplete;
    }
    let format = Format::sniff(bytes);
    if format == Some(Format::WebP) && !whole {
        return webp(bytes);
    }
    match decode::probe(bytes, &NO_LIMITS) {
        Ok(Probe::Decodable(header)) => Reading::Size(PictureSize { height: header.height(), width: header.width() }),
        Err(DecodeError::Truncated(_)) => incomplete,
        // Their directories lead to any place of the file, and a place that is not there yet looks like a broken one.
        _ if matches!(format, Some(Format::Tiff | Format::Ico)) => incomplete,
        _ => Reading::Unknown,
    }
}

/// The beginning of a WebP file, which libwebp reads only as a whole.
///
/// Source: RFC 9649, sections 2.5 to 2.7; the headers of VP8 (RFC 6386, section 9.1) and of lossless data (RFC 9649,
/// section 3.4).
fn webp(bytes: &[u8]) -> Reading {
    const HAS_METADATA: u8 = 0b0000_1100;

    let Some(data) = bytes.get(20..30) else { return Reading::Incomplete };
    let number = |at: usize, length: usize| {
        data[at..at + length].iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte))
    };
    let size = |height, width| Reading::Size(PictureSize { height, width });
    match &bytes[12..16] {
        // Orientation is in EXIF or XMP, which stand at the end of the file.
        b"VP8X" if data[0] & HAS_METADATA != 0 => Reading::Incomplete,
        b"VP8X" => size(number(7, 3) + 1, number(4, 3) + 1),
        b"VP8 " if data[0] & 1 == 0 && data[3..6] == [0x9d, 0x01, 0x2a] => {
            size(number(8, 2) & 0x3fff, number(6, 2) & 0x3fff)
        }
        b"VP8L" if data[0] == 0x2f => size((number(1, 4) >> 14 & 0x3fff) + 1, (number(1, 4) & 0x3fff) + 1),
        _ => Reading::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_says_what_the_whole_file_says_or_nothing() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
        let files = ["images", "."].iter().flat_map(|sub| std::fs::read_dir(format!("{folder}/{sub}")).unwrap());
        let mut early = 0;
        let mut seen = 0;
        for path in files.map(|entry| entry.unwrap().path()) {
            if !path.is_file() || path.extension().is_some_and(|kind| ["json", "md"].iter().any(|text| kind == *text)) {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let whole = read(&bytes, true);
            assert_ne!(whole, Reading::Incomplete);
            let step = (bytes.len() / 500).max(1);
            let first = (0..bytes.len()).step_by(step).find(|&length| {
                let reading = read(&bytes[..length], false);
                // TGA has no magic number: its beginning may say too little to know it.
                let fits = reading == whole || reading == Reading::Incomplete || path.ends_with("rle.tga");
                assert!(fits, "{}: {reading:?} of {length} bytes, {whole:?} of all", path.display());
                matches!(reading, Reading::Size(_))
            });
            seen += 1;
            early += usize::from(first.is_some_and(|length| length < bytes.len()));
        }
        assert!(seen > 35 && early * 4 > seen * 3, "{early} of {seen} by their beginning");
    }

    #[test]
    fn sizes_are_upright() {
        let file =
            |name: &str| std::fs::read(format!("{}/tests/data/images/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let Reading::Size(stored) = read(&file("baseline_420.jpg"), true) else { panic!("no size") };
        for name in ["exif_6.jpg", "exif_5.png", "exif_8.webp"] {
            let Reading::Size(turned) = read(&file(name), true) else { panic!("{name}: no size") };
            assert!(turned.height != turned.width, "{name}: {turned:?}, {stored:?}");
            let expected = include_str!("../../../tests/data/expected.json");
            let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
            let row = find(&expected, name).unwrap_or_else(|| panic!("{name} is not in expected.json"));
            assert_eq!(
                (row["height"].as_u64(), row["width"].as_u64()),
                (Some(turned.height.into()), Some(turned.width.into()))
            );
        }
    }

    fn find<'a>(expected: &'a serde_json::Value, name: &str) -> Option<&'a serde_json::Value> {
        match expected {
            serde_json::Value::Object(map) => map.get(name),
            serde_json::Value::Array(rows) => rows.iter().find(|row| row["file"] == name || row["name"] == name),
            _ => None,
        }
    }
}
