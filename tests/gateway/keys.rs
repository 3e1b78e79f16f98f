//! Who may ask, and what of their keys a worker sees.

use super::support::{bodies, gateway::Gateway, worker::FakeWorker};

const KEYS: &str = "# ours\nclient-key-0001\noperator-key-0002 debug\n";

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

async fn with_keys(worker: &FakeWorker, flags: &[&str]) -> (Gateway, tempfile::NamedTempFile) {
    let keys = file(KEYS);
    let path = keys.path().to_str().unwrap();
    (Gateway::passthrough(&worker.url(), &[&["--api-key-file", path], flags].concat()).await, keys)
}

#[tokio::test]
async fn without_a_key_that_is_listed_nobody_gets_anything() {
    let worker = FakeWorker::start().await;
    let (gateway, _keys) = with_keys(&worker, &[]).await;
    for authorization in [None, Some("Bearer wrong-key-0001"), Some("Basic client-key-0001"), Some("client-key-0001")] {
        for request in [gateway.request(bodies::plain()), gateway.request("{"), models(&gateway)] {
            let request = match authorization {
                Some(value) => request.header("authorization", value),
                None => request,
            };
            let (status, answer) = super::support::gateway::answer(request).await;
            assert_eq!((status, answer["error"]["code"].as_str()), (401, Some("invalid_api_key")));
            assert_eq!(answer["error"]["type"], "authentication_error");
        }
    }
    assert!(worker.seen().is_empty());
    assert_eq!(gateway.get("/ready").await.status(), 200, "probes have no key");
}

fn models(gateway: &Gateway) -> reqwest::RequestBuilder {
    reqwest::Client::builder().no_proxy().build().unwrap().get(gateway.url("/v1/models"))
}

#[tokio::test]
async fn a_clients_key_to_the_gateway_reaches_no_worker() {
    let worker = FakeWorker::start().await;
    worker.set_models(&["standin"]);
    let (gateway, _keys) = with_keys(&worker, &[]).await;
    for request in [gateway.request(bodies::plain()), models(&gateway)] {
        let request = request.header("authorization", "Bearer client-key-0001");
        assert_eq!(super::support::gateway::answer(request).await.0, 200);
    }
    let (seen, lists) = (worker.seen(), worker.asked_for_models());
    assert!(seen.len() == 1 && !lists.is_empty());
    for request in seen.into_iter().chain(lists) {
        assert!(!request.holds("client-key"), "{}", request.text());
        assert_eq!(request.header("authorization"), None);
    }
}

#[tokio::test]
async fn workers_get_a_key_of_their_own() {
    let worker = FakeWorker::start().await;
    let worker_key = file("the-workers-key\n");
    let flags = ["--worker-api-key-file", worker_key.path().to_str().unwrap()];
    let (with, _keys) = with_keys(&worker, &flags).await;
    let request = with.request(bodies::plain()).header("authorization", "Bearer client-key-0001");
    assert_eq!(super::support::gateway::answer(request).await.0, 200);
    let without = Gateway::passthrough(&worker.url(), &flags).await;
    let request = without.request(bodies::plain()).header("authorization", "Bearer something-else");
    assert_eq!(super::support::gateway::answer(request).await.0, 200);
    for request in worker.seen() {
        assert_eq!(request.header("authorization"), Some("Bearer the-workers-key"));
    }
    assert!(!with.log.text().contains("the-workers-key") && !with.log.text().contains("client-key"));
}

#[tokio::test]
async fn debugging_headers_are_for_keys_that_may_debug() {
    let worker = FakeWorker::start().await;
    let (gateway, _keys) = with_keys(&worker, &[]).await;
    for (key, debug, shown) in
        [("client-key-0001", "1", false), ("operator-key-0002", "1", true), ("operator-key-0002", "0", false)]
    {
        let request = gateway.request(bodies::plain()).bearer_auth(key).header("x-mediagate-debug", debug);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        for header in ["server-timing", "x-mediagate-route"] {
            assert_eq!(response.headers().contains_key(header), shown, "{key} {header}");
        }
    }
    let open = Gateway::passthrough(&worker.url(), &[]).await;
    let response = open.request(bodies::plain()).header("x-mediagate-debug", "1").send().await.unwrap();
    assert!(response.headers()["server-timing"].to_str().unwrap().contains("total;dur="));
    assert!(response.headers()["x-mediagate-route"].to_str().unwrap().starts_with("worker=0; transfer=none; policy="));
}

#[tokio::test]
async fn a_key_file_without_keys_ends_the_start() {
    for text in ["", "# none\n", "short\n"] {
        let keys = file(text);
        let output = super::support::gateway::command()
            .args(["--worker", "http://127.0.0.1:1", "--api-key-file", keys.path().to_str().unwrap()])
            .output()
            .unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("API key file"), "{said}");
    }
}
