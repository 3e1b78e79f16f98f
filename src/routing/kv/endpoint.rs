//! Where a worker's events come from: what `GET /kv_event_sources` says, and which end has to connect.
//!
//! vLLM's publisher binds where its endpoint has `*` or `::`, and connects to any other (`_is_bind_endpoint` in
//! vllm/distributed/kv_events.py); then the subscriber must bind. But `tcp://*:0` is bound and told as the address that it
//! became, so an address is first connected to, and bound only if nobody is there. The replay socket is always bound.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What one rank of a worker publishes where.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Source {
    #[serde(default)]
    enable_kv_cache_events: bool,
    #[serde(default)]
    publisher: Option<String>,
    endpoint: String,
    #[serde(default)]
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
}

/// An address that a publisher is at, or that it will connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    /// Nobody may be there: then it is for us to bind.
    pub may_bind: bool,
}

/// The addresses of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    pub events: Endpoint,
    pub replay: Option<Endpoint>,
    pub topic: String,
}

/// Reads the answer of `/kv_event_sources`: the ranks that publish over ZeroMQ.
pub fn read_sources(answer: &[u8], worker_host: &str) -> Result<BTreeMap<u32, Addresses>, serde_json::Error> {
    let sources: BTreeMap<u32, Source> = serde_json::from_slice(answer)?;
    let publishing = |source: &Source| source.enable_kv_cache_events && source.publisher.as_deref() == Some("zmq");
    let ranks = sources.into_iter().filter(|(_, source)| publishing(source)).filter_map(|(rank, source)| {
        let replay = source.replay_endpoint.as_deref().and_then(|endpoint| Endpoint::parse(endpoint, worker_host));
        let events = Endpoint::parse(&source.endpoint, worker_host)?;
        let replay = replay.map(|endpoint| Endpoint { may_bind: false, ..endpoint });
        Some((rank, Addresses { events, replay, topic: source.topic }))
    });
    Ok(ranks.collect())
}

impl Endpoint {
    /// `None` for what cannot be reached from another process, and what is no address.
    fn parse(text: &str, worker_host: &str) -> Option<Self> {
        let (host, port) = text.strip_prefix("tcp://")?.rsplit_once(':')?;
        let port = port.parse().ok().filter(|&port| port != 0)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let bound = text.contains('*') || text.contains("::");
        let everywhere = ["*", "0.0.0.0", "::"].contains(&host);
        let host = if everywhere { worker_host.trim_start_matches('[').trim_end_matches(']') } else { host };
        Some(Endpoint { host: host.to_owned(), port, may_bind: !bound })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, bool)> {
        Endpoint::parse(text, "worker").map(|endpoint| (endpoint.to_string(), endpoint.may_bind))
    }

    #[test]
    fn who_binds_follows_vllms_rule() {
        for (text, expected) in [
            ("tcp://*:5557", Some(("worker:5557", false))),
            ("tcp://[::]:5557", Some(("worker:5557", false))),
            ("tcp://[fd00::1]:5557", Some(("fd00::1:5557", false))),
            ("tcp://0.0.0.0:5557", Some(("worker:5557", true))),
            ("tcp://10.0.0.7:5557", Some(("10.0.0.7:5557", true))),
            ("tcp://*:0", None),
            ("ipc:///tmp/kv", None),
            ("inproc://kv", None),
            ("tcp://host", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected.map(|(text, bind)| (text.to_owned(), bind)), "{text}");
        }
    }

    #[test]
    fn ranks_that_publish_are_found() {
        let answer = br#"{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
            "replay_endpoint": "tcp://*:5558", "buffer_steps": 10000, "hwm": 100000, "topic": "kv"},
            "1": {"enable_kv_cache_events": false, "publisher": "zmq", "endpoint": "tcp://*:1"},
            "2": {"enable_kv_cache_events": true, "publisher": "null", "endpoint": "tcp://*:1"}}"#;
        let sources = read_sources(answer, "10.0.0.1").unwrap();
        assert_eq!(sources.len(), 1);
        let addresses = &sources[&0];
        assert_eq!(addresses.events.to_string(), "10.0.0.1:5557");
        assert_eq!(addresses.replay.as_ref().unwrap().to_string(), "10.0.0.1:5558");
        assert_eq!(addresses.topic, "kv");
        assert_eq!(read_sources(b"{}", "h").unwrap().len(), 0);
        for nonsense in [&b"null"[..], b"[1]", b"{\"a\": {}}", b""] {
            assert!(read_sources(nonsense, "h").is_err());
        }
    }
}
