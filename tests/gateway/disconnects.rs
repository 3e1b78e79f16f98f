//! Clients that leave: what was done for them ends, and what was held for them is free again.
//!
//! How long that takes is printed (`cargo test --release --test gateway disconnects -- --nocapture --test-threads 1`); what
//! is asserted is that it happens.

use std::time::Instant;

use bytes::Bytes;
use http::Request;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::support::{
    bodies, eventually,
    gateway::Gateway,
    pictures::{self, data_uri},
    raw::RawClient,
    soon,
    worker::{FakeWorker, SSE_HEAD, chunk},
};

/// How a client speaks, and leaves.
#[derive(Debug, Clone, Copy)]
enum How {
    /// HTTP/1.1: closes the connection.
    Http1,
    /// HTTP/2: resets the stream.
    Http2Stream,
    /// HTTP/2: closes the connection.
    Http2Connection,
}

const ALL: [How; 3] = [How::Http1, How::Http2Stream, How::Http2Connection];

/// A client whose request is sent, or as much of it as the gateway takes.
enum Client {
    Http1(RawClient),
    Http2 { stream: h2::SendStream<Bytes>, response: Option<h2::client::ResponseFuture>, connection: JoinHandle<()> },
}

impl Client {
    async fn ask(gateway: &Gateway, how: How, body: &str) -> Self {
        if let How::Http1 = how {
            let mut client = gateway.raw().await;
            client.post("/v1/chat/completions", "", body).await;
            return Client::Http1(client);
        }
        let stream = TcpStream::connect(gateway.public).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        let request = Request::post(gateway.url("/v1/chat/completions")).body(()).unwrap();
        let (response, mut stream) = client.send_request(request, false).unwrap();
        // h2 sends it as the window allows.
        stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true).unwrap();
        Client::Http2 { stream, response: Some(response), connection }
    }

    async fn answer_has_begun(&mut self) {
        match self {
            Client::Http1(client) => drop(client.answer_head().await),
            Client::Http2 { response, .. } => {
                let head = soon("the head of an answer", response.take().unwrap()).await.unwrap();
                let mut body = head.into_body();
                soon("a chunk", body.data()).await.unwrap().unwrap();
                // Dropping it would reset the stream.
                std::mem::forget(body);
            }
        }
    }

    async fn leave(self, how: How) {
        match self {
            Client::Http1(client) => drop(client),
            Client::Http2 { mut stream, connection, .. } => match how {
                How::Http2Stream => {
                    stream.send_reset(h2::Reason::CANCEL);
                    // The connection stays, as that of a client with other requests does.
                    drop(connection);
                }
                _ => {
                    connection.abort();
                    let _ = connection.await;
                }
            },
        }
    }
}

