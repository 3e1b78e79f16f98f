//! Rendezvous hashing with bounded load.
//!
//! Every worker has a score for a key; the highest wins. A worker that joins or leaves moves only the keys that are its
//! own. A worker is passed over while it has more than [`LOAD_FACTOR`] times the mean load plus one request (Mirrokni,
//! Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads, 2016), so that one popular picture does not drown it.

/// How far above the mean a worker may be loaded and still get what has affinity to it.
const LOAD_FACTOR: f64 = 1.25;

/// What requests that should meet again have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity(u64);

impl Affinity {
    /// Of a well mixed 64-bit value, such as the beginning of a media id.
    pub fn new(mixed: u64) -> Self {
        Affinity(mixed)
    }

    /// Of any bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Affinity(twox_hash::XxHash3_64::oneshot(bytes))
    }
}

/// A worker that may be chosen.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Names the worker for as long as the gateway runs.
    pub index: usize,
    /// Requests that are on it now.
    pub in_flight: usize,
}

/// The worker for a request with this affinity: its `index`, or `None` if there are no candidates.
pub fn choose(candidates: &[Candidate], affinity: Affinity) -> Option<usize> {
    let total: usize = candidates.iter().map(|candidate| candidate.in_flight).sum();
    let mean = total as f64 / candidates.len().max(1) as f64;
    let bound = mean * LOAD_FACTOR + 1.0;
    // The least loaded candidate is never above the bound, so there is always one left.
    let fits = candidates.iter().filter(|candidate| candidate.in_flight as f64 <= bound);
    fits.max_by_key(|candidate| score(affinity, candidate.index)).map(|candidate| candidate.index)
}

/// The worker that a request with this affinity goes to while nobody is busy.
pub fn owner(candidates: &[Candidate], affinity: Affinity) -> Option<usize> {
    candidates.iter().map(|candidate| candidate.index).max_by_key(|&index| score(affinity, index))
}

/// A mix of key and worker (the finaliser of SplitMix64).
fn score(affinity: Affinity, index: usize) -> u64 {
    let mut x = affinity.0 ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn idle(indices: impl IntoIterator<Item = usize>) -> Vec<Candidate> {
        indices.into_iter().map(|index| Candidate { index, in_flight: 0 }).collect()
    }

    #[test]
    fn nobody_is_chosen_from_nobody() {
        assert_eq!(choose(&[], Affinity::new(1)), None);
    }

    #[test]
    fn keys_spread_evenly_over_idle_workers() {
        let workers = idle(0..4);
        let mut counts = [0; 4];
        for key in 0..4000_u64 {
            counts[choose(&workers, Affinity::of_bytes(&key.to_le_bytes())).unwrap()] += 1;
        }
        assert!(counts.iter().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }

    #[test]
    fn a_worker_that_leaves_moves_only_its_own_keys() {
        for key in 0..1000_u64 {
            let affinity = Affinity::of_bytes(&key.to_le_bytes());
            let before = choose(&idle(0..5), affinity).unwrap();
            if before != 2 {
                assert_eq!(choose(&idle([0, 1, 3, 4]), affinity), Some(before));
            }
        }
    }

    proptest! {
        #[test]
        fn the_chosen_one_is_never_far_above_the_mean(loads in proptest::collection::vec(0usize..50, 1..8), key: u64) {
            let candidates: Vec<_> =
                loads.iter().enumerate().map(|(index, &in_flight)| Candidate { index, in_flight }).collect();
            let chosen = choose(&candidates, Affinity::new(key)).unwrap();
            let mean = loads.iter().sum::<usize>() as f64 / loads.len() as f64;
            prop_assert!(loads[chosen] as f64 <= mean * LOAD_FACTOR + 1.0);
        }
    }
}
