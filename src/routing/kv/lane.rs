//! One stream of a worker's events, by which the index learns.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use kv_index::{ChainBlockMap, ContentHash, SequenceHash, StoredBlock};

use super::{
    ages::Ages,
    blocks::{BlockHasher, CacheScope},
    events::{BlockExtra, KvEvent, Removed, Stored},
    index::{KvIndex, LaneState, View},
};

/// LoRA names that are remembered, to know which model names are such.
const MAX_LORAS: usize = 1024;

/// Blocks that one event makes room for beyond its own, where a lane has more than its share since others have come.
const SHRINK: usize = 1024;

/// One stream of events, by which the index learns. Dropped, it takes along what it taught.
pub struct Lane {
    index: Arc<KvIndex>,
    id: u32,
    state: Arc<LaneState>,
    map: ChainBlockMap,
    ages: Ages,
    /// Of a hybrid model's caches, the one whose hits count: full attention, which holds a prompt from its beginning.
    group: Option<Option<u64>>,
    hasher: BlockHasher,
    ignored: usize,
    aged: usize,
}

impl Lane {
    pub(super) fn new(index: Arc<KvIndex>, id: u32, state: Arc<LaneState>) -> Self {
        let (map, hasher) = (ChainBlockMap::default(), BlockHasher::default());
        Lane { index, id, state, map, ages: Ages::default(), group: None, hasher, ignored: 0, aged: 0 }
    }

    /// Takes in what a worker published.
    pub fn apply(&mut self, event: KvEvent) {
        match event {
            KvEvent::Stored(stored) => self.stored(&stored),
            KvEvent::Removed(removed) => self.removed(&removed),
            KvEvent::Cleared => {
                self.clear();
                // Nothing is held, which is all that there is to know.
                if self.view() == View::Partial {
                    self.set_view(View::Complete);
                }
            }
        }
    }

    /// Lets go of what is beyond the lane's share, some of it at a time. Events do the same; this is for a worker that has
    /// none to tell while others come.
    pub fn shrink(&mut self) {
        self.make_room(0, None);
    }

    /// Forgets all blocks.
    pub fn clear(&mut self) {
        self.index.chain.apply_cleared(self.id, &mut self.map);
        self.ages.clear();
        self.count();
    }

    /// Says how much of the worker's cache is known by this stream.
    pub fn set_view(&mut self, view: View) {
        self.state.view.store(view as u8, Ordering::Relaxed);
    }

    /// How much of the worker's cache is known by this stream.
    pub fn view(&self) -> View {
        self.state.view()
    }

    /// Blocks that are known by this stream.
    pub fn blocks(&self) -> usize {
        self.state.blocks.load(Ordering::Relaxed)
    }

    /// Events that could not be taken in since this was last asked for.
    pub fn take_ignored(&mut self) -> usize {
        std::mem::take(&mut self.ignored)
    }

    /// Blocks that were let go since this was last asked for, though the worker may still hold them.
    pub fn take_aged(&mut self) -> usize {
        std::mem::take(&mut self.aged)
    }

    fn stored(&mut self, stored: &Stored) {
        // Other tiers hold copies for a connector to load; whether it does is its own matter.
        let here = stored.medium.as_deref().is_none_or(|medium| medium == "GPU");
        let main = match (&stored.kind, self.group) {
            (Some(kind), _) => ["full_attention", "mla_attention", "sink_full_attention"].contains(&kind.as_str()),
            (None, Some(group)) => group == stored.group,
            (None, None) => stored.group.unwrap_or(0) == 0,
        };
        if !here || !main || stored.hashes.is_empty() {
            return;
        }
        let size = stored.block_size;
        if size == 0 || stored.hashes.len().checked_mul(size) != Some(stored.token_ids.len()) {
            return self.ignore();
        }
        match self.state.block_size.load(Ordering::Relaxed) {
            known if known == size => {}
            // A part of a block, which is named again when it is full.
            known if known > size => return,
            _ => {
                self.clear();
                self.state.block_size.store(size, Ordering::Relaxed);
                self.index.write().note_block_sizes();
            }
        }
        self.group = Some(stored.group);
        // The beginning of what is longer than the share is worth more than nothing.
        let room = self.make_room(stored.hashes.len(), stored.parent);
        if stored.hashes.len() > room {
            self.ignore();
        }
        if let Some(lora) = &stored.lora_name {
            self.learn_lora(lora);
        }
        let none = BlockExtra::default();
        let named = stored.hashes.iter().zip(stored.token_ids.chunks_exact(size)).take(room);
        let mut blocks = Vec::with_capacity(named.len());
        for (index, (&hash, tokens)) in named.enumerate() {
            let extra = stored.extra.get(index).unwrap_or(&none);
            let lora = stored.lora_name.as_deref();
            let first = index == 0 && stored.parent.is_none();
            let scope = first.then(|| CacheScope { lora, salt: stored.salt() });
            let content = self.hasher.of_event(scope, tokens, extra);
            blocks.push(StoredBlock { seq_hash: SequenceHash(hash), content_hash: ContentHash(content) });
        }
        let before = stored.parent.map_or(Some(0), |parent| self.ages.depth(parent));
        let parent = stored.parent.map(SequenceHash);
        match self.index.chain.apply_stored(self.id, &blocks, parent, &mut self.map) {
            Ok(()) => {
                self.ages.store(stored.parent, blocks.iter().map(|block| block.seq_hash.0));
                self.count();
                if let Some(before) = before {
                    self.state.sent.computed(before * size, stored, &self.index.names);
                }
            }
            // What stood before was never heard of.
            Err(_) => self.ignore(),
        }
    }

