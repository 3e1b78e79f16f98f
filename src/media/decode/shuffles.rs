//! Rows to RGB with the byte shuffles of SSSE3, of which Rust makes none by itself. Each function does the first pixels
//! and returns how many; the rest is left to the caller.

use std::arch::x86_64::{
    __m128i, _mm_add_epi16, _mm_loadu_si128, _mm_mullo_epi16, _mm_packus_epi16, _mm_set1_epi16, _mm_setr_epi8,
    _mm_setzero_si128, _mm_shuffle_epi8, _mm_srli_epi16, _mm_storeu_si128, _mm_sub_epi16, _mm_unpackhi_epi8,
    _mm_unpacklo_epi8,
};

/// RGBA laid on white, four pixels at a time.
#[target_feature(enable = "ssse3")]
pub(super) fn rgba_on_white(rgba: &[u8], rgb: &mut [u8]) -> usize {
    // A block of four pixels is stored as 16 bytes, the last four of which the next block overwrites.
    let blocks = (rgba.len() / 16).min(rgb.len().saturating_sub(4) / 12);
    for (block, source) in rgba.chunks_exact(16).take(blocks).enumerate() {
        let target = &mut rgb[block * 12..block * 12 + 16];
        // SAFETY: both slices are 16 bytes long, and the instructions want no alignment.
        unsafe { _mm_storeu_si128(target.as_mut_ptr().cast(), four(_mm_loadu_si128(source.as_ptr().cast()))) }
    }
    blocks * 4
}

/// Greys, sixteen pixels at a time.
#[target_feature(enable = "ssse3")]
pub(super) fn grey(grey: &[u8], rgb: &mut [u8]) -> usize {
    let thirds = [
        _mm_setr_epi8(0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5),
        _mm_setr_epi8(5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10),
        _mm_setr_epi8(10, 11, 11, 11, 12, 12, 12, 13, 13, 13, 14, 14, 14, 15, 15, 15),
    ];
    for (target, source) in rgb.chunks_exact_mut(48).zip(grey.chunks_exact(16)) {
        // SAFETY: the slice is 16 bytes long, and the instruction wants no alignment.
        let source = unsafe { _mm_loadu_si128(source.as_ptr().cast()) };
        for (target, third) in target.chunks_exact_mut(16).zip(thirds) {
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(target.as_mut_ptr().cast(), _mm_shuffle_epi8(source, third)) }
        }
    }
    (grey.len() / 16).min(rgb.len() / 48) * 16
}

/// Twelve bytes of RGB, then four that mean nothing.
#[target_feature(enable = "ssse3")]
fn four(rgba: __m128i) -> __m128i {
    let zero = _mm_setzero_si128();
    let low = two(_mm_unpacklo_epi8(rgba, zero));
    let high = two(_mm_unpackhi_epi8(rgba, zero));
    let packed = _mm_packus_epi16(low, high);
    _mm_shuffle_epi8(packed, _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1))
}

/// Two pixels in words of 16 bits; no sum is larger than 65,407.
#[target_feature(enable = "ssse3")]
fn two(rgba: __m128i) -> __m128i {
    let alpha = _mm_shuffle_epi8(rgba, _mm_setr_epi8(6, 7, 6, 7, 6, 7, 6, 7, 14, 15, 14, 15, 14, 15, 14, 15));
    let full = _mm_set1_epi16(255);
    let white = _mm_mullo_epi16(full, _mm_sub_epi16(full, alpha));
    let sum = _mm_add_epi16(_mm_add_epi16(_mm_mullo_epi16(rgba, alpha), white), _mm_set1_epi16(128));
    _mm_srli_epi16::<8>(_mm_add_epi16(_mm_srli_epi16::<8>(sum), sum))
}
