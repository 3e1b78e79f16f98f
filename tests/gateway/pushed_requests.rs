//! What a worker may answer to a request whose pictures are pushed: its landing memory is real (the stand-in's), its
//! answers are the test's.

use serde_json::{Value, json};

use super::support::{
    bodies, eventually,
    gateway::{self, Gateway},
    pictures::{self, data_uri},
    soon,
    standin::Standin,
    worker::{self, Exchange, FakeWorker},
};

/// A gateway, and a worker of which the test answers the requests.
struct Scene {
    gateway: Gateway,
    worker: FakeWorker,
    _lander: Standin,
}

impl Scene {
    /// `None` where the stand-in cannot run.
    async fn set(flags: &[&str]) -> Option<Self> {
        let lander = Standin::start(flags).await?;
        let worker = FakeWorker::landing_at(lander.address).await;
        let gateway = Gateway::with_nixl_at(&worker.url(), &[]).await;
        gateway.log.wait_for(" attached ").await;
        let scene = Scene { gateway, worker, _lander: lander };
        // That of the picture that is pushed on attach.
        scene.nothing_is_left().await;
        Some(scene)
    }

    /// Sends a request with one picture, under way.
    fn ask(&self, seed: u32) -> tokio::task::JoinHandle<(u16, Value)> {
        let uri = data_uri("image/png", &pictures::png(seed, 40, 30).0);
        tokio::spawn(gateway::answer(self.gateway.request(bodies::with_images([uri.as_str()]))))
    }

    async fn transfers(&self, outcome: &str) -> f64 {
        self.gateway.metric("mediagate_transfers_total", &format!("outcome=\"{outcome}\"")).await
    }

    /// The worker never said that it used anything: all of it must have been voided.
    async fn nothing_is_left(&self) {
        let gateway = &self.gateway;
        eventually("all slots to come back", || async { gateway.metric("mediagate_landing_open", "").await == 0.0 })
            .await;
    }
}

/// How the image of a request came.
fn url(exchange: &Exchange) -> String {
    let part = exchange.request.json()["messages"][0]["content"][0].clone();
    assert_eq!(part["uuid"].as_str().unwrap().len(), 64);
    match &part["image_url"] {
        Value::Null => "null".into(),
        image => image["url"].as_str().unwrap().chars().take(24).collect(),
    }
}

fn refusal(kind: &str) -> Vec<u8> {
    let (status, code) = match kind {
        "bad" => ("422 Unprocessable Entity", 422),
        "stale" => ("409 Conflict", 409),
        "gone" => ("410 Gone", 410),
        "late" => ("503 Service Unavailable", 503),
        _ => unreachable!(),
    };
    worker::json(status, &json!({"error": {"message": format!("mediagate {kind}: x"), "code": code}}).to_string())
}

const REFERENCE: &str = "mediagate://";
const INLINE: &str = "data:image/x-portable-pi";

#[tokio::test]
async fn a_refusal_of_the_plugin_is_made_good_unseen_by_the_client() {
    let Some(scene) = Scene::set(&["--cache-bytes", "0"]).await else { return };
    for (seed, kind, attached) in [(1, "bad", 1), (2, "late", 1), (3, "gone", 2)] {
        let request = scene.ask(seed);
        let exchange = scene.worker.next().await;
        assert!(url(&exchange).starts_with(REFERENCE));
        exchange.answer(refusal(kind)).await;
        let exchange = scene.worker.next().await;
        assert_eq!(url(&exchange), INLINE, "{kind}");
        exchange.answer(worker::ok_json("{}")).await;
        assert_eq!(soon("an answer", request).await.unwrap(), (200, json!({})));
        assert_eq!(scene.transfers(&format!("refused_{kind}")).await, 1.0);
        // After `gone` the gateway attaches anew by itself.
        scene.gateway.log.wait_for_another(" attached ", attached - 1).await;
        scene.nothing_is_left().await;
    }
}

#[tokio::test]
async fn stale_pixels_are_pushed_once_more_and_then_go_inline() {
    let Some(scene) = Scene::set(&["--cache-bytes", "0"]).await else { return };
    let request = scene.ask(1);
    let mut references = std::collections::HashSet::new();
    for _ in 0..2 {
        let exchange = scene.worker.next().await;
        let body = exchange.request.json();
        references.insert(body["messages"][0]["content"][0]["image_url"]["url"].as_str().unwrap().to_owned());
        exchange.answer(refusal("stale")).await;
    }
    assert!(references.len() == 2 && references.iter().all(|reference| reference.starts_with(REFERENCE)));
    let exchange = scene.worker.next().await;
    assert_eq!(url(&exchange), INLINE);
    exchange.answer(worker::ok_json("{}")).await;
    assert_eq!(soon("an answer", request).await.unwrap().0, 200);
    scene.nothing_is_left().await;
}

