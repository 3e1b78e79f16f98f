//! One stream of events in order: what was missed is asked for again, and what cannot be had makes the view partial.
//!
//! A publisher numbers its batches from 0 and keeps the newest (vLLM: 10,000) to be replayed. Batches that were published
//! before we came, or while a connection was down, are replayed. Whether it is still the same process is seen by the last
//! batch that we have: another one under its number, or none, means that the publisher started over, and then so do we.

use super::{events, index::View, lane::Lane};

/// Bytes of one batch at most. A batch of a million tokens takes about 5 MB.
pub const MAX_BATCH_BYTES: usize = 16 << 20;

/// Applies batches to a lane in their order.
#[derive(Debug)]
pub struct Stream {
    lane: Lane,
    /// The number of the batch that is to come; `None` before the first.
    next: Option<u64>,
    /// A digest of the batch before.
    last: u64,
    /// The newest number that came live on this connection.
    live: Option<u64>,
    pub counts: Counts,
}

/// What has happened since it was last asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub batches: u64,
    /// That could not be read, in part or as a whole.
    pub malformed: u64,
    /// Times that batches were lost for good.
    pub lost: u64,
    pub restarts: u64,
}

/// What to do after a batch came live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Live {
    /// It was applied, or known already.
    Done,
    /// Batches before it are missing: catch up, then offer it again.
    Missing,
}

impl Stream {
    pub fn new(lane: Lane) -> Self {
        Stream { lane, next: None, last: 0, live: None, counts: Counts::default() }
    }

    /// What has happened since this was last asked for.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Blocks that were let go to stay within the share of the index, since this was last asked for.
    pub fn take_aged(&mut self) -> usize {
        self.lane.take_aged()
    }

    /// Lets go of some of what is beyond the share of the index.
    pub fn shrink(&mut self) {
        self.lane.shrink();
    }

    /// A new connection: numbers may begin anew on it.
    pub fn reconnected(&mut self) {
        self.live = None;
    }

    /// From where a replay must begin: with the last batch that we have, to see that it is still the same.
    pub fn replay_from(&self) -> u64 {
        self.next.unwrap_or(0).saturating_sub(1)
    }

    /// Forgets everything: the publisher is not the one that was listened to, or it is gone.
    pub fn start_over(&mut self) {
        if self.next.take().is_some() {
            self.counts.restarts += 1;
        }
        self.live = None;
        self.lane.clear();
        self.lane.set_view(View::None);
    }

    /// The first batch of a replay from [`Self::replay_from`], or `None` if there was none. Whether the publisher is the
    /// one that was listened to: if not, everything is forgotten, and the replay must begin at 0.
    pub fn is_same(&mut self, first: Option<(u64, &[u8])>) -> bool {
        let same = match (self.next, first) {
            (None | Some(0), _) => true,
            (Some(next), Some((seq, payload))) => seq != next - 1 || digest(payload) == self.last,
            (Some(_), None) => false,
        };
        if !same {
            self.start_over();
        }
        same
    }

    /// A batch of a replay.
    pub fn replayed(&mut self, seq: u64, payload: &[u8]) {
        match self.next {
            Some(next) if seq < next => {}
            Some(next) if seq == next => self.apply(seq, payload),
            // The first of all, or the ones between have been given up by the publisher.
            _ => self.jump(seq, payload),
        }
    }

    /// A replay from 0 has ended, and so everything that was published is known, unless the first batches were not there.
    pub fn replay_ended(&mut self) {
        if self.next.is_none() {
            self.next = Some(0);
            self.lane.set_view(View::Complete);
        }
    }

    /// A batch that has just been published.
    pub fn published(&mut self, seq: u64, payload: &[u8]) -> Live {
        if self.live.is_some_and(|live| seq <= live) {
            // Numbers went back.
            self.start_over();
        }
        self.live = Some(seq);
        match self.next {
            Some(next) if seq < next => Live::Done,
            Some(next) if seq == next => {
                self.apply(seq, payload);
                Live::Done
            }
            None if seq == 0 => {
                self.jump(seq, payload);
                Live::Done
            }
            _ => Live::Missing,
        }
    }

    /// The same batch after catching up. What is still missing is lost.
    pub fn caught_up(&mut self, seq: u64, payload: &[u8]) {
        self.live = Some(seq);
        self.replayed(seq, payload);
    }

    /// Goes on with this batch, whatever was before it.
    fn jump(&mut self, seq: u64, payload: &[u8]) {
        if self.next.is_some() {
            // Blocks may have been removed meanwhile, and what is in the view must be true.
            self.counts.lost += 1;
            self.lane.clear();
        }
        self.lane.set_view(if seq == 0 { View::Complete } else { View::Partial });
        self.apply(seq, payload);
    }

