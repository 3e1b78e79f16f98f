//! Bad requests are refused with words that help, and give nothing away.

use serde_json::{Value, json};

use super::support::{
    bodies, eventually,
    files::Files,
    gateway::{self, Gateway},
    pictures::{self, data_uri},
    worker::{self, FakeWorker},
};

/// What no answer may hold.
fn assert_discreet(answer: &Value) {
    let text = answer.to_string();
    for word in ["127.0.0.1", "localhost", "s3cret", "0x", "/src/", ".rs", "panicked", "internal.example"] {
        assert!(!text.contains(word), "{word} in {text}");
    }
}

#[tokio::test]
async fn an_image_that_cannot_be_had_is_400_with_its_place_and_no_secrets() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let gateway = Gateway::fetching(&worker.url(), &files).await;
    let good = data_uri("image/png", &pictures::png(1, 4, 4).0);
    let truncated = pictures::file("baseline_420.jpg");
    let uri = |bytes: &[u8]| data_uri("image/png", bytes);
    for (bad, code) in [
        (uri(b"not an image"), "unsupported_image_format"),
        (uri(&truncated[..truncated.len() / 2]), "image_truncated"),
        ("data:image/png;base64,@@@@".into(), "invalid_base64"),
        ("data:image/png,abc".into(), "invalid_data_uri"),
        (files.url("/nothing.png?key=s3cret"), "media_origin_refused"),
        (files.put("/page.html?key=s3cret", "<html>"), "media_origin_refused"),
        ("http://127.0.0.1:22/x?key=s3cret".into(), "media_port_not_allowed"),
        ("http://localhost/x?key=s3cret".into(), "media_host_not_allowed"),
        ("http://[fd00::1]/x?key=s3cret".into(), "media_ip_literal_not_allowed"),
        ("http://169.254.169.254/latest/meta-data".into(), "media_ip_literal_not_allowed"),
        ("file:///etc/passwd".into(), "unsupported_scheme"),
        ("ftp://internal.example/x".into(), "unsupported_scheme"),
        (String::new(), "invalid_image_url"),
        ("http://user:s3cret@internal.example/".into(), "invalid_image_url"),
        ("x.png".into(), "invalid_image_url"),
    ] {
        let (status, answer) = gateway.chat(bodies::with_images([good.as_str(), bad.as_str()])).await;
        let error = &answer["error"];
        assert_eq!((status, error["code"].as_str().unwrap()), (400, code), "{bad}: {answer}");
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["param"], "messages[0].content[1].image_url");
        assert!(error["message"].as_str().unwrap().contains("index 1"), "{error}");
        assert_discreet(&answer);
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn loopback_is_refused_without_the_option() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let port = files.address.port().to_string();
    let gateway = Gateway::decoding(&worker.url(), &["--media-allow-port", &port]).await;
    let url = files.put("/a.png", pictures::png(1, 4, 4).0);
    let (status, answer) = gateway.chat(bodies::with_images([url.as_str()])).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("media_ip_literal_not_allowed")));
    let named = url.replace("127.0.0.1", "localhost");
    let (status, named) = gateway.chat(bodies::with_images([named.as_str()])).await;
    assert_eq!((status, &named["error"]["code"]), (400, &json!("media_host_not_allowed")));
    assert_eq!(files.count("/a.png"), 0);
    assert_discreet(&answer);
    assert_discreet(&named);
}

