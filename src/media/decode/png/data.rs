//! The image data of a PNG as a minimal PNG, for a decoder that is stricter about the rest than the reference.

use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::ops::Range;

use super::super::Size;
use super::chunks::Chunk;
use super::pixels::ColourMode;

const SIGNATURE: &[u8; 8] = b"\x89PNG\r\n\x1a\n";
/// Stands for every checksum, none of which is checked.
const NO_SUM: [u8; 4] = [0; 4];
const END: &[u8; 12] = b"\0\0\0\0IEND\xae\x42\x60\x82";

/// Reads signature, a header of our own, the consecutive chunks of image data, and an end. The data is not copied.
pub(super) struct Data<'a> {
    bytes: &'a [u8],
    /// Where the next chunk begins.
    next: usize,
    /// What we made up, to be read first.
    made: Made,
    /// What of the file is to be read then.
    content: Range<usize>,
    ended: bool,
}

struct Made {
    bytes: [u8; 33],
    left: Range<usize>,
}

impl Made {
    fn of(parts: &[&[u8]]) -> Self {
        let mut made = Self { bytes: [0; 33], left: 0..0 };
        for part in parts {
            made.bytes[made.left.end..made.left.end + part.len()].copy_from_slice(part);
            made.left.end += part.len();
        }
        made
    }
}

impl<'a> Data<'a> {
    /// The data from the chunk at `data_at` on, of a picture of this size.
    pub(super) fn new(bytes: &'a [u8], data_at: usize, size: Size, mode: ColourMode, interlaced: bool) -> Self {
        let sides = [size.width.to_be_bytes(), size.height.to_be_bytes()];
        let rest = [0, 0, u8::from(interlaced)];
        let made = Made::of(&[
            SIGNATURE,
            &13u32.to_be_bytes(),
            b"IHDR",
            sides.as_flattened(),
            &mode.header_bytes(),
            &rest,
            &NO_SUM,
        ]);
        Self { bytes, next: data_at, made, content: 0..0, ended: false }
    }

    /// Makes the next chunk readable.
    fn advance(&mut self) {
        while self.made.left.is_empty() && self.content.is_empty() && !self.ended {
            let Some(chunk) = Chunk::at(self.bytes, self.next).filter(Chunk::is_data) else {
                self.ended = true;
                // The sum of the last chunk, then the end.
                self.made = Made::of(&[&NO_SUM, END]);
                return;
            };
            let first = self.next_is_first();
            self.next = chunk.end();
            let mut content = chunk.content;
            if &chunk.name == b"fdAT" {
                content.start += 4;
            }
            content.end = content.end.min(self.bytes.len());
            if content.is_empty() {
                continue;
            }
            let length = (content.len() as u32).to_be_bytes();
            let sum: &[u8] = if first { &[] } else { &NO_SUM };
            self.made = Made::of(&[sum, &length, b"IDAT"]);
            self.content = content;
        }
    }

    fn next_is_first(&self) -> bool {
        self.content.end == 0
    }
}

impl BufRead for Data<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.advance();
        if self.made.left.is_empty() {
            Ok(&self.bytes[self.content.clone()])
        } else {
            Ok(&self.made.bytes[self.made.left.clone()])
        }
    }

    fn consume(&mut self, amount: usize) {
        let left = if self.made.left.is_empty() { &mut self.content } else { &mut self.made.left };
        left.start += amount;
    }
}

impl Read for Data<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let count = available.len().min(out.len());
        out[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
    }
}

/// The decoder asks for the trait, and seeks only over chunks that are not here.
impl Seek for Data<'_> {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
