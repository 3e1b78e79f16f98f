//! The NIXL agent, as everybody but its own thread knows it.
//!
//! Posting a WRITE may copy all of its bytes inside the call (that is what CMA does), and loading a peer's metadata may
//! connect. So every NIXL call is made by one thread of its own, the [`driver`](super::driver); what others hold is a handle
//! that sends it commands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use nixl_sys::{Agent, AgentConfig, MemType, MemoryRegion, NixlDescriptor, NixlError, RegDescList, ThreadSync};
use tokio::sync::oneshot;

use super::{
    driver::Driver,
    library::NixlLibrary,
    mark::{Mark, Marks},
};
use crate::memory::{Arena, ArenaError, Slot};

/// NIXL's own progress thread sits in poll() on UCX's descriptors; this is only its fallback period. 0, the default
/// of NIXL, is a busy loop of one core per agent.
const PROGRESS_FALLBACK_US: u64 = 100_000;

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the UCX backend of NIXL cannot be had: {0}")]
    Backend(NixlError),
    #[error("memory cannot be registered with NIXL: {0}")]
    Register(NixlError),
    #[error("no memory for the marks of pushes: {0}")]
    Marks(ArenaError),
    #[error("NIXL gives no metadata: {0}")]
    Metadata(NixlError),
    #[error("cannot start the NIXL thread: {0}")]
    Thread(std::io::Error),
}

/// Why a push did not arrive.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
pub enum PushError {
    /// The peer died, or the range is not the one that it registered.
    #[error("NIXL reports that the transfer failed")]
    Failed,
    /// It may still arrive; the source stays pinned.
    #[error("the transfer did not end within its deadline")]
    Deadline,
    #[error("the peer was given up")]
    Forgotten,
    #[error("the NIXL thread is gone")]
    AgentGone,
}

/// A push that arrived.
#[derive(Debug, Clone, Copy)]
pub struct PushReport {
    pub bytes: usize,
    /// From the moment the NIXL thread took it up.
    pub took: Duration,
    /// When the NIXL thread knew that all is there, and its mark.
    pub ended: Instant,
}

/// What is to be written where.
pub struct PushRequest {
    pub source: Slot,
    /// NIXL name of the worker's agent.
    pub peer: Arc<str>,
    /// Address in the peer's memory.
    pub address: u64,
    /// Written when all of the source is there; its place counts from `address`. `None`: the peer is to take no notice.
    pub mark: Option<Mark>,
    /// Whether what is posted later arrives later: then the mark goes with the last pixels, and not after them.
    pub keeps_order: bool,
    pub deadline: Instant,
    /// Dropped when the transfer is terminal, and not before: what must stay untouched until then.
    pub hold: Box<dyn Send>,
}

pub(super) enum Command {
    /// A push is to be expected.
    Expect,
    Connect {
        metadata: Vec<u8>,
        reply: oneshot::Sender<Result<String, NixlError>>,
    },
    Forget {
        peer: Arc<str>,
    },
    Push {
        request: PushRequest,
        reply: oneshot::Sender<Result<PushReport, PushError>>,
    },
}

/// Called on the NIXL thread with the sender's agent name and its message; must not block.
pub type OnNotification = Box<dyn Fn(&str, &str) + Send>;

/// Handle of the NIXL thread. Cheap to clone.
#[derive(Clone)]
pub struct NixlAgent {
    name: Arc<str>,
    connection: Arc<[u8]>,
    commands: Sender<Command>,
    awaited: Arc<AtomicUsize>,
}

