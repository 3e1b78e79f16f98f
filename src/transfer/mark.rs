//! Marks: how a worker learns that all pixels of a push are there.
//!
//! A mark is 32 bytes that are written behind the pixels, when these have arrived, by a WRITE of their own. The worker knows from the
//! reference where it will stand and what it will be, and looks there: a write of one cache line, one-sided as that of the pixels.
//! NIXL's own notifications are active messages, which the worker's NIXL must take in; between processes of one machine they go over
//! TCP, and the next transfer waits until they were answered.
//!
//! It is a MAC: pixels are chosen by strangers, and must not be taken for the mark of a push that is to come. One that is torn,
//! late or of an earlier push is not the one that is looked for, and changes nothing.

use std::sync::Arc;

use super::mac::Key;
use crate::memory::{Arena, ArenaError, SlotMut};

pub const MARK_BYTES: usize = 32;

/// A mark stands in one cache line.
const ALIGNMENT_BYTES: u64 = 64;

/// See the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub bytes: [u8; MARK_BYTES],
    /// Where it stands, from the start of the slot.
    pub offset: u64,
}

impl Mark {
    /// Of the push with this generation of a grant, of `length` bytes into the slot at `offset` of the grant.
    pub fn new(key: &Key, grant: u64, generation: u64, offset: u64, length: u64) -> Self {
        let text = format!("{grant}/{generation}/{offset}/{length}");
        Mark { bytes: key.tag("mediagate landed v1", &[text.as_bytes()]), offset: behind(length) }
    }

    /// Bytes of a slot that takes `length` bytes of pixels and their mark.
    pub fn slot_bytes(length: u64) -> u64 {
        behind(length).saturating_add(MARK_BYTES as u64)
    }
}

fn behind(length: u64) -> u64 {
    length.checked_next_multiple_of(ALIGNMENT_BYTES).unwrap_or(u64::MAX)
}

/// Registered memory from which marks are written: each stays where it is until its transfer has ended.
#[derive(Debug)]
pub(super) struct Marks {
    memory: Arc<Arena>,
    cells: SlotMut,
    free: Vec<u16>,
}

/// A mark in [`Marks`], to be given back.
#[derive(Debug)]
pub(super) struct Cell(u16);

const CELL_BYTES: usize = 64;

impl Marks {
    /// How many there may be at a time. They are written in microseconds, after their pixels have arrived.
    const CELLS: u16 = 4096;

    pub(super) fn new() -> Result<Self, ArenaError> {
        let bytes = usize::from(Self::CELLS) * CELL_BYTES;
        let memory = Arena::new(bytes)?;
        let cells = memory.allocate(bytes).expect("it has as many bytes, and nobody else knows it");
        Ok(Marks { memory, cells, free: (0..Self::CELLS).rev().collect() })
    }

    /// What must be registered.
    pub(super) fn memory(&self) -> &Arc<Arena> {
        &self.memory
    }

    /// `None` when all are in use.
    pub(super) fn put(&mut self, mark: &Mark) -> Option<Cell> {
        let cell = Cell(self.free.pop()?);
        self.cells[cell.start()..][..MARK_BYTES].copy_from_slice(&mark.bytes);
        Some(cell)
    }

    pub(super) fn address(&self, cell: &Cell) -> usize {
        self.cells.address() + cell.start()
    }

    pub(super) fn give_back(&mut self, cell: Cell) {
        self.free.push(cell.0);
    }
}

impl Cell {
    fn start(&self) -> usize {
        usize::from(self.0) * CELL_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stands_behind_the_pixels_in_one_cache_line() {
        for (length, offset) in [(1, 64), (64, 64), (65, 128), (3 << 20, 3 << 20)] {
            assert_eq!(Mark::new(&Key::of_secret(b""), 1, 1, 0, length).offset, offset);
            assert_eq!(Mark::slot_bytes(length), offset + 32);
        }
        assert_eq!(Mark::slot_bytes(u64::MAX), u64::MAX);
    }

    #[test]
    fn each_push_has_a_mark_of_its_own() {
        let key = Key::of_secret(b"");
        let mark = Mark::new(&key, 1, 2, 4096, 64);
        for other in [
            Mark::new(&Key::of_secret(b"0123456789abcdef"), 1, 2, 4096, 64),
            Mark::new(&key, 2, 2, 4096, 64),
            Mark::new(&key, 1, 3, 4096, 64),
            Mark::new(&key, 1, 2, 0, 64),
            Mark::new(&key, 1, 2, 4096, 63),
        ] {
            assert_eq!(mark.offset, other.offset);
            assert_ne!(mark.bytes, other.bytes);
        }
    }

    #[test]
    fn the_vector_of_the_protocol_holds() {
        let vectors: serde_json::Value = serde_json::from_str(include_str!("../../python/tests/vectors.json")).unwrap();
        let (mark, reference) = (&vectors["mark"], &vectors["reference"]);
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let handshake = &vectors["handshake"];
        let parties = ["gateway", "nonce", "worker", "worker_nonce"].map(|name| handshake[name].as_str().unwrap());
        let secret = Key::of_secret(vectors["secret"].as_str().unwrap().as_bytes());
        let key = secret.derive("mediagate grant key v1", &parties.map(str::as_bytes));
        let [grant, generation, offset] = ["grant", "generation", "offset"].map(|name| number(&reference[name]));
        let computed = Mark::new(&key, grant, generation, offset, number(&mark["length"]));
        assert_eq!(computed.offset, number(&mark["offset"]));
        assert_eq!(blake3::Hash::from_bytes(computed.bytes).to_hex().as_str(), mark["bytes"].as_str().unwrap());
    }

    #[test]
    fn marks_in_flight_do_not_touch_each_other_and_their_places_come_back() {
        let mut marks = Marks::new().unwrap();
        let mark = |number: u16| Mark { bytes: [number as u8; MARK_BYTES], offset: 0 };
        let cells: Vec<Cell> = (0..Marks::CELLS).map(|number| marks.put(&mark(number)).unwrap()).collect();
        assert!(marks.put(&mark(1)).is_none(), "all are in use");
        for (number, cell) in cells.iter().enumerate() {
            assert_eq!(marks.cells[cell.start()..][..MARK_BYTES], [number as u8; MARK_BYTES]);
        }
        cells.into_iter().for_each(|cell| marks.give_back(cell));
        assert!(marks.put(&mark(1)).is_some());
    }
}
