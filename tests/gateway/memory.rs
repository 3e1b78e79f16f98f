//! What the whole program takes of the machine's memory, against the sum that it prints.

use std::fs;

use futures_util::{StreamExt, stream};
use mediagate::config::BASE_BYTES;

use super::support::{
    bodies,
    files::Files,
    gateway::Gateway,
    pictures::{self, data_uri},
    worker::FakeWorker,
};

/// The process's resident memory in bytes: `VmRSS` now, `VmHWM` at its highest.
fn resident_bytes(gateway: &Gateway, which: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(which)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}

#[tokio::test]
async fn under_load_the_program_takes_no_more_than_the_sum_that_it_prints() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let allowed = files.allowed();
    let budgets = [
        ["--arena-bytes", "48MiB"],
        ["--body-budget-bytes", "16MiB"],
        ["--worker-body-budget-bytes", "8MiB"],
        ["--max-body-bytes", "4MiB"],
        ["--media-encoded-budget-bytes", "8MiB"],
        ["--media-max-bytes", "2MiB"],
        ["--media-max-pixels", "1000000"],
        ["--media-scratch-budget-bytes", "8MiB"],
        ["--admission-timeout-ms", "60000"],
    ];
    let flags: Vec<_> = budgets.concat().into_iter().chain(allowed.iter().map(String::as_str)).collect();
    let gateway = Gateway::decoding(&worker.url(), &flags).await;
    let line = gateway.log.wait_for("memory_bytes=").await;
    let sum: usize = line.split("memory_bytes=").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let at_rest = resident_bytes(&gateway, "VmRSS");
    let base = at_rest - (48 << 20);
    assert!(base <= BASE_BYTES as usize / 2, "{base} bytes resident beside the arena before anything was asked");

    // Noise, so that files are as large as their pixels: 270 kB by URL, 360 kB as text.
    let requests: Vec<_> = (0..60)
        .map(|n| {
            let by_url: Vec<_> =
                (0..2).map(|k| files.put(&format!("/{n}-{k}.png"), pictures::png(n * 10 + k, 300, 300).0)).collect();
            let by_text: Vec<_> =
                (2..4).map(|k| data_uri("image/png", &pictures::png(n * 10 + k, 300, 300).0)).collect();
            bodies::with_images(by_url.iter().chain(&by_text).map(String::as_str))
        })
        .collect();
    for _ in 0..3 {
        let statuses = stream::iter(requests.clone()).map(|body| gateway.chat(body)).buffer_unordered(30);
        assert!(statuses.all(|(status, _)| async move { status == 200 }).await);
    }
    let peak = resident_bytes(&gateway, "VmHWM");
    println!("resident: {} MiB at rest, {} MiB at most, {} MiB printed", at_rest >> 20, peak >> 20, sum >> 20);
    assert!(peak <= sum, "{peak} bytes resident at most, {sum} are printed");
}
