//! Conversations about images, as prompts.
//!
//! Each begins with one of a few system prompts and one to three images of a catalogue, in which some are far more popular
//! than others (Zipf, exponent 1), and goes on for a few turns. Conversations overlap in time.

use std::sync::Arc;

use mediagate::routing::{
    Affinity, Asked,
    prompt::{MediaSpan, MmHash, MmImage, MmRoutingInfo, Prompt, PromptTokens},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Tokens a block. Large, so that a simulation takes seconds.
pub const BLOCK: usize = 128;

const SYSTEM_PROMPTS: u32 = 8;
const SYSTEM_TOKENS: usize = 512;
const CATALOGUE: usize = 3000;
const TURN_TOKENS: usize = 256;
const PLACEHOLDER: u32 = 5;

/// A request: the conversation so far.
#[derive(Clone)]
pub struct Request {
    pub prompt: PromptTokens,
}

struct Conversation {
    prompt: PromptTokens,
    turns: usize,
    id: u32,
}

/// So many requests in the order of their arrival.
pub fn requests(count: usize, seed: u64) -> Vec<Request> {
    let mut rng = StdRng::seed_from_u64(seed);
    let weights: Vec<f64> = (1..=CATALOGUE).map(|rank| 1.0 / rank as f64).collect();
    let total: f64 = weights.iter().sum();
    let mut open: Vec<Conversation> = Vec::new();
    let mut requests = Vec::with_capacity(count);
    let mut next_id = 1000;
    while requests.len() < count {
        if open.len() < 400 {
            next_id += 1;
            open.push(begin(&mut rng, &weights, total, next_id));
            continue;
        }
        let at = rng.random_range(0..open.len());
        let conversation = &mut open[at];
        // The question, and with the next turn the answer before it.
        let turn = conversation.id * 16 + conversation.turns as u32;
        conversation.prompt.ids.extend(std::iter::repeat_n(turn + 1_000_000, TURN_TOKENS));
        requests.push(Request { prompt: conversation.prompt.clone() });
        conversation.turns -= 1;
        if conversation.turns == 0 {
            open.swap_remove(at);
        }
    }
    requests
}

fn begin(rng: &mut StdRng, weights: &[f64], total: f64, id: u32) -> Conversation {
    let system = rng.random_range(0..SYSTEM_PROMPTS);
    let mut ids = vec![system + 10; SYSTEM_TOKENS];
    let mut media = Vec::new();
    for _ in 0..rng.random_range(1..=3) {
        let mut left = rng.random::<f64>() * total;
        let image = weights.iter().position(|weight| {
            left -= weight;
            left <= 0.0
        });
        let image = image.unwrap_or(0);
        // Sizes differ by image, from 300 to 2,000 tokens.
        let length = 300 + image * 7919 % 1700;
        media.push(MediaSpan { hash: hash(image), offset: ids.len(), length });
        ids.extend(std::iter::repeat_n(PLACEHOLDER, length));
        ids.push(6);
    }
    Conversation { prompt: PromptTokens { ids, media }, turns: rng.random_range(1..=5), id }
}

fn hash(image: usize) -> MmHash {
    MmHash::of_identifier(blake3::hash(&image.to_le_bytes()).to_hex().as_str())
}

impl Request {
    /// As routing is asked; `images`: whether it can see them.
    pub fn asked(&self, images: bool) -> Asked {
        let spans = if images { self.prompt.media.as_slice() } else { &[] };
        let largest = self.prompt.media.iter().max_by_key(|span| span.length);
        let own: Vec<MmImage> = spans.iter().map(|span| MmImage { hash: span.hash, tokens: span.length }).collect();
        Asked {
            affinity: match largest.filter(|_| images) {
                Some(span) => Affinity::new(span.hash.prefix()),
                None => Affinity::new(u64::from(self.prompt.ids[0])),
            },
            images: own.iter().map(|image| image.hash).collect(),
            mm: Some(MmRoutingInfo::new(own)),
            prompt: Prompt::Tokens(Arc::new(PromptTokens { ids: self.prompt.ids.clone(), media: spans.to_vec() })),
            model: None,
            salt: None,
            named: true,
            checked: false,
        }
    }
}
