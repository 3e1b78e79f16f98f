//! What the operator's options make of a URL and of the addresses that its name has.
//!
//! A hop is judged twice: its URL before anything is looked up ([`Policy::check_url`]), its addresses before anything is
//! dialled ([`Policy::vet`]). Only the second makes [`Vetted`] addresses, and only those can be dialled, so no way around
//! the policy compiles.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use super::address::{self, Refusal};
use super::allow::{Cidr, DomainPattern};
use super::config::{FetchConfig, FetchConfigError};
use crate::media::source::{Host, HttpUrl};

/// Why the policy refuses a hop. Terminal: no retry, no other address, no fallback.
///
/// The texts are for the operator's log and name the option that decides.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PolicyRefusal {
    /// `allowed_domains` is set and does not have the host.
    #[error("the host is not among the allowed domains (--media-allowed-domain)")]
    Domain,
    /// A port other than 80 and 443 that is not in `allow_ports`.
    #[error("port {0} is not allowed (--media-allow-port)")]
    Port(u16),
    /// The host is an address, not a name, and no option allows it.
    #[error("the host is an IP address (--media-allow-cidr, --media-allow-host)")]
    IpLiteral,
    /// A name that by its nature is local or belongs to a metadata service.
    #[error("the host is a local name (--media-allow-host)")]
    LocalName,
    /// The name has an address that may not be reached. The others were not tried.
    #[error("the host has {0} ({options})", options = allowing(*.0))]
    Address(Refusal),
}

/// The options that would allow an address.
fn allowing(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Metadata => "--media-allow-cidr",
        _ => "--media-allow-cidr, --media-allow-host",
    }
}

/// The operator's options in the form in which they are asked.
#[derive(Debug)]
pub(super) struct Policy {
    allow_hosts: Vec<Host>,
    allow_cidrs: Vec<Cidr>,
    allow_ports: Vec<u16>,
    allowed_domains: Vec<DomainPattern>,
}

/// Addresses that passed the policy, in the order in which they were answered. Never empty.
#[derive(Debug)]
pub(super) struct Vetted(Vec<SocketAddr>);

impl Vetted {
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.0
    }
}

impl Policy {
    pub(super) fn new(config: &FetchConfig) -> Result<Self, FetchConfigError> {
        Ok(Self {
            allow_hosts: config.hosts()?,
            allow_cidrs: config.allow_cidrs.clone(),
            allow_ports: [80, 443].into_iter().chain(config.allow_ports.iter().copied()).collect(),
            allowed_domains: config.domains()?,
        })
    }

    /// Judges what can be judged before anything is looked up.
    pub(super) fn check_url(&self, url: &HttpUrl) -> Result<(), PolicyRefusal> {
        let host = url.host();
        if !self.allowed_domains.is_empty() && !self.allowed_domains.iter().any(|pattern| pattern.matches(host)) {
            return Err(PolicyRefusal::Domain);
        }
        if !self.allow_ports.contains(&url.port()) {
            return Err(PolicyRefusal::Port(url.port()));
        }
        if self.vouches_for(host) {
            return Ok(());
        }
        match host {
            Host::Ip(ip) if self.is_in_allowed_network(*ip) => Ok(()),
            Host::Ip(_) => Err(PolicyRefusal::IpLiteral),
            Host::Name(name) if is_local(name) => Err(PolicyRefusal::LocalName),
            Host::Name(_) => Ok(()),
        }
    }

    /// Judges all addresses of a host: one bad one refuses the host, since whoever answers for the name chose them all.
    ///
    /// `addresses` may not be empty.
    pub(super) fn vet(&self, url: &HttpUrl, addresses: &[IpAddr]) -> Result<Vetted, PolicyRefusal> {
        debug_assert!(!addresses.is_empty());
        let vouched = self.vouches_for(url.host());
        let vet = |ip: &IpAddr| {
            // What is judged, what is dialled and what a network is compared with is one and the same address.
            let ip = ip.to_canonical();
            match address::judge(ip) {
                Ok(()) => {}
                Err(_) if self.is_in_allowed_network(ip) => {}
                Err(refusal) if vouched && refusal != Refusal::Metadata => {}
                Err(refusal) => return Err(PolicyRefusal::Address(refusal)),
            }
            Ok(SocketAddr::new(ip, url.port()))
        };
        addresses.iter().map(vet).collect::<Result<_, _>>().map(Vetted)
    }

    fn vouches_for(&self, host: &Host) -> bool {
        self.allow_hosts.contains(host)
    }

    fn is_in_allowed_network(&self, ip: IpAddr) -> bool {
        self.allow_cidrs.iter().any(|cidr| cidr.contains(ip))
    }
}

