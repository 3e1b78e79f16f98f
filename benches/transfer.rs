//! What a push costs beside a bare NIXL WRITE, a READ and a memcpy; how long a picture takes to be handed over; how long a
//! reference is; and what writing pixels into a request takes.
//!
//! The bare transfers are of the same bytes, from the same memory (the arena, registered with a second agent) into the same
//! memory of a peer; a thread that does nothing else makes the descriptors, posts, and polls without a pause until the transfer has
//! ended. It is awake when its time begins. Another thread has just written the picture, as a decoder does, so that nobody finds it
//! in its core's own cache. *WRITE* is without a notification, and tells nobody; *WRITE, note* is with one, after another with one.
//! *Told* is ours, from where the gateway's push begins until the NIXL thread knows that all is there, and the mark that tells the
//! worker so; *push* until whoever pushed knows. As in the gateway the NIXL thread was told before that a picture is decoded, a place
//! claimed and the request written anew; with *sudden* nobody told it, so that it sleeps. The order of the seven changes from round
//! to round.
//!
//! `PYTHON=.venv/bin/python cargo bench --bench transfer`, with a Python that has `mediagate_vllm` (or PYTHONPATH=python) and
//! NIXL. All of one run, interleaved, the best and the median of many rounds. The peer of the bare transfers is this program, started
//! again with its own agent; the worker is the stand-in. `UCX_TLS=tcp,self` measures TCP.

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader, Write},
    iter,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use mediagate::{
    media::content::{Name, Scope},
    memory::{Arena, Slot},
    request::{ClientRequest, rewrite::Edits, shape},
    transfer::{
        Grant, Landing, Landings, NixlAgent,
        agent::{ArenaMemory, PushRequest},
        library::NixlLibrary,
        mac::Key,
        mark::Mark,
    },
    worker::{
        Registry, Worker, WorkerClient,
        attach::{self, AttachError, Attached, Identity},
        state::WorkerSettings,
    },
};
use nixl_sys::{Agent, AgentConfig, MemType, NixlError, OptArgs, ThreadSync, XferDescList, XferOp, XferStatus};
use rand::seq::SliceRandom;

const ROUNDS: usize = 200;
/// Squares of about 1, and of 3 and 12 MiB.
const SIDES: [u32; 3] = [591, 1024, 2048];
const ROOM: usize = 16 << 20;
const CHAT: &[u8] = br#"{"model":"m","max_tokens":64,"messages":[{"role":"user","content":[{"type":"text",
"text":"What is in this picture?"},{"type":"image_url","image_url":{"url":"https://images.example.com/a/photograph.jpg"}}]}]}"#;

/// The least that the gateway takes, beside claiming a place and writing the request anew, from a decoded picture to its push.
const DECODED_TO_PUSH: Duration = Duration::from_micros(40);

/// After which the NIXL thread sleeps again.
const ASLEEP: Duration = Duration::from_millis(1);

const NOTE: &str = "L 1 1 0 1";

type Any = Box<dyn Error>;

fn main() -> Result<(), Any> {
    if env::args().any(|argument| argument == "--peer") {
        return be_peer();
    }
    let python = env::var("PYTHON").unwrap_or_else(|_| ".venv/bin/python".into());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(measure(&python))
}

