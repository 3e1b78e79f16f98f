//! Rows to RGB, and blocks turned, with the byte shuffles of SSSE3, of which Rust makes none by itself. What converts rows
//! does the first pixels and returns how many; the rest is left to the caller.

use std::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_add_epi16, _mm_cvtsi128_si32, _mm_loadu_si128, _mm_mullo_epi16, _mm_packus_epi16,
    _mm_prefetch, _mm_set1_epi16, _mm_setr_epi8, _mm_shuffle_epi8, _mm_srli_epi16, _mm_srli_si128, _mm_storel_epi64,
    _mm_storeu_si128, _mm_sub_epi16, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
};

/// Pixels of four bytes laid on white, four at a time. `order` says where red, green, blue and alpha are.
#[target_feature(enable = "ssse3")]
pub(super) fn on_white(stored: &[u8], order: [u8; 4], rgb: &mut [u8]) -> usize {
    let place = |index: usize| (index / 4 * 4) as i8 + order[index % 4] as i8;
    // A pixel's bytes in the lower half of 16-bit words; the rest are zeros.
    let (low, high) = (words(place, 0), words(place, 8));
    blocks(stored, rgb, |pixels| {
        let packed = _mm_packus_epi16(two(_mm_shuffle_epi8(pixels, low)), two(_mm_shuffle_epi8(pixels, high)));
        _mm_shuffle_epi8(packed, _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1))
    })
}

/// Pixels of four bytes, four at a time. `order` says where red, green and blue are.
#[target_feature(enable = "ssse3")]
pub(super) fn pick(stored: &[u8], order: [u8; 3], rgb: &mut [u8]) -> usize {
    let place = |index: usize| (index / 3 * 4) as i8 + order[index % 3] as i8;
    let places: [i8; 16] = std::array::from_fn(|index| if index < 12 { place(index) } else { -1 });
    let places = register(places);
    blocks(stored, rgb, |pixels| _mm_shuffle_epi8(pixels, places))
}

/// Blocks of four pixels of four bytes through `convert`, of whose result the first twelve bytes count.
#[target_feature(enable = "ssse3")]
fn blocks(stored: &[u8], rgb: &mut [u8], convert: impl Fn(__m128i) -> __m128i) -> usize {
    // A block is stored as 16 bytes, the last four of which the next block overwrites.
    let blocks = (stored.len() / 16).min(rgb.len().saturating_sub(4) / 12);
    for (block, source) in stored.chunks_exact(16).take(blocks).enumerate() {
        let target = &mut rgb[block * 12..block * 12 + 16];
        // SAFETY: both slices are 16 bytes long, and the instructions want no alignment.
        unsafe { _mm_storeu_si128(target.as_mut_ptr().cast(), convert(_mm_loadu_si128(source.as_ptr().cast()))) }
    }
    blocks * 4
}

/// Moves a block of four by four RGB pixels to where its columns are rows: `sources` are where its rows begin in `rows`,
/// `targets` where its columns go in `out`. All are counted in bytes, and have room for 16 and 12 of them.
#[target_feature(enable = "ssse3")]
pub(super) fn transpose(rows: &[u8], sources: [usize; 4], out: &mut [u8], targets: [usize; 4]) {
    let apart = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    let together = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    let [a, b, c, d] = sources.map(|at| {
        // SAFETY: the slice is 16 bytes long, and the instruction wants no alignment.
        _mm_shuffle_epi8(unsafe { _mm_loadu_si128(rows[at..at + 16].as_ptr().cast()) }, apart)
    });
    let (ab_low, ab_high) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
    let columns = [
        _mm_unpacklo_epi64(ab_low, cd_low),
        _mm_unpackhi_epi64(ab_low, cd_low),
        _mm_unpacklo_epi64(ab_high, cd_high),
        _mm_unpackhi_epi64(ab_high, cd_high),
    ];
    for (column, at) in columns.into_iter().zip(targets) {
        let column = _mm_shuffle_epi8(column, together);
        let (first, last) = out[at..at + 12].split_at_mut(8);
        // SAFETY: the slice is 8 bytes long, and the instruction wants no alignment.
        unsafe { _mm_storel_epi64(first.as_mut_ptr().cast(), column) }
        last.copy_from_slice(&_mm_cvtsi128_si32(_mm_srli_si128::<8>(column)).to_le_bytes());
    }
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

/// Has the processor fetch a line of the cache before it is written to.
pub(super) fn prefetch(bytes: &[u8], at: usize) {
    if let Some(byte) = bytes.get(at) {
        // SAFETY: it is a hint, and the processor has SSE, as all of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) }
    }
}

/// The places of the eight bytes from `first` on, each followed by a zero.
#[target_feature(enable = "ssse3")]
fn words(place: impl Fn(usize) -> i8, first: usize) -> __m128i {
    register(std::array::from_fn(|byte| if byte % 2 == 0 { place(first + byte / 2) } else { -1 }))
}

#[target_feature(enable = "ssse3")]
fn register(bytes: [i8; 16]) -> __m128i {
    // SAFETY: the array is 16 bytes long, and the instruction wants no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
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
