//! From a request's terms and the workers that could take it to a decision, and why it fell so.

#[cfg(feature = "mm-routing")]
use std::borrow::Cow;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

#[cfg(feature = "mm-routing")]
use super::kv::{
    KvIndex, Overlaps, View,
    blocks::chain_keys,
    sent::{SentAs, SentPrompt},
};
#[cfg(feature = "mm-routing")]
use super::prompt::MediaSpan;
use super::{
    affinity::{self, Affinity},
    chain::{BLOCK_TOKENS, IMAGE_BLOCKS},
    expected::{self, Expected},
    policy::{RoutePolicy, Weights},
    prompt::{MmHash, MmImage, MmRoutingInfo, Prompt, PromptTokens},
    score::{self, Size, Term},
};
use crate::worker::{Belief, load::Busy};

/// How long a decision counts where the worker's events will tell what became of it: as long as a prompt may be queued.
#[cfg(feature = "mm-routing")]
const UNCONFIRMED: Duration = Duration::from_secs(30);

/// How long it counts where nothing will: as long as what was sent may well still be cached.
const UNTOLD: Duration = expected::LONGEST;

/// Tokens of an image of which nothing is known: those of a picture of 640 x 480 or so.
const UNKNOWN_IMAGE_TOKENS: usize = IMAGE_BLOCKS * BLOCK_TOKENS;

/// What a request asks of routing.
#[derive(Debug, Clone)]
pub struct Asked {
    /// What it has in common with requests that it should meet again: its largest image, else its beginning.
    pub affinity: Affinity,
    /// What its images are called, in order.
    pub images: Vec<MmHash>,
    /// The same with their tokens, if those of every image are known.
    pub mm: Option<MmRoutingInfo>,
    /// What its prompt is known by.
    pub prompt: Prompt,
    /// The model that it names, which may be a LoRA.
    pub model: Option<String>,
    /// Apart from others' blocks.
    pub salt: Option<String>,
    /// Whether workers know its images by the same names, so that their events will tell what they hold of it.
    pub named: bool,
    /// Whether its tokens are to be compared with those that its worker computes.
    pub checked: bool,
}

impl Asked {
    /// Tokens of the whole prompt; an estimate unless they are known.
    pub fn tokens(&self) -> usize {
        match &self.prompt {
            Prompt::Tokens(prompt) => prompt.ids.len(),
            Prompt::Chain(chain) => {
                let images = self.images.len() * IMAGE_BLOCKS;
                chain.len().saturating_sub(images) * BLOCK_TOKENS + self.image_tokens()
            }
        }
    }

    /// Tokens of its images; an estimate unless they are known.
    pub fn image_tokens(&self) -> usize {
        match &self.mm {
            Some(mm) => mm.total_tokens(),
            None => self.images.len() * UNKNOWN_IMAGE_TOKENS,
        }
    }

    /// The images with their tokens.
    fn sized_images(&self) -> impl Iterator<Item = MmImage> {
        self.images.iter().enumerate().map(|(index, &hash)| {
            let known = self.mm.as_ref().and_then(|mm| mm.images().get(index));
            known.copied().unwrap_or(MmImage { hash, tokens: UNKNOWN_IMAGE_TOKENS })
        })
    }

    /// Whether this is the image that a cold request goes by.
    fn is_largest(&self, hash: &MmHash) -> bool {
        Affinity::new(hash.prefix()) == self.affinity
    }
}

/// A worker that may be chosen.
#[derive(Debug, Clone, Default)]
pub struct Candidate {
    /// Names the worker for as long as the gateway runs.
    pub index: usize,
    /// Names it on every gateway: a hash of its address.
    pub name: u64,
    /// Requests of ours that are on it now.
    pub in_flight: usize,
    pub busy: Busy,
    /// What its processor cache is believed to hold, where that is followed.
    pub belief: Option<Arc<Belief>>,
}

/// Chooses workers. One for the whole gateway.
#[derive(Debug)]
pub struct Router {
    policy: RoutePolicy,
    weights: Weights,
    turn: AtomicUsize,
    expected: Expected,
    #[cfg(feature = "mm-routing")]
    kv: Arc<KvIndex>,
}

