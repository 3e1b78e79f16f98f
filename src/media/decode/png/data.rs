//! The image data of a PNG: a zlib stream, in pieces, that stands for the picture's rows.
//!
//! Where the stream is whole and stands for all rows and nothing else, there is nothing to argue about, and many rows are inflated
//! at once. Every other file is inflated from its beginning in the steps in which the reference does, because whether it takes a
//! stream that is cut, too long, too short or wrong depends on where its pieces end: never more than twice, all in all.

use zlib_rs::{Inflate, InflateFlush, Status};

use super::super::DecodeError;
use super::super::sniff::Format;
use super::chunks::{Chunk, broken};
use super::inflate::WINDOW_BITS;
use super::rows::Rows;

/// What is inflated at once: in steps of a row, zlib takes up to half as long again.
const STEP_BYTES: usize = 64 << 10;
/// What the reference reads at a time, at most.
const PIECE_BYTES: usize = 64 << 10;

/// The consecutive chunks of image data of a file.
#[derive(Clone, Copy)]
pub(super) struct Data<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Data<'a> {
    /// The data whose first chunk begins at `at`.
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// What there is of the content of each chunk, and whether that is all that it announces.
    fn contents(self) -> impl Iterator<Item = (&'a [u8], bool)> {
        let mut at = self.at;
        std::iter::from_fn(move || {
            let chunk = Chunk::at(self.bytes, at).filter(Chunk::is_data)?;
            at = chunk.end();
            let number_bytes = if &chunk.name == b"fdAT" { 4 } else { 0 };
            let content = self.bytes.get(chunk.content.start + number_bytes..).unwrap_or_default();
            let length = chunk.content.len().saturating_sub(number_bytes);
            Some((&content[..content.len().min(length)], content.len() >= length))
        })
    }

    /// Fills the rows from a stream that is whole and theirs alone. `None`: this one is not, or one of its chunks is not;
    /// some rows are filled then.
    pub(super) fn fill_from_whole(self, rows: &mut Rows<'_>) -> Option<()> {
        let mut decoder = Inflate::new(true, WINDOW_BITS);
        let mut buffer = vec![0; STEP_BYTES + rows.longest_bytes()];
        // Of the buffer: what is inflated, and less than a row once the rows in it were taken.
        let mut filled = 0;
        let mut status = Status::Ok;
        for (mut content, is_whole) in self.contents() {
            if !is_whole {
                return None;
            }
            while status != Status::StreamEnd {
                let before = (decoder.total_in(), decoder.total_out());
                status = decoder.decompress(content, &mut buffer[filled..], InflateFlush::NoFlush).ok()?;
                content = &content[(decoder.total_in() - before.0) as usize..];
                filled += (decoder.total_out() - before.1) as usize;
                if (decoder.total_in(), decoder.total_out()) == before {
                    break;
                }
                let mut left = &buffer[..filled];
                while let Some((row, rest)) = rows.next_bytes().and_then(|length| left.split_at_checked(length)) {
                    rows.put(row)?;
                    left = rest;
                }
                if rows.are_full() && !left.is_empty() {
                    return None;
                }
                let taken = filled - left.len();
                buffer.copy_within(taken..filled, 0);
                filled -= taken;
            }
        }
        (status == Status::StreamEnd && rows.are_full()).then_some(())
    }

    /// Fills the rows as the reference does, with its judgement.
    ///
    /// It inflates a row at a time, and zlib goes on behind the row until it would need more room or has no more input:
    /// over the checksum, if that is in the same piece. The reference is content when the last row is there, or when the
    /// stream ends together with a row: the rows after it stay as they are. It does not ask for a row that zlib has at hand
    /// when there is no more input. The chunk with which it is content may be cut, those after it may not.
    /// [ZipDecode.c](https://github.com/python-pillow/Pillow/blob/13.0.0/src/libImaging/ZipDecode.c)
    pub(super) fn fill_as_reference(self, rows: &mut Rows<'_>) -> Result<(), DecodeError> {
        let mut decoder = Inflate::new(true, WINDOW_BITS);
        let mut row = vec![0; rows.longest_bytes()];
        let mut filled = 0;
        let mut contents = self.contents();
        while let Some((content, _)) = contents.next() {
            for mut piece in content.chunks(PIECE_BYTES) {
                while let Some(length) = rows.next_bytes().filter(|_| !piece.is_empty()) {
                    let before = (decoder.total_in(), decoder.total_out());
                    let status = decoder.decompress(piece, &mut row[filled..length], InflateFlush::NoFlush);
                    let status = status.map_err(|error| DecodeError::corrupt(Format::Png, error.as_str()))?;
                    piece = &piece[(decoder.total_in() - before.0) as usize..];
                    filled += (decoder.total_out() - before.1) as usize;
                    if filled < length {
                        // Nothing of the piece is left, or the stream has ended, and zlib takes no more.
                        break;
                    }
                    rows.put(&row[..length]).ok_or_else(|| broken("an unknown filter"))?;
                    filled = 0;
                    if rows.are_full() || status == Status::StreamEnd {
                        let rest_is_whole = contents.all(|(_, is_whole)| is_whole);
                        return rest_is_whole.then_some(()).ok_or(DecodeError::Truncated(Format::Png));
                    }
                }
            }
        }
        Err(DecodeError::Truncated(Format::Png))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Size;
    use super::super::pixels::{ColourMode, Expander};
    use super::super::rows::Canvas;
    use super::*;

    const SIZE: Size = Size { height: 6, width: 5 };
    /// Six rows of grey, each of a value of its own, without filters. Of the last byte before the checksum, nothing is
    /// needed but the end of the stream. Then four such rows, and eight.
    const SIX: &[u8; 29] =
        b"\x78\xda\x63\xe0\x02\x01\x06\x41\x10\x60\x90\x00\x01\x06\x79\x10\x60\x50\x03\x01\x06\x5d\x10\
        \x00\x00\x2b\xcb\x03\x3a";
    const FOUR: &[u8] = b"\x78\xda\x63\xe0\x02\x01\x06\x41\x10\x60\x90\x00\x01\x06\x79\x10\x00\x00\x0f\x36\x01\x9b";
    const EIGHT: &[u8] =
        b"\x78\xda\x63\xe0\x02\x01\x06\x41\x10\x60\x90\x00\x01\x06\x79\x10\x60\x50\x03\x01\x06\x5d\x10\
        \x60\x30\x01\x01\x06\x6b\x10\x00\x00\x5f\x1c\x05\x65";
    const VALUES: [u8; 6] = [10, 17, 24, 31, 38, 45];

    fn chunk(content: &[u8]) -> Vec<u8> {
        [&(content.len() as u32).to_be_bytes(), &b"IDAT"[..], content, b"\0\0\0\0"].concat()
    }

    fn fill_by(fill: impl FnOnce(&mut Rows<'_>) -> Result<(), DecodeError>) -> Result<[u8; 6], &'static str> {
        let expander = Expander::new(ColourMode::Grey(8), None, None).unwrap();
        let mut rgb = [[0; 15]; 6];
        let canvas = Canvas { rgb: rgb.as_flattened_mut(), row_bytes: 15, left: 0, width: 15 };
        match fill(&mut Rows::new(&expander, ColourMode::Grey(8), SIZE, false, canvas)) {
            Ok(()) => Ok(rgb.map(|row| row[14])),
            Err(DecodeError::Truncated(_)) => Err("truncated"),
            Err(_) => Err("corrupt"),
        }
    }

    fn fill_from_whole(file: &[u8]) -> Option<[u8; 6]> {
        fill_by(|rows| Data::new(file, 0).fill_from_whole(rows).ok_or(DecodeError::Truncated(Format::Png))).ok()
    }

    /// A value of each row.
    fn fill_as_reference(file: &[u8]) -> Result<[u8; 6], &'static str> {
        let answer = fill_by(|rows| Data::new(file, 0).fill_as_reference(rows));
        if let Some(values) = fill_from_whole(file) {
            assert_eq!(answer, Ok(values), "the fast way takes nothing that the reference does not");
        }
        answer
    }

    /// The answer for a stream as one chunk, or as two of which the second has its last `apart` bytes.
    fn in_two(stream: &[u8], apart: usize) -> Result<[u8; 6], &'static str> {
        let (first, second) = stream.split_at(stream.len() - apart);
        let second = if apart > 0 { chunk(second) } else { Vec::new() };
        fill_as_reference(&[chunk(first), second].concat())
    }

    // The answers below were all seen from Pillow 13; tests/decode_pillow.rs asks it about many more.

    #[test]
    fn a_whole_stream_is_taken_however_it_is_divided_into_chunks() {
        for apart in 0..=SIX.len() {
            let (first, second) = SIX.split_at(SIX.len() - apart);
            let file = [chunk(first), chunk(b""), chunk(second)].concat();
            assert_eq!(fill_from_whole(&file), Some(VALUES), "{apart}");
            assert_eq!(fill_as_reference(&file), Ok(VALUES), "{apart}");
        }
    }

    #[test]
    fn a_stream_may_lack_what_no_row_needs() {
        for missing in 0..10 {
            let expected = if missing <= 5 { Ok(VALUES) } else { Err("truncated") };
            let file = chunk(&SIX[..SIX.len() - missing]);
            assert_eq!(fill_as_reference(&file), expected, "{missing}");
            // Nor does an empty chunk make up for it.
            assert_eq!(fill_as_reference(&[file, chunk(b"")].concat()), expected, "{missing}");
        }
        // It is enough that there is another byte, whatever it then stands for.
        assert_eq!(
            fill_as_reference(&[chunk(&SIX[..SIX.len() - 6]), chunk(b"?")].concat()),
            Ok([10, 17, 24, 31, 38, 31])
        );
    }

    #[test]
    fn a_checksum_counts_that_is_in_one_chunk_with_the_end_of_the_rows() {
        let mut wrong = *SIX;
        wrong[28] ^= 1;
        assert_eq!(in_two(&wrong, 0), Err("corrupt"));
        for apart in 1..=5 {
            assert_eq!(in_two(&wrong, apart), Ok(VALUES), "{apart}");
        }
        assert_eq!(in_two(&wrong, 6), Err("corrupt"));
    }

    #[test]
    fn rows_may_be_missing_if_the_stream_ends_together_with_one() {
        assert_eq!(in_two(FOUR, 0), Ok([10, 17, 24, 31, 0, 0]));
        for apart in 1..=5 {
            assert_eq!(in_two(FOUR, apart), Err("truncated"), "{apart}");
        }
        assert_eq!(in_two(FOUR, 6), Ok([10, 17, 24, 31, 0, 0]));
    }

    #[test]
    fn rows_beyond_the_last_are_not_looked_at() {
        for length in [EIGHT.len(), EIGHT.len() - 1, EIGHT.len() - 8] {
            assert_eq!(in_two(&EIGHT[..length], 0), Ok(VALUES));
        }
    }

    #[test]
    fn only_the_chunk_that_fills_the_last_row_may_be_cut() {
        let cut = |content: &[u8], length: usize| chunk(content)[..length].to_vec();
        let with_junk = [&SIX[..], b"junk"].concat();
        assert_eq!(fill_as_reference(&cut(&with_junk, 8 + 30)), Ok(VALUES));
        assert_eq!(fill_as_reference(&[chunk(SIX), cut(b"junk", 8 + 4)].concat()), Ok(VALUES));
        assert_eq!(fill_as_reference(&[chunk(SIX), cut(b"junk", 8 + 3)].concat()), Err("truncated"));
        let sum = [&SIX[25..], b"junk"].concat();
        assert_eq!(fill_as_reference(&[chunk(&SIX[..25]), cut(&sum, 8 + 6)].concat()), Err("truncated"));
    }
}
