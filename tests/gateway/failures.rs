//! What becomes of requests when workers fail, and of workers whose requests fail.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::support::{
    bodies,
    gateway::{self, Gateway},
    soon,
    worker::{self, Exchange, FakeWorker, LAST_CHUNK, SSE_HEAD, chunk},
};

/// A request of its own, which may go to any worker.
fn request(number: usize) -> String {
    bodies::chat(&[bodies::text(&format!("conversation {number}"))])
}

#[tokio::test]
async fn a_worker_that_fails_request_after_request_is_left_alone_and_others_serve() {
    let failing = FakeWorker::answering(|_| worker::json("503 Service Unavailable", "{}")).await;
    let sound = FakeWorker::start().await;
    // For so long that it opens once.
    let flags = ["--worker", &sound.url(), "--circuit-wait-ms", "600000", "--circuit-longest-wait-ms", "600000"];
    let gateway = Gateway::passthrough(&failing.url(), &flags).await;
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
    let gateway = Gateway::passthrough(&worker.url(), &["--circuit-wait-ms", "1000"]).await;
    let mut begun = Instant::now();
    for number in 0..5 {
        begun = Instant::now();
        let asked = tokio::spawn(gateway.request(request(number)).send());
        worker.next().await.answer(worker::json("503 Service Unavailable", "{}")).await;
        assert_eq!(asked.await.unwrap().unwrap().status(), 503);
    }
    gateway.log.wait_for("circuit opened").await;

    // After a while one request passes, and no other while it is under way.
    let mut refused = 0;
    let (exchange, asked) = soon("a probe", async {
        loop {
            let mut asked = tokio::spawn(gateway::answer(gateway.request(request(6))));
            tokio::select! {
                exchange = worker.next() => break (exchange, asked),
                answer = &mut asked => {
                    let (status, answer) = answer.unwrap();
                    assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("no_worker")));
                    refused += 1;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(refused > 0 || begun.elapsed() > Duration::from_secs(1), "before that, none passes");
    assert_eq!(gateway.chat(request(7)).await.0, 503);
    exchange.answer(worker::ok_json("{}")).await;
    assert_eq!(asked.await.unwrap().0, 200);
    gateway.log.wait_for("circuit closed").await;
    let asked = tokio::spawn(gateway.request(request(8)).send());
    worker.next().await.answer(worker::ok_json("{}")).await;
    assert_eq!(asked.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_worker_that_breaks_its_answers_off_is_left_alone_however_well_they_begin() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--circuit-failures", "3"]).await;
    for number in 0..3 {
        let asked = tokio::spawn(gateway.request(request(number)).send());
        let mut exchange = worker.next().await;
        exchange.write(format!("{SSE_HEAD}{}", chunk("data: 1\n\n"))).await;
        let response = asked.await.unwrap().unwrap();
        assert_eq!(response.status(), 200);
        drop(exchange);
        assert!(response.bytes().await.is_err(), "the client is told");
    }
    gateway.log.wait_for("circuit opened").await;
    // One whose client leaves in the midst, or whose answers are whole, is not.
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--circuit-failures", "1"]).await;
    for leave in [true, false, true] {
        let asked = tokio::spawn(gateway.request(request(0)).send());
        let mut exchange = worker.next().await;
        exchange.write(format!("{SSE_HEAD}{}", chunk("data: 1\n\n"))).await;
        let response = asked.await.unwrap().unwrap();
        if leave {
            drop(response);
            exchange.closed().await;
        } else {
            exchange.answer(LAST_CHUNK).await;
            assert_eq!(&response.bytes().await.unwrap()[..], b"data: 1\n\n");
        }
    }
    assert_eq!(gateway.log.count("circuit opened"), 0);
}

#[tokio::test]
async fn a_worker_that_says_it_cannot_now_is_not_the_last_one_asked() {
    let (busy, sound) = (
        FakeWorker::answering(|_| worker::json("503 Service Unavailable", r#"{"busy":1}"#)).await,
        FakeWorker::start().await,
    );
    let gateway = Gateway::passthrough(&busy.url(), &["--worker", &sound.url()]).await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    for number in 0..20 {
        assert_eq!(gateway.chat(request(number)).await.0, 200);
    }
    assert!(!busy.seen().is_empty(), "none of 20 was its own");
    // Where there is no other, its answer is the answer.
    let alone = Gateway::passthrough(&busy.url(), &[]).await;
    assert_eq!(alone.chat(request(0)).await, (503, serde_json::json!({"busy": 1})));
}

/// Has the gateway make as many connections as requests at once, and keep them; their ends at the gateway.
async fn kept(gateway: &Gateway, worker: &FakeWorker, connections: usize) -> Vec<SocketAddr> {
    let asked: Vec<_> = (0..connections).map(|number| tokio::spawn(gateway.request(request(number)).send())).collect();
    let mut exchanges = Vec::new();
    for _ in 0..connections {
        exchanges.push(worker.next().await);
    }
    let ends = exchanges.iter().map(Exchange::peer).collect();
    for exchange in exchanges {
        exchange.answer(worker::ok_json("{}")).await;
    }
    for asked in asked {
        assert_eq!(&asked.await.unwrap().unwrap().bytes().await.unwrap()[..], b"{}");
    }
    ends
}

#[tokio::test]
async fn requests_that_meet_connections_that_are_being_closed_are_sent_again_over_new_ones() {
    let worker = FakeWorker::by_hand().await;
    // Nobody asks for its health meanwhile, on connections that are then kept.
    let flags = ["--health-interval-ms", "600000", "--circuit-failures", "2"];
    let gateway = Gateway::passthrough(&worker.url(), &flags).await;
    for reset in [false, true] {
        let mut ends = kept(&gateway, &worker, 6).await;
        // Fewer than are kept, and more than open the circuit.
        let asked: Vec<_> = (0..4).map(|number| tokio::spawn(gateway.request(request(number)).send())).collect();
        let mut met = Vec::new();
        for _ in &asked {
            met.push(worker.next().await);
        }
        for exchange in met {
            ends.push(exchange.peer());
            if reset { exchange.reset() } else { drop(exchange) }
        }
        for _ in &asked {
            let exchange = worker.next().await;
            assert!(!ends.contains(&exchange.peer()), "another one that may be closed just now");
            ends.push(exchange.peer());
            exchange.answer(worker::ok_json("{}")).await;
        }
        for asked in asked {
            assert_eq!(asked.await.unwrap().unwrap().status(), 200);
        }
    }
    assert_eq!(gateway.log.count("circuit opened"), 0);
}

#[tokio::test]
async fn what_may_not_be_sent_twice_meets_no_connection_that_was_idle_for_long() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let end = async || {
        let request = reqwest::Client::new().post(gateway.url("/v1/responses")).body(r#"{"input":"x"}"#);
        let asked = tokio::spawn(request.send());
        let exchange = worker.next().await;
        let end = exchange.peer();
        exchange.answer(worker::ok_json("{}")).await;
        assert_eq!(asked.await.unwrap().unwrap().status(), 200);
        end
    };
    let mut last = end().await;
    let in_use_just_now = async {
        // Twice within a second, which even a busy machine does one day.
        while last != end().await {
            last = end().await;
        }
    };
    soon("a connection that was in use just now", in_use_just_now).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_ne!(end().await, last);
}

#[tokio::test]
async fn a_request_that_may_have_ended_its_worker_is_sent_once_more_at_most() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for (path, times) in [("/v1/chat/completions", 2), ("/v1/responses", 1)] {
        let before = worker.seen().len();
        let end = async {
            for _ in 0..times {
                drop(worker.next().await);
            }
        };
        let body = serde_json::json!({"input": "x", "messages": []});
        let ((status, answer), ()) = tokio::join!(gateway.post(path, body), end);
        assert_eq!((status, answer["error"]["code"].as_str()), (502, Some("worker_unreachable")), "{path}");
        assert_eq!(worker.seen().len() - before, times, "{path}");
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_504_and_leaves_its_worker() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    // More each time: on a busy machine it may be over before the worker was asked.
    let mut seconds = 0.3;
    let (exchange, response) = loop {
        let mut asked =
            tokio::spawn(gateway.request(request(0)).header("x-request-timeout", seconds.to_string()).send());
        tokio::select! {
            exchange = worker.next() => break (exchange, asked.await.unwrap().unwrap()),
            answer = &mut asked => assert_eq!(answer.unwrap().unwrap().status(), 504),
        }
        seconds *= 2.0;
    };
    assert_eq!(response.status(), 504);
    let answer: serde_json::Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    assert_eq!(answer["error"]["code"], "deadline_exceeded");
    exchange.closed().await;

    let refused = gateway.request(request(0)).header("x-request-timeout", "soon").send().await.unwrap();
    assert_eq!(refused.status(), 400);
    assert_eq!(gateway.log.count("circuit opened"), 0, "a client's impatience says nothing of the worker");
}

#[tokio::test]
async fn a_stream_that_has_begun_has_no_deadline() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    // More each time: on a busy machine it may be over before the stream begins.
    for seconds in [0.4, 2.0, 10.0] {
        let mut asked =
            tokio::spawn(gateway.request(request(0)).header("x-request-timeout", seconds.to_string()).send());
        let mut exchange = tokio::select! {
            exchange = worker.next() => exchange,
            answer = &mut asked => {
                assert_eq!(answer.unwrap().unwrap().status(), 504);
                continue;
            }
        };
        let _ = exchange.try_write(format!("{SSE_HEAD}{}", chunk("data: 1\n\n"))).await;
        let response = asked.await.unwrap().unwrap();
        if response.status() == 504 {
            continue;
        }
        tokio::time::sleep(Duration::from_secs_f64(1.5 * seconds)).await;
        exchange.write(format!("{}{LAST_CHUNK}", chunk("data: 2\n\n"))).await;
        assert_eq!(&response.bytes().await.unwrap()[..], b"data: 1\n\ndata: 2\n\n");
        return;
    }
    panic!("no stream began in time");
}

#[tokio::test]
async fn a_worker_that_answers_no_request_in_time_is_left_alone() {
    let worker = FakeWorker::by_hand().await;
    let flags = ["--request-timeout-ms", "100", "--circuit-failures", "2"];
    let gateway = Gateway::passthrough(&worker.url(), &flags).await;
    // Two, and those whose time was over before the worker was asked.
    soon("a refusal", async {
        while let (status, answer) = gateway.chat(request(0)).await
            && status != 503
        {
            assert_eq!((status, answer["error"]["code"].as_str()), (504, Some("deadline_exceeded")));
        }
    })
    .await;
    gateway.log.wait_for("circuit opened").await;
    assert!(worker.seen().len() >= 2);
}

#[tokio::test]
async fn what_waits_for_a_worker_whose_health_checks_fail_in_a_row_is_withdrawn() {
    let worker = FakeWorker::by_hand().await;
    let flags = ["--circuit-failures", "2", "--health-interval-ms", "100", "--extra-route", "GET /version"];
    let gateway = Gateway::passthrough(&worker.url(), &flags).await;
    let hang = async || {
        let exchange = worker.next().await;
        worker.set_health("500 Internal Server Error");
        exchange.closed().await;
        worker.set_health("200 OK");
    };
    let (answer, ()) = tokio::join!(gateway.chat(request(0)), hang());
    assert_eq!((answer.0, answer.1["error"]["code"].as_str()), (502, Some("worker_unreachable")));
    gateway.log.wait_for("circuit half-open").await;
    let (answer, ()) = tokio::join!(gateway.get("/version"), hang());
    assert_eq!(answer.status(), 502);
}

#[tokio::test]
async fn a_client_that_stops_reading_holds_no_worker() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--write-timeout-ms", "300"]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    let mut exchange = worker.next().await;
    exchange.write(SSE_HEAD).await;
    client.answer_head().await;
    // It stays connected, and reads no more.
    flood(&mut exchange).await;
    exchange.closed_after_flood().await;
    drop(client);
}

#[tokio::test]
async fn a_stream_of_http2_that_nobody_reads_holds_no_worker_while_others_on_its_connection_go_on() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--write-timeout-ms", "300"]).await;
    let stream = tokio::net::TcpStream::connect(gateway.public).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let post = || {
        let request = http::Request::post(gateway.url("/v1/chat/completions"));
        request.header("content-type", "application/json").body(()).unwrap()
    };
    let (response, mut body) = client.send_request(post(), false).unwrap();
    body.send_data(bodies::plain().into(), true).unwrap();
    let mut exchange = worker.next().await;
    exchange.write(SSE_HEAD).await;
    // Its window is never opened again.
    let unread = soon("a head", response).await.unwrap();
    flood(&mut exchange).await;
    exchange.closed_after_flood().await;

    let mut client = client.ready().await.unwrap();
    let (response, mut body) = client.send_request(post(), false).unwrap();
    body.send_data(bodies::plain().into(), true).unwrap();
    worker.next().await.answer(worker::ok_json("{}")).await;
    assert_eq!(soon("an answer", response).await.unwrap().status(), 200);
    drop(unread);
    connection.abort();
}

/// Writes more and more, until the gateway will have no more of it.
async fn flood(exchange: &mut worker::Exchange) {
    let piece = chunk(&"x".repeat(1 << 18));
    soon("the gateway to close the connection", async { while exchange.try_write(&piece).await.is_ok() {} }).await;
}

#[tokio::test]
async fn a_connection_of_http2_on_which_nothing_happens_is_closed() {
    // On a busy machine the time may be over before anything was sent.
    for idle_ms in [300, 2_000, 10_000] {
        let worker = FakeWorker::by_hand().await;
        let gateway = Gateway::passthrough(&worker.url(), &["--idle-timeout-ms", &idle_ms.to_string()]).await;
        let begin = async {
            let stream = tokio::net::TcpStream::connect(gateway.public).await.ok()?;
            let (client, connection) = h2::client::handshake(stream).await.ok()?;
            let connection = tokio::spawn(connection);
            let mut client = client.ready().await.ok()?;
            let request = http::Request::post(gateway.url("/v1/chat/completions")).body(()).unwrap();
            let (response, mut body) = client.send_request(request, false).ok()?;
            body.send_data(bodies::plain().into(), true).ok()?;
            Some((client, connection, response))
        };
        let Some((_client, connection, mut response)) = begin.await else { continue };
        let exchange = tokio::select! {
            exchange = worker.next() => exchange,
            _ = &mut response => continue,
        };
        // A request under way is not idleness.
        tokio::time::sleep(Duration::from_millis(2 * idle_ms)).await;
        exchange.answer(worker::ok_json("{}")).await;
        let answer = soon("an answer", response).await.unwrap();
        assert_eq!(answer.status(), 200);
        drop(answer);
        return soon("the end of the connection", connection).await.unwrap().unwrap();
    }
    panic!("every connection was closed before a request was on it");
}

#[tokio::test]
async fn more_requests_than_the_gateway_may_have_are_refused_at_once_and_told_when_to_come_back() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--max-requests", "1"]).await;
    let first = tokio::spawn(gateway.request(request(0)).send());
    let exchange = worker.next().await;
    let refused = gateway.request(request(1)).send().await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");
    let refused: serde_json::Value = serde_json::from_slice(&refused.bytes().await.unwrap()).unwrap();
    assert_eq!(refused["error"]["code"], "gateway_overloaded");
    assert_eq!(gateway.get("/ready").await.status(), 200, "probes need no place");
    exchange.answer(worker::ok_json("{}")).await;
    assert_eq!(&first.await.unwrap().unwrap().bytes().await.unwrap()[..], b"{}");
    let second = tokio::spawn(gateway.request(request(2)).send());
    worker.next().await.answer(worker::ok_json("{}")).await;
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_worker_that_is_full_gets_no_more_and_where_all_are_full_clients_hear_of_it() {
    let (slow, other) = (FakeWorker::by_hand().await, FakeWorker::by_hand().await);
    let gateway = Gateway::passthrough(&slow.url(), &["--worker", &other.url(), "--max-worker-requests", "2"]).await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    let mut under_way = Vec::new();
    for number in 0..4 {
        let asked = tokio::spawn(gateway.request(request(number)).send());
        tokio::select! {
            exchange = slow.next() => under_way.push((asked, exchange)),
            exchange = other.next() => under_way.push((asked, exchange)),
        }
    }
    assert_eq!((slow.seen().len(), other.seen().len()), (2, 2));
    let (status, answer) = gateway.chat(request(4)).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("workers_overloaded")));
    let (status, answer) = gateway.post("/v1/audio/transcriptions", "sound").await;
    assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("workers_overloaded")));
    for (asked, exchange) in under_way {
        exchange.answer(worker::ok_json("{}")).await;
        assert_eq!(asked.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test]
async fn heads_and_connections_have_limits_of_the_operators_choice() {
    // Not asked whether it is ready, since the client that asks opens connections in advance.
    let flags = ["--worker", "http://127.0.0.1:1", "--max-header-bytes", "8KiB", "--max-connections", "1"];
    let gateway = Gateway::start(&flags, &[]).await;
    let long = format!("GET /health HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "a".repeat(20_000));
    let answer = gateway.exchange(long).await;
    assert_eq!(answer.status(), 431);
    let (mut first, mut second) = (gateway.raw().await, gateway.raw().await);
    let health = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    second.send(health).await;
    first.send(health).await;
    // Whichever is accepted first, the other one waits for it, and both are served.
    assert_eq!((first.answer().await.status(), second.answer().await.status()), (200, 200));
}
