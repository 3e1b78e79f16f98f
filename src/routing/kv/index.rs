//! Which worker holds how much of a prompt.
//!
//! The index is kv-index's [`ChainIndex`]: chains of blocks with, for each stretch, the set of those who hold it. A lookup
//! walks the prompt's own chain and nothing else, without a lock, so its cost does not depend on how many blocks there
//! are. Its keys are hashes of our own making ([`super::blocks`]); the worker's names for blocks only tie its
//! events together.
//!
//! Each stream of events (a worker, or one of its data-parallel ranks) is a [`Lane`]. It holds what the worker said and did not
//! take back, and goes with the worker. Memory is bounded by a number of blocks for all lanes together, of which each
//! lane may have its part: beyond it, its oldest go ([`super::ages`]), and the view is known to be partial.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
};

use kv_index::ChainIndex;

use super::{
    blocks::{BlockHasher, CacheScope},
    lane::Lane,
    names::ImageNames,
    sent::{self, SentPrompt, SentPrompts},
};
use crate::routing::prompt::MediaSpan;

/// Streams of events at once. Each costs a bit in every stretch of blocks.
pub const MAX_LANES: usize = 512;

/// Bytes for a block that one worker holds: its two hashes, the worker's name for it, its age, and the tables' slack.
pub const BLOCK_BYTES: u64 = 120;

/// Tokens a block while no worker has told: vLLM's default.
const UNKNOWN_BLOCK_SIZE: usize = 16;

/// What is known of a worker's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum View {
    /// Nothing: it publishes no events, or they do not reach us.
    None = 0,
    /// All that is in it is true, but the worker may hold more.
    Partial = 1,
    /// Every event since the worker started has been seen.
    Complete = 2,
}

/// See the module's documentation.
pub struct KvIndex {
    pub(super) chain: ChainIndex,
    lanes: RwLock<Lanes>,
    max_blocks: usize,
    pub(super) held_blocks: AtomicUsize,
    /// What workers call images that pass by URL.
    pub names: ImageNames,
}

#[derive(Default)]
pub(super) struct Lanes {
    /// By the id that the chain index gave.
    pub(super) by_id: Vec<Option<(usize, Arc<LaneState>)>>,
    pub(super) count: usize,
    pub(super) loras: HashSet<String>,
    /// Tokens a block, as the lanes have told: each once.
    pub(super) block_sizes: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct LaneState {
    pub view: AtomicU8,
    /// Tokens a block; 0 until an event has told.
    pub block_size: AtomicUsize,
    pub blocks: AtomicUsize,
    pub sent: SentPrompts,
}

/// A prompt in blocks of the size that workers use, or one of them, if they differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlaps {
    pub block_size: usize,
    pub hashes: Vec<u64>,
}

/// There are [`MAX_LANES`] already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_LANES} streams of KV events")]
pub struct TooManyLanes;

impl KvIndex {
    /// For at most so many blocks, one that two workers hold counted twice.
    pub fn new(max_blocks: usize) -> Self {
        KvIndex {
            chain: ChainIndex::with_max_workers(MAX_LANES),
            lanes: RwLock::default(),
            max_blocks,
            held_blocks: AtomicUsize::new(0),
            names: ImageNames::default(),
        }
    }

    /// A new stream of a worker's events; `name` is like no other's.
    pub fn lane(self: &Arc<Self>, worker: usize, name: &str) -> Result<Lane, TooManyLanes> {
        let id = self.chain.intern_worker(name).map_err(|_| TooManyLanes)?;
        let state = Arc::new(LaneState {
            view: AtomicU8::new(View::None as u8),
            block_size: AtomicUsize::new(0),
            blocks: AtomicUsize::new(0),
            sent: SentPrompts::default(),
        });
        let mut lanes = self.write();
        let slot = id as usize;
        if lanes.by_id.len() <= slot {
            lanes.by_id.resize(slot + 1, None);
        }
        lanes.by_id[slot] = Some((worker, state.clone()));
        lanes.count += 1;
        drop(lanes);
        Ok(Lane::new(self.clone(), id, state))
    }

    /// The worker is sent a prompt: to be held against its events.
    pub fn send(&self, worker: usize, prompt: &Arc<SentPrompt>) {
        let lanes = self.read();
        let max_tokens = sent::MAX_TOKENS / lanes.count.max(1);
        for (_, state) in lanes.by_id.iter().flatten().filter(|(of, _)| *of == worker) {
            state.sent.send(prompt, max_tokens);
        }
    }

