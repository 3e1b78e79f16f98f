//! A publisher of KV events as vLLM's is: PUB socket, ROUTER socket for replays, numbered batches.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use mediagate::routing::kv::zmtp::{Connection, SocketType};
use rmp::encode;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::broadcast,
    task::JoinSet,
};

const LIMIT: usize = 1 << 20;

pub struct Publisher {
    pub events: SocketAddr,
    pub replay: SocketAddr,
    batches: Arc<Mutex<Vec<Vec<u8>>>>,
    live: broadcast::Sender<(u64, Vec<u8>)>,
    tasks: JoinSet<()>,
}

impl Publisher {
    /// Binds, on free ports.
    pub async fn start() -> Self {
        let (mut publisher, listener) = Self::silent().await;
        publisher.publish_to(listener);
        publisher
    }

    /// Connects to who listens at `events`, as vLLM does where its endpoint is not `*`.
    pub async fn connecting_to(events: SocketAddr) -> Self {
        let (mut publisher, _) = Self::silent().await;
        publisher.events = events;
        let live = publisher.live.clone();
        publisher.tasks.spawn(async move {
            loop {
                if let Ok(stream) = TcpStream::connect(events).await {
                    publish(stream, live.subscribe()).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        publisher
    }

    async fn silent() -> (Self, TcpListener) {
        let bind = || TcpListener::bind("127.0.0.1:0");
        let (events, replay) = (bind().await.unwrap(), bind().await.unwrap());
        let batches: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let mut publisher = Publisher {
            events: events.local_addr().unwrap(),
            replay: replay.local_addr().unwrap(),
            batches: batches.clone(),
            live: broadcast::channel(1000).0,
            tasks: JoinSet::new(),
        };
        publisher.tasks.spawn(async move {
            loop {
                let (stream, _) = replay.accept().await.unwrap();
                let Ok(mut peer) = Connection::open(stream, SocketType::Dealer, LIMIT).await else { continue };
                let Ok(request) = peer.receive().await else { continue };
                let from = u64::from_be_bytes(request[1][..].try_into().unwrap());
                let known = batches.lock().unwrap().clone();
                for (seq, batch) in (0_u64..).zip(known).filter(|(seq, _)| *seq >= from) {
                    peer.send(&[b"", b"", &seq.to_be_bytes(), &batch]).await.unwrap();
                }
                let _ = peer.send(&[b"", b"", &u64::MAX.to_be_bytes(), b""]).await;
            }
        });
        (publisher, events)
    }

    fn publish_to(&mut self, listener: TcpListener) {
        let live = self.live.clone();
        self.tasks.spawn(async move {
            let mut peers = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                peers.spawn(publish(stream, live.subscribe()));
            }
        });
    }

    /// What a worker with this publisher answers to `/kv_event_sources`.
    pub fn sources(&self) -> String {
        let Publisher { events, replay, .. } = self;
        format!(
            r#"{{"0": {{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://{events}",
                "replay_endpoint": "tcp://{replay}", "buffer_steps": 10000, "topic": "kv"}}}}"#
        )
    }

    /// Publishes that these blocks of two tokens each are stored, one after the other from the beginning of a prompt.
    pub fn store(&self, names: &[u64]) {
        let mut batch = Vec::new();
        encode::write_array_len(&mut batch, 2).unwrap();
        encode::write_f64(&mut batch, 1.5).unwrap();
        encode::write_array_len(&mut batch, 1).unwrap();
        encode::write_array_len(&mut batch, 5).unwrap();
        encode::write_str(&mut batch, "BlockStored").unwrap();
        encode::write_array_len(&mut batch, names.len() as u32).unwrap();
        for &name in names {
            encode::write_uint(&mut batch, name).unwrap();
        }
        encode::write_nil(&mut batch).unwrap();
        encode::write_array_len(&mut batch, 2 * names.len() as u32).unwrap();
        for &name in names {
            encode::write_uint(&mut batch, name).unwrap();
            encode::write_uint(&mut batch, 1).unwrap();
        }
        encode::write_uint(&mut batch, 2).unwrap();
        self.publish(batch);
    }

    pub fn publish(&self, batch: Vec<u8>) {
        let mut batches = self.batches.lock().unwrap();
        batches.push(batch.clone());
        // Nobody may be there.
        let _ = self.live.send((batches.len() as u64 - 1, batch));
    }

    pub fn batch(&self, seq: usize) -> Vec<u8> {
        self.batches.lock().unwrap()[seq].clone()
    }

    /// Takes a number without publishing anything live: a batch that is lost on its way.
    pub fn lose(&self, batch: Vec<u8>) {
        self.batches.lock().unwrap().push(batch);
    }
}

async fn publish(stream: TcpStream, mut live: broadcast::Receiver<(u64, Vec<u8>)>) {
    let Ok(mut peer) = Connection::open(stream, SocketType::Dealer, LIMIT).await else { return };
    assert_eq!(peer.receive().await.unwrap(), [b"\x01kv"]);
    while let Ok((seq, batch)) = live.recv().await {
        if peer.send(&[b"kv", &seq.to_be_bytes(), &batch]).await.is_err() {
            return;
        }
    }
}
