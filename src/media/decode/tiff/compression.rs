//! Undoing the compressions of TIFF that are followed here, and its predictor.

use zlib_rs::{Inflate, InflateFlush};

use super::super::bytes::Endian;
use super::super::lzw::{HighBits, Strings, Table};

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

    /// Whether so many bytes can be that many when decompressed.
    pub(super) fn can_fill(self, stored_bytes: usize, bytes: usize) -> bool {
        let most_of_one = match self {
            // The end of the last row may be missing.
            Self::None => return true,
            // A code of nine bits or more is a string of the table.
            Self::Lzw => 1 << 12,
            // The longest match takes two bits at the least.
            Self::Deflate => 258 * 8 / 2,
            Self::PackBits => 128 / 2,
        };
        stored_bytes.saturating_mul(most_of_one) >= bytes
    }

    /// What undoes it; `None` where there is nothing to undo.
    pub(super) fn decoder(self) -> Option<Decoder> {
        Some(match self {
            Self::None => return None,
            Self::Lzw => Decoder::Lzw(Table::new(LZW_CLEAR, LZW_FIRST)),
            Self::Deflate => Decoder::Deflate(Inflate::new(true, WINDOW_BITS)),
            Self::PackBits => Decoder::PackBits,
        })
    }
}

/// Undoes one compression, strip after strip or tile after tile: there may be thousands of a few bytes each, and making tables for
/// each would take longer than all the rest.
pub(super) enum Decoder {
    Lzw(Table),
    Deflate(Inflate),
    PackBits,
}

impl Decoder {
    /// Fills `out`; `None` if the data is broken or does not suffice.
    pub(super) fn fill(&mut self, data: &[u8], out: &mut [u8]) -> Option<()> {
        match self {
            Self::Lzw(table) => undo_lzw(data, table, out),
            Self::Deflate(inflate) => undo_deflate(data, inflate, out),
            Self::PackBits => undo_pack_bits(data, out),
        }
    }
}

/// Codes that are no strings, and the first that is a longer one than a byte.
const LZW_CLEAR: usize = 256;
const LZW_END: usize = 257;
const LZW_FIRST: usize = 258;

/// How far back deflate may look, as a power of two.
const WINDOW_BITS: u8 = 15;

/// As libtiff does it: the data begins by clearing the table, what follows that is a byte, and a table that was full for
/// a thousand codes has to be cleared.
fn undo_lzw(data: &[u8], table: &mut Table, out: &mut [u8]) -> Option<()> {
    const FEWEST_BITS: u32 = 9;
    const MOST_BITS: u32 = 12;
    const MOST_CODES: usize = 5119;

    let mut codes = HighBits::new(data);
    let mut strings = Strings::new(out, table)?;
    let mut bits = FEWEST_BITS;
    // The code that the next string gets, were the table as large; none before the first clearing.
    let mut next = None;
    while !strings.is_full() {
        match codes.code(bits)? {
            LZW_END => return None,
            LZW_CLEAR => {
                strings.clear();
                bits = FEWEST_BITS;
                let first = loop {
                    match codes.code(bits)? {
                        LZW_CLEAR => {}
                        code => break code,
                    }
                };
                strings.write(first).ok()?;
                next = Some(LZW_FIRST);
            }
            code => {
                let defined = next?;
                strings.write(code).ok()?;
                next = Some(defined + 1).filter(|next| *next < MOST_CODES);
                // Codes grow one earlier than they would have to.
                if defined + 2 >= 1 << bits && bits < MOST_BITS {
                    bits += 1;
                }
            }
        }
    }
    Some(())
}

/// As zlib does it for libtiff, which looks also at what is behind the last byte: a broken code or a wrong checksum counts, and
/// nothing at all is enough.
fn undo_deflate(data: &[u8], inflate: &mut Inflate, out: &mut [u8]) -> Option<()> {
    inflate.reset(true);
    inflate.decompress(data, out, InflateFlush::NoFlush).ok()?;
    (inflate.total_out() == out.len() as u64).then_some(())
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
    match (samples, sample_bytes) {
        (1, 1) => undo_byte_differences::<1>(row),
        (3, 1) => undo_byte_differences::<3>(row),
        (4, 1) => undo_byte_differences::<4>(row),
        (_, 1) => {
            for at in samples..row.len() {
                row[at] = row[at].wrapping_add(row[at - samples]);
            }
        }
        _ => {
            let before = samples * 2;
            for at in (before..row.len() / 2 * 2).step_by(2) {
                let sum = endian.u16(row, at).unwrap_or(0).wrapping_add(endian.u16(row, at - before).unwrap_or(0));
                let bytes = if endian == Endian::Big { sum.to_be_bytes() } else { sum.to_le_bytes() };
                row[at..at + 2].copy_from_slice(&bytes);
            }
        }
    }
}

