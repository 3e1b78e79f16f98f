//! Where the rows of a picture go, in the order in which they are stored.

use std::mem;

use super::super::Size;
use super::filter;
use super::pixels::{ColourMode, Expander};

/// The part of the output that the image data fills.
pub(super) struct Canvas<'a> {
    /// From the first row of the part on.
    pub(super) rgb: &'a mut [u8],
    pub(super) row_bytes: usize,
    /// Bytes left of the part in each row.
    pub(super) left: usize,
    /// Bytes of a row of the part.
    pub(super) width: usize,
}

impl Canvas<'_> {
    fn row(&mut self, row: usize) -> &mut [u8] {
        let start = row * self.row_bytes + self.left;
        &mut self.rgb[start..start + self.width]
    }

    /// The row before, if there is one, and a row.
    fn row_below(&mut self, row: usize) -> (Option<&[u8]>, &mut [u8]) {
        let (above, rest) = self.rgb.split_at_mut(row * self.row_bytes);
        let above = row.checked_sub(1).map(|row| &above[row * self.row_bytes + self.left..][..self.width]);
        (above, &mut rest[self.left..self.left + self.width])
    }
}

/// Takes stored rows one by one: undoes their filters, turns them into RGB, and puts them where they belong.
pub(super) struct Rows<'a> {
    expander: &'a Expander,
    mode: ColourMode,
    size: Size,
    canvas: Canvas<'a>,
    /// The pass that the next row belongs to, and those after it.
    passes: &'static [Pass],
    /// Where the next row goes.
    row: usize,
    /// The rows before the next and before that one, as they are stored, without their filters.
    last: Vec<u8>,
    spare: Vec<u8>,
    /// A row of a pass in RGB.
    pixels: Vec<u8>,
}

impl<'a> Rows<'a> {
    pub(super) fn new(
        expander: &'a Expander,
        mode: ColourMode,
        size: Size,
        interlaced: bool,
        canvas: Canvas<'a>,
    ) -> Self {
        let row_bytes = mode.row_bytes(size.width);
        Self {
            expander,
            mode,
            size,
            canvas,
            passes: if interlaced { &ADAM7 } else { &WHOLE },
            row: 0,
            last: vec![0; row_bytes],
            spare: vec![0; row_bytes],
            pixels: if interlaced { vec![0; size.width as usize * 3] } else { Vec::new() },
        }
    }

    /// Bytes of the next row as it is stored, with that which names its filter; `None` if all rows are there.
    pub(super) fn next_bytes(&self) -> Option<usize> {
        self.passes.first().map(|pass| 1 + self.mode.row_bytes(pass.columns(self.size) as u32))
    }

    /// Bytes that no row exceeds as it is stored.
    pub(super) fn longest_bytes(&self) -> usize {
        1 + self.last.len()
    }

    pub(super) fn are_full(&self) -> bool {
        self.passes.is_empty()
    }

    /// Takes zeros for the rows that are not there.
    pub(super) fn fill_with_zero(&mut self) {
        let zeros = vec![0; if self.are_full() { 0 } else { self.longest_bytes() }];
        while self.next_bytes().is_some_and(|length| self.put(&zeros[..length]).is_some()) {}
    }

    /// Takes the next row, whose first byte names its filter. `None`: a filter that PNG does not have.
    pub(super) fn put(&mut self, stored: &[u8]) -> Option<()> {
        let (pass, (&filter, stored)) = (self.passes.first()?, stored.split_first()?);
        let pixel_bytes = self.mode.pixel_bytes();
        if self.expander.is_identity() && !pass.is_interlaced() {
            let (above, row) = self.canvas.row_below(self.row);
            filter::undo(filter, pixel_bytes, stored, above.unwrap_or(&self.last), row)?;
        } else {
            mem::swap(&mut self.last, &mut self.spare);
            let (above, row) = (&self.spare[..stored.len()], &mut self.last[..stored.len()]);
            filter::undo(filter, pixel_bytes, stored, above, row)?;
            let target = self.canvas.row(self.row);
            if pass.is_interlaced() {
                let pixels = &mut self.pixels[..3 * pass.columns(self.size)];
                self.expander.expand(row, pixels);
                let targets = target[3 * pass.first_column..].chunks_mut(3 * pass.column_step);
                targets.zip(pixels.chunks_exact(3)).for_each(|(target, pixel)| target[..3].copy_from_slice(pixel));
            } else {
                self.expander.expand(row, target);
            }
        }
        self.row += pass.row_step;
        while let Some(pass) = self.passes.first()
            && (self.row >= self.size.height as usize || pass.columns(self.size) == 0)
        {
            self.passes = &self.passes[1..];
            self.row = self.passes.first().map_or(0, |pass| pass.first_row);
            self.last.fill(0);
        }
        Some(())
    }
}

