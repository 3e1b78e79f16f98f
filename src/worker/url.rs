//! Where a worker is: the base URL of its API.

use std::{fmt, str::FromStr};

use url::{Host, Url};

/// An absolute, plain URL with a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerUrl(Url);

/// Why a worker's URL is not taken. No secret in it is shown.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WorkerUrlError {
    #[error("worker {0:?} is not a URL: {1}")]
    Parse(String, url::ParseError),
    #[error("worker {0:?} must be http://HOST:PORT or https://HOST:PORT, without user, query or fragment")]
    Shape(String),
    #[error("worker {0:?} is named twice")]
    Twice(String),
}

impl FromStr for WorkerUrl {
    type Err = WorkerUrlError;

    fn from_str(text: &str) -> Result<Self, WorkerUrlError> {
        let shown = || without_secrets(text).to_owned();
        let mut url = Url::parse(text).map_err(|error| WorkerUrlError::Parse(shown(), error))?;
        let plain = matches!(url.scheme(), "http" | "https")
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        if !plain || url.host_str().is_none() || url.port_or_known_default().is_none() {
            return Err(WorkerUrlError::Shape(shown()));
        }
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        Ok(WorkerUrl(url))
    }
}

impl WorkerUrl {
    /// The URL of a path below this one; it begins with a slash, and is one of our constants or was found plain.
    pub fn join(&self, path: &str) -> Url {
        let mut url = self.0.clone();
        url.set_path(&format!("{}{path}", self.0.path().trim_end_matches('/')));
        url
    }

    /// A name or an address; of IPv6 in brackets.
    pub fn host(&self) -> &str {
        // There is one: it was looked for.
        self.0.host_str().unwrap_or_default()
    }

    /// `host:port`.
    pub fn label(&self) -> String {
        format!("{}:{}", self.host(), self.0.port_or_known_default().unwrap_or_default())
    }

    /// A hash of it, the same on every gateway.
    pub fn hash(&self) -> u64 {
        twox_hash::XxHash3_64::oneshot(self.0.as_str().as_bytes())
    }

    /// Whether its host is a loopback address, or the name that means one.
    pub fn is_loopback(&self) -> bool {
        match self.0.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
            None => false,
        }
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// As much of what was to be a URL as may be shown: no user with a password, and no query.
fn without_secrets(text: &str) -> &str {
    let shown = text.split(['?', '#']).next().unwrap_or_default();
    shown.rsplit_once('@').map_or(shown, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> WorkerUrl {
        text.parse().unwrap()
    }

    #[test]
    fn a_path_prefix_is_kept() {
        let urls = ["http://10.0.0.1:8000", "https://h/prefix", "https://h/prefix/"].map(parse);
        let joined = urls.each_ref().map(|url| url.join("/v1/models").to_string());
        assert_eq!(
            joined,
            ["http://10.0.0.1:8000/v1/models", "https://h/prefix/v1/models", "https://h/prefix/v1/models"]
        );
        assert_eq!(urls[1], urls[2]);
        assert_eq!(urls[1].label(), "h:443");
    }

    #[test]
    fn what_is_no_plain_base_url_is_refused_and_its_secrets_are_not_shown() {
        for text in ["10.0.0.1:8000", "ftp://x", "http://x?a=b", "http://x#f", "x"] {
            assert!(text.parse::<WorkerUrl>().is_err(), "{text}");
        }
        for text in ["http://u:secret@x", "http://u:secret@x:port", "u:secret@@x", "http://x?a=secret", "x#secret"] {
            let error = text.parse::<WorkerUrl>().unwrap_err().to_string();
            assert!(error.contains('x') && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn loopback_is_seen_in_every_form() {
        let urls = ["http://127.0.0.9:1", "http://[::1]:1", "http://localhost:1", "http://10.0.0.1:1"].map(parse);
        assert_eq!(urls.map(|url| url.is_loopback()), [true, true, true, false]);
    }
}