async fn measure(python: &str) -> Result<(), Any> {
    let libraries = output(python, "import nixl_cu12, pathlib; print(pathlib.Path(nixl_cu12.__file__).parents[1])")?;
    let libraries = std::path::Path::new(&libraries).join(".nixl_cu12.mesonpy.libs");
    let library = NixlLibrary::load(Some(&libraries))?;

    let arena = Arena::new(64 << 20)?;
    let landings = Arc::new(Landings::default());
    let heard = landings.clone();
    let name = format!("bench-{}", std::process::id());
    let agent =
        NixlAgent::start(&library, &name, &arena, Box::new(move |peer: &str, note: &str| heard.notified(peer, note)))?;
    let bare = Bare::new("bench-bare", &arena)?;
    let peer = Peer::start(&libraries)?;
    bare.agent.load_remote_md(&peer.metadata)?;
    let bare = BareThread::start(bare, &peer);
    let peer_name: Arc<str> = agent.connect(peer.metadata.clone()).await?.into();
    let grant = Grant {
        worker: "0123456789abcdef".into(),
        peer: peer_name.clone(),
        id: 1,
        address: peer.address as u64,
        bytes: ROOM as u64,
        key: Key::of_secret(b""),
    };
    let (room, _orphans) = Landing::open(grant, agent.clone(), u64::MAX);
    landings.add(&room);
    let worker = Standin::start(python)?;
    let landed = LandingPlace::attach(&worker, &agent, &landings).await?;

    let body = Bytes::from_static(CHAT);
    let chat = ClientRequest::read(&shape::CHAT, &body)?;

    println!("microseconds, best / median of {ROUNDS}; ratios of the best");
    println!(
        "{:>5} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>9} {:>9} {:>15}",
        "MiB",
        "memcpy",
        "READ",
        "WRITE",
        "WRITE, note",
        "told",
        "push",
        "sudden",
        "told / W",
        "told / WN",
        "handed over"
    );
    for side in SIDES {
        let bytes = (side * side * 3) as usize;
        let pixels: Vec<u8> = (0..bytes).map(|index| (index * 7 % 251) as u8).collect();
        let picture = Name::of(&Scope::default(), side, side, &pixels);
        let [mut memcpy, mut read, mut write, mut noted, mut told, mut push, mut sudden, mut handed] =
            [(); 8].map(|()| Vec::new());
        let mut order =
            [Kind::Memcpy, Kind::Read, Kind::Write, Kind::WriteNote, Kind::Push, Kind::Sudden, Kind::HandedOver];
        for _ in 0..ROUNDS {
            order.shuffle(&mut rand::rng());
            for kind in order {
                if let Kind::WriteNote = kind {
                    // A note that was sent must have been taken before the next transfer ends, over some lanes.
                    let before = arena.allocate(1).ok_or("the arena is too small")?.freeze();
                    bare.run(Work::Transfer(XferOp::Write, Some(NOTE)), &before)?;
                }
                let mut slot = arena.allocate(bytes).ok_or("the arena is too small")?;
                slot.copy_from_slice(&pixels);
                let slot = slot.freeze();
                match kind {
                    Kind::Memcpy => memcpy.push(bare.run(Work::Memcpy, &slot)?),
                    Kind::Read => read.push(bare.run(Work::Transfer(XferOp::Read, None), &slot)?),
                    Kind::Write => write.push(bare.run(Work::Transfer(XferOp::Write, None), &slot)?),
                    Kind::WriteNote => noted.push(bare.run(Work::Transfer(XferOp::Write, Some(NOTE)), &slot)?),
                    Kind::Push => {
                        let decoded = Instant::now();
                        landings.expect_push();
                        let (place, pin) = room.claim(bytes as u64, 1, decoded.into()).await?;
                        let descriptor = place.descriptor(&picture, 1, 10_000);
                        let mut edits = chat.edits();
                        chat.images[0].place.put_url(&mut edits, &descriptor.reference(&room.grant().key));
                        chat.images[0].place.put_uuid(&mut edits, &picture.media_id.to_string());
                        std::hint::black_box(edits.apply(&body));
                        spin_until(decoded + DECODED_TO_PUSH);
                        let start = Instant::now();
                        let mark = descriptor.mark(&room.grant().key);
                        let report =
                            agent.push(request(&slot, &peer_name, place.address(), mark, Box::new(pin))).await?;
                        push.push(start.elapsed());
                        told.push(report.ended - start);
                        room.used(place.generation());
                    }
                    Kind::Sudden => {
                        let (place, pin) = room.claim(bytes as u64, 1, Instant::now().into()).await?;
                        thread::sleep(ASLEEP);
                        let mark = place.descriptor(&picture, 1, 10_000).mark(&room.grant().key);
                        let start = Instant::now();
                        let report =
                            agent.push(request(&slot, &peer_name, place.address(), mark, Box::new(pin))).await?;
                        sudden.push(report.ended - start);
                        room.used(place.generation());
                    }
                    Kind::HandedOver => handed.push(landed.push(&picture, &slot).await?),
                }
            }
        }
        let best = |times: &[Duration]| times.iter().min().copied().unwrap_or_default().as_secs_f64();
        let ratios = [&write, &noted].map(|bare| format!("{:.2}", best(&told) / best(bare)));
        print!("{:>5.1}", bytes as f64 / f64::from(1 << 20));
        for times in [&mut memcpy, &mut read, &mut write, &mut noted, &mut told, &mut push, &mut sudden] {
            print!(" {:>12}", show(times));
        }
        println!(" {:>9} {:>9} {:>15}", ratios[0], ratios[1], show(&mut handed));
    }
    print_references(&agent);
    print_inline(&arena)?;
    Ok(())
}

