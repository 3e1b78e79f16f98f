//! Clients reach a list of routes, and nothing else.

use super::support::{gateway::Gateway, raw::RawClient, wire::Message, worker::FakeWorker};

/// What must not be reachable, whatever serves it: our own calls to workers, vLLM's administrative routes, operators'
/// pages, and spellings that some parser reads as one of these.
const FORBIDDEN: &[&str] = &[
    "/mediagate/attach",
    "/mediagate/attach/hello",
    "/mediagate/renew",
    "/mediagate/void",
    "/mediagate/detach",
    "/metrics",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/server_info",
    "/start_profile",
    "/stop_profile",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/invocations",
    "/ping",
    "/version",
    "/load",
    "/docs",
    "/openapi.json",
    "/",
    "//",
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/completions/../../mediagate/attach",
    "/v1/../mediagate/attach",
    "/v1/chat/./completions",
    "/V1/CHAT/COMPLETIONS",
    "/v1/%2e%2e/mediagate/attach",
    "/%2e%2e/sleep",
    "/v1%2fchat%2fcompletions",
    "/v1/chat%2Fcompletions",
    "/v1/chat/completions%00",
    "/v1/chat/completions;x",
    "/v1/chat/completions%3Fx",
    "/v1/models/..;/../sleep",
    "/%6dediagate/attach",
    "http://127.0.0.1:1/mediagate/attach",
    "http://worker/sleep",
];

async fn ask(gateway: &Gateway, method: &str, target: &str) -> Message {
    let mut client = gateway.raw().await;
    client
        .send(format!("{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"))
        .await;
    client.answer().await
}

fn assert_refused(answer: &Message, status: u16, code: &str) {
    assert_eq!(answer.status(), status, "{}", answer.text());
    let error = &answer.json()["error"];
    assert_eq!(error["code"], code);
    assert!(error["message"].is_string() && error["type"].is_string() && error["param"].is_null(), "{error}");
    assert!(answer.header("x-request-id").is_some());
}

#[tokio::test]
async fn what_is_not_on_the_list_is_404_and_reaches_no_worker() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for target in FORBIDDEN {
        for method in ["GET", "POST", "DELETE"] {
            let answer = ask(&gateway, method, target).await;
            assert!(answer.status() == 404, "{method} {target}: {}", answer.text());
            assert_refused(&answer, 404, "not_found");
        }
    }
    assert!(worker.seen().is_empty(), "{:?}", worker.seen());
}

#[tokio::test]
async fn the_gateway_is_no_tunnel_and_no_open_proxy() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for request in [
        format!("CONNECT {} HTTP/1.1\r\nHost: {0}\r\n\r\n", worker.address),
        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n".into(),
        "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".into(),
    ] {
        assert_eq!(gateway.exchange(&request).await.status(), 404, "{request}");
    }
    // In absolute form the path counts, not the host: it goes to our worker, as any request does.
    let body = super::support::bodies::plain();
    let mut client = gateway.raw().await;
    client.post("http://127.0.0.1:1/v1/chat/completions", "", &body).await;
    assert_eq!(client.answer().await.status(), 200);
    let seen = worker.only();
    assert_eq!(seen.start, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(seen.header("host"), Some(worker.address.to_string().as_str()));
}

