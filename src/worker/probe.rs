//! What a connection is worth, measured on attach, when its set-up is to be paid anyway.
//!
//! Three WRITEs tell the lane and its speed, and one picture that the worker is to take in tells that what is pushed lands.
//! Over TCP, which NIXL does not handle better than a plain socket does, a picture may be there sooner inside the request: so
//! then one is sent both ways, three times each, as requests would send it, and whichever way was faster at its best is taken
//! for as long as the worker stays attached.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::try_join;

use super::{
    attach::{self, AttachError},
    client::WorkerClient,
    state::Worker,
};
use crate::{
    media::content::{Name, Scope},
    memory::{Arena, SLOT_ALIGNMENT_BYTES, Slot},
    transfer::{
        Grant, Landing, PushError,
        agent::PushRequest,
        lane::{Lane, SentOverTcp, Whereabouts},
        mark::Mark,
    },
};

/// The picture that is sent: three quarters of a mebibyte.
const SIDE: u32 = 512;
const PICTURE_BYTES: usize = (SIDE * SIDE * 3) as usize;

const ROUNDS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(10);

/// What is sent on attach: parts of the arena that are taken at start, since pictures may fill all the rest of it.
#[derive(Clone)]
pub struct Probe {
    /// Pays for connection set-up.
    first: Slot,
    picture: Slot,
    name: Name,
}

/// What was measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// `None` where the grant is too small to tell.
    pub lane: Option<Lane>,
    /// On the same machine.
    pub here: bool,
    /// Of WRITEs, in bytes per second.
    pub speed: u64,
    /// Over TCP: pixels per second, in bytes, from the start of a push or of the request to the worker having them.
    pub ways: Option<Ways>,
}

/// How fast pixels get to the worker's model, in bytes per second.
#[derive(Debug, Clone, Copy)]
pub struct Ways {
    pub pushed: u64,
    pub inline: u64,
}

impl Measured {
    pub fn inline_is_faster(&self) -> bool {
        self.ways.is_some_and(|ways| ways.inline > ways.pushed)
    }
}

impl Probe {
    /// Bytes of the arena that probes take for good.
    pub const ARENA_BYTES: usize = SLOT_ALIGNMENT_BYTES + PICTURE_BYTES;