impl NixlAgent {
    /// Creates the agent (half a second), registers the arena for good, and starts the thread.
    pub fn start(
        _loaded: &NixlLibrary,
        name: &str,
        arena: &Arc<Arena>,
        on_notification: OnNotification,
    ) -> Result<Self, AgentError> {
        let config = AgentConfig {
            enable_prog_thread: true,
            pthr_delay_us: PROGRESS_FALLBACK_US,
            // nixl-sys takes only its read lock in some calls, so NIXL must lock for itself.
            thread_sync: ThreadSync::Rw,
            ..AgentConfig::default()
        };
        let agent = Agent::new_configured(name, &config).map_err(AgentError::Backend)?;
        let (_, parameters) = agent.get_plugin_params("UCX").map_err(AgentError::Backend)?;
        agent.create_backend("UCX", &parameters).map_err(AgentError::Backend)?;
        // Deregistering memory that a peer may still reach has crashed processes: never, until the process ends.
        let register = |memory: &Arc<Arena>| {
            let registration = agent.register_memory(&ArenaMemory(memory.clone()), None);
            registration.map(std::mem::forget).map_err(AgentError::Register)
        };
        register(arena)?;
        let marks = Marks::new().map_err(AgentError::Marks)?;
        register(marks.memory())?;
        // An empty list gives connection information alone: workers get to send notifications, not to read the arena.
        let nothing = RegDescList::new(MemType::Dram).map_err(AgentError::Metadata)?;
        let connection = agent.get_local_partial_md(&nothing, None).map_err(AgentError::Metadata)?;

        let (commands, inbox) = channel();
        let awaited = Arc::new(AtomicUsize::new(0));
        let driver = Driver::new(agent, marks, inbox, awaited.clone(), on_notification);
        thread::Builder::new().name("nixl".into()).spawn(move || driver.run()).map_err(AgentError::Thread)?;
        Ok(NixlAgent { name: name.into(), connection: connection.into(), commands, awaited })
    }

    /// One without NIXL, for tests of what only counts.
    #[cfg(test)]
    pub fn unconnected() -> Self {
        let (commands, _) = channel();
        NixlAgent { name: "none".into(), connection: [].into(), commands, awaited: Arc::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Metadata that lets a peer connect and send notifications.
    pub fn connection_metadata(&self) -> &[u8] {
        &self.connection
    }

    /// Makes a peer known; gives its agent name.
    pub async fn connect(&self, metadata: Vec<u8>) -> Result<String, NixlError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Connect { metadata, reply }).map_err(|_| NixlError::BackendError)?;
        answer.await.map_err(|_| NixlError::BackendError)?
    }

    /// Gives a peer up: its transfers end as [`PushError::Forgotten`], and what they pinned is free.
    pub fn forget(&self, peer: Arc<str>) {
        // A thread that is gone has nothing to forget.
        let _ = self.commands.send(Command::Forget { peer });
    }

    /// WRITEs a slot to a peer, then its mark. The transfer begins at once, whether or not the future is polled.
    pub fn push(&self, request: PushRequest) -> impl Future<Output = Result<PushReport, PushError>> + use<> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Push { request, reply }).is_ok();
        async move { if sent { answer.await.map_err(|_| PushError::AgentGone)? } else { Err(PushError::AgentGone) } }
    }

    /// Says that a push will follow in a moment.
    pub fn expect_push(&self) {
        // A thread that is gone says so to the push.
        let _ = self.commands.send(Command::Expect);
    }

    /// While the guard lives, notifications are looked for often.
    pub fn await_notifications(&self) -> AwaitGuard {
        self.awaited.fetch_add(1, Ordering::Relaxed);
        AwaitGuard(self.awaited.clone())
    }
}

impl std::fmt::Debug for NixlAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NixlAgent").field("name", &self.name).finish_non_exhaustive()
    }
}

/// See [`NixlAgent::await_notifications`].
#[derive(Debug)]
pub struct AwaitGuard(Arc<AtomicUsize>);

impl Drop for AwaitGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The arena as NIXL sees it.
#[derive(Debug)]
pub struct ArenaMemory(pub Arc<Arena>);

impl MemoryRegion for ArenaMemory {
    // SAFETY: the caller's duties are those of the trait; the arena's address is valid as long as the Arc is held, and
    // the NIXL thread holds it until the process ends.
    unsafe fn as_ptr(&self) -> *const u8 {
        self.0.address() as *const u8
    }

    fn size(&self) -> usize {
        self.0.bytes()
    }
}

impl NixlDescriptor for ArenaMemory {
    fn mem_type(&self) -> MemType {
        MemType::Dram
    }

    fn device_id(&self) -> u64 {
        0
    }
}
