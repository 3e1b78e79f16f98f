//! What an image is, by its first bytes. Content types and file names are not believed: vLLM does not either.

use memchr::memmem;

/// The image formats that vLLM reads, under the names that its decoder (Pillow) gives them.
///
/// Not all of them are decoded here; see [`Probe`](super::Probe).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names of file formats")]
pub enum Format {
    Jpeg,
    Png,
    WebP,
    Gif,
    Bmp,
    Tiff,
    Ico,
    Pnm,
    Tga,
    Qoi,
    Avif,
    Cur,
    Dds,
    Fli,
    Icns,
    Im,
    Jpeg2000,
    Msp,
    Pcx,
    Psd,
    Sgi,
    Sun,
    Xbm,
    Xpm,
}

impl Format {
    /// The usual name, for messages and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
            Self::Tiff => "TIFF",
            Self::Ico => "ICO",
            Self::Pnm => "PNM",
            Self::Tga => "TGA",
            Self::Qoi => "QOI",
            Self::Avif => "AVIF",
            Self::Cur => "CUR",
            Self::Dds => "DDS",
            Self::Fli => "FLI",
            Self::Icns => "ICNS",
            Self::Im => "IM",
            Self::Jpeg2000 => "JPEG 2000",
            Self::Msp => "MSP",
            Self::Pcx => "PCX",
            Self::Psd => "PSD",
            Self::Sgi => "SGI",
            Self::Sun => "SUN",
            Self::Xbm => "XBM",
            Self::Xpm => "XPM",
        }
    }

    /// The media type for a data: URI.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Jpeg => "image/jpeg",
            Self::Png => "image/png",
            Self::WebP => "image/webp",
            Self::Gif => "image/gif",
            Self::Bmp => "image/bmp",
            Self::Tiff => "image/tiff",
            Self::Ico | Self::Cur => "image/vnd.microsoft.icon",
            Self::Pnm => "image/x-portable-anymap",
            Self::Tga => "image/x-tga",
            Self::Qoi => "image/qoi",
            Self::Avif => "image/avif",
            Self::Dds => "image/vnd-ms.dds",
            Self::Fli => "image/x-fli",
            Self::Icns => "image/x-icns",
            Self::Im => "image/x-im",
            Self::Jpeg2000 => "image/jp2",
            Self::Msp => "image/x-msp",
            Self::Pcx => "image/vnd.zbrush.pcx",
            Self::Psd => "image/vnd.adobe.photoshop",
            Self::Sgi => "image/x-sgi",
            Self::Sun => "image/x-sun-raster",
            Self::Xbm => "image/x-xbitmap",
            Self::Xpm => "image/x-xpixmap",
        }
    }

    /// Recognises a format that vLLM reads by its magic number. TGA has none and is tried last, as vLLM does.
    pub fn sniff(bytes: &[u8]) -> Option<Self> {
        let start = |magic: &[u8]| bytes.starts_with(magic);
        let at = |offset: usize, magic: &[u8]| bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic));
        let format = match bytes {
            _ if start(b"\xff\xd8\xff") => Self::Jpeg,
            _ if start(b"\x89PNG\r\n\x1a\n") => Self::Png,
            _ if start(b"RIFF") && at(8, b"WEBP") => Self::WebP,
            _ if start(b"GIF87a") || start(b"GIF89a") => Self::Gif,
            _ if start(b"BM") || is_dib(bytes) => Self::Bmp,
            _ if is_tiff(bytes) => Self::Tiff,
            _ if start(b"\0\0\x01\0") => Self::Ico,
            // A TGA without an identification begins like a CUR of no pictures.
            _ if start(b"\0\0\x02\0") && !(at(4, b"\0\0") && is_tga(bytes)) => Self::Cur,
            [b'P', b'0'..=b'6' | b'f' | b'F' | b'y', ..] => Self::Pnm,
            _ if start(b"qoif") => Self::Qoi,
            _ if is_avif(bytes) => Self::Avif,
            _ if start(b"\xff\x4f\xff\x51") || start(b"\0\0\0\x0cjP  \r\n\x87\n") => Self::Jpeg2000,
            _ if start(b"DDS ") => Self::Dds,
            _ if start(b"8BPS") => Self::Psd,
            _ if start(b"icns") => Self::Icns,
            _ if start(b"DanM") || start(b"LinS") => Self::Msp,
            _ if start(b"\x59\xa6\x6a\x95") => Self::Sun,
            _ if start(b"/* XPM */") => Self::Xpm,
            _ if bytes.trim_ascii_start().starts_with(b"#define") && memmem::find(head(bytes), b"_width").is_some() => {
                Self::Xbm
            }
            _ if start(b"\x01\xda") => Self::Sgi,
            [0x0a, 0 | 2 | 3 | 5, ..] => Self::Pcx,
            _ if is_fli(bytes) => Self::Fli,
            _ if memmem::find(head(bytes), b"Image type:").is_some() => Self::Im,
            _ if is_tga(bytes) => Self::Tga,
            _ => return None,
        };
        Some(format)
    }
}

