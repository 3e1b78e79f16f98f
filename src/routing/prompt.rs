//! What is known of a prompt when its worker is chosen.
//!
//! Both ways of knowing it stand side by side. With the model's files, a prompt is the token ids that its worker will
//! compute on, so that its blocks can be compared with the worker's own KV events. Without them it is a chain of hashes
//! over texts and images, which says how much two prompts have in common from their beginning, and no more.

use std::{fmt, sync::Arc};

use crate::media::content::MediaId;

/// What a worker calls an image: vLLM's `mm_hash`, which is our `uuid` where we gave one.
///
/// Identifiers of 64 lower-case hex digits (ours, and vLLM's own BLAKE3 and SHA-256) are kept as the 32 bytes that they
/// spell; any other text is hashed. So two different texts never meet, short of a BLAKE3 collision.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MmHash([u8; 32]);

impl MmHash {
    /// Of an identifier as vLLM writes it, without any prefix that names a LoRA adapter.
    pub fn of_identifier(identifier: &str) -> Self {
        // vLLM compares the texts: upper-case digits would be another identifier.
        let lower = !identifier.bytes().any(|byte| byte.is_ascii_uppercase());
        match blake3::Hash::from_hex(identifier) {
            Ok(spelled) if lower => MmHash(*spelled.as_bytes()),
            _ => MmHash(*blake3::hash(identifier.as_bytes()).as_bytes()),
        }
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 64 bits, for rendezvous hashing. Evenly spread where the identifier is a hash.
    pub fn prefix(&self) -> u64 {
        u64::from_be_bytes(*self.0.first_chunk().unwrap_or(&[0; 8]))
    }
}

impl From<MediaId> for MmHash {
    fn from(id: MediaId) -> Self {
        MmHash(*id.as_bytes())
    }
}

impl From<MmHash> for MediaId {
    fn from(hash: MmHash) -> Self {
        MediaId::from_bytes(hash.0)
    }
}

impl fmt::Display for MmHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for MmHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One image of a prompt: what it is called, and how many tokens of the prompt it becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MmImage {
    pub hash: MmHash,
    pub tokens: usize,
}

/// The images of a request as far as routing is concerned. There is one only if every image's token count is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MmRoutingInfo {
    images: Vec<MmImage>,
    multiset: Vec<(MmImage, usize)>,
    total_tokens: usize,
}

impl MmRoutingInfo {
    /// Of the images in the order in which they stand in the prompt.
    pub fn new(images: Vec<MmImage>) -> Self {
        let mut sorted = images.clone();
        sorted.sort_unstable();
        let runs = sorted.chunk_by(|a, b| a == b);
        // A run is never empty.
        let multiset = runs.filter_map(|run| run.first().map(|&image| (image, run.len()))).collect();
        let total_tokens = images.iter().map(|image| image.tokens).sum();
        MmRoutingInfo { images, multiset, total_tokens }
    }

    /// In the order of the prompt, an image that stands in it twice being there twice.
    pub fn images(&self) -> &[MmImage] {
        &self.images
    }

    /// Each different image with how often it occurs: what a cache of images sees of the request.
    pub fn multiset(&self) -> &[(MmImage, usize)] {
        &self.multiset
    }

    /// Tokens of all images together.
    pub fn total_tokens(&self) -> usize {
        self.total_tokens
    }
}

/// Where an image stands among the tokens: vLLM's `PlaceholderRange`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaSpan {
    pub hash: MmHash,
    /// Index of its first token.
    pub offset: usize,
    /// How many tokens it is.
    pub length: usize,
}

/// A prompt as the worker's engine sees it: every placeholder repeated as often as its image has tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptTokens {
    pub ids: Vec<u32>,
    /// In order, not overlapping.
    pub media: Vec<MediaSpan>,
}

impl PromptTokens {
    /// The images of which a token is from `start` up to `end`.
    pub fn media_within(&self, start: usize, end: usize) -> impl Iterator<Item = &MediaSpan> {
        let first = self.media.partition_point(|span| span.offset + span.length <= start);
        self.media[first..].iter().take_while(move |span| span.offset < end)
    }
}

/// What a prompt is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Its tokens, by the model's own template and tokenizer: the policy `mm-kv`.
    Tokens(Arc<PromptTokens>),
    /// Hashes of ever longer beginnings of its texts and images, the shortest first: the policy `media-prefix`. Two
    /// prompts begin alike as far as their chains agree.
    Chain(Vec<u64>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_identifiers_are_the_bytes_they_spell_and_others_are_hashed() {
        let hex = "7a9bbcb11a8986307a9bbcb11a8986307a9bbcb11a8986307a9bbcb11a898630";
        assert_eq!(MmHash::of_identifier(hex).to_string(), hex);
        assert_eq!(MmHash::of_identifier(hex).prefix(), 0x7a9b_bcb1_1a89_8630);
        let media_id: MediaId = hex.parse().unwrap();
        assert_eq!(MmHash::from(media_id), MmHash::of_identifier(hex));
        let others = ["", "photo-1", &hex[1..], &hex.to_uppercase(), &format!("{hex}0")].map(MmHash::of_identifier);
        for (index, other) in others.iter().enumerate() {
            assert_ne!(other.to_string(), hex);
            assert!(!others[..index].contains(other));
        }
    }

    #[test]
    fn a_request_is_a_sequence_and_a_multiset_of_images() {
        let image = |name, tokens| MmImage { hash: MmHash::of_identifier(name), tokens };
        let info = MmRoutingInfo::new(vec![image("a", 3), image("b", 5), image("a", 3)]);
        assert_eq!(info.total_tokens(), 11);
        assert_eq!(info.images()[2], image("a", 3));
        let mut multiset = info.multiset().to_vec();
        multiset.sort_by_key(|&(_, count)| count);
        assert_eq!(multiset, [(image("b", 5), 1), (image("a", 3), 2)]);
        assert_eq!(MmRoutingInfo::default().total_tokens(), 0);
    }
}
