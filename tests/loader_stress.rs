//! A small arena under many requests: every answer right, memory within the budgets, nothing left behind.
//!
//! The loader runs in a process of its own (this test's binary once more), so that its peak memory is its own and not that
//! of the origin and of the pictures that it draws.
#![cfg(not(feature = "shuttle"))]

mod loader_support;

use std::{env, fs, process::Command, sync::Arc, time::Duration};

use loader_support::{Origin, PATIENCE, at_rest, picture, pixels, zoned_loader};
use mediagate::{
    config::BASE_BYTES,
    error::Fault,
    media::{
        content::{ContentHash, Scope},
        loader::{MediaConfig, MediaLoader},
        source::SourceText,
    },
};
use tokio::{sync::Semaphore, time::Instant};

const ARENA_BYTES: usize = 64 << 20;
const LARGEST_BYTES: usize = 1024 * 1024 * 3;
const ENCODED_BYTES: usize = 32 << 20;
const SCRATCH_BYTES: usize = 32 << 20;
const IMAGES: u64 = 500;
const CONCURRENT: usize = 200;
const REQUESTS: u64 = 1_000;

/// What a request does beside waiting for memory: fetching from a busy origin, on a busy machine.
const SLACK: Duration = Duration::from_secs(100);

const PORT: &str = "MEDIAGATE_TEST_STRESS_ORIGIN_PORT";

/// Height and width of an image: most are small, one in twenty is above a thirty-second of the arena.
fn size(seed: u64) -> (u32, u32) {
    match seed % 20 {
        0 => (1024, 1024 - (seed % 100) as u32),
        n => (40 + (n * 31) as u32, 700 - (seed % 400) as u32),
    }
}

/// The images of a request: one to six, with some favourites that many ask for.
fn seeds(request: u64) -> Vec<u64> {
    let count = 1 + request % 6;
    let spread =
        |n: u64| request.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n.wrapping_mul(0xbf58_476d_1ce4_e5b9)) >> 33;
    (0..count).map(|n| if spread(n) % 4 == 0 { spread(n) % 20 } else { spread(n) % IMAGES }).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_at_once_over_five_hundred_images_in_64_mib() {
    if let Ok(port) = env::var(PORT) {
        return load(port.parse().unwrap()).await;
    }
    let origin = Origin::start().await;
    let mut again = Command::new(env::current_exe().unwrap());
    again.args(["--exact", "two_hundred_at_once_over_five_hundred_images_in_64_mib", "--nocapture"]);
    again.env(PORT, origin.port().to_string());
    let status = tokio::task::spawn_blocking(move || again.status()).await.unwrap().unwrap();
    assert!(status.success(), "the loader's process failed: see above");
}

async fn load(port: u16) {
    let config =
        MediaConfig { encoded_bytes: ENCODED_BYTES, scratch_bytes: SCRATCH_BYTES, ..loader_support::config(port) };
    let loader = zoned_loader(config, ARENA_BYTES, LARGEST_BYTES);
    let hash = |seed| {
        let (height, width) = size(seed);
        ContentHash::of(height, width, &pixels(seed, width, height))
    };
    let expected: Arc<Vec<_>> = Arc::new((0..IMAGES).map(hash).collect());
    let patient = run(&loader, port, &expected, PATIENCE).await;
    assert_eq!(patient.refused, 0, "with time enough everybody is served");
    let hurried = run(&loader, port, &expected, Duration::from_millis(100)).await;
    assert!(hurried.served > 0);
    at_rest(&loader).await;

    let budgets = ENCODED_BYTES + SCRATCH_BYTES + ARENA_BYTES + BASE_BYTES as usize;
    let peak = peak_resident_bytes();
    println!("patient: {patient:?}\nhurried: {hurried:?}\npeak resident {} MiB of {} MiB", peak >> 20, budgets >> 20);
    assert!(peak <= budgets, "{peak} bytes resident at most, the budgets are {budgets}");
}

#[derive(Debug, Default)]
struct Outcome {
    served: usize,
    refused: usize,
    longest: Duration,
}

async fn run(loader: &MediaLoader, port: u16, expected: &Arc<Vec<ContentHash>>, patience: Duration) -> Outcome {
    let turns = Arc::new(Semaphore::new(CONCURRENT));
    let mut requests = Vec::new();
    for request in 0..REQUESTS {
        let turn = turns.clone().acquire_owned().await.unwrap();
        let (loader, expected) = (loader.clone(), expected.clone());
        requests.push(tokio::spawn(async move {
            let seeds = seeds(request);
            let sources: Vec<SourceText> = seeds
                .iter()
                .map(|seed| {
                    let (height, width) = size(*seed);
                    format!("http://127.0.0.1:{port}/{seed}/{width}/{height}").into()
                })
                .collect();
            let start = Instant::now();
            let result = loader.load_all(&sources, &Scope::default(), start + patience).await;
            let took = start.elapsed();
            assert!(took < patience + SLACK, "a request took {took:?}");
            let served = match result {
                Ok(loaded) => {
                    for (loaded, seed) in loaded.iter().zip(&seeds) {
                        let (height, width) = size(*seed);
                        assert_eq!(ContentHash::of(height, width, picture(loaded).0), expected[*seed as usize]);
                    }
                    true
                }
                Err(error) => {
                    assert_eq!(error.error.code(), "media_overloaded", "{error}");
                    false
                }
            };
            drop(turn);
            (served, took)
        }));
    }
    let mut outcome = Outcome::default();
    for request in requests {
        let (served, took) = request.await.unwrap();
        *(if served { &mut outcome.served } else { &mut outcome.refused }) += 1;
        outcome.longest = outcome.longest.max(took);
    }
    outcome
}

/// VmHWM.
fn peak_resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}