/// A name for what is refused, so that its sender learns what to change.
pub(super) fn refused_name(bytes: &[u8]) -> Option<&'static str> {
    let start = |magic: &[u8]| bytes.starts_with(magic);
    let brand = bytes.get(4..12).unwrap_or_default();
    let text = bytes.trim_ascii_start();
    Some(match bytes {
        _ if [
            &b"ftypheic"[..],
            b"ftypheix",
            b"ftyphevc",
            b"ftyphevx",
            b"ftypheim",
            b"ftypheis",
            b"ftypmif1",
            b"ftypmsf1",
        ]
        .contains(&brand) =>
        {
            "HEIC"
        }
        _ if brand.starts_with(b"ftyp") => "MP4 video",
        _ if start(b"\xff\x0a") || start(b"\0\0\0\x0cJXL \r\n\x87\n") => "JPEG XL",
        _ if start(b"%PDF") => "PDF",
        _ if start(b"%!PS") || start(b"\xc5\xd0\xd3\xc6") => "EPS",
        _ if start(b"\xd7\xcd\xc6\x9a") || start(b"\x01\0\x09\0") => "WMF",
        _ if start(b"\x1f\x8b") => "gzip",
        _ if memmem::find(head(text), b"<svg").is_some() => "SVG",
        _ if text.starts_with(b"<") => "HTML or XML",
        _ => return None,
    })
}

fn head(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(256)]
}

fn is_tiff(bytes: &[u8]) -> bool {
    // The third and fourth are mistakes of old writers that Pillow forgives; the last two are BigTIFF.
    [b"II\x2a\0", b"MM\0\x2a", b"MM\x2a\0", b"II\0\x2a", b"MM\0\x2b", b"II\x2b\0"].iter().any(|m| bytes.starts_with(*m))
}

/// An `ftyp` box whose major brand is AVIF's, or a generic one with an AVIF brand among the compatible ones.
fn is_avif(bytes: &[u8]) -> bool {
    if bytes.get(4..8) != Some(b"ftyp") {
        return false;
    }
    match bytes.get(8..12) {
        Some(b"avif" | b"avis") => true,
        Some(b"mif1" | b"msf1") => {
            let length = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
            let compatible = bytes.get(16..length.min(bytes.len())).unwrap_or_default();
            compatible.chunks_exact(4).any(|brand| brand == b"avif" || brand == b"avis")
        }
        _ => false,
    }
}

/// A bitmap without its file header (a DIB, as clipboards hold it) begins with the size of its own header.
pub(super) fn is_dib(bytes: &[u8]) -> bool {
    matches!(bytes, [12 | 40 | 52 | 56 | 64 | 108 | 124, 0, 0, 0, ..])
}

fn is_fli(bytes: &[u8]) -> bool {
    matches!(bytes.get(4..6), Some([0x11 | 0x12, 0xaf])) && matches!(bytes.get(14..16), Some([0 | 3, 0]))
}

/// Pillow's plausibility test of a TGA header, which has no magic number.
fn is_tga(bytes: &[u8]) -> bool {
    let Some(header) = bytes.get(..18) else { return false };
    let size = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    header[1] <= 1
        && matches!(header[2], 1 | 2 | 3 | 9 | 10 | 11)
        && size(12) > 0
        && size(14) > 0
        && matches!(header[16], 1 | 8 | 16 | 24 | 32)
}
