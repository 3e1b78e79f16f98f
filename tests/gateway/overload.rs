//! Budgets that fit one request: the others take turns, and nobody is refused for what it could have waited for.

use std::sync::{Arc, Mutex};

use futures_util::{FutureExt, future::join_all};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpSocket,
};

use super::support::{
    bodies, eventually,
    gateway::Gateway,
    pictures::{self, data_uri},
    worker::FakeWorker,
};

const BODY_BYTES: usize = 512 << 10;

fn picture(seed: u32) -> Vec<u8> {
    pictures::png(seed, 300, 300).0
}

/// A request of a body that the budget has no room for beside another, whose image is not written as it is said.
fn chat_with_escapes(seed: u32) -> String {
    let body = bodies::with_images([data_uri("image/png", &picture(seed)).as_str()]).replace('/', "\\/");
    assert!(body.contains("\\/") && (BODY_BYTES / 2..=BODY_BYTES).contains(&body.len()));
    body
}

fn anthropic(seed: u32) -> String {
    let data = base64_simd::STANDARD.encode_to_string(picture(seed));
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let message = json!({"role": "user", "content": [{"type": "image", "source": source}]});
    json!({"model": "standin", "max_tokens": 1, "messages": [message]}).to_string()
}

#[tokio::test]
async fn images_that_are_not_written_as_they_are_said_need_no_memory_beside_their_bodies() {
    let worker = FakeWorker::start().await;
    let largest = BODY_BYTES.to_string();
    let flags = ["--body-budget-bytes", &largest, "--max-body-bytes", &largest, "--admission-timeout-ms", "60000"];
    let gateway = Gateway::decoding(&worker.url(), &flags).await;
    let requests = (0..16).map(|seed| match seed % 2 {
        0 => gateway.post("/v1/chat/completions", chat_with_escapes(seed)).boxed(),
        _ => gateway.post("/v1/messages", anthropic(seed)).boxed(),
    });
    for (status, answer) in join_all(requests).await {
        assert_eq!(status, 200, "{answer}");
    }
    // The pixels are those that were sent.
    let seen = worker.seen();
    for seed in 0..16 {
        let url = data_uri("image/x-portable-pixmap", &pictures::ppm(&picture(seed)));
        assert!(seen.iter().any(|request| memchr::memmem::find(&request.bytes, url.as_bytes()).is_some()), "{seed}");
    }
}

#[tokio::test]
async fn pixels_that_go_inline_take_turns_where_there_is_memory_for_one_of_them() {
    let worker = FakeWorker::start().await;
    let largest = BODY_BYTES.to_string();
    let flags =
        ["--worker-body-budget-bytes", &largest, "--max-body-bytes", &largest, "--admission-timeout-ms", "60000"];
    let gateway = Gateway::decoding(&worker.url(), &flags).await;
    let bodies = (0..16).map(|seed| bodies::with_images([data_uri("image/png", &picture(seed)).as_str()]));
    for (status, answer) in join_all(bodies.map(|body| gateway.chat(body))).await {
        assert_eq!(status, 200, "{answer}");
    }
    eventually("all memory to be given back", || async {
        let free = gateway.metric("mediagate_budget_free_bytes", "budget=\"worker_bodies\"").await;
        free == BODY_BYTES as f64
    })
    .await;
}

/// A worker that reads the heads of chat requests, and not their bodies.
async fn unreading() -> (String, Arc<Mutex<Vec<BufReader<tokio::net::TcpStream>>>>) {
    let socket = TcpSocket::new_v4().unwrap();
    // However much the machine would buffer.
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(16).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stuck = Arc::<Mutex<Vec<_>>>::default();
    let kept = stuck.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = kept.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if !matches!(stream.read_line(&mut head).await, Ok(1..)) {
                        return;
                    }
                }
                if head.contains("/chat/completions") {
                    kept.lock().unwrap().push(stream);
                    return;
                }
                let status = if head.contains("/health") { "200 OK" } else { "404 Not Found" };
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (url, stuck)
}

/// One colour: a small file of many pixels.
fn flat(seed: u8, side: u32) -> String {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, side, side);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&vec![seed; side as usize * side as usize * 3]).unwrap();
    writer.finish().unwrap();
    bodies::with_images([data_uri("image/png", &file).as_str()])
}

#[tokio::test]
async fn bodies_that_a_worker_does_not_read_count_and_who_waits_for_them_is_told_when_to_come_again() {
    let (url, stuck) = unreading().await;
    // Larger than what the kernel takes off our hands.
    let flags = [
        "--worker-body-budget-bytes",
        "24MiB",
        "--max-body-bytes",
        "1MiB",
        "--arena-bytes",
        "256MiB",
        "--admission-timeout-ms",
        "2000",
    ];
    let gateway = Gateway::decoding(&url, &flags).await;
    let first = tokio::spawn(gateway.request(flat(1, 2400)).send());
    eventually("the first to be on its way", || async { stuck.lock().unwrap().len() == 1 }).await;
    let late = gateway.request(flat(2, 2400)).send().await.unwrap();
    assert_eq!((late.status().as_u16(), late.headers()["retry-after"].to_str().unwrap()), (503, "1"));
    let late: serde_json::Value = serde_json::from_str(&late.text().await.unwrap()).unwrap();
    assert_eq!(late["error"]["code"], "bodies_overloaded");
    let (status, never) = gateway.chat(flat(3, 3000)).await;
    assert_eq!((status, &never["error"]["code"]), (413, &json!("media_exceeds_memory")));
    first.abort();
}
