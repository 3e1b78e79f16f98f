//! A server of files that counts how often each was asked for.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::wire;

pub struct Files {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    files: Mutex<HashMap<String, Vec<u8>>>,
    redirects: Mutex<HashMap<String, String>>,
    counts: Mutex<HashMap<String, usize>>,
}

impl Files {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn({
            let shared = shared.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(shared.clone(), stream));
                }
            }
        });
        Files { address, shared, accepting }
    }

    /// Serves `bytes` under a path; gives its URL.
    pub fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) -> String {
        self.shared.files.lock().unwrap().insert(path.to_owned(), bytes.into());
        self.url(path)
    }

    /// Redirects a path; gives its URL.
    pub fn redirect(&self, path: &str, to: &str) -> String {
        self.shared.redirects.lock().unwrap().insert(path.to_owned(), to.to_owned());
        self.url(path)
    }

    /// A URL on this server, whether there is something or not.
    pub fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    /// Requests for a path so far.
    pub fn count(&self, path: &str) -> usize {
        self.shared.counts.lock().unwrap().get(path).copied().unwrap_or(0)
    }

    /// Flags that let a gateway fetch from here.
    pub fn allowed(&self) -> [String; 4] {
        let port = self.address.port().to_string();
        ["--media-allow-cidr", "127.0.0.0/8", "--media-allow-port", &port].map(String::from)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    while let Ok(Some(request)) = wire::read(&mut stream).await {
        let path = request.target().split('?').next().unwrap_or_default().to_owned();
        let file = shared.files.lock().unwrap().get(&path).cloned();
        let redirect = shared.redirects.lock().unwrap().get(&path).map(|to| format!("location: {to}\r\n"));
        *shared.counts.lock().unwrap().entry(path).or_default() += 1;
        let (status, body) = match file {
            _ if redirect.is_some() => ("302 Found", Vec::new()),
            Some(bytes) => ("200 OK", bytes),
            None => ("404 Not Found", b"nothing here".to_vec()),
        };
        let location = redirect.unwrap_or_default();
        let head = format!("HTTP/1.1 {status}\r\n{location}content-length: {}\r\n\r\n", body.len());
        if stream.get_mut().write_all(&[head.into_bytes(), body].concat()).await.is_err() {
            return;
        }
    }
}
