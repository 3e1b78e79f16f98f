//! Rows to RGB, and blocks turned, with the byte shuffles of SSSE3 and AVX2, of which Rust makes none by itself. What converts
//! rows does the first pixels and returns how many; the rest is left to the caller.

use std::arch::x86_64::{
    __m128i, _mm_add_epi16, _mm_loadu_si128, _mm_mulhi_epu16, _mm_mullo_epi16, _mm_packus_epi16, _mm_set1_epi8,
    _mm_set1_epi16, _mm_setr_epi8, _mm_shuffle_epi8, _mm_srli_si128, _mm_storel_epi64, _mm_storeu_si128, _mm_xor_si128,
    _mm256_broadcastsi128_si256, _mm256_loadu_si256, _mm256_permutevar8x32_epi32, _mm256_set_m128i, _mm256_setr_epi32,
    _mm256_shuffle_epi8, _mm256_storeu_si256, _mm256_stream_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64,
    _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

/// Pixels of four bytes laid on white, four at a time. `order` says where red, green, blue and alpha are.
#[target_feature(enable = "ssse3")]
pub(super) fn on_white(stored: &[u8], order: [u8; 4], rgb: &mut [u8]) -> usize {
    let [red, green, blue, alpha] = order.map(|at| at as i8);
    // Of two pixels, each byte as a word of 16 bits.
    let words = |places: [i8; 4], pixel: i8| {
        register(std::array::from_fn(|byte| match byte % 2 {
            0 => (pixel + byte as i8 / 8) * 4 + places[byte / 2 % 4],
            _ => -1,
        }))
    };
    let colours = [0, 2].map(|pixel| words([red, green, blue, alpha], pixel));
    let alphas = [0, 2].map(|pixel| words([alpha; 4], pixel));
    let (ones, half, shift) = (_mm_set1_epi8(-1), _mm_set1_epi16(128), _mm_set1_epi16(257));
    let together = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    blocks(stored, rgb, |pixels| {
        // What is missing to white, times alpha, over 255 and rounded, is missing in the end: the same as mixing the colour
        // with white, since a quotient by 255 never lies halfway between two numbers.
        let missing = _mm_xor_si128(pixels, ones);
        // Called by name: what `map` calls is sometimes compiled without these instructions around it, and then not inlined.
        let mixed = |two: usize| {
            let product =
                _mm_mullo_epi16(_mm_shuffle_epi8(missing, colours[two]), _mm_shuffle_epi8(pixels, alphas[two]));
            // (x + (x >> 8)) >> 8 in one multiplication.
            _mm_mulhi_epu16(_mm_add_epi16(product, half), shift)
        };
        _mm_shuffle_epi8(_mm_xor_si128(_mm_packus_epi16(mixed(0), mixed(1)), ones), together)
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
// Inlined, since `convert` is not where the compiler puts the two into units of their own: four times as slow.
#[inline]
#[target_feature(enable = "ssse3")]
fn blocks(stored: &[u8], rgb: &mut [u8], convert: impl Fn(__m128i) -> __m128i) -> usize {
    // A block is stored as 16 bytes, the last four of which the next block overwrites.
    let blocks = (stored.len() / 16).min(rgb.len().saturating_sub(4) / 12);
    for block in 0..blocks {
        // SAFETY: 16 bytes a block are stored, and 12 a block and 4 more have room; the instructions want no alignment.
        unsafe {
            let pixels = _mm_loadu_si128(stored.as_ptr().add(block * 16).cast());
            _mm_storeu_si128(rgb.as_mut_ptr().add(block * 12).cast(), convert(pixels));
        }
    }
    blocks * 4
}

/// Turns four columns of pixels of `PIXEL` bytes, 3 or 4, on their side, as RGB: eight rows at a time, as often as they go into
/// `count`. Returns how many rows are done. The first row is at `first` in `rows`, the next is `step` bytes from there, up or
/// down, and so on; 16 bytes of each are read, and 8 bytes more than a column is long are written.
#[target_feature(enable = "avx2")]
pub(super) fn transpose<const PIXEL: usize>(
    rows: &[u8],
    first: usize,
    step: isize,
    count: usize,
    columns: [&mut [u8]; 4],
) -> usize {
    let blocks = count / 8;
    if blocks == 0 {
        return 0;
    }
    let last = first.wrapping_add_signed(step * (blocks as isize * 8 - 1));
    assert!(first.max(last) < rows.len() && rows.len() - first.max(last) >= 16, "rows to read");
    assert!(columns.iter().all(|column| column.len() >= blocks * 24 + 8), "room to write");
    let both = |register| _mm256_broadcastsi128_si256(register);
    let apart = both(_mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
    let together = both(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    let joined = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7);
    let columns = columns.map(<[u8]>::as_mut_ptr);
    for block in 0..blocks {
        let row = |row: isize| {
            let at = first.wrapping_add_signed(step * (block as isize * 8 + row));
            // SAFETY: between first and last, where 16 bytes are readable; the instruction wants no alignment.
            unsafe { _mm_loadu_si128(rows.as_ptr().add(at).cast()) }
        };
        // Four pixels of a row, and of the row four further on.
        let two_rows = |index: isize| {
            let pixels = _mm256_set_m128i(row(index + 4), row(index));
            if PIXEL == 4 { pixels } else { _mm256_shuffle_epi8(pixels, apart) }
        };
        let (a, b, c, d) = (two_rows(0), two_rows(1), two_rows(2), two_rows(3));
        let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        let turned = [
            _mm256_unpacklo_epi64(ab_low, cd_low),
            _mm256_unpackhi_epi64(ab_low, cd_low),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ];
        for (pixels, column) in turned.into_iter().zip(columns) {
            let pixels = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(pixels, together), joined);
            // SAFETY: each column has room for 24 bytes a block and 8 more; the instruction wants no alignment. Those 8 bytes are
            // of the next block, which overwrites them, or what the caller allows.
            unsafe { _mm256_storeu_si256(column.add(block * 24).cast(), pixels) }
        }
    }
    blocks * 8
}

/// Writes a line of the cache to memory, past the cache. It has to begin at a multiple of 32.
#[target_feature(enable = "avx2")]
pub(super) fn stream(line: &[u8; 64], to: &mut [u8]) {
    assert!(to.len() == 64 && to.as_ptr().addr().is_multiple_of(32), "a line");
    for at in [0, 32] {
        // SAFETY: both are 64 bytes long, and what is written to is aligned as the instruction wants it.
        unsafe {
            let half = _mm256_loadu_si256(line.as_ptr().add(at).cast());
            _mm256_stream_si256(to.as_mut_ptr().add(at).cast(), half);
        }
    }
}

/// Reverses the order of RGB pixels, five from each end at a time. Returns how many are done at either end.
#[target_feature(enable = "ssse3")]
pub(super) fn reverse(rgb: &mut [u8]) -> usize {
    let low = _mm_setr_epi8(12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2, -1);
    let high = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, -1);
    let steps = rgb.len().saturating_sub(2) / 30;
    let (start, end) = (rgb.as_mut_ptr(), rgb.as_mut_ptr_range().end);
    for step in 0..steps {
        // SAFETY: 15 bytes a step at either end are apart from each other and followed by one more: the slice is 30 bytes a
        // step long, and two. Read are 16 and written 15, as two halves that share a byte: so no load waits for a store. The
        // instructions want no alignment.
        unsafe {
            let (first, last) = (start.add(step * 15), end.sub(step * 15 + 15));
            let to_last = _mm_shuffle_epi8(_mm_loadu_si128(first.cast()), low);
            let to_first = _mm_shuffle_epi8(_mm_loadu_si128(last.sub(1).cast()), high);
            for (to, pixels) in [(first, to_first), (last, to_last)] {
                _mm_storel_epi64(to.cast(), pixels);
                _mm_storel_epi64(to.add(7).cast(), _mm_srli_si128::<7>(pixels));
            }
        }
    }
    steps * 5
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

#[target_feature(enable = "ssse3")]
fn register(bytes: [i8; 16]) -> __m128i {
    // SAFETY: the array is 16 bytes long, and the instruction wants no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
