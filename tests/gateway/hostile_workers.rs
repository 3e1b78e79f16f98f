//! Workers that are broken: their clients hear of it in good order, and nobody else does.

use super::support::{
    bodies,
    gateway::{self, Gateway},
    soon,
    worker::{self, FakeWorker, SSE_HEAD, chunk},
};

#[tokio::test]
async fn a_body_that_is_shorter_than_announced_is_seen_to_be() {
    let worker = FakeWorker::answering(|_| {
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 50\r\n\r\n{\"a\":".to_vec()
    });
    let worker = worker.await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let response = gateway.request(bodies::plain()).send().await.unwrap();
    // The fake worker keeps the connection: end it.
    let body = tokio::spawn(response.bytes());
    worker.stop().await;
    assert!(soon("the end", body).await.unwrap().is_err(), "half a body was taken for a whole one");
}

#[tokio::test]
async fn bytes_after_an_answer_do_not_become_the_next_one() {
    let worker = FakeWorker::answering(|request| {
        let evil = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
        let answer = String::from_utf8(worker::ok_json(&String::from_utf8_lossy(&request.body))).unwrap();
        format!("{answer}{evil}").into_bytes()
    })
    .await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for number in 0..20 {
        let response = gateway.request(format!("{{\"n\":{number}}}")).send().await.unwrap();
        if response.status() == 200 {
            let body = response.bytes().await.unwrap();
            assert_eq!(String::from_utf8_lossy(&body), format!("{{\"n\":{number}}}"));
        } else {
            assert_eq!(response.status(), 502);
        }
    }
}

#[tokio::test]
async fn trailers_do_no_harm() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let request = tokio::spawn(gateway.request(bodies::plain()).send());
    let mut exchange = worker.next().await;
    exchange.write(format!("{SSE_HEAD}{}0\r\nx-trailer: 1\r\ncontent-length: 5\r\n\r\n", chunk("data: 1\n\n"))).await;
    let body = request.await.unwrap().unwrap().bytes().await.unwrap();
    assert_eq!(&body[..], b"data: 1\n\n");
}

#[tokio::test]
async fn a_worker_that_floods_is_slowed_to_its_clients_pace() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    let mut exchange = worker.next().await;
    exchange.write(SSE_HEAD).await;
    client.answer_head().await;
    // The client reads nothing: before long the worker can write no more, and the gateway holds next to nothing.
    let piece = chunk(&"x".repeat(1 << 20));
    let mut sent = 0;
    while let Ok(written) =
        tokio::time::timeout(std::time::Duration::from_millis(500), exchange.try_write(&piece)).await
    {
        written.unwrap();
        sent += 1;
        assert!(sent < 64, "the gateway takes in whatever comes");
    }
    drop(client);
    exchange.closed_after_flood().await;
}

#[tokio::test]
async fn a_worker_that_is_silent_holds_up_only_its_own_requests() {
    let (silent, other) = (FakeWorker::by_hand().await, FakeWorker::start().await);
    let gateway = Gateway::passthrough(&silent.url(), &["--worker", &other.url()]).await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    let mut stuck = Vec::new();
    let mut served = 0;
    for number in 0..40 {
        let body = bodies::chat(&[bodies::text(&format!("conversation {number}"))]);
        let request = tokio::spawn(gateway::answer(gateway.request(body)));
        tokio::select! {
            exchange = silent.next() => stuck.push((request, exchange)),
            () = async { while other.seen().len() == served { tokio::task::yield_now().await } } => {
                served += 1;
                assert_eq!(soon("an answer", request).await.unwrap().0, 200);
            }
        }
    }
    assert!(served > 20, "the load of the silent one grows, and others are preferred: {served} of 40");
    for (request, mut exchange) in stuck {
        exchange.write(worker::ok_json("{}")).await;
        assert_eq!(soon("an answer", request).await.unwrap().0, 200);
    }
}

#[tokio::test]
async fn an_error_longer_than_any_refusal_of_ours_passes_whole() {
    let text = "x".repeat(300_000);
    let body = format!(r#"{{"error":{{"message":"{text}","code":400}}}}"#);
    for status in ["400 Bad Request", "409 Conflict", "503 Service Unavailable"] {
        let answer = worker::json(status, &body);
        let worker = FakeWorker::answering(move |_| answer.clone()).await;
        let gateway = Gateway::passthrough(&worker.url(), &[]).await;
        let (got, answer) = gateway.chat(bodies::plain()).await;
        assert_eq!(got.to_string(), status[..3]);
        assert_eq!(answer["error"]["message"], text);
    }
}
