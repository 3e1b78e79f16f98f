//! What an image is, by its first bytes. Content types and file names are not believed: vLLM does not either.

use memchr::memmem;

use super::bytes::Endian;

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
    Blp,
    Cur,
    Dcx,
    Dds,
    Fits,
    Fli,
    Ftex,
    Gbr,
    Icns,
    Im,
    Imt,
    Iptc,
    Jpeg2000,
    McIdas,
    Msp,
    Pcd,
    Pcx,
    Pixar,
    Psd,
    Sgi,
    Spider,
    Sun,
    Xbm,
    Xpm,
    XvThumb,
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
            Self::Blp => "BLP",
            Self::Cur => "CUR",
            Self::Dcx => "DCX",
            Self::Dds => "DDS",
            Self::Fits => "FITS",
            Self::Fli => "FLI",
            Self::Ftex => "FTEX",
            Self::Gbr => "GBR",
            Self::Icns => "ICNS",
            Self::Im => "IM",
            Self::Imt => "IMT",
            Self::Iptc => "IPTC",
            Self::Jpeg2000 => "JPEG 2000",
            Self::McIdas => "McIdas",
            Self::Msp => "MSP",
            Self::Pcd => "PhotoCD",
            Self::Pcx => "PCX",
            Self::Pixar => "PIXAR",
            Self::Psd => "PSD",
            Self::Sgi => "SGI",
            Self::Spider => "SPIDER",
            Self::Sun => "SUN",
            Self::Xbm => "XBM",
            Self::Xpm => "XPM",
            Self::XvThumb => "XV thumbnail",
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
            Self::Dcx => "image/x-dcx",
            Self::Pnm => "image/x-portable-anymap",
            Self::Tga => "image/x-tga",
            Self::Qoi => "image/qoi",
            Self::Avif => "image/avif",
            Self::Blp => "image/x-blp",
            Self::Dds => "image/vnd-ms.dds",
            Self::Fits => "image/fits",
            Self::Fli => "image/x-fli",
            Self::Ftex => "image/x-ftex",
            Self::Gbr => "image/x-gimp-gbr",
            Self::Icns => "image/x-icns",
            Self::Im => "image/x-im",
            Self::Imt => "image/x-imt",
            Self::Iptc => "image/x-iptc",
            Self::Jpeg2000 => "image/jp2",
            Self::McIdas => "image/x-mcidas",
            Self::Msp => "image/x-msp",
            Self::Pcd => "image/x-photo-cd",
            Self::Pcx => "image/vnd.zbrush.pcx",
            Self::Pixar => "image/x-pixar",
            Self::Psd => "image/vnd.adobe.photoshop",
            Self::Sgi => "image/x-sgi",
            Self::Spider => "image/x-spider",
            Self::Sun => "image/x-sun-raster",
            Self::Xbm => "image/x-xbitmap",
            Self::Xpm => "image/x-xpixmap",
            Self::XvThumb => "image/x-xv-thumbnail",
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
            // vLLM tries GBR before QOI, which may look like one.
            _ if is_gbr(bytes) => Self::Gbr,
            _ if start(b"qoif") => Self::Qoi,
            _ if is_avif(bytes) => Self::Avif,
            _ if start(b"\xff\x4f\xff\x51") || start(b"\0\0\0\x0cjP  \r\n\x87\n") => Self::Jpeg2000,
            _ if start(b"DDS ") => Self::Dds,
            _ if start(b"8BPS") => Self::Psd,
            _ if start(b"icns") => Self::Icns,
            _ if start(b"DanM") || start(b"LinS") => Self::Msp,
            _ if start(b"\x59\xa6\x6a\x95") => Self::Sun,
            _ if start(b"/* XPM */") => Self::Xpm,
            _ if is_xbm(bytes) => Self::Xbm,
            _ if start(b"\x01\xda") => Self::Sgi,
            [0x0a, 0 | 2 | 3 | 5, ..] => Self::Pcx,
            _ if is_fli(bytes) => Self::Fli,
            _ if start(b"BLP1") || start(b"BLP2") => Self::Blp,
            _ if start(b"\xb1\x68\xde\x3a") => Self::Dcx,
            _ if start(b"SIMPLE") => Self::Fits,
            _ if start(b"FTEX") => Self::Ftex,
            _ if start(b"P7 332") => Self::XvThumb,
            _ if start(b"\0\0\0\0\0\0\0\x04") => Self::McIdas,
            _ if start(b"\x80\xe8\0\0") => Self::Pixar,
            _ if at(2048, b"PCD_") => Self::Pcd,
            [0x1c, 1..=9 | 240, ..] => Self::Iptc,
            _ if is_spider(bytes) => Self::Spider,
            _ if memmem::find(head(bytes), b"Image type:").is_some() => Self::Im,
            _ if memmem::find(head(bytes), b"pixel n8").is_some() => Self::Imt,
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

