//! Listens to every worker: one task a worker, and in it one a data-parallel rank.
//!
//! A worker tells where its events come from (`GET /kv_event_sources`). While a connection lasts, its events are applied as
//! they come; when it breaks, it is made anew, and what was missed is replayed. When nobody is there any more, all that the
//! worker held is forgotten, and the worker is asked again.

use std::{collections::BTreeMap, io, pin::pin, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc::UnboundedReceiver,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    endpoint::{Addresses, Endpoint, read_sources},
    index::{KvIndex, View},
    stream::{Live, MAX_BATCH_BYTES, Stream},
    zmtp::{Connection, SocketType, ZmtpError},
};
use crate::{
    observe,
    worker::{
        Worker, WorkerClient,
        changes::{Change, for_each_worker},
        client::whole,
    },
};

/// The end of a replay: -1.
const END_SEQ: u64 = u64::MAX;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// vLLM looks for requests of a replay ten times a second.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(10);
const SOURCES_TIMEOUT: Duration = Duration::from_secs(5);
/// For a worker that connects to us to come back.
const RETURN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long until a worker is asked again where its events come from, after it was not reached, and after it had none.
const ASK_SOON: Duration = Duration::from_secs(1);
const ASK_LATE: Duration = Duration::from_secs(30);

/// From one connection to a publisher to the next: one that ends each at once must not keep us busy.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);

/// How often a worker that says nothing gives up what is beyond its share of the index, since others have come.
const SHRINK_INTERVAL: Duration = Duration::from_millis(200);

const MAX_SOURCES_BYTES: usize = 64 << 10;
const MAX_RANKS: usize = 64;

/// How often a replay may begin anew, since the publisher started over while it ran.
const REPLAYS: usize = 3;

#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Zmtp(#[from] ZmtpError),
    #[error("no answer in time")]
    Timeout,
    #[error("cannot bind {0}: {1}; if another worker connects to it too, give each a port of its own")]
    Bind(String, io::Error),
    #[error("a message that is no batch")]
    Frames,
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        StreamError::Zmtp(error.into())
    }
}

/// Listens to all workers until `stop`.
pub async fn subscribe(
    index: Arc<KvIndex>,
    client: WorkerClient,
    changes: UnboundedReceiver<Change>,
    stop: CancellationToken,
) {
    // Restarts are told by the streams themselves.
    for_each_worker(changes, stop, |worker| listen(index.clone(), client.clone(), worker)).await;
}

/// Listens to one worker.
async fn listen(index: Arc<KvIndex>, client: WorkerClient, worker: Arc<Worker>) {
    let mut last_problem = String::new();
    loop {
        observe::kv_view(&worker.series, View::None as u8, 0);
        let mut wait = ASK_SOON;
        if worker.is_healthy() {
            let problem = match sources(&client, &worker).await {
                Ok(sources) if sources.is_empty() => {
                    wait = ASK_LATE;
                    "the worker publishes none; start it with --kv-events-config to have it routed by what it holds"
                        .into()
                }
                Ok(sources) => {
                    let mut ranks = JoinSet::new();
                    for (rank, addresses) in sources.into_iter().take(MAX_RANKS) {
                        ranks.spawn(follow(index.clone(), worker.clone(), rank, addresses));
                    }
                    // One that is lost may be so because all have moved.
                    ranks.join_next().await.and_then(Result::ok).unwrap_or_default()
                }
                Err(problem) => problem,
            };
            // Said once, not at each try.
            if problem != last_problem {
                tracing::info!(worker = %worker.label, problem, "no KV events");
                last_problem = problem;
            }
        }
        sleep(wait).await;
    }
}

async fn sources(client: &WorkerClient, worker: &Worker) -> Result<BTreeMap<u32, Addresses>, String> {
    let request = client.kept().get(worker.url("/kv_event_sources")).timeout(SOURCES_TIMEOUT);
    let response = request.send().await.map_err(|error| error.without_url().to_string())?;
    if response.status() == http::StatusCode::NOT_FOUND {
        // An older vLLM, or something else.
        return Ok(BTreeMap::new());
    }
    let answer = whole(response, MAX_SOURCES_BYTES).await.map_err(|error| error.to_string())?;
    read_sources(&answer, worker.base().host()).map_err(|error| error.to_string())
}

/// Follows one rank until its publisher is gone, and says why.
async fn follow(index: Arc<KvIndex>, worker: Arc<Worker>, rank: u32, addresses: Addresses) -> String {
    let name = format!("{}/{rank}", worker.id);
    let lane = match index.lane(worker.id.index(), &name) {
        Ok(lane) => lane,
        Err(error) => return error.to_string(),
    };
    let mut follower = Follower { index, worker, stream: Stream::new(lane), addresses };
    let mut listener = None;
    // Ends with the error of a connection that could not be made; the lane goes with it.
    let mut connections = interval(RECONNECT_INTERVAL);
    connections.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        connections.tick().await;
        let connection = match follower.connect(&mut listener).await {
            Ok(connection) => connection,
            Err(error) => return error.to_string(),
        };
        tracing::debug!(worker = %follower.worker.label, rank, endpoint = %follower.addresses.events, "KV events: connected");
        let Err(error) = follower.listen(connection).await;
        tracing::debug!(worker = %follower.worker.label, rank, %error, "KV events: connection over");
    }
}

