//! A client that sends exactly what it is told to.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use super::{
    soon,
    wire::{self, Message},
};

pub struct RawClient {
    stream: BufReader<TcpStream>,
}

impl RawClient {
    pub async fn connect(address: SocketAddr) -> Self {
        RawClient { stream: BufReader::new(TcpStream::connect(address).await.unwrap()) }
    }

    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes.as_ref()).await
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).await.unwrap();
    }

    /// Sends a request with a JSON body.
    pub async fn post(&mut self, target: &str, headers: &str, body: &str) {
        let length = body.len();
        self.send(format!(
            "POST {target} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        ))
        .await;
    }

    pub async fn try_answer(&mut self) -> io::Result<Option<Message>> {
        soon("an answer", wire::read(&mut self.stream)).await
    }

    pub async fn answer(&mut self) -> Message {
        self.try_answer().await.unwrap().expect("an answer before the end of the connection")
    }

    pub async fn answer_head(&mut self) -> Message {
        soon("the head of an answer", wire::read_head(&mut self.stream)).await.unwrap().expect("a head")
    }

    /// Bytes as they come, until there are as many as expected.
    pub async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        soon("bytes", self.stream.read_exact(&mut bytes)).await.unwrap();
        bytes
    }

    /// What comes before the gateway closes the connection.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset is an end, too.
        let _ = soon("the end of the connection", self.stream.read_to_end(&mut bytes)).await;
        bytes
    }

    /// Says that nothing more will be sent, and goes on listening.
    pub async fn half_close(&mut self) {
        self.stream.get_mut().shutdown().await.unwrap();
    }
}
