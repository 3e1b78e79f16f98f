//! The gateway's book of one grant: which parts of a worker's landing memory are in use, by which push.
//!
//! The worker owns the memory, the gateway cuts it: no round trip is needed to find a place. A push claims a slot and a
//! generation ([`LandingSlot`]); the slot is free again when the worker said `F` for each use, or, for what ended without
//! (a refused request, a client that left), when the worker acknowledged that the generation is void. Until the transfer
//! itself is terminal its [`LandingSlot`] is held by the NIXL thread, so nothing is reused under a WRITE.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use offset_allocator::{Allocation, Allocator};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use super::{
    agent::{AwaitGuard, NixlAgent},
    descriptor::RdmaMediaDataDescriptor,
    mac::Key,
};
use crate::{media::content::Name, memory::SLOT_ALIGNMENT_BYTES};

/// What a worker granted on attach.
#[derive(Debug, Clone)]
pub struct Grant {
    /// Incarnation of the worker's lander.
    pub worker: String,
    /// NIXL name of its agent.
    pub peer: Arc<str>,
    pub id: u64,
    /// Of the grant's first byte in the lander's memory.
    pub address: u64,
    pub bytes: u64,
    pub key: Key,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LandingError {
    #[error("{wanted} bytes do not fit into a grant of {granted}")]
    NeverFits { wanted: u64, granted: u64 },
    #[error("no landing slot became free in time")]
    Busy,
    #[error("the grant is over")]
    Closed,
}

/// The book of one grant.
pub struct Landing {
    grant: Grant,
    agent: NixlAgent,
    book: Mutex<Book>,
    freed: Notify,
    /// Generations that ended with uses outstanding; whoever attached voids them.
    orphans: mpsc::UnboundedSender<u64>,
}

struct Book {
    pages: Allocator,
    next_generation: u64,
    open: HashMap<u64, Open>,
    closed: bool,
}

/// A generation whose slot is in use.
struct Open {
    allocation: Allocation,
    uses_left: u32,
    /// While this lives, notifications are looked for often.
    _awaited: AwaitGuard,
}

/// A place on the worker for one push. Dropping the last holder with uses outstanding has the generation voided.
pub struct LandingSlot {
    landing: Arc<Landing>,
    generation: u64,
    offset: u64,
}

impl Landing {
    /// A book for a new grant; orphaned generations arrive at the receiver.
    pub fn open(grant: Grant, agent: NixlAgent) -> (Arc<Self>, mpsc::UnboundedReceiver<u64>) {
        let pages = u32::try_from(grant.bytes / SLOT_ALIGNMENT_BYTES as u64).unwrap_or(u32::MAX);
        let book = Book { pages: Allocator::new(pages), next_generation: 1, open: HashMap::new(), closed: false };
        // Unbounded, but never longer than there are open generations, which the grant's pages bound.
        let (orphans, receiver) = mpsc::unbounded_channel();
        (Arc::new(Landing { grant, agent, book: Mutex::new(book), freed: Notify::new(), orphans }), receiver)
    }

    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    pub fn agent(&self) -> &NixlAgent {
        &self.agent
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Claims a slot of `bytes` bytes for `uses` uses, waiting for one until `deadline`.
    pub async fn claim(
        self: &Arc<Self>,
        bytes: u64,
        uses: u32,
        deadline: Instant,
    ) -> Result<Arc<LandingSlot>, LandingError> {
        let never = LandingError::NeverFits { wanted: bytes, granted: self.grant.bytes };
        if bytes > self.grant.bytes {
            return Err(never);
        }
        let pages = u32::try_from(bytes.div_ceil(SLOT_ALIGNMENT_BYTES as u64).max(1)).map_err(|_| never)?;
        loop {
            // Registered before the attempt, so that what is freed in between is not missed.
            let freed = self.freed.notified();
            if let Some(slot) = self.try_claim(pages, uses)? {
                return Ok(slot);
            }
            if tokio::time::timeout_at(deadline, freed).await.is_err() {
                return Err(LandingError::Busy);
            }
        }
    }

    fn try_claim(self: &Arc<Self>, pages: u32, uses: u32) -> Result<Option<Arc<LandingSlot>>, LandingError> {
        let mut book = self.lock();
        if book.closed {
            return Err(LandingError::Closed);
        }
        let Some(allocation) = book.pages.allocate(pages) else { return Ok(None) };
        let generation = book.next_generation;
        book.next_generation += 1;
        let awaited = self.agent.await_notifications();
        book.open.insert(generation, Open { allocation, uses_left: uses.max(1), _awaited: awaited });
        let offset = u64::from(allocation.offset) * SLOT_ALIGNMENT_BYTES as u64;
        Ok(Some(Arc::new(LandingSlot { landing: self.clone(), generation, offset })))
    }

    /// The worker said `F`: one use of a generation is over.
    pub fn used(&self, generation: u64) {
        let mut book = self.lock();
        if let Some(open) = book.open.get_mut(&generation) {
            open.uses_left = open.uses_left.saturating_sub(1);
            if open.uses_left == 0 {
                self.free(&mut book, generation);
            }
        }
    }

    /// The worker acknowledged that nobody reads these generations, nor ever will.
    pub fn voided(&self, generations: &[u64]) {
        let mut book = self.lock();
        for generation in generations {
            self.free(&mut book, *generation);
        }
    }

    /// Has generations asked about again: the worker could not say yet that nobody reads them.
    pub fn void_later(&self, generations: &[u64]) {
        for generation in generations {
            // Nobody to hear it means that the attachment is being given up.
            let _ = self.orphans.send(*generation);
        }
    }

    /// The grant is over: nothing is claimed any more, and the peer is given up.
    pub fn close(&self) {
        let mut book = self.lock();
        if !std::mem::replace(&mut book.closed, true) {
            book.open.clear();
            drop(book);
            self.agent.forget(self.grant.peer.clone());
            self.freed.notify_waiters();
        }
    }

    /// Generations whose slots are in use.
    pub fn open_generations(&self) -> usize {
        self.lock().open.len()
    }

    fn free(&self, book: &mut Book, generation: u64) {
        if let Some(open) = book.open.remove(&generation) {
            book.pages.free(open.allocation);
            self.freed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        // Nothing that holds the lock leaves the book half changed.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Landing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landing").field("grant", &self.grant).finish_non_exhaustive()
    }
}

impl LandingSlot {
    /// What to put into the request for a picture that is pushed here.
    pub fn descriptor(&self, name: &Name, uses: u32, wait_ms: u32) -> RdmaMediaDataDescriptor {
        RdmaMediaDataDescriptor {
            worker: self.landing.grant.worker.clone(),
            grant: self.landing.grant.id,
            generation: self.generation,
            offset: self.offset,
            height: name.height,
            width: name.width,
            content_hash: name.content_hash,
            media_id: name.media_id,
            uses,
            wait_ms,
        }
    }

    /// Where the pixels go, in the lander's memory.
    pub fn address(&self) -> u64 {
        self.landing.grant.address + self.offset
    }

    pub fn landing(&self) -> &Arc<Landing> {
        &self.landing
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for LandingSlot {
    fn drop(&mut self) {
        let book = self.landing.lock();
        if book.open.contains_key(&self.generation) && !book.closed {
            // Nobody to hear it means that the attachment is being given up.
            let _ = self.landing.orphans.send(self.generation);
        }
    }
}

/// Which landing a notification is about: the books of all grants by the agent that speaks.
#[derive(Debug, Default)]
pub struct Landings {
    by_peer: Mutex<HashMap<Arc<str>, Weak<Landing>>>,
}

impl Landings {
    pub fn add(&self, landing: &Arc<Landing>) {
        let mut by_peer = self.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
        by_peer.retain(|_, landing| landing.strong_count() > 0);
        by_peer.insert(landing.grant.peer.clone(), Arc::downgrade(landing));
    }

    /// Takes a notification of a worker's lander; what is not understood is dropped.
    pub fn notified(&self, peer: &str, message: &str) {
        let landing = {
            let by_peer = self.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
            by_peer.get(peer).and_then(Weak::upgrade)
        };
        let mut words = message.split(' ');
        let (kind, grant, generation) = (words.next(), words.next(), words.next());
        let (Some(landing), Some("F"), Some(grant), Some(generation)) = (landing, kind, grant, generation) else {
            return;
        };
        if grant.parse() == Ok(landing.grant.id)
            && let Ok(generation) = generation.parse()
        {
            landing.used(generation);
        }
    }
}
