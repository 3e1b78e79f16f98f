//! ZMTP 3.0 (rfc.zeromq.org/spec/23), as much as a subscriber needs: the handshake with the NULL mechanism, a SUB socket's
//! subscription, a DEALER socket's request, multipart messages.
//!
//! Written here since the crate there is for it, zeromq 0.7, reserves whatever length a frame's header claims: nine bytes
//! from a peer end the process. Here memory grows with what has arrived, up to a limit. It is also of use that a
//! connection is one peer's stream: what is read late waits in the kernel, and two workers that connect to one port are
//! not mixed up.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// Frames of one message, its envelope included.
const MAX_FRAMES: usize = 16;

/// Longest command: READY with its properties, PING with its context.
const MAX_COMMAND_BYTES: u64 = 4096;

/// Read at once from a connection.
const READ_BYTES: usize = 64 << 10;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What this end of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    Sub,
    Dealer,
}

/// Why a connection is given up.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the peer does not speak ZMTP 3 without authentication: {0}")]
    Handshake(&'static str),
    #[error("a message of more than {0} bytes or {MAX_FRAMES} frames")]
    TooLong(usize),
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    stream: BufReader<S>,
    max_message_bytes: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Does the handshake. Both ends of a connection do the same, whoever connected.
    pub async fn open(stream: S, socket: SocketType, max_message_bytes: usize) -> Result<Self, ZmtpError> {
        let mut connection = Connection { stream: BufReader::with_capacity(READ_BYTES, stream), max_message_bytes };
        connection.handshake(socket).await?;
        Ok(connection)
    }

    async fn handshake(&mut self, socket: SocketType) -> Result<(), ZmtpError> {
        let mut greeting = [0; 64];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        self.stream.write_all(&greeting).await?;
        self.stream.flush().await?;
        let mut theirs = [0; 64];
        self.stream.read_exact(&mut theirs).await?;
        if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
            return Err(ZmtpError::Handshake("an older protocol, or none"));
        }
        if theirs[12..32] != greeting[12..32] {
            return Err(ZmtpError::Handshake("another security mechanism"));
        }
        let name: &[u8] = match socket {
            SocketType::Sub => b"SUB",
            SocketType::Dealer => b"DEALER",
        };
        let mut ready = b"\x05READY".to_vec();
        for (property, value) in [(&b"Socket-Type"[..], name), (b"Identity", b"")] {
            // Constants of a few bytes.
            ready.push(property.len() as u8);
            ready.extend_from_slice(property);
            ready.extend_from_slice(&(value.len() as u32).to_be_bytes());
            ready.extend_from_slice(value);
        }
        self.write_frame(COMMAND, &ready).await?;
        self.stream.flush().await?;
        let (flags, length) = self.header().await?;
        if flags & COMMAND == 0 {
            return Err(ZmtpError::Handshake("a message before READY"));
        }
        match self.command(length).await? {
            command if command.starts_with(b"\x05READY") => Ok(()),
            _ => Err(ZmtpError::Handshake("it refused")),
        }
    }

    /// Subscribes to messages whose first frame begins with `topic`.
    pub async fn subscribe(&mut self, topic: &[u8]) -> Result<(), ZmtpError> {
        let mut subscription = vec![1];
        subscription.extend_from_slice(topic);
        self.send(&[&subscription]).await
    }

    /// Sends a message of these frames.
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), ZmtpError> {
        for (index, frame) in frames.iter().enumerate() {
            self.write_frame(if index + 1 < frames.len() { MORE } else { 0 }, frame).await?;
        }
        Ok(self.stream.flush().await?)
    }

    /// The frames of the next message. Not safe to cancel: a connection whose read was given up is given up.
    pub async fn receive(&mut self) -> Result<Vec<Vec<u8>>, ZmtpError> {
        let mut frames = Vec::new();
        let mut room = self.max_message_bytes;
        loop {
            let (flags, length) = self.header().await?;
            if flags & COMMAND != 0 {
                let command = self.command(length).await?;
                if let Some(ping) = command.strip_prefix(b"\x04PING") {
                    let context = ping.get(2..).unwrap_or_default();
                    self.write_frame(COMMAND, &[b"\x04PONG", context].concat()).await?;
                    self.stream.flush().await?;
                }
                continue;
            }
            let length = usize::try_from(length).ok().filter(|&length| length <= room && frames.len() < MAX_FRAMES);
            let length = length.ok_or(ZmtpError::TooLong(self.max_message_bytes))?;
            room -= length;
            frames.push(self.body(length as u64).await?);
            if flags & MORE == 0 {
                return Ok(frames);
            }
        }
    }

    async fn header(&mut self) -> Result<(u8, u64), ZmtpError> {
        let flags = self.stream.read_u8().await?;
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(ZmtpError::Malformed("flags of a frame"));
        }
        let length = match flags & LONG {
            0 => u64::from(self.stream.read_u8().await?),
            _ => self.stream.read_u64().await?,
        };
        Ok((flags, length))
    }

    async fn command(&mut self, length: u64) -> Result<Vec<u8>, ZmtpError> {
        if length > MAX_COMMAND_BYTES {
            return Err(ZmtpError::Malformed("a command that is too long"));
        }
        self.body(length).await
    }

    /// Grows with what arrives, not with what was announced.
    async fn body(&mut self, length: u64) -> Result<Vec<u8>, ZmtpError> {
        let mut body = Vec::new();
        (&mut self.stream).take(length).read_to_end(&mut body).await?;
        match body.len() as u64 == length {
            true => Ok(body),
            false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }

    async fn write_frame(&mut self, flags: u8, body: &[u8]) -> Result<(), ZmtpError> {
        match u8::try_from(body.len()) {
            Ok(length) => self.stream.write_all(&[flags, length]).await?,
            Err(_) => {
                self.stream.write_u8(flags | LONG).await?;
                self.stream.write_u64(body.len() as u64).await?;
            }
        }
        Ok(self.stream.write_all(body).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};

    const LIMIT: usize = 1000;

    async fn pair() -> (Connection<DuplexStream>, Connection<DuplexStream>) {
        let (a, b) = duplex(1 << 16);
        let (a, b) =
            tokio::join!(Connection::open(a, SocketType::Sub, LIMIT), Connection::open(b, SocketType::Dealer, LIMIT));
        (a.unwrap(), b.unwrap())
    }

    #[tokio::test]
    async fn multipart_messages_arrive_as_they_were_sent() {
        let (mut a, mut b) = pair().await;
        let long = [7; 300];
        a.send(&[b"", &long, b"x"]).await.unwrap();
        a.subscribe(b"kv").await.unwrap();
        assert_eq!(b.receive().await.unwrap(), [&b""[..], &long, b"x"]);
        assert_eq!(b.receive().await.unwrap(), [b"\x01kv"]);
    }

    #[tokio::test]
    async fn a_ping_is_answered_between_messages() {
        let (mut a, mut b) = pair().await;
        a.write_frame(COMMAND, b"\x04PING\x00\x0acontext").await.unwrap();
        a.send(&[b"message"]).await.unwrap();
        assert_eq!(b.receive().await.unwrap(), [b"message"]);
        let (flags, length) = a.header().await.unwrap();
        assert_eq!(flags, COMMAND);
        assert_eq!(a.command(length).await.unwrap(), b"\x04PONGcontext");
    }

    #[tokio::test]
    async fn what_is_announced_takes_no_memory_and_what_is_too_long_is_refused() {
        for (header, refused) in [
            (&[LONG, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..], true),
            (&[LONG, 0, 0, 0, 0, 0, 0, 3, 0xe9], true),
            (&[COMMAND | LONG, 0, 0, 0, 0, 0, 1, 0, 0], true),
            (&[0x80, 1], true),
            (&[0, 5, b'h', b'i'], false),
        ] {
            let (mut a, mut b) = pair().await;
            a.stream.write_all(header).await.unwrap();
            a.stream.flush().await.unwrap();
            drop(a);
            let error = b.receive().await.unwrap_err();
            assert_eq!(!matches!(error, ZmtpError::Io(_)), refused, "{error}");
        }
    }

    #[tokio::test]
    async fn frames_without_end_are_refused() {
        let (mut a, mut b) = pair().await;
        for _ in 0..=MAX_FRAMES {
            a.write_frame(MORE, b"").await.unwrap();
        }
        a.stream.flush().await.unwrap();
        assert!(matches!(b.receive().await, Err(ZmtpError::TooLong(_))));
    }

    #[tokio::test]
    async fn who_does_not_speak_zmtp_3_is_told_apart() {
        for greeting in [&[b'H'; 64][..], &[0xff; 64]] {
            let (a, mut b) = duplex(1 << 16);
            b.write_all(greeting).await.unwrap();
            assert!(matches!(Connection::open(a, SocketType::Sub, LIMIT).await, Err(ZmtpError::Handshake(_))));
        }
    }
}
