//! TIFF directories, which also hold EXIF: a walk that stops where the reference's stops.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::bytes::{Endian, array};

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) tag: u16,
    /// The type of its values.
    pub(super) kind: u16,
    /// Its values, as they are stored; never empty.
    pub(super) value: &'a [u8],
}

/// Byte order and place of the first directory; `None` for what is no TIFF header, and for BigTIFF.
pub(super) fn header(tiff: &[u8]) -> Option<(Endian, usize)> {
    let endian = match tiff.get(..4)? {
        b"II\x2a\0" | b"II\0\x2a" => Endian::Little,
        b"MM\0\x2a" | b"MM\x2a\0" | b"MM\0\x2b" => Endian::Big,
        _ => return None,
    };
    Some((endian, endian.u32(tiff, 4)? as usize))
}

/// Whether a walk saw every entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    All,
    /// It passed over some, or stopped.
    Some,
}

/// Whether the first bytes are as the specification has them, not turned round, which the reference forgives.
pub(super) fn is_proper_header(tiff: &[u8]) -> bool {
    tiff.starts_with(b"II\x2a\0") || tiff.starts_with(b"MM\0\x2a")
}

/// Visits the entries of the directory at `at`, of each tag the first that can be read. Entries of unknown types and
/// without values are passed over, as are those whose values, together with those before, would be larger than the file;
/// values beyond the end stop the walk.
pub(super) fn walk<'a>(
    tiff: &'a [u8],
    endian: Endian,
    at: usize,
    mut visit: impl FnMut(Entry<'a>) -> ControlFlow<()>,
) -> Seen {
    let mut seen = Seen::All;
    let mut visited = HashSet::new();
    let mut step = |index: usize, outside_bytes: &mut usize| -> Option<ControlFlow<()>> {
        let entry: &'a [u8] = tiff.get(at.checked_add(2 + index * 12)?..)?.get(..12)?;
        let (tag, kind) = (endian.u16(entry, 0)?, endian.u16(entry, 2)?);
        if visited.contains(&tag) {
            return Some(ControlFlow::Continue(()));
        }
        let Some(unit_bytes) = unit_bytes(kind) else {
            seen = Seen::Some;
            return Some(ControlFlow::Continue(()));
        };
        let size = (endian.u32(entry, 4)? as usize).saturating_mul(unit_bytes);
        let value = if size > 4 {
            *outside_bytes = outside_bytes.saturating_add(size);
            if *outside_bytes > tiff.len() {
                seen = Seen::Some;
                return Some(ControlFlow::Continue(()));
            }
            let offset = endian.u32(entry, 8)? as usize;
            tiff.get(offset..offset.checked_add(size)?)?
        } else {
            &entry[8..8 + size]
        };
        if value.is_empty() {
            seen = Seen::Some;
            return Some(ControlFlow::Continue(()));
        }
        visited.insert(tag);
        Some(visit(Entry { tag, kind, value }))
    };
    let count = endian.u16(tiff, at).unwrap_or(0);
    let mut outside_bytes = 0;
    for index in 0..usize::from(count) {
        match step(index, &mut outside_bytes) {
            Some(ControlFlow::Continue(())) => {}
            Some(ControlFlow::Break(())) | None => return Seen::Some,
        }
    }
    seen
}

/// Bytes of one value of a type; `None` for types that the reference passes over.
fn unit_bytes(kind: u16) -> Option<usize> {
    match kind {
        1 | 2 | 6 | 7 => Some(1),
        3 | 8 => Some(2),
        4 | 9 | 11 | 13 => Some(4),
        5 | 10 | 12 | 16 => Some(8),
        _ => None,
    }
}

impl Entry<'_> {
    /// The first of the values, if it is a number and a whole one.
    pub(super) fn number(&self, endian: Endian) -> Option<u32> {
        let value = self.value;
        match self.kind {
            6 => u32::try_from(value[0] as i8).ok(),
            3 | 8 => endian.u16(value, 0).map(u32::from),
            4 | 9 | 13 => endian.u32(value, 0),
            5 | 10 => {
                let (numerator, denominator) = (endian.u32(value, 0)?, endian.u32(value, 4)?);
                (denominator != 0 && numerator % denominator == 0).then(|| numerator / denominator)
            }
            11 => whole(f64::from(f32::from_bits(endian.u32(value, 0)?))),
            12 | 16 => {
                let bytes: [u8; 8] = array(value, 0)?;
                let bits = if endian == Endian::Big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) };
                if self.kind == 16 { u32::try_from(bits).ok() } else { whole(f64::from_bits(bits)) }
            }
            // BYTE and UNDEFINED are byte strings to the reference, ASCII is text: present, but no number.
            _ => None,
        }
    }

    /// All values, if they are SHORT or LONG.
    pub(super) fn numbers(&self, endian: Endian) -> Option<Vec<u32>> {
        match self.kind {
            3 => self.value.chunks_exact(2).map(|value| endian.u16(value, 0).map(u32::from)).collect(),
            4 => self.value.chunks_exact(4).map(|value| endian.u32(value, 0)).collect(),
            _ => None,
        }
    }
}

fn whole(value: f64) -> Option<u32> {
    (value.fract() == 0.0 && (0.0..=65_535.0).contains(&value)).then_some(value as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second of a tag is not even looked at: its value, beyond the end, does not stop the walk.
    #[test]
    fn the_first_entry_of_a_tag_counts() {
        let entries = [[1, 0, 3, 0, 1, 0, 0, 0, 7, 0, 0, 0], [1, 0, 5, 0, 1, 0, 0, 0, 99, 0, 0, 0]];
        let last = [2, 0, 3, 0, 1, 0, 0, 0, 8, 0, 0, 0];
        let directory = [&[3, 0][..], entries.as_flattened(), &last, &[0; 4]].concat();
        let mut visited = Vec::new();
        let all = walk(&directory, Endian::Little, 0, |entry| {
            visited.push((entry.tag, entry.number(Endian::Little)));
            ControlFlow::Continue(())
        });
        assert_eq!((visited, all), (vec![(1, Some(7)), (2, Some(8))], Seen::All));
    }

    #[test]
    fn entries_without_values_are_passed_over_and_told() {
        let directory = |counts: [u8; 2]| {
            let entries =
                [(1, counts[0]), (2, counts[1])].map(|(tag, count)| [tag, 0, 3, 0, count, 0, 0, 0, 7, 0, 0, 0]);
            [&[2, 0][..], entries.as_flattened(), &[0; 4]].concat()
        };
        for (counts, tags, seen) in [([1, 1], vec![1, 2], Seen::All), ([0, 1], vec![2], Seen::Some)] {
            let mut visited = Vec::new();
            let all = walk(&directory(counts), Endian::Little, 0, |entry| {
                visited.push(entry.tag);
                ControlFlow::Continue(())
            });
            assert_eq!((visited, all), (tags, seen));
        }
    }
}
