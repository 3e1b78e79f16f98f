//! The one thread that makes every NIXL call, once the agent is there.
//!
//! It takes commands from a channel, posts each push in pieces of at most [`PIECE_BYTES`] turn by turn, so that one large
//! picture does not stall the rest, writes its mark when all of it has arrived, polls what is in flight, and drains notifications
//! (NIXL keeps them without limit). With nothing to do it sleeps.
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
    time::Instant,
};

use nixl_sys::{Agent, MemType, NixlError, NotificationMap, XferDescList, XferOp, XferRequest, XferStatus};
use tokio::sync::oneshot;

use super::{
    agent::{Command, OnNotification, PushError, PushReport, PushRequest},
    mark::{Cell, Mark, Marks},
    pace::Pace,
};

/// Pushes larger than this go in pieces.
const PIECE_BYTES: usize = 4 << 20;

/// Pieces of one push that may be in flight at once: the second hides the gap between posting and polling.
const PIECES_IN_FLIGHT: usize = 2;

/// The thread's state.
pub(super) struct Driver {
    agent: Agent,
    marks: Marks,
    inbox: Receiver<Command>,
    jobs: VecDeque<Job>,
    awaited: Arc<AtomicUsize>,
    on_notification: OnNotification,
}

/// A push under way.
struct Job {
    request: PushRequest,
    /// None once the requester was answered; then the job only waits to become terminal.
    reply: Option<oneshot::Sender<Result<PushReport, PushError>>>,
    started: Instant,
    /// Bytes of pixels that were posted.
    posted: usize,
    in_flight: VecDeque<XferRequest>,
    /// Those that have ended. They go when the push is over: letting go takes a good part of the time that posting takes.
    ended: Vec<XferRequest>,
    /// The mark, once it was posted.
    mark: Option<Cell>,
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
        marks: Marks,
        inbox: Receiver<Command>,
        awaited: Arc<AtomicUsize>,
        on_notification: OnNotification,
    ) -> Self {
        Driver { agent, marks, inbox, jobs: VecDeque::new(), awaited, on_notification }
    }

    pub(super) fn run(mut self) {
        // On one core, whoever has the push could not run meanwhile.
        let may_look = thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        let mut pace = Pace::new(may_look, Instant::now());
        let mut moved = false;
        loop {
            let command = if moved || pace.is_looking(Instant::now()) {
                self.inbox.try_recv().map_err(|error| error == TryRecvError::Disconnected)
            } else {
                let pause = Pace::pause(!self.jobs.is_empty(), self.awaited.load(Ordering::Relaxed) > 0);
                let command = self.inbox.recv_timeout(pause);
                pace.woke(Instant::now());
                command.map_err(|error| error == RecvTimeoutError::Disconnected)
            };
            match command {
                Ok(command) => {
                    self.obey(command);
                    // Take what else has come, so that pushes of one request interleave from their first piece on.
                    while let Ok(command) = self.inbox.try_recv() {
                        self.obey(command);
                    }
                    pace.expects(Instant::now());
                }
                Err(false) => std::hint::spin_loop(),
                Err(true) => return,
            }
            moved = self.advance();
            let now = Instant::now();
            if moved {
                pace.worked(now, !self.jobs.is_empty());
            }
            if pace.drain_is_due(now) {
                self.drain();
                pace.drained(Instant::now());
            }
        }
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
                    job.end(&mut self.marks);
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
                    ended: Vec::new(),
                    mark: None,
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
            match job.step(&self.agent, &mut self.marks) {
                Progress::Ended(result) => {
                    moved = true;
                    let ended = Instant::now();
                    let report = PushReport { bytes: job.request.source.len(), took: ended - job.started, ended };
                    job.answer(result.map(|()| report));
                    job.end(&mut self.marks);
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

    /// Nothing of it is in flight any more, or nobody cares.
    fn end(self, marks: &mut Marks) {
        if let Some(cell) = self.mark {
            marks.give_back(cell);
        }
    }

    fn step(&mut self, agent: &Agent, marks: &mut Marks) -> Progress {
        let mut advanced = false;
        while let Some(write) = self.in_flight.front() {
            match agent.get_xfer_status(write) {
                Ok(XferStatus::Success) => advanced = true,
                Ok(XferStatus::InProgress) => break,
                Err(_) => self.failed = true,
            }
            self.ended.extend(self.in_flight.pop_front());
        }
        if self.failed {
            return match self.in_flight.is_empty() {
                true => Progress::Ended(Err(PushError::Failed)),
                false => Progress::Waiting,
            };
        }
        let pixels_left = self.request.source.len() - self.posted;
        let all_arrived = self.in_flight.is_empty();
        let mark = self.request.mark.filter(|_| self.mark.is_none());
        if pixels_left == 0 && mark.is_none() && all_arrived {
            return Progress::Ended(Ok(()));
        }
        if self.reply.is_none() {
            // The deadline has passed: what is in flight must end, but nothing more is sent.
            return if all_arrived { Progress::Ended(Err(PushError::Deadline)) } else { Progress::Waiting };
        }
        let posted = match mark {
            // It must not overtake pixels.
            Some(mark) if pixels_left == 0 || pixels_left <= PIECE_BYTES && self.request.keeps_order => {
                if all_arrived {
                    self.post_rest(&mark, agent, marks)
                } else {
                    Ok(false)
                }
            }
            _ if pixels_left > 0 && self.in_flight.len() < PIECES_IN_FLIGHT => {
                self.post(agent, pixels_left.min(PIECE_BYTES), None).map(|()| true)
            }
            _ => Ok(false),
        };
        match posted {
            Ok(false) if !advanced => Progress::Waiting,
            Ok(_) => Progress::Advanced,
            Err(_) => {
                self.failed = true;
                Progress::Advanced
            }
        }
    }

    /// What is left of the pixels, and the mark. False if too many marks are in flight.
    fn post_rest(&mut self, mark: &Mark, agent: &Agent, marks: &mut Marks) -> Result<bool, NixlError> {
        let Some(cell) = marks.put(mark) else { return Ok(false) };
        let from = marks.address(&cell);
        self.mark = Some(cell);
        self.post(agent, self.request.source.len() - self.posted, Some((from, mark)))?;
        Ok(true)
    }

    /// WRITEs the next `bytes` bytes of pixels, then the mark, which lies at the address beside it.
    fn post(&mut self, agent: &Agent, bytes: usize, mark: Option<(usize, &Mark)>) -> Result<(), NixlError> {
        let PushRequest { source, peer, address, .. } = &self.request;
        let address = *address as usize;
        let mut local = XferDescList::new(MemType::Dram)?;
        let mut remote = XferDescList::new(MemType::Dram)?;
        if bytes > 0 {
            local.add_desc(source.address() + self.posted, bytes, 0);
            remote.add_desc(address + self.posted, bytes, 0);
        }
        if let Some((from, mark)) = mark {
            local.add_desc(from, mark.bytes.len(), 0);
            remote.add_desc(address + mark.offset as usize, mark.bytes.len(), 0);
        }
        let write = agent.create_xfer_req(XferOp::Write, &local, &remote, peer, None)?;
        let in_progress = agent.post_xfer_req(&write, None)?;
        self.posted += bytes;
        match in_progress {
            true => self.in_flight.push_back(write),
            false => self.ended.push(write),
        }
        Ok(())
    }
}
