//! What workers are expected to hold, since this gateway has just sent it there.
//!
//! A worker says that it holds something only when it has computed it, which takes as long as the queue before it. Until
//! then the decision itself counts, so that a burst of requests with one cold image meets on one worker. Where a worker
//! says nothing at all, it is all that is known.
//!
//! A chain (the blocks of a prompt, or its texts and images) is kept by some of its links: all of the first few, then
//! every eighth. Each link's key stands for everything before it, so a chain is known as far as its links are found.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
    time::{Duration, Instant},
};

use crate::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

/// Links that are remembered; the oldest go first.
const MAX_LINKS: usize = 1 << 18;

/// Bytes of a link in the tables, with a worker or two that hold it.
const LINK_BYTES: u64 = 160;

/// What all of it takes at most, about.
pub const MAX_BYTES: u64 = MAX_LINKS as u64 * LINK_BYTES;

/// How long anything is expected at most.
pub const LONGEST: Duration = Duration::from_secs(600);

/// After the first, a link in so many is kept.
const STRIDE: usize = 8;

/// See the module's documentation.
#[derive(Debug)]
pub struct Expected {
    epoch: Instant,
    /// Milliseconds that have passed in simulations alone.
    ahead: AtomicU64,
    links: Mutex<Links>,
}

#[derive(Debug, Default)]
struct Links {
    /// By the link's key: who holds it.
    holders: HashMap<u64, Holders, BuildHasherDefault<AsItIs>>,
    /// In the order in which they are to be looked at again.
    queue: VecDeque<(u64, u64)>,
    /// What a worker got before this time, it holds no longer.
    since: HashMap<usize, u64>,
    /// The newest of these times.
    forgot: u64,
}

/// One as a rule, which needs no memory of its own.
#[derive(Debug)]
struct Holders {
    first: Holder,
    others: Vec<Holder>,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    worker: usize,
    /// Milliseconds since the epoch.
    born: u64,
    until: u64,
}

/// For keys that are hashes.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Default for Expected {
    fn default() -> Self {
        Expected { epoch: Instant::now(), ahead: AtomicU64::new(0), links: Mutex::default() }
    }
}

/// Which links of a chain of this length are kept.
pub fn kept(length: usize) -> impl Iterator<Item = usize> {
    let first = [0, 1, 3, 7].into_iter().filter(move |&link| link < length);
    let then = (2 * STRIDE - 1..length).step_by(STRIDE);
    let last = length.checked_sub(1).filter(|&last| last >= STRIDE && !(last + 1).is_multiple_of(STRIDE));
    first.chain(then).chain(last)
}

impl Expected {
    /// The worker is sent this chain.
    pub fn expect(&self, chain: &[u64], worker: usize, ttl: Duration) {
        let now = self.now();
        let until = now.saturating_add(ttl.min(LONGEST).as_millis() as u64);
        let mut links = self.links.lock();
        links.drop_old(now);
        for link in kept(chain.len()) {
            links.insert(chain[link], Holder { worker, born: now, until });
        }
    }

    /// Tells of each worker how many links of the chain it is expected to hold from the beginning, if any.
    pub fn find(&self, chain: &[u64], mut report: impl FnMut(usize, usize)) {
        let now = self.now();
        let links = self.links.lock();
        // By the worker.
        let mut depths: Vec<(usize, usize)> = Vec::new();
        let mut before = 0;
        for link in kept(chain.len()) {
            let holders = links.holders.get(&chain[link]).into_iter().flat_map(Holders::iter);
            let alive = holders.filter(|holder| links.is_alive(holder, now)).map(|holder| holder.worker);
            let mut any = false;
            if before == 0 {
                depths.extend(alive.map(|worker| (worker, link + 1)));
                depths.sort_unstable();
                any = !depths.is_empty();
            } else {
                for worker in alive {
                    // One that does not hold what is before does not hold the rest either.
                    if let Ok(at) = depths.binary_search_by_key(&worker, |&(worker, _)| worker)
                        && depths[at].1 == before
                    {
                        depths[at].1 = link + 1;
                        any = true;
                    }
                }
            }
            if !any {
                break;
            }
            before = link + 1;
        }
        drop(links);
        for (worker, depth) in depths {
            report(worker, depth);
        }
    }

    /// The worker has started over, or is gone.
    pub fn forget(&self, worker: usize) {
        let now = self.now();
        let mut links = self.links.lock();
        // What was sent that long ago is expected no longer in any case.
        links.since.retain(|_, since| now.saturating_sub(*since) <= LONGEST.as_millis() as u64);
        links.since.insert(worker, now);
        links.forgot = now;
    }

