//! What the tests of the fetcher share: an origin that plays scripts, a canary, names that resolve as a test wants.

// Each test binary uses a part of it.
#![allow(dead_code)]

pub mod names;
pub mod origin;
pub mod script;
pub mod tls;

use std::time::Duration;

use mediagate::media::fetch::{FetchConfig, FetchError, Fetched, Fetcher};
use mediagate::media::source::{HttpUrl, Source};

/// A configuration under which loopback origins can be fetched from, on these ports only, and that does not run into its
/// time limits on a slow machine.
pub fn loopback_config(ports: &[u16]) -> FetchConfig {
    FetchConfig {
        allow_cidrs: vec!["127.0.0.0/8".parse().unwrap()],
        allow_ports: ports.iter().copied().collect(),
        connect_timeout: Duration::from_secs(30),
        first_byte_timeout: Duration::from_secs(30),
        total_timeout: Duration::from_secs(60),
        ..FetchConfig::default()
    }
}

/// A URL as it would come out of a request.
pub fn url(raw: &str) -> HttpUrl {
    match Source::parse(raw) {
        Ok(Source::Http(url)) => url,
        other => panic!("{raw:?} is no http URL: {other:?}"),
    }
}

/// Fetches one URL with a fetcher of its own.
pub async fn fetch(config: &FetchConfig, raw: &str) -> Result<Fetched, FetchError> {
    Fetcher::new(config).unwrap().fetch(&url(raw)).await
}
