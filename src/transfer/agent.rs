//! The NIXL agent and the one thread that drives it.
//!
//! Posting a WRITE may copy all of its bytes inside the call (that is what CMA does), loading a peer's metadata may
//! connect, and a notification goes out only when the sender polls the finished transfer. So every NIXL call is made by
//! one thread of its own: it takes commands from a channel, posts each push in pieces of at most [`PIECE_BYTES`] turn by
//! turn, so that one large picture does not stall the rest, polls what is in flight, and drains notifications (NIXL keeps
//! them without limit). With nothing to do it sleeps.
//!
//! Waking a thread takes as long as writing some hundred kilobytes. So a place on a worker that is claimed wakes it, since a push
//! will follow once the request is written anew ([`NixlAgent::expect_push`]), and it looks for that, and for more after each
//! push, for a moment without sleeping.
//!
//! A push that missed its deadline is reported, but its source stays pinned until NIXL says that the transfer ended, or
//! its peer is given up: dropping the request stops nothing, and reusing the memory would send another picture's bytes.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use nixl_sys::{
    Agent, AgentConfig, MemType, MemoryRegion, NixlDescriptor, NixlError, NotificationMap, OptArgs, RegDescList,
    ThreadSync, XferDescList, XferOp, XferRequest, XferStatus,
};
use tokio::sync::oneshot;

use super::library::NixlLibrary;
use crate::memory::{Arena, Slot};

/// Pushes larger than this go in pieces.
pub const PIECE_BYTES: usize = 4 << 20;

/// Pieces of one push that may be in flight at once: the second hides the gap between posting and polling.
const PIECES_IN_FLIGHT: usize = 2;

/// NIXL's own progress thread sits in poll() on UCX's descriptors; this is only its fallback period. 0, the default
/// of NIXL, is a busy loop of one core per agent.
const PROGRESS_FALLBACK_US: u64 = 100_000;

/// How often notifications are drained: while somebody waits for one, and otherwise.
const DRAIN_AWAITED: Duration = Duration::from_millis(2);
const DRAIN_IDLE: Duration = Duration::from_millis(100);

/// How long it looks without sleeping for the end of a transfer or a push that was announced, and for more work after some.
const SPIN_EXPECTING: Duration = Duration::from_micros(200);
const SPIN_AFTER_WORK: Duration = Duration::from_micros(50);

/// Between two looks at transfers that take longer.
const POLL_PAUSE: Duration = Duration::from_micros(50);

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the UCX backend of NIXL cannot be had: {0}")]
    Backend(NixlError),
    #[error("the arena cannot be registered with NIXL: {0}")]
    Register(NixlError),
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
    /// When the NIXL thread knew that all is there and the peer was told.
    pub ended: Instant,
}

/// What is to be written where.
pub struct PushRequest {
    pub source: Slot,
    /// NIXL name of the worker's agent.
    pub peer: Arc<str>,
    /// Address in the peer's memory.
    pub address: u64,
    /// Sent after the last byte.
    pub note: String,
    pub deadline: Instant,
    /// Dropped when the transfer is terminal, and not before: what must stay untouched until then.
    pub hold: Box<dyn Send>,
}

enum Command {
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
        let registration = agent.register_memory(&Registered(arena.clone()), None).map_err(AgentError::Register)?;
        std::mem::forget(registration);
        // An empty list gives connection information alone: workers get to send notifications, not to read the arena.
        let nothing = RegDescList::new(MemType::Dram).map_err(AgentError::Metadata)?;
        let connection = agent.get_local_partial_md(&nothing, None).map_err(AgentError::Metadata)?;

        let (commands, inbox) = channel();
        let awaited = Arc::new(AtomicUsize::new(0));
        let driver = Driver {
            agent,
            inbox,
            jobs: VecDeque::new(),
            awaited: awaited.clone(),
            // On one core, whoever has the push could not run meanwhile.
            may_spin: thread::available_parallelism().is_ok_and(|cores| cores.get() > 1),
            on_notification,
        };
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

