//! The host of a URL: a name or an address, in one form whatever the client wrote.
//!
//! The WHATWG host parser does the reading, because browsers' rules decide which number `0x7f.1` is and what an
//! international name is in ASCII. What it would mend or see through in silence is refused around it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::UrlFlaw;

/// Whom a URL names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A DNS name: ASCII, lower case, international labels in punycode, no trailing dot.
    Name(Arc<str>),
    /// An address, in whatever form it was written.
    Ip(IpAddr),
}

impl Host {
    /// Reads a host as it stands in a URL, an IPv6 address in brackets.
    ///
    /// # Errors
    ///
    /// [`UrlFlaw::NoHost`], [`UrlFlaw::Host`] or [`UrlFlaw::DisguisedHost`].
    pub fn parse(text: &str) -> Result<Self, UrlFlaw> {
        if text.is_empty() {
            return Err(UrlFlaw::NoHost);
        }
        if let Some(address) = text.strip_prefix('[') {
            let address = address.strip_suffix(']').ok_or(UrlFlaw::Host)?;
            return address.parse().map(|ip| Self::Ip(IpAddr::V6(ip))).map_err(|_| UrlFlaw::Host);
        }
        // Percent-encoding hides names (%31 is a 1), and an IPv6 zone would choose our network interface.
        if text.contains('%') {
            return Err(UrlFlaw::Host);
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        match url::Host::parse(name).map_err(|_| UrlFlaw::Host)? {
            url::Host::Ipv4(ip) if name.is_ascii() => Ok(Self::Ip(IpAddr::V4(ip))),
            url::Host::Domain(ascii) => check_name(name, &ascii).map(|()| Self::Name(ascii.into())),
            url::Host::Ipv4(_) => Err(UrlFlaw::DisguisedHost),
            url::Host::Ipv6(_) => Err(UrlFlaw::Host),
        }
    }
}

impl fmt::Display for Host {
    /// As in a URL: an IPv6 address has brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Ip(IpAddr::V4(ip)) => write!(f, "{ip}"),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

/// Checks a name against its ASCII form.
///
/// An international label has to become punycode. One that becomes plain ASCII was written in look-alikes (full-width
/// digits, circled letters, an ideographic full stop, invisible hyphens) of a name that could have been written plainly.
fn check_name(written: &str, ascii: &str) -> Result<(), UrlFlaw> {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let well_formed = ascii.len() <= 253 && ascii.split('.').all(is_label);
    if !well_formed {
        return Err(UrlFlaw::Host);
    }
    let same_labels = written.split('.').count() == ascii.split('.').count();
    let disguised = !same_labels
        || written.split('.').zip(ascii.split('.')).any(|(from, to)| !from.is_ascii() && !to.starts_with("xn--"));
    if disguised { Err(UrlFlaw::DisguisedHost) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_browsers_read_them() {
        for raw in [
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "0177.0.0.1",
            "0000177.0.0.1",
            "0x7f.0x0.0x0.0x1",
            "0x7f.0.0.01",
            "2130706433",
            "0x7f000001",
            "127.0.0.1.",
        ] {
            assert_eq!(Host::parse(raw), Ok(Host::Ip("127.0.0.1".parse().unwrap())), "{raw}");
        }
    }

    #[test]
    fn look_alike_hosts_are_refused_and_international_ones_are_not() {
        for raw in [
            "\u{ff11}\u{ff12}\u{ff17}.\u{ff10}.\u{ff10}.\u{ff11}",
            "127\u{3002}0\u{3002}0\u{3002}1",
            "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
            "exa\u{ad}mple.com",
            "bücher\u{3002}example",
        ] {
            assert_eq!(Host::parse(raw), Err(UrlFlaw::DisguisedHost), "{raw}");
        }
        assert_eq!(Host::parse("bücher.example").unwrap().to_string(), "xn--bcher-kva.example");
        assert_eq!(Host::parse("BÜCHER.Example").unwrap().to_string(), "xn--bcher-kva.example");
    }

    #[test]
    fn names_have_one_form_and_sane_labels() {
        let long = format!("{}.example", "a".repeat(64));
        let longer = "a.".repeat(130);
        for text in [
            "a..b",
            ".a",
            ".",
            "*.example",
            "a;b.example",
            "a,b",
            "a%2eb",
            "a b",
            "[127.0.0.1]",
            "[::1",
            &long,
            &longer,
        ] {
            assert_eq!(Host::parse(text), Err(UrlFlaw::Host), "{text}");
        }
        assert_eq!(Host::parse(""), Err(UrlFlaw::NoHost));
        for text in ["a_b.Example", "A_B.EXAMPLE."] {
            assert_eq!(Host::parse(text), Ok(Host::Name("a_b.example".into())), "{text}");
        }
        assert_eq!(Host::parse("[::1]").unwrap().to_string(), "[::1]");
    }
}