    fn apply(&mut self, seq: u64, payload: &[u8]) {
        self.next = seq.checked_add(1);
        self.last = digest(payload);
        self.counts.batches += 1;
        let lane = &mut self.lane;
        if let Err(error) = events::read_batch(payload, |event| lane.apply(event)) {
            tracing::debug!(seq, %error, "KV events");
            self.counts.malformed += 1;
            // What was in the rest may have been removals.
            self.lane.clear();
            self.lane.set_view(View::Partial);
        }
    }
}

fn digest(payload: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(payload)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::routing::kv::{KvIndex, msgpack::testing::msgpack};

    fn stream() -> Stream {
        let index = Arc::new(KvIndex::new(1000));
        Stream::new(index.lane(0, "0").unwrap())
    }

    /// A batch that stores one block after the one before.
    fn batch(seq: u64) -> Vec<u8> {
        let parent = seq.checked_sub(1);
        msgpack(&json!([seq, [["BlockStored", [seq], parent, [1, 2], 2, null, "GPU"]]]))
    }

    fn state(stream: &Stream) -> (usize, View) {
        (stream.lane.blocks(), stream.lane.view())
    }

    #[test]
    fn a_stream_from_the_first_batch_is_complete() {
        let mut stream = stream();
        for seq in 0..3 {
            assert_eq!(stream.published(seq, &batch(seq)), Live::Done);
        }
        assert_eq!(state(&stream), (3, View::Complete));
    }

    #[test]
    fn a_replay_comes_before_what_is_live() {
        let mut stream = stream();
        assert_eq!(stream.published(2, &batch(2)), Live::Missing);
        assert_eq!(stream.replay_from(), 0);
        for seq in 0..4 {
            stream.replayed(seq, &batch(seq));
        }
        stream.replay_ended();
        stream.caught_up(2, &batch(2));
        assert_eq!(stream.published(3, &batch(3)), Live::Done);
        assert_eq!(stream.published(4, &batch(4)), Live::Done);
        assert_eq!(state(&stream), (5, View::Complete));
    }

    #[test]
    fn a_publisher_that_has_forgotten_its_first_batches_gives_a_partial_view() {
        let mut stream = stream();
        let cold = msgpack(&json!([0, [["BlockStored", [7], null, [1, 2], 2]]]));
        stream.replayed(7, &cold);
        stream.replayed(8, &batch(8));
        stream.replay_ended();
        assert_eq!(state(&stream), (2, View::Partial));
    }

    #[test]
    fn a_gap_is_replayed_and_what_is_lost_is_known_to_be() {
        let mut stream = stream();
        stream.published(0, &batch(0));
        assert_eq!(stream.published(3, &batch(3)), Live::Missing);
        assert_eq!(stream.replay_from(), 0);
        assert!(stream.is_same(Some((0, &batch(0)))));
        for seq in 0..3 {
            stream.replayed(seq, &batch(seq));
        }
        stream.caught_up(3, &batch(3));
        assert_eq!(state(&stream), (4, View::Complete));
        assert_eq!(stream.published(9, &batch(9)), Live::Missing);
        stream.caught_up(9, &batch(9));
        assert_eq!(state(&stream).1, View::Partial);
        assert_eq!(stream.counts.lost, 1);
    }

    #[test]
    fn a_publisher_that_started_over_is_told_by_its_numbers() {
        let mut stream = stream();
        for seq in 0..5 {
            stream.published(seq, &batch(seq));
        }
        assert_eq!(stream.published(0, &batch(0)), Live::Done);
        assert_eq!((state(&stream), stream.counts.restarts), ((1, View::Complete), 1));
    }

    #[test]
    fn a_publisher_that_started_over_while_nobody_listened_is_told_by_its_batches() {
        for first in [None, Some(msgpack(&json!([99, []])))] {
            let mut stream = stream();
            for seq in 0..5 {
                stream.published(seq, &batch(seq));
            }
            stream.reconnected();
            assert_eq!(stream.replay_from(), 4);
            assert!(!stream.is_same(first.as_deref().map(|payload| (4, payload))));
            assert_eq!(state(&stream), (0, View::None));
            stream.replay_ended();
            assert_eq!(state(&stream), (0, View::Complete));
        }
    }

    #[test]
    fn a_connection_that_broke_costs_nothing() {
        let mut stream = stream();
        for seq in 0..5 {
            stream.published(seq, &batch(seq));
        }
        stream.reconnected();
        assert!(stream.is_same(Some((4, &batch(4)))));
        for seq in 4..7 {
            stream.replayed(seq, &batch(seq));
        }
        assert_eq!(stream.published(7, &batch(7)), Live::Done);
        assert_eq!((state(&stream), stream.counts.restarts), ((8, View::Complete), 0));
    }

    #[test]
    fn a_batch_that_cannot_be_read_makes_the_view_partial() {
        let mut stream = stream();
        stream.published(0, &batch(0));
        stream.published(1, b"junk");
        assert_eq!((state(&stream), stream.counts.malformed), ((0, View::Partial), 1));
        stream.published(u64::MAX, &batch(2));
        stream.caught_up(u64::MAX, &batch(2));
    }
}
