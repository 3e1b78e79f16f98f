//! The two passes of a bicubic resize with antialiasing, each equal to that of PyTorch on uint8.
//!
//! PyTorch (`upsample_bicubic2d_aa` on uint8, which torchvision and so the Hugging Face processors call) goes through a
//! picture along its rows first, rounds to 8 bits, and then along its columns, with weights in 16-bit fixed point.
//! fast_image_resize has the same weights, but where both sides change it goes along the columns first, and rounding makes
//! that another picture. So each pass is a call of its own.

use fast_image_resize::{
    FilterType, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedImage, TypedImageRef},
    pixels::U8x3,
};

use crate::media::decode::{DecodeError, Size};

/// One pass over RGB pixels: `from` and `to` are the sizes of the two buffers, and differ along one axis.
///
/// # Errors
///
/// [`DecodeError::OutputLength`] if a buffer is not as long as its size says.
pub fn pass(source: &[u8], from: Size, out: &mut [u8], to: Size) -> Result<(), DecodeError> {
    debug_assert!(from.height == to.height || from.width == to.width);
    for (actual, size) in [(source.len(), from), (out.len(), to)] {
        let expected = size.rgb_bytes();
        if actual != expected {
            return Err(DecodeError::OutputLength { expected, actual });
        }
    }
    let checked = "the buffer has the length of this size, and three bytes need no alignment";
    let source = TypedImageRef::<U8x3>::from_buffer(from.width, from.height, source).expect(checked);
    let mut out = TypedImage::<U8x3>::from_buffer(to.width, to.height, out).expect(checked);
    // Bicubic with a = -1/2.
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom));
    Resizer::new().resize_typed(&source, &mut out, &options).expect("nothing is cropped");
    Ok(())
}
