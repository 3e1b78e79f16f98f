//! The texts of a PNG: all that matters of them is an orientation.

use std::borrow::Cow;

use super::super::DecodeError;
use super::super::orientation::Orientation;
use super::chunks::broken;
use super::inflate::{Inflated, Inflater, Keep};

const EXIF_KEY: &[u8] = b"exif";
const RAW_EXIF_KEY: &[u8] = b"Raw profile type exif";
const XMP_KEY: &[u8] = b"XML:com.adobe.xmp";

/// The texts that can hold an orientation.
#[derive(Default)]
pub(super) struct Texts<'a> {
    exif: Option<Text<'a>>,
    /// ImageMagick's hexadecimal EXIF.
    raw_exif: Option<Cow<'a, [u8]>>,
    xmp_text: Option<Cow<'a, [u8]>>,
    xmp_packet: Option<Cow<'a, [u8]>>,
}

enum Text<'a> {
    Bytes(Cow<'a, [u8]>),
    /// A decoded text where the reference wants bytes: it stumbles, and applies no orientation.
    Unusable,
}

impl<'a> Texts<'a> {
    /// An EXIF chunk.
    pub(super) fn exif(&mut self, content: &'a [u8]) {
        self.exif = Some(Text::Bytes(content.into()));
    }

    /// A tEXt chunk.
    pub(super) fn plain(&mut self, content: &'a [u8]) {
        let (key, value) = split_at_nul(content).unwrap_or((content, &[]));
        if key == EXIF_KEY {
            self.exif(value);
        } else {
            self.keep(key, value.into());
        }
    }

    /// A zTXt chunk.
    pub(super) fn compressed(&mut self, content: &[u8], inflater: &mut Inflater) -> Result<(), DecodeError> {
        let (key, value) = split_at_nul(content).unwrap_or((content, &[]));
        let value = match value.split_first() {
            None => Inflated::Whole(Vec::new()),
            Some((0, compressed)) => inflater.inflate(compressed, wanted(key))?,
            Some(_) => return Err(broken("a text with an unknown compression")),
        };
        let value = match value {
            Inflated::Whole(value) => value,
            Inflated::Broken => Vec::new(),
        };
        self.keep(key, value.into());
        Ok(())
    }

    /// An iTXt chunk; what is no UTF-8 does not count.
    pub(super) fn international(&mut self, content: &'a [u8], inflater: &mut Inflater) -> Result<(), DecodeError> {
        let parts = || {
            let (key, rest) = split_at_nul(content)?;
            let ([compressed, method], rest) = rest.split_first_chunk::<2>()?;
            let (language, rest) = split_at_nul(rest)?;
            let (translated_key, value) = split_at_nul(rest)?;
            Some((key, *compressed, *method, language, translated_key, value))
        };
        let Some((key, compressed, method, language, translated_key, value)) = parts() else { return Ok(()) };
        let value: Cow<'a, [u8]> = match (compressed, method) {
            (0, _) => value.into(),
            (_, 0) => match inflater.inflate(value, wanted(key))? {
                Inflated::Whole(value) => value.into(),
                Inflated::Broken => return Ok(()),
            },
            _ => return Ok(()),
        };
        let readable = [language, translated_key, &value].iter().all(|text| std::str::from_utf8(text).is_ok());
        if key == XMP_KEY {
            self.xmp_packet = Some(value.clone());
        }
        if readable {
            self.keep(key, value);
        }
        Ok(())
    }

    fn keep(&mut self, key: &[u8], value: Cow<'a, [u8]>) {
        match key {
            EXIF_KEY => self.exif = Some(Text::Unusable),
            RAW_EXIF_KEY => self.raw_exif = Some(value),
            XMP_KEY => self.xmp_text = Some(value),
            _ => {}
        }
    }

    pub(super) fn orientation(&self) -> Orientation {
        let xmp = self.xmp_text.as_deref().filter(|text| !text.is_empty()).or(self.xmp_packet.as_deref());
        match (&self.exif, &self.raw_exif) {
            (Some(Text::Unusable), _) => Orientation::default(),
            (Some(Text::Bytes(exif)), _) => Orientation::from_metadata(Some(exif), xmp),
            (None, Some(text)) => match exif_of_hex(text) {
                Some(exif) => Orientation::from_metadata(Some(&exif), xmp),
                None => Orientation::default(),
            },
            (None, None) => Orientation::from_metadata(None, xmp),
        }
    }
}

/// Whether the content of a text plays a part.
fn wanted(key: &[u8]) -> Keep {
    if matches!(key, RAW_EXIF_KEY | XMP_KEY) { Keep::Text } else { Keep::Nothing }
}

fn split_at_nul(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let nul = bytes.iter().position(|&byte| byte == 0)?;
    Some((&bytes[..nul], &bytes[nul + 1..]))
}

/// The bytes of a `Raw profile type exif`: three lines of heading, then hexadecimal digits.
fn exif_of_hex(text: &[u8]) -> Option<Vec<u8>> {
    let lines = text.split(|&byte| byte == b'\n').skip(3);
    let digits: Vec<u8> = lines.flatten().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
