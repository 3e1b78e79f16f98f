//! What the gateway does not need to change, it does not change.

use super::support::{
    bodies, eventually,
    gateway::Gateway,
    soon,
    worker::{self, FakeWorker, LAST_CHUNK, SSE_HEAD, chunk},
};

/// Odd in every way that JSON allows, and with members that nobody knows.
const ODD_BODY: &str = "\t{\r\n \"zeta\" : [1e400, -0.0, 1E+2, {}, [ ] ] ,\"model\":\"m\\u006fdel\", \"stream\":null,\n\"messages\":[ {\"content\":[\n{\"image_url\" : {\"detail\":\"low\",\"url\":\"http:\\/\\/127.0.0.1:9\\/\\u0061.png?a=b\", \"extra\":null}, \"type\":\"image_url\"} ,{\"text\":\"\u{1f600} \\ud83d\\ude00 \\\" \",\"type\":\"text\"}], \"role\":\"user\"}]  , \"mm_processor_kwargs\":{\"a\":{\"a\":1}}}\n\n ";

/// URLs that pass are judged, too; these may.
const ALLOWED: [&str; 4] = ["--media-allow-cidr", "127.0.0.0/8", "--media-allow-port", "9"];

#[tokio::test]
async fn a_body_without_uuids_reaches_the_worker_byte_for_byte() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &ALLOWED).await;
    let response = gateway.request(ODD_BODY).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let seen = worker.only();
    assert_eq!(String::from_utf8(seen.body.clone()).unwrap(), ODD_BODY);
    assert_eq!(seen.header("content-length"), Some(ODD_BODY.len().to_string().as_str()));
    assert_eq!(seen.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn of_a_body_only_clients_uuids_are_taken() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &ALLOWED).await;
    let with = r#"{"messages":[{"role":"user","uuid":"kept: no part","content":[ {"uuid":"a", "type":"image_url","image_url":{"url":"http://127.0.0.1:9/x","uuid":"kept"}} ,{"type":"text","text":"t" , "u\u0075id" : {"x":[1,2]} }]}],"uuid":1}"#;
    let without = r#"{"messages":[{"role":"user","uuid":"kept: no part","content":[ { "type":"image_url","image_url":{"url":"http://127.0.0.1:9/x","uuid":"kept"}} ,{"type":"text","text":"t" }]}],"uuid":1}"#;
    assert_eq!(gateway.chat(with).await.0, 200);
    assert_eq!(String::from_utf8(worker.only().body).unwrap(), without);
}

