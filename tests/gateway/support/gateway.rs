//! The real binary, started for one test.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
};

use tokio::sync::watch;

use super::{eventually, raw::RawClient, soon, wire::Message};

/// What holds for every gateway of the tests unless a flag says otherwise.
const DEFAULTS: [(&str, &str); 9] = [
    ("MEDIAGATE_LISTEN", "127.0.0.1:0"),
    ("MEDIAGATE_ADMIN_LISTEN", "127.0.0.1:0"),
    ("MEDIAGATE_HEALTH_INTERVAL_MS", "50"),
    ("MEDIAGATE_ARENA_BYTES", "32MiB"),
    ("MEDIAGATE_MEDIA_MAX_PIXELS", "10000000"),
    ("MEDIAGATE_NIXL_LIB_DIR", "/nonexistent"),
    // What is faster is for the machine to say; tests of pushes want pushes, over TCP too.
    ("MEDIAGATE_INLINE_WHERE_FASTER", "false"),
    // Nor may a process that gets no processor for a while turn one into something else.
    ("MEDIAGATE_PUSH_TIMEOUT_MS", "30000"),
    ("MEDIAGATE_LOG", "info,mediagate=debug"),
];

pub struct Gateway {
    child: Child,
    pub public: SocketAddr,
    pub admin: SocketAddr,
    pub log: Log,
    http: reqwest::Client,
}

impl Gateway {
    /// Images pass by URL.
    pub async fn passthrough(worker: &str, flags: &[&str]) -> Self {
        Self::start(&[&["--worker", worker], flags].concat(), &[]).await.ready().await
    }

    /// Images are decoded, and go inline: there is no NIXL.
    pub async fn decoding(worker: &str, flags: &[&str]) -> Self {
        Self::passthrough(worker, &[&["--frontend-decoding"], flags].concat()).await
    }

    /// As [`Self::decoding`], and files may be fetched.
    pub async fn fetching(worker: &str, files: &super::files::Files) -> Self {
        let allowed = files.allowed();
        Self::decoding(worker, &allowed.each_ref().map(String::as_str)).await
    }

    /// Starts with these flags and variables, and waits until it listens.
    pub async fn start(flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = command();
        command.args(flags).envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Log::read(child.stderr.take().unwrap());
        let line = log.wait_for(" serving ").await;
        let address = |key: &str| {
            let at = line.find(key).unwrap_or_else(|| panic!("no {key} in {line:?}")) + key.len();
            line[at..].split_whitespace().next().unwrap().parse().unwrap()
        };
        let (public, admin) = (address("listen="), address("admin="));
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Gateway { child, public, admin, log, http }
    }

    /// Waits until a worker is healthy.
    pub async fn ready(self) -> Self {
        // Where the gateway lets connections go soon, one may end before anything was sent on it.
        let asked = || self.http.get(self.url("/ready")).send();
        eventually("a healthy worker", || async { asked().await.is_ok_and(|answer| answer.status() == 200) }).await;
        self
    }