/// The usual numbers of samples, kept in registers from pixel to pixel.
fn undo_byte_differences<const SAMPLES: usize>(row: &mut [u8]) {
    let mut sum = [0u8; SAMPLES];
    for pixel in row.as_chunks_mut::<SAMPLES>().0 {
        for (sum, sample) in sum.iter_mut().zip(pixel) {
            *sum = sum.wrapping_add(*sample);
            *sample = *sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_the_last_byte_counts_as_for_zlib() {
        let whole = deflated(&[7; 10]);
        let mut decoder = Compression::Deflate.decoder().unwrap();
        let mut undo = |data: &[u8], length: usize| {
            let mut out = vec![0; length];
            decoder.fill(data, &mut out).map(|()| out)
        };
        assert_eq!(undo(&whole, 10), Some(vec![7; 10]));
        assert_eq!(undo(&whole, 9), Some(vec![7; 9]), "more than is wanted");
        assert_eq!(undo(&whole, 11), None);
        assert_eq!(undo(&whole[..whole.len() - 4], 10), Some(vec![7; 10]), "no checksum");
        let mut wrong = whole.clone();
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(undo(&wrong, 10), None, "a wrong checksum");
    }

    /// The best that each can do is not refused.
    #[test]
    fn what_can_be_filled_is_tried() {
        for (compression, data, length) in [
            (Compression::PackBits, vec![129, 0, 129, 0], 256),
            (Compression::Deflate, deflated(&vec![0; 1 << 20]), 1 << 20),
            (Compression::Lzw, nine_bits(&[256, 7, 258, 259, 260]), 10),
        ] {
            let mut out = vec![0; length];
            assert_eq!(compression.decoder().unwrap().fill(&data, &mut out), Some(()), "{compression:?}");
            assert!(compression.can_fill(data.len(), length), "{compression:?}");
            assert!(!compression.can_fill(data.len(), 1 << 31), "{compression:?}");
        }
    }

    fn deflated(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn pack_bits() {
        let mut out = [0; 6];
        assert_eq!(undo_pack_bits(&[2, 1, 2, 3, 128, 254, 9], &mut out), Some(()));
        assert_eq!(out, [1, 2, 3, 9, 9, 9]);
        assert_eq!(undo_pack_bits(&[2, 1, 2], &mut out), None);
    }

    /// Codes of nine bits, which is what the first strings have.
    fn nine_bits(codes: &[usize]) -> Vec<u8> {
        let bits: Vec<u8> =
            codes.iter().flat_map(|code| (0..9).rev().map(move |bit| (code >> bit & 1) as u8)).collect();
        bits.chunks(8).map(|byte| byte.iter().enumerate().fold(0, |sum, (at, bit)| sum | bit << (7 - at))).collect()
    }

    #[test]
    fn lzw_begins_with_an_empty_table_and_a_byte() {
        // One for all: what is left of other data plays no part.
        let mut decoder = Compression::Lzw.decoder().unwrap();
        let mut undo = |codes: &[usize]| {
            let mut out = [0; 6];
            decoder.fill(&nine_bits(codes), &mut out).map(|()| out)
        };
        assert_eq!(undo(&[256, 7, 258, 8, 259, 257]), Some([7, 7, 7, 8, 7, 7]));
        assert_eq!(undo(&[256, 256, 7, 258, 8, 259, 257]), Some([7, 7, 7, 8, 7, 7]));
        // The end of the picture ends the data, also within a string.
        assert_eq!(undo(&[256, 7, 258, 259, 260]), Some([7; 6]));
        for broken in [
            &[7, 7, 7, 7, 7, 7, 7][..],
            &[256, 258, 7, 7, 7, 7],
            &[256, 257, 7, 7, 7, 7, 7, 7],
            &[256, 7, 7, 7, 257],
            &[256, 7, 7, 7],
            &[256, 7, 260, 7, 7, 7, 7],
            &[256, 7, 7, 7, 256, 258, 7],
        ] {
            assert_eq!(undo(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_full_lzw_table_is_good_for_a_thousand_codes() {
        // The widths that the codes have by their number: 9 bits up to the string 510, and so on.
        let width = |defined: usize| (9..12).find(|bits| defined + 1 < 1 << bits).unwrap_or(12);
        let data = |literals: usize| {
            let mut bits = Vec::new();
            let mut put = |code: usize, width: usize| bits.extend((0..width).rev().map(|bit| (code >> bit & 1) as u8));
            put(256, 9);
            (0..literals).for_each(|at| put(at % 251, if at == 0 { 9 } else { width(257 + at) }));
            bits.chunks(8)
                .map(|byte| byte.iter().enumerate().fold(0, |sum, (at, bit)| sum | bit << (7 - at)))
                .collect::<Vec<u8>>()
        };
        for (literals, expected) in [(4000, true), (4862, true), (4863, false)] {
            let mut out = vec![0; literals];
            let undone = Compression::Lzw.decoder().unwrap().fill(&data(literals), &mut out);
            assert_eq!(undone.is_some(), expected, "{literals}");
            assert!(!expected || out.iter().enumerate().all(|(at, &byte)| usize::from(byte) == at % 251));
        }
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
