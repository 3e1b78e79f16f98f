//! Clients that are broken, or mean. The gateway stays well, and answers the next one.

use super::support::{
    bodies, eventually,
    gateway::Gateway,
    soon,
    worker::{self, FakeWorker, LAST_CHUNK, chunk},
};

/// Another client is served as if nothing had been.
async fn assert_well(gateway: &Gateway) {
    assert_eq!(gateway.chat(bodies::plain()).await.0, 200);
}

#[tokio::test]
async fn a_connection_on_which_no_request_comes_is_closed() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--idle-timeout-ms", "200"]).await;
    for beginning in [
        "",
        "P",
        "PRI * HTTP/2.0\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea",
    ] {
        let mut client = gateway.raw().await;
        // It may have ended before.
        let _ = client.try_send(beginning).await;
        // Ends, whatever the gateway says before.
        client.rest().await;
    }
    // So may the connection of one who means well.
    let asked = || gateway.request(bodies::plain()).send();
    eventually("another to be served", || async { asked().await.is_ok_and(|answer| answer.status() == 200) }).await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408_and_one_that_never_ends_is_413() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--body-timeout-ms", "200"]).await;
    let mut slow = gateway.raw().await;
    slow.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"mod").await;
    let answer = slow.answer().await;
    assert_eq!((answer.status(), answer.json()["error"]["code"].as_str()), (408, Some("body_timeout")));

    let gateway = Gateway::passthrough(&worker.url(), &["--max-body-bytes", "100000"]).await;
    let mut endless = gateway.raw().await;
    endless.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    for _ in 0..20 {
        // It may have been answered, and the connection closed.
        let _ = endless.try_send(chunk(&" ".repeat(10_000))).await;
    }
    assert_eq!(endless.answer().await.status(), 413);
    assert!(worker.seen().is_empty());
    assert_well(&gateway).await;
}

#[tokio::test]
async fn bodies_that_are_announced_and_not_sent_take_no_room_from_others() {
    let worker = FakeWorker::start().await;
    let flags = ["--max-body-bytes", "1MiB", "--body-budget-bytes", "4MiB", "--admission-timeout-ms", "60000"];
    let gateway = Gateway::passthrough(&worker.url(), &flags).await;
    let mut idle = Vec::new();
    for headers in ["Content-Length: 1048576", "Transfer-Encoding: chunked"].repeat(8) {
        let mut client = gateway.raw().await;
        client.send(format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n")).await;
        idle.push(client);
    }
    assert_well(&gateway).await;
    // Large ones find room as well.
    let body = bodies::chat(&[bodies::text(&"x".repeat(1_000_000))]);
    assert_eq!(gateway.chat(body).await.0, 200);
}

#[tokio::test]
async fn when_bodies_fill_the_budget_others_get_503_and_later_find_room() {
    let worker = FakeWorker::by_hand().await;
    let flags = ["--max-body-bytes", "1MiB", "--body-budget-bytes", "1MiB", "--admission-timeout-ms", "100"];
    let gateway = Gateway::passthrough(&worker.url(), &flags).await;
    let large = bodies::chat(&[bodies::text(&"x".repeat(1_000_000))]);
    let mut first = gateway.raw().await;
    first.post("/v1/chat/completions", "", &large).await;
    let exchange = worker.next().await;
    let (status, answer) = gateway.chat(large.clone()).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("bodies_overloaded")));
    exchange.answer(worker::ok_json("{}")).await;
    assert_eq!(first.answer().await.status(), 200);
    eventually("room", || async {
        gateway.metric("mediagate_budget_free_bytes", "\"bodies").await == f64::from(1 << 20)
    })
    .await;
    let mut second = gateway.raw().await;
    second.post("/v1/chat/completions", "", &large).await;
    worker.next().await.answer(worker::ok_json("{}")).await;
    assert_eq!(second.answer().await.status(), 200);
}

#[tokio::test]
async fn bodies_that_come_piece_by_piece_side_by_side_do_not_wait_for_one_another_for_ever() {
    let worker = FakeWorker::start().await;
    let flags = [
        ["--max-body-bytes", "1MiB"],
        ["--body-budget-bytes", "3MiB"],
        // If they do, it is for ever; not if the machine is busy.
        ["--admission-timeout-ms", "120000"],
        ["--body-timeout-ms", "120000"],
    ]
    .concat();
    let gateway = Gateway::passthrough(&worker.url(), &flags).await;
    let body = bodies::chat(&[bodies::text(&"x".repeat(1_000_000))]);
    let clients = (0..8).map(|_| async {
        let mut client = gateway.raw().await;
        client
            .send(format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len()))
            .await;
        for piece in body.as_bytes().chunks(50_000) {
            client.send(piece).await;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        client.answer().await.status()
    });
    for status in futures_util::future::join_all(clients).await {
        assert_eq!(status, 200);
    }
    assert_well(&gateway).await;
}

