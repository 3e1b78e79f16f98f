//! The policy `media-prefix`: a prompt as a chain of hashes over its texts and images.
//!
//! Each hash stands for everything up to it, so two prompts share as many blocks of a worker's cache as their chains share
//! hashes from the beginning. A hash is made every [`BLOCK_BYTES`] of text, about as much as a block of 16 tokens, and an
//! image counts for as many as a small picture has: so a long system prompt with an image is worth more than a short
//! one, and neither is worth nothing.
//!
//! The texts are hashed as they stand in the JSON body. Equal conversations that are written differently (escapes, order
//! of members) do not meet; one client writes them alike every time.

use twox_hash::XxHash3_64;

use super::prompt::MmHash;

/// Tokens that a hash of the chain stands for, roughly: what overlaps can be weighed with.
pub const BLOCK_TOKENS: usize = 16;

/// About four bytes a token.
pub const BLOCK_BYTES: usize = 4 * BLOCK_TOKENS;

/// Hashes of an image. Its size is not always known, and a chain must not depend on whether it is.
pub const IMAGE_BLOCKS: usize = 32;

/// Prompts that agree up to here may differ after: a megabyte of text.
const MAX_BLOCKS: usize = 16 * 1024;

/// Makes the chain of one prompt.
#[derive(Debug)]
pub struct Chain {
    last: u64,
    hashes: Vec<u64>,
}

impl Chain {
    /// A chain for prompts that share caches only with those of the same parts: model, scope.
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let last =
            parts.into_iter().fold(0, |last, part| XxHash3_64::oneshot_with_seed(last ^ part.len() as u64, part));
        Chain { last, hashes: Vec::new() }
    }

    /// A piece of text, such as one message up to its first image.
    pub fn text(&mut self, text: &[u8]) {
        for block in text.chunks(BLOCK_BYTES) {
            if !self.push(block) {
                return;
            }
        }
    }

    /// An image.
    pub fn image(&mut self, hash: MmHash) {
        for _ in 0..IMAGE_BLOCKS {
            if !self.push(hash.as_bytes()) {
                return;
            }
        }
    }

    /// Whether there was room for one more.
    fn push(&mut self, block: &[u8]) -> bool {
        if self.hashes.len() >= MAX_BLOCKS {
            return false;
        }
        self.last = XxHash3_64::oneshot_with_seed(self.last, block);
        self.hashes.push(self.last);
        true
    }

    /// The hashes, each of a longer beginning than the one before.
    pub fn finish(self) -> Vec<u64> {
        self.hashes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(model: &str, pieces: &[Result<&[u8], &str>]) -> Vec<u64> {
        let mut chain = Chain::new([model.as_bytes()]);
        for piece in pieces {
            match piece {
                Ok(text) => chain.text(text),
                Err(image) => chain.image(MmHash::of_identifier(image)),
            }
        }
        chain.finish()
    }

    fn common(a: &[u64], b: &[u64]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn chains_agree_as_far_as_prompts_do() {
        let system = "You are a careful reader of documents. ".repeat(20);
        let shared: &[Result<&[u8], &str>] = &[Ok(system.as_bytes()), Err("page"), Ok(b"What is the total?")];
        let base = chain("m", shared);
        let system_blocks = system.len().div_ceil(BLOCK_BYTES);
        assert_eq!(base.len(), system_blocks + IMAGE_BLOCKS + 1);
        // Another question, another image, a conversation that goes on, another model.
        let question = chain("m", &[shared[0], shared[1], Ok(b"Who signed it?")]);
        assert_eq!(common(&base, &question), system_blocks + IMAGE_BLOCKS);
        assert_eq!(common(&base, &chain("m", &[shared[0], Err("other"), shared[2]])), system_blocks);
        assert_eq!(common(&base, &chain("m", &[shared, &[Ok(b"Twelve."), Ok(b"Sure?")]].concat())), base.len());
        assert_eq!(common(&base, &chain("other", shared)), 0);
    }

    #[test]
    fn a_chain_has_an_end() {
        assert_eq!(chain("m", &[Ok(&vec![7; 8 << 20]), Err("late")]).len(), MAX_BLOCKS);
    }

    proptest! {
        #[test]
        fn nothing_after_a_difference_is_common(
            texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 1..6),
            at in any::<prop::sample::Index>(),
        ) {
            let pieces: Vec<_> = texts.iter().map(|text| Ok(text.as_slice())).collect();
            let base = chain("m", &pieces);
            let at = at.index(texts.len());
            let mut other = texts.clone();
            other[at][0] ^= 1;
            let pieces: Vec<_> = other.iter().map(|text| Ok(text.as_slice())).collect();
            let before: usize = texts[..at].iter().map(|text| text.len().div_ceil(BLOCK_BYTES)).sum();
            prop_assert_eq!(common(&base, &chain("m", &pieces)), before);
        }
    }
}
