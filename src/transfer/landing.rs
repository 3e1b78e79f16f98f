//! The gateway's book of one grant: which parts of a worker's landing memory are in use, by which push.
//!
//! The worker owns the memory, the gateway cuts it: no round trip is needed to find a place. A push claims a slot and a
//! generation ([`LandingSlot`]); the slot is free again when the worker said `F` for each use, or, for what ended without
//! (a refused request, a client that left), when the worker acknowledged that the generation is void. Until the transfer
//! itself is terminal its [`LandingSlot`] is held by the NIXL thread, so nothing is reused under a WRITE.
//!
//! A transfer pins its source, too. So that a worker that hangs takes a part of the arena and not all of it, two things
//! hold: what pushes to one worker pin at a time is capped; and while one of them is overdue, nothing new is claimed, and
//! pictures go elsewhere or inline. Both end when the transfers end, or the grant is given up.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
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
    mark::Mark,
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
    #[error("a push to the worker is overdue")]
    Stuck,
    #[error("the grant is over")]
    Closed,
}

/// The book of one grant.
pub struct Landing {
    grant: Grant,
    agent: NixlAgent,
    book: Mutex<Book>,
    freed: Notify,
    /// Bytes of sources that may be pinned at a time.
    max_pinned: u64,
    /// Measured: pixels are there sooner inside the request.
    inline_is_faster: AtomicBool,
    /// What is posted to the peer arrives in this order.
    keeps_order: AtomicBool,
    /// Generations that ended with uses outstanding; whoever attached voids them.
    orphans: mpsc::UnboundedSender<u64>,
}

struct Book {
    pages: Allocator,
    next_generation: u64,
    open: HashMap<u64, Open>,
    /// Generations whose transfer is not terminal.
    pinned: HashMap<u64, Pinned>,
    pinned_bytes: u64,
    /// How many of those have missed their deadline.
    overdue: usize,
    closed: bool,
}

/// A generation whose slot is in use.
struct Open {
    allocation: Allocation,
    uses_left: u32,
    /// While this lives, notifications are looked for often.
    _awaited: AwaitGuard,
}

/// A source that a transfer may still read.
struct Pinned {
    bytes: u64,
    overdue: bool,
}

/// A place on the worker for one push. Dropping the last holder with uses outstanding has the generation voided.
pub struct LandingSlot {
    landing: Arc<Landing>,
    generation: u64,
    offset: u64,
}

/// The source of one push, counted as pinned. It is the NIXL thread's to hold until the transfer is terminal.
pub struct Pin {
    slot: Arc<LandingSlot>,
}

