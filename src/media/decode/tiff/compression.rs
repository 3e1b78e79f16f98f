//! Undoing the compressions of TIFF that are followed here, and its predictor.

use flate2::{Decompress, FlushDecompress};
use weezl::{BitOrder, LzwStatus};

use super::super::bytes::Endian;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Lzw,
    Deflate,
    PackBits,
}

impl Compression {
    /// By the tag. `None` for what the reference does not know, `Some(None)` for what is not followed here.
    pub(super) fn read(tag: u32) -> Option<Option<Self>> {
        Some(match tag {
            1 => Some(Self::None),
            5 => Some(Self::Lzw),
            8 | 32946 => Some(Self::Deflate),
            32773 => Some(Self::PackBits),
            2 | 3 | 4 | 6 | 7 | 32771 | 32809 | 34676 | 34677 | 34925 | 50000 | 50001 => None,
            _ => return None,
        })
    }

    /// Whether a predictor may have been applied before.
    pub(super) fn has_predictor(self) -> bool {
        matches!(self, Self::Lzw | Self::Deflate)
    }

    /// Fills `out`; `None` if the data is broken or does not suffice.
    pub(super) fn undo(self, data: &[u8], out: &mut [u8]) -> Option<()> {
        match self {
            Self::None => out.copy_from_slice(data.get(..out.len())?),
            Self::Lzw => undo_lzw(data, out)?,
            Self::Deflate => undo_deflate(data, out)?,
            Self::PackBits => undo_pack_bits(data, out)?,
        }
        Some(())
    }
}

fn undo_lzw(mut data: &[u8], mut out: &mut [u8]) -> Option<()> {
    let mut decoder = weezl::decode::Decoder::with_tiff_size_switch(BitOrder::Msb, 8);
    while !out.is_empty() {
        let step = decoder.decode_bytes(data, out);
        data = &data[step.consumed_in..];
        out = &mut out[step.consumed_out..];
        match step.status.ok()? {
            LzwStatus::Ok if step.consumed_in + step.consumed_out > 0 => {}
            LzwStatus::NoProgress | LzwStatus::Ok | LzwStatus::Done => break,
        }
    }
    out.is_empty().then_some(())
}

fn undo_deflate(data: &[u8], out: &mut [u8]) -> Option<()> {
    let mut decoder = Decompress::new(true);
    // In one go, so that nothing is looked at beyond what fills the output.
    decoder.decompress(data, out, FlushDecompress::Finish).ok()?;
    (decoder.total_out() == out.len() as u64).then_some(())
}

fn undo_pack_bits(mut data: &[u8], mut out: &mut [u8]) -> Option<()> {
    while !out.is_empty() {
        let (&head, rest) = data.split_first()?;
        data = rest;
        let count = match head {
            0..128 => {
                // Of a literal that is too long, what is wanted counts, and has to be there.
                let count = (usize::from(head) + 1).min(out.len());
                out[..count].copy_from_slice(data.get(..count)?);
                data = &data[count..];
                count
            }
            128 => 0,
            129.. => {
                let (&byte, rest) = data.split_first()?;
                data = rest;
                let count = (257 - usize::from(head)).min(out.len());
                out[..count].fill(byte);
                count
            }
        };
        out = &mut out[count..];
    }
    Some(())
}

/// Undoes horizontal differencing of a row whose pixels have `samples` samples of one or two bytes.
pub(super) fn undo_differences(row: &mut [u8], samples: usize, sample_bytes: usize, endian: Endian) {
    if sample_bytes == 1 {
        for at in samples..row.len() {
            row[at] = row[at].wrapping_add(row[at - samples]);
        }
        return;
    }
    let before = samples * 2;
    for at in (before..row.len() / 2 * 2).step_by(2) {
        let sum = endian.u16(row, at).unwrap_or(0).wrapping_add(endian.u16(row, at - before).unwrap_or(0));
        let bytes = if endian == Endian::Big { sum.to_be_bytes() } else { sum.to_le_bytes() };
        row[at..at + 2].copy_from_slice(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pack_bits() {
        let mut out = [0; 6];
        assert_eq!(Compression::PackBits.undo(&[2, 1, 2, 3, 128, 254, 9], &mut out), Some(()));
        assert_eq!(out, [1, 2, 3, 9, 9, 9]);
        assert_eq!(Compression::PackBits.undo(&[2, 1, 2], &mut out), None);
    }

    #[test]
    fn differences() {
        let mut row = [1, 2, 3, 1, 1, 255];
        undo_differences(&mut row, 3, 1, Endian::Little);
        assert_eq!(row, [1, 2, 3, 2, 3, 2]);
        let mut row = [0, 255, 0, 2];
        undo_differences(&mut row, 1, 2, Endian::Big);
        assert_eq!(row, [0, 255, 1, 1]);
    }
}
