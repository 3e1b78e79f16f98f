//! In which order the blocks of a lane go when it has more than its share.
//!
//! Blocks are trees: each continues the one before it. Only leaves go, so that what is left of a chain can still be found, the
//! leaf that was stored first before others. A block that has lost the last of those that continued it goes next: whatever kept it
//! is older than all other leaves. So this is the order of least recent use, as far as events tell of use: a hit of all blocks
//! stores nothing, and is not seen.
//!
//! A worker may say that it has thrown out a block and still hold those behind it. Such a block stays in the tree until they
//! are gone, since it may come back; it counts as long.

use hashbrown::HashTable;

const NONE: u32 = u32::MAX;
/// In place of a neighbour: the worker has thrown the block out, and it has blocks behind it.
const REMOVED: u32 = u32::MAX - 1;

/// See the module's documentation. Every operation takes a time that does not depend on how many blocks there are.
#[derive(Debug)]
pub struct Ages {
    blocks: Vec<Block>,
    /// Where a name's block is.
    places: HashTable<u32>,
    /// The first of the places that are free, each of which has the next as its parent.
    free: u32,
    oldest: u32,
    youngest: u32,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    name: u64,
    parent: u32,
    children: u32,
    /// Blocks from the beginning of the prompt up to it.
    depth: u32,
    /// Neighbours among the leaves.
    older: u32,
    younger: u32,
}

impl Default for Ages {
    fn default() -> Self {
        Ages { blocks: Vec::new(), places: HashTable::new(), free: NONE, oldest: NONE, youngest: NONE }
    }
}

impl Ages {
    /// Blocks that are held, or that such a block continues.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    pub fn clear(&mut self) {
        *self = Ages::default();
    }

    /// These are held now, each continuing the one before it, and the first `parent`.
    pub fn store(&mut self, parent: Option<u64>, names: impl IntoIterator<Item = u64>) {
        let mut parent = parent.and_then(|name| self.find(name)).unwrap_or(NONE);
        for name in names {
            parent = match self.find(name) {
                Some(known) => {
                    self.held_again(known);
                    known
                }
                None => self.insert(name, parent),
            };
        }
    }

    /// How many blocks there are from the beginning of its prompt up to this one.
    pub fn depth(&self, name: u64) -> Option<usize> {
        self.find(name).map(|place| self.blocks[place as usize].depth as usize)
    }

    /// The block is used: it goes after all others.
    pub fn touch(&mut self, name: u64) {
        if let Some(place) = self.find(name) {
            self.held_again(place);
        }
    }

    /// The worker has thrown it out.
    pub fn remove(&mut self, name: u64) {
        let Some(place) = self.find(name) else { return };
        let block = &mut self.blocks[place as usize];
        match block.children {
            0 => self.remove_leaf(place),
            _ => block.older = REMOVED,
        }
    }

    /// The one that goes next.
    pub fn oldest(&self) -> Option<u64> {
        self.blocks.get(self.oldest as usize).map(|block| block.name)
    }

    /// Lets it go.
    pub fn pop_oldest(&mut self) -> Option<u64> {
        let name = self.oldest()?;
        self.remove_leaf(self.oldest);
        Some(name)
    }

    /// What the worker holds, in no order.
    #[cfg(test)]
    pub fn held(&self) -> impl Iterator<Item = u64> {
        let blocks = self.places.iter().map(|&place| self.blocks[place as usize]);
        blocks.filter(|block| block.older != REMOVED).map(|block| block.name)
    }

    fn find(&self, name: u64) -> Option<u32> {
        self.places.find(mixed(name), |&place| self.blocks[place as usize].name == name).copied()
    }

    fn insert(&mut self, name: u64, parent: u32) -> u32 {
        let depth = self.blocks.get(parent as usize).map_or(1, |before| before.depth.saturating_add(1));
        let block = Block { name, parent, children: 0, depth, older: NONE, younger: NONE };
        let place = match self.blocks.get_mut(self.free as usize) {
            Some(free) => {
                let place = self.free;
                self.free = std::mem::replace(free, block).parent;
                place
            }
            None => {
                self.blocks.push(block);
                // Far fewer than 2^32: the index has a bound.
                (self.blocks.len() - 1) as u32
            }
        };
        let blocks = &self.blocks;
        self.places.insert_unique(mixed(name), place, |&place| mixed(blocks[place as usize].name));
        if let Some(before) = self.blocks.get_mut(parent as usize) {
            before.children += 1;
            if before.children == 1 {
                self.unlink(parent);
            }
        }
        self.link_youngest(place);
        place
    }

    fn held_again(&mut self, place: u32) {
        let block = &mut self.blocks[place as usize];
        if block.children == 0 {
            self.unlink(place);
            self.link_youngest(place);
        } else {
            block.older = NONE;
        }
    }

    /// Its parent may become a leaf by that, which goes next; one that was only kept for it goes with it.
    fn remove_leaf(&mut self, place: u32) {
        self.unlink(place);
        let mut leaf = place;
        loop {
            let Block { name, parent, .. } = self.blocks[leaf as usize];
            if let Ok(entry) = self.places.find_entry(mixed(name), |&place| place == leaf) {
                entry.remove();
            }
            self.blocks[leaf as usize].parent = std::mem::replace(&mut self.free, leaf);
            let Some(before) = self.blocks.get_mut(parent as usize) else { return };
            before.children -= 1;
            if before.children > 0 {
                return;
            }
            if before.older != REMOVED {
                return self.link_oldest(parent);
            }
            leaf = parent;
        }
    }

    fn unlink(&mut self, place: u32) {
        let Block { older, younger, .. } = self.blocks[place as usize];
        match self.blocks.get_mut(older as usize) {
            Some(block) => block.younger = younger,
            None => self.oldest = younger,
        }
        match self.blocks.get_mut(younger as usize) {
            Some(block) => block.older = older,
            None => self.youngest = older,
        }
        let block = &mut self.blocks[place as usize];
        (block.older, block.younger) = (NONE, NONE);
    }

    fn link_youngest(&mut self, place: u32) {
        let older = std::mem::replace(&mut self.youngest, place);
        match self.blocks.get_mut(older as usize) {
            Some(block) => block.younger = place,
            None => self.oldest = place,
        }
        self.blocks[place as usize].older = older;
    }

    fn link_oldest(&mut self, place: u32) {
        let younger = std::mem::replace(&mut self.oldest, place);
        match self.blocks.get_mut(younger as usize) {
            Some(block) => block.older = place,
            None => self.youngest = place,
        }
        self.blocks[place as usize].younger = younger;
    }
}

