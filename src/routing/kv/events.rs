//! What a worker publishes of its KV cache.
//!
//! A batch is `[timestamp, [event, ...], rank]` (vllm/distributed/kv_events.py). An event is a map with its kind under
//! `type`, or, in older releases, an array whose first element is the kind and whose others are the fields in their order.
//! Fields that are not known, and kinds, are passed over. Whatever the bytes are, reading them takes memory in proportion
//! to their number, and each event is given to the reader before the next is read.

use rmp::Marker;

use super::msgpack::{Misread, Read, Reader};
use crate::routing::prompt::MmHash;

/// One thing that happened to a worker's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    Stored(Stored),
    Removed(Removed),
    Cleared,
}

/// Blocks are in the cache now, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// The worker's names for them.
    pub hashes: Vec<u64>,
    /// Its name for the block before the first; `None` at the beginning of a prompt.
    pub parent: Option<u64>,
    pub token_ids: Vec<u32>,
    pub block_size: usize,
    pub lora_name: Option<String>,
    pub medium: Option<String>,
    /// A list a block; may be shorter than the blocks.
    pub extra: Vec<BlockExtra>,
    /// Which of a hybrid model's caches.
    pub group: Option<u64>,
    pub kind: Option<String>,
}

impl Stored {
    /// The cache salt, of an event that begins a prompt. The LoRA's name stands before it, and may well be the same text.
    pub fn salt(&self) -> Option<&str> {
        self.extra.first()?.texts.get(usize::from(self.lora_name.is_some())).map(String::as_str)
    }
}

/// What beside its tokens makes a block what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockExtra {
    /// Images that reach into the block, each with where it begins, counted from the block's beginning.
    pub media: Vec<(MmHash, i64)>,
    /// Texts: the LoRA's name, the cache salt.
    pub texts: Vec<String>,
    /// Digests of prompt embeddings.
    pub digests: Vec<u64>,
}

/// Blocks have left the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    pub hashes: Vec<u64>,
    pub medium: Option<String>,
    pub group: Option<u64>,
}