#[tokio::test]
async fn heads_without_measure_are_refused() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let lines = "X-Many: 1\r\n".repeat(10_000);
    let long = format!("X-Long: {}\r\n", "a".repeat(1 << 20));
    let target = "a".repeat(1 << 20);
    for request in [
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: 2\r\n\r\n{{}}"),
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{long}Content-Length: 2\r\n\r\n{{}}"),
        format!("GET /{target} HTTP/1.1\r\nHost: x\r\n\r\n"),
        "\r\n".repeat(1 << 20),
        "\0\0\0\0 garbage \r\n\r\n".into(),
        "GET / HTTP/9.9\r\n\r\n".into(),
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ".into(),
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -2\r\n\r\n{}".into(),
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n{}".into(),
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n{}".into(),
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".into(),
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"
            .into(),
    ] {
        let mut client = gateway.raw().await;
        let _ = client.try_send(&request).await;
        // Some get an answer of 4xx, some none: the connection ends.
        let said = String::from_utf8_lossy(&client.rest().await).into_owned();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{:?}: {said}", &request[..request.len().min(80)]);
    }
    assert!(worker.seen().is_empty());
    assert_well(&gateway).await;
}

#[tokio::test]
async fn chunk_extensions_without_measure_are_refused() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let extended = format!("1;{}\r\n \r\n", "x=y;".repeat(1000));
    for _ in 0..1000 {
        if client.try_send(&extended).await.is_err() {
            break;
        }
    }
    let said = String::from_utf8_lossy(&client.rest().await).into_owned();
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    assert!(worker.seen().is_empty());
    assert_well(&gateway).await;
}

#[tokio::test]
async fn framing_that_says_two_things_smuggles_nothing() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let hidden = "POST /mediagate/attach HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    for framing in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 6",
        "Transfer-Encoding: chunked, identity\r\nContent-Length: 6",
        "Transfer-Encoding: xchunked\r\nContent-Length: 2",
        "Transfer-Encoding : chunked\r\nContent-Length: 2",
        "Content-Length: 2\r\n Transfer-Encoding: chunked",
    ] {
        let body = format!("2\r\n{{}}\r\n{LAST_CHUNK}{hidden}");
        let mut client = gateway.raw().await;
        let request = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n{body}");
        client.send(request).await;
        client.half_close().await;
        client.rest().await;
    }
    for request in worker.seen() {
        assert_eq!(request.target(), "/v1/chat/completions");
        assert_eq!(request.body, b"{}");
    }
    assert_well(&gateway).await;
}

#[tokio::test]
async fn http_that_servers_in_a_row_could_read_in_two_ways_is_refused_in_the_callers_dialect() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let body = format!("2\r\n{{}}\r\n{LAST_CHUNK}");
    for headers in [
        "Transfer-Encoding: chunked",
        "Host: x\r\nHost: x\r\nTransfer-Encoding: chunked",
        "Host: x\r\nTransfer-Encoding: gzip, chunked",
        "Host: x\r\nTransfer-Encoding: chunked, chunked",
        "Host: x\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    ] {
        for (path, kind) in [("/v1/chat/completions", None), ("/v1/messages", Some("error")), ("/nothing", None)] {
            let mut client = gateway.raw().await;
            client.send(format!("POST {path} HTTP/1.1\r\n{headers}\r\n\r\n{body}")).await;
            let answer = client.answer().await;
            assert_eq!(answer.status(), 400, "{headers}");
            let said = answer.json();
            assert_eq!((said["error"]["code"].as_str(), said["type"].as_str()), (Some("invalid_http"), kind));
            assert!(client.rest().await.is_empty(), "the connection is closed");
        }
    }
    assert!(worker.seen().is_empty());
    assert_well(&gateway).await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let worker = FakeWorker::answering(|request| worker::ok_json(&String::from_utf8_lossy(&request.body))).await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    for number in 0..50 {
        client.post("/v1/chat/completions", "", &format!("{{\"n\":{number}}}")).await;
        client.send("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n").await;
    }
    for number in 0..50 {
        assert_eq!(client.answer().await.json()["n"], number);
        assert_eq!(client.answer().await.status(), 404);
    }
}

