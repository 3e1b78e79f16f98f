//! What becomes of requests when workers fail, and of workers whose requests fail.

use std::time::Duration;

use super::support::{
    bodies,
    gateway::Gateway,
    soon,
    worker::{self, FakeWorker},
};

/// A request of its own, which may go to any worker.
fn request(number: usize) -> String {
    bodies::chat(&[bodies::text(&format!("conversation {number}"))])
}

#[tokio::test]
async fn a_worker_that_fails_request_after_request_is_left_alone_and_others_serve() {
    let failing = FakeWorker::answering(|_| worker::json("503 Service Unavailable", "{}")).await;
    let sound = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&failing.url(), &["--worker", &sound.url()]).await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    let mut number = 0;
    while gateway.log.count("circuit opened") == 0 {
        gateway.chat(request(number)).await;
        number += 1;
        assert!(number < 1000, "the circuit never opens");
    }
    let failed = failing.seen().len();
    assert!(failed >= 5, "{failed}");
    assert_eq!(gateway.metric("mediagate_circuit_opened_total", &failing.address.to_string()).await, 1.0);
    assert_eq!(gateway.get("/ready").await.status(), 200);
}

#[tokio::test]
async fn a_worker_that_recovers_is_tried_with_one_request_and_taken_back() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for number in 0..5 {
        let asked = tokio::spawn(gateway.request(request(number)).send());
        worker.next().await.answer(worker::json("503 Service Unavailable", "{}")).await;
        assert_eq!(asked.await.unwrap().unwrap().status(), 503);
    }
    gateway.log.wait_for("circuit opened").await;
    let (status, answer) = gateway.chat(request(5)).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("no_worker")));

    // After a while one request passes, and no other while it is under way.
    let (exchange, asked) = soon("a probe", async {
        loop {
            let mut asked = tokio::spawn(gateway.request(request(6)).send());
            tokio::select! {
                exchange = worker.next() => break (exchange, asked),
                refused = &mut asked => assert_eq!(refused.unwrap().unwrap().status(), 503),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(gateway.chat(request(7)).await.0, 503);
    exchange.answer(worker::ok_json("{}")).await;
    assert_eq!(asked.await.unwrap().unwrap().status(), 200);
    gateway.log.wait_for("circuit closed").await;
    let asked = tokio::spawn(gateway.request(request(8)).send());
    worker.next().await.answer(worker::ok_json("{}")).await;
    assert_eq!(asked.await.unwrap().unwrap().status(), 200);
}