/// Bytes that are no batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a batch of KV events: {0}")]
pub struct EventError(#[from] Misread);

/// Reads a batch, event by event.
///
/// # Errors
///
/// If the bytes are not such a batch. Events before the place where they are not have been given.
pub fn read_batch(payload: &[u8], mut each: impl FnMut(KvEvent)) -> Result<(), EventError> {
    let mut reader = Reader::new(payload);
    if reader.array()? < 2 {
        return Err(Misread("a batch has a time and events").into());
    }
    reader.skip()?;
    for _ in 0..reader.array()? {
        if let Some(event) = reader.event()? {
            each(event);
        }
    }
    Ok(())
}

/// A field of an event, by its name; by its place in arrays.
const STORED: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

impl Reader<'_> {
    fn event(&mut self) -> Read<Option<KvEvent>> {
        match self.peek()? {
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => self.event_map(),
            _ => self.event_array(),
        }
    }

    fn event_map(&mut self) -> Read<Option<KvEvent>> {
        // The kind may stand anywhere, but does stand first: msgspec writes it so, and we read once.
        let pairs = self.map()?;
        let mut event = None;
        for index in 0..pairs {
            let key = self.text()?;
            if index == 0 {
                if key != "type" {
                    return Err(Misread("an event begins with its type"));
                }
                event = empty(self.text()?);
                continue;
            }
            self.field(event.as_mut(), key)?;
        }
        Ok(event)
    }

    fn event_array(&mut self) -> Read<Option<KvEvent>> {
        let fields = self.array()?;
        if fields == 0 {
            return Err(Misread("an event begins with its type"));
        }
        let mut event = empty(self.text()?);
        for index in 0..fields - 1 {
            let names: &[&str] = match &event {
                Some(KvEvent::Stored(_)) => &STORED,
                Some(KvEvent::Removed(_)) => &REMOVED,
                _ => &[],
            };
            let name = names.get(index as usize).copied().unwrap_or("");
            self.field(event.as_mut(), name)?;
        }
        Ok(event)
    }

    fn field(&mut self, event: Option<&mut KvEvent>, name: &str) -> Read<()> {
        match event {
            Some(KvEvent::Stored(stored)) => match name {
                "block_hashes" => stored.hashes = self.list(Self::hash)?,
                "parent_block_hash" => stored.parent = self.optional(Self::hash)?,
                "token_ids" => stored.token_ids = self.list(Self::token)?,
                "block_size" => {
                    stored.block_size = usize::try_from(self.unsigned()?).map_err(|_| Misread("a block size"))?;
                }
                "lora_name" => stored.lora_name = self.optional(|r| r.text().map(str::to_owned))?,
                "medium" => stored.medium = self.optional(|r| r.text().map(str::to_owned))?,
                "extra_keys" => stored.extra = self.optional(|r| r.list(Self::extra))?.unwrap_or_default(),
                "group_idx" => stored.group = self.optional(Self::unsigned)?,
                "kv_cache_spec_kind" => stored.kind = self.optional(|r| r.text().map(str::to_owned))?,
                _ => self.skip()?,
            },
            Some(KvEvent::Removed(removed)) => match name {
                "block_hashes" => removed.hashes = self.list(Self::hash)?,
                "medium" => removed.medium = self.optional(|r| r.text().map(str::to_owned))?,
                "group_idx" => removed.group = self.optional(Self::unsigned)?,
                _ => self.skip()?,
            },
            Some(KvEvent::Cleared) | None => self.skip()?,
        }
        Ok(())
    }

    /// An integer, or the bytes of a whole digest: then its low 64 bits, which is what the integers are.
    fn hash(&mut self) -> Read<u64> {
        match self.peek()? {
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Ok(fold(self.binary()?)),
            _ => self.integer(),
        }
    }

    /// What a block's extra keys hold, or nil.
    fn extra(&mut self) -> Read<BlockExtra> {
        let mut extra = BlockExtra::default();
        if self.nil()? {
            return Ok(extra);
        }
        for _ in 0..self.array()? {
            match self.peek()? {
                Marker::FixArray(2) => {
                    self.array()?;
                    let id = self.text()?;
                    // With a LoRA that reaches into the vision tower: `{lora}:{id}`. An id of ours has no colon, nor have vLLM's.
                    let id = id.rsplit_once(':').map_or(id, |(_, id)| id);
                    extra.media.push((MmHash::of_identifier(id), self.signed()?));
                }
                Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                    extra.texts.push(self.text()?.to_owned());
                }
                Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => extra.digests.push(fold(self.binary()?)),
                _ => self.skip()?,
            }
        }
        Ok(extra)
    }

    fn token(&mut self) -> Read<u32> {
        u32::try_from(self.unsigned()?).map_err(|_| Misread("a token id"))
    }
}

fn empty(kind: &str) -> Option<KvEvent> {
    match kind {
        "BlockStored" => Some(KvEvent::Stored(Stored::default())),
        "BlockRemoved" => Some(KvEvent::Removed(Removed::default())),
        "AllBlocksCleared" => Some(KvEvent::Cleared),
        _ => None,
    }
}

