//! `mediagate warm`: images are there before a client asks, and what cannot be had is told one by one.

use std::{
    io::Write,
    process::{Output, Stdio},
};

use super::support::{
    bodies,
    files::Files,
    gateway::{Gateway, command},
    pictures,
    worker::FakeWorker,
};

/// Runs `mediagate warm` on these lines.
async fn warm(gateway: &Gateway, lines: &str) -> Output {
    let mut list = tempfile::NamedTempFile::new().unwrap();
    list.write_all(lines.as_bytes()).unwrap();
    let mut command = command();
    command.args(["warm", "--admin-url", &format!("http://{}", gateway.admin), "--file"]).arg(list.path());
    command.stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn what_is_warm_is_not_fetched_again() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let gateway = Gateway::fetching(&worker.url(), &files).await;
    let urls: Vec<_> = (0..20).map(|n| files.put(&format!("/{n}.png"), pictures::png(n, 40, 30).0)).collect();
    let output = warm(&gateway, &format!("# those of the front page\n\n{}\n", urls.join("\n"))).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "20 of 20 images are warm\n");
    // No terminal, no bar.
    assert_eq!(text(&output.stderr), "");
    assert_eq!(gateway.chat(bodies::with_images(urls.iter().map(String::as_str))).await.0, 200);
    assert!((0..20).all(|n| files.count(&format!("/{n}.png")) == 1));
    assert_eq!(gateway.metric("mediagate_media_total", "from=\"source_hit\"").await, 20.0);
}

#[tokio::test]
async fn what_cannot_be_had_is_named_by_its_number_and_the_others_are_warm() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let gateway = Gateway::fetching(&worker.url(), &files).await;
    let good = files.put("/good.png", pictures::png(1, 40, 30).0);
    let broken = files.put("/broken.png", &b"\x89PNG\r\n\x1a\nno"[..]);
    let lines = format!("{good}\n{}?key=secret\n{broken}\nhttp://169.254.169.254/x\n", files.url("/missing.png"));
    let output = warm(&gateway, &lines).await;
    assert!(!output.status.success());
    assert_eq!(text(&output.stdout), "1 of 4 images are warm\n");
    let said = text(&output.stderr);
    for (number, what) in [(2, "answered 404"), (3, ""), (4, "IP address")] {
        assert!(said.lines().any(|said| said.contains(&format!("image {number}: ")) && said.contains(what)), "{said}");
    }
    assert!(!said.contains("secret"), "{said}");
    assert!(said.contains("3 images could not be loaded"), "{said}");
}

#[tokio::test]
async fn a_gateway_that_is_not_there_or_keeps_nothing_is_said_at_once() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let output = warm(&gateway, "http://a.example/x.png\n").await;
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("--frontend-decoding"), "{}", text(&output.stderr));
    let output = command()
        .args(["warm", "--file", "/dev/null", "--admin-url", "http://127.0.0.1:1"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "0 of 0 images are warm\n");
}
