//! Data URIs (RFC 2397) with base64 content.
//!
//! What is accepted is what vLLM accepts, so that a request means the same with and without the gateway:
//!
//! - The first comma ends the header, even inside a quoted parameter.
//! - The header has to end in `;base64`, in any case. What stands before is not read: no media type at all, any
//!   parameters, a wrong type (`text/html`) are fine, since the bytes decide what the picture is.
//! - The content is the standard alphabet with padding, and nothing else: no white space or line breaks, no `%3D`, no
//!   `-` and `_`, no second comma, nothing behind the padding. A lenient decoder drops such characters and hands the
//!   codec other bytes than the client meant (a space is often a `+` that a form decoder ate).
//! - Bits that the last character before the padding has left over may be set, as in `QR==`: vLLM's decoder takes them.
//! - The percent form without `;base64` is refused: no client sends pictures that way.

use std::{borrow::Cow, fmt};

use bytes::Bytes;

use super::{
    Base64Flaw, SourceError,
    escapes::{Piece, Pieces},
};

/// What ends the header.
const TOKEN: &[u8; 7] = b";base64";

/// How much of a text with escapes is decoded at once: whole groups of four characters.
const CHUNK_CHARACTERS: usize = 16 << 10;

/// A data URI, split but not decoded: its content is a borrowed slice of the request's text.
#[derive(Clone, Copy)]
pub struct DataUri<'a> {
    payload: &'a str,
    /// Whether the text has escapes of JSON.
    escaped: bool,
}

impl<'a> DataUri<'a> {
    /// Parses what follows `data:`.
    pub(super) fn parse(rest: &'a str) -> Result<Self, SourceError> {
        let comma = memchr::memchr(b',', rest.as_bytes()).ok_or(SourceError::DataWithoutComma)?;
        let (header, payload) = (&rest.as_bytes()[..comma], &rest[comma + 1..]);
        let token = header.len().checked_sub(TOKEN.len()).map(|start| &header[start..]);
        Self::new(token.unwrap_or_default(), payload, false)
    }

    /// Parses a whole data URI as it stands within a JSON string.
    pub(super) fn parse_escaped(raw: &'a str) -> Result<Self, SourceError> {
        let mut pieces = Pieces::new(raw);
        pieces.skip_past::<1>(b':').ok_or(SourceError::NoScheme)?;
        let token: [u8; TOKEN.len()] = pieces.skip_past(b',').ok_or(SourceError::DataWithoutComma)?;
        Self::new(&token, pieces.rest(), true)
    }

    /// The content alone, as it stands within a JSON string.
    pub(super) fn of_payload(raw: &'a str) -> Result<Self, SourceError> {
        let escaped = memchr::memchr(b'\\', raw.as_bytes()).is_some();
        Self::new(TOKEN, raw, escaped)
    }

    fn new(token: &[u8], payload: &'a str, escaped: bool) -> Result<Self, SourceError> {
        if !token.eq_ignore_ascii_case(TOKEN) {
            return Err(SourceError::DataNotBase64);
        }
        if payload.is_empty() {
            return Err(SourceError::DataEmpty);
        }
        Ok(Self { payload, escaped })
    }

