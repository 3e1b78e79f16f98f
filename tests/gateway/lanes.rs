//! By which lane pixels go, what is said of it, and which way is taken where a push is slow.

use serde_json::json;

use super::support::{
    bodies,
    gateway::Gateway,
    pictures::{self, data_uri},
    standin::{Standin, sights},
    worker::{self, FakeWorker},
};

const TCP: &[(&str, &str)] = &[("UCX_TLS", "tcp,self")];

/// Sends a picture, which must be seen as it is; how it travelled.
async fn send(gateway: &Gateway, seed: u32) -> String {
    let (file, pixels) = pictures::png(seed, 300, 200);
    let uri = data_uri("image/png", &file);
    let (status, answer) = gateway.chat(bodies::with_images([uri.as_str()])).await;
    assert_eq!(status, 200, "{answer}");
    let seen = sights(&answer).remove(0);
    assert_eq!(seen.pixels, pixels);
    seen.transfer
}

#[tokio::test]
async fn the_lane_and_its_speed_are_told() {
    let Some(worker) = Standin::start(&[]).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let line = gateway.log.wait_for(" attached ").await;
    let lane = line.split("lane=").nth(1).unwrap().split_whitespace().next().unwrap().trim_matches('"').to_owned();
    assert!(line.contains("mib_per_second="), "{line}");
    assert_eq!(gateway.metric("mediagate_worker_lane", "").await, 1.0, "one of them");
    assert_eq!(gateway.metric("mediagate_worker_lane", &format!("lane=\"{lane}\"")).await, 1.0);
    // Where the kernel does not allow CMA, that is what is said.
    let warned = gateway.log.count("pixels go over TCP to a worker on the same machine") == 1;
    assert!(["cma", "shared_memory"].contains(&lane.as_str()) || (lane == "tcp" && warned), "{line}");
}

#[tokio::test]
async fn tcp_between_neighbours_is_warned_of_and_the_faster_way_is_taken() {
    let Some(worker) = Standin::start(&["--cache-bytes", "0"]).await else { return };
    let gateway = Gateway::with_nixl_and(&worker.url(), &["--inline-where-faster"], TCP).await;
    let line = gateway.log.wait_for(" attached ").await;
    assert!(line.contains("lane=\"tcp\"") || line.contains("lane=tcp"), "{line}");
    let line = gateway.log.wait_for("pixels go over TCP to a worker on the same machine").await;
    assert!(line.contains("UCX_TLS"), "what to do about it: {line}");
    // Which one is faster is for the machine to say. That both were tried, and the better one is taken, is not.
    let line = gateway.log.wait_for("the faster way to this worker is taken").await;
    let number =
        |key: &str| -> u64 { line.split(key).nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap() };
    let (pushed, inline) = (number("pushed_mib_per_second="), number("inline_mib_per_second="));
    let prefers_inline = gateway.metric("mediagate_worker_prefers_inline", "").await == 1.0;
    assert!(pushed == inline || prefers_inline == (inline > pushed), "{line}");
    assert_eq!(send(&gateway, 1).await, if prefers_inline { "original" } else { "push" });
}

#[tokio::test]
async fn over_tcp_pictures_are_pushed_where_that_is_asked_for() {
    let Some(worker) = Standin::start(&["--cache-bytes", "0"]).await else { return };
    let gateway = Gateway::with_nixl_and(&worker.url(), &["--inline-where-faster=false"], TCP).await;
    gateway.log.wait_for(" attached ").await;
    assert_eq!(send(&gateway, 1).await, "push");
    assert_eq!(gateway.log.count("the faster way"), 0);
}

#[tokio::test]
async fn a_worker_of_another_protocol_version_gets_pixels_inline() {
    let worker = FakeWorker::by_hand().await;
    let refusal = "mediagate bad: protocol 3 is spoken here";
    worker.set_hello(worker::json("400 Bad Request", &json!({"error": {"message": refusal, "code": 400}}).to_string()));
    if Standin::start(&["--no-nixl"]).await.is_none() {
        return;
    }
    let gateway = Gateway::with_nixl_at(&worker.url(), &[]).await;
    gateway.log.wait_for("protocol 3 is spoken here").await;
    let uri = data_uri("image/png", &pictures::png(1, 40, 30).0);
    let request = tokio::spawn(super::support::gateway::answer(gateway.request(bodies::with_images([uri.as_str()]))));
    let exchange = worker.next().await;
    let url = exchange.request.json()["messages"][0]["content"][0]["image_url"]["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with("data:image/x-portable-pixmap;base64,"));
    exchange.answer(worker::ok_json("{}")).await;
    assert_eq!(request.await.unwrap().0, 200);
}
