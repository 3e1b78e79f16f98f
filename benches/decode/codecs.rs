//! The codecs called directly, without a check or a conversion more than they do by themselves.

use std::io::Cursor;

use mediagate::media::decode::Format;

/// Decodes a file into memory that is there.
pub type Codec = fn(&[u8], &mut [u8]);

/// Decodes with the library that does the work for this format, into memory that is there: TurboJPEG; the `png` crate, which
/// expands palettes and leaves greys and alpha as they are; libwebp, to RGBA where there is alpha. `None` for other formats.
pub fn codec(format: Format, file: &[u8]) -> Option<Codec> {
    match format {
        Format::Jpeg => Some(turbojpeg),
        Format::Png => Some(png),
        // The name of the first chunk, and the flag for alpha.
        Format::WebP if file[12..16] == *b"VP8X" && file[20] & 0x10 != 0 => Some(webp_rgba),
        Format::WebP => Some(webp_rgb),
        _ => None,
    }
}

/// TurboJPEG on a handle of its own.
fn turbojpeg(file: &[u8], out: &mut [u8]) {
    use turbojpeg_sys::{
        TJINIT_TJINIT_DECOMPRESS, TJPF_TJPF_RGB, tj3Decompress8, tj3DecompressHeader, tj3Destroy, tj3Init,
    };
    // SAFETY: pointers and lengths are those of slices; the output has room for the rows, which are not padded.
    unsafe {
        let handle = tj3Init(TJINIT_TJINIT_DECOMPRESS as _);
        assert_eq!(tj3DecompressHeader(handle, file.as_ptr(), file.len() as _), 0);
        assert_eq!(tj3Decompress8(handle, file.as_ptr(), file.len() as _, out.as_mut_ptr(), 0, TJPF_TJPF_RGB), 0);
        tj3Destroy(handle);
    }
}

fn png(file: &[u8], out: &mut [u8]) {
    let mut decoder = png::Decoder::new(Cursor::new(file));
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().expect("a header");
    reader.next_frame(out).expect("a whole picture");
}

fn webp_size(file: &[u8]) -> i32 {
    let mut width = 0;
    // SAFETY: pointer and length are those of a slice; one of the sizes is asked for.
    let known = unsafe { libwebp_sys::WebPGetInfo(file.as_ptr(), file.len(), &mut width, std::ptr::null_mut()) };
    assert_ne!(known, 0);
    width
}

fn webp_rgb(file: &[u8], out: &mut [u8]) {
    let stride = webp_size(file) * 3;
    // SAFETY: pointers and lengths are those of slices.
    let done =
        unsafe { libwebp_sys::WebPDecodeRGBInto(file.as_ptr(), file.len(), out.as_mut_ptr(), out.len(), stride) };
    assert!(!done.is_null());
}

fn webp_rgba(file: &[u8], out: &mut [u8]) {
    let stride = webp_size(file) * 4;
    // SAFETY: pointers and lengths are those of slices.
    let done =
        unsafe { libwebp_sys::WebPDecodeRGBAInto(file.as_ptr(), file.len(), out.as_mut_ptr(), out.len(), stride) };
    assert!(!done.is_null());
}