/// Whether no request is under way, and none holds anything.
async fn nothing_is_held(gateway: &Gateway) -> bool {
    let metrics = gateway.metrics().await;
    let value = |series: &str| {
        let line = metrics.lines().find(|line| line.starts_with(series)).unwrap_or_else(|| panic!("no {series}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let budgets = metrics.lines().filter_map(|line| line.strip_prefix("mediagate_budget_bytes")?.split_once(' '));
    let budgets_free = budgets.into_iter().all(|(budget, bytes)| {
        bytes.parse::<f64>().unwrap() == value(&format!("mediagate_budget_free_bytes{budget}"))
            && value(&format!("mediagate_budget_waiting_requests{budget}")) == 0.0
    });
    budgets_free && value("mediagate_requests_in_flight") == 0.0 && value("mediagate_worker_requests_in_flight") == 0.0
}

/// The client leaves; what is done for it ends, and everything is free.
async fn released(gateway: &Gateway, what: &str, how: How, client: Client, ended: impl Future) {
    let start = Instant::now();
    client.leave(how).await;
    soon("the end of what was done for it", ended).await;
    let ended = start.elapsed();
    soon("everything to be free", async { while !nothing_is_held(gateway).await {} }).await;
    println!("{what}, {how:?}: ended after {ended:?}, everything free after {:?}", start.elapsed());
}

fn picture(seed: u32) -> String {
    data_uri("image/png", &pictures::png(seed, 500, 400).0)
}

#[tokio::test]
async fn while_the_worker_works() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    for (seed, how) in (0..).zip(ALL) {
        let client = Client::ask(&gateway, how, &bodies::with_images([&*picture(seed)])).await;
        let exchange = worker.next().await;
        assert!(!nothing_is_held(&gateway).await);
        released(&gateway, "worker works", how, client, exchange.closed()).await;
    }
}

#[tokio::test]
async fn in_the_middle_of_a_stream() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    for (seed, how) in (0..).zip(ALL) {
        let mut client = Client::ask(&gateway, how, &bodies::with_images([&*picture(seed)])).await;
        let mut exchange = worker.next().await;
        exchange.write(format!("{SSE_HEAD}{}", chunk("data: 1\n\n"))).await;
        client.answer_has_begun().await;
        released(&gateway, "stream", how, client, exchange.closed()).await;
    }
}

#[tokio::test]
async fn while_an_image_is_fetched() {
    let worker = FakeWorker::start().await;
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = origin.local_addr().unwrap();
    let port = address.port().to_string();
    let flags = ["--media-allow-cidr", "127.0.0.0/8", "--media-allow-port", &port];
    let gateway = Gateway::decoding(&worker.url(), &flags).await;
    for how in ALL {
        let url = format!("http://{address}/{how:?}.png");
        let client = Client::ask(&gateway, how, &bodies::with_images([&*url])).await;
        let (mut stream, _) = soon("a fetch", origin.accept()).await.unwrap();
        let mut head = [0; 4];
        stream.read_exact(&mut head).await.unwrap();
        let mut rest = Vec::new();
        released(&gateway, "fetch", how, client, stream.read_to_end(&mut rest)).await;
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn while_it_waits_for_room_for_its_pixels() {
    let worker = FakeWorker::by_hand().await;
    let flags = ["--arena-bytes", "4MiB", "--media-max-pixels", "300000", "--admission-timeout-ms", "60000"];
    let gateway = Gateway::decoding(&worker.url(), &flags).await;
    for (round, how) in (0..).zip(ALL) {
        let mut held = Vec::new();
        let waiting = |held: usize| {
            let gateway = &gateway;
            async move {
                gateway.metric("mediagate_budget_waiting_requests", "pixels").await > 0.0
                    || gateway.metric("mediagate_worker_requests_in_flight", "").await > held as f64
            }
        };
        let client = loop {
            let seed = 100 * round + u32::try_from(held.len()).unwrap();
            let client = Client::ask(&gateway, how, &bodies::with_images([&*picture(seed)])).await;
            eventually("a request that waits or is through", || waiting(held.len())).await;
            if gateway.metric("mediagate_budget_waiting_requests", "pixels").await > 0.0 {
                break client;
            }
            held.push((client, worker.next().await));
        };
        let start = Instant::now();
        client.leave(how).await;
        eventually("nobody to wait", || async {
            gateway.metric("mediagate_budget_waiting_requests", "").await == 0.0
                && gateway.metric("mediagate_requests_in_flight", "").await == held.len() as f64
        })
        .await;
        println!("waits for pixels, {how:?}: everything free after {:?}", start.elapsed());
        for (client, exchange) in held {
            client.leave(how).await;
            exchange.closed().await;
        }
        eventually("everything to be free", || nothing_is_held(&gateway)).await;
    }
}

/// Over HTTP/1.1 nobody can see it: the end of what a client sends is behind the rest of the body, for which there is no
/// room. It is seen when the wait is over, after `--admission-timeout-ms` at most.
#[tokio::test]
async fn while_its_body_waits_for_room() {
    let worker = FakeWorker::by_hand().await;
    let flags = ["--max-body-bytes", "1MiB", "--body-budget-bytes", "1MiB", "--admission-timeout-ms", "60000"];
    let gateway = Gateway::decoding(&worker.url(), &flags).await;
    let large = bodies::chat(&[bodies::text(&"x".repeat(1_000_000))]);
    for how in [How::Http2Stream, How::Http2Connection] {
        let first = Client::ask(&gateway, How::Http1, &large).await;
        let exchange = worker.next().await;
        let second = Client::ask(&gateway, how, &large).await;
        eventually("a body that waits", || async {
            gateway.metric("mediagate_budget_waiting_requests", "bodies_lane").await > 0.0
        })
        .await;
        let start = Instant::now();
        second.leave(how).await;
        eventually("nobody to wait", || async {
            gateway.metric("mediagate_budget_waiting_requests", "").await == 0.0
                && gateway.metric("mediagate_requests_in_flight", "").await == 1.0
        })
        .await;
        println!("body waits, {how:?}: everything free after {:?}", start.elapsed());
        released(&gateway, "worker works", How::Http1, first, exchange.closed()).await;
    }
}