impl Landing {
    /// A book for a new grant; orphaned generations arrive at the receiver. Pushes pin at most `max_pinned` bytes of their
    /// sources at a time (but one always may).
    pub fn open(grant: Grant, agent: NixlAgent, max_pinned: u64) -> (Arc<Self>, mpsc::UnboundedReceiver<u64>) {
        let pages = u32::try_from(grant.bytes / SLOT_ALIGNMENT_BYTES as u64).unwrap_or(u32::MAX);
        let book = Book {
            pages: Allocator::new(pages),
            next_generation: 1,
            open: HashMap::new(),
            pinned: HashMap::new(),
            pinned_bytes: 0,
            overdue: 0,
            closed: false,
        };
        // Unbounded, but never longer than there are open generations, which the grant's pages bound.
        let (orphans, receiver) = mpsc::unbounded_channel();
        let landing = Landing {
            grant,
            agent,
            book: Mutex::new(book),
            freed: Notify::new(),
            max_pinned,
            inline_is_faster: AtomicBool::new(false),
            keeps_order: AtomicBool::new(false),
            orphans,
        };
        (Arc::new(landing), receiver)
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

    /// Whether pixels are there sooner inside the request.
    pub fn inline_is_faster(&self) -> bool {
        self.inline_is_faster.load(Ordering::Relaxed)
    }

    pub fn set_inline_is_faster(&self, faster: bool) {
        self.inline_is_faster.store(faster, Ordering::Relaxed);
    }

    /// Whether what is posted to the peer arrives in this order. Until it is known how pixels get there, it does not.
    pub fn keeps_order(&self) -> bool {
        self.keeps_order.load(Ordering::Relaxed)
    }

    pub fn set_keeps_order(&self, keeps: bool) {
        self.keeps_order.store(keeps, Ordering::Relaxed);
    }

    /// Claims a slot for `bytes` bytes of pixels and their mark, for `uses` uses, waiting for one until `deadline`.
    pub async fn claim(
        self: &Arc<Self>,
        bytes: u64,
        uses: u32,
        deadline: Instant,
    ) -> Result<(Arc<LandingSlot>, Pin), LandingError> {
        let never = LandingError::NeverFits { wanted: bytes, granted: self.grant.bytes };
        let slot_bytes = Mark::slot_bytes(bytes);
        if slot_bytes > self.grant.bytes {
            return Err(never);
        }
        let pages = u32::try_from(slot_bytes.div_ceil(SLOT_ALIGNMENT_BYTES as u64)).map_err(|_| never)?;
        loop {
            // Registered before the attempt, so that what is freed in between is not missed.
            let freed = self.freed.notified();
            if let Some(claimed) = self.try_claim(pages, bytes, uses)? {
                return Ok(claimed);
            }
            if tokio::time::timeout_at(deadline, freed).await.is_err() {
                return Err(LandingError::Busy);
            }
        }
    }

    fn try_claim(
        self: &Arc<Self>,
        pages: u32,
        bytes: u64,
        uses: u32,
    ) -> Result<Option<(Arc<LandingSlot>, Pin)>, LandingError> {
        let mut book = self.lock();
        if book.closed {
            return Err(LandingError::Closed);
        }
        if book.overdue > 0 {
            return Err(LandingError::Stuck);
        }
        if book.pinned_bytes > 0 && book.pinned_bytes.saturating_add(bytes) > self.max_pinned {
            return Ok(None);
        }
        let Some(allocation) = book.pages.allocate(pages) else { return Ok(None) };
        let generation = book.next_generation;
        book.next_generation += 1;
        let awaited = self.agent.await_notifications();
        book.open.insert(generation, Open { allocation, uses_left: uses.max(1), _awaited: awaited });
        let offset = u64::from(allocation.offset) * SLOT_ALIGNMENT_BYTES as u64;
        let slot = Arc::new(LandingSlot { landing: self.clone(), generation, offset });
        book.pinned.insert(generation, Pinned { bytes, overdue: false });
        book.pinned_bytes += bytes;
        drop(book);
        self.agent.expect_push();
        let pin = Pin { slot: slot.clone() };
        Ok(Some((slot, pin)))
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

    /// Bytes of sources whose transfer is not terminal.
    pub fn pinned_bytes(&self) -> u64 {
        self.lock().pinned_bytes
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

    /// The push has missed its deadline. Unless it has ended meanwhile, nothing more is claimed until it does.
    pub fn overdue(&self) {
        let mut book = self.landing.lock();
        if let Some(pinned) = book.pinned.get_mut(&self.generation)
            && !std::mem::replace(&mut pinned.overdue, true)
        {
            book.overdue += 1;
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let LandingSlot { landing, generation, .. } = &*self.slot;
        let mut book = landing.lock();
        if let Some(pinned) = book.pinned.remove(generation) {
            book.pinned_bytes -= pinned.bytes;
            book.overdue -= usize::from(pinned.overdue);
        }
        drop(book);
        landing.freed.notify_waiters();
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PAGE: u64 = SLOT_ALIGNMENT_BYTES as u64;

    /// As many bytes of pixels as fill so many pages, with their mark.
    fn filling(pages: u64) -> u64 {
        pages * PAGE - 64
    }

    /// A grant of `pages` pages, of whose sources `max_pinned` may be pinned.
    fn landing(pages: u64, max_pinned: u64) -> (Arc<Landing>, mpsc::UnboundedReceiver<u64>) {
        let grant = Grant {
            worker: "0123456789abcdef".into(),
            peer: "peer".into(),
            id: 7,
            address: 1 << 40,
            bytes: pages * PAGE,
            key: Key::of_secret(b""),
        };
        Landing::open(grant, NixlAgent::unconnected(), max_pinned * PAGE)
    }

    async fn claim(landing: &Arc<Landing>, pages: u64) -> Result<(Arc<LandingSlot>, Pin), LandingError> {
        landing.claim(filling(pages), 1, Instant::now()).await
    }

    #[tokio::test]
    async fn a_slot_is_free_again_when_each_use_is_over_and_a_second_word_of_it_changes_nothing() {
        let (landing, _orphans) = landing(2, 2);
        let (slot, pin) = landing.claim(filling(2), 2, Instant::now()).await.unwrap();
        drop(pin);
        let generation = slot.generation();
        landing.used(generation);
        assert_eq!(claim(&landing, 1).await.err(), Some(LandingError::Busy));
        landing.used(generation);
        let (next, _pin) = claim(&landing, 2).await.unwrap();
        assert_ne!(next.generation(), generation, "generations are used once");
        // Late words about the first do not touch the second, which lies in the same place.
        landing.used(generation);
        landing.voided(&[generation]);
        assert_eq!(landing.open_generations(), 1);
    }

    #[tokio::test]
    async fn a_slot_has_room_for_the_mark() {
        let (landing, _orphans) = landing(2, 2);
        let never = LandingError::NeverFits { wanted: 2 * PAGE, granted: 2 * PAGE };
        assert_eq!(landing.claim(2 * PAGE, 1, Instant::now()).await.err(), Some(never));
        let (slot, _pin) = landing.claim(PAGE, 1, Instant::now()).await.unwrap();
        assert_eq!(claim(&landing, 1).await.err(), Some(LandingError::Busy), "its mark is on the second page");
        drop(slot);
    }

    #[tokio::test]
    async fn what_ends_with_uses_outstanding_is_voided_before_it_is_free() {
        let (landing, mut orphans) = landing(1, 1);
        let (slot, pin) = claim(&landing, 1).await.unwrap();
        let generation = slot.generation();
        drop(slot);
        assert!(orphans.try_recv().is_err(), "the transfer still has it");
        drop(pin);
        assert_eq!(orphans.try_recv(), Ok(generation));
        assert_eq!(claim(&landing, 1).await.err(), Some(LandingError::Busy));
        landing.voided(&[generation]);
        claim(&landing, 1).await.unwrap();
    }

    #[tokio::test]
    async fn sources_are_pinned_up_to_the_cap_and_one_always_is() {
        let (landing, _orphans) = landing(16, 4);
        let (_slot, large) = claim(&landing, 5).await.expect("one, however large");
        assert_eq!(claim(&landing, 1).await.err(), Some(LandingError::Busy));
        drop(large);
        let (_slot, _three) = claim(&landing, 3).await.unwrap();
        let (_slot, one) = claim(&landing, 1).await.unwrap();
        assert_eq!(
            (landing.pinned_bytes(), claim(&landing, 1).await.err()),
            (filling(3) + filling(1), Some(LandingError::Busy))
        );
        // Whoever waits is woken when a transfer ends, although its slot is still in use.
        let waiting = landing.claim(filling(1), 1, Instant::now() + Duration::from_secs(60));
        let (waited, ()) = tokio::join!(waiting, async { drop(one) });
        assert!(waited.is_ok());
    }

    #[tokio::test]
    async fn nothing_is_claimed_while_a_push_is_overdue() {
        let (landing, _orphans) = landing(16, 16);
        let (slow, pin) = claim(&landing, 1).await.unwrap();
        let (done, ended) = claim(&landing, 1).await.unwrap();
        drop(ended);
        done.overdue();
        assert!(claim(&landing, 1).await.is_ok(), "that one had ended when its deadline was noticed");
        slow.overdue();
        slow.overdue();
        assert_eq!(claim(&landing, 1).await.err(), Some(LandingError::Stuck));
        drop(pin);
        assert!(claim(&landing, 1).await.is_ok(), "it ended after all");
        landing.close();
        assert_eq!(claim(&landing, 1).await.err(), Some(LandingError::Closed));
    }
}
