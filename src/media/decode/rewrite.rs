//! Whether the reference gets a picture turned whose EXIF asks for it.
//!
//! Pillow turns the picture and then writes its EXIF anew, without the orientation. It knows types for many tags, and fails where
//! the file has values of another kind, such as a fraction for the name of the camera. vLLM swallows that error, and with it
//! the turned picture: the model is shown the stored one.

use std::ops::ControlFlow;

use super::bytes::Endian;
use super::ifd::{self, Entry};

/// The directories of EXIF, which have tags of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Main,
    Exif,
    Gps,
    Interoperability,
}

/// What a value is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// Of all values the first, as all that follow but lists.
    Byte,
    Text,
    /// One text, and no list of numbers.
    OnlyText,
    Short,
    Shorts,
    Long,
    Longs,
    Fraction,
    Fractions,
    SignedFraction,
    Doubles,
    Opaque,
    /// One byte string, and no list of numbers.
    OnlyOpaque,
    /// By the values themselves.
    Guessed,
}

/// Whether all of a TIFF directory, and those that it refers to, can be written again.
pub(super) fn succeeds(tiff: &[u8], endian: Endian, at: usize) -> bool {
    is_writable(tiff, endian, at, Group::Main)
}

fn is_writable(tiff: &[u8], endian: Endian, at: usize, group: Group) -> bool {
    let mut is_writable = true;
    ifd::walk(tiff, endian, at, |entry| {
        is_writable = match (group, entry.tag) {
            // Taken out before.
            (Group::Main, 274) => true,
            (Group::Main, 34665) => is_directory_writable(tiff, endian, entry, Group::Exif),
            (Group::Main, 34853) => is_directory_writable(tiff, endian, entry, Group::Gps),
            (Group::Exif, 40965) => is_directory_writable(tiff, endian, entry, Group::Interoperability),
            // Moved by what is written before.
            (Group::Main, 273) => values(entry, endian).all(|at| at.is_whole_below((1 << 32) - tiff.len() as i64)),
            // Pillow trips over two of them.
            (Group::Main, 262) if values(entry, endian).nth(1).is_some() => false,
            _ => is_value_writable(entry, endian, written(group, entry.tag)),
        };
        if is_writable { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    is_writable
}

/// What is no number counts as an empty directory.
fn is_directory_writable(tiff: &[u8], endian: Endian, entry: Entry<'_>, group: Group) -> bool {
    match values(entry, endian).next() {
        Some(Value::Whole(at)) => usize::try_from(at).is_ok_and(|at| is_writable(tiff, endian, at, group)),
        _ => true,
    }
}

fn is_value_writable(entry: Entry<'_>, endian: Endian, written: Written) -> bool {
    let mut all = values(entry, endian);
    let is_list = all.clone().nth(1).is_some();
    match written {
        Written::Byte => all.take(1).all(|value| match value {
            Value::Bytes => true,
            Value::Text | Value::Real(_) => false,
            Value::Whole(number) => (0..256).contains(&number),
            Value::Fraction(_, 0) => false,
            Value::Fraction(top, bottom) => (0..256).contains(&(top / bottom)),
        }),
        Written::OnlyText | Written::OnlyOpaque if is_list => false,
        Written::Text | Written::OnlyText => {
            all.take(1).all(|value| matches!(value, Value::Bytes | Value::Text | Value::Whole(_)))
        }
        Written::Opaque | Written::OnlyOpaque => {
            all.take(1).all(|value| !matches!(value, Value::Real(_) | Value::Fraction(_, 0)))
        }
        Written::Short => all.take(1).all(|value| value.is_whole_below(1 << 16)),
        Written::Shorts => all.all(|value| value.is_whole_below(1 << 16)),
        Written::Long => all.take(1).all(|value| value.is_whole_below(1 << 32)),
        Written::Longs => all.all(|value| value.is_whole_below(1 << 32)),
        Written::Fraction => all.take(1).all(Value::is_positive),
        Written::Fractions => all.all(Value::is_positive),
        Written::SignedFraction => all.take(1).all(|value| match value {
            Value::Fraction(top, 0) => i32::try_from(top).is_ok(),
            value => value.is_number(),
        }),
        Written::Doubles => all.all(Value::is_number),
        // Fractions get a sign where one has it.
        Written::Guessed => all.all(|value| !matches!(value, Value::Whole(number) if number >= 1 << 32)),
    }
}

/// A value as Python has it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Bytes,
    Text,
    Whole(i64),
    Fraction(i64, i64),
    Real(f64),
}

impl Value {
    fn is_whole_below(self, end: i64) -> bool {
        matches!(self, Self::Whole(number) if (0..end).contains(&number))
    }

    fn is_number(self) -> bool {
        !matches!(self, Self::Bytes | Self::Text)
    }

    fn is_positive(self) -> bool {
        match self {
            Self::Bytes | Self::Text => false,
            Self::Whole(number) => number >= 0,
            Self::Fraction(top, 0) => top >= 0,
            Self::Fraction(top, bottom) => top == 0 || (top < 0) == (bottom < 0),
            Self::Real(number) => number >= 0.0,
        }
    }
}

/// The values of an entry; byte strings and texts are one.
fn values<'a>(entry: Entry<'a>, endian: Endian) -> impl Iterator<Item = Value> + Clone + 'a {
    let unit_bytes = match entry.kind {
        1 | 2 | 7 => entry.value.len(),
        6 => 1,
        3 | 8 => 2,
        5 | 10 | 12 | 16 => 8,
        _ => 4,
    };
    entry.value.chunks_exact(unit_bytes.max(1)).map(move |unit| {
        let word = |at: usize| endian.u32(unit, at).unwrap_or(0);
        let double_word = || match endian {
            Endian::Big => u64::from(word(0)) << 32 | u64::from(word(4)),
            Endian::Little => u64::from(word(4)) << 32 | u64::from(word(0)),
        };
        match entry.kind {
            1 | 7 => Value::Bytes,
            2 => Value::Text,
            3 => Value::Whole(endian.u16(unit, 0).unwrap_or(0).into()),
            8 => Value::Whole((endian.u16(unit, 0).unwrap_or(0) as i16).into()),
            6 => Value::Whole((unit[0] as i8).into()),
            9 => Value::Whole((word(0) as i32).into()),
            5 => Value::Fraction(word(0).into(), word(4).into()),
            10 => Value::Fraction((word(0) as i32).into(), (word(4) as i32).into()),
            11 => Value::Real(f32::from_bits(word(0)).into()),
            12 => Value::Real(f64::from_bits(double_word())),
            16 => Value::Whole(i64::try_from(double_word()).unwrap_or(i64::MAX)),
            _ => Value::Whole(word(0).into()),
        }
    })
}

