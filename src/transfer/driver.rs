//! The one thread that makes every NIXL call, once the agent is there.
//!
//! It takes commands from a channel, posts each push in pieces of at most [`PIECE_BYTES`] turn by turn, so that one large
//! picture does not stall the rest, polls what is in flight, and drains notifications (NIXL keeps them without limit). With
//! nothing to do it sleeps.
//!
//! Waking a thread takes as long as writing some hundred kilobytes. So whoever sees that a push will follow wakes it before: when a
//! picture was decoded, and, for those that were in the cache, when a place on a worker is claimed. It looks for the push, and for
//! more after each, for a moment without sleeping.
//!
//! A push that missed its deadline is reported, but its source stays pinned until NIXL says that the transfer ended, or
//! its peer is given up: dropping the request stops nothing, and reusing the memory would send another picture's bytes.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use nixl_sys::{Agent, MemType, NixlError, NotificationMap, OptArgs, XferDescList, XferOp, XferRequest, XferStatus};
use tokio::sync::oneshot;

use super::agent::{Command, OnNotification, PushError, PushReport, PushRequest};

/// Pushes larger than this go in pieces.
const PIECE_BYTES: usize = 4 << 20;

/// Pieces of one push that may be in flight at once: the second hides the gap between posting and polling.
const PIECES_IN_FLIGHT: usize = 2;

/// How often notifications are drained: while somebody waits for one, and otherwise.
const DRAIN_AWAITED: Duration = Duration::from_millis(2);
const DRAIN_IDLE: Duration = Duration::from_millis(100);

/// A push that is expected does not wait for a drain, unless they have been put off for so long.
const DRAIN_LATEST: Duration = Duration::from_millis(4);

/// How long it looks without sleeping for the end of a transfer or a push that was announced, and for more work after some.
const SPIN_EXPECTING: Duration = Duration::from_micros(200);
const SPIN_AFTER_WORK: Duration = Duration::from_micros(50);

/// Between two looks at transfers that take longer.
const POLL_PAUSE: Duration = Duration::from_micros(50);

/// The thread's state.
pub(super) struct Driver {
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
    /// `awaited` says how many wait for notifications.
    pub(super) fn new(
        agent: Agent,
        inbox: Receiver<Command>,
        awaited: Arc<AtomicUsize>,
        on_notification: OnNotification,
    ) -> Self {
        // On one core, whoever has the push could not run meanwhile.
        let may_spin = thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        Driver { agent, inbox, jobs: VecDeque::new(), awaited, may_spin, on_notification }
    }

    pub(super) fn run(mut self) {
        let mut last_drain = Instant::now();
        let mut woken = last_drain;
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
                let command = self.inbox.recv_timeout(pause);
                woken = Instant::now();
                command.map_err(|error| error == RecvTimeoutError::Disconnected)
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
            let now = Instant::now();
            let due = match now < spin_until {
                true => woken.max(last_drain) + DRAIN_LATEST,
                false => last_drain + DRAIN_AWAITED,
            };
            if now >= due {
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
