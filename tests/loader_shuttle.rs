//! Budgets, flights and pins under a model checker, which runs each scenario through thousands of interleavings.
//!
//! `cargo test --release --features shuttle --test loader_shuttle`

use std::sync::Arc;

use futures_util::FutureExt;
use mediagate::{
    media::{
        cache::{Contents, SourceKey, Sources},
        content::{Name, Scope},
        fetch::Validators,
        loader::{Flight, Flights, Gate, Joined, Waiting},
        picture::{Media, Picture},
    },
    memory::{Admission, Arena, Budget, SLOT_ALIGNMENT_BYTES, ZoneId},
};
use shuttle::{
    future::{block_on, spawn, yield_now},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

const RUNS: usize = 5_000;

/// Random schedules, and schedules with few but telling switches.
fn check(scenario: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(scenario, RUNS);
    shuttle::check_pct(scenario, RUNS, 3);
}

#[test]
fn a_budget_is_never_exceeded_and_everybody_in_line_is_served() {
    check(|| {
        let budget = Budget::new(10);
        let held = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = [7, 4, 3, 10]
            .into_iter()
            .map(|bytes| {
                let (budget, held) = (budget.clone(), held.clone());
                spawn(async move {
                    let mut admission = budget.acquire(bytes).await.unwrap();
                    assert!(held.fetch_add(bytes, Ordering::SeqCst) + bytes <= 10);
                    yield_now().await;
                    held.fetch_sub(bytes, Ordering::SeqCst);
                    let piece = admission.split(1).unwrap();
                    drop(admission);
                    drop(piece);
                })
            })
            .collect();
        for task in tasks {
            block_on(task).unwrap();
        }
        assert_eq!((budget.free_bytes(), budget.waiting()), (10, 0));
    });
}

#[test]
fn bytes_that_were_put_aside_for_other_threads_are_found() {
    check(|| {
        // A sixty-fourth may lie in a till.
        let budget = Budget::new(64 * 4);
        let small: Vec<_> = (0..3)
            .map(|_| {
                let budget = budget.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        if let Ok(admission) = budget.try_admit(3) {
                            thread::yield_now();
                            drop(admission);
                        }
                    }
                })
            })
            .collect();
        let all = spawn({
            let budget = budget.clone();
            async move { drop(budget.acquire(64 * 4).await.unwrap()) }
        });
        small.into_iter().for_each(|thread| thread.join().unwrap());
        block_on(all).unwrap();
        assert_eq!((budget.free_bytes(), budget.waiting()), (64 * 4, 0));
    });
}

/// A hit finds a slot by a way of its own, beside the table from which it may be evicted at that moment.
#[test]
fn a_hit_and_an_eviction_at_once_leave_whole_pixels_or_none() {
    check(|| {
        let arena = Arena::new(2 * SLOT_ALIGNMENT_BYTES).unwrap();
        let (sources, contents) = (Arc::new(Sources::default()), Arc::new(Contents::new(arena.clone())));
        let (key, now) = (SourceKey::url(&Scope::default(), "a"), std::time::Instant::now());
        let kept = contents.keep(picture(&arena, 1).unwrap(), now).0;
        sources.remember(key, kept.content(), None, Validators::default(), now);
        sources.found(&key, &kept, now);
        drop(kept);
        let hitting = thread::spawn({
            let (arena, sources) = (arena.clone(), sources.clone());
            move || {
                if let Some(hit) = sources.hit(&key, now, |bytes| arena.try_lease(bytes).ok()) {
                    thread::yield_now();
                    assert_eq!(hit.slot()[..], [1; 3]);
                }
            }
        });
        let writing = thread::spawn({
            let (arena, contents) = (arena.clone(), contents.clone());
            move || {
                contents.evict_one(ZoneId::Small);
                let all: Vec<_> = (2..4).filter_map(|value| picture(&arena, value)).collect();
                assert!(!all.is_empty());
            }
        });
        hitting.join().unwrap();
        writing.join().unwrap();
        contents.clear();
        assert_eq!(arena.usage().used_bytes, 0);
        let budget = arena.budget(ZoneId::Small);
        assert_eq!(budget.free_bytes(), budget.total_bytes());
    });
}

#[test]
fn who_leaves_the_line_loses_nothing_for_others() {
    check(|| {
        let budget = Budget::new(10);
        let first = budget.try_admit(10).unwrap();
        let waiting = spawn({
            let budget = budget.clone();
            async move { drop(budget.acquire(6).await.unwrap()) }
        });
        let leaving = spawn({
            let budget = budget.clone();
            async move {
                let mut turn = Box::pin(budget.acquire(10));
                let served = futures_util::poll!(&mut turn).is_ready();
                yield_now().await;
                drop(turn);
                served
            }
        });
        let giving = thread::spawn(move || drop(first));
        giving.join().unwrap();
        block_on(leaving).unwrap();
        block_on(waiting).unwrap();
        assert_eq!((budget.free_bytes(), budget.waiting()), (10, 0));
    });
}