/// The rows that are stored one after the other: every how many rows and columns, and from which on.
struct Pass {
    row_step: usize,
    first_row: usize,
    column_step: usize,
    first_column: usize,
}

const fn pass(row_step: usize, first_row: usize, column_step: usize, first_column: usize) -> Pass {
    Pass { row_step, first_row, column_step, first_column }
}

const WHOLE: [Pass; 1] = [pass(1, 0, 1, 0)];

const ADAM7: [Pass; 7] = [
    pass(8, 0, 8, 0),
    pass(8, 0, 8, 4),
    pass(8, 4, 4, 0),
    pass(4, 0, 4, 2),
    pass(4, 2, 2, 0),
    pass(2, 0, 2, 1),
    pass(2, 1, 1, 0),
];

impl Pass {
    fn columns(&self, size: Size) -> usize {
        (size.width as usize).saturating_sub(self.first_column).div_ceil(self.column_step)
    }

    fn is_interlaced(&self) -> bool {
        self.row_step > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interlaced_rows_go_where_the_specification_puts_them() {
        // <https://www.w3.org/TR/png-3/#8Interlace>
        let passes = [
            [1, 6, 4, 6, 2, 6, 4, 6],
            [7; 8],
            [5, 6, 5, 6, 5, 6, 5, 6],
            [7; 8],
            [3, 6, 4, 6, 3, 6, 4, 6],
            [7; 8],
            [5, 6, 5, 6, 5, 6, 5, 6],
            [7; 8],
        ];
        for (height, width) in (1..=8).flat_map(|height| (1..=8).map(move |width| (height, width))) {
            let size = Size { height: height as u32, width: width as u32 };
            let expander = Expander::new(ColourMode::Grey(8), None, None).unwrap();
            let mut rgb = vec![[[0; 3]; 8]; height];
            let canvas =
                Canvas { rgb: rgb.as_flattened_mut().as_flattened_mut(), row_bytes: 24, left: 0, width: width * 3 };
            let mut rows = Rows::new(&expander, ColourMode::Grey(8), size, true, canvas);
            for pass in 1..=7 {
                let of_pass = |row: &&[u8; 8]| row[..width].contains(&pass);
                for row in passes[..height].iter().filter(of_pass) {
                    let columns = row[..width].iter().filter(|&&other| other == pass).count();
                    assert_eq!(rows.next_bytes(), Some(1 + columns));
                    rows.put(&[&[0], &vec![pass; columns][..]].concat()).unwrap();
                }
            }
            assert!(rows.are_full());
            for (row, expected) in rgb.iter().zip(&passes) {
                assert_eq!(row[..width].iter().map(|pixel| pixel[1]).collect::<Vec<_>>(), expected[..width]);
            }
        }
    }

    /// Whatever was in the memory before.
    #[test]
    fn rows_that_are_not_there_are_zeros() {
        let size = Size { height: 8, width: 8 };
        let expander = Expander::new(ColourMode::Grey(8), None, None).unwrap();
        for interlaced in [false, true] {
            let all = if interlaced { 15 } else { 8 };
            for count in 0..=all {
                let filled = |fill: u8, missing: &dyn Fn(&mut Rows<'_>)| {
                    let mut rgb = vec![fill; 8 * 8 * 3];
                    let canvas = Canvas { rgb: &mut rgb, row_bytes: 24, left: 0, width: 24 };
                    let mut rows = Rows::new(&expander, ColourMode::Grey(8), size, interlaced, canvas);
                    for row in 0..count {
                        let length = rows.next_bytes().unwrap();
                        // By the filter that adds what is above.
                        rows.put(&[&[2][..], &vec![row as u8 + 1; length - 1]].concat()).unwrap();
                    }
                    missing(&mut rows);
                    assert_eq!(rows.are_full(), fill != 0 || count == all);
                    rgb
                };
                assert_eq!(filled(0xa5, &|rows| rows.fill_with_zero()), filled(0, &|_| ()), "{count} rows");
            }
        }
    }
}