    fn removed(&mut self, removed: &Removed) {
        let here = removed.medium.as_deref().is_none_or(|medium| medium == "GPU");
        if !here || self.group.is_none_or(|group| group != removed.group) {
            return;
        }
        let hashes: Vec<_> = removed.hashes.iter().copied().map(SequenceHash).collect();
        self.index.chain.apply_removed(self.id, &hashes, &mut self.map);
        removed.hashes.iter().for_each(|&name| self.ages.remove(name));
        self.count();
    }

    /// Room for so many more blocks, if that can be had: the oldest go for it, but not what they continue.
    fn make_room(&mut self, blocks: usize, parent: Option<u64>) -> usize {
        let share = self.index.share();
        let beyond_share = (self.blocks() + blocks).saturating_sub(share);
        let beyond_all = blocks.saturating_sub(self.index.room());
        let too_many = beyond_share.max(beyond_all).min(blocks + SHRINK);
        if too_many > 0 {
            let mut old = Vec::new();
            let kept = self.blocks().saturating_sub(too_many);
            while self.ages.count() > kept {
                if let Some(name) = parent.filter(|_| self.ages.oldest() == parent) {
                    self.ages.touch(name);
                    if self.ages.oldest() == parent {
                        break;
                    }
                }
                match self.ages.pop_oldest() {
                    Some(name) => old.push(SequenceHash(name)),
                    None => break,
                }
            }
            self.aged += old.len();
            self.index.chain.apply_removed(self.id, &old, &mut self.map);
            self.count();
            if self.view() == View::Complete {
                self.set_view(View::Partial);
            }
        }
        share.saturating_sub(self.blocks()).min(self.index.room())
    }

    /// Something was not taken in: from now on there may be more than is known.
    fn ignore(&mut self) {
        self.ignored += 1;
        if self.view() == View::Complete {
            self.set_view(View::Partial);
        }
    }

    /// Whether all that is held can age. (Of a block that is said to follow itself the chain index may keep nothing.)
    #[cfg(test)]
    pub(super) fn all_can_age(&self) -> bool {
        self.ages.held().filter(|&name| self.map.contains_key(SequenceHash(name))).count() == self.map.len()
    }

    fn learn_lora(&self, name: &str) {
        if self.index.is_lora(name) {
            return;
        }
        let mut lanes = self.index.write();
        if lanes.loras.len() < MAX_LORAS {
            lanes.loras.insert(name.to_owned());
        }
    }

    fn count(&self) {
        let now = self.ages.count();
        let before = self.state.blocks.swap(now, Ordering::Relaxed);
        // Each lane adds and takes away what is its own.
        self.index.held_blocks.fetch_add(now, Ordering::Relaxed);
        self.index.held_blocks.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // First, so that no decision meets a worker that is gone, or the next that gets its id.
        let mut lanes = self.index.write();
        if let Some(slot) = lanes.by_id.get_mut(self.id as usize) {
            *slot = None;
            lanes.count -= 1;
            lanes.note_block_sizes();
        }
        drop(lanes);
        self.index.chain.remove_worker(self.id, std::mem::take(&mut self.map));
        self.ages.clear();
        self.count();
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("id", &self.id).field("state", &self.state).finish_non_exhaustive()
    }
}