    pub fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.public)
    }

    pub async fn get(&self, target: &str) -> reqwest::Response {
        soon("an answer", self.http.get(self.url(target)).send()).await.unwrap()
    }

    /// A chat request, to which more can be added.
    pub fn request(&self, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
        let url = self.url("/v1/chat/completions");
        self.http.post(url).header("content-type", "application/json").body(body)
    }

    /// Sends a body to any route; the answer's status and JSON.
    pub async fn post(&self, target: &str, body: impl ToString) -> (u16, serde_json::Value) {
        let request = self.http.post(self.url(target)).header("content-type", "application/json");
        answer(request.body(body.to_string())).await
    }

    /// Sends a chat request; its answer as it is.
    pub async fn chat_text(&self, body: impl Into<reqwest::Body>) -> String {
        soon("an answer", async { self.request(body).send().await?.text().await }).await.unwrap()
    }

    /// Sends a chat request; its status and JSON.
    pub async fn chat(&self, body: impl Into<reqwest::Body>) -> (u16, serde_json::Value) {
        answer(self.request(body)).await
    }

    pub async fn raw(&self) -> RawClient {
        RawClient::connect(self.public).await
    }

    /// Sends bytes on a connection of their own; the answer to them.
    pub async fn exchange(&self, bytes: impl AsRef<[u8]>) -> Message {
        let mut client = self.raw().await;
        client.send(bytes).await;
        client.answer().await
    }

    /// All metrics, as text.
    pub async fn metrics(&self) -> String {
        let url = format!("http://{}/metrics", self.admin);
        soon("metrics", async { self.http.get(url).send().await?.text().await }).await.unwrap()
    }

    /// The sum of all series of a metric that have this text in their labels; 0 if there are none.
    pub async fn metric(&self, name: &str, label: &str) -> f64 {
        let metrics = self.metrics().await;
        let values = metrics.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (own, labels) = series.split_once('{').unwrap_or((series, ""));
            (own == name && labels.contains(label)).then(|| value.parse::<f64>().unwrap())
        });
        values.sum()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn signal(&self, signal: i32) {
        super::signal(self.pid(), signal);
    }

    /// Waits for its end.
    pub async fn ended(mut self) -> (ExitStatus, Log) {
        let log = self.log.clone();
        let mut child = std::mem::replace(&mut self.child, Command::new("true").spawn().unwrap());
        let waiting = tokio::task::spawn_blocking(move || child.wait());
        (soon("the gateway's end", waiting).await.unwrap().unwrap(), log)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the gateway\n{}---", self.log.text());
        }
    }
}

/// The binary, untouched by whatever the environment sets for mediagate.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mediagate"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MEDIAGATE_") {
            command.env_remove(name);
        }
    }
    command.envs(DEFAULTS);
    command
}

/// Status and JSON of an answer.
pub async fn answer(request: reqwest::RequestBuilder) -> (u16, serde_json::Value) {
    answer_unless_broken(request).await.expect("a whole answer")
}

/// As [`answer`]; `None` if the body breaks off.
pub async fn answer_unless_broken(request: reqwest::RequestBuilder) -> Option<(u16, serde_json::Value)> {
    let response = soon("an answer", request.send()).await.unwrap();
    let status = response.status().as_u16();
    let body = soon("a body", response.bytes()).await.ok()?;
    let body = serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{status}: no JSON: {body:?}"));
    Some((status, body))
}

/// Lines that a process writes.
#[derive(Clone)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    count: watch::Receiver<usize>,
}

impl Log {
    pub fn read(from: impl std::io::Read + Send + 'static) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (counter, count) = watch::channel(0);
        std::thread::spawn({
            let lines = lines.clone();
            move || {
                for line in BufReader::new(from).lines().map_while(Result::ok) {
                    let mut lines = lines.lock().unwrap();
                    lines.push(line);
                    // Nobody may be waiting.
                    let _ = counter.send(lines.len());
                }
            }
        });
        Log { lines, count }
    }

    /// The first line that holds `text`, as soon as there is one.
    pub async fn wait_for(&self, text: &str) -> String {
        self.wait_for_another(text, 0).await
    }

    /// The line that holds `text` after `past` others that do.
    pub async fn wait_for_another(&self, text: &str, past: usize) -> String {
        let mut count = self.count.clone();
        let found = async {
            loop {
                if let Some(line) = self.lines.lock().unwrap().iter().filter(|line| line.contains(text)).nth(past) {
                    return Ok(line.clone());
                }
                if count.changed().await.is_err() {
                    return Err(());
                }
            }
        };
        let found = soon(&format!("a log line with {text:?}"), found).await;
        found.unwrap_or_else(|()| panic!("the process ended without a line with {text:?}:\n{}", self.text()))
    }

    /// How many lines hold `text`.
    pub fn count(&self, text: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }

    pub fn text(&self) -> String {
        self.lines.lock().unwrap().iter().map(|line| format!("{line}\n")).collect()
    }
}
