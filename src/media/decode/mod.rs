//! Encoded image bytes to RGB8 pixels, equal to those that vLLM would have decoded.
//!
//! Two steps, so that memory is bounded before it is taken: [`probe`] reads the header alone and says how large the
//! picture is, as it will be shipped, and how much scratch its decoder needs; the caller then reserves both, and
//! [`decode_into`] writes (height, width, 3) bytes straight into the caller's memory, which may be stale memory of
//! another picture: where it returns `Ok` it has written every byte.
//!
//! The reference is vLLM's image loader on Pillow: first frame only, EXIF or XMP orientation applied, transparency laid
//! on white, no colour management, and broken files refused. The oddities of that reference are kept, each where its
//! format is: a file a format, [`sniff`] for telling them apart, [`orientation`], [`turn`] and [`colour`] for what they share.
//! What the reference accepts by accident (a partial picture of a broken file) is refused here.
//!
//! A format that vLLM reads and we do not decode exactly is [`Probe::Opaque`]: the worker gets the bytes themselves.

mod bmp;
mod bytes;
mod colour;
mod describe;
mod error;
mod gif;
mod ico;
mod ifd;
mod jpeg;
mod lzw;
mod orientation;
mod png;
mod pnm;
mod qoi;
mod raw;
mod rewrite;
mod scratch;
#[cfg(target_arch = "x86_64")]
mod shuffles;
mod sniff;
mod tga;
mod tiff;
mod turn;
mod webp;

pub use error::DecodeError;
pub use jpeg::CACHED_OFFSET_BYTES;
use orientation::Orientation;
pub use scratch::Scratch;
pub use sniff::Format;
use turn::{BAND_ROWS, Turner, turner_bytes};

use crate::observe::panics;

/// What an image may cost. Checked against its header, before anything is allocated.
#[derive(Clone, Debug)]
pub struct DecodeLimits {
    /// Pixels of the picture (height times width).
    pub max_pixels: u64,
    /// Pixels along either side.
    pub max_side: u32,
    /// Memory that a decoder may take beyond its output: coefficients, planes, a picture that is yet to be turned.
    pub max_scratch_bytes: usize,
    /// Scans of a progressive JPEG times its pixels: each scan visits the whole picture, and a scan can be ten bytes.
    pub max_scan_pixels: u64,
    /// Bytes to which the compressed texts and profiles of a PNG may inflate, together.
    pub max_metadata_bytes: usize,
}

impl Default for DecodeLimits {
    fn default() -> Self {
        Self {
            max_pixels: 50_000_000,
            max_side: 16_384,
            max_scratch_bytes: 512 << 20,
            max_scan_pixels: 1_000_000_000,
            max_metadata_bytes: 4 << 20,
        }
    }
}

/// What a header told: enough to reserve memory and to decode.
#[derive(Clone, Debug)]
pub struct Header {
    format: Format,
    stored: Size,
    orientation: Orientation,
    decoder_scratch_bytes: usize,
    plan: Plan,
}

impl Header {
    /// The format by the first bytes.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows of the picture as it is shipped, after its orientation was applied.
    pub fn height(&self) -> u32 {
        self.size().height
    }

    /// Columns of the picture as it is shipped, after its orientation was applied.
    pub fn width(&self) -> u32 {
        self.size().width
    }

    /// Height and width of the picture as it is shipped, after its orientation was applied.
    pub fn size(&self) -> Size {
        if self.orientation.swaps_sides() {
            Size { height: self.stored.width, width: self.stored.height }
        } else {
            self.stored
        }
    }

    /// Bytes of the shipped picture: height times width times 3.
    pub fn rgb_bytes(&self) -> usize {
        self.stored.rgb_bytes()
    }

    /// Upper estimate of what decoding allocates beyond the output.
    pub fn scratch_bytes(&self) -> usize {
        let turned = match &self.plan {
            _ if !self.orientation.swaps_sides() => 0,
            Plan::Jpeg(plan) => jpeg::turning_bytes(plan, self.stored),
            _ => self.rgb_bytes().saturating_add(turner_bytes(self.stored)),
        };
        self.decoder_scratch_bytes.saturating_add(turned)
    }

    /// The same picture in the smallest of a half, a quarter and an eighth of its size that covers `target`, where its codec can
    /// decode it so: JPEG. Faster, and less memory; the pixels are not those of the full picture resized.
    pub fn reduced_to_cover(&self, target: Size) -> Option<Header> {
        let Plan::Jpeg(plan) = &self.plan else { return None };
        [8, 4, 2].into_iter().find_map(|denominator| {
            let (plan, stored) = plan.reduced(denominator);
            let reduced = Header { stored, plan: Plan::Jpeg(plan), ..self.clone() };
            let size = reduced.size();
            (size.height >= target.height && size.width >= target.width).then_some(reduced)
        })
    }