/// Names that lead inside whatever they resolve to: a search domain of ours, mDNS, a cluster, a cloud's metadata service.
fn is_local(name: &str) -> bool {
    /// Special-use domains (RFC 6761, 6762, 8375, ICANN's .internal), and what Kubernetes and Google use.
    const LOCAL_SUFFIXES: &[&str] =
        &["localhost", "localdomain", "local", "internal", "intranet", "home.arpa", "svc", "metadata.goog", "onion"];

    // A single label can only be meant for a search domain or a hosts file.
    !name.contains('.')
        || LOCAL_SUFFIXES
            .iter()
            .any(|suffix| name.strip_suffix(suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(change: impl FnOnce(&mut FetchConfig)) -> Policy {
        let mut config = FetchConfig::default();
        change(&mut config);
        Policy::new(&config).unwrap()
    }

    fn check(policy: &Policy, raw: &str) -> Result<(), PolicyRefusal> {
        policy.check_url(&HttpUrl::parse(raw).unwrap())
    }

    fn vet(policy: &Policy, raw: &str, ips: &[&str]) -> Result<usize, PolicyRefusal> {
        let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        policy.vet(&HttpUrl::parse(raw).unwrap(), &ips).map(|vetted| vetted.addresses().len())
    }

    #[test]
    fn by_default_only_public_names_on_web_ports_pass() {
        let policy = policy(|_| ());
        for raw in
            ["http://example.com/", "https://example.com/", "http://example.com:443/", "https://a.b.example.com./"]
        {
            assert_eq!(check(&policy, raw), Ok(()), "{raw}");
        }
        for raw in ["http://8.8.8.8/", "http://127.0.0.1/", "http://[2606:4700::1111]/", "http://2130706433/"] {
            assert_eq!(check(&policy, raw), Err(PolicyRefusal::IpLiteral), "{raw}");
        }
        assert_eq!(check(&policy, "http://example.com:22/"), Err(PolicyRefusal::Port(22)));
        for name in [
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "localhost.localdomain",
            "intranet",
            "printer.local",
            "metadata",
            "metadata.google.internal",
            "instance-data.ec2.internal",
            "metadata.goog",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "host.docker.internal",
        ] {
            assert_eq!(check(&policy, &format!("http://{name}/")), Err(PolicyRefusal::LocalName), "{name}");
        }
        for name in ["notlocalhost.com", "mylocal.example", "internal.example.com", "local.io"] {
            assert_eq!(check(&policy, &format!("http://{name}/")), Ok(()), "{name}");
        }
    }

    #[test]
    fn one_bad_address_refuses_the_name() {
        let policy = policy(|_| ());
        assert_eq!(vet(&policy, "http://a.example/", &["8.8.8.8", "2606:4700::1111"]), Ok(2));
        assert_eq!(
            vet(&policy, "http://a.example/", &["8.8.8.8", "10.0.0.1"]),
            Err(PolicyRefusal::Address(Refusal::Private))
        );
    }

    #[test]
    fn what_is_dialled_is_what_was_judged() {
        let url = HttpUrl::parse("https://a.example:443/").unwrap();
        let vetted = policy(|_| ()).vet(&url, &["::ffff:8.8.8.8".parse().unwrap()]).unwrap();
        assert_eq!(vetted.addresses(), ["8.8.8.8:443".parse().unwrap()]);
    }

    #[test]
    fn an_allowed_network_allows_what_it_says() {
        let policy = policy(|config| config.allow_cidrs = vec!["127.0.0.0/8".parse().unwrap()]);
        assert_eq!(check(&policy, "http://127.0.0.1/"), Ok(()));
        assert_eq!(check(&policy, "http://[::ffff:127.0.0.1]/"), Ok(()));
        assert_eq!(check(&policy, "http://10.0.0.1/"), Err(PolicyRefusal::IpLiteral));
        assert_eq!(check(&policy, "http://localhost/"), Err(PolicyRefusal::LocalName));
        assert_eq!(check(&policy, "http://127.0.0.1:8080/"), Err(PolicyRefusal::Port(8080)));
        assert_eq!(vet(&policy, "http://a.example/", &["127.0.0.1", "8.8.8.8"]), Ok(2));
        assert!(vet(&policy, "http://a.example/", &["127.0.0.1", "10.0.0.1"]).is_err());
    }

    #[test]
    fn an_allowed_host_may_be_private_but_not_a_metadata_service() {
        let policy = policy(|config| config.allow_hosts = vec!["minio".into(), "10.0.0.9".into()]);
        for raw in ["http://minio/", "http://MINIO./", "http://10.0.0.9/"] {
            assert_eq!(check(&policy, raw), Ok(()), "{raw}");
        }
        assert_eq!(check(&policy, "http://a.minio/"), Ok(()));
        assert_eq!(vet(&policy, "http://minio/", &["10.1.2.3", "::1"]), Ok(2));
        assert!(vet(&policy, "http://a.minio/", &["10.1.2.3"]).is_err());
        for ip in ["169.254.169.254", "64:ff9b::a9fe:a9fe", "fd00:ec2::254", "168.63.129.16"] {
            assert_eq!(vet(&policy, "http://minio/", &[ip]), Err(PolicyRefusal::Address(Refusal::Metadata)), "{ip}");
        }
        assert_eq!(check(&policy, "http://minio:9000/"), Err(PolicyRefusal::Port(9000)));
    }

    #[test]
    fn allowed_domains_narrow_whatever_else_is_allowed() {
        let policy = policy(|config| {
            config.allowed_domains = vec!["example.test".into(), ".cdn.example".into()];
            config.allow_hosts = vec!["minio".into()];
        });
        for raw in ["http://example.test/", "http://example.test./", "http://a.cdn.example/"] {
            assert_eq!(check(&policy, raw), Ok(()), "{raw}");
        }
        for raw in ["http://www.example.test/", "http://cdn.example/", "http://minio/", "http://8.8.8.8/"] {
            assert_eq!(check(&policy, raw), Err(PolicyRefusal::Domain), "{raw}");
        }
    }
}
