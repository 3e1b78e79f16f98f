//! The words of a behaviour: what an origin does with one request.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde::Deserialize;

/// One entry of a script, answering one request. `{host}` in a header stands for this origin, `{other}` for the canary's port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    pub status: u16,
    pub headers: Headers,
    pub body: String,
    pub transfer: Transfer,
    /// The whole answer, instead of all of the above.
    pub raw: Option<String>,
    /// Bytes before the status line, `pre_repeat` times.
    pub pre: String,
    pub pre_repeat: Option<usize>,
    pub require: Option<Condition>,
    pub forbid: Option<Condition>,
    pub action: Option<Action>,
    /// The target that a client is expected to ask for.
    pub path: Option<String>,
    pub keepalive: Option<String>,
    pub drip_headers_ms: Option<u64>,
    pub drip_body_ms: Option<u64>,
    /// Stop before this byte of the body, counted from its end if negative.
    pub stall_at: Option<i64>,
    pub delay_ms: Option<u64>,
    pub dns: Option<String>,
    pub tls: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Headers {
    Map(std::collections::BTreeMap<String, String>),
    List(Vec<(String, String)>),
}

impl Default for Headers {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl Headers {
    pub fn list(&self) -> Vec<(String, String)> {
        match self {
            Self::Map(map) => map.clone().into_iter().collect(),
            Self::List(list) => list.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Transfer {
    #[default]
    ContentLength,
    Chunked,
    ChunkedInfinite,
    ChunkedBad,
    ChunkedCut,
    Close,
    Raw,
    RawClose,
}

/// What a request has to have, or must not have.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Condition {
    pub method: Option<String>,
    pub header: Option<String>,
    pub raw_target: Option<String>,
}

impl Condition {
    pub fn holds(&self, head: &str) -> bool {
        let mut words = head.split(' ');
        let (method, target) = (words.next(), words.next());
        let has = |name: &String| {
            let field = format!("\r\n{}:", name.to_ascii_lowercase());
            head.to_ascii_lowercase().contains(&field)
        };
        self.method.as_deref().is_none_or(|expected| Some(expected) == method)
            && self.raw_target.as_deref().is_none_or(|expected| Some(expected) == target)
            && self.header.as_ref().is_none_or(has)
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum Action {
    #[serde(rename = "RST")]
    Reset,
    #[serde(rename = "refuse")]
    Refuse,
    #[serde(rename = "hang")]
    Hang,
}

/// What `BASE` and `OTHER` stand for in a body.
#[derive(Clone, Debug, Default)]
pub struct Bodies {
    pub base: Vec<u8>,
    pub other: Vec<u8>,
}

impl Bodies {
    /// The bytes that a body's word means.
    pub fn bytes(&self, word: &str) -> Vec<u8> {
        if let Some(word) = word.strip_suffix("[:-8]") {
            let mut bytes = self.bytes(word);
            bytes.truncate(bytes.len() - 8);
            return bytes;
        }
        if let Some(inner) = argument(word, "gzip") {
            return gzip(&self.bytes(inner), inner);
        }
        if let Some(inner) = argument(word, "zlib") {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(&self.bytes(inner)).unwrap();
            return encoder.finish().unwrap();
        }
        match word {
            "BASE" => self.base.clone(),
            "OTHER" => self.other.clone(),
            text => text.as_bytes().to_vec(),
        }
    }
}

fn argument<'a>(word: &'a str, function: &str) -> Option<&'a str> {
    word.strip_prefix(function)?.strip_prefix('(')?.strip_suffix(')')
}

fn gzip(bytes: &[u8], word: &str) -> Vec<u8> {
    let member = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    if word == "zeros*1GiB" { member(&vec![0; 1 << 20]).repeat(1 << 10) } else { member(bytes) }
}
