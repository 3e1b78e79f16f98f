//! An origin on loopback that answers each request with the next behaviour of a script, and a canary that answers nothing.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use super::script::{Action, Behaviour, Bodies, Transfer};

/// A running origin. Dropping it closes its listener.
pub struct Origin {
    address: SocketAddr,
    seen: Arc<Seen>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    /// Connections that the client closed, or that ended otherwise.
    ended: AtomicUsize,
    /// The head of each request.
    requests: Mutex<Vec<String>>,
}

struct Play {
    script: Vec<Behaviour>,
    bodies: Bodies,
    host: String,
    canary_port: u16,
    next: AtomicUsize,
    seen: Arc<Seen>,
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Origin {
    pub async fn play(script: Vec<Behaviour>, bodies: Bodies, canary_port: u16) -> Self {
        Self::play_on(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), script, bodies, canary_port, None).await
    }

    /// As `play`, at an address of the test's, behind TLS if there is an acceptor.
    pub async fn play_on(
        address: SocketAddrV4,
        script: Vec<Behaviour>,
        bodies: Bodies,
        canary_port: u16,
        tls: Option<TlsAcceptor>,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Seen>::default();
        let play = Arc::new(Play {
            script,
            bodies,
            host: address.to_string(),
            canary_port,
            next: AtomicUsize::new(0),
            seen: Arc::clone(&seen),
        });
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                play.seen.connections.fetch_add(1, Ordering::SeqCst);
                let (play, tls) = (Arc::clone(&play), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => play.serve(stream).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                play.serve(stream).await;
                            }
                        }
                    }
                    play.seen.ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, seen, task }
    }

    /// A listener that counts who connects.
    pub async fn canary() -> Self {
        Self::play(Vec::new(), Bodies::default(), 0).await
    }

    pub async fn canary_on(address: SocketAddrV4) -> Self {
        Self::play_on(address, Vec::new(), Bodies::default(), 0, None).await
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    pub fn ended(&self) -> usize {
        self.seen.ended.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> Vec<String> {
        self.seen.requests.lock().unwrap().clone()
    }
}

/// A port on which nobody listens.
pub async fn closed_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap().port()
}

/// What an origin's connection has to be.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {
    /// Makes the coming close a reset.
    fn reset_on_close(&self) {}
}

impl Stream for TcpStream {
    fn reset_on_close(&self) {
        self.set_zero_linger().unwrap();
    }
}

impl Stream for tokio_rustls::server::TlsStream<TcpStream> {}

impl Play {
    async fn serve(&self, mut stream: impl Stream) {
        while let Some(head) = read_head(&mut stream).await {
            self.seen.requests.lock().unwrap().push(head.clone());
            let Some(behaviour) = self.script.get(self.next.fetch_add(1, Ordering::SeqCst)).or(self.script.last())
            else {
                return;
            };
            let keep_open = self.answer(&mut stream, behaviour, &head).await.unwrap_or(false);
            if !keep_open {
                return;
            }
        }
    }

    /// Answers one request; whether another may follow on the connection.
    async fn answer(&self, stream: &mut impl Stream, behaviour: &Behaviour, head: &str) -> std::io::Result<bool> {
        match behaviour.action {
            Some(Action::Reset) => {
                stream.reset_on_close();
                return Ok(false);
            }
            Some(Action::Hang) => {
                wait_for_the_end(stream).await?;
                return Ok(false);
            }
            Some(Action::Refuse) | None => {}
        }
        if let Some(raw) = &behaviour.raw {
            stream.write_all(&self.bodies.bytes(raw)).await?;
            return Ok(false);
        }
        if let Some(delay) = behaviour.delay_ms {
            sleep(Duration::from_millis(delay)).await;
        }
        let refused = behaviour.require.as_ref().is_some_and(|condition| !condition.holds(head))
            || behaviour.forbid.as_ref().is_some_and(|condition| condition.holds(head));
        if refused {
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await?;
            return Ok(true);
        }
        for _ in 0..behaviour.pre_repeat.unwrap_or(usize::from(!behaviour.pre.is_empty())) {
            stream.write_all(behaviour.pre.as_bytes()).await?;
        }
        let body = self.bodies.bytes(&behaviour.body);
        self.write_head(stream, behaviour, body.len()).await?;
        self.write_body(stream, behaviour, &body).await?;
        stream.flush().await?;
        if behaviour.transfer == Transfer::Raw || behaviour.stall_at.is_some() {
            wait_for_the_end(stream).await?;
            return Ok(false);
        }
        let closes = behaviour.keepalive.is_some()
            || matches!(behaviour.transfer, Transfer::Close | Transfer::RawClose | Transfer::ChunkedCut);
        Ok(!closes)
    }