#[tokio::test]
async fn the_scheme_of_references_and_images_by_name_are_refused_in_both_modes() {
    let worker = FakeWorker::start().await;
    for flags in [&["--frontend-decoding"][..], &[]] {
        let gateway = Gateway::passthrough(&worker.url(), flags).await;
        for (part, code) in [
            (bodies::image("mediagate://0123456789abcdef/1/1/0/1x1/a/b/1/1/c"), "reserved_scheme"),
            (bodies::image("MEDIAGATE:x"), "reserved_scheme"),
            (bodies::image(" \tmediagate://x"), "reserved_scheme"),
            (json!({"image_url": "mediagate:x", "type": "input_image"}), "reserved_scheme"),
            (json!({"image_url": "mediagate:x"}), "reserved_scheme"),
            (json!({"type": "image_url", "image_url": null, "uuid": "of somebody"}), "uuid_only_unsupported"),
            (json!({"type": "image_url", "image_url": null}), "uuid_only_unsupported"),
            (json!({"type": "image_url", "image_url": {}, "uuid": "x"}), "uuid_only_unsupported"),
            (json!({"type": "image_url", "uuid": "x"}), "invalid_image_part"),
            (json!({"type": "image_url", "image_url": {"url": 5}}), "invalid_image_part"),
            (json!({"type": "image_url", "image_url": ["http://x"]}), "invalid_image_part"),
            (json!({"type": "text", "text": "x", "image_url": "http://x"}), "invalid_image_part"),
            (json!({"type": "image_url", "image_url": "http://x", "video_url": "http://y"}), "invalid_image_part"),
        ] {
            let (status, answer) = gateway.chat(bodies::chat(&[bodies::text("a"), part.clone()])).await;
            assert_eq!((status, &answer["error"]["code"]), (400, &json!(code)), "{part}: {answer}");
            assert_eq!(answer["error"]["param"], "messages[0].content[1].image_url");
        }
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn a_body_that_parsers_could_read_in_two_ways_is_refused() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    let arrays = format!("{{\"messages\":{}", "[".repeat(1_000_000));
    for (body, code) in [
        ("", "invalid_json"),
        ("[]", "invalid_json"),
        ("nonsense", "invalid_json"),
        ("{\"model\":\"m\",\"messages\":[{", "invalid_json"),
        ("{} {}", "invalid_json"),
        ("{}\0", "invalid_json"),
        ("\u{feff}{}", "invalid_json"),
        ("{'a':1}", "invalid_json"),
        ("{\"a\":NaN}", "invalid_json"),
        ("{\"a\":01}", "invalid_json"),
        ("{\"a\":1,}", "invalid_json"),
        ("{\"a\":\"\n\"}", "invalid_json"),
        ("{\"a\":\"\\x\"}", "invalid_json"),
        ("{\"model\":\"\\ud800\"}", "invalid_json"),
        ("{\"messages\":[],\"messages\":[]}", "duplicate_key"),
        ("{\"messages\":[],\"mess\\u0061ges\":[]}", "duplicate_key"),
        (r#"{"messages":[{"content":"a","content":[]}]}"#, "duplicate_key"),
        (
            r#"{"messages":[{"content":[{"type":"image_url","image_url":"http://a","image_url":"http://b"}]}]}"#,
            "duplicate_key",
        ),
        (r#"{"messages":[{"content":[{"image_url":{"url":"http://a","url":"http://b"}}]}]}"#, "duplicate_key"),
        (r#"{"messages":[{"content":[{"type":"text","type":"image_url"}]}]}"#, "duplicate_key"),
        (r#"{"messages":[{"content":{"type":"text"}}]}"#, "invalid_type"),
        (r#"{"stream":"yes"}"#, "invalid_type"),
        (&deep, "invalid_json"),
        (&arrays, "invalid_json"),
    ] {
        let (status, answer) = gateway.chat(body.to_owned()).await;
        let shown = &body[..body.len().min(80)];
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(code)), "{shown}: {answer}");
    }
    let (status, answer) = gateway.chat(b"{\"a\":\"\xff\"}".to_vec()).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid_json")));
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn a_body_above_the_limit_is_413_to_a_client_that_sends_it_all_first() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let body = vec![b' '; 65 << 20];
    let announced = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    let chunked = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4100000\r\n";
    for (head, end) in [(announced.as_str(), ""), (chunked, "\r\n0\r\n\r\n")] {
        let mut client = gateway.raw().await;
        for part in [head.as_bytes(), &body, end.as_bytes()] {
            client.send(part).await;
        }
        let answer = client.answer().await;
        assert_eq!((answer.status(), &answer.json()["error"]["code"]), (413, &json!("body_too_large")));
    }
    assert!(worker.seen().is_empty());
    assert_eq!(gateway.chat(bodies::plain()).await.0, 200, "the gateway is well");
}

#[tokio::test]
async fn a_body_that_is_announced_too_large_is_413_before_it_is_sent() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &["--max-body-bytes", "1000"]).await;
    for headers in ["", "Expect: 100-continue\r\n"] {
        let answer = gateway
            .exchange(format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n{headers}\r\n"))
            .await;
        assert_eq!(answer.status(), 413, "{}", answer.text());
    }
}

#[tokio::test]
async fn a_client_that_expects_100_continue_gets_it() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let body = bodies::plain();
    let mut client = gateway.raw().await;
    let length = body.len();
    client
        .send(format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
        ))
        .await;
    assert_eq!(client.answer_head().await.status(), 100);
    client.send(body).await;
    assert_eq!(client.answer().await.status(), 200);
    assert_eq!(worker.only().header("expect"), None);
}

#[tokio::test]
async fn readiness_follows_the_workers_and_no_worker_is_503() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    worker.set_health("503 Service Unavailable");
    eventually("not ready", || async { gateway.get("/ready").await.status() == 503 }).await;
    assert_eq!(gateway.get("/health").await.status(), 200, "the process itself is well");
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    let answer = client.answer().await;
    assert_eq!((answer.status(), answer.header("retry-after")), (503, Some("1")));
    assert_eq!(answer.json()["error"]["code"], "no_worker");
    assert_eq!(gateway.get("/v1/models").await.status(), 503);
    worker.set_health("200 OK");
    eventually("ready", || async { gateway.get("/ready").await.status() == 200 }).await;
    assert_eq!(gateway.chat(bodies::plain()).await.0, 200);
    assert_eq!(worker.seen().len(), 1);
}

