//! What streams through: uploads of audio, and the routes that an operator adds.

use serde_json::json;

use super::support::{
    gateway::{self, Gateway},
    raw::RawClient,
    soon,
    worker::{FakeWorker, chunk, ok_json},
};

fn form(model: &str) -> String {
    let field =
        |name: &str, value: &str| format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    format!("{}{}--x--\r\n", field("file", "sound"), field("model", model))
}

fn upload(gateway: &Gateway, path: &str, body: String) -> reqwest::RequestBuilder {
    let request = reqwest::Client::new().post(gateway.url(path));
    request.header("content-type", "multipart/form-data; boundary=x").body(body)
}

#[tokio::test]
async fn an_upload_passes_as_it_is() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    for (index, path) in ["/v1/audio/transcriptions", "/v1/audio/translations"].into_iter().enumerate() {
        assert_eq!(gateway::answer(upload(&gateway, path, form("m"))).await.0, 200);
        let seen = worker.seen().swap_remove(index);
        assert_eq!(seen.start, format!("POST {path} HTTP/1.1"));
        assert_eq!(String::from_utf8(seen.body.clone()).unwrap(), form("m"));
        assert_eq!(seen.header("content-type"), Some("multipart/form-data; boundary=x"));
        assert_eq!(seen.header("content-length"), Some(form("m").len().to_string().as_str()));
    }
}

#[tokio::test]
async fn an_upload_streams_and_takes_nothing_of_the_memory_for_bodies() {
    let worker = FakeWorker::by_hand().await;
    let gateway =
        Gateway::passthrough(&worker.url(), &["--max-body-bytes", "1MiB", "--body-budget-bytes", "1MiB"]).await;
    let mut client = RawClient::connect(gateway.public).await;
    client.send("POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    client.send(chunk("the first of it")).await;
    // The worker has a connection already, and of the budget nothing is held.
    gateway.log.wait_for("worker health changed").await;
    assert_eq!(gateway.metric("mediagate_budget_free_bytes", "\"bodies").await, f64::from(1 << 20));
    client.send(format!("{}0\r\n\r\n", chunk("the rest"))).await;
    let exchange = worker.next().await;
    assert_eq!(exchange.request.body, b"the first of itthe rest");
    exchange.answer(ok_json("{}")).await;
    assert_eq!(client.answer().await.status(), 200);
}

#[tokio::test]
async fn an_upload_that_is_too_large_is_413_announced_or_not() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--max-body-bytes", "64KiB"]).await;
    let (status, answer) = gateway::answer(upload(&gateway, "/v1/audio/transcriptions", "x".repeat(100_000))).await;
    assert_eq!((status, &answer["error"]["code"]), (413, &json!("body_too_large")));
    let mut client = RawClient::connect(gateway.public).await;
    client.send("POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    for _ in 0..100 {
        if client.try_send(chunk(&"x".repeat(1000))).await.is_err() {
            break;
        }
    }
    let answer = soon("an answer", client.answer()).await;
    assert_eq!((answer.status(), &answer.json()["error"]["code"]), (413, &json!("body_too_large")));
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn an_upload_goes_to_a_worker_that_serves_its_model() {
    let workers = [FakeWorker::start().await, FakeWorker::start().await];
    workers[0].set_models(&["chat"]);
    workers[1].set_models(&["whisper"]);
    let gateway = Gateway::passthrough(&workers[0].url(), &["--worker", &workers[1].url()]).await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    // Until the lists are there, any may serve it.
    super::support::eventually("lists", || async {
        workers.iter().all(|worker| !worker.asked_for_models().is_empty())
            && gateway.post("/v1/chat/completions", json!({"model": "none"})).await.0 == 404
    })
    .await;
    for _ in 0..4 {
        assert_eq!(gateway::answer(upload(&gateway, "/v1/audio/transcriptions", form("whisper"))).await.0, 200);
    }
    // Of those that asked whether the lists are there, some may have come too early.
    let uploads = |worker: &FakeWorker| worker.seen().iter().filter(|seen| seen.target().contains("audio")).count();
    assert_eq!(workers.each_ref().map(uploads), [0, 4]);
    let (status, answer) = gateway::answer(upload(&gateway, "/v1/audio/transcriptions", form("none"))).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")));
}

#[tokio::test]
async fn a_route_that_an_operator_adds_passes_and_no_other_does() {
    let worker = FakeWorker::start().await;
    let flags = ["--extra-route", "POST /v1/load_lora_adapter", "--extra-route", "GET /version"];
    let gateway = Gateway::passthrough(&worker.url(), &flags).await;
    assert_eq!(gateway.post("/v1/load_lora_adapter", r#"{"lora_name":"a"}"#).await.0, 200);
    assert_eq!(gateway.get("/version?x=1").await.status(), 200);
    let seen = worker.seen();
    assert_eq!(seen[0].body, br#"{"lora_name":"a"}"#);
    assert_eq!(seen[1].start, "GET /version?x=1 HTTP/1.1");
    assert_eq!(gateway.post("/v1/unload_lora_adapter", "{}").await.0, 404);
    assert_eq!(gateway.post("/version", "{}").await.0, 405);
    assert_eq!(worker.seen().len(), 2);
}

#[tokio::test]
async fn a_route_between_gateways_and_workers_cannot_be_added() {
    for route in ["POST /mediagate/attach", "GET /a/../mediagate/attach", "POST /v1/chat/completions", "/sleep"] {
        let output =
            gateway::command().args(["--worker", "http://127.0.0.1:1", "--extra-route", route]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{route}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--extra-route"), "{route}");
    }
    let twice = ["--worker", "http://127.0.0.1:1", "--extra-route", "GET /version", "--extra-route", "GET /version"];
    let output = gateway::command().args(twice).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("--extra-route GET /version is given twice"), "{error}");
}