    /// `None` if the arena has no room.
    pub fn new(arena: &Arc<Arena>) -> Option<Self> {
        let first = arena.reserve(SLOT_ALIGNMENT_BYTES, |_| {})?;
        // Not zeros, which a worker's fresh memory holds without any transfer.
        let picture = arena.reserve(PICTURE_BYTES, |pixels| {
            pixels.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8);
        })?;
        let name = Name::of(&Scope::default(), SIDE, SIDE, &picture);
        Some(Probe { first, picture, name })
    }

    /// Measures a worker that has just granted `landing`, and sees a picture land; with `compare_ways`, over TCP, a push
    /// against the same pixels inside a request.
    pub async fn measure(
        &self,
        worker: &Worker,
        client: &WorkerClient,
        landing: &Arc<Landing>,
        whereabouts: Option<&Whereabouts>,
        compare_ways: bool,
    ) -> Result<Measured, AttachError> {
        let grant = landing.grant();
        let here = whereabouts.is_some_and(|whereabouts| whereabouts.is_here(&grant.key));
        let set_up = self.write(landing, &self.first).await?;
        if !has_room(grant) {
            return Ok(Measured { lane: None, here, speed: per_second(self.first.len(), set_up), ways: None });
        }
        let (mut over_tcp, mut took) = (u64::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            let before = sent_over_tcp().await;
            took = took.min(self.write(landing, &self.picture).await?);
            // Other traffic adds to it, so the least is the nearest to the truth.
            over_tcp = over_tcp.min(sent_over_tcp().await.since(&before));
        }
        let lane = Lane::of(PICTURE_BYTES as u64, over_tcp, here);
        let ways = match (self.lands(worker, client, landing, TIMEOUT).await?, lane) {
            (true, Lane::Tcp) if compare_ways => Some(self.ways(worker, client, landing).await?),
            _ => None,
        };
        Ok(Measured { lane: Some(lane), here, speed: per_second(PICTURE_BYTES, took), ways })
    }

    /// One WRITE of which the worker takes no notice.
    async fn write(&self, landing: &Landing, source: &Slot) -> Result<Duration, AttachError> {
        let grant = landing.grant();
        let request = PushRequest {
            source: source.clone(),
            peer: grant.peer.clone(),
            address: grant.address,
            mark: None,
            keeps_order: false,
            deadline: Instant::now() + TIMEOUT,
            hold: Box::new(()),
        };
        let report = landing.agent().push(request).await.map_err(AttachError::Transfer)?;
        Ok(report.took)
    }

    /// Pushes the picture and has the worker take it in, as it would take a request's; an error if that is not done within
    /// `timeout`. Whether it could be seen: older plugins do not know the call, and a grant may be too small.
    pub async fn lands(
        &self,
        worker: &Worker,
        client: &WorkerClient,
        landing: &Arc<Landing>,
        timeout: Duration,
    ) -> Result<bool, AttachError> {
        if !has_room(landing.grant()) {
            return Ok(false);
        }
        match tokio::time::timeout(timeout, self.push(worker, client, landing, timeout)).await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(AttachError::NoPlugin)) => Ok(false),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(AttachError::Transfer(PushError::Deadline)),
        }
    }

    /// The picture both ways.
    async fn ways(&self, worker: &Worker, client: &WorkerClient, landing: &Arc<Landing>) -> Result<Ways, AttachError> {
        let (mut pushed, mut inline) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            self.push(worker, client, landing, TIMEOUT).await?;
            pushed = pushed.min(start.elapsed());
            let start = Instant::now();
            let pixels =
                base64_simd::STANDARD.encode_to_string([self.name.ppm_header().as_bytes(), &self.picture].concat());
            let url = format!("data:image/x-portable-pixmap;base64,{pixels}");
            self.ask(worker, client, landing, &url).await?;
            inline = inline.min(start.elapsed());
        }
        Ok(Ways { pushed: per_second(PICTURE_BYTES, pushed), inline: per_second(PICTURE_BYTES, inline) })
    }

    async fn push(
        &self,
        worker: &Worker,
        client: &WorkerClient,
        landing: &Arc<Landing>,
        timeout: Duration,
    ) -> Result<(), AttachError> {
        let claimed = landing.claim(PICTURE_BYTES as u64, 1, tokio::time::Instant::now() + timeout).await;
        let (slot, pin) = claimed.map_err(|error| AttachError::Protocol(error.to_string()))?;
        let wait_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let descriptor = slot.descriptor(&self.name, 1, wait_ms);
        let request = PushRequest {
            source: self.picture.clone(),
            peer: landing.grant().peer.clone(),
            address: slot.address(),
            mark: Some(descriptor.mark(&landing.grant().key)),
            keeps_order: landing.keeps_order(),
            deadline: Instant::now() + timeout,
            hold: Box::new(pin),
        };
        let push = landing.agent().push(request);
        let url = descriptor.reference(&landing.grant().key);
        try_join(async { push.await.map_err(AttachError::Transfer) }, self.ask(worker, client, landing, &url)).await?;
        Ok(())
    }

    async fn ask(
        &self,
        worker: &Worker,
        client: &WorkerClient,
        landing: &Landing,
        url: &str,
    ) -> Result<(), AttachError> {
        let seen = attach::probe(worker, client, landing.grant(), url).await?;
        match seen == self.name.content_hash.to_string() {
            true => Ok(()),
            false => Err(AttachError::Protocol("other pixels arrived than were sent".into())),
        }
    }
}

fn has_room(grant: &Grant) -> bool {
    grant.bytes >= Mark::slot_bytes(PICTURE_BYTES as u64)
}

async fn sent_over_tcp() -> SentOverTcp {
    // A look at each descriptor, of which there may be thousands. Only a runtime that ends does not run it.
    tokio::task::spawn_blocking(SentOverTcp::now).await.unwrap_or_default()
}

fn per_second(bytes: usize, took: Duration) -> u64 {
    (bytes as f64 / took.as_secs_f64().max(1e-9)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_is_taken_only_where_it_was_measured_to_be_faster() {
        let measured = |ways| Measured { lane: Some(Lane::Tcp), here: true, speed: 1, ways };
        assert!(!measured(None).inline_is_faster());
        assert!(!measured(Some(Ways { pushed: 10, inline: 10 })).inline_is_faster());
        assert!(measured(Some(Ways { pushed: 10, inline: 11 })).inline_is_faster());
    }

    #[test]
    fn the_picture_of_a_probe_is_not_what_fresh_memory_holds() {
        let arena = Arena::new(4 << 20).unwrap();
        let probe = Probe::new(&arena).unwrap();
        assert_ne!(probe.name, Name::of(&Scope::default(), SIDE, SIDE, &vec![0; PICTURE_BYTES]));
    }
}