    /// WRITEs a slot to a peer, then notifies it. The transfer begins at once, whether or not the future is polled.
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
struct Registered(Arc<Arena>);

impl MemoryRegion for Registered {
    // SAFETY: the caller's duties are those of the trait; the arena's address is valid as long as the Arc is held, and
    // the NIXL thread holds it until the process ends.
    unsafe fn as_ptr(&self) -> *const u8 {
        self.0.address() as *const u8
    }

    fn size(&self) -> usize {
        self.0.bytes()
    }
}

impl NixlDescriptor for Registered {
    fn mem_type(&self) -> MemType {
        MemType::Dram
    }

    fn device_id(&self) -> u64 {
        0
    }
}

/// The thread's state.
struct Driver {
    agent: Agent,
    inbox: Receiver<Command>,
    jobs: VecDeque<Job>,
    awaited: Arc<AtomicUsize>,
    may_spin: bool,
    on_notification: OnNotification,
}

/// A push under way.
struct Job {
    request: PushRequest,
    /// None once the requester was answered; then the job only waits to become terminal.
    reply: Option<oneshot::Sender<Result<PushReport, PushError>>>,
    started: Instant,
    /// Bytes that were posted.
    posted: usize,
    in_flight: VecDeque<XferRequest>,
    /// A piece failed; nothing more is posted, and the job ends when the others have.
    failed: bool,
}

enum Progress {
    Waiting,
    Advanced,
    Ended(Result<(), PushError>),
}

impl Driver {
    fn run(mut self) {
        let mut last_drain = Instant::now();
        let mut spin_until = last_drain;
        let mut moved = false;
        loop {
            let command = if moved || Instant::now() < spin_until {
                self.inbox.try_recv().map_err(|error| error == TryRecvError::Disconnected)
            } else {
                let pause = if !self.jobs.is_empty() {
                    POLL_PAUSE
                } else if self.awaited.load(Ordering::Relaxed) > 0 {
                    DRAIN_AWAITED
                } else {
                    DRAIN_IDLE
                };
                self.inbox.recv_timeout(pause).map_err(|error| error == RecvTimeoutError::Disconnected)
            };
            match command {
                Ok(command) => {
                    self.obey(command);
                    // Take what else has come, so that pushes of one request interleave from their first piece on.
                    while let Ok(command) = self.inbox.try_recv() {
                        self.obey(command);
                    }
                    spin_until = self.spin_for(SPIN_EXPECTING);
                }
                Err(false) => std::hint::spin_loop(),
                Err(true) => return,
            }
            moved = self.advance();
            if moved {
                spin_until = self.spin_for(if self.jobs.is_empty() { SPIN_AFTER_WORK } else { SPIN_EXPECTING });
            }
            if last_drain.elapsed() >= DRAIN_AWAITED {
                self.drain();
                last_drain = Instant::now();
            }
        }
    }

    fn spin_for(&self, time: Duration) -> Instant {
        let now = Instant::now();
        if self.may_spin { now + time } else { now }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Expect => {}
            Command::Connect { metadata, reply } => {
                let mut known = self.agent.load_remote_md(&metadata);
                if known.is_err() {
                    // A failed load drops what was known of the peer before; a second one starts clean.
                    known = self.agent.load_remote_md(&metadata);
                }
                let _ = reply.send(known);
            }
            Command::Forget { peer } => {
                let (gone, kept) = self.jobs.drain(..).partition(|job| job.request.peer == peer);
                self.jobs = kept;
                for mut job in Vec::from(gone as VecDeque<Job>) {
                    job.answer(Err(PushError::Forgotten));
                }
                if let Err(error) = self.agent.invalidate_remote_md(&peer) {
                    tracing::debug!(%peer, %error, "NIXL did not know the peer that is forgotten");
                }
            }
            Command::Push { request, reply } => {
                let started = Instant::now();
                self.jobs.push_back(Job {
                    request,
                    reply: Some(reply),
                    started,
                    posted: 0,
                    in_flight: VecDeque::new(),
                    failed: false,
                });
            }
        }
    }

