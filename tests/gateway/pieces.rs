//! Pushes take turns, piece by piece: seen at the agent itself, since no worker tells in which order pieces come.

use std::{
    process,
    sync::Arc,
    time::{Duration, Instant},
};

use mediagate::{
    memory::{Arena, Slot},
    transfer::{
        NixlAgent,
        agent::{ArenaMemory, PushRequest},
        library::NixlLibrary,
    },
};
use nixl_sys::{Agent, AgentConfig, ThreadSync};

use super::support::standin::nixl_libraries;

const ROOM: usize = 72 << 20;
const LARGE: usize = 64 << 20;

/// An agent that is written to, in this process.
struct Peer {
    name: Arc<str>,
    memory: Arc<Arena>,
    _agent: Agent,
}

impl Peer {
    async fn start(agent: &NixlAgent) -> Self {
        let memory = Arena::new(ROOM).unwrap();
        let config = AgentConfig { pthr_delay_us: 1000, thread_sync: ThreadSync::Rw, ..AgentConfig::default() };
        let peer = Agent::new_configured(&format!("pieces-peer-{}", process::id()), &config).unwrap();
        let (_, parameters) = peer.get_plugin_params("UCX").unwrap();
        peer.create_backend("UCX", &parameters).unwrap();
        // Never deregistered, as the gateway's own.
        std::mem::forget(peer.register_memory(&ArenaMemory(memory.clone()), None).unwrap());
        let name = agent.connect(peer.get_local_md().unwrap()).await.unwrap();
        Peer { name: name.into(), memory, _agent: peer }
    }

    fn request(&self, source: &Slot, offset: usize) -> PushRequest {
        PushRequest {
            source: source.clone(),
            peer: self.name.clone(),
            address: (self.memory.address() + offset) as u64,
            note: "L".into(),
            deadline: Instant::now() + Duration::from_secs(60),
            hold: Box::new(()),
        }
    }
}

#[tokio::test]
async fn a_small_picture_does_not_wait_for_all_of_a_large_one() {
    let Some(libraries) = nixl_libraries() else { return };
    let library = NixlLibrary::load(Some(&libraries)).unwrap();
    let memory = Arena::new(ROOM).unwrap();
    let name = format!("pieces-{}", process::id());
    let agent = NixlAgent::start(&library, &name, &memory, Box::new(|_, _| {})).unwrap();
    let peer = Peer::start(&agent).await;
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
