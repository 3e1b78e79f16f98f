//! What an operator writes to say who may be reached: hosts, domains, networks.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::config::FetchConfigError;
use crate::media::source::Host;

/// Reads a host as a URL would name it, so that both are compared in the same form.
pub(super) fn parse_host(text: &str, setting: &'static str) -> Result<Host, FetchConfigError> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Ok(Host::Ip(ip)),
        Err(_) => Host::parse(text).map_err(|_| FetchConfigError::Host { setting, text: text.to_owned() }),
    }
}

/// One entry of `allowed_domains`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DomainPattern {
    /// This host alone.
    Exact(Host),
    /// Every name below this one, which is kept with its leading dot.
    Below(String),
}

impl DomainPattern {
    pub(super) fn parse(text: &str) -> Result<Self, FetchConfigError> {
        match text.strip_prefix('*').unwrap_or(text).strip_prefix('.') {
            Some(parent) => match parse_host(parent, "allowed_domains")? {
                Host::Name(name) => Ok(Self::Below(format!(".{name}"))),
                Host::Ip(_) => Err(FetchConfigError::Host { setting: "allowed_domains", text: text.to_owned() }),
            },
            None => parse_host(text, "allowed_domains").map(Self::Exact),
        }
    }

    pub(super) fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Exact(expected), host) => expected == host,
            (Self::Below(suffix), Host::Name(name)) => name.len() > suffix.len() && name.ends_with(suffix.as_str()),
            (Self::Below(_), Host::Ip(_)) => false,
        }
    }
}

/// A network, written `10.0.0.0/8`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

impl Cidr {
    /// Whether the address is in the network. A mapped IPv4 address counts as the IPv4 address that it is.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.contains(&ip.to_canonical())
    }
}

impl FromStr for Cidr {
    type Err = FetchConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let network = match text.parse::<IpAddr>() {
            Ok(ip) => Ok(IpNet::from(ip.to_canonical())),
            Err(_) => text.parse(),
        };
        network.map(Self).map_err(|_| FetchConfigError::Cidr { text: text.to_owned() })
    }
}

impl TryFrom<String> for Cidr {
    type Error = FetchConfigError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_in_every_form() {
        for (text, host) in [
            ("Example.COM.", "example.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "[::1]"),
            ("[::1]", "[::1]"),
        ] {
            assert_eq!(parse_host(text, "allow_hosts").unwrap().to_string(), host);
        }
    }

    #[test]
    fn domains_match_exactly_or_below() {
        let matches =
            |pattern: &str, host: &str| DomainPattern::parse(pattern).unwrap().matches(&Host::parse(host).unwrap());
        assert!(matches("example.com", "EXAMPLE.com."));
        assert!(!matches("example.com", "cdn.example.com"));
        assert!(!matches("example.com", "badexample.com"));
        for pattern in [".example.com", "*.example.com"] {
            assert!(matches(pattern, "cdn.example.com"));
            assert!(matches(pattern, "a.b.example.com."));
            assert!(!matches(pattern, "example.com"));
            assert!(!matches(pattern, "badexample.com"));
            assert!(!matches(pattern, "example.com.evil.test"));
        }
        assert!(matches("127.0.0.1", "127.1"));
    }

    #[test]
    fn networks_are_read_with_and_without_a_prefix() {
        let contains = |cidr: &str, ip: &str| cidr.parse::<Cidr>().unwrap().contains(ip.parse().unwrap());
        assert!(contains("10.0.0.0/8", "10.255.0.1"));
        assert!(contains("10.0.0.0/8", "::ffff:10.0.0.1"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("127.0.0.1", "127.0.0.1"));
        assert!(!contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("fd00::/8", "fd12::1"));
        for text in ["", "10.0.0.0/33", "10.0.0/8", "example.com"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
