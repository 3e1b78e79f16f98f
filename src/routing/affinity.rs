//! Rendezvous hashing with bounded load.
//!
//! Every worker has a score for a key; the highest wins. A worker that joins or leaves moves only the keys that are its
//! own, and gateways that know the same workers by the same addresses agree without a word. A worker is passed over while it
//! has more than [`LOAD_FACTOR`] times the mean load plus one request (Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing
//! with Bounded Loads, 2016), so that one popular picture does not drown it.

/// How far above the mean a worker may be loaded and still get what has affinity to it.
const LOAD_FACTOR: f64 = 1.25;

/// What requests that should meet again have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity(u64);

impl Affinity {
    /// Of a well mixed 64-bit value, such as the beginning of a media id.
    pub const fn new(mixed: u64) -> Self {
        Affinity(mixed)
    }

    /// Of any bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Affinity(twox_hash::XxHash3_64::oneshot(bytes))
    }

    /// How much a worker of this name wants it: a mix of both (the finaliser of SplitMix64).
    pub fn score(self, name: u64) -> u64 {
        let mut x = self.0 ^ name.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// The worker for what has this affinity, of workers with a name and a load each: its place in the list, and whether it is
/// the one that would have it if nobody were busy. `one` is what the request itself adds to a load.
pub fn choose(
    workers: impl Iterator<Item = (u64, f64)> + Clone,
    affinity: Affinity,
    one: f64,
) -> Option<(usize, bool)> {
    let (count, total) = workers.clone().fold((0_usize, 0.0), |(count, total), (_, load)| (count + 1, total + load));
    let bound = total / count.max(1) as f64 * LOAD_FACTOR + one;
    let scored = workers.enumerate().map(|(place, (name, load))| (affinity.score(name), place, load));
    let (owner, _) = scored.clone().map(|(score, place, _)| (place, score)).max_by_key(|&(_, score)| score)?;
    // The least loaded is never above the bound, so there is always one left.
    let (_, place, _) = scored.filter(|&(_, _, load)| load <= bound).max_by_key(|&(score, ..)| score)?;
    Some((place, place == owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chosen(workers: &[(u64, f64)], affinity: Affinity) -> Option<usize> {
        choose(workers.iter().copied(), affinity, 1.0).map(|(place, _)| place)
    }

    fn idle(names: impl IntoIterator<Item = u64>) -> Vec<(u64, f64)> {
        names.into_iter().map(|name| (name, 0.0)).collect()
    }

    #[test]
    fn nobody_is_chosen_from_nobody() {
        assert_eq!(chosen(&[], Affinity::new(1)), None);
    }

    #[test]
    fn keys_spread_evenly_over_idle_workers() {
        let workers = idle(1..5);
        let mut counts = [0; 4];
        for key in 0..4000_u64 {
            counts[chosen(&workers, Affinity::of_bytes(&key.to_le_bytes())).unwrap()] += 1;
        }
        assert!(counts.iter().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }

    #[test]
    fn a_worker_that_leaves_moves_only_its_own_keys() {
        let left = [0, 1, 3, 4];
        for key in 0..1000_u64 {
            let affinity = Affinity::of_bytes(&key.to_le_bytes());
            let before = chosen(&idle(0..5), affinity).unwrap() as u64;
            if before != 2 {
                assert_eq!(chosen(&idle(left), affinity).map(|place| left[place]), Some(before));
            }
        }
    }

    proptest! {
        #[test]
        fn the_chosen_one_is_never_far_above_the_mean(loads in proptest::collection::vec(0u32..50, 1..8), key: u64) {
            let workers: Vec<_> = loads.iter().zip(0..).map(|(&load, name)| (name, f64::from(load))).collect();
            let place = chosen(&workers, Affinity::new(key)).unwrap();
            let mean = f64::from(loads.iter().sum::<u32>()) / loads.len() as f64;
            prop_assert!(f64::from(loads[place]) <= mean * LOAD_FACTOR + 1.0);
        }
    }
}