/// A C header that begins with its definitions or with a comment, but not any C.
fn is_xbm(bytes: &[u8]) -> bool {
    const COMMENT_BYTES: usize = 4096;
    let begins = [&b"#define"[..], b"\n#define", b"/*"].iter().any(|start| bytes.starts_with(start));
    begins && memmem::find(&bytes[..bytes.len().min(COMMENT_BYTES)], b"_width").is_some()
}

/// A GIMP brush: the length of its header, then its version.
fn is_gbr(bytes: &[u8]) -> bool {
    let word = |at| Endian::Big.u32(bytes, at).unwrap_or(0);
    let is_signed = matches!(bytes.get(20..24), Some(b"GIMP"));
    word(0) >= 20 && (word(4) == 1 || word(4) == 2 && is_signed) && matches!(word(16), 1 | 4)
}

/// SPIDER begins with numbers in floating point, of either byte order: the fifth is 1 for a picture, and the length of the
/// header is that of a record times the number of records.
fn is_spider(bytes: &[u8]) -> bool {
    [Endian::Big, Endian::Little].into_iter().any(|endian| {
        let number = |index: usize| endian.u32(bytes, (index - 1) * 4).map_or(0.0, f32::from_bits);
        let is_whole = |index| number(index).fract() == 0.0;
        [1, 2, 5, 12, 13, 22, 23].into_iter().all(is_whole)
            && number(5) == 1.0
            && number(22) == number(13) * number(23)
            && bytes.len() >= 27 * 4
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What vLLM reads and we do not decode has to be told all the same, so that it goes to a worker instead of being refused.
    #[test]
    fn rare_formats_are_told_by_their_first_bytes() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        let spider = |big: bool| {
            let mut numbers = [0f32; 27];
            (numbers[4], numbers[12], numbers[21], numbers[22]) = (1.0, 27.0, 1080.0, 40.0);
            numbers.iter().flat_map(|n| if big { n.to_be_bytes() } else { n.to_le_bytes() }).collect::<Vec<u8>>()
        };
        for (format, bytes) in [
            (Format::Blp, b"BLP2\x01\0\0\0".to_vec()),
            (Format::Dcx, b"\xb1\x68\xde\x3a\x0c\0\0\0".to_vec()),
            (Format::Fits, b"SIMPLE  =                    T".to_vec()),
            (Format::Ftex, b"FTEX\x03\0\0\0".to_vec()),
            (Format::XvThumb, b"P7 332\n#END_OF_COMMENTS\n1 1 255\n\0".to_vec()),
            (Format::McIdas, b"\0\0\0\0\0\0\0\x04".to_vec()),
            (Format::Pixar, b"\x80\xe8\0\0".to_vec()),
            (Format::Pcd, [&[0xff; 2048][..], b"PCD_IPI"].concat()),
            (Format::Iptc, b"\x1c\x03\x3c\0\x02\x01\0".to_vec()),
            (Format::Gbr, words(&[21, 1, 5, 5, 1, 0])),
            (Format::Gbr, words(&[29, 2, 5, 5, 4, u32::from_be_bytes(*b"GIMP"), 10])),
            (Format::Spider, spider(true)),
            (Format::Spider, spider(false)),
            (Format::Im, b"Image type: L image\r\n".to_vec()),
            (Format::Imt, b"width 1\nheight 1\npixel n8\n\x0c\0".to_vec()),
            (Format::Xbm, b"/* a\ncomment */\n#define im_width 8\n".to_vec()),
            (Format::Xbm, b"#define im_width 8\n".to_vec()),
        ] {
            assert_eq!(Format::sniff(&bytes), Some(format));
        }
        for other in [&b"/* C */ int main(void);"[..], b"P7\nWIDTH 1\n", &words(&[21, 2, 5, 5, 1, 0]), &[0; 200]] {
            assert_eq!(Format::sniff(other), None);
        }
    }
}
