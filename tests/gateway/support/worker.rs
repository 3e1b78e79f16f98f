//! A worker that a test plays: every byte that reaches it is kept, and it answers as told.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Mutex as AsyncMutex, mpsc},
    task::{JoinHandle, JoinSet},
};

use super::{
    kept_address, soon,
    wire::{self, Message},
};

type Answering = dyn Fn(&Message) -> Vec<u8> + Send + Sync;

pub struct FakeWorker {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    by_hand: AsyncMutex<mpsc::UnboundedReceiver<Exchange>>,
    accepting: JoinHandle<()>,
}

struct Shared {
    seen: Mutex<Vec<Message>>,
    /// `None`: requests of clients are handed to the test.
    answering: Option<Box<Answering>>,
    /// Who answers the calls of the landing protocol; `None`: nobody.
    lander: Option<SocketAddr>,
    health: Mutex<&'static str>,
    /// Where its KV events come from; `None`: it has no such route.
    event_sources: Mutex<Option<String>>,
    /// Its list of models; `None`: it has no such route.
    models: Mutex<Option<String>>,
    asked_for_models: Mutex<Vec<Message>>,
    /// The answer to a gateway that wants to attach, where there is no lander.
    hello: Mutex<Vec<u8>>,
    exchanges: mpsc::UnboundedSender<Exchange>,
}

/// A request that waits for the test's answer, and its connection.
pub struct Exchange {
    pub request: Message,
    stream: BufReader<TcpStream>,
    shared: Arc<Shared>,
}