/// Which worker, and why.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The `index` of the chosen candidate.
    pub index: usize,
    pub policy: RoutePolicy,
    pub reason: Reason,
    /// The chosen one's.
    pub term: Term,
    /// Of all candidates, where the policy weighs them.
    pub terms: Vec<Term>,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// The prompt as it is held against the worker's events, if it is.
    #[cfg(feature = "mm-routing")]
    pub sent: Option<Arc<SentPrompt>>,
}

/// What tipped the scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It was its turn.
    Turn,
    /// It had the least to do.
    Load,
    /// The request belongs to it by rendezvous hashing.
    Affinity,
    /// The request belongs to a busier one.
    Overflow,
    /// It holds the prompt's beginning.
    Overlap,
    /// It holds images of the request.
    Media,
}

impl Router {
    #[cfg(not(feature = "mm-routing"))]
    pub fn new(policy: RoutePolicy, weights: Weights) -> Self {
        Router { policy, weights, turn: AtomicUsize::new(0), expected: Expected::default() }
    }

    #[cfg(feature = "mm-routing")]
    pub fn new(policy: RoutePolicy, weights: Weights, kv: Arc<KvIndex>) -> Self {
        Router { policy, weights, turn: AtomicUsize::new(0), expected: Expected::default(), kv }
    }

    pub fn policy(&self) -> RoutePolicy {
        self.policy
    }

