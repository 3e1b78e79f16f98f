//! Pushes take turns, piece by piece, and a mark says when all of one is there: seen at the agent itself, since no worker tells in
//! which order pieces come.

use std::{
    process,
    sync::Arc,
    time::{Duration, Instant},
};

use mediagate::{
    memory::{Arena, Slot, SlotMut},
    transfer::{
        NixlAgent,
        agent::{ArenaMemory, PushRequest},
        library::NixlLibrary,
        mac::Key,
        mark::{MARK_BYTES, Mark},
    },
};
use nixl_sys::{Agent, AgentConfig, ThreadSync};

use super::support::standin::nixl_libraries;

const ROOM: usize = 72 << 20;
const LARGE: usize = 64 << 20;

/// An agent that is written to, in this process.
struct Peer {
    name: Arc<str>,
    memory: SlotMut,
    _agent: Agent,
}

impl Peer {
    async fn start(agent: &NixlAgent) -> Self {
        let memory = Arena::new(ROOM).unwrap();
        let config = AgentConfig { pthr_delay_us: 1000, thread_sync: ThreadSync::Rw, ..AgentConfig::default() };
        let peer = Agent::new_configured(&format!("{}-peer", agent.name()), &config).unwrap();
        let (_, parameters) = peer.get_plugin_params("UCX").unwrap();
        peer.create_backend("UCX", &parameters).unwrap();
        // Never deregistered, as the gateway's own.
        std::mem::forget(peer.register_memory(&ArenaMemory(memory.clone()), None).unwrap());
        let name = agent.connect(peer.get_local_md().unwrap()).await.unwrap();
        Peer { name: name.into(), memory: memory.allocate(ROOM).unwrap(), _agent: peer }
    }

    fn request(&self, source: &Slot, offset: usize) -> PushRequest {
        PushRequest {
            source: source.clone(),
            peer: self.name.clone(),
            address: (self.memory.address() + offset) as u64,
            mark: None,
            keeps_order: false,
            deadline: Instant::now() + Duration::from_secs(60),
            hold: Box::new(()),
        }
    }
}

/// An agent, the memory from which it pushes, and whom it pushes to; `None` where there is no NIXL.
async fn set_up(name: &str) -> Option<(NixlAgent, Arc<Arena>, Peer)> {
    let library = NixlLibrary::load(Some(&nixl_libraries()?)).unwrap();
    let memory = Arena::new(ROOM).unwrap();
    let name = format!("{name}-{}", process::id());
    let agent = NixlAgent::start(&library, &name, &memory, Box::new(|_, _| {})).unwrap();
    let peer = Peer::start(&agent).await;
    Some((agent, memory, peer))
}

#[tokio::test]
async fn a_small_picture_does_not_wait_for_all_of_a_large_one() {
    let Some((agent, memory, peer)) = set_up("turns").await else { return };
    let [large, small] = [LARGE, 1].map(|bytes| memory.allocate(bytes).unwrap().freeze());
    // If it waited, it would end later every time. Whoever has no processor between the two pushes comes too late to tell.
    for _ in 0..50 {
        let [large, small] = [(&large, 0), (&small, LARGE)].map(|(slot, at)| agent.push(peer.request(slot, at)));
        let (large, small) = tokio::try_join!(large, small).unwrap();
        assert_eq!((large.bytes, small.bytes), (LARGE, 1));
        if small.ended < large.ended {
            return;
        }
    }
    panic!("the small one came last every time");
}

#[tokio::test]
async fn when_a_push_has_ended_its_pixels_are_there_and_its_mark_behind_them() {
    let Some((agent, memory, mut peer)) = set_up("marks").await else { return };
    let key = Key::of_secret(b"0123456789abcdef");
    // One byte, one piece, and several of which the last is small, full, or as good as full.
    let sizes = [1, 64, 100_000, 4 << 20, (8 << 20) + 1, 12 << 20, (12 << 20) - 1];
    let cases = sizes.iter().flat_map(|&bytes| [(bytes, true), (bytes, false)]).zip(1..);
    for ((bytes, keeps_order), generation) in cases {
        let mut source = memory.allocate(bytes).unwrap();
        source.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8 ^ generation as u8);
        let source = source.freeze();
        let mark = Mark::new(&key, 1, generation, 0, bytes as u64);
        peer.memory.fill(0);
        agent.push(PushRequest { mark: Some(mark), keeps_order, ..peer.request(&source, 0) }).await.unwrap();
        let behind = mark.offset as usize;
        assert!(peer.memory[..bytes] == source[..], "{bytes} bytes, order kept: {keeps_order}");
        assert_eq!(peer.memory[behind..][..MARK_BYTES], mark.bytes, "{bytes} bytes, order kept: {keeps_order}");
        let rest = [&peer.memory[bytes..behind], &peer.memory[behind + MARK_BYTES..]];
        assert!(rest.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0)), "nothing else was written");
    }
}

#[tokio::test]
async fn more_pushes_at_a_time_than_there_are_places_for_marks_all_end() {
    let Some((agent, memory, peer)) = set_up("many").await else { return };
    let key = Key::of_secret(b"0123456789abcdef");
    let source = memory.allocate(1).unwrap().freeze();
    let pushes = (0..10_000_u64).map(|number| {
        let mark = Mark::new(&key, 1, number, 0, 1);
        agent.push(PushRequest { mark: Some(mark), ..peer.request(&source, number as usize * 128) })
    });
    for result in futures_util::future::join_all(pushes).await {
        result.unwrap();
    }
    for number in 0..10_000_u64 {
        let at = number as usize * 128 + 64;
        assert_eq!(peer.memory[at..][..MARK_BYTES], Mark::new(&key, 1, number, 0, 1).bytes);
    }
}