/// One rank's stream and where it comes from.
struct Follower {
    index: Arc<KvIndex>,
    worker: Arc<Worker>,
    stream: Stream,
    addresses: Addresses,
}

impl Follower {
    /// A subscribed connection: to the publisher, or from it.
    async fn connect(&mut self, listener: &mut Option<TcpListener>) -> Result<Connection, StreamError> {
        let mut connection = match listener {
            Some(listener) => accept(listener).await?,
            None => match open(&self.addresses.events, SocketType::Sub).await {
                Ok(connection) => connection,
                Err(error) if !self.addresses.events.may_bind => return Err(error),
                Err(_) => {
                    let Endpoint { host, port, .. } = &self.addresses.events;
                    let bound = TcpListener::bind((host.as_str(), *port)).await;
                    let bound = bound.map_err(|error| StreamError::Bind(self.addresses.events.to_string(), error))?;
                    accept(listener.insert(bound)).await?
                }
            },
        };
        connection.subscribe(self.addresses.topic.as_bytes()).await?;
        Ok(connection)
    }

    /// Applies what comes until the connection is over.
    async fn listen(&mut self, mut connection: Connection) -> Result<std::convert::Infallible, StreamError> {
        self.stream.reconnected();
        match self.addresses.replay {
            Some(_) => self.catch_up().await?,
            // Nobody knows what was missed.
            None => self.stream.start_over(),
        }
        self.tell();
        loop {
            let frames = {
                let mut received = pin!(connection.receive());
                loop {
                    match timeout(SHRINK_INTERVAL, &mut received).await {
                        Ok(frames) => break frames?,
                        Err(_) => self.stream.shrink(),
                    }
                }
            };
            let (seq, payload) = batch(frames).ok_or(StreamError::Frames)?;
            if self.stream.published(seq, &payload) == Live::Missing {
                self.catch_up().await?;
                self.stream.caught_up(seq, &payload);
            }
            self.tell();
            // A publisher that has much to say shares the thread with others.
            tokio::task::yield_now().await;
        }
    }

    /// Has what was missed replayed, if that can be.
    async fn catch_up(&mut self) -> Result<(), StreamError> {
        let Some(replay) = self.addresses.replay.clone() else { return Ok(()) };
        for _ in 0..REPLAYS {
            let mut connection = open(&replay, SocketType::Dealer).await?;
            connection.send(&[b"", &self.stream.replay_from().to_be_bytes()]).await?;
            let mut first = true;
            let same = loop {
                let frames =
                    timeout(REPLAY_TIMEOUT, connection.receive()).await.map_err(|_| StreamError::Timeout)??;
                let (seq, payload) = batch(frames).ok_or(StreamError::Frames)?;
                let ended = seq == END_SEQ;
                if std::mem::take(&mut first) && !self.stream.is_same((!ended).then_some((seq, &payload))) {
                    break false;
                }
                if ended {
                    break true;
                }
                self.stream.replayed(seq, &payload);
                tokio::task::yield_now().await;
            };
            if same {
                self.stream.replay_ended();
                return Ok(());
            }
        }
        Ok(())
    }

    fn tell(&mut self) {
        let (series, worker) = (&self.worker.series, self.worker.id.index());
        observe::kv_view(series, self.index.view(worker) as u8, self.index.blocks(worker));
        let counts = self.stream.take_counts();
        observe::kv_events(series, counts.batches, counts.malformed, counts.lost, counts.restarts);
        observe::kv_aged(series, self.stream.take_aged());
    }
}

/// Number and content of a message: its last two frames; before them come topic, and in a replay an empty one.
fn batch(mut frames: Vec<Vec<u8>>) -> Option<(u64, Vec<u8>)> {
    let (payload, seq) = (frames.pop()?, frames.pop()?);
    Some((u64::from_be_bytes(seq.try_into().ok()?), payload))
}

async fn open(endpoint: &Endpoint, socket: SocketType) -> Result<Connection, StreamError> {
    let opened = async {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        Ok(Connection::open(stream, socket, MAX_BATCH_BYTES).await?)
    };
    timeout(CONNECT_TIMEOUT, opened).await.map_err(|_| StreamError::Timeout)?
}

async fn accept(listener: &TcpListener) -> Result<Connection, StreamError> {
    let accepted = async {
        let (stream, _) = listener.accept().await?;
        Ok(Connection::open(stream, SocketType::Sub, MAX_BATCH_BYTES).await?)
    };
    timeout(RETURN_TIMEOUT, accepted).await.map_err(|_| StreamError::Timeout)?
}