#[tokio::test]
async fn a_refused_body_leaves_the_connection_in_order() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    // What is left of the body is no request.
    let body = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}".repeat(5000);
    client.post("/nothing", "", &body).await;
    assert_eq!(client.answer().await.status(), 404);
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    // Kept open or closed, but never misread.
    if let Ok(Some(answer)) = client.try_answer().await {
        assert_eq!(answer.status(), 200);
        assert_eq!(worker.only().body, bodies::plain().as_bytes());
    }
    assert_well(&gateway).await;
}

/// As uvicorn does, the gateway may take the end of what a client sends for the client's leaving.
#[tokio::test]
async fn a_client_that_half_closes_is_answered_or_let_go_and_nothing_is_left_behind() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    client.half_close().await;
    let said = client.rest().await;
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&said));
    let mut broken = gateway.raw().await;
    broken.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"half").await;
    broken.half_close().await;
    broken.rest().await;
    assert_well(&gateway).await;
    for request in worker.seen() {
        assert_eq!(request.body, bodies::plain().as_bytes(), "the broken one reached nobody");
    }
}

#[tokio::test]
async fn many_uuids_are_refused_before_they_take_memory() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let parts = r#"{"uuid":1},"#.repeat(1_000_000);
    let (status, answer) = gateway.chat(format!(r#"{{"messages":[{{"content":[{parts}1]}}]}}"#)).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("too_many_uuids")));
    let images = r#"{"image_url":"data:,"},"#.repeat(600);
    let (status, answer) = gateway.chat(format!(r#"{{"messages":[{{"content":[{images}1]}}]}}"#)).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("too_many_images")));
}

#[tokio::test]
async fn streams_that_are_reset_as_fast_as_they_are_opened_stop_nobody() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let stream = tokio::net::TcpStream::connect(gateway.public).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    for _ in 0..20_000 {
        let request = http::Request::post(gateway.url("/v1/chat/completions")).body(()).unwrap();
        let Ok((_, mut stream)) = client.send_request(request, false) else { break };
        stream.send_reset(h2::Reason::CANCEL);
        match client.ready().await {
            Ok(ready) => client = ready,
            // The gateway has had enough of it.
            Err(_) => break,
        }
    }
    assert_well(&gateway).await;
    connection.abort();
    assert!(worker.seen().len() == 1, "none of the others was whole");
}

#[tokio::test]
async fn a_thousand_connections_at_once_are_served() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut idle = Vec::new();
    for _ in 0..400 {
        let mut client = gateway.raw().await;
        client.send("POST /v1/chat/com").await;
        idle.push(client);
    }
    let requests = (0..200).map(|_| gateway.chat(bodies::plain()));
    for (status, _) in soon("all answers", futures_util::future::join_all(requests)).await {
        assert_eq!(status, 200);
    }
}

/// A frame of HTTP/2 (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The frames of a flood, by their number.
type Flood<'a> = dyn Fn(u32) -> Vec<u8> + 'a;

#[tokio::test]
async fn floods_of_http_2_frames_stop_nobody() {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;
    const CONTINUATION: u8 = 9;
    const END_HEADERS: u8 = 4;
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    // In HPACK: `:method: POST`, `:scheme: http`, a path.
    let post = b"\x83\x86\x04\x0f/v1/completions";
    // A long field that goes into the table, and then is named ten thousand times by its number there.
    let bomb = [&post[..], b"\x40\x01a\x7f\xa1\x1e", &[b'A'; 4000], &[0xbe; 10_000]].concat();
    let floods: [(&str, &Flood<'_>); 7] = [
        ("pings", &|_| frame(PING, 0, 0, b"12345678")),
        ("settings", &|_| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])),
        ("window updates", &|_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("empty data", &|_| frame(DATA, 0, 1, b"")),
        ("heads that never end", &|n| match n {
            0 => frame(HEADERS, 0, 1, b"\x83"),
            _ => frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b"),
        }),
        ("streams that stay open", &|n| frame(HEADERS, END_HEADERS, 1 + 2 * n, post)),
        ("heads that unfold", &|n| frame(HEADERS, END_HEADERS, 1 + 2 * n, &bomb)),
    ];
    for (count, (what, flood)) in (1..).zip(floods) {
        let mut client = gateway.raw().await;
        client.send([&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, b"")].concat()).await;
        for batch in 0..200 {
            let bytes: Vec<u8> = (0..100).flat_map(|n| flood(batch * 100 + n)).collect();
            // The gateway may have had enough, or read no more before its answers are.
            let sent = tokio::time::timeout(std::time::Duration::from_millis(100), client.try_send(&bytes)).await;
            if !matches!(sent, Ok(Ok(()))) {
                break;
            }
        }
        assert_well(&gateway).await;
        assert_eq!(worker.seen().len(), count, "{what}: none of it was a whole request");
    }
}
