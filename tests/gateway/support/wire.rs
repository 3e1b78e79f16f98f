//! HTTP/1.1 messages as the bytes they are.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// A request or an answer as it came.
#[derive(Debug, Clone, Default)]
pub struct Message {
    /// The first line, without its end.
    pub start: String,
    /// Names in lower case, in order.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Every byte as it came, framing included.
    pub bytes: Vec<u8>,
}

impl Message {
    /// All values of a header.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The value of a header that may occur once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name} occurs {} times", all.len());
        all.first().copied()
    }

    /// Second word of the first line: a request's target.
    pub fn target(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }

    /// Second word of the first line as a number: an answer's status.
    pub fn status(&self) -> u16 {
        self.target().parse().unwrap_or(0)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn json_or_null(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Whether a text occurs anywhere in it.
    pub fn holds(&self, text: &str) -> bool {
        memchr::memmem::find(&self.bytes, text.as_bytes()).is_some()
    }
}

/// Reads one message; `None` if the connection ends before it begins. The body is framed by its length or in chunks; an
/// answer with neither lasts until the connection ends.
pub async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Message>> {
    let Some(mut message) = read_head(stream).await? else { return Ok(None) };
    if message.header("transfer-encoding") == Some("chunked") {
        loop {
            let line = line(stream, &mut message.bytes).await?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
            let mut chunk = vec![0; size];
            stream.read_exact(&mut chunk).await?;
            message.bytes.extend_from_slice(&chunk);
            message.body.extend_from_slice(&chunk);
            // The end of the chunk, or of the (empty) trailers.
            self::line(stream, &mut message.bytes).await?;
            if size == 0 {
                return Ok(Some(message));
            }
        }
    }
    let is_answer = message.start.starts_with("HTTP/");
    match message.header("content-length").map(str::parse::<usize>) {
        Some(length) => {
            message.body = vec![0; length.map_err(io::Error::other)?];
            stream.read_exact(&mut message.body).await?;
        }
        None if is_answer && ![204, 304].contains(&message.status()) => {
            stream.read_to_end(&mut message.body).await?;
        }
        None => {}
    }
    let body = std::mem::take(&mut message.body);
    message.bytes.extend_from_slice(&body);
    message.body = body;
    Ok(Some(message))
}

/// Reads the head of a message and nothing of its body.
pub async fn read_head(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Message>> {
    let mut message = Message::default();
    if stream.fill_buf().await?.is_empty() {
        return Ok(None);
    }
    message.start = line(stream, &mut message.bytes).await?;
    loop {
        let line = line(stream, &mut message.bytes).await?;
        if line.is_empty() {
            return Ok(Some(message));
        }
        let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
        message.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

async fn line(stream: &mut (impl AsyncBufRead + Unpin), bytes: &mut Vec<u8>) -> io::Result<String> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).await?;
    bytes.extend_from_slice(&line);
    let text = String::from_utf8_lossy(&line).into_owned();
    match text.strip_suffix("\r\n") {
        Some(text) => Ok(text.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