    /// Tells how many tokens of the beginning of a prompt of these tokens and images each worker holds, if any; a worker with
    /// several ranks more than once.
    pub fn overlaps(
        &self,
        ids: &[u32],
        media: &[MediaSpan],
        salt: Option<&str>,
        model: Option<&str>,
        mut report: impl FnMut(usize, usize),
    ) -> Overlaps {
        let lanes = self.read();
        let lora = model.filter(|model| lanes.loras.contains(*model));
        let mut hasher = BlockHasher::default();
        let mut of = |size| hasher.of_prompt(CacheScope { lora, salt }, ids, media, size);
        let mut first = None;
        for &size in &lanes.block_sizes {
            let hashes = of(size);
            self.held(&hashes, |lane, blocks| {
                if let Some(Some((worker, _))) = lanes.by_id.get(lane) {
                    report(*worker, blocks * size);
                }
            });
            first.get_or_insert(Overlaps { block_size: size, hashes });
        }
        first.unwrap_or_else(|| Overlaps { block_size: UNKNOWN_BLOCK_SIZE, hashes: of(UNKNOWN_BLOCK_SIZE) })
    }

    /// The hashes of the blocks of such a prompt.
    pub fn hashes(
        &self,
        ids: &[u32],
        media: &[MediaSpan],
        salt: Option<&str>,
        model: Option<&str>,
        block_size: usize,
    ) -> Vec<u64> {
        let lora = model.filter(|model| self.is_lora(model));
        BlockHasher::default().of_prompt(CacheScope { lora, salt }, ids, media, block_size)
    }

    /// How many blocks of this chain each lane holds from its beginning.
    pub fn held(&self, hashes: &[u64], mut report: impl FnMut(usize, usize)) {
        self.chain.score_into(hashes, |hash| *hash, false, |lane, blocks| report(lane as usize, blocks as usize));
    }

    /// The least that is known of any of a worker's caches.
    pub fn view(&self, worker: usize) -> View {
        let lanes = self.read();
        let views = lanes.by_id.iter().flatten().filter(|(of, _)| *of == worker).map(|(_, state)| state.view());
        views.min().unwrap_or(View::None)
    }

    /// What is known of each worker that has a lane: by its index, in no order.
    pub fn views(&self, mut report: impl FnMut(usize, View)) {
        for (worker, state) in self.read().by_id.iter().flatten() {
            report(*worker, state.view());
        }
    }

    /// Blocks of a worker that are known.
    pub fn blocks(&self, worker: usize) -> usize {
        let lanes = self.read();
        let of_worker = lanes.by_id.iter().flatten().filter(|(of, _)| *of == worker);
        of_worker.map(|(_, state)| state.blocks.load(Ordering::Relaxed)).sum()
    }

    /// The name is a LoRA's: a request for that model is one with it.
    pub fn is_lora(&self, model: &str) -> bool {
        self.read().loras.contains(model)
    }

