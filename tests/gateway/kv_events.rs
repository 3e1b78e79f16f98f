//! Workers that publish what they hold, well and badly.

use super::support::{eventually, gateway::Gateway, kept_address, publisher::Publisher, worker::FakeWorker};

/// Nothing is known, a part, everything.
const VIEW: &str = "mediagate_kv_view_completeness";
const BLOCKS: &str = "mediagate_kv_known_blocks";
const BATCHES: &str = "mediagate_kv_event_batches_total";

async fn gateway(worker: &FakeWorker, publisher: &Publisher) -> Gateway {
    worker.set_event_sources(publisher.sources());
    Gateway::passthrough(&worker.url(), &["--route-policy", "mm-kv"]).await
}

async fn known(gateway: &Gateway, view: f64, blocks: f64) {
    eventually("what is known of the worker", || async {
        gateway.metric(VIEW, "").await == view && gateway.metric(BLOCKS, "").await == blocks
    })
    .await;
}

#[tokio::test]
async fn what_was_published_before_and_after_the_gateway_came_is_known() {
    let (worker, publisher) = (FakeWorker::start().await, Publisher::start().await);
    publisher.store(&[1, 2, 3]);
    let gateway = gateway(&worker, &publisher).await;
    known(&gateway, 2.0, 3.0).await;
    publisher.store(&[1, 2, 4, 5]);
    known(&gateway, 2.0, 5.0).await;
}

#[tokio::test]
async fn a_batch_that_is_lost_is_replayed() {
    let (worker, publisher) = (FakeWorker::start().await, Publisher::start().await);
    let gateway = gateway(&worker, &publisher).await;
    publisher.store(&[1]);
    known(&gateway, 2.0, 1.0).await;
    let lost = Publisher::start().await;
    lost.store(&[7, 8]);
    publisher.lose(lost.batch(0));
    publisher.store(&[9]);
    known(&gateway, 2.0, 4.0).await;
    assert_eq!(gateway.metric(BATCHES, "lost").await, 0.0);
}

#[tokio::test]
async fn a_publisher_that_is_gone_takes_along_what_it_said_and_a_new_one_is_found() {
    let (worker, publisher) = (FakeWorker::start().await, Publisher::start().await);
    let gateway = gateway(&worker, &publisher).await;
    publisher.store(&[1, 2]);
    known(&gateway, 2.0, 2.0).await;
    let other = Publisher::start().await;
    other.store(&[3]);
    worker.set_event_sources(other.sources());
    drop(publisher);
    known(&gateway, 2.0, 1.0).await;
}

#[tokio::test]
async fn a_publisher_that_connects_is_listened_to() {
    let worker = FakeWorker::start().await;
    let publisher = Publisher::connecting_to(kept_address()).await;
    let gateway = gateway(&worker, &publisher).await;
    publisher.store(&[1]);
    known(&gateway, 2.0, 1.0).await;
    publisher.store(&[2]);
    known(&gateway, 2.0, 2.0).await;
}

#[tokio::test]
async fn nonsense_is_counted_and_the_gateway_goes_on() {
    let (worker, publisher) = (FakeWorker::start().await, Publisher::start().await);
    let gateway = gateway(&worker, &publisher).await;
    publisher.store(&[1]);
    known(&gateway, 2.0, 1.0).await;
    publisher.publish(vec![0xdd; 100]);
    known(&gateway, 1.0, 0.0).await;
    publisher.store(&[2, 3]);
    known(&gateway, 1.0, 2.0).await;
    assert_eq!(gateway.metric(BATCHES, "malformed").await, 1.0);
    assert_eq!(gateway.chat(super::support::bodies::plain()).await.0, 200);
}

#[tokio::test]
async fn a_publisher_whose_replays_are_out_of_reach_is_not_asked_without_a_pause() {
    let (worker, publisher) = (FakeWorker::start().await, Publisher::start().await);
    let replay = format!("tcp://{}", publisher.replay);
    worker.set_event_sources(publisher.sources().replace(&replay, "tcp://127.0.0.1:1"));
    let start = std::time::Instant::now();
    let gateway = Gateway::passthrough(&worker.url(), &["--route-policy", "mm-kv"]).await;
    gateway.log.wait_for_another("KV events: connected", 2).await;
    let connections = gateway.log.count("KV events: connected") as u128;
    assert!(connections <= 1 + start.elapsed().as_millis() / 200, "{connections}");
}

#[tokio::test]
async fn a_worker_without_events_is_routed_to_all_the_same() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--route-policy", "mm-kv"]).await;
    gateway.log.wait_for("no KV events").await;
    let request = gateway.request(super::support::bodies::plain()).header("x-mediagate-debug", "1");
    let response = request.send().await.unwrap();
    let route = response.headers()["x-mediagate-route"].to_str().unwrap();
    assert!(route.contains("policy=mm-kv; reason=affinity; tokens="), "{route}");
}