/// Names are hashes as a rule, but those of a publisher's choice.
fn mixed(name: u64) -> u64 {
    let mixed = name.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn order(ages: &mut Ages) -> Vec<u64> {
        std::iter::from_fn(|| ages.pop_oldest()).collect()
    }

    #[test]
    fn the_oldest_chain_goes_from_its_end_and_what_others_continue_stays() {
        let mut ages = Ages::default();
        ages.store(None, [1, 2, 3]);
        ages.store(None, [4, 5]);
        ages.store(Some(2), [6, 7]);
        assert_eq!([3, 5, 7, 8].map(|name| ages.depth(name)), [Some(3), Some(2), Some(4), None]);
        assert_eq!(order(&mut ages), [3, 5, 4, 7, 6, 2, 1]);
        assert_eq!(ages.count(), 0);
    }

    #[test]
    fn what_is_used_again_goes_last() {
        let mut ages = Ages::default();
        ages.store(None, [1]);
        ages.store(None, [2]);
        ages.touch(1);
        ages.store(None, [2, 3]);
        assert_eq!(order(&mut ages), [1, 3, 2]);
    }

    #[test]
    fn a_block_that_is_gone_and_those_behind_it_are_not_is_kept_for_them() {
        let mut ages = Ages::default();
        ages.store(None, [1, 2, 3]);
        ages.remove(2);
        ages.remove(1);
        assert_eq!(ages.count(), 3);
        ages.store(None, [1]);
        assert_eq!(order(&mut ages), [3, 1], "2 goes with the one behind it, and 1 has come back");
        ages.store(None, [8, 9]);
        ages.remove(9);
        ages.remove(8);
        assert_eq!((ages.count(), ages.oldest()), (0, None));
    }

    /// The same, found anew at each step: who holds what, and which leaves stand in which order.
    #[derive(Default)]
    struct Model {
        parents: HashMap<u64, Option<u64>>,
        removed: Vec<u64>,
        leaves: Vec<u64>,
    }

    impl Model {
        fn has_children(&self, name: u64) -> bool {
            self.parents.values().any(|parent| *parent == Some(name))
        }

        fn store(&mut self, parent: Option<u64>, names: &[u64]) {
            let mut parent = parent.filter(|parent| self.parents.contains_key(parent));
            for &name in names {
                self.parents.entry(name).or_insert(parent);
                self.removed.retain(|removed| *removed != name);
                self.leaves.retain(|leaf| *leaf != name && Some(*leaf) != self.parents[&name]);
                if !self.has_children(name) {
                    self.leaves.push(name);
                }
                parent = Some(name);
            }
        }

        fn remove(&mut self, name: u64) {
            if !self.parents.contains_key(&name) {
                return;
            }
            if self.has_children(name) {
                self.removed.push(name);
                return;
            }
            self.leaves.retain(|leaf| *leaf != name);
            self.removed.retain(|removed| *removed != name);
            let Some(Some(parent)) = self.parents.remove(&name) else { return };
            if self.has_children(parent) {
                return;
            }
            match self.removed.contains(&parent) {
                true => self.remove(parent),
                false => self.leaves.insert(0, parent),
            }
        }
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_the_model(
            steps in proptest::collection::vec(
                (0u8..8, proptest::option::of(0u64..12), proptest::collection::vec(0u64..12, 0..4)), 0..60),
        ) {
            let (mut ages, mut model) = (Ages::default(), Model::default());
            for (kind, parent, names) in steps {
                match kind {
                    0..4 => {
                        ages.store(parent, names.iter().copied());
                        model.store(parent, &names);
                    }
                    4..6 => names.iter().for_each(|&name| {
                        ages.remove(name);
                        model.remove(name);
                    }),
                    _ => {
                        let oldest = model.leaves.first().copied();
                        oldest.inspect(|&name| model.remove(name));
                        prop_assert_eq!(ages.pop_oldest(), oldest);
                    }
                }
                prop_assert_eq!(ages.count(), model.parents.len());
                prop_assert_eq!(ages.oldest(), model.leaves.first().copied());
            }
            prop_assert_eq!(order(&mut ages), {
                let mut order = Vec::new();
                while let Some(&name) = model.leaves.first() {
                    model.remove(name);
                    order.push(name);
                }
                order
            });
        }
    }
}
