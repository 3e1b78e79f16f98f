//! What a request costs on each worker, and which is chosen.
//!
//! The cost is in tokens: what the worker must compute of the prompt, plus a share for images that it must process and
//! encode, plus the work that it has already. The least cost wins.
//!
//! What a worker holds counts only if it is worth going there for: the largest image of the request, or a good part of the
//! prompt. Else one block of text that all requests share sends every cold image to the worker that was first, and a logo on
//! each page makes a hot spot. A request of which nobody holds enough is cold: it belongs to a worker by rendezvous hashing
//! over its largest image, among those that are not busier than the others.

use rand::Rng;

use super::{
    affinity::{self, Affinity},
    policy::Weights,
    router::{Candidate, Reason},
};

/// Above this share of its KV cache in use, a worker begins to throw out what it holds, and then requests.
const FULL_CACHE: f64 = 0.9;

/// What one candidate has to do with a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Term {
    /// The candidate's `index`.
    pub index: usize,
    /// Tokens of the prompt's beginning that it holds.
    pub overlap: usize,
    /// How many of these its own events tell of; the others it was sent.
    pub told: usize,
    /// Tokens of images that are wholly within the overlap.
    pub covered: usize,
    /// Tokens of images beyond them that it need not process and encode again.
    pub media: usize,
    /// Whether it holds the largest image of the request, in one way or the other.
    pub largest: bool,
    /// Tokens of work that it has already.
    pub load: f64,
    /// What the request costs there, in tokens; what does not count left out.
    pub cost: f64,
}

/// The request's own numbers.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub affinity: Affinity,
    /// Tokens of the prompt.
    pub tokens: usize,
    pub image_tokens: usize,
}

/// Writes the cost into each term, and chooses; `terms[i]` is of `candidates[i]`. The place of the chosen one.
pub fn select(size: &Size, weights: &Weights, candidates: &[Candidate], terms: &mut [Term]) -> Option<(usize, Reason)> {
    let tokens = size.tokens.max(1) as f64;
    let mut warm = false;
    for (term, candidate) in terms.iter_mut().zip(candidates) {
        let overlap = term.overlap as f64;
        let counts = term.largest || (overlap > 0.0 && overlap >= weights.min_overlap * tokens);
        let (overlap, media) = if counts { (overlap, (term.covered + term.media) as f64) } else { (0.0, 0.0) };
        warm |= counts;
        let compute = tokens - overlap.min(tokens);
        let encode = weights.media * (size.image_tokens as f64 - media).max(0.0);
        let full = (candidate.busy.kv_usage - FULL_CACHE).max(0.0) / (1.0 - FULL_CACHE) * tokens;
        term.cost = compute + encode + weights.load * (term.load + full);
    }
    if !warm {
        let workers = candidates.iter().zip(terms.iter()).map(|(candidate, term)| (candidate.name, term.load));
        let (place, owner) = affinity::choose(workers, size.affinity, tokens)?;
        return Some((place, if owner { Reason::Affinity } else { Reason::Overflow }));
    }
    let place = if weights.temperature > 0.0 {
        by_chance(terms, weights.temperature * tokens)?
    } else {
        // Among equals by rendezvous, so that gateways agree here too.
        let rank =
            |place: &usize| (terms[*place].cost, std::cmp::Reverse(size.affinity.score(candidates[*place].name)));
        let less = |a: &usize, b: &usize| rank(a).partial_cmp(&rank(b)).unwrap_or(std::cmp::Ordering::Equal);
        (0..terms.len().min(candidates.len())).min_by(less)?
    };
    let term = terms.get(place)?;
    let reason = if term.overlap > 0 && term.overlap >= term.media {
        Reason::Overlap
    } else if term.media > 0 {
        Reason::Media
    } else {
        // Those that hold something have too much to do.
        Reason::Load
    };
    Some((place, reason))
}

