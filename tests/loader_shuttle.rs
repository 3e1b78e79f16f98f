//! Budgets, flights and pins under a model checker, which runs each scenario through thousands of interleavings.
//!
//! `cargo test --release --features shuttle --test loader_shuttle`

use std::sync::Arc;

use futures_util::FutureExt;
use mediagate::{
    media::{
        cache::Contents,
        content::{Name, Scope},
        loader::{Flights, Joined},
        picture::Picture,
    },
    memory::{Arena, Budget, SLOT_ALIGNMENT_BYTES, ZoneId},
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
                    let work = || {
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

fn picture(arena: &Arc<Arena>, value: u8) -> Option<Picture> {
    let mut slot = arena.allocate(3)?;
    slot.fill(value);
    Some(Picture { name: Name::of(&Scope::default(), 1, 1, &[value; 3]), slot: slot.freeze() })
}

#[test]
fn a_pinned_picture_is_never_evicted_and_its_slot_never_written() {
    check(|| {
        // Room for two, of which one is pinned and then evicted while others want room.
        let arena = Arena::new(2 * SLOT_ALIGNMENT_BYTES).unwrap();
        let contents = Arc::new(Contents::new(arena.clone()));
        let now = std::time::Instant::now();
        let name = contents.keep(picture(&arena, 1).unwrap(), now).0.name;
        let pinning = thread::spawn({
            let (arena, contents) = (arena.clone(), contents.clone());
            move || {
                let lease = Arc::new(arena.try_lease(3).unwrap());
                if let Some(pinned) = contents.pin(&name, &lease, now) {
                    thread::yield_now();
                    assert_eq!(pinned.slot[..], [1; 3]);
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
                        assert_eq!(kept.slot[..], [value; 3]);
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