#[test]
fn work_is_done_once_however_the_askers_come_and_go() {
    check(|| {
        let flights = Arc::<Flights<u8, usize>>::default();
        let (begun, stored) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let tasks: Vec<_> = (0..3)
            .map(|asker| {
                let (flights, begun, stored) = (flights.clone(), begun.clone(), stored.clone());
                spawn(async move {
                    let ready = || Some(stored.load(Ordering::SeqCst)).filter(|&stored| stored > 0);
                    let work = |()| {
                        let (begun, stored) = (begun.clone(), stored.clone());
                        async move {
                            begun.fetch_add(1, Ordering::SeqCst);
                            yield_now().await;
                            stored.store(7, Ordering::SeqCst);
                            7
                        }
                        .boxed()
                    };
                    let flight = match flights.join(1, ready, work) {
                        Joined::Ready(result) => return assert_eq!(result, 7),
                        Joined::Led(flight) | Joined::Followed(flight) => flight,
                    };
                    if asker == 0 {
                        // Looks in once and leaves.
                        let _ = flight.result().now_or_never();
                    } else {
                        assert_eq!(flight.result().await, 7);
                    }
                })
            })
            .collect();
        for task in tasks {
            block_on(task).unwrap();
        }
        // Twice only if the one who looked in was alone at it when it left.
        assert!((1..=2).contains(&begun.load(Ordering::SeqCst)));
        assert!(flights.is_empty());
    });
}