#[tokio::test]
async fn another_method_is_405_in_openais_shape() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for (method, target, allowed) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET,HEAD"),
        ("POST", "/health", "GET,HEAD"),
        ("DELETE", "/ready", "GET,HEAD"),
        ("BREW", "/ready", "GET,HEAD"),
    ] {
        let answer = ask(&gateway, method, target).await;
        assert_refused(&answer, 405, "method_not_allowed");
        assert_eq!(answer.header("allow"), Some(allowed), "{method} {target}");
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn what_cannot_be_read_in_a_path_or_an_order_is_an_error_in_our_shape() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    for target in ["/v1/models/%ff", "/v1/responses/%ff", "/v1/responses/%ff/cancel"] {
        let method = if target.ends_with("cancel") { "POST" } else { "GET" };
        assert_refused(&ask(&gateway, method, target).await, 404, "not_found");
    }
    for (request, status, code) in [
        ("GET /workers/x", 404, "not_found"),
        ("DELETE /workers/-1/drain", 404, "not_found"),
        ("POST /warm", 415, "invalid_order"),
        ("POST /workers", 415, "invalid_order"),
    ] {
        let mut client = RawClient::connect(gateway.admin).await;
        client.send(format!("{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")).await;
        let answer = client.answer().await;
        assert_eq!((answer.status(), &answer.json()["error"]["code"]), (status, &code.into()), "{request}");
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn a_query_does_not_reach_the_worker() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions?x=../../sleep", "", &super::support::bodies::plain()).await;
    assert_eq!(client.answer().await.status(), 200);
    assert_eq!(worker.only().target(), "/v1/chat/completions");
}

#[tokio::test]
async fn models_are_those_of_all_healthy_workers_each_once() {
    let (one, two) = (FakeWorker::start().await, FakeWorker::start().await);
    one.set_models(&["a", "b/x"]);
    two.set_models(&["b/x", "c"]);
    let gateway = Gateway::passthrough(&one.url(), &["--worker", &two.url()]).await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    let list: serde_json::Value =
        serde_json::from_slice(&gateway.get("/v1/models").await.bytes().await.unwrap()).unwrap();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a", "b/x", "c"]);
    assert_eq!(list["data"][0]["x"], 1, "entries pass as they are");
    for (id, status) in [("c", 200), ("b/x", 200), ("b%2Fx", 200), ("d", 404)] {
        assert_eq!(gateway.get(&format!("/v1/models/{id}")).await.status(), status, "{id}");
    }
}

#[tokio::test]
async fn operators_pages_are_on_the_admin_listener_only() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for (address, target, status) in [
        (gateway.admin, "/metrics", 200),
        (gateway.admin, "/health", 200),
        (gateway.admin, "/ready", 200),
        (gateway.admin, "/v1/models", 404),
        (gateway.admin, "/mediagate/attach", 404),
        (gateway.public, "/health", 200),
        (gateway.public, "/metrics", 404),
    ] {
        let mut client = RawClient::connect(address).await;
        client.send(format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n")).await;
        assert_eq!(client.answer().await.status(), status, "{address} {target}");
    }
}

/// Every metric of docs/METRICS.md, read from there.
#[tokio::test]
async fn every_documented_metric_is_there_after_traffic() {
    use super::support::{bodies, files::Files, pictures};
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let gateway = Gateway::fetching(&worker.url(), &files).await;
    let url = files.put("/a.png", pictures::png(1, 8, 8).0);
    assert_eq!(gateway.chat(bodies::with_images([url.as_str()])).await.0, 200);
    assert_eq!(gateway.chat("{").await.0, 400);
    let page = include_str!("../../docs/METRICS.md");
    let rows = page.lines().filter(|line| line.starts_with("| `mediagate_"));
    let documented: Vec<&str> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap().split('`').filter(|word| word.starts_with("mediagate_")))
        .collect();
    assert!(documented.len() > 10, "{documented:?}");
    // What only some workers make: those that are attached over NIXL (landing.rs and lanes.rs look at these), those that
    // publish KV events (kv_events.rs), those that say what they had cached.
    let special = [
        "mediagate_push",
        "mediagate_landing",
        "mediagate_worker_push",
        "mediagate_worker_lane",
        "mediagate_worker_prefers_inline",
        "mediagate_pushed",
        "mediagate_kv_",
        "mediagate_route_error_ratio",
    ];
    let metrics = gateway.metrics().await;
    for name in documented.iter().filter(|name| !special.iter().any(|prefix| name.starts_with(prefix))) {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "{name} is not in\n{metrics}");
    }
}