#[tokio::test]
async fn a_worker_that_went_down_is_502_until_that_is_known_and_then_503() {
    let worker = FakeWorker::start().await;
    // Nobody looks for a while: the request itself finds out.
    let gateway = Gateway::passthrough(&worker.url(), &["--health-interval-ms", "600000"]).await;
    let address = worker.stop().await;
    let (status, answer) = gateway.chat(bodies::plain()).await;
    assert_eq!((status, &answer["error"]["code"]), (502, &json!("worker_unreachable")));
    assert_discreet(&answer);
    let (status, answer) = gateway.chat(bodies::plain()).await;
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("no_worker")));
    assert_eq!(gateway.get("/ready").await.status(), 503);
    drop(gateway);

    let _again = FakeWorker::start_at(address).await;
    let gateway = Gateway::passthrough(&format!("http://{address}"), &[]).await;
    assert_eq!(gateway.chat(bodies::plain()).await.0, 200);
}

#[tokio::test]
async fn a_worker_that_comes_back_is_used_again() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let address = worker.stop().await;
    eventually("not ready", || async { gateway.get("/ready").await.status() == 503 }).await;
    let _again = FakeWorker::start_at(address).await;
    eventually("ready", || async { gateway.get("/ready").await.status() == 200 }).await;
    assert_eq!(gateway.chat(bodies::plain()).await.0, 200);
}

#[tokio::test]
async fn a_worker_that_cannot_be_reached_is_passed_over() {
    let workers = [FakeWorker::start().await, FakeWorker::start().await];
    let gateway =
        Gateway::passthrough(&workers[0].url(), &["--worker", &workers[1].url(), "--health-interval-ms", "600000"])
            .await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    let [gone, left] = workers;
    gone.stop().await;
    for index in 0..20 {
        let body = bodies::chat(&[bodies::text(&format!("conversation {index}"))]);
        let (status, answer) = gateway.chat(body).await;
        assert_eq!(status, 200, "{answer}");
    }
    assert_eq!(left.seen().len(), 20);
}

#[tokio::test]
async fn an_answer_that_is_no_http_is_502() {
    for garbage in [
        b"\x00\x01\x02garbage\r\n\r\n".to_vec(),
        b"".to_vec(),
        b"HTTP/1.1 200 OK\r\nx: ".to_vec(),
        b"HTTP/1.1 999999 What\r\n\r\n".to_vec(),
        [b"HTTP/1.1 200 OK\r\n".to_vec(), b"x-many: 1\r\n".repeat(10_000), b"\r\n".to_vec()].concat(),
        [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'a'; 8 << 20], b"\r\n\r\n".to_vec()].concat(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!".to_vec(),
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n".to_vec(),
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n".to_vec(),
    ] {
        let worker = FakeWorker::by_hand().await;
        let gateway = Gateway::passthrough(&worker.url(), &[]).await;
        let mut request = tokio::spawn(gateway::answer(gateway.request(bodies::plain())));
        let answer = loop {
            tokio::select! {
                mut exchange = worker.next() => {
                    // The gateway may have heard enough before the end.
                    let _ = exchange.try_write(&garbage).await;
                }
                answer = &mut request => break answer,
            }
        };
        let (status, answer) = answer.unwrap();
        let shown = String::from_utf8_lossy(&garbage[..garbage.len().min(60)]);
        assert_eq!((status, &answer["error"]["code"]), (502, &json!("worker_unreachable")), "{shown}");
        assert_discreet(&answer);
    }
}

#[tokio::test]
async fn interim_answers_of_a_worker_are_not_taken_for_its_answer() {
    let worker = FakeWorker::answering(|_| {
        let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";
        [interim.as_bytes().to_vec(), worker::ok_json("{\"a\":1}")].concat()
    })
    .await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    assert_eq!(gateway.chat(bodies::plain()).await, (200, json!({"a": 1})));
}

#[tokio::test]
async fn words_of_our_plugin_about_what_was_not_pushed_pass_as_they_are() {
    for (status, kind) in [("409 Conflict", "stale"), ("410 Gone", "gone"), ("422 X", "bad"), ("503 X", "late")] {
        let worker = FakeWorker::answering(move |_| {
            worker::json(status, &format!(r#"{{"error":{{"message":"mediagate {kind}: x","code":1}}}}"#))
        })
        .await;
        let gateway = Gateway::decoding(&worker.url(), &[]).await;
        let uri = data_uri("image/png", &pictures::png(1, 4, 4).0);
        let (got, answer) = gateway.chat(bodies::with_images([uri.as_str()])).await;
        assert_eq!(got.to_string(), status[..3]);
        assert_eq!(answer["error"]["message"], format!("mediagate {kind}: x"));
        assert_eq!(worker.seen().len(), 1, "it is not sent again");
    }
}
