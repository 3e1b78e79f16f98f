//! What a small request waits beside large bodies that are being looked through.
//!
//! `cargo bench --bench scan`. On a runtime of two threads, two requests after another of 100 MiB are looked through, on the
//! threads that serve connections or aside from them; meanwhile small ones come in, one every two milliseconds.

use std::time::{Duration, Instant};

use mediagate::{
    request::{ClientRequest, shape},
    server::scan::Scans,
};
use tokio::{runtime::Builder, task};

const LARGE_BYTES: usize = 100 << 20;
const SMALL: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
const SMALL_ONES: usize = 400;

/// One image in a data: URI.
fn base64(bytes: usize) -> Vec<u8> {
    let part = r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,"#;
    format!(r#"{{"messages":[{{"role":"user","content":[{part}{}"}}}}]}}]}}"#, "QUJD".repeat(bytes / 4)).into_bytes()
}

/// Numbers, as many as there is room for.
fn numbers(bytes: usize) -> Vec<u8> {
    format!(r#"{{"messages":[],"metadata":[{}0]}}"#, "0,".repeat(bytes / 2)).into_bytes()
}

fn main() {
    for (name, body) in [("base64", base64(1 << 20)), ("numbers", numbers(1 << 20))] {
        let took = (0..20).map(|_| once(&body)).min().unwrap_or_default();
        println!("1 MiB of {name}: {took:?}");
    }
    let large: &'static [u8] = base64(LARGE_BYTES).leak();
    println!("100 MiB of base64: {:?}", (0..5).map(|_| once(large)).min().unwrap_or_default());
    for (name, aside) in [("nobody", None), ("on the same threads", Some(false)), ("aside", Some(true))] {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut waits = runtime.block_on(beside(large, aside));
        runtime.shutdown_background();
        waits.sort_unstable();
        let at = |share: usize| waits[(waits.len() - 1) * share / 100];
        println!(
            "beside large ones, {name}: p50 {:?}, p90 {:?}, p99 {:?}, longest {:?}",
            at(50),
            at(90),
            at(99),
            at(100)
        );
    }
}

fn once(body: &[u8]) -> Duration {
    let start = Instant::now();
    assert!(ClientRequest::read(&shape::CHAT, body).is_ok());
    start.elapsed()
}

async fn beside(large: &'static [u8], aside: Option<bool>) -> Vec<Duration> {
    let scans: &'static Scans = Box::leak(Box::default());
    let others: Vec<_> = aside
        .iter()
        .flat_map(|&aside| [aside, aside])
        .map(|aside| {
            tokio::spawn(async move {
                loop {
                    if aside {
                        assert!(scans.read(&shape::CHAT, large).await.is_ok());
                    } else {
                        once(large);
                    }
                    task::yield_now().await;
                }
            })
        })
        .collect();
    let mut waits = Vec::with_capacity(SMALL_ONES);
    for _ in 0..SMALL_ONES {
        // On a thread of its own, so that it is due when it is due.
        task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(2))).await.unwrap();
        let due = Instant::now();
        let small = tokio::spawn(async move {
            assert!(scans.read(&shape::CHAT, SMALL).await.is_ok());
            due.elapsed()
        });
        waits.push(small.await.unwrap());
    }
    others.iter().for_each(task::JoinHandle::abort);
    waits
}
