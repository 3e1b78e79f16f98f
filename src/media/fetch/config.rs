//! What may be fetched, from where, and at what cost. The defaults suit a gateway on a public endpoint.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::allow::{Cidr, DomainPattern, parse_host};
use crate::media::source::Host;

/// The settings of the fetcher. Times are written in milliseconds in files (`connect_timeout_ms = 3000`).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FetchConfig {
    /// Hosts, names or addresses, that may be reached although they are, or resolve to, private addresses. An entry is
    /// exact; it vouches for the name, whoever answers for it, but never for a metadata address. It allows no ports.
    pub allow_hosts: Vec<String>,
    /// Networks that may be reached although they are not public, by names that resolve there and by URLs with an
    /// address for a host. An entry allows exactly what it says, metadata addresses too. A bare address is a network of one.
    pub allow_cidrs: Vec<Cidr>,
    /// Ports that may be reached besides 80 and 443, on any host that may be reached.
    pub allow_ports: BTreeSet<u16>,
    /// If any are named, no other hosts are fetched, whatever else allows them. `example.com` means that name alone,
    /// `.example.com` or `*.example.com` every name below it.
    pub allowed_domains: Vec<String>,

    /// Largest image, in bytes. One that comes in a content coding, although none was asked for, counts as it comes and
    /// once more as it decodes: no fetch holds more than this.
    pub max_bytes: usize,
    /// Largest head of a response, in bytes. At least 8192.
    pub max_header_bytes: usize,
    /// Redirects that are followed in one fetch.
    pub max_redirects: u32,
    /// Attempts after the first, in one fetch, for what is transient.
    pub max_retries: u32,

    /// Longest time to a connection: resolving, TCP, TLS.
    #[serde(rename = "connect_timeout_ms", with = "millis")]
    pub connect_timeout: Duration,
    /// Longest time from a request to the complete head of its response.
    #[serde(rename = "first_byte_timeout_ms", with = "millis")]
    pub first_byte_timeout: Duration,
    /// Longest time of one fetch in all: waiting for a turn, resolving, redirects, retries and bodies.
    #[serde(rename = "total_timeout_ms", with = "millis")]
    pub total_timeout: Duration,

    /// Requests that are under way at one time.
    pub max_concurrent: usize,
    /// Requests that are under way at one time to one host and port.
    pub max_concurrent_per_host: usize,
    /// Names that are being resolved at one time. Each occupies a thread until the system's resolver answers.
    pub max_concurrent_lookups: usize,
    /// Connections that are kept open for the next request, in all. 0 keeps none.
    pub max_idle_connections: usize,
    /// How long a connection can be used for the next request. It is closed within twice that time.
    #[serde(rename = "idle_timeout_ms", with = "millis")]
    pub idle_timeout: Duration,

    /// What origins are told about who asks. Some answer 403 to clients that do not say, or that give no address.
    pub user_agent: String,
    /// PEM files with certificate authorities to trust besides those of the system.
    pub ca_files: Vec<PathBuf>,
}

impl Default for FetchConfig {
    fn default() -> Self {
        Self {
            allow_hosts: Vec::new(),
            allow_cidrs: Vec::new(),
            allow_ports: BTreeSet::new(),
            allowed_domains: Vec::new(),
            max_bytes: 20 << 20,
            max_header_bytes: 64 << 10,
            max_redirects: 5,
            max_retries: 2,
            connect_timeout: Duration::from_secs(3),
            first_byte_timeout: Duration::from_secs(5),
            total_timeout: Duration::from_secs(10),
            max_concurrent: 256,
            max_concurrent_per_host: 32,
            max_concurrent_lookups: 64,
            max_idle_connections: 64,
            idle_timeout: Duration::from_secs(15),
            user_agent: concat!("mediagate/", env!("CARGO_PKG_VERSION"), " (image fetcher of an AI inference gateway)")
                .to_owned(),
            ca_files: Vec::new(),
        }
    }
}