    /// The worker for a request; `None` if there are no candidates. The decision counts from now on.
    pub fn choose(&self, asked: &Asked, candidates: &[Candidate]) -> Option<Decision> {
        match self.policy {
            RoutePolicy::RoundRobin => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(candidates.len())?;
                Some(self.plain(asked, candidates.get(turn)?, Reason::Turn))
            }
            RoutePolicy::LeastLoaded => {
                // Among equals by turns, so that an idle fleet is used evenly.
                let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(candidates.len())?;
                let (before, after) = candidates.split_at_checked(turn)?;
                let requests = |candidate: &&Candidate| candidate.in_flight.saturating_add(candidate.busy.others);
                let least = after.iter().chain(before).min_by_key(requests)?;
                Some(self.plain(asked, least, Reason::Load))
            }
            RoutePolicy::MediaAffinity => {
                let workers = candidates.iter().map(|candidate| (candidate.name, candidate.in_flight as f64));
                let (place, owner) = affinity::choose(workers, asked.affinity, 1.0)?;
                let reason = if owner { Reason::Affinity } else { Reason::Overflow };
                Some(self.plain(asked, candidates.get(place)?, reason))
            }
            _ => self.weigh(asked, candidates),
        }
    }

    /// A worker has started over, or is gone: what it was sent before, it holds no longer.
    pub fn forget(&self, worker: usize) {
        self.expected.forget(worker);
    }

    /// Whether a worker's own events show that it holds the prompt's beginning, as far as `tokens`; `None` where they would
    /// not show it. A prompt whose worker has answered is held, unless its tokens are others than were predicted.
    #[cfg(feature = "mm-routing")]
    pub fn confirms(&self, asked: &Asked, worker: usize, tokens: usize) -> Option<bool> {
        let Prompt::Tokens(prompt) = &asked.prompt else { return None };
        if self.kv.view(worker) != View::Complete {
            return None;
        }
        let mut held = 0;
        let most = |of: usize, tokens: usize| held = if of == worker { held.max(tokens) } else { held };
        let (media, _) = self.as_workers_name_them(asked, prompt);
        let (salt, model) = (asked.salt.as_deref(), asked.model.as_deref());
        let Overlaps { block_size, .. } = self.kv.overlaps(&prompt.ids, &media, salt, model, most);
        let blocks = tokens.min(prompt.ids.len()) / block_size.max(1);
        (blocks > 0).then_some(held >= blocks * block_size)
    }

    /// For simulations, which are faster than time.
    pub fn let_time_pass(&self, time: Duration) {
        self.expected.let_time_pass(time);
    }

    fn plain(&self, asked: &Asked, candidate: &Candidate, reason: Reason) -> Decision {
        let term = Term { index: candidate.index, load: candidate.busy.tokens, ..Term::default() };
        Decision {
            index: candidate.index,
            policy: self.policy,
            reason,
            term,
            terms: Vec::new(),
            tokens: asked.tokens(),
            #[cfg(feature = "mm-routing")]
            sent: None,
        }
    }

    fn weigh(&self, asked: &Asked, candidates: &[Candidate]) -> Option<Decision> {
        let tokens = asked.tokens();
        let places = Places::of(candidates);
        let mut terms: Vec<Term> = candidates
            .iter()
            .map(|candidate| {
                // What others have sent is about as large as what we send.
                let load = candidate.busy.tokens + (candidate.busy.others * tokens) as f64;
                Term { index: candidate.index, load, ..Term::default() }
            })
            .collect();
        let (links, told) = match &asked.prompt {
            Prompt::Tokens(prompt) => self.overlap_of_tokens(asked, prompt, &places, &mut terms),
            Prompt::Chain(chain) => (self.overlap_of_chain(tokens, chain, &places, &mut terms), false),
        };
        self.images(asked, candidates, &places, &mut terms);
        let size = Size { affinity: asked.affinity, tokens, image_tokens: asked.image_tokens() };
        let (place, reason) = score::select(&size, &self.weights, candidates, &mut terms)?;
        let (term, candidate) = (*terms.get(place)?, candidates.get(place)?);
        self.expected.expect(&links, candidate.index, self.until_told(candidate.index, told));
        for image in &asked.images {
            self.expected.expect(&[image_key(image)], candidate.index, UNTOLD);
        }
        let policy = self.policy;
        Some(Decision {
            index: candidate.index,
            policy,
            reason,
            term,
            terms,
            tokens,
            #[cfg(feature = "mm-routing")]
            sent: self.send(asked, candidate, term.told),
        })
    }

    /// How much of a chain each candidate was sent before. Gives the chain back, to be remembered.
    fn overlap_of_chain(&self, tokens: usize, chain: &[u64], places: &Places, terms: &mut [Term]) -> Vec<u64> {
        self.expected.find(chain, |worker, depth| {
            if let Some(term) = places.get(worker).and_then(|place| terms.get_mut(place)) {
                term.overlap = tokens * depth / chain.len().max(1);
            }
        });
        chain.to_vec()
    }

    #[cfg(not(feature = "mm-routing"))]
    fn overlap_of_tokens(&self, _: &Asked, _: &PromptTokens, _: &Places, _: &mut [Term]) -> (Vec<u64>, bool) {
        (Vec::new(), false)
    }

    /// How much of the prompt each candidate holds, and was sent before. Gives the chain of its blocks, to be remembered,
    /// and whether events will tell of all of it.
    #[cfg(feature = "mm-routing")]
    fn overlap_of_tokens(
        &self,
        asked: &Asked,
        prompt: &PromptTokens,
        places: &Places,
        terms: &mut [Term],
    ) -> (Vec<u64>, bool) {
        let (salt, model) = (asked.salt.as_deref(), asked.model.as_deref());
        let (media, told) = self.as_workers_name_them(asked, prompt);
        let Overlaps { block_size: size, hashes } =
            self.kv.overlaps(&prompt.ids, &media, salt, model, |worker: usize, tokens: usize| {
                if let Some(term) = places.get(worker).and_then(|place| terms.get_mut(place)) {
                    term.told = term.told.max(tokens);
                }
            });
        let links = match media {
            Cow::Borrowed(_) => chain_keys(&hashes),
            // By our own names, which stay as they are when workers' are learned.
            Cow::Owned(_) => chain_keys(&self.kv.hashes(&prompt.ids, &prompt.media, salt, model, size)),
        };
        self.expected.find(&links, |worker, depth| {
            if let Some(term) = places.get(worker).and_then(|place| terms.get_mut(place)) {
                term.overlap = depth * size;
            }
        });
        // The whole of the largest image, but for a block that it shares with what follows.
        let largest = prompt.media.iter().max_by_key(|span| span.length);
        for term in terms {
            term.overlap = term.overlap.max(term.told);
            let covers = |span: &&MediaSpan| term.overlap + size > span.offset + span.length;
            term.covered = prompt.media.iter().filter(covers).map(|span| span.length).sum();
            term.largest = largest.as_ref().is_some_and(covers);
        }
        (links, told)
    }

    /// The images of a prompt under the names that events have for them, as far as they are known; and whether all are.
    #[cfg(feature = "mm-routing")]
    fn as_workers_name_them<'a>(&self, asked: &Asked, prompt: &'a PromptTokens) -> (Cow<'a, [MediaSpan]>, bool) {
        let mut media = Cow::Borrowed(prompt.media.as_slice());
        let mut all = true;
        if !asked.named {
            for (index, span) in prompt.media.iter().enumerate() {
                match self.kv.names.get(asked.model.as_deref(), span.hash) {
                    Some(hash) => media.to_mut()[index].hash = hash,
                    None => all = false,
                }
            }
        }
        (media, all)
    }

    /// Has the prompt held against the worker's events, if there is something to be learned from them.
    #[cfg(feature = "mm-routing")]
    fn send(&self, asked: &Asked, candidate: &Candidate, held: usize) -> Option<Arc<SentPrompt>> {
        let Prompt::Tokens(prompt) = &asked.prompt else { return None };
        let unnamed = !asked.named && !prompt.media.is_empty();
        if (!asked.checked && !unnamed) || self.kv.view(candidate.index) == View::None {
            return None;
        }
        let (model, salt) = (asked.model.as_deref(), asked.salt.as_deref());
        let known = SentAs { model, salt, named: !unnamed, alone: candidate.busy.others == 0, held };
        let sent = Arc::new(SentPrompt::new(prompt.clone(), known));
        self.kv.send(candidate.index, &sent);
        Some(sent)
    }

    /// Which images each candidate has been sent before, and is not known to have thrown out since.
    fn images(&self, asked: &Asked, candidates: &[Candidate], places: &Places, terms: &mut [Term]) {
        let mut covered = 0;
        for image in asked.sized_images() {
            covered += image.tokens;
            self.expected.find(&[image_key(&image.hash)], |worker, _| {
                let Some((place, term)) = places.get(worker).and_then(|place| Some((place, terms.get_mut(place)?)))
                else {
                    return;
                };
                let belief = candidates.get(place).and_then(|candidate| candidate.belief.as_ref());
                // Those within the overlap are the first.
                if covered > term.covered && belief.is_none_or(|belief| belief.still_holds(&image.hash.into())) {
                    term.media += image.tokens;
                    term.largest |= asked.is_largest(&image.hash);
                }
            });
        }
    }

    #[cfg(not(feature = "mm-routing"))]
    fn until_told(&self, _: usize, _: bool) -> Duration {
        UNTOLD
    }

    #[cfg(feature = "mm-routing")]
    fn until_told(&self, worker: usize, told: bool) -> Duration {
        match told && self.kv.view(worker) == View::Complete {
            true => UNCONFIRMED,
            false => UNTOLD,
        }
    }
}