    /// The base64 text, as the client wrote it: two of the same content may be written in different ways, but no text has two
    /// contents.
    pub fn payload(&self) -> &'a str {
        self.payload
    }

    /// Bytes that [`decode`](Self::decode) will give at most. Known without looking at the text.
    pub fn most_decoded_len(&self) -> usize {
        if self.escaped { self.payload.len().div_ceil(4) * 3 } else { self.decoded_len() }
    }

    /// Bytes that [`decode`](Self::decode) will give, if the text is valid. Known without decoding.
    pub fn decoded_len(&self) -> usize {
        let (characters, padding) = if self.escaped {
            self.characters()
        } else {
            let padding = self.payload.bytes().rev().take(2).take_while(|byte| *byte == b'=').count();
            (self.payload.len(), padding)
        };
        (characters / 4 * 3).saturating_sub(padding)
    }

    /// How many characters the text has without its escapes, and how many of the last two are padding.
    fn characters(&self) -> (usize, usize) {
        let (mut characters, mut padding) = (0, 0);
        for piece in Pieces::new(self.payload) {
            let (len, ending) = match piece {
                Piece::Run(run) => (run.len(), run.bytes().rev().take(2).take_while(|byte| *byte == b'=').count()),
                Piece::Char(char) => (char.len_utf8(), usize::from(char == '=')),
            };
            characters += len;
            padding = if ending == len { (padding + ending).min(2) } else { ending };
        }
        (characters, padding)
    }

    /// The first bytes of the picture, `most_bytes` of them at most, and whether they are all. What comes after them is not
    /// looked at.
    ///
    /// # Errors
    ///
    /// [`SourceError::Base64`] if those are wrong.
    pub fn decode_prefix(&self, most_bytes: usize) -> Result<(Bytes, bool), SourceError> {
        if self.most_decoded_len() <= most_bytes {
            return self.decode(most_bytes).map(|bytes| (bytes, true));
        }
        // Whole groups of four characters, none of which is the last.
        let characters = most_bytes / 3 * 4;
        let text = if self.escaped {
            Cow::Owned(self.beginning(characters + 1))
        } else {
            Cow::Borrowed(self.payload.as_bytes())
        };
        if text.len() <= characters {
            return self.decode(most_bytes).map(|bytes| (bytes, true));
        }
        let text = &text[..characters];
        let bytes = base64_simd::STANDARD.decode_to_vec(text).map_err(|_| SourceError::Base64(flaw_of(text)))?;
        Ok((bytes.into(), false))
    }

    /// The first characters without their escapes, as many as are asked for or all.
    fn beginning(&self, most_characters: usize) -> Vec<u8> {
        let mut text = Vec::new();
        for piece in Pieces::new(self.payload) {
            let mut buffer = [0; 4];
            let bytes = piece.as_bytes(&mut buffer);
            text.extend_from_slice(&bytes[..bytes.len().min(most_characters - text.len())]);
            if text.len() == most_characters {
                break;
            }
        }
        text
    }

    /// The bytes of the picture. The limit is checked before anything is allocated or decoded.
    ///
    /// # Errors
    ///
    /// [`SourceError::TooLarge`] or [`SourceError::Base64`].
    pub fn decode(&self, max_bytes: usize) -> Result<Bytes, SourceError> {
        let len = self.decoded_len();
        if len > max_bytes {
            return Err(SourceError::TooLarge { max_bytes });
        }
        let mut bytes = Vec::with_capacity(len);
        if self.escaped {
            self.decode_pieces(&mut bytes)?;
        } else {
            decode_end(self.payload.as_bytes(), &mut bytes)?;
        }
        debug_assert_eq!(bytes.len(), len);
        if bytes.is_empty() {
            return Err(SourceError::DataEmpty);
        }
        Ok(bytes.into())
    }

    fn decode_pieces(&self, bytes: &mut Vec<u8>) -> Result<(), SourceError> {
        const GROUP: usize = 4;
        let mut text = Vec::with_capacity(CHUNK_CHARACTERS + GROUP);
        for piece in Pieces::new(self.payload) {
            let mut buffer = [0; 4];
            let mut rest = piece.as_bytes(&mut buffer);
            while !rest.is_empty() {
                if text.len() == CHUNK_CHARACTERS + GROUP {
                    // But for what may be the last group.
                    decode_body(&text[..CHUNK_CHARACTERS], bytes)?;
                    text.drain(..CHUNK_CHARACTERS);
                }
                let (now, later) = rest.split_at(rest.len().min(CHUNK_CHARACTERS + GROUP - text.len()));
                text.extend_from_slice(now);
                rest = later;
            }
        }
        decode_end(&text, bytes)
    }
}

/// Appends the bytes of whole groups of four characters, none of which is the last.
fn decode_body(text: &[u8], bytes: &mut Vec<u8>) -> Result<(), SourceError> {
    let decoded = base64_simd::STANDARD_NO_PAD.decode_append(text, bytes);
    decoded.map_err(|_| SourceError::Base64(flaw_of(text)))
}

/// Appends the bytes of a text up to its end.
fn decode_end(text: &[u8], bytes: &mut Vec<u8>) -> Result<(), SourceError> {
    let flaw = || SourceError::Base64(flaw_of(text));
    if !text.len().is_multiple_of(4) || text.is_empty() {
        return Err(flaw());
    }
    // The SIMD decoder refuses left-over bits. Only the last four characters can have any, or padding, so they go by
    // hand, and the others may not have any.
    let (body, last) = text.split_at(text.len() - 4);
    decode_body(body, bytes).map_err(|_| flaw())?;
    decode_last(last, bytes).ok_or_else(flaw)
}

/// Appends the one to three bytes of the last four characters.
fn decode_last(last: &[u8], bytes: &mut Vec<u8>) -> Option<()> {
    let padding = last.iter().rev().take_while(|byte| **byte == b'=').count();
    if padding > 2 {
        return None;
    }
    let mut bits = 0u32;
    for byte in &last[..4 - padding] {
        bits = bits << 6 | u32::from(sextet(*byte)?);
    }
    bits <<= 6 * padding;
    bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    Some(())
}

fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Names the mistake, for a text that is known to be wrong. The commonest mistakes come first.
fn flaw_of(text: &[u8]) -> Base64Flaw {
    let body = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    match body.iter().find(|byte| sextet(**byte).is_none()) {
        None => Base64Flaw::Length,
        Some(b'=') => Base64Flaw::Length,
        Some(b'%') => Base64Flaw::PercentEncoded,
        Some(b'-' | b'_') => Base64Flaw::UrlSafeAlphabet,
        Some(byte) if byte.is_ascii_whitespace() => Base64Flaw::WhiteSpace,
        Some(_) => Base64Flaw::Alphabet,
    }
}