    /// Length of a band for [`decode_in_bands`]: about `bytes` where the format gives rows one after the other in the order
    /// in which they are shipped, else all of the picture.
    pub fn band_bytes(&self, bytes: usize) -> usize {
        match self.plan {
            Plan::Jpeg(_) if self.orientation == Orientation::Upright => {
                let row_bytes = self.stored.row_bytes().max(1);
                (bytes / row_bytes).clamp(1, self.stored.height.max(1) as usize) * row_bytes
            }
            _ => self.rgb_bytes(),
        }
    }
}

/// What can be done with an image.
#[derive(Clone, Debug)]
pub enum Probe {
    /// [`decode_into`] gives the pixels that vLLM would have made of it.
    Decodable(Header),
    /// vLLM reads it, we do not decode it exactly: it goes to the worker as the bytes that were fetched.
    Opaque(Format),
}

/// Size of a picture in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    pub height: u32,
    pub width: u32,
}

impl Size {
    pub fn pixels(self) -> u64 {
        u64::from(self.height) * u64::from(self.width)
    }

    /// Bytes as RGB8. Saturates only for sizes that every limit refuses.
    pub fn rgb_bytes(self) -> usize {
        usize::try_from(self.pixels()).unwrap_or(usize::MAX).saturating_mul(3)
    }

    /// Bytes of a row as RGB8.
    pub fn row_bytes(self) -> usize {
        self.width as usize * 3
    }
}

/// What the probe of one format found.
struct Found {
    /// As stored, before orientation.
    size: Size,
    orientation: Orientation,
    /// What the decoder allocates; a turned copy of the picture is not in it.
    scratch_bytes: usize,
    plan: Plan,
}

/// What a format's decoder wants to remember of the header.
#[derive(Clone, Debug)]
enum Plan {
    Jpeg(jpeg::Plan),
    Png(Box<png::Plan>),
    WebP(webp::Plan),
    Gif(gif::Plan),
    Bmp(bmp::Plan),
    Pnm(pnm::Plan),
    Tga(tga::Plan),
    Qoi(qoi::Plan),
    Ico(ico::Plan),
    Tiff(Box<tiff::Plan>),
}

/// Reads the header: format, size as shipped, memory needed. Allocates nothing that grows with the picture.
pub fn probe(bytes: &[u8], limits: &DecodeLimits) -> Result<Probe, DecodeError> {
    if bytes.is_empty() {
        return Err(DecodeError::Empty);
    }
    let Some(format) = Format::sniff(bytes) else {
        return Err(DecodeError::Unsupported { name: sniff::refused_name(bytes) });
    };
    let found = guarded(format, || match format {
        Format::Jpeg => jpeg::probe(bytes, limits).map(Some),
        Format::Png => png::probe(bytes, limits).map(Some),
        Format::WebP => webp::probe(bytes).map(Some),
        Format::Gif => gif::probe(bytes).map(Some),
        Format::Bmp => bmp::probe(bytes).map(Some),
        Format::Pnm => pnm::probe(bytes),
        Format::Tga => tga::probe(bytes),
        Format::Qoi => qoi::probe(bytes).map(Some),
        Format::Ico => ico::probe(bytes, limits).map(Some),
        Format::Tiff => tiff::probe(bytes),
        _ => Ok(None),
    })?;
    let Some(found) = found else { return Ok(Probe::Opaque(format)) };
    let Found { size, orientation, scratch_bytes, plan } = found;
    let header = Header { format, stored: size, orientation, decoder_scratch_bytes: scratch_bytes, plan };
    check_limits(&header, limits)?;
    Ok(Probe::Decodable(header))
}

