//! The five filters of PNG, undone.

/// Undoes the `filter` of a stored row. A pixel takes `pixel_bytes`, 1 where it takes less, and `above` is the finished row
/// before it, zeros for the first of a picture; all three rows are equally long. `None`: an unknown filter.
pub(super) fn undo(filter: u8, pixel_bytes: usize, stored: &[u8], above: &[u8], row: &mut [u8]) -> Option<()> {
    match filter {
        0 => row.copy_from_slice(stored),
        2 => up(stored, above, row),
        1 | 3 | 4 => match pixel_bytes {
            1 => from_the_left::<1>(filter, stored, above, row),
            2 => from_the_left::<2>(filter, stored, above, row),
            3 => from_the_left::<3>(filter, stored, above, row),
            4 => from_the_left::<4>(filter, stored, above, row),
            6 => from_the_left::<6>(filter, stored, above, row),
            _ => from_the_left::<8>(filter, stored, above, row),
        },
        _ => return None,
    }
    Some(())
}

fn up(stored: &[u8], above: &[u8], row: &mut [u8]) {
    for ((byte, &stored), &above) in row.iter_mut().zip(stored).zip(above) {
        *byte = stored.wrapping_add(above);
    }
}

/// The filters that need the pixel to the left.
fn from_the_left<const N: usize>(filter: u8, stored: &[u8], above: &[u8], row: &mut [u8]) {
    match filter {
        1 => predicted::<N>(stored, above, row, |left, _, _| left),
        3 => predicted::<N>(stored, above, row, |left, above, _| (left + above) / 2),
        _ => predicted::<N>(stored, above, row, paeth),
    }
}

/// Adds to each byte what `predict` makes of the bytes to the left, above, and above on the left.
// Written with indices, since arrays that are mapped as a whole take half as long again for four bytes.
#[inline(always)]
fn predicted<const N: usize>(stored: &[u8], above: &[u8], row: &mut [u8], predict: impl Fn(i16, i16, i16) -> i16) {
    let (stored, above, row) = (stored.as_chunks::<N>().0, above.as_chunks::<N>().0, row.as_chunks_mut::<N>().0);
    let (mut left, mut above_left) = ([0; N], [0; N]);
    for ((pixel, stored), above) in row.iter_mut().zip(stored).zip(above) {
        for i in 0..N {
            pixel[i] = stored[i].wrapping_add(predict(left[i], i16::from(above[i]), above_left[i]) as u8);
        }
        for i in 0..N {
            left[i] = i16::from(pixel[i]);
            above_left[i] = i16::from(above[i]);
        }
    }
}

/// Which of the three is nearest to `left + above - above_left`; of equally near ones the first.
///
/// Without distances: where that sum lies beyond both `left` and `above`, the nearest is the one on its side.
fn paeth(left: i16, above: i16, above_left: i16) -> i16 {
    let threshold = 3 * above_left - (left + above);
    let (low, high) = (left.min(above), left.max(above));
    let nearest = if high <= threshold { low } else { above_left };
    if threshold <= low { high } else { nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the specification has it: <https://www.w3.org/TR/png-3/#9Filter-type-4-Paeth>.
    fn paeth_by_distance(a: i16, b: i16, c: i16) -> i16 {
        let p = a + b - c;
        let (pa, pb, pc) = ((p - a).abs(), (p - b).abs(), (p - c).abs());
        if pa <= pb && pa <= pc {
            a
        } else if pb <= pc {
            b
        } else {
            c
        }
    }

    #[test]
    fn paeth_is_the_specifications() {
        // The differences decide; every third value is enough to see them all.
        for a in (0..256).step_by(3).chain([255]) {
            for b in 0..256 {
                for c in 0..256 {
                    assert_eq!(paeth(a, b, c), paeth_by_distance(a, b, c), "{a} {b} {c}");
                }
            }
        }
    }

    #[test]
    fn what_is_filtered_by_the_specification_is_undone() {
        for pixel_bytes in [1, 2, 3, 4, 6, 8] {
            let length = pixel_bytes * 5;
            let bytes = |seed: usize| (0..length).map(|at| (at * at * seed + at * 91 + seed) as u8).collect::<Vec<_>>();
            let (above, whole) = (bytes(7), bytes(13));
            for filter in 0..=4 {
                let neighbours = |at: usize| {
                    let from = |row: &[u8]| at.checked_sub(pixel_bytes).map_or(0, |at| i16::from(row[at]));
                    (from(&whole), i16::from(above[at]), from(&above))
                };
                let prediction = |at: usize| match (filter, neighbours(at)) {
                    (0, _) => 0,
                    (1, (left, _, _)) => left,
                    (2, (_, above, _)) => above,
                    (3, (left, above, _)) => (left + above) / 2,
                    (_, (left, above, above_left)) => paeth_by_distance(left, above, above_left),
                };
                let stored: Vec<u8> = (0..length).map(|at| whole[at].wrapping_sub(prediction(at) as u8)).collect();
                let mut row = vec![9; length];
                assert_eq!(undo(filter, pixel_bytes, &stored, &above, &mut row), Some(()));
                assert_eq!(row, whole, "filter {filter}, {pixel_bytes} bytes");
            }
        }
        assert_eq!(undo(5, 1, &[0], &[0], &mut [0]), None);
    }
}