/// Which candidate a worker is.
struct Places(Vec<(usize, usize)>);

impl Places {
    fn of(candidates: &[Candidate]) -> Self {
        let mut places: Vec<_> = candidates.iter().map(|candidate| candidate.index).zip(0..).collect();
        // They come in their order as a rule.
        places.sort_unstable();
        Places(places)
    }

    fn get(&self, worker: usize) -> Option<usize> {
        let at = self.0.binary_search_by_key(&worker, |&(worker, _)| worker).ok()?;
        self.0.get(at).map(|&(_, place)| place)
    }
}

/// The key under which an image is remembered, as a chain of one.
fn image_key(hash: &MmHash) -> u64 {
    Affinity::new(hash.prefix()).score(u64::MAX)
}

impl Decision {
    /// Tokens of the prompt that the worker has to compute.
    pub fn new_tokens(&self) -> usize {
        self.tokens.saturating_sub(self.term.overlap)
    }
}

impl Reason {
    /// In logs, headers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Turn => "turn",
            Reason::Load => "load",
            Reason::Affinity => "affinity",
            Reason::Overflow => "overflow",
            Reason::Overlap => "overlap",
            Reason::Media => "media",
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy={}; reason={}", self.policy.name(), self.reason.name())?;
        if !self.terms.is_empty() {
            let Term { overlap, told, media, load, .. } = self.term;
            let candidates = self.terms.len();
            write!(
                f,
                "; tokens={}; overlap={overlap}; told={told}; media={media}; load={load:.0}; candidates={candidates}",
                self.tokens
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
