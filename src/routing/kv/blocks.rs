//! The hash of a block: equal where an event and a prompt speak of the same tokens and images.
//!
//! Events carry tokens, and the images that reach into each block; so the gateway need not know how vLLM hashes, which
//! depends on settings and, for some algorithms, on a secret of the process. What stands before a block is not in its
//! hash: the index keeps chains. Only the first of a prompt has what all others inherit: LoRA and cache salt.

use twox_hash::XxHash3_64;

use super::events::BlockExtra;
use crate::routing::prompt::{MediaSpan, MmHash};

/// Within which prompts share blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheScope<'a> {
    pub lora: Option<&'a str>,
    pub salt: Option<&'a str>,
}

/// A key for each block that stands for it and all before it.
pub fn chain_keys(hashes: &[u64]) -> Vec<u64> {
    let mut key = 0_u64;
    let chain = hashes.iter().map(|hash| {
        // Not the same forwards and backwards, and no two steps cancel out: a multiplication and a shift after each.
        key = (key.rotate_left(23) ^ hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        key ^= key >> 32;
        key
    });
    chain.collect()
}

/// Hashes blocks; keeps its buffer.
#[derive(Debug, Default)]
pub struct BlockHasher {
    buffer: Vec<u8>,
}

impl BlockHasher {
    /// The hash of a block of these tokens; `scope` for the first of a prompt alone.
    pub fn block<'a>(
        &mut self,
        scope: Option<CacheScope<'_>>,
        tokens: &[u32],
        media: impl IntoIterator<Item = (&'a MmHash, i64)>,
        digests: &[u64],
    ) -> u64 {
        self.buffer.resize(size_of_val(tokens), 0);
        let (slots, _) = self.buffer.as_chunks_mut::<4>();
        for (slot, token) in slots.iter_mut().zip(tokens) {
            *slot = token.to_le_bytes();
        }
        for (hash, offset) in media {
            self.buffer.extend_from_slice(hash.as_bytes());
            self.buffer.extend_from_slice(&offset.to_le_bytes());
        }
        for digest in digests {
            self.buffer.extend_from_slice(&digest.to_le_bytes());
        }
        if let Some(scope) = scope.filter(|scope| *scope != CacheScope::default()) {
            for part in [scope.lora, scope.salt] {
                // Absent and empty differ, and the lengths keep the two apart.
                self.buffer.push(u8::from(part.is_some()));
                self.buffer.extend_from_slice(&(part.unwrap_or("").len() as u64).to_le_bytes());
                self.buffer.extend_from_slice(part.unwrap_or("").as_bytes());
            }
        }
        // Blocks of different sizes do not meet. (As a seed it would cost more than all the rest where blocks are large.)
        XxHash3_64::oneshot(&self.buffer) ^ (tokens.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The same of a block of an event.
    pub fn of_event(&mut self, scope: Option<CacheScope<'_>>, tokens: &[u32], extra: &BlockExtra) -> u64 {
        self.block(scope, tokens, extra.media.iter().map(|(hash, offset)| (hash, *offset)), &extra.digests)
    }

    /// The hashes of all full blocks of a prompt.
    pub fn of_prompt(
        &mut self,
        scope: CacheScope<'_>,
        ids: &[u32],
        mut media: &[MediaSpan],
        block_size: usize,
    ) -> Vec<u64> {
        let mut hashes = Vec::with_capacity(ids.len() / block_size.max(1));
        for (index, tokens) in ids.chunks_exact(block_size.max(1)).enumerate() {
            let (start, end) = (index * block_size, (index + 1) * block_size);
            // As vLLM's `_gen_mm_extra_hash_keys` has it: each image of which a token is in the block.
            while let Some((_, rest)) = media.split_first().filter(|(span, _)| span.offset + span.length <= start) {
                media = rest;
            }
            let within = media.iter().take_while(|span| span.offset < end);
            let within = within.map(|span| (&span.hash, span.offset as i64 - start as i64));
            hashes.push(self.block((index == 0).then_some(scope), tokens, within, &[]));
        }
        hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::prompt::PromptTokens;

    fn hash(name: &str) -> MmHash {
        MmHash::of_identifier(name)
    }

    fn prompt(name: &str, offset: usize) -> PromptTokens {
        let media = vec![MediaSpan { hash: hash(name), offset, length: 6 }];
        PromptTokens { ids: (0..14).collect(), media }
    }

    #[test]
    fn a_prompt_hashes_to_what_its_events_do() {
        let prompt = prompt("a", 3);
        let hashes = BlockHasher::default().of_prompt(CacheScope::default(), &prompt.ids, &prompt.media, 4);
        let extra = |media: Vec<(MmHash, i64)>| BlockExtra { media, ..BlockExtra::default() };
        let events = [
            (Some(CacheScope::default()), [0, 1, 2, 3], extra(vec![(hash("a"), 3)])),
            (None, [4, 5, 6, 7], extra(vec![(hash("a"), -1)])),
            (None, [8, 9, 10, 11], extra(vec![(hash("a"), -5)])),
        ];
        let expected: Vec<_> = events
            .iter()
            .map(|(scope, tokens, extra)| BlockHasher::default().of_event(*scope, tokens, extra))
            .collect();
        assert_eq!(hashes, expected, "and the last two tokens are no block");
    }

    #[test]
    fn what_makes_a_block_another_block_makes_another_hash() {
        let of = |scope, prompt: &PromptTokens, size| {
            BlockHasher::default().of_prompt(scope, &prompt.ids, &prompt.media, size)
        };
        let base = of(CacheScope::default(), &prompt("a", 3), 4);
        let salted = of(CacheScope { salt: Some("s"), lora: None }, &prompt("a", 3), 4);
        let tuned = of(CacheScope { salt: None, lora: Some("s") }, &prompt("a", 3), 4);
        let empty = of(CacheScope { salt: Some(""), lora: None }, &prompt("a", 3), 4);
        let firsts = [&base, &salted, &tuned, &empty].map(|hashes| hashes[0]);
        assert!((1..4).all(|index| !firsts[..index].contains(&firsts[index])), "{firsts:?}");
        assert_eq!(salted[1..], base[1..], "the chain tells the rest apart");
        assert_ne!(of(CacheScope::default(), &prompt("b", 3), 4), base);
        assert_ne!(of(CacheScope::default(), &prompt("a", 2), 4), base);
        let zeros = PromptTokens { ids: vec![0; 8], media: Vec::new() };
        assert_ne!(of(CacheScope::default(), &zeros, 4)[0], of(CacheScope::default(), &zeros, 8)[0]);
    }
}
