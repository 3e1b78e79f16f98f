//! What metrics take of the memory where nobody asks for them.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicIsize, Ordering},
    time::Duration,
};

use mediagate::observe;

/// Samples of a round: 16 MB of them where they are kept.
const SAMPLES: usize = 1_000_000;
const ROUNDS: usize = 5;
const MOST_KEPT_BYTES: isize = 1 << 20;
/// No upkeep takes nearly as long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

static HELD_BYTES: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator; knows what is held.
struct Counting;

// SAFETY: everything goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that it asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above; the pointer came from it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[tokio::test]
async fn samples_that_nobody_asks_for_are_summed_up_and_let_go() {
    let metrics = observe::install().unwrap();
    observe::fetched(Duration::from_millis(1), 1000);
    metrics.render();
    let held = || HELD_BYTES.load(Ordering::Relaxed);
    let before = held();
    let record = || (0..SAMPLES).for_each(|_| observe::fetched(Duration::from_millis(1), 1000));
    record();
    assert!(
        held() - before > 8 * SAMPLES as isize,
        "they are kept until somebody looks: else this test proves nothing"
    );
    tokio::spawn(observe::upkeep(metrics.clone(), Duration::from_millis(10)));
    for _ in 0..ROUNDS {
        record();
        tokio::time::timeout(PATIENCE, async {
            while held() - before > MOST_KEPT_BYTES {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{} bytes are still held", held() - before));
    }
    let count = format!("mediagate_fetch_seconds_count {}", 1 + SAMPLES * (1 + ROUNDS));
    assert!(metrics.render().contains(&count), "none is lost");
}
