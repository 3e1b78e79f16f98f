//! Inflating texts and profiles within the reference's bounds and a budget of ours.

use zlib_rs::{Inflate, InflateFlush, Status};

use super::super::DecodeError;
use super::super::sniff::Format;

/// The reference refuses a file with a text or profile that inflates to more.
const MAX_ONE_BYTES: usize = 1 << 20;

/// How far back deflate may look, as a power of two.
pub(super) const WINDOW_BITS: u8 = 15;

/// What became of a compressed text.
pub(super) enum Inflated {
    /// All there was, even if the stream ends early.
    Whole(Vec<u8>),
    /// Not a zlib stream; the reference goes on without the text.
    Broken,
}

/// What is wanted of a compressed text beside whether it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Text,
    Nothing,
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

    /// Inflates one text, in small steps, so that one that nobody wants costs no memory.
    pub(super) fn inflate(&mut self, compressed: &[u8], keep: Keep) -> Result<Inflated, DecodeError> {
        let mut decoder = Inflate::new(true, WINDOW_BITS);
        let mut text = Vec::new();
        let mut step = [0; 4096];
        loop {
            let (taken, before) = (decoder.total_in() as usize, decoder.total_out() as usize);
            let room = step.len().min(MAX_ONE_BYTES - before);
            let Ok(status) = decoder.decompress(&compressed[taken..], &mut step[..room], InflateFlush::NoFlush) else {
                return Ok(Inflated::Broken);
            };
            let (consumed, length) = (decoder.total_in() as usize, decoder.total_out() as usize);
            self.left = self.left.checked_sub(length - before).ok_or_else(|| too_large(self.budget))?;
            if keep == Keep::Text {
                text.extend_from_slice(&step[..length - before]);
            }
            let no_more = consumed == compressed.len() && length - before < room;
            let stuck = consumed == taken && length == before;
            if status == Status::StreamEnd || no_more {
                return Ok(Inflated::Whole(text));
            }
            if length >= MAX_ONE_BYTES {
                let whole = consumed == compressed.len();
                return if whole { Ok(Inflated::Whole(text)) } else { Err(too_large(MAX_ONE_BYTES)) };
            }
            if stuck {
                return Ok(Inflated::Whole(text));
            }
        }
    }
}

fn too_large(limit: usize) -> DecodeError {
    let limit = limit as u64;
    DecodeError::TooLarge { format: Format::Png, what: "compressed metadata in bytes", value: limit + 1, limit }
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
        let limit_of = |result: Result<Inflated, DecodeError>| match result {
            Err(DecodeError::TooLarge { limit, .. }) => Some(limit),
            _ => None,
        };
        let mut inflater = Inflater::new(3 << 20);
        for length in [0, 1, 65_536, (1 << 20) - 1] {
            let kept = inflater.inflate(&deflate(length), Keep::Text);
            assert!(matches!(kept, Ok(Inflated::Whole(text)) if text.len() == length));
        }
        assert!(matches!(inflater.inflate(&deflate(9), Keep::Nothing), Ok(Inflated::Whole(text)) if text.is_empty()));
        assert_eq!(limit_of(inflater.inflate(&deflate(2 << 20), Keep::Nothing)), Some(1 << 20));
        assert_eq!(limit_of(inflater.inflate(&deflate((1 << 20) - 1), Keep::Nothing)), Some(3 << 20));
    }

    #[test]
    fn broken_streams_are_no_error() {
        let mut inflater = Inflater::new(1 << 20);
        assert!(matches!(inflater.inflate(b"no zlib stream", Keep::Text), Ok(Inflated::Broken)));
        let whole = deflate(1000);
        let cut = inflater.inflate(&whole[..whole.len() - 4], Keep::Text);
        assert!(matches!(cut, Ok(Inflated::Whole(text)) if text.len() == 1000));
    }
}