/// Decodes the picture of which [`probe`] made `header` into `out`, which is [`Header::rgb_bytes`] long: rows from the
/// top, pixels from the left, red, green, blue. Decoding a picture into it may want `scratch`, which is the better the more often
/// it was used before.
///
/// After `Ok` every byte of `out` was written; after `Err` its content means nothing.
pub fn decode_into(bytes: &[u8], header: &Header, out: &mut [u8], scratch: &mut Scratch) -> Result<(), DecodeError> {
    let (expected, actual) = (header.rgb_bytes(), out.len());
    if actual != expected {
        return Err(DecodeError::OutputLength { expected, actual });
    }
    guarded(header.format, || {
        let row_bytes = header.stored.row_bytes();
        match &header.plan {
            _ if !header.orientation.swaps_sides() => {
                decode_stored(bytes, header, out, scratch)?;
                header.orientation.turn_in_place(out, header.stored.width as usize);
            }
            // Most pictures that lie on their side are photographs: those are turned as they are decoded.
            Plan::Jpeg(plan) => jpeg::decode_turned(bytes, plan, header.stored, header.orientation, out)?,
            _ => {
                let mut stored = vec![0; expected];
                decode_stored(bytes, header, &mut stored, scratch)?;
                let mut turner = Turner::new(header.orientation, header.stored, out);
                stored.chunks(BAND_ROWS * row_bytes).for_each(|rows| turner.turn::<3>(rows, row_bytes));
            }
        }
        Ok(())
    })
}

/// As [`decode_into`], a band of rows at a time: `each` gets whole rows from the top on, in `band`, whose length is
/// [`Header::band_bytes`]. They come quickest if it begins [`CACHED_OFFSET_BYTES`] behind the start of its memory.
///
/// What `each` was given before an `Err` is of no use.
pub fn decode_in_bands(
    bytes: &[u8],
    header: &Header,
    band: &mut [u8],
    scratch: &mut Scratch,
    each: &mut dyn FnMut(&[u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    match &header.plan {
        Plan::Jpeg(plan) if band.len() < header.rgb_bytes() => {
            guarded(header.format, || jpeg::decode_in_bands(bytes, plan, header.stored, band, each))
        }
        _ => {
            decode_into(bytes, header, band, scratch)?;
            each(band)
        }
    }
}

/// Decodes in the orientation in which the file stores the picture.
fn decode_stored(bytes: &[u8], header: &Header, out: &mut [u8], scratch: &mut Scratch) -> Result<(), DecodeError> {
    match &header.plan {
        Plan::Jpeg(plan) => jpeg::decode(bytes, plan, header.stored, out),
        Plan::Png(plan) => png::decode(bytes, plan, header.stored, out),
        Plan::WebP(plan) => webp::decode(bytes, plan, header.stored, out, scratch),
        Plan::Gif(plan) => gif::decode(bytes, plan, header.stored, out),
        Plan::Bmp(plan) => bmp::decode(bytes, plan, header.stored, out),
        Plan::Pnm(plan) => pnm::decode(bytes, plan, header.stored, out),
        Plan::Tga(plan) => tga::decode(bytes, plan, header.stored, out),
        Plan::Qoi(plan) => qoi::decode(bytes, plan, out),
        Plan::Ico(plan) => ico::decode(bytes, plan, header.stored, out),
        Plan::Tiff(plan) => tiff::decode(bytes, plan, header.stored, out),
    }
}

fn check_limits(header: &Header, limits: &DecodeLimits) -> Result<(), DecodeError> {
    let scratch_bytes = header.scratch_bytes() as u64;
    let checks = [
        ("height", u64::from(header.height()), u64::from(limits.max_side)),
        ("width", u64::from(header.width()), u64::from(limits.max_side)),
        ("number of pixels", header.stored.pixels(), limits.max_pixels),
        ("decoding memory in bytes", scratch_bytes, limits.max_scratch_bytes as u64),
    ];
    match checks.into_iter().find(|(_, value, limit)| value > limit) {
        None => Ok(()),
        Some((what, value, limit)) => Err(DecodeError::TooLarge { format: header.format, what, value, limit }),
    }
}

/// A panic inside a codec is a broken image, not a broken gateway.
fn guarded<T>(format: Format, run: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    // Nothing that outlives the closure is left half changed but the output, which means nothing after an error.
    panics::contain(run)
        .unwrap_or_else(|message| Err(DecodeError::corrupt(format, format!("the decoder panicked: {message}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_no_image() {
        assert!(matches!(probe(b"", &DecodeLimits::default()), Err(DecodeError::Empty)));
        let html = probe(b"<!DOCTYPE html><html></html>", &DecodeLimits::default());
        assert!(matches!(html, Err(DecodeError::Unsupported { name: Some("HTML or XML") })));
    }

    #[test]
    fn a_panic_is_a_broken_image() {
        let result = guarded(Format::Gif, || -> Result<(), DecodeError> { panic!("index out of bounds") });
        assert!(matches!(result, Err(DecodeError::Corrupt { format: Format::Gif, .. })));
    }
}