/// Each by `exp(-cost / unit)`.
fn by_chance(terms: &[Term], unit: f64) -> Option<usize> {
    let least = terms.iter().map(|term| term.cost).fold(f64::INFINITY, f64::min);
    let weight = |term: &Term| ((least - term.cost) / unit).exp();
    let total: f64 = terms.iter().map(weight).sum();
    let mut left = rand::rng().random::<f64>() * total;
    for (place, term) in terms.iter().enumerate() {
        left -= weight(term);
        if left <= 0.0 {
            return Some(place);
        }
    }
    terms.len().checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::load::Busy;

    const SIZE: Size = Size { affinity: Affinity::new(0), tokens: 1000, image_tokens: 600 };

    fn candidates(count: usize) -> Vec<Candidate> {
        (0..count).map(|index| Candidate { index, name: index as u64, ..Candidate::default() }).collect()
    }

    fn term(overlap: usize, media: usize, load: f64) -> Term {
        Term { overlap, media, largest: overlap >= 700 || media >= 400, load, ..Term::default() }
    }

    fn chosen(terms: &[Term]) -> (usize, Reason) {
        select(&SIZE, &Weights::default(), &candidates(terms.len()), &mut terms.to_vec()).unwrap()
    }

    #[test]
    fn the_longest_overlap_wins_until_its_worker_has_too_much_to_do() {
        assert_eq!(chosen(&[term(0, 0, 0.0), term(900, 0, 0.0), term(700, 0, 0.0)]), (1, Reason::Overlap));
        assert_eq!(chosen(&[term(0, 0, 0.0), term(900, 0, 500.0), term(700, 0, 0.0)]), (2, Reason::Overlap));
        assert_eq!(chosen(&[term(0, 0, 0.0), term(900, 0, 5000.0), term(700, 0, 5000.0)]), (0, Reason::Load));
    }

    #[test]
    fn an_image_that_is_held_counts_where_no_block_is() {
        assert_eq!(chosen(&[term(0, 0, 0.0), term(0, 600, 0.0)]), (1, Reason::Media));
        assert_eq!(chosen(&[term(0, 600, 0.0), term(900, 0, 0.0)]), (1, Reason::Overlap));
    }

    #[test]
    fn a_little_overlap_counts_nothing() {
        let cold = chosen(&[term(0, 0, 0.0), term(0, 0, 0.0), term(0, 0, 0.0)]);
        for holder in 0..3 {
            let mut terms = [term(0, 0, 0.0); 3];
            terms[holder] = term(300, 100, 0.0);
            assert_eq!(chosen(&terms), cold);
        }
    }

    #[test]
    fn a_cold_request_goes_to_its_owner_unless_that_is_busier_than_the_others() {
        let (owner, reason) = chosen(&[term(0, 0, 0.0); 3]);
        assert_eq!(reason, Reason::Affinity);
        let mut terms = [term(0, 0, 100.0); 3];
        terms[owner].load = 1000.0;
        assert_eq!(chosen(&terms), (owner, Reason::Affinity), "by one request at most");
        terms[owner].load = 10_000.0;
        let (other, reason) = chosen(&terms);
        assert!(other != owner && reason == Reason::Overflow);
    }

    #[test]
    fn a_worker_with_a_full_cache_is_avoided() {
        let mut candidates = candidates(2);
        candidates[0].busy = Busy { kv_usage: 1.0, ..Busy::default() };
        let mut terms = [term(800, 0, 0.0), term(750, 0, 0.0)];
        assert_eq!(select(&SIZE, &Weights::default(), &candidates, &mut terms).unwrap().0, 1);
    }

    #[test]
    fn with_a_temperature_the_better_one_is_chosen_more_often() {
        let weights = Weights { temperature: 1.0, ..Weights::default() };
        let mut counts = [0; 2];
        for _ in 0..2000 {
            let mut terms = [term(1000, 0, 0.0), term(0, 0, 0.0)];
            counts[select(&SIZE, &weights, &candidates(2), &mut terms).unwrap().0] += 1;
        }
        assert!(counts[1] > 300 && counts[0] > 2 * counts[1], "{counts:?}");
    }

    #[test]
    fn nobody_is_chosen_from_nobody() {
        assert_eq!(select(&SIZE, &Weights::default(), &[], &mut []), None);
    }
}
