//! Turning a picture on its side, a band of its rows at a time.
//!
//! A column of the file is a row in memory, far from the next. If each were written where it belongs as it comes, the processor
//! would fetch every line of its cache from memory to write a part of it, which costs more than all the rest. So the columns of
//! a band are put together in a small place first, and go from there to memory by whole lines, past the cache. What is short
//! of a line at a column's end waits for the next band; only at the ends of the picture's rows are lines written in part.

use std::ops::Range;

use super::Size;
use super::orientation::Orientation;
#[cfg(target_arch = "x86_64")]
use super::shuffles;

/// Bytes of a line of the processor's cache.
const LINE_BYTES: usize = 64;

/// Rows turned together. A column of them is a number of whole lines, so that each band ends at the same place in a line.
pub(super) const BAND_ROWS: usize = 64;

/// Columns that are put together before the first of them goes to memory. With fewer, the processor is asked for what it has not
/// finished writing, more or less often by where the stack lies; more would not stay in its fastest cache.
const STRIP_COLUMNS: usize = 32;

/// Lines that a column of a band can touch, and one that is written to by stores that are longer than what they store.
const COLUMN_LINES: usize = BAND_ROWS * 3 / LINE_BYTES + 2;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; LINE_BYTES]);

/// A column of a band as it will lie in memory, from the start of the line in which it begins.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Column([u8; COLUMN_LINES * LINE_BYTES]);

/// What a [`Turner`] allocates.
pub(super) fn turner_bytes(stored: Size) -> usize {
    stored.width as usize * LINE_BYTES
}

/// Puts the rows of a stored picture where they belong in `out`, for the orientations that swap height and width.
pub(super) struct Turner<'out> {
    /// The whole picture upright.
    out: &'out mut [u8],
    /// Of the stored picture.
    height: usize,
    width: usize,
    /// Whether the first stored row becomes the last column, and the first stored column the last row.
    mirror_columns: bool,
    mirror_rows: bool,
    rows_done: usize,
    /// For each stored column the line that is not yet full.
    carried: Vec<Line>,
}

impl<'out> Turner<'out> {
    pub(super) fn new(orientation: Orientation, stored: Size, out: &'out mut [u8]) -> Self {
        debug_assert!(orientation.swaps_sides());
        assert_eq!(out.len(), stored.rgb_bytes());
        let (height, width) = (stored.height as usize, stored.width as usize);
        Self {
            out,
            height,
            width,
            mirror_columns: matches!(orientation, Orientation::Rotate270 | Orientation::Transverse),
            mirror_rows: matches!(orientation, Orientation::Rotate90 | Orientation::Transverse),
            rows_done: 0,
            carried: vec![Line([0; LINE_BYTES]); width],
        }
    }