/// The types that Pillow 13 knows (PIL/TiffTags.py).
fn written(group: Group, tag: u16) -> Written {
    match (group, tag) {
        (Group::Main, 254 | 256 | 257 | 278 | 288 | 289 | 292 | 293 | 322 | 323 | 513 | 514 | 32997 | 32998) => {
            Written::Long
        }
        (Group::Main, 40965 | 45057 | 45060 | 45313 | 45569 | 45572) => Written::Long,
        (Group::Main, 279 | 324 | 325 | 330 | 519..=521 | 50838) => Written::Longs,
        (Group::Main, 255 | 259 | 262..=266 | 277 | 284 | 290 | 296 | 317 | 332 | 334) => Written::Short,
        (Group::Main, 512 | 515 | 531 | 32995 | 50741) | (Group::Gps, 30) => Written::Short,
        (Group::Main, 258 | 280 | 281 | 291 | 297 | 301 | 320 | 321 | 336 | 338 | 339) => Written::Shorts,
        (Group::Main, 342 | 517 | 518 | 530 | 32996) => Written::Shorts,
        (Group::Main, 269..=272 | 285 | 305 | 306 | 315 | 316 | 333 | 337 | 33432) => Written::Text,
        (Group::Interoperability, 1) => Written::Text,
        (Group::Gps, 1 | 3 | 8..=10 | 12 | 14 | 16 | 18 | 19 | 21 | 23 | 25 | 29) => Written::OnlyText,
        (Group::Main, 282 | 283 | 286 | 287 | 45570 | 45571 | 45574 | 50780) => Written::Fraction,
        (Group::Gps, 6 | 11 | 13 | 15 | 17 | 24 | 26 | 31) => Written::Fraction,
        (Group::Main, 318 | 319 | 529 | 532) | (Group::Gps, 2 | 4 | 7 | 20 | 22) => Written::Fractions,
        (Group::Main, 45573 | 45575..=45581) => Written::SignedFraction,
        (Group::Main, 340 | 341) => Written::Doubles,
        (Group::Main, 347 | 33723 | 34675 | 36864 | 37724 | 40960 | 41730 | 45056 | 45058 | 50839) => Written::Opaque,
        (Group::Exif, 36864 | 40960 | 41730) | (Group::Interoperability, 2) => Written::Opaque,
        (Group::Main, 45059) | (Group::Gps, 27 | 28) => Written::OnlyOpaque,
        (Group::Main, 700 | 34377) | (Group::Gps, 0 | 5) => Written::Byte,
        _ => Written::Guessed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of one entry, whose values are 32 bits each or in its place, and behind it a directory of another entry.
    fn block(first: (u16, u16, &[u32]), second: (u16, u16, &[u32])) -> Vec<u8> {
        let directory = |(tag, kind, words): (u16, u16, &[u32]), start: u32| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let unit = match kind {
                1 | 2 | 6 | 7 => 1,
                3 | 8 => 2,
                5 | 10 | 12 => 8,
                _ => 4,
            };
            let count = if words.len() == 1 { 1 } else { (bytes.len() / unit) as u32 };
            let place = if bytes.len() > 4 { (start + 18).to_le_bytes().to_vec() } else { bytes.clone() };
            let entry = [&tag.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes(), &place].concat();
            let mut directory = [&[1, 0][..], &entry, &[0; 4], if bytes.len() > 4 { &bytes } else { &[] }].concat();
            directory.resize(SECOND_AT as usize - 8, 0);
            directory
        };
        [&b"II\x2a\0\x08\0\0\0"[..], &directory(first, 8), &directory(second, SECOND_AT)].concat()
    }

    const SECOND_AT: u32 = 60;

    #[test]
    fn values_that_pillow_cannot_write_as_it_knows_them_are_told() {
        let half = 0.5f32.to_bits();
        for (tag, kind, words, expected) in [
            // The maker's name: text, bytes, a number; not a fraction, not a real number.
            (271, 2, &[0x61][..], true),
            (271, 7, &[0x61], true),
            (271, 3, &[5], true),
            (271, 5, &[72, 1], false),
            (271, 11, &[half], false),
            // The width: a number in 32 bits.
            (256, 3, &[5], true),
            (256, 4, &[u32::MAX], true),
            (256, 9, &[u32::MAX], false),
            (256, 2, &[0x61], false),
            (256, 5, &[5, 1], false),
            // The resolution: fractions, also of nothing; no minus, no text.
            (282, 5, &[72, 0], true),
            (282, 4, &[72], true),
            (282, 10, &[u32::MAX, 2], false),
            (282, 7, &[0x61], false),
            // The compression: 16 bits.
            (259, 4, &[65535], true),
            (259, 4, &[65536], false),
            // Where the strips are: has to have room to be moved.
            (273, 4, &[8], true),
            (273, 4, &[u32::MAX], false),
            // Only one, to Pillow.
            (262, 4, &[2, 2], false),
            // XMP is bytes.
            (700, 1, &[0x61], true),
            (700, 3, &[255], true),
            (700, 3, &[256], false),
            (700, 2, &[0x61], false),
            // A tag that is not known is what it is.
            (50000, 11, &[half], true),
            (50000, 10, &[u32::MAX, 2], true),
            (50000, 10, &[u32::MAX, 0], true),
            // A fraction with a sign.
            (45573, 5, &[u32::MAX, 1], true),
            (45573, 5, &[u32::MAX, 0], false),
            (45573, 4, &[u32::MAX], true),
            (45573, 1, &[0], false),
            // Taken out before.
            (274, 5, &[6, 1], true),
        ] {
            let block = block((tag, kind, words), (1, 3, &[0]));
            assert_eq!(succeeds(&block, Endian::Little, 8), expected, "tag {tag} of type {kind}: {words:?}");
        }
    }

    #[test]
    fn directories_are_followed() {
        let gps = |tag, kind, words: &[u32]| {
            succeeds(&block((34853, 4, &[SECOND_AT]), (tag, kind, words)), Endian::Little, 8)
        };
        assert!(gps(1, 2, &[0x4e]));
        assert!(!gps(1, 4, &[1, 2]));
        assert!(gps(2, 5, &[48, 1, 8, 1, 0, 1]));
        assert!(!gps(2, 2, &[0x61, 0x61]));
        assert!(!gps(30, 1, &[0]));
        let to = |kind, at| succeeds(&block((34853, kind, &[at]), (30, 1, &[0])), Endian::Little, 8);
        assert!(!to(4, SECOND_AT));
        assert!(to(11, SECOND_AT), "no place at all");
        assert!(to(4, 1 << 20), "beyond the end");
        assert!(!to(9, u32::MAX), "before the beginning");
    }
}