/// A file as long as anybody has it.
#[derive(Clone)]
struct File(#[allow(dead_code)] Arc<Present>);

/// Counts the bytes of a file that are in memory.
struct Present(Arc<AtomicUsize>);

const FILE_BYTES: usize = 10;

impl Present {
    /// Files are covered by admissions, but for those that a request comes across on its way to its turn. It keeps none.
    fn new(shared: &Shared) -> Self {
        // Looked at first: one that passes on between the two looks takes its file with it, and must not be missed.
        let passing = shared.passing.load(Ordering::SeqCst);
        let before = shared.present.fetch_add(FILE_BYTES, Ordering::SeqCst);
        let most_bytes = shared.budget.total_bytes() + passing * FILE_BYTES;
        assert!(before + FILE_BYTES <= most_bytes, "files that nobody is admitted to");
        Present(shared.present.clone())
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(FILE_BYTES, Ordering::SeqCst);
    }
}

type Files = Arc<Flights<u8, File, Gate>>;

/// What the requests of a scenario share.
#[derive(Clone)]
struct Shared {
    flights: Files,
    budget: Budget,
    /// Bytes of files in memory.
    present: Arc<AtomicUsize>,
    /// Requests that have joined a fetch and do not stand in line yet.
    passing: Arc<AtomicUsize>,
    fetches: Arc<AtomicUsize>,
}

impl Shared {
    fn new(budget_bytes: usize) -> Self {
        Shared {
            flights: Files::default(),
            budget: Budget::new(budget_bytes),
            present: Arc::default(),
            passing: Arc::default(),
            fetches: Arc::default(),
        }
    }

    /// Until the size of the file is known.
    async fn begin(&self, image: u8) -> Arc<Flight<u8, File, Gate>> {
        let work = |gate: Gate| {
            let shared = self.clone();
            self.fetches.fetch_add(1, Ordering::SeqCst);
            async move {
                gate.wait(FILE_BYTES).await;
                let file = File(Arc::new(Present::new(&shared)));
                yield_now().await;
                file
            }
            .boxed()
        };
        let flight = match self.flights.join(image, || None::<()>, work) {
            Joined::Ready(()) => unreachable!("nothing is kept"),
            Joined::Led(flight) | Joined::Followed(flight) => flight,
        };
        {
            let size = std::pin::pin!(flight.beside().announced());
            futures_util::future::select(flight.result(), size).await;
        }
        flight
    }

    /// All files of a request, in the stages of the loader.
    async fn load(&self, images: &[u8]) -> (Vec<Arc<Flight<u8, File, Gate>>>, Admission) {
        let mut asked = Vec::new();
        for image in images {
            self.passing.fetch_add(1, Ordering::SeqCst);
            asked.push(Waiting::new(self.begin(*image).await));
            self.passing.fetch_sub(1, Ordering::SeqCst);
        }
        let share = self.budget.acquire(images.len() * FILE_BYTES).await.unwrap();
        let mut flights = Vec::new();
        for (image, waiting) in images.iter().zip(asked) {
            let flight = match waiting.admitted(FILE_BYTES) {
                Some(flight) => flight,
                None => self.begin(*image).await,
            };
            flight.beside().open(FILE_BYTES);
            flights.push(flight);
        }
        for flight in &flights {
            flight.result().await;
        }
        (flights, share)
    }

    fn assert_at_rest(&self) {
        assert!(self.flights.is_empty());
        assert_eq!(self.present.load(Ordering::SeqCst), 0);
        assert_eq!((self.budget.free_bytes(), self.budget.waiting()), (self.budget.total_bytes(), 0));
    }
}

/// Requests for the same images, each of which may come to lead one and follow another, and room for one of them.
#[test]
fn one_who_is_admitted_waits_for_nobody_who_is_not() {
    check(|| {
        let shared = Shared::new(2 * FILE_BYTES);
        let requests: Vec<_> = [[0u8, 1], [1, 0], [1, 2]]
            .into_iter()
            .map(|images| {
                let shared = shared.clone();
                spawn(async move { drop(shared.load(&images).await) })
            })
            .collect();
        for request in requests {
            block_on(request).unwrap();
        }
        shared.assert_at_rest();
    });
}

#[test]
fn others_go_on_when_one_leaves_at_any_moment_after_it_was_admitted() {
    check(|| {
        let shared = Shared::new(2 * FILE_BYTES);
        let leaving = spawn({
            let shared = shared.clone();
            async move {
                let mut load = Box::pin(shared.load(&[0, 1]));
                // A step of the scheduler each, however far that gets it.
                for _ in 0..4 {
                    if futures_util::poll!(&mut load).is_ready() {
                        return;
                    }
                    yield_now().await;
                }
            }
        });
        let staying: Vec<_> = [[1u8, 0], [0, 2]]
            .into_iter()
            .map(|images| {
                let shared = shared.clone();
                spawn(async move { drop(shared.load(&images).await) })
            })
            .collect();
        block_on(leaving).unwrap();
        for request in staying {
            block_on(request).unwrap();
        }
        // Each image once for each who asked for it, at most.
        assert!((3..=6).contains(&shared.fetches.load(Ordering::SeqCst)));
        shared.assert_at_rest();
    });
}

/// With room for all nobody has to wait, and so nobody asks again.
#[test]
fn who_is_admitted_while_others_have_the_file_shares_it() {
    check(|| {
        let shared = Shared::new(4 * FILE_BYTES);
        let first = block_on({
            let shared = shared.clone();
            async move { shared.load(&[0, 1]).await }
        });
        let second = spawn({
            let shared = shared.clone();
            async move { drop(shared.load(&[1, 0]).await) }
        });
        block_on(second).unwrap();
        assert_eq!(shared.fetches.load(Ordering::SeqCst), 2);
        drop(first);
        shared.assert_at_rest();
    });
}

fn picture(arena: &Arc<Arena>, value: u8) -> Option<Media> {
    let mut slot = arena.allocate(3)?;
    slot.fill(value);
    Some(Media::Picture(Picture { name: Name::of(&Scope::default(), 1, 1, &[value; 3]), slot: slot.freeze() }))
}

#[test]
fn a_pinned_picture_is_never_evicted_and_its_slot_never_written() {
    check(|| {
        // Room for two, of which one is pinned and then evicted while others want room.
        let arena = Arena::new(2 * SLOT_ALIGNMENT_BYTES).unwrap();
        let contents = Arc::new(Contents::new(arena.clone()));
        let now = std::time::Instant::now();
        let content = contents.keep(picture(&arena, 1).unwrap(), now).0.content();
        let pinning = thread::spawn({
            let (arena, contents) = (arena.clone(), contents.clone());
            move || {
                let lease = Arc::new(arena.try_lease(3).unwrap());
                if let Some(pinned) = contents.pin(&content, &lease, now) {
                    thread::yield_now();
                    assert_eq!(pinned.slot()[..], [1; 3]);
                }
            }
        });
        let writing: Vec<_> = [2, 3]
            .into_iter()
            .map(|value| {
                let (arena, contents) = (arena.clone(), contents.clone());
                thread::spawn(move || {
                    while arena.usage().used_bytes == arena.bytes() && contents.evict_one(ZoneId::Small) {}
                    if let Some(picture) = picture(&arena, value) {
                        let (kept, _) = contents.keep(picture, now);
                        assert_eq!(kept.slot()[..], [value; 3]);
                    }
                })
            })
            .collect();
        pinning.join().unwrap();
        writing.into_iter().for_each(|thread| thread.join().unwrap());
        contents.clear();
        assert_eq!(arena.usage().used_bytes, 0);
        let budget = arena.budget(ZoneId::Small);
        assert_eq!(budget.free_bytes(), budget.total_bytes());
    });
}
