//! Content codings, for origins that compress although `Accept-Encoding: identity` asks them not to.
//!
//! A body is decoded only once it is complete. What comes out is counted while it comes out, together with what went in,
//! since both are held at that time: a bomb costs the limit of one image and no more, and an image in a coding counts twice.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::error::FetchError;

/// A coding that can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Identity,
    Gzip,
    Deflate,
    Brotli,
}

impl Coding {
    /// The coding that the head names. Several in a row are refused: nobody needs them, and each could be a bomb.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, FetchError> {
        let mut coding = Self::Identity;
        for field in headers.get_all(CONTENT_ENCODING) {
            for name in field.to_str().map_err(|_| FetchError::UnknownCoding)?.split(',') {
                let next = match name.trim().to_ascii_lowercase().as_str() {
                    "" | "identity" => continue,
                    "gzip" | "x-gzip" => Self::Gzip,
                    "deflate" => Self::Deflate,
                    "br" => Self::Brotli,
                    _ => return Err(FetchError::UnknownCoding),
                };
                if coding != Self::Identity {
                    return Err(FetchError::UnknownCoding);
                }
                coding = next;
            }
        }
        Ok(coding)
    }

    /// Undoes the coding of a complete body. Body and result have at most `max_bytes` together, if there is a coding.
    pub(super) async fn decode(self, body: Bytes, max_bytes: usize) -> Result<Bytes, FetchError> {
        if self == Self::Identity {
            return Ok(body);
        }
        // Tens of milliseconds for the largest body: too long for a thread that serves others.
        tokio::task::spawn_blocking(move || self.decode_now(&body, max_bytes))
            .await
            .unwrap_or_else(|error| Err(FetchError::BadCoding(Arc::new(error))))
    }

    fn decode_now(self, body: &[u8], max_bytes: usize) -> Result<Bytes, FetchError> {
        let decoded = self.decode_bounded(body, max_bytes.saturating_sub(body.len()));
        decoded?.ok_or(FetchError::TooLarge { max_bytes })
    }

    /// `None` if there is more than `max_bytes`.
    fn decode_bounded(self, body: &[u8], max_bytes: usize) -> Result<Option<Bytes>, FetchError> {
        match self {
            Self::Identity => Ok(Some(Bytes::copy_from_slice(body))),
            Self::Gzip => read_bounded(MultiGzDecoder::new(body), max_bytes),
            // RFC 9110 means zlib; some servers send the bare stream.
            Self::Deflate if is_zlib(body) => read_bounded(ZlibDecoder::new(body), max_bytes),
            Self::Deflate => read_bounded(DeflateDecoder::new(body), max_bytes),
            Self::Brotli => {
                const BUFFER_BYTES: usize = 16 << 10;
                read_bounded(brotli_decompressor::Decompressor::new(body, BUFFER_BYTES), max_bytes)
            }
        }
    }
}

/// A zlib header: method 8, and a check that makes the two bytes divisible by 31 (RFC 1950).
fn is_zlib(body: &[u8]) -> bool {
    matches!(body, [cmf, flg, ..] if cmf & 0x0f == 8 && u16::from_be_bytes([*cmf, *flg]).is_multiple_of(31))
}

fn read_bounded(mut decoder: impl Read, max_bytes: usize) -> Result<Option<Bytes>, FetchError> {
    const STEP_BYTES: usize = 64 << 10;

    let mut out = Vec::new();
    let mut step = vec![0; STEP_BYTES];
    loop {
        let read = match decoder.read(&mut step) {
            Ok(0) => return Ok(Some(out.into())),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(FetchError::BadCoding(Arc::new(error))),
        };
        let len = out.len() + read;
        if len > max_bytes {
            return Ok(None);
        }
        if len > out.capacity() {
            out.reserve_exact((out.capacity() * 2).clamp(len, max_bytes) - out.len());
        }
        out.extend_from_slice(&step[..read]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn deflate(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// "mediagate" in brotli.
    const BROTLI: &[u8] = &[0x0f, 0x04, 0x80, b'm', b'e', b'd', b'i', b'a', b'g', b'a', b't', b'e', 0x03];

    #[test]
    fn every_known_coding_is_undone() {
        let text = b"mediagate";
        for (coding, body) in [
            (Coding::Gzip, gzip(text)),
            (Coding::Gzip, [gzip(b"media"), gzip(b"gate")].concat()),
            (Coding::Deflate, zlib(text)),
            (Coding::Deflate, deflate(text)),
            (Coding::Brotli, BROTLI.to_vec()),
        ] {
            let both = body.len() + text.len();
            assert_eq!(coding.decode_now(&body, both).unwrap(), text.as_slice(), "{coding:?}");
            let too_large = coding.decode_now(&body, both - 1);
            assert!(matches!(too_large, Err(FetchError::TooLarge { .. })), "{coding:?} {too_large:?}");
            let cut = coding.decode_now(&body[..body.len() - 1], 100);
            assert!(matches!(cut, Err(FetchError::BadCoding(_))), "{coding:?} {cut:?}");
        }
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let bomb = gzip(&vec![0; 8 << 20]);
        assert!(bomb.len() < 16 << 10);
        assert!(matches!(Coding::Gzip.decode_now(&bomb, 1 << 20), Err(FetchError::TooLarge { max_bytes: 1_048_576 })));
    }

    #[test]
    fn what_is_not_in_its_coding_is_refused() {
        for coding in [Coding::Gzip, Coding::Deflate, Coding::Brotli] {
            assert!(
                matches!(coding.decode_now(b"\x89PNG not compressed", 100), Err(FetchError::BadCoding(_))),
                "{coding:?}"
            );
        }
    }

    #[test]
    fn the_head_names_one_coding_at_most() {
        let of = |value: &'static str| {
            Coding::of(&HeaderMap::from_iter([(CONTENT_ENCODING, http::HeaderValue::from_static(value))])).ok()
        };
        assert_eq!(Coding::of(&HeaderMap::new()).ok(), Some(Coding::Identity));
        assert_eq!(of("identity"), Some(Coding::Identity));
        assert_eq!(of(" X-GZip "), Some(Coding::Gzip));
        assert_eq!(of("deflate, identity"), Some(Coding::Deflate));
        assert_eq!(of("br"), Some(Coding::Brotli));
        assert_eq!(of("gzip, gzip"), None);
        assert_eq!(of("x-foo"), None);
    }
}