fn request(slot: &Slot, peer: &Arc<str>, address: u64, mark: Mark, hold: Box<dyn Send>) -> PushRequest {
    let deadline = Instant::now() + Duration::from_secs(10);
    PushRequest {
        source: slot.clone(),
        peer: peer.clone(),
        address,
        mark: Some(mark),
        keeps_order: true,
        deadline,
        hold,
    }
}

/// References by how many pictures are cached, that is, pushed before.
fn print_references(agent: &NixlAgent) {
    let picture = Name::of(&Scope::default(), 1080, 1920, &vec![0; 1080 * 1920 * 3]);
    for cached in [1_u32, 10_000] {
        let arena = Arena::new(64 << 20).expect("memory");
        let _kept: Vec<_> = (0..cached).map(|_| arena.allocate(1).expect("a page")).collect();
        let grant = Grant {
            worker: "0123456789abcdef".into(),
            peer: "nobody".into(),
            id: 1,
            address: 1 << 40,
            bytes: 64 << 20,
            key: Key::of_secret(b""),
        };
        let (landing, _orphans) = Landing::open(grant, agent.clone(), u64::MAX);
        let claimed = futures_util::FutureExt::now_or_never(landing.claim(6 << 20, 1, tokio::time::Instant::now()));
        let (slot, _pin) = claimed.expect("no wait").expect("room");
        let reference = slot.descriptor(&picture, 1, 5000).reference(&landing.grant().key);
        println!("reference with {cached} cached images: {} bytes", reference.len());
    }
}

/// Pixels of 1080p as base64 in a new body.
fn print_inline(arena: &Arc<Arena>) -> Result<(), Any> {
    let slot = arena.allocate(1080 * 1920 * 3).ok_or("the arena is too small")?.freeze();
    let body = Bytes::from_static(b"{\"url\":\"x\"}");
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            time(|| {
                let mut edits = Edits::default();
                let pixels = Bytes::from_owner(slot.clone());
                edits.replace_with_base64(7..10, "\"data:,".into(), [Bytes::from_static(b"P6 "), pixels], "\"");
                std::hint::black_box(edits.apply(&body));
            })
        })
        .collect();
    println!("1080p into a request, inline: {} us", show(&mut times).trim());
    let hop = time(|| drop(thread::spawn(|| ()).join()));
    println!("a thread, for comparison: {:.0} us", hop.as_secs_f64() * 1e6);
    Ok(())
}

