//! Inflating texts and profiles within the reference's bounds and a budget of ours, and image data of cut files once
//! more.

use flate2::{Decompress, FlushDecompress, Status};

use super::chunks::Chunk;

/// The reference refuses a file with a text or profile that inflates to more.
const MAX_ONE_BYTES: usize = 1 << 20;

/// What became of a compressed text.
pub(super) enum Inflated {
    /// All there was, even if the stream ends early.
    Whole(Vec<u8>),
    /// Not a zlib stream; the reference goes on without the text.
    Broken,
}

/// Inflates the texts of one file.
pub(super) struct Inflater {
    budget: usize,
    left: usize,
}

impl Inflater {
    pub(super) fn new(budget_bytes: usize) -> Self {
        Self { budget: budget_bytes, left: budget_bytes }
    }

    /// Inflates one text; an error is the limit in bytes that it exceeds.
    pub(super) fn inflate(&mut self, compressed: &[u8]) -> Result<Inflated, usize> {
        let mut decoder = Decompress::new(true);
        let mut text = Vec::new();
        loop {
            let taken = decoder.total_in() as usize;
            text.reserve(4096.max(text.len()).min(MAX_ONE_BYTES - text.len()));
            let before = text.len();
            let Ok(status) = decoder.decompress_vec(&compressed[taken..], &mut text, FlushDecompress::None) else {
                return Ok(Inflated::Broken);
            };
            self.left = self.left.checked_sub(text.len() - before).ok_or(self.budget)?;
            let consumed = decoder.total_in() as usize;
            if status == Status::StreamEnd || consumed == compressed.len() && text.len() < text.capacity() {
                return Ok(Inflated::Whole(text));
            }
            if text.len() >= MAX_ONE_BYTES {
                let whole = consumed == compressed.len();
                return if whole { Ok(Inflated::Whole(text)) } else { Err(MAX_ONE_BYTES) };
            }
            if consumed == taken && text.len() == before {
                return Ok(Inflated::Whole(text));
            }
        }
    }
}

/// Whether the reference takes the image data from the chunk at `data_at` on for whole although the file ends with it.
///
/// Our decoder is content when it has all pixels. The reference stops where it has no more input, even if the last bytes
/// that it took stand for several rows: so it gets there only if a byte is left when all rows but the last, which are
/// `all_but_last_row` bytes, are out. Also, chunks in which it need not look for pixels have to be whole. A second
/// inflation is the price of a cut file only.
pub(super) fn reaches_its_end(bytes: &[u8], data_at: usize, all_but_last_row: usize) -> bool {
    let last_byte = bytes.len() - 1;
    let mut decoder = Decompress::new(true);
    let mut discarded = vec![0; 64 << 10];
    let mut at = data_at;
    while let Some(chunk) = Chunk::at(bytes, at).filter(Chunk::is_data) {
        let number_bytes = if &chunk.name == b"fdAT" { 4 } else { 0 };
        let content = chunk.content.start + number_bytes..chunk.content.end.min(last_byte);
        let mut content = bytes.get(content).unwrap_or_default();
        loop {
            let before = (decoder.total_in(), decoder.total_out());
            let Ok(status) = decoder.decompress(content, &mut discarded, FlushDecompress::None) else { return true };
            content = &content[(decoder.total_in() - before.0) as usize..];
            if status == Status::StreamEnd || decoder.total_out() > all_but_last_row as u64 {
                return !rest_is_cut(bytes, chunk.end());
            }
            if (decoder.total_in(), decoder.total_out()) == before {
                break;
            }
        }
        at = chunk.end();
    }
    false
}

/// Whether a chunk from `at` on ends beyond the file.
fn rest_is_cut(bytes: &[u8], mut at: usize) -> bool {
    while let Some(chunk) = Chunk::at(bytes, at) {
        if chunk.content.end > bytes.len() {
            return true;
        }
        at = chunk.end();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::ZlibEncoder};

    use super::*;

    fn deflate(length: usize) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&vec![b'a'; length]).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn up_to_a_mebibyte_each_and_the_budget_together() {
        let mut inflater = Inflater::new(3 << 20);
        for length in [0, 1, 65_536, (1 << 20) - 1] {
            assert!(matches!(inflater.inflate(&deflate(length)), Ok(Inflated::Whole(text)) if text.len() == length));
        }
        assert!(matches!(inflater.inflate(&deflate(2 << 20)), Err(MAX_ONE_BYTES)));
        assert!(matches!(inflater.inflate(&deflate((1 << 20) - 1)), Err(limit) if limit == 3 << 20));
    }

    #[test]
    fn broken_streams_are_no_error() {
        let mut inflater = Inflater::new(1 << 20);
        assert!(matches!(inflater.inflate(b"no zlib stream"), Ok(Inflated::Broken)));
        let whole = deflate(1000);
        assert!(matches!(inflater.inflate(&whole[..whole.len() - 4]), Ok(Inflated::Whole(text)) if text.len() == 1000));
    }
}
