//! From a request's terms and the workers that could take it to a decision, and why it fell so.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{
    affinity::{self, Affinity, Candidate},
    policy::RoutePolicy,
    prompt::{MmHash, MmRoutingInfo, Prompt},
};

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
}

/// Chooses workers. One for the whole gateway.
#[derive(Debug)]
pub struct Router {
    policy: RoutePolicy,
    turn: AtomicUsize,
}

/// Which worker, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The `index` of the chosen candidate.
    pub index: usize,
    pub policy: RoutePolicy,
    pub reason: Reason,
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
}

impl Router {
    pub fn new(policy: RoutePolicy) -> Self {
        Router { policy, turn: AtomicUsize::new(0) }
    }

    /// The worker for a request; `None` if there are no candidates.
    pub fn choose(&self, asked: &Asked, candidates: &[Candidate]) -> Option<Decision> {
        let (index, reason) = match self.policy {
            RoutePolicy::RoundRobin => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                let candidate = candidates.get(turn.checked_rem(candidates.len())?)?;
                (candidate.index, Reason::Turn)
            }
            RoutePolicy::LeastLoaded => {
                // Among equals by turns, so that an idle fleet is used evenly.
                let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(candidates.len())?;
                let (before, after) = candidates.split_at_checked(turn)?;
                let least = after.iter().chain(before).min_by_key(|candidate| candidate.in_flight)?;
                (least.index, Reason::Load)
            }
            RoutePolicy::MediaAffinity => {
                let index = affinity::choose(candidates, asked.affinity)?;
                let owner = affinity::owner(candidates, asked.affinity)?;
                (index, if index == owner { Reason::Affinity } else { Reason::Overflow })
            }
        };
        Some(Decision { index, policy: self.policy, reason })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Turn => "turn",
            Reason::Load => "load",
            Reason::Affinity => "affinity",
            Reason::Overflow => "overflow",
        })
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy={}; reason={}", self.policy.name(), self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(loads: &[usize]) -> Vec<Candidate> {
        loads.iter().enumerate().map(|(index, &in_flight)| Candidate { index, in_flight }).collect()
    }

    fn asked(key: u64) -> Asked {
        Asked {
            affinity: Affinity::of_bytes(&key.to_le_bytes()),
            images: Vec::new(),
            mm: None,
            prompt: Prompt::Chain(Vec::new()),
        }
    }

    fn chosen(router: &Router, loads: &[usize], key: u64) -> (usize, Reason) {
        let decision = router.choose(&asked(key), &candidates(loads)).unwrap();
        (decision.index, decision.reason)
    }

    #[test]
    fn nobody_is_chosen_from_nobody() {
        for policy in [RoutePolicy::MediaAffinity, RoutePolicy::LeastLoaded, RoutePolicy::RoundRobin] {
            assert_eq!(Router::new(policy).choose(&asked(1), &[]), None);
        }
    }

    #[test]
    fn round_robin_takes_turns_whatever_the_load() {
        let router = Router::new(RoutePolicy::RoundRobin);
        let turns: Vec<_> = (0..6).map(|_| chosen(&router, &[9, 0, 0], 1).0).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn the_least_loaded_is_chosen_and_equals_take_turns() {
        let router = Router::new(RoutePolicy::LeastLoaded);
        assert_eq!(chosen(&router, &[3, 1, 2], 1), (1, Reason::Load));
        let mut counts = [0; 3];
        for key in 0..30 {
            counts[chosen(&router, &[1, 1, 1], key).0] += 1;
        }
        assert_eq!(counts, [10, 10, 10]);
    }

    #[test]
    fn affinity_says_whether_the_owner_was_too_busy() {
        let router = Router::new(RoutePolicy::MediaAffinity);
        let (owner, reason) = chosen(&router, &[0, 0, 0], 7);
        assert_eq!(reason, Reason::Affinity);
        let mut loads = [0; 3];
        loads[owner] = 30;
        let (other, reason) = chosen(&router, &loads, 7);
        assert!(other != owner && reason == Reason::Overflow);
    }

    #[test]
    fn a_decision_reads_as_a_header() {
        let decision = Decision { index: 2, policy: RoutePolicy::LeastLoaded, reason: Reason::Load };
        assert_eq!(decision.to_string(), "policy=least-loaded; reason=load");
    }
}