impl FetchConfig {
    /// Checks what the types cannot.
    ///
    /// # Errors
    ///
    /// The first setting that makes no sense.
    pub fn validate(&self) -> Result<(), FetchConfigError> {
        /// hyper's smallest read buffer.
        const MIN_HEADER_BYTES: usize = 8192;
        /// Nobody waits longer for an answer, and clocks do not overflow.
        const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

        let positive = [
            ("max_bytes", self.max_bytes),
            ("max_concurrent", self.max_concurrent),
            ("max_concurrent_per_host", self.max_concurrent_per_host),
            ("max_concurrent_lookups", self.max_concurrent_lookups),
        ];
        if let Some((setting, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(FetchConfigError::Zero { setting });
        }
        let times = [
            ("connect_timeout_ms", self.connect_timeout),
            ("first_byte_timeout_ms", self.first_byte_timeout),
            ("total_timeout_ms", self.total_timeout),
        ];
        if let Some((setting, _)) = times.into_iter().find(|(_, value)| value.is_zero()) {
            return Err(FetchConfigError::Zero { setting });
        }
        if let Some((setting, _)) = times.into_iter().find(|(_, value)| *value > LONGEST) {
            return Err(FetchConfigError::TooLong { setting, longest: LONGEST });
        }
        if self.max_header_bytes < MIN_HEADER_BYTES {
            return Err(FetchConfigError::HeaderBytes { min: MIN_HEADER_BYTES });
        }
        if self.allow_ports.contains(&0) {
            return Err(FetchConfigError::Zero { setting: "allow_ports" });
        }
        self.user_agent_header()?;
        self.hosts()?;
        self.domains()?;
        Ok(())
    }

    pub(super) fn user_agent_header(&self) -> Result<HeaderValue, FetchConfigError> {
        match HeaderValue::from_str(&self.user_agent) {
            Ok(value) if !value.is_empty() => Ok(value),
            _ => Err(FetchConfigError::UserAgent),
        }
    }

    pub(super) fn hosts(&self) -> Result<Vec<Host>, FetchConfigError> {
        self.allow_hosts.iter().map(|text| parse_host(text, "allow_hosts")).collect()
    }

    pub(super) fn domains(&self) -> Result<Vec<DomainPattern>, FetchConfigError> {
        self.allowed_domains.iter().map(|text| DomainPattern::parse(text)).collect()
    }
}

/// A setting of the fetcher that makes no sense.
#[derive(Debug, Error)]
#[allow(missing_docs)] // The sentence says it.
pub enum FetchConfigError {
    #[error("{setting} may not be 0")]
    Zero { setting: &'static str },
    #[error("{setting} may not be more than {longest:?}")]
    TooLong { setting: &'static str, longest: Duration },
    #[error("max_header_bytes has to be at least {min}")]
    HeaderBytes { min: usize },
    #[error("user_agent is empty or holds characters that a header may not have")]
    UserAgent,
    #[error("{setting}: {text:?} is not a host; give a name or an address, without scheme, port or path")]
    Host { setting: &'static str, text: String },
    #[error("{text:?} is not an address or a network such as 10.0.0.0/8")]
    Cidr { text: String },
    #[error("ca_files: {} cannot be read as PEM certificates", path.display())]
    CaFile {
        path: PathBuf,
        #[source]
        cause: rustls::pki_types::pem::Error,
    },
    #[error("ca_files: {} holds no usable certificate", path.display())]
    CaFileEmpty { path: PathBuf },
}

/// Durations as whole milliseconds.
mod millis {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        u64::try_from(value.as_millis()).unwrap_or(u64::MAX).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_survives_a_file() {
        let config = FetchConfig::default();
        config.validate().unwrap();
        let text = toml::to_string(&config).unwrap();
        assert!(text.contains("connect_timeout_ms = 3000"), "{text}");
        let back: FetchConfig = toml::from_str(&text).unwrap();
        assert_eq!(toml::to_string(&back).unwrap(), text);
        assert_eq!(toml::from_str::<FetchConfig>("").unwrap().max_bytes, 20 << 20);
        assert!(toml::from_str::<FetchConfig>("max_byte = 1").is_err());
    }

    #[test]
    fn settings_without_sense_are_named() {
        let with = |change: fn(&mut FetchConfig)| {
            let mut config = FetchConfig::default();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert!(with(|config| config.max_bytes = 0).contains("max_bytes"));
        assert!(with(|config| config.total_timeout = Duration::ZERO).contains("total_timeout_ms"));
        assert!(with(|config| config.total_timeout = Duration::MAX).contains("total_timeout_ms"));
        assert!(with(|config| config.max_header_bytes = 100).contains("8192"));
        assert!(with(|config| config.user_agent = "a\nb".into()).contains("user_agent"));
        for host in ["", "http://x", "x:80", "x:81", "x/", "a b", "u@x"] {
            let config = FetchConfig { allow_hosts: vec![host.into()], ..FetchConfig::default() };
            assert!(config.validate().unwrap_err().to_string().contains("allow_hosts"), "{host}");
        }
        for domain in ["", ".", "*", "*.127.0.0.1", "*x.com"] {
            let config = FetchConfig { allowed_domains: vec![domain.into()], ..FetchConfig::default() };
            assert!(config.validate().is_err(), "{domain}");
        }
    }
}