    /// One turn for each job. Whether anything moved.
    fn advance(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..self.jobs.len() {
            let Some(mut job) = self.jobs.pop_front() else { break };
            match job.step(&self.agent) {
                Progress::Ended(result) => {
                    moved = true;
                    let ended = Instant::now();
                    let report = PushReport { bytes: job.request.source.len(), took: ended - job.started, ended };
                    job.answer(result.map(|()| report));
                }
                Progress::Advanced => {
                    moved = true;
                    self.jobs.push_back(job);
                }
                Progress::Waiting => {
                    if job.reply.is_some() && Instant::now() >= job.request.deadline {
                        job.answer(Err(PushError::Deadline));
                    }
                    self.jobs.push_back(job);
                }
            }
        }
        moved
    }

    fn drain(&self) {
        let Ok(mut map) = NotificationMap::new() else { return };
        if let Err(error) = self.agent.get_notifications(&mut map, None) {
            tracing::warn!(%error, "NIXL gives no notifications");
            return;
        }
        // Ours are ASCII; others are dropped here, one by one (take_notifs would lose them all).
        for peer in map.agents().flatten() {
            for index in 0..map.get_notifications_size(peer).unwrap_or(0) {
                if let Ok(bytes) = map.get_notification_bytes(peer, index)
                    && let Ok(text) = str::from_utf8(&bytes)
                {
                    (self.on_notification)(peer, text);
                }
            }
        }
    }
}

impl Job {
    fn answer(&mut self, result: Result<PushReport, PushError>) {
        if let Some(reply) = self.reply.take() {
            // Whoever asked may be gone.
            let _ = reply.send(result);
        }
    }

    fn step(&mut self, agent: &Agent) -> Progress {
        let mut advanced = false;
        while let Some(piece) = self.in_flight.front() {
            match agent.get_xfer_status(piece) {
                Ok(XferStatus::Success) => {
                    self.in_flight.pop_front();
                    advanced = true;
                }
                Ok(XferStatus::InProgress) => break,
                Err(_) => {
                    self.in_flight.pop_front();
                    self.failed = true;
                }
            }
        }
        if self.failed {
            return match self.in_flight.is_empty() {
                true => Progress::Ended(Err(PushError::Failed)),
                false => Progress::Waiting,
            };
        }
        let total = self.request.source.len();
        if self.posted == total {
            return match self.in_flight.is_empty() {
                true => Progress::Ended(Ok(())),
                false if advanced => Progress::Advanced,
                false => Progress::Waiting,
            };
        }
        if self.reply.is_none() {
            // The deadline has passed: what is in flight must end, but nothing more is sent.
            return if self.in_flight.is_empty() {
                Progress::Ended(Err(PushError::Deadline))
            } else {
                Progress::Waiting
            };
        }
        // The notification must not overtake data: the last piece goes out when all others have arrived.
        let last = total - self.posted <= PIECE_BYTES;
        let may_post = if last { self.in_flight.is_empty() } else { self.in_flight.len() < PIECES_IN_FLIGHT };
        if may_post {
            match self.post_piece(agent, last) {
                Ok(()) => return Progress::Advanced,
                Err(_) => {
                    self.failed = true;
                    return Progress::Advanced;
                }
            }
        }
        if advanced { Progress::Advanced } else { Progress::Waiting }
    }

    fn post_piece(&mut self, agent: &Agent, last: bool) -> Result<(), NixlError> {
        let PushRequest { source, peer, address, note, .. } = &self.request;
        let bytes = (source.len() - self.posted).min(PIECE_BYTES);
        let mut local = XferDescList::new(MemType::Dram)?;
        local.add_desc(source.address() + self.posted, bytes, 0);
        let mut remote = XferDescList::new(MemType::Dram)?;
        remote.add_desc(*address as usize + self.posted, bytes, 0);
        let mut options = OptArgs::new()?;
        if last {
            options.set_notification_message(note.as_bytes())?;
            options.set_has_notification(true)?;
        }
        let piece = agent.create_xfer_req(XferOp::Write, &local, &remote, peer, Some(&options))?;
        // Even a transfer that is done within the call is polled once, since that sends the notification.
        agent.post_xfer_req(&piece, Some(&options))?;
        self.posted += bytes;
        self.in_flight.push_back(piece);
        Ok(())
    }
}