impl FakeWorker {
    /// Answers every request of a client with a small completion.
    pub async fn start() -> Self {
        Self::answering(|_| ok_json(r#"{"id":"x","object":"chat.completion","choices":[]}"#)).await
    }

    /// Answers every request of a client with these bytes, head and all.
    pub async fn answering(answer: impl Fn(&Message) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::bind(kept_address(), Some(Box::new(answer)), None).await
    }

    /// Hands every request of a client to [`Self::next`].
    pub async fn by_hand() -> Self {
        Self::bind(kept_address(), None, None).await
    }

    /// As [`Self::start`], on an address that was another worker's.
    pub async fn start_at(address: SocketAddr) -> Self {
        Self::bind(address, Some(Box::new(|_| ok_json("{}"))), None).await
    }

    /// Has landing memory, which is another's: gateways attach and push there, and their requests are handed to
    /// [`Self::next`].
    pub async fn landing_at(lander: SocketAddr) -> Self {
        Self::bind(kept_address(), None, Some(lander)).await
    }

    async fn bind(address: SocketAddr, answering: Option<Box<Answering>>, lander: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (exchanges, by_hand) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            answering,
            lander,
            health: Mutex::new("200 OK"),
            event_sources: Mutex::default(),
            models: Mutex::default(),
            asked_for_models: Mutex::default(),
            hello: Mutex::new(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec()),
            exchanges,
        });
        let accepting = tokio::spawn({
            let shared = shared.clone();
            async move {
                // Dropped, and with it all connections, when the worker is.
                let mut connections = JoinSet::new();
                loop {
                    if let Ok((stream, _)) = listener.accept().await {
                        stream.set_nodelay(true).unwrap();
                        connections.spawn(serve(shared.clone(), BufReader::new(stream)));
                    }
                    while connections.try_join_next().is_some() {}
                }
            }
        });
        FakeWorker { address, shared, by_hand: AsyncMutex::new(by_hand), accepting }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn set_health(&self, status: &'static str) {
        *self.shared.health.lock().unwrap() = status;
    }

    /// What it says of where its KV events come from, as JSON.
    #[cfg(feature = "mm-routing")]
    pub fn set_event_sources(&self, sources: String) {
        *self.shared.event_sources.lock().unwrap() = Some(sources);
    }

    /// From now on it says that it serves these.
    pub fn set_models(&self, names: &[&str]) {
        let entries: Vec<_> = names.iter().map(|name| format!(r#"{{"id":"{name}","x":1}}"#)).collect();
        *self.shared.models.lock().unwrap() = Some(format!(r#"{{"object":"list","data":[{}]}}"#, entries.join(",")));
    }

    /// What asked for its list of models, of the gateway's own accord or not.
    pub fn asked_for_models(&self) -> Vec<Message> {
        self.shared.asked_for_models.lock().unwrap().clone()
    }

    /// What it answers to gateways that want to attach, head and all.
    pub fn set_hello(&self, answer: Vec<u8>) {
        *self.shared.hello.lock().unwrap() = answer;
    }

    /// All requests but the gateway's own questions, in order.
    pub fn seen(&self) -> Vec<Message> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The one request that there was.
    pub fn only(&self) -> Message {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "requests that reached the worker");
        seen.remove(0)
    }

    /// The next request, to be answered by hand.
    pub async fn next(&self) -> Exchange {
        let mut by_hand = self.by_hand.lock().await;
        soon("a request at the worker", by_hand.recv()).await.unwrap()
    }

    /// Ends: the port is closed, and so is every connection. Its address can be taken by another.
    pub async fn stop(mut self) -> SocketAddr {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
        self.address
    }
}

impl Drop for FakeWorker {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Exchange {
    pub async fn try_write(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes.as_ref()).await
    }

    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_write(bytes).await.unwrap();
    }

    /// Answers for good, and listens for the next request on this connection.
    pub async fn answer(mut self, answer: impl AsRef<[u8]>) {
        self.write(answer).await;
        tokio::spawn(serve(self.shared, self.stream));
    }

    /// The gateway's end of the connection.
    pub fn peer(&self) -> SocketAddr {
        self.stream.get_ref().peer_addr().unwrap()
    }

    /// Ends the connection as a process does that closes it without having read what is there.
    pub fn reset(self) {
        self.stream.into_inner().set_zero_linger().unwrap();
    }

    /// Waits until the gateway closes the connection, whose sending side may be stuck.
    pub async fn closed_after_flood(mut self) {
        let mut rest = Vec::new();
        let _ = soon("the gateway to close the connection", self.stream.read_to_end(&mut rest)).await;
    }

    /// Waits until the gateway closes the connection.
    pub async fn closed(mut self) {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = soon("the gateway to close the connection", self.stream.read_to_end(&mut rest)).await;
        assert!(rest.is_empty(), "more bytes after the request: {:?}", String::from_utf8_lossy(&rest));
    }
}

async fn serve(shared: Arc<Shared>, mut stream: BufReader<TcpStream>) {
    while let Ok(Some(request)) = wire::read(&mut stream).await {
        let answer = match request.target() {
            // What gateways ask of their own accord.
            "/health" => {
                let status = *shared.health.lock().unwrap();
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").into_bytes()
            }
            "/kv_event_sources" => match shared.event_sources.lock().unwrap().as_deref() {
                Some(sources) => ok_json(sources),
                None => json("404 Not Found", "{}"),
            },
            "/metrics" => json("404 Not Found", "{}"),
            "/v1/models" => {
                shared.asked_for_models.lock().unwrap().push(request);
                match &*shared.models.lock().unwrap() {
                    Some(list) => ok_json(list),
                    None => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
                }
            }
            target
                if target == "/mediagate/attach/hello"
                    || (shared.lander.is_some() && target.starts_with("/mediagate/")) =>
            {
                match shared.lander {
                    Some(lander) => ask(lander, &request).await,
                    None => shared.hello.lock().unwrap().clone(),
                }
            }
            _ => {
                shared.seen.lock().unwrap().push(request.clone());
                match &shared.answering {
                    Some(answer) => answer(&request),
                    None => {
                        let exchange = Exchange { request, stream, shared: shared.clone() };
                        let _ = shared.exchanges.send(exchange);
                        return;
                    }
                }
            }
        };
        if stream.get_mut().write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// What another server answers to the same request.
async fn ask(server: SocketAddr, request: &Message) -> Vec<u8> {
    let mut stream = BufReader::new(TcpStream::connect(server).await.unwrap());
    stream.get_mut().write_all(&request.bytes).await.unwrap();
    wire::read(&mut stream).await.unwrap().expect("an answer").bytes
}

/// A whole answer of 200 with a JSON body.
pub fn ok_json(body: &str) -> Vec<u8> {
    json("200 OK", body)
}

/// A whole answer with a JSON body.
pub fn json(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Head of an answer that is streamed in chunks.
pub const SSE_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// One chunk, framed as hyper does.
pub fn chunk(text: &str) -> String {
    format!("{:X}\r\n{text}\r\n", text.len())
}

/// The end of a stream of chunks.
pub const LAST_CHUNK: &str = "0\r\n\r\n";