/// The low 64 bits of a digest, read as one big-endian number.
fn fold(digest: &[u8]) -> u64 {
    digest.iter().rev().take(8).rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::routing::kv::msgpack::testing::msgpack;

    fn read(batch: &Value) -> Result<Vec<KvEvent>, EventError> {
        let mut events = Vec::new();
        read_batch(&msgpack(batch), |event| events.push(event)).map(|()| events)
    }

    const ID: &str = "7a9bbcb11a8986307a9bbcb11a8986307a9bbcb11a8986307a9bbcb11a898630";

    #[test]
    fn maps_and_arrays_say_the_same() {
        let extra = json!([[["lora:".to_owned() + ID, 4], [ID, -28], "salt", "lora"], null]);
        let map = json!([1.5, [
            {"type": "BlockStored", "block_hashes": [1, 18446744073709551615u64], "parent_block_hash": 9,
             "token_ids": [1, 2, 3, 70000], "block_size": 2, "lora_id": 1, "medium": "GPU", "lora_name": "lora",
             "extra_keys": extra, "group_idx": 0, "kv_cache_spec_kind": "full_attention", "session_id": {"new": [1]}},
            {"type": "BlockRemoved", "block_hashes": [-1], "medium": null},
            {"type": "SomethingNew", "block_hashes": [1]},
            {"type": "AllBlocksCleared"},
        ], 0]);
        let array = json!([
            1.5,
            [
                [
                    "BlockStored",
                    [1, 18446744073709551615u64],
                    9,
                    [1, 2, 3, 70000],
                    2,
                    1,
                    "GPU",
                    "lora",
                    extra,
                    0,
                    "full_attention",
                    null,
                    "beyond"
                ],
                ["BlockRemoved", [18446744073709551615u64], null],
                ["SomethingNew", [1]],
                ["AllBlocksCleared"],
            ]
        ]);
        let events = read(&map).unwrap();
        assert_eq!(events, read(&array).unwrap());
        let media = MmHash::of_identifier(ID);
        let first = BlockExtra {
            media: vec![(media, 4), (media, -28)],
            texts: vec!["salt".into(), "lora".into()],
            ..Default::default()
        };
        let KvEvent::Stored(stored) = &events[0] else { panic!("{events:?}") };
        assert_eq!(stored.extra, [first, BlockExtra::default()]);
        assert_eq!((stored.parent, stored.block_size, stored.group), (Some(9), 2, Some(0)));
        assert_eq!(stored.hashes, [1, u64::MAX]);
        assert_eq!(events[1], KvEvent::Removed(Removed { hashes: vec![u64::MAX], medium: None, group: None }));
        assert_eq!(events.len(), 3);
        assert_eq!(events[2], KvEvent::Cleared);
    }

    #[test]
    fn whole_digests_are_the_integers_that_stand_for_them() {
        let digest = json!({"$bin": "0123456789abcdefghijklmnopqrstuv"});
        let events = read(&json!([0, [["BlockRemoved", [digest, {"$bin": "\u{1}"}]]]])).unwrap();
        let low = u64::from_be_bytes(*b"opqrstuv");
        assert_eq!(events, [KvEvent::Removed(Removed { hashes: vec![low, 1], ..Removed::default() })]);
    }

    #[test]
    fn what_is_no_batch_is_an_error() {
        for batch in [
            json!(null),
            json!([1]),
            json!([1, 2]),
            json!([1, [[]]]),
            json!([1, [{"a": 1}]]),
            json!([1, [["BlockStored", 5]]]),
            json!([1, [["BlockStored", [], null, [-1]]]]),
        ] {
            assert!(read(&batch).is_err(), "{batch}");
        }
        // An array of 4 billion events, or hashes, that are not there.
        for bytes in [
            &[0x92, 0, 0xdd, 0xff, 0xff, 0xff, 0xff][..],
            &[
                0x92, 0, 0x91, 0x92, 0xac, b'B', b'l', b'o', b'c', b'k', b'R', b'e', b'm', b'o', b'v', b'e', b'd',
                0xdd, 0xff, 0xff, 0xff, 0xff,
            ],
        ] {
            assert!(read_batch(bytes, |_| ()).is_err());
        }
        let mut deep = vec![0x92];
        deep.extend([0x91; 100_000]);
        assert_eq!(read_batch(&deep, |_| ()), Err(EventError(Misread("too deep"))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = read_batch(&bytes, |_| ());
        }

        #[test]
        fn broken_batches_are_survived(at in 0usize..200, byte: u8, cut in 0usize..200) {
            let mut bytes = msgpack(&json!([1.5, [
                {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": 9, "token_ids": [1, 2, 3, 4],
                 "block_size": 2, "extra_keys": [[[ID, 4], "salt"], null]}]]));
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(length - cut % length);
            let _ = read_batch(&bytes, |_| ());
        }
    }
}