    /// Takes the next [`BAND_ROWS`] rows, or those that are left, `row_bytes` apart: of pixels of `PIXEL` bytes, 3 or 4, that
    /// begin with red, green and blue.
    pub(super) fn turn<const PIXEL: usize>(&mut self, rows: &[u8], row_bytes: usize) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { self.turn_by_avx2::<PIXEL>(rows, row_bytes) };
        }
        self.turn_strips::<PIXEL, false>(rows, row_bytes);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn turn_by_avx2<const PIXEL: usize>(&mut self, rows: &[u8], row_bytes: usize) {
        self.turn_strips::<PIXEL, true>(rows, row_bytes);
        // What is written past the cache is not in order with what is written after.
        std::arch::x86_64::_mm_sfence();
    }

    // Inlined, so that all of it is compiled for the processor's instructions.
    #[inline(always)]
    fn turn_strips<const PIXEL: usize, const AVX2: bool>(&mut self, rows: &[u8], row_bytes: usize) {
        let count = rows.len() / row_bytes;
        let after = self.height - self.rows_done - count;
        assert!(count == BAND_ROWS || count < BAND_ROWS && after == 0, "bands of {BAND_ROWS} rows");
        let first_column = if self.mirror_columns { after } else { self.rows_done };
        let mut columns = [Column([0; COLUMN_LINES * LINE_BYTES]); STRIP_COLUMNS];
        for strip in (0..self.width).step_by(STRIP_COLUMNS) {
            let strip_columns = STRIP_COLUMNS.min(self.width - strip);
            // Where each column goes, and where in a line that is.
            let targets: [usize; STRIP_COLUMNS] = std::array::from_fn(|column| {
                let column = (strip + column).min(self.width - 1);
                let row = if self.mirror_rows { self.width - 1 - column } else { column };
                (row * self.height + first_column) * 3
            });
            let begins = targets.map(|target| (self.out.as_ptr() as usize + target) % LINE_BYTES);

            for (index, four) in columns.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let [a, b, c, d] = four;
                let Some(used) = strip_columns.checked_sub(index * 4).filter(|&used| used > 0) else { break };
                let begins = &begins[index * 4..];
                let four = [&mut a.0[begins[0]..], &mut b.0[begins[1]..], &mut c.0[begins[2]..], &mut d.0[begins[3]..]];
                self.fill::<PIXEL, AVX2>(rows, row_bytes, (strip + index * 4) * PIXEL, four, used);
            }
            for column in 0..strip_columns {
                let bytes = begins[column]..begins[column] + count * 3;
                self.write::<AVX2>(&mut columns[column], bytes, targets[column], strip + column, after == 0);
            }
        }
        self.rows_done += count;
    }

    /// Fills four columns, of which `used` are in the picture, with the pixels from byte `at` of each row on.
    #[inline(always)]
    fn fill<const PIXEL: usize, const AVX2: bool>(
        &self,
        rows: &[u8],
        row_bytes: usize,
        at: usize,
        mut columns: [&mut [u8]; 4],
        used: usize,
    ) {
        let count = rows.len() / row_bytes;
        // In the order in which the rows lie side by side when turned.
        let (first, step) = if self.mirror_columns {
            ((count - 1) * row_bytes + at, -(row_bytes as isize))
        } else {
            (at, row_bytes as isize)
        };
        #[cfg(target_arch = "x86_64")]
        let done = if AVX2 && rows.len() - ((count - 1) * row_bytes + at) >= 16 {
            // SAFETY: the processor has what the function is compiled for.
            unsafe { shuffles::transpose::<PIXEL>(rows, first, step, count, columns.each_mut().map(|c| &mut **c)) }
        } else {
            0
        };
        #[cfg(not(target_arch = "x86_64"))]
        let done = 0;
        for row in done..count {
            let pixels = &rows[first.wrapping_add_signed(step * row as isize)..];
            for (column, pixel) in columns.iter_mut().zip(pixels.chunks(PIXEL)).take(used) {
                column[row * 3..][..3].copy_from_slice(&pixel[..3]);
            }
        }
    }

    /// Writes what lies at `bytes` of a column to `target` and after, as far as it makes whole lines with what was carried.
    #[inline(always)]
    fn write<const AVX2: bool>(
        &mut self,
        column: &mut Column,
        bytes: Range<usize>,
        target: usize,
        carried: usize,
        is_last: bool,
    ) {
        let is_first = self.rows_done == 0;
        // Bands go down the row where columns are mirrored, otherwise up; what was carried lies where the band before was.
        let (carried, is_up) = (&mut self.carried[carried].0, !self.mirror_columns);
        let lines = column.0.as_chunks_mut::<LINE_BYTES>().0;
        let mut filled = bytes.clone();
        if !is_first && is_up {
            filled.start = 0;
            join(&mut lines[0], carried, 0..bytes.start);
        } else if !is_first {
            filled.end = bytes.end.next_multiple_of(LINE_BYTES);
            join(&mut lines[bytes.end / LINE_BYTES], carried, bytes.end % LINE_BYTES..LINE_BYTES);
        }
        let at_target = |byte: usize| target + byte - bytes.start;
        let whole = filled.start.div_ceil(LINE_BYTES)..filled.end / LINE_BYTES;
        for line in whole.clone() {
            let to = at_target(line * LINE_BYTES);
            let to = &mut self.out[to..to + LINE_BYTES];
            #[cfg(target_arch = "x86_64")]
            if AVX2 {
                // SAFETY: the processor has what the function is compiled for.
                unsafe { shuffles::stream(&lines[line], to) };
                continue;
            }
            to.copy_from_slice(&lines[line]);
        }
        // The lines that are filled in part, before and after.
        let before = filled.start..filled.end.min(whole.start * LINE_BYTES);
        let after = before.end.max(whole.end * LINE_BYTES)..filled.end;
        for (part, is_carried) in [(before, !is_up && !is_last), (after, is_up && !is_last)] {
            if part.is_empty() {
                continue;
            }
            if is_carried {
                *carried = lines[part.start / LINE_BYTES];
            } else {
                self.out[at_target(part.start)..at_target(part.end)].copy_from_slice(&lines.as_flattened()[part]);
            }
        }
    }
}