#[tokio::test]
async fn errors_that_are_not_the_plugins_pass_as_they_are() {
    let Some(scene) = Scene::set(&["--cache-bytes", "0"]).await else { return };
    let long = format!("mediagate stale: {}", "x".repeat(100_000));
    for (seed, status, message) in [
        (1, "409 Conflict", "somebody else's conflict"),
        (2, "503 Service Unavailable", "overloaded"),
        (3, "400 Bad Request", "mediagate stale: but with another status"),
        (4, "410 Gone", "mediagate stale: also"),
        (5, "409 Conflict", long.as_str()),
        (6, "500 Internal Server Error", "oh"),
    ] {
        let request = scene.ask(seed);
        let exchange = scene.worker.next().await;
        exchange.answer(worker::json(status, &json!({"error": {"message": message}}).to_string())).await;
        let (got, answer) = soon("an answer", request).await.unwrap();
        assert_eq!((got.to_string().as_str(), &answer["error"]["message"]), (&status[..3], &json!(message)));
        scene.nothing_is_left().await;
    }
    assert_eq!(scene.worker.seen().len(), 6, "nothing was sent twice");
}

#[tokio::test]
async fn a_connection_that_breaks_is_502_and_the_slots_come_back() {
    let Some(scene) = Scene::set(&["--cache-bytes", "0"]).await else { return };
    for (seed, garbage) in
        [(1, &b""[..]), (2, b"garbage\r\n\r\n"), (3, b"HTTP/1.1 409 Conflict\r\ncontent-length: 9\r\n\r\n{")]
    {
        let mut request = scene.ask(seed);
        let answer = loop {
            tokio::select! {
                mut exchange = scene.worker.next() => exchange.write(garbage).await,
                answer = &mut request => break answer,
            }
        };
        let (status, answer) = answer.unwrap();
        assert_eq!((status, &answer["error"]["code"]), (502, &json!("worker_unreachable")));
        scene.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_has_its_slots_voided() {
    let Some(scene) = Scene::set(&["--cache-bytes", "0"]).await else { return };
    let uri = data_uri("image/png", &pictures::png(1, 40, 30).0);
    let mut client = scene.gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::with_images([uri.as_str()])).await;
    let exchange = scene.worker.next().await;
    assert_eq!(scene.gateway.metric("mediagate_landing_open", "").await, 1.0);
    drop(client);
    exchange.closed().await;
    scene.nothing_is_left().await;
}

#[tokio::test]
async fn a_picture_that_was_named_by_uuid_in_vain_is_pushed() {
    let Some(scene) = Scene::set(&[]).await else { return };
    let request = scene.ask(1);
    scene.worker.next().await.answer(worker::ok_json("{}")).await;
    assert_eq!(soon("an answer", request).await.unwrap().0, 200);
    for miss in ["400 Bad Request", "500 Internal Server Error"] {
        let request = scene.ask(1);
        let exchange = scene.worker.next().await;
        assert_eq!(url(&exchange), "null");
        exchange.answer(worker::json(miss, "{\"error\":{\"message\":\"Cache miss\"}}")).await;
        let exchange = scene.worker.next().await;
        assert!(url(&exchange).starts_with(REFERENCE));
        exchange.answer(worker::ok_json("{\"a\":1}")).await;
        assert_eq!(soon("an answer", request).await.unwrap(), (200, json!({"a": 1})));
    }
    // An error that is not about the picture is told, once the request was tried with pixels.
    let request = scene.ask(1);
    let exchange = scene.worker.next().await;
    assert_eq!(url(&exchange), "null");
    exchange.answer(worker::json("404 Not Found", "{\"first\":1}")).await;
    let exchange = scene.worker.next().await;
    assert!(url(&exchange).starts_with(REFERENCE));
    exchange.answer(worker::json("404 Not Found", "{\"second\":1}")).await;
    assert_eq!(soon("an answer", request).await.unwrap(), (404, json!({"second": 1})));
    scene.nothing_is_left().await;
}
