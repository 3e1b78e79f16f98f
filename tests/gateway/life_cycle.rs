//! Starting and ending.

use super::support::{
    bodies, eventually,
    gateway::{self, Gateway},
    worker::{FakeWorker, LAST_CHUNK, SSE_HEAD, chunk},
};

#[tokio::test]
async fn on_sigterm_a_stream_ends_in_its_own_time_nothing_new_is_taken_and_the_exit_is_clean() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    let mut idle = gateway.raw().await;
    let mut exchange = worker.next().await;
    exchange.write(format!("{SSE_HEAD}{}", chunk("data: 1\n\n"))).await;
    client.answer_head().await;
    client.bytes(chunk("data: 1\n\n").len()).await;

    gateway.signal(libc::SIGTERM);
    let public = gateway.public;
    eventually("no new connections", || async { tokio::net::TcpStream::connect(public).await.is_err() }).await;
    assert!(idle.rest().await.is_empty(), "connections without a request end at once");
    exchange.write(format!("{}{LAST_CHUNK}", chunk("data: 2\n\n"))).await;
    let rest = String::from_utf8(client.rest().await).unwrap();
    assert_eq!(rest, format!("{}{LAST_CHUNK}", chunk("data: 2\n\n")));
    let (status, log) = gateway.ended().await;
    assert_eq!(status.code(), Some(0), "{}", log.text());
}

#[tokio::test]
async fn streams_that_outlive_the_grace_time_do_not_hold_up_the_end() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--shutdown-grace-ms", "10"]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    let mut exchange = worker.next().await;
    exchange.write(SSE_HEAD).await;
    client.answer_head().await;
    gateway.signal(libc::SIGTERM);
    let (status, log) = gateway.ended().await;
    assert_eq!(status.code(), Some(0), "{}", log.text());
    assert!(!String::from_utf8(client.rest().await).unwrap().ends_with(LAST_CHUNK));
}

#[tokio::test]
async fn sigint_ends_it_too() {
    let gateway = Gateway::start(&["--worker", "http://127.0.0.1:1"], &[]).await;
    gateway.signal(libc::SIGINT);
    assert_eq!(gateway.ended().await.0.code(), Some(0));
}

#[tokio::test]
async fn what_cannot_work_is_said_in_one_line_and_the_start_fails() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    for (flags, hint) in [
        (vec!["--worker", "http://127.0.0.1:1", "--listen", &taken], taken.as_str()),
        (vec!["--worker", "127.0.0.1:8000"], "worker"),
        (vec!["--worker", "http://x:1", "--worker", "http://x:1/"], "twice"),
        (vec!["--worker", "http://x:1", "--api-key-file", "/nonexistent"], "/nonexistent"),
        (vec!["--worker", "http://x:1", "--config", "/nonexistent"], "/nonexistent"),
        (vec!["--worker", "http://x:1", "--frontend-decoding", "--arena-bytes", "1MiB"], "--arena-bytes"),
    ] {
        let output = gateway::command().args(&flags).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{flags:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("mediagate: ") && last.contains(hint), "{flags:?}: {said}");
        assert!(!said.contains("panicked"));
    }
}

#[tokio::test]
async fn without_nixl_one_line_says_so_and_pixels_go_inline() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &["--nixl-lib-dir", "/nonexistent"]).await;
    let lines = gateway.log.count("NIXL");
    assert_eq!(lines, 1, "{}", gateway.log.text());
    let line = gateway.log.wait_for("NIXL is not available").await;
    assert!(line.contains("inline") && line.contains("/nonexistent"), "{line}");
}