/// Takes these bytes of a line from another one. All bytes are looked at, without a branch, so that it is a few instructions.
#[inline(always)]
fn join(line: &mut [u8; LINE_BYTES], other: &[u8; LINE_BYTES], bytes: Range<usize>) {
    let bytes = bytes.start as u8..bytes.end as u8;
    for (at, (byte, other)) in (0u8..).zip(line.iter_mut().zip(other)) {
        let taken = 0u8.wrapping_sub(bytes.contains(&at).into());
        *byte = (*byte & !taken) | (other & taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pictures of many sizes, with and without the processor's own instructions, against the definition of each orientation.
    #[test]
    fn turning_moves_every_pixel_to_its_place() {
        let turned = [Orientation::Transpose, Orientation::Rotate270, Orientation::Transverse, Orientation::Rotate90];
        let heights = (1..14).chain([63, 64, 65, 66, 85, 86, 127, 128, 129, 150, 192, 193, 277]);
        for (height, width) in heights.flat_map(|height| (1..36).map(move |width| (height, width))) {
            let stored: Vec<u8> = (0..height * width * 3).map(|at| (at * 7 % 251) as u8).collect();
            let pixel = |row: usize, column: usize| &stored[(row * width + column) * 3..][..3];
            for orientation in turned {
                let upright: Vec<u8> = (0..height * width)
                    .flat_map(|to| match (orientation, to / height, to % height) {
                        (Orientation::Transpose, row, column) => pixel(column, row),
                        (Orientation::Rotate270, row, column) => pixel(height - 1 - column, row),
                        (Orientation::Transverse, row, column) => pixel(height - 1 - column, width - 1 - row),
                        (_, row, column) => pixel(column, width - 1 - row),
                    })
                    .copied()
                    .collect();
                for is_plain in [false, true] {
                    let mut out = vec![0; stored.len()];
                    let size = Size { height: height as u32, width: width as u32 };
                    let mut turner = Turner::new(orientation, size, &mut out);
                    for rows in stored.chunks(BAND_ROWS * width * 3) {
                        match is_plain {
                            false => turner.turn::<3>(rows, width * 3),
                            true => turner.turn_strips::<3, false>(rows, width * 3),
                        }
                    }
                    assert_eq!(out, upright, "{orientation:?} of {height} x {width}, without instructions: {is_plain}");
                }
            }
        }
    }

    /// Four bytes a pixel in rows that are longer than their pixels, to any place in memory.
    #[test]
    fn pixels_of_four_bytes_and_padded_rows_are_turned_alike() {
        let (height, width, row_bytes) = (150, 21, 192);
        let stored: Vec<u8> = (0..height * width * 3).map(|at| (at * 7 % 251) as u8).collect();
        let mut padded = vec![0xa5; height * row_bytes];
        for (row, pixels) in
            stored.as_chunks::<3>().0.iter().enumerate().map(|(at, pixel)| (at / width, (at % width, pixel)))
        {
            padded[row * row_bytes + pixels.0 * 4..][..3].copy_from_slice(pixels.1);
        }
        let size = Size { height: height as u32, width: width as u32 };
        for offset in 0..64 {
            let [mut three, mut four] = [0, 1].map(|_| vec![0xa5; offset + stored.len() + 1]);
            let inside = offset..offset + stored.len();
            let mut turner = Turner::new(Orientation::Rotate270, size, &mut three[inside.clone()]);
            stored.chunks(BAND_ROWS * width * 3).for_each(|rows| turner.turn::<3>(rows, width * 3));
            let mut turner = Turner::new(Orientation::Rotate270, size, &mut four[inside]);
            padded.chunks(BAND_ROWS * row_bytes).for_each(|rows| turner.turn::<4>(rows, row_bytes));
            assert_eq!(three, four, "{offset} bytes further on");
        }
    }
}