fn show(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    format!("{:.0} / {:.0}", micros(times[0]), micros(times[times.len() / 2]))
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

#[derive(Clone, Copy)]
enum Kind {
    Memcpy,
    Read,
    Write,
    WriteNote,
    Push,
    Sudden,
    HandedOver,
}

/// NIXL as a program would use it that does nothing else: posts, and polls until the transfer is done.
struct Bare {
    agent: Agent,
}

impl Bare {
    fn new(name: &str, memory: &Arc<Arena>) -> Result<Self, Any> {
        let config = AgentConfig { pthr_delay_us: 100_000, thread_sync: ThreadSync::Rw, ..AgentConfig::default() };
        let agent = Agent::new_configured(&format!("{name}-{}", std::process::id()), &config)?;
        let (_, parameters) = agent.get_plugin_params("UCX")?;
        agent.create_backend("UCX", &parameters)?;
        std::mem::forget(agent.register_memory(&ArenaMemory(memory.clone()), None)?);
        Ok(Bare { agent })
    }

    fn transfer(
        &self,
        operation: XferOp,
        source: usize,
        bytes: usize,
        (peer, address): (&str, usize),
        note: Option<&str>,
    ) -> Result<Duration, NixlError> {
        let start = Instant::now();
        let mut local = XferDescList::new(MemType::Dram)?;
        local.add_desc(source, bytes, 0);
        let mut remote = XferDescList::new(MemType::Dram)?;
        remote.add_desc(address, bytes, 0);
        let mut options = OptArgs::new()?;
        if let Some(note) = note {
            options.set_notification_message(note.as_bytes())?;
            options.set_has_notification(true)?;
        }
        let transfer = self.agent.create_xfer_req(operation, &local, &remote, peer, Some(&options))?;
        self.agent.post_xfer_req(&transfer, Some(&options))?;
        while self.agent.get_xfer_status(&transfer)? == XferStatus::InProgress {}
        Ok(start.elapsed())
    }
}

/// What the thread of the bare transfers does with a slot.
#[derive(Debug, Clone, Copy)]
enum Work {
    Memcpy,
    Transfer(XferOp, Option<&'static str>),
}

/// A thread that owns an agent and does what it is told, and no more.
struct BareThread {
    /// `None`: work will follow.
    work: mpsc::Sender<Option<(Work, Slot)>>,
    took: mpsc::Receiver<Result<Duration, NixlError>>,
}

impl BareThread {
    fn start(bare: Bare, peer: &Peer) -> Self {
        let (work, inbox) = mpsc::channel::<Option<(Work, Slot)>>();
        let (reply, took) = mpsc::channel();
        let (name, address) = (peer.name.clone(), peer.address);
        thread::spawn(move || {
            let mut copy = vec![0; ROOM];
            while let Ok(expected) = inbox.recv() {
                let next = || iter::repeat_with(|| inbox.try_recv()).find_map(Result::ok).flatten();
                let Some((work, slot)) = expected.or_else(next) else { continue };
                let took = match work {
                    Work::Memcpy => Ok({
                        let took = time(|| copy[..slot.len()].copy_from_slice(&slot));
                        std::hint::black_box(&copy);
                        took
                    }),
                    Work::Transfer(operation, note) => {
                        bare.transfer(operation, slot.address(), slot.len(), (&name, address), note)
                    }
                };
                let _ = reply.send(took);
            }
        });
        BareThread { work, took }
    }

    /// What it took by itself; the thread is awake when it gets the work.
    fn run(&self, work: Work, slot: &Slot) -> Result<Duration, Any> {
        let announced = Instant::now();
        self.work.send(None)?;
        spin_until(announced + DECODED_TO_PUSH);
        self.work.send(Some((work, slot.clone())))?;
        Ok(self.took.recv()??)
    }
}

fn spin_until(then: Instant) {
    while Instant::now() < then {
        std::hint::spin_loop();
    }
}

/// Memory of another process.
struct Peer {
    process: Child,
    name: String,
    address: usize,
    metadata: Vec<u8>,
}

impl Peer {
    fn start(libraries: &std::path::Path) -> Result<Self, Any> {
        let mut command = Command::new(env::current_exe()?);
        let mut process = command
            .args(["--peer", "--bench"])
            .env("NIXL_LIBRARIES", libraries)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or("the peer did not start");
        let (name, address, metadata) = (word()?.to_owned(), word()?.parse()?, word()?);
        Ok(Peer { process, name, address, metadata: base64_simd::STANDARD.decode_to_vec(metadata)? })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn be_peer() -> Result<(), Any> {
    let libraries = env::var_os("NIXL_LIBRARIES").ok_or("NIXL_LIBRARIES is not set")?;
    let _library = NixlLibrary::load(Some(libraries.as_ref()))?;
    let arena = Arena::new(ROOM)?;
    let bare = Bare::new("bench-peer", &arena)?;
    let metadata = base64_simd::STANDARD.encode_to_string(bare.agent.get_local_md()?);
    println!("{} {} {metadata}", bare.agent.name(), arena.address());
    std::io::stdout().flush()?;
    // Until the parent ends; notifications are drained, as a lander does.
    loop {
        let mut notes = nixl_sys::NotificationMap::new()?;
        bare.agent.get_notifications(&mut notes, None)?;
        thread::sleep(Duration::from_millis(100));
        if std::os::unix::process::parent_id() == 1 {
            return Ok(());
        }
    }
}

struct Standin {
    process: Child,
    url: String,
}

impl Standin {
    fn start(python: &str) -> Result<Self, Any> {
        let mut process = Command::new(python)
            .args(["-m", "mediagate_vllm.standin", "--listen", "127.0.0.1:0", "--lease-seconds", "3600"])
            .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/python"))
            .stderr(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(process.stderr.take().ok_or("no output")?).lines();
        let (mut url, mut up) = (None, false);
        while url.is_none() || !up {
            let line = lines.next().ok_or("the stand-in did not start")??;
            up |= line.contains("of landing memory up");
            if let Some((_, rest)) = line.split_once("running on ") {
                url = rest.split_whitespace().next().map(str::to_owned);
            }
        }
        // Its log is read on, so that it never blocks.
        thread::spawn(move || lines.for_each(drop));
        Ok(Standin { process, url: url.unwrap_or_default() })
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A worker that granted landing memory.
struct LandingPlace {
    worker: Arc<Worker>,
    client: WorkerClient,
    landing: Arc<Landing>,
    _orphans: tokio::sync::mpsc::UnboundedReceiver<u64>,
}

impl LandingPlace {
    async fn attach(standin: &Standin, agent: &NixlAgent, landings: &Landings) -> Result<Self, Any> {
        let registry = Registry::new(std::slice::from_ref(&standin.url), WorkerSettings::default())?;
        let worker = registry.all()[0].clone();
        let client = WorkerClient::new(None)?;
        let identity = Identity::new(None);
        let Attached { grant, .. } = loop {
            match attach::attach(&worker, &client, &identity, agent, 64 << 20).await {
                // The server has not found its lander yet.
                Err(AttachError::NotNow(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
                attached => break attached?,
            }
        };
        let (landing, orphans) = Landing::open(grant, agent.clone(), u64::MAX);
        landings.add(&landing);
        Ok(LandingPlace { worker, client, landing, _orphans: orphans })
    }

    /// From the start of a push until the worker says that it has copied and checked the pixels, a round trip of HTTP included.
    async fn push(&self, picture: &Name, slot: &Slot) -> Result<Duration, Any> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        let (place, pin) = self.landing.claim(slot.len() as u64, 1, deadline).await?;
        let descriptor = place.descriptor(picture, 1, 10_000);
        let Grant { peer, key, .. } = self.landing.grant();
        let start = Instant::now();
        let push = self.landing.agent().push(request(slot, peer, place.address(), descriptor.mark(key), Box::new(pin)));
        let url = descriptor.reference(key);
        let (pushed, seen) = tokio::join!(push, attach::probe(&self.worker, &self.client, self.landing.grant(), &url));
        pushed?;
        let took = start.elapsed();
        assert_eq!(seen?, picture.content_hash.to_string());
        Ok(took)
    }
}

fn output(python: &str, program: &str) -> Result<String, Any> {
    let output = Command::new(python).args(["-c", program]).output()?;
    if !output.status.success() {
        return Err(format!("{python} has no NIXL: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