    /// For simulations, which are faster than time.
    pub fn let_time_pass(&self, time: Duration) {
        self.ahead.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64 + self.ahead.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.links.lock().holders.len()
    }
}

impl Links {
    fn is_alive(&self, holder: &Holder, now: u64) -> bool {
        holder.until > now && (holder.born > self.forgot || self.is_since(holder))
    }

    fn is_since(&self, holder: &Holder) -> bool {
        self.since.get(&holder.worker).is_none_or(|&since| holder.born > since)
    }

    fn insert(&mut self, key: u64, holder: Holder) {
        match self.holders.entry(key) {
            Entry::Occupied(mut entry) => {
                let Holders { first, others } = entry.get_mut();
                match std::iter::once(first).chain(&mut *others).find(|known| known.worker == holder.worker) {
                    Some(known) => *known = holder,
                    None => others.push(holder),
                }
            }
            Entry::Vacant(entry) => {
                entry.insert(Holders { first: holder, others: Vec::new() });
                self.queue.push_back((holder.until, key));
            }
        }
        while self.queue.len() > MAX_LINKS {
            if let Some((_, key)) = self.queue.pop_front() {
                self.holders.remove(&key);
            }
        }
    }

    /// Looks at links whose time has come: they go, or are looked at again later.
    fn drop_old(&mut self, now: u64) {
        // A few a call keep up with a few a call that are added.
        for _ in 0..4 * STRIDE {
            let Some(&(_, key)) = self.queue.front().filter(|(until, _)| *until <= now) else { return };
            self.queue.pop_front();
            let Entry::Occupied(mut entry) = self.holders.entry(key) else { continue };
            match entry.get_mut().drop_old(now) {
                Some(until) => self.queue.push_back((until, key)),
                None => drop(entry.remove()),
            }
        }
    }
}

impl Holders {
    fn iter(&self) -> impl Iterator<Item = &Holder> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Drops those whose time has come; the last time of those that are left.
    fn drop_old(&mut self, now: u64) -> Option<u64> {
        self.others.retain(|holder| holder.until > now);
        if self.first.until <= now {
            self.first = self.others.pop()?;
        }
        self.iter().map(|holder| holder.until).max()
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    const LONG: Duration = Duration::from_secs(100);

    fn found(expected: &Expected, chain: &[u64]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        expected.find(chain, |worker, depth| found.push((worker, depth)));
        found.sort_unstable();
        found
    }

    #[test]
    fn links_are_kept_dense_at_the_beginning_and_at_the_end() {
        assert_eq!(kept(0).count(), 0);
        assert_eq!(kept(3).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(kept(30).collect::<Vec<_>>(), [0, 1, 3, 7, 15, 23, 29]);
        assert_eq!(kept(24).collect::<Vec<_>>(), [0, 1, 3, 7, 15, 23]);
    }

    #[test]
    fn a_chain_is_found_as_far_as_it_was_sent() {
        let expected = Expected::default();
        let chain: Vec<u64> = (0..40).collect();
        let mut other = chain.clone();
        other[20..].iter_mut().for_each(|key| *key += 1000);
        expected.expect(&chain, 1, LONG);
        expected.expect(&chain[..10], 2, LONG);
        assert_eq!(found(&expected, &chain), [(1, 40), (2, 8)]);
        assert_eq!(found(&expected, &other), [(1, 16), (2, 8)]);
        assert_eq!(found(&expected, &other[20..]), []);
    }

    #[test]
    fn what_a_worker_was_sent_expires_or_is_forgotten() {
        let expected = Expected::default();
        expected.expect(&[1, 2], 1, LONG);
        expected.expect(&[1, 2], 2, Duration::ZERO);
        assert_eq!(found(&expected, &[1, 2]), [(1, 2)]);
        expected.forget(1);
        assert_eq!(found(&expected, &[1, 2]), []);
        expected.let_time_pass(2 * LONGEST);
        expected.forget(usize::MAX);
        assert_eq!(expected.links.lock().since.len(), 1, "workers come and go");
        sleep(Duration::from_millis(2));
        expected.expect(&[1, 2], 1, LONG);
        assert_eq!(found(&expected, &[1, 2]), [(1, 2)]);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_go() {
        let expected = Expected::default();
        for key in 0..MAX_LINKS as u64 + 100 {
            expected.expect(&[key], 0, LONG);
        }
        assert_eq!(expected.len(), MAX_LINKS);
        assert_eq!(found(&expected, &[0]), []);
        assert_eq!(found(&expected, &[500]), [(0, 1)]);
        let expected = Expected::default();
        for key in 0..1000 {
            expected.expect(&[key], 0, Duration::ZERO);
        }
        assert!(expected.len() <= 1, "what has expired goes by itself: {}", expected.len());
    }
}