    async fn write_head(
        &self,
        stream: &mut impl Stream,
        behaviour: &Behaviour,
        body_len: usize,
    ) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} Because\r\n", behaviour.status).into_bytes();
        let mut fields = behaviour.headers.list();
        let has = |name: &str| fields.iter().any(|(field, _)| field.eq_ignore_ascii_case(name));
        let framing = match behaviour.transfer {
            // A 204 or 304 has no body, and its length would be another response's.
            Transfer::ContentLength if !matches!(behaviour.status, 204 | 304) && !has("content-length") => {
                Some(("Content-Length", body_len.to_string()))
            }
            Transfer::Chunked | Transfer::ChunkedInfinite | Transfer::ChunkedBad | Transfer::ChunkedCut
                if !has("transfer-encoding") =>
            {
                Some(("Transfer-Encoding", "chunked".to_owned()))
            }
            Transfer::Close => Some(("Connection", "close".to_owned())),
            _ => None,
        };
        fields.extend(framing.map(|(name, value)| (name.to_owned(), value)));
        for (name, value) in fields {
            let value =
                repeated(&value).replace("{host}", &self.host).replace("{other}", &self.canary_port.to_string());
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            // Header values are bytes: Latin-1, as Python writes them.
            head.extend(value.chars().map(|character| u8::try_from(character).unwrap()));
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        write_dripping(stream, &head, behaviour.drip_headers_ms).await
    }

    async fn write_body(&self, stream: &mut impl Stream, behaviour: &Behaviour, body: &[u8]) -> std::io::Result<()> {
        let body = match behaviour.stall_at {
            Some(at) if at < 0 => &body[..body.len() - at.unsigned_abs() as usize],
            Some(at) => &body[..at as usize],
            None => body,
        };
        match behaviour.transfer {
            Transfer::Chunked => {
                for chunk in body.chunks(100) {
                    stream.write_all(&chunk_of(chunk)).await?;
                }
                stream.write_all(b"0\r\n\r\n").await
            }
            Transfer::ChunkedInfinite => {
                let chunk = chunk_of(&[0; 64 << 10]);
                loop {
                    stream.write_all(&chunk).await?;
                }
            }
            Transfer::ChunkedBad => {
                stream.write_all(b"zz\r\n").await?;
                stream.write_all(body).await
            }
            Transfer::ChunkedCut => stream.write_all(&chunk_of(&body[..body.len() / 2])).await,
            Transfer::ContentLength | Transfer::Close | Transfer::Raw | Transfer::RawClose => {
                write_dripping(stream, body, behaviour.drip_body_ms).await
            }
        }
    }
}

/// Says no more until the client has had enough of it.
async fn wait_for_the_end(stream: &mut impl Stream) -> std::io::Result<()> {
    let mut rest = [0; 64];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// `text*N` is the text N times.
fn repeated(value: &str) -> String {
    match value.rsplit_once('*').map(|(text, times)| (text, times.parse::<usize>())) {
        Some((text, Ok(times))) => text.repeat(times),
        _ => value.to_owned(),
    }
}

fn chunk_of(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

async fn write_dripping(stream: &mut impl Stream, bytes: &[u8], every_ms: Option<u64>) -> std::io::Result<()> {
    let Some(every_ms) = every_ms else { return stream.write_all(bytes).await };
    for byte in bytes {
        stream.write_all(&[*byte]).await?;
        stream.flush().await?;
        sleep(Duration::from_millis(every_ms)).await;
    }
    Ok(())
}

async fn read_head(stream: &mut impl Stream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}