    /// Bytes that the chains take, without the lanes' own tables.
    pub fn bytes(&self) -> usize {
        let stats = self.chain.stats();
        stats.arena_bytes + stats.header_bytes
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Lanes> {
        // A list that is whole between any two statements.
        self.lanes.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Lanes> {
        self.lanes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks that may yet be taken in.
    pub(super) fn room(&self) -> usize {
        self.max_blocks.saturating_sub(self.held_blocks.load(Ordering::Relaxed))
    }

    /// Blocks that one lane may hold.
    pub(super) fn share(&self) -> usize {
        self.max_blocks / self.read().count.max(1)
    }
}

impl Lanes {
    /// A lane has told how many tokens a block has, or is gone.
    pub fn note_block_sizes(&mut self) {
        let told = self.by_id.iter().flatten().map(|(_, state)| state.block_size.load(Ordering::Relaxed));
        let mut sizes: Vec<usize> = told.filter(|&size| size != 0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        self.block_sizes = sizes;
    }
}

impl LaneState {
    pub fn view(&self) -> View {
        match self.view.load(Ordering::Relaxed) {
            2 => View::Complete,
            1 => View::Partial,
            _ => View::None,
        }
    }
}

impl fmt::Debug for KvIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvIndex").field("blocks", &self.held_blocks).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::routing::{
        kv::events::{BlockExtra, KvEvent, Removed, Stored},
        prompt::{MediaSpan, MmHash, PromptTokens},
    };

    const SIZE: usize = 4;

    fn index(max_blocks: usize) -> Arc<KvIndex> {
        Arc::new(KvIndex::new(max_blocks))
    }

    /// Blocks of tokens that begin with these numbers; their names are those of a chain.
    fn stored(parent: Option<u64>, names: &[u64]) -> Stored {
        Stored {
            hashes: names.to_vec(),
            parent,
            token_ids: names.iter().flat_map(|&name| [name as u32, 1, 2, 3]).collect(),
            block_size: SIZE,
            ..Stored::default()
        }
    }

    fn prompt(names: &[u64]) -> PromptTokens {
        PromptTokens { ids: stored(None, names).token_ids, media: Vec::new() }
    }

    fn overlaps(index: &KvIndex, prompt: &PromptTokens) -> Vec<(usize, usize)> {
        scoped(index, prompt, None, None)
    }

    fn scoped(index: &KvIndex, prompt: &PromptTokens, salt: Option<&str>, model: Option<&str>) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        index.overlaps(&prompt.ids, &prompt.media, salt, model, |worker, tokens| found.push((worker, tokens)));
        found.sort_unstable();
        found
    }

    #[test]
    fn each_worker_is_known_by_the_beginning_that_it_holds() {
        let index = index(100);
        let (mut a, mut b) = (index.lane(0, "0/0").unwrap(), index.lane(7, "7/0").unwrap());
        a.apply(KvEvent::Stored(stored(None, &[1, 2, 3])));
        // Other names for the same blocks.
        let mut other = stored(None, &[1, 2]);
        other.hashes = vec![101, 102];
        b.apply(KvEvent::Stored(other));
        assert_eq!(overlaps(&index, &prompt(&[1, 2, 3, 4])), [(0, 12), (7, 8)]);
        a.apply(KvEvent::Removed(Removed { hashes: vec![2], ..Removed::default() }));
        assert_eq!(overlaps(&index, &prompt(&[1, 2, 3])), [(0, 4), (7, 8)]);
        b.apply(KvEvent::Stored(stored(Some(102), &[3])));
        assert_eq!(overlaps(&index, &prompt(&[1, 2, 3])), [(0, 4), (7, 12)]);
        b.apply(KvEvent::Cleared);
        drop(a);
        assert_eq!(overlaps(&index, &prompt(&[1, 2, 3])), []);
        assert_eq!(index.held_blocks.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn equal_tokens_of_different_images_and_scopes_are_different_blocks() {
        let index = index(100);
        let mut lane = index.lane(0, "0").unwrap();
        let image = MmHash::of_identifier("a");
        let mut event = stored(None, &[1, 2]);
        event.extra = vec![
            BlockExtra { media: vec![(image, 1)], texts: vec!["tuned".into(), "salt".into()], ..BlockExtra::default() },
            BlockExtra { media: vec![(image, -3)], texts: vec!["tuned".into()], ..BlockExtra::default() },
        ];
        event.lora_name = Some("tuned".into());
        lane.apply(KvEvent::Stored(event));
        let with = |name| {
            let media = vec![MediaSpan { hash: MmHash::of_identifier(name), offset: 1, length: 7 }];
            PromptTokens { media, ..prompt(&[1, 2]) }
        };
        assert_eq!(scoped(&index, &with("a"), Some("salt"), Some("tuned")), [(0, 8)]);
        assert_eq!(scoped(&index, &with("b"), Some("salt"), Some("tuned")), []);
        assert_eq!(scoped(&index, &prompt(&[1, 2]), Some("salt"), Some("tuned")), []);
        assert_eq!(scoped(&index, &with("a"), None, Some("tuned")), []);
        assert_eq!(scoped(&index, &with("a"), Some("salt"), Some("another model")), []);
    }

    #[test]
    fn only_the_attention_that_holds_a_prompt_from_its_beginning_counts() {
        let index = index(100);
        let mut lane = index.lane(0, "0").unwrap();
        let event = |group, kind: &str, medium: Option<&str>| {
            let mut event = stored(None, &[1]);
            (event.group, event.kind, event.medium) = (Some(group), Some(kind.into()), medium.map(str::to_owned));
            KvEvent::Stored(event)
        };
        lane.apply(event(0, "sliding_window", Some("GPU")));
        lane.apply(event(1, "full_attention", Some("CPU")));
        assert_eq!(overlaps(&index, &prompt(&[1])), []);
        lane.apply(event(1, "full_attention", Some("GPU")));
        lane.apply(KvEvent::Removed(Removed { hashes: vec![1], medium: None, group: Some(0) }));
        assert_eq!(overlaps(&index, &prompt(&[1])), [(0, 4)]);
        lane.apply(KvEvent::Removed(Removed { hashes: vec![1], medium: None, group: Some(1) }));
        assert_eq!(overlaps(&index, &prompt(&[1])), []);
    }

    #[test]
    fn a_view_that_misses_something_is_partial() {
        let index = index(4);
        let mut lane = index.lane(0, "0").unwrap();
        for (event, complete) in [
            (stored(None, &[1, 2]), true),
            (stored(Some(99), &[5]), false),
            (Stored { token_ids: vec![1], ..stored(Some(2), &[3]) }, false),
        ] {
            lane.set_view(View::Complete);
            lane.apply(KvEvent::Stored(event));
            assert_eq!((index.view(0) == View::Complete, lane.blocks()), (complete, 2));
            assert_eq!(lane.take_ignored(), usize::from(!complete));
        }
        lane.apply(KvEvent::Cleared);
        assert_eq!(index.view(0), View::Complete, "of an empty cache everything is known");
    }

    #[test]
    fn at_its_share_a_lane_gives_up_its_oldest_blocks_for_new_ones() {
        let index = index(6);
        let mut lane = index.lane(0, "0").unwrap();
        lane.set_view(View::Complete);
        lane.apply(KvEvent::Stored(stored(None, &[1, 2, 3])));
        lane.apply(KvEvent::Stored(stored(None, &[4, 5, 6])));
        assert_eq!((index.view(0), lane.take_aged()), (View::Complete, 0));
        lane.apply(KvEvent::Stored(stored(Some(2), &[7, 8])));
        assert_eq!((lane.blocks(), index.view(0), lane.take_aged()), (6, View::Partial, 2));
        assert_eq!(overlaps(&index, &prompt(&[1, 2, 7, 8])), [(0, 16)]);
        assert_eq!(overlaps(&index, &prompt(&[1, 2, 3])), [(0, 8)]);
        assert_eq!(overlaps(&index, &prompt(&[4, 5, 6])), [(0, 8)]);
        // A prompt that is longer than the share is known by its beginning, and what it continues does not go for it.
        lane.apply(KvEvent::Stored(stored(Some(8), &[10, 11, 12, 13])));
        assert_eq!(overlaps(&index, &prompt(&[1, 2, 7, 8, 10, 11, 12])), [(0, 24)]);
        assert_eq!((lane.blocks(), lane.take_ignored()), (6, 1));
    }

    #[test]
    fn a_lane_makes_room_for_those_that_come() {
        let index = index(6);
        let mut first = index.lane(0, "0").unwrap();
        first.apply(KvEvent::Stored(stored(None, &[1, 2, 3, 4, 5, 6])));
        let mut second = index.lane(1, "1").unwrap();
        second.apply(KvEvent::Stored(stored(None, &[1, 2, 3])));
        assert_eq!((second.blocks(), second.take_ignored()), (0, 1));
        first.shrink();
        assert_eq!(overlaps(&index, &prompt(&[1, 2, 3, 4])), [(0, 12)]);
        second.apply(KvEvent::Stored(stored(None, &[1, 2, 3])));
        assert_eq!((first.blocks(), second.blocks()), (3, 3));
    }

    #[test]
    fn names_that_are_in_use_are_not_given_beyond_the_limit() {
        let index = index(4);
        let lanes: Vec<_> = (0..MAX_LANES).map(|lane| index.lane(lane, &lane.to_string()).unwrap()).collect();
        assert!(matches!(index.lane(0, "one more"), Err(TooManyLanes)));
        drop(lanes);
        assert!(index.lane(0, "one more").is_ok());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Store(usize, Option<u64>, Vec<u64>),
        Remove(usize, Vec<u64>),
        Clear(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let names = || proptest::collection::vec(0u64..6, 0..4);
        prop_oneof![
            6 => (0usize..2, proptest::option::of(0u64..6), names()).prop_map(|(l, p, n)| Step::Store(l, p, n)),
            3 => (0usize..2, names()).prop_map(|(l, n)| Step::Remove(l, n)),
            1 => (0usize..2).prop_map(Step::Clear),
        ]
    }

    proptest! {
        /// Names that repeat, parents that lie, blocks that follow themselves: whatever a worker says.
        #[test]
        fn nonsense_is_survived_and_bounded(steps in proptest::collection::vec(step(), 0..60)) {
            let index = index(20);
            let mut lanes = [index.lane(0, "0").unwrap(), index.lane(1, "1").unwrap()];
            for step in steps {
                match step {
                    Step::Store(lane, parent, names) => lanes[lane].apply(KvEvent::Stored(stored(parent, &names))),
                    Step::Remove(lane, hashes) => {
                        lanes[lane].apply(KvEvent::Removed(Removed { hashes, ..Removed::default() }));
                    }
                    Step::Clear(lane) => lanes[lane].apply(KvEvent::Cleared),
                }
                prop_assert!(index.held_blocks.load(Ordering::Relaxed) <= 20);
                prop_assert!(lanes.iter().all(|lane| lane.all_can_age()));
            }
            overlaps(&index, &prompt(&[1, 2, 3]));
            drop(lanes);
            prop_assert_eq!(index.held_blocks.load(Ordering::Relaxed), 0);
            prop_assert_eq!(overlaps(&index, &prompt(&[1, 2, 3])), []);
        }
    }
}