/// Shows sizes, never content.
impl fmt::Debug for DataUri<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "data:;base64,({} characters of base64)", self.payload.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(rest: &str) -> Result<Bytes, SourceError> {
        DataUri::parse(rest)?.decode(64)
    }

    #[test]
    fn any_header_that_ends_in_base64_is_accepted() {
        for header in [
            "",
            "image/png",
            "text/html",
            "image/png;charset=utf-8",
            "image/png;name=a.png;charset=utf-8",
            "image/png;name=\"a;b.png\"",
            "data:image/png",
        ] {
            for token in [";base64", ";BASE64", ";Base64"] {
                let rest = format!("{header}{token},QUJD");
                assert_eq!(decode(&rest).unwrap(), "ABC", "{rest}");
            }
        }
    }

    #[test]
    fn headers_that_say_something_else_are_refused() {
        use SourceError::{DataEmpty, DataNotBase64, DataWithoutComma};
        for (rest, error) in [
            ("image/png;base64", DataWithoutComma),
            ("", DataWithoutComma),
            (",", DataNotBase64),
            ("base64,QUJD", DataNotBase64),
            ("image/png;base64 ,QUJD", DataNotBase64),
            ("image/png;name=\"a,b.png\";base64,QUJD", DataNotBase64),
            ("image/svg+xml;utf8,<svg/>", DataNotBase64),
            ("image/png;base64,", DataEmpty),
        ] {
            assert_eq!(decode(rest).unwrap_err(), error, "{rest}");
        }
    }

    #[test]
    fn the_alphabet_is_strict_and_the_mistake_is_named() {
        use Base64Flaw::{Alphabet, Length, PercentEncoded, UrlSafeAlphabet, WhiteSpace};
        for (text, flaw) in [
            ("QUJD\n", WhiteSpace),
            (" QUJD", WhiteSpace),
            ("QU\r\nJD", WhiteSpace),
            ("QQ%3D%3D", PercentEncoded),
            ("Q-_B", UrlSafeAlphabet),
            ("QQ", Length),
            ("QQ=", Length),
            ("QQ===", Length),
            ("Q===", Length),
            ("====", Length),
            ("QQ==QUJD", Length),
            ("QUJD,AAAA", Alphabet),
            ("QUJD?x=1", Alphabet),
            ("QU\0D", Alphabet),
            ("QUéD", Alphabet),
        ] {
            assert_eq!(decode(&format!(";base64,{text}")).unwrap_err(), SourceError::Base64(flaw), "{text:?}");
        }
    }

    #[test]
    fn left_over_bits_are_ignored_as_vllm_does() {
        assert_eq!(decode(";base64,QR==").unwrap(), "A");
        assert_eq!(decode(";base64,QUJ=").unwrap(), "AB");
    }

    #[test]
    fn the_limit_is_exact() {
        let uri = DataUri::parse(";base64,QUJDRA==").unwrap();
        assert_eq!(uri.decoded_len(), 4);
        assert_eq!(uri.decode(4).unwrap(), "ABCD");
        assert_eq!(uri.decode(3).unwrap_err(), SourceError::TooLarge { max_bytes: 3 });
    }

    /// As some clients write it, or as no client would.
    fn escape(text: &str, all: bool) -> String {
        let escape = |char: char| match char {
            '/' => "\\/".to_owned(),
            char if all => format!("\\u{:04x}", u32::from(char)),
            char => char.to_string(),
        };
        text.chars().map(escape).collect()
    }

    proptest! {
        #[test]
        fn escapes_change_nothing(bytes in prop::collection::vec(any::<u8>(), 1..40_000), all: bool, most in 0usize..50_000) {
            let text = base64_simd::STANDARD.encode_to_string(&bytes);
            let (plain, raw) = (format!("image/png;base64,{text}"), escape(&format!("data:image/png;base64,{text}"), all));
            let (plain, escaped) = (DataUri::parse(&plain).unwrap(), DataUri::parse_escaped(&raw).unwrap());
            prop_assert_eq!(escaped.decoded_len(), bytes.len());
            prop_assert!(escaped.most_decoded_len() >= bytes.len());
            prop_assert_eq!(escaped.decode_prefix(most), plain.decode_prefix(most));
            prop_assert_eq!(escaped.decode(bytes.len()).unwrap(), bytes);
        }

        #[test]
        fn what_is_wrong_is_wrong_with_escapes_too(text in "[A-Za-z0-9+/=%\\-_ \n]{1,24}", all: bool) {
            let json = serde_json::to_string(&text).unwrap();
            let raw = if all { escape(&text, true) } else { json[1..json.len() - 1].to_owned() };
            let plain = DataUri::parse(&format!(";base64,{text}")).unwrap().decode(64).is_ok();
            prop_assert_eq!(DataUri::of_payload(&raw).unwrap().decode(64).is_ok(), plain);
        }

        #[test]
        fn what_was_encoded_is_decoded(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
            let rest = format!("image/png;base64,{}", base64_simd::STANDARD.encode_to_string(&bytes));
            let uri = DataUri::parse(&rest).unwrap();
            prop_assert_eq!(uri.decoded_len(), bytes.len());
            prop_assert_eq!(uri.decode(bytes.len()).unwrap(), bytes);
        }

        #[test]
        fn no_content_makes_it_panic(text in "[A-Za-z0-9+/=%\\-_ \n]{0,24}") {
            let _ = decode(&format!(";base64,{text}"));
        }
    }
}