#[tokio::test]
async fn a_url_that_never_changes_what_it_shows_is_its_pictures_uuid() {
    let worker = FakeWorker::start().await;
    let flags = [&ALLOWED[..], &["--url-identity", "immutable", "--url-identity-ignore", "sig"]].concat();
    let gateway = Gateway::passthrough(&worker.url(), &flags).await;
    let mut uuids = Vec::new();
    for (url, salt) in [("x?sig=1", "a"), ("x?sig=2", "a"), ("x?w=2", "a"), ("x?sig=1", "b")] {
        let part = format!(r#"{{"uuid":"clients","image_url":{{"url":"http://127.0.0.1:9/{url}"}}"#);
        let body = format!(r#"{{"cache_salt":"{salt}","messages":[{{"role":"user","content":[{part}}}]}}]}}"#);
        assert_eq!(gateway.chat(body).await.0, 200);
        let seen: serde_json::Value = serde_json::from_slice(&worker.seen().last().unwrap().body).unwrap();
        let part = &seen["messages"][0]["content"][0];
        assert_eq!(part["image_url"]["url"], format!("http://127.0.0.1:9/{url}"), "the URL is sent as it came");
        uuids.push(part["uuid"].as_str().unwrap().to_owned());
    }
    assert_eq!(uuids[0], uuids[1], "the signature does not count");
    assert_ne!(uuids[0], uuids[2], "other parameters do");
    assert_ne!(uuids[0], uuids[3], "and so does the scope");
    assert!(uuids.iter().all(|uuid| uuid.len() == 64));
}

#[tokio::test]
async fn a_chunked_body_arrives_whole() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let body = bodies::plain();
    let (first, second) = body.split_at(7);
    let mut client = gateway.raw().await;
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    client.send(chunk(first)).await;
    client.send(format!("{}{LAST_CHUNK}", chunk(second))).await;
    assert_eq!(client.answer().await.status(), 200);
    let seen = worker.only();
    assert_eq!(String::from_utf8(seen.body.clone()).unwrap(), body);
    assert_eq!(seen.header("transfer-encoding"), None);
}

#[tokio::test]
async fn an_answer_passes_as_it_is() {
    for (status, body) in [
        ("200 OK", "{ \"a\" :1}\n"),
        ("400 Bad Request", r#"{"error":{"message":"vLLM's own words","code":400}}"#),
        ("404 Not Found", r#"{"error":{"message":"The model does not exist"}}"#),
        ("418 Teapot", "short and stout"),
        ("429 Too Many Requests", "{}"),
        ("500 Internal Server Error", ""),
        ("503 Service Unavailable", "{}"),
    ] {
        let worker = FakeWorker::answering(move |_| {
            let length = body.len();
            format!("HTTP/1.1 {status}\r\nserver: uvicorn\r\nX-Own: 1\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nretry-after: 7\r\ncontent-type: text/odd\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
        })
        .await;
        let gateway = Gateway::passthrough(&worker.url(), &[]).await;
        let mut client = gateway.raw().await;
        client.post("/v1/chat/completions", "", &bodies::plain()).await;
        let answer = client.answer().await;
        assert_eq!(answer.status().to_string(), status[..3]);
        assert_eq!(String::from_utf8(answer.body.clone()).unwrap(), body);
        assert_eq!(answer.header("content-length"), Some(body.len().to_string().as_str()));
        assert_eq!(answer.header("content-type"), Some("text/odd"));
        assert_eq!(answer.header("retry-after"), Some("7"));
        assert_eq!(answer.header("server"), Some("uvicorn"));
        assert_eq!(answer.header("x-own"), Some("1"));
        assert_eq!(answer.all("set-cookie"), ["a=1", "b=2"]);
    }
}

#[tokio::test]
async fn an_empty_answer_without_content_passes() {
    let worker = FakeWorker::answering(|_| b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()).await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    assert_eq!(client.answer().await.status(), 204);
}

#[tokio::test]
async fn each_chunk_of_a_stream_passes_before_the_next_is_there() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    let mut exchange = worker.next().await;
    exchange.write(SSE_HEAD).await;
    let head = client.answer_head().await;
    assert_eq!(head.header("content-type"), Some("text/event-stream; charset=utf-8"));
    for event in ["data: {\"a\":1}\n\n", "data: half an", " event\n\n: comment\r\n\r\n", "data: [DONE]\n\n"] {
        exchange.write(chunk(event)).await;
        // The worker sends the next one only when this one is here, whole and in a chunk of its own.
        let expected = chunk(event);
        assert_eq!(String::from_utf8(client.bytes(expected.len()).await).unwrap(), expected);
    }
    exchange.write(LAST_CHUNK).await;
    assert_eq!(client.bytes(LAST_CHUNK.len()).await, LAST_CHUNK.as_bytes());
}

#[tokio::test]
async fn trailers_of_an_answer_pass_to_who_takes_them() {
    let worker = FakeWorker::answering(|_| {
        b"HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n"
            .to_vec()
    })
    .await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "TE: trailers\r\nConnection: TE\r\n", &bodies::plain()).await;
    assert_eq!(client.answer_head().await.header("trailer"), Some("x-sum"));
    let rest = b"5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n";
    assert_eq!(String::from_utf8(client.bytes(rest.len()).await).unwrap().as_bytes(), rest);
}

#[tokio::test]
async fn headers_of_the_connection_end_at_the_gateway_both_ways() {
    let worker = FakeWorker::answering(|_| {
        b"HTTP/1.1 200 OK\r\nconnection: keep-alive, x-private\r\nkeep-alive: timeout=5\r\nx-private: 1\r\nproxy-authenticate: Basic\r\nupgrade: h2c\r\nx-kept: 1\r\ncontent-length: 2\r\n\r\n{}".to_vec()
    })
    .await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    let headers = "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nUpgrade: h2c\r\n\
        Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nX-Mediagate-Debug: 1\r\nX-Mediagate-Mac: 1\r\n\
        Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nX-Data-Parallel-Rank: 1\r\n\
        X-Twice: a\r\nX-Twice: b\r\nAuthorization: Bearer of-the-client\r\nX-Request-Id: mine-1\r\nAccept-Encoding: gzip\r\n";
    client.post("/v1/chat/completions", headers, &bodies::plain()).await;
    let answer = client.answer().await;
    for gone in ["keep-alive", "x-private", "proxy-authenticate", "upgrade", "connection"] {
        assert_eq!(answer.header(gone), None, "{gone}");
    }
    assert_eq!(answer.header("x-kept"), Some("1"));
    assert_eq!(answer.header("x-request-id"), Some("mine-1"));

    let seen = worker.only();
    let gone = [
        "connection",
        "x-hop",
        "keep-alive",
        "te",
        "upgrade",
        "proxy-authorization",
        "proxy-connection",
        "x-mediagate-debug",
        "x-mediagate-mac",
        "transfer-encoding",
    ];
    for name in gone {
        assert_eq!(seen.header(name), None, "{name}");
    }
    assert!(seen.header("traceparent").unwrap().starts_with("00-0af7"));
    assert_eq!(seen.header("x-data-parallel-rank"), Some("1"));
    assert_eq!(seen.all("x-twice"), ["a", "b"]);
    assert_eq!(seen.header("authorization"), Some("Bearer of-the-client"));
    assert_eq!(seen.header("x-request-id"), Some("mine-1"));
    assert_eq!(seen.header("accept-encoding"), Some("gzip"));
}

#[tokio::test]
async fn a_request_id_that_could_do_harm_is_replaced() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "X-Request-Id: a b;<script>\r\n", &bodies::plain()).await;
    let id = client.answer().await.header("x-request-id").unwrap().to_owned();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    assert_eq!(worker.only().header("x-request-id"), Some(id.as_str()));
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_closes_the_workers_connection() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    let exchange = worker.next().await;
    drop(client);
    exchange.closed().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_stream_closes_the_workers_connection() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    let mut exchange = worker.next().await;
    exchange.write(format!("{SSE_HEAD}{}", chunk("data: 1\n\n"))).await;
    client.answer_head().await;
    drop(client);
    exchange.closed().await;
    // The next one finds everything as it was.
    let mut client = gateway.raw().await;
    client.post("/v1/chat/completions", "", &bodies::plain()).await;
    worker.next().await.write(worker::ok_json("{}")).await;
    assert_eq!(client.answer().await.status(), 200);
}

