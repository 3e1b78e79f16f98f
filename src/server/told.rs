//! What an answer tells routing while it passes: that the prompt is computed, and how much of it was cached.
//!
//! vLLM says the latter where it runs with `--enable-prompt-tokens-details`: `"prompt_tokens_details": {"cached_tokens":
//! 96}` in the usage, at the end of an answer or of its last chunk. It is looked for in the bytes, which are not read
//! otherwise.

use memchr::memmem::Finder;

use crate::{observe, routing::Decision, worker::load::Work};

const KEY: &[u8] = b"\"cached_tokens\":";

/// Of a chunk, what is kept for the next, in which the key, or its number, may go on.
const KEPT_BYTES: usize = KEY.len() + 24;

/// Watches one answer.
pub struct Told {
    work: Work,
    /// What was predicted, until it has been compared.
    predicted: Option<(usize, usize)>,
    finder: Finder<'static>,
    /// The end of what has passed.
    tail: Vec<u8>,
}

impl Told {
    pub fn new(work: Work, decision: &Decision) -> Self {
        // A policy that predicts nothing cannot be wrong.
        let predicted = (!decision.terms.is_empty()).then_some((decision.term.overlap, decision.tokens));
        Told { work, predicted, finder: Finder::new(KEY), tail: Vec::new() }
    }

    /// Bytes of the answer.
    pub fn chunk(&mut self, chunk: &[u8]) {
        self.work.answering();
        let Some((overlap, tokens)) = self.predicted else { return };
        let seam = chunk.len().min(KEPT_BYTES);
        self.tail.extend_from_slice(&chunk[..seam]);
        let cached = cached_tokens(&self.finder, &self.tail).or_else(|| cached_tokens(&self.finder, chunk));
        if let Some(cached) = cached {
            observe::route_cached(overlap, cached, tokens);
            self.predicted = None;
            self.tail = Vec::new();
            return;
        }
        if seam < chunk.len() {
            self.tail.clear();
            self.tail.extend_from_slice(&chunk[chunk.len() - KEPT_BYTES..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(KEPT_BYTES));
        }
    }
}

/// The number after the last key, if it is whole: something stands behind it.
fn cached_tokens(finder: &Finder<'_>, bytes: &[u8]) -> Option<usize> {
    let at = finder.find_iter(bytes).last()?;
    let rest = bytes.get(at + KEY.len()..)?.trim_ascii_start();
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = br#"{"usage":{"prompt_tokens":120,"prompt_tokens_details":{"cached_tokens": 96, "x":1}}}"#;

    #[test]
    fn the_number_is_found_however_the_answer_is_cut() {
        for size in 1..ANSWER.len() + 1 {
            let finder = Finder::new(KEY);
            let mut told = told();
            let mut found = None;
            for chunk in ANSWER.chunks(size) {
                told.chunk(chunk);
                assert!(told.tail.len() <= KEPT_BYTES);
                if told.predicted.is_none() {
                    found = Some(());
                    break;
                }
            }
            assert!(found.is_some(), "{size}");
            assert_eq!(cached_tokens(&finder, ANSWER), Some(96));
        }
    }

    #[test]
    fn what_is_no_number_is_passed_over() {
        let finder = Finder::new(KEY);
        for answer in [&b"\"cached_tokens\":"[..], b"\"cached_tokens\":null}", b"\"cached_tokens\":12", b"cached"] {
            assert_eq!(cached_tokens(&finder, answer), None);
        }
    }

    fn told() -> Told {
        let work = std::sync::Arc::new(crate::worker::load::Load::default()).begin(1, 1);
        Told { work, predicted: Some((96, 120)), finder: Finder::new(KEY), tail: Vec::new() }
    }
}
