//! What is said of one input: as JSON for programs, as lines for people.

use std::fmt::{self, Write};

use serde::Serialize;

/// One input. What is not known is left out.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub input: String,
    /// `ok` or `refused`.
    pub status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Of an http(s) URL: whether the fetch policy allows it, as the name resolves now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Where it was redirected to, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub redirects: Vec<String>,
    /// Of the encoded file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<&'static str>,
    #[serde(flatten)]
    pub pixels: Option<Pixels>,
    /// With a model: how many tokens of a prompt the image is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// With a model whose image processor would shrink the image: to what. A gateway does that itself, in front of workers
    /// that it is sure of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resized: Option<Resized>,
    pub times_ms: Times,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Resized {
    pub width: u32,
    pub height: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    Allowed,
    Refused,
    /// The name could not be resolved.
    Unknown,
}

#[derive(Debug, Serialize)]
pub struct Pixels {
    pub width: u32,
    pub height: u32,
    /// As the file stores them, before the orientation is applied.
    pub stored_width: u32,
    pub stored_height: u32,
    /// EXIF's value, 1 to 8.
    pub orientation: u8,
    pub conversion: &'static str,
    pub content_hash: String,
    pub media_id: String,
    pub rgb_sha256: String,
    /// Where the picture was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub png: Option<String>,
}

/// Milliseconds.
#[derive(Debug, Default, Serialize)]
pub struct Times {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<f64>,
    /// Reading the file, fetching, or undoing base64.
    pub read: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<f64>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.input)?;
        let mut line = |name: &str, value: &dyn fmt::Display| writeln!(f, "  {name:<13} {value}");
        match (self.code, &self.message) {
            (Some(code), Some(message)) => line("verdict", &format_args!("{}: {code}: {message}", self.status))?,
            _ => line("verdict", &format_args!("{}: decoded here", self.status))?,
        }
        match self.policy {
            Some(Policy::Allowed) => {
                line("policy", &"allowed: the URL, and all addresses of its host as they are now")?
            }
            Some(Policy::Refused) => line("policy", &"refused: nothing was dialled")?,
            Some(Policy::Unknown) => line("policy", &"unknown: its host has no address now")?,
            None => {}
        }
        for url in &self.redirects {
            line("redirected to", url)?;
        }
        if let Some(bytes) = self.bytes {
            line("file", &format_args!("{bytes} bytes, {}", self.format.unwrap_or("of an unknown format")))?;
        }
        if let Some(pixels) = &self.pixels {
            line("size", &format_args!("{} wide, {} high", pixels.width, pixels.height))?;
            if pixels.orientation != 1 {
                let (width, height) = (pixels.stored_width, pixels.stored_height);
                line("orientation", &format_args!("{}: stored {width} wide, {height} high", pixels.orientation))?;
            }
            if let Some(Resized { width, height }) = self.resized {
                line("resized to", &format_args!("{width} wide, {height} high"))?;
            }
            if let Some(tokens) = self.tokens {
                line("tokens", &tokens)?;
            }
            line("colours", &pixels.conversion)?;
            line("content hash", &pixels.content_hash)?;
            line("media id", &pixels.media_id)?;
            line("sha256 of rgb", &pixels.rgb_sha256)?;
            if let Some(png) = &pixels.png {
                line("written to", png)?;
            }
        }
        let Times { policy, read, decode, hash } = &self.times_ms;
        let mut times = String::new();
        for (name, time) in [("policy", *policy), ("read", Some(*read)), ("decode", *decode), ("hash", *hash)] {
            if let Some(time) = time {
                let comma = if times.is_empty() { "" } else { ", " };
                write!(times, "{comma}{name} {time:.2} ms")?;
            }
        }
        line("times", &times)
    }
}