#[tokio::test]
async fn a_stream_that_the_worker_breaks_off_is_seen_to_be_broken() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for begun in [
        format!("{SSE_HEAD}{}", chunk("data: 1\n\n")),
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"half\":".to_owned(),
    ] {
        let mut client = gateway.raw().await;
        client.post("/v1/chat/completions", "", &bodies::plain()).await;
        let mut exchange = worker.next().await;
        exchange.write(begun).await;
        client.answer_head().await;
        drop(exchange);
        let rest = String::from_utf8(client.rest().await).unwrap();
        assert!(!rest.ends_with(LAST_CHUNK), "the client would take it for whole: {rest:?}");
    }
}

#[tokio::test]
async fn connections_to_a_worker_are_used_again() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for _ in 0..20 {
        assert_eq!(gateway.chat(bodies::plain()).await.0, 200);
    }
    let mut client = gateway.raw().await;
    for _ in 0..3 {
        client.post("/v1/chat/completions", "", &bodies::plain()).await;
        assert_eq!(client.answer().await.status(), 200);
    }
    assert_eq!(worker.seen().len(), 23);
}

#[tokio::test]
async fn urls_that_the_policy_forbids_pass_to_no_worker() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for url in ["http://169.254.169.254/latest", "http://localhost/x", "http://[::1]:8000/sleep", "file:///etc/passwd"]
    {
        let (status, answer) = gateway.chat(bodies::with_images([url])).await;
        assert_eq!(
            (status, answer["error"]["param"].as_str()),
            (400, Some("messages[0].content[0].image_url")),
            "{url}"
        );
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn clients_may_speak_http_2() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &ALLOWED).await;
    let http = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let post = http.post(gateway.url("/v1/chat/completions")).body(ODD_BODY);
    let response = soon("an answer", post.send()).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (200, reqwest::Version::HTTP_2));
    assert_eq!(worker.only().body, ODD_BODY.as_bytes());
    eventually("metrics", || async { gateway.metric("mediagate_requests_total", "chat_completions").await == 1.0 })
        .await;
}
