//! http(s) URLs, taken apart without being changed.
//!
//! The checks run over the raw text, in this order: length, characters that parsers disagree about, the slashes, user
//! information, host, port. Everything behind the authority is kept as it is.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use http::uri::PathAndQuery;

use super::{Host, SourceError, UrlFlaw};

/// Longest URL that is accepted. Signed URLs with session tokens reach some 3 KiB.
pub(super) const MAX_URL_BYTES: usize = 16 * 1024;

/// Of a path that is shown.
const MAX_SHOWN_PATH_BYTES: usize = 256;

/// A well-formed http(s) URL: the text that the client sent, and what the gateway will connect to and ask for.
///
/// Equality and hash are those of the exact text, so it can be a cache key: URLs that differ in case only, or in the
/// order of their query, are different. `Debug` and `Display` leave the query out, where signatures and tokens stand.
#[derive(Clone)]
pub struct HttpUrl {
    raw: Arc<str>,
    scheme: Scheme,
    host: Host,
    port: u16,
    target: PathAndQuery,
}

/// The two schemes that are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Port 80 unless the URL says another.
    Http,
    /// Port 443 unless the URL says another.
    Https,
}

impl Scheme {
    /// The lower-case name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl HttpUrl {
    /// Parses the exact text.
    ///
    /// # Errors
    ///
    /// [`SourceError::UnsupportedScheme`] for anything but http(s), [`SourceError::Url`] for a URL that is not well formed.
    pub fn parse(raw: &str) -> Result<Self, SourceError> {
        let (scheme, rest) = split_scheme(raw)?;
        check_characters(raw).map_err(SourceError::Url)?;
        Self::parse_rest(raw, scheme, rest).map_err(SourceError::Url)
    }

    fn parse_rest(raw: &str, scheme: Scheme, rest: &str) -> Result<Self, UrlFlaw> {
        let rest = rest.strip_prefix("//").ok_or(UrlFlaw::NoSlashes)?;
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(UrlFlaw::UserInfo);
        }
        let (host, port) = split_port(authority)?;
        let port = match port {
            Some(digits) => parse_port(digits)?,
            None => scheme.default_port(),
        };
        let target = parse_target(rest)?;
        Ok(Self { raw: raw.into(), scheme, host: Host::parse(host)?, port, target })
    }

    /// The text as it came: the cache key, never for a log.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// http or https.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host to resolve, to judge, and to name in TLS and in the Host header.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port, given or the scheme's own.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path and query as they go into the request line, byte for byte as in the raw text, except for characters that
    /// HTTP has no place for (non-ASCII ones, and in a path `"<>^|` and the backtick at most): those are percent-encoded.
    pub fn target(&self) -> &str {
        self.target.as_str()
    }

    /// The target as hyper takes it.
    pub(crate) fn path_and_query(&self) -> &PathAndQuery {
        &self.target
    }

    /// Host and port as the Host header has them: the port is left out if it is the scheme's own.
    pub fn authority(&self) -> String {
        if self.port == self.scheme.default_port() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl PartialEq for HttpUrl {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl Eq for HttpUrl {}

impl Hash for HttpUrl {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.raw.hash(state);
    }
}

impl fmt::Display for HttpUrl {
    /// For logs: without the query, which may be a secret, and with as much of the path as tells one from another. A client
    /// chooses how long it is, and could fill a disk.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let query = if self.target.query().is_some() { "?…" } else { "" };
        let path = self.target.path();
        let (shown, rest) = path.split_at_checked(MAX_SHOWN_PATH_BYTES).unwrap_or((path, ""));
        let rest = if rest.is_empty() { "" } else { "…" };
        write!(f, "{}://{}{shown}{rest}{query}", self.scheme.as_str(), self.authority())
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn split_scheme(raw: &str) -> Result<(Scheme, &str), SourceError> {
    let (scheme, rest) = raw.split_once(':').ok_or(SourceError::NoScheme)?;
    if scheme.eq_ignore_ascii_case("http") {
        Ok((Scheme::Http, rest))
    } else if scheme.eq_ignore_ascii_case("https") {
        Ok((Scheme::Https, rest))
    } else {
        Err(SourceError::UnsupportedScheme)
    }
}

/// Refuses what parsers are known to disagree about, wherever in the URL it stands.
fn check_characters(raw: &str) -> Result<(), UrlFlaw> {
    if raw.len() > MAX_URL_BYTES {
        return Err(UrlFlaw::TooLong);
    }
    for character in raw.chars() {
        if character == '\\' {
            return Err(UrlFlaw::Backslash);
        }
        if character.is_whitespace() {
            return Err(UrlFlaw::WhiteSpace);
        }
        if character.is_control() {
            return Err(UrlFlaw::ControlCharacter);
        }
    }
    Ok(())
}

/// Splits `host[:port]`, where the host may be a bracketed IPv6 address.
fn split_port(authority: &str) -> Result<(&str, Option<&str>), UrlFlaw> {
    let host_end = if authority.starts_with('[') {
        authority.find(']').ok_or(UrlFlaw::Host)? + 1
    } else {
        authority.find(':').unwrap_or(authority.len())
    };
    let (host, rest) = authority.split_at(host_end);
    if rest.is_empty() {
        return Ok((host, None));
    }
    let port = rest.strip_prefix(':').ok_or(UrlFlaw::Host)?;
    Ok((host, Some(port)))
}

fn parse_port(digits: &str) -> Result<u16, UrlFlaw> {
    // `parse` alone would take "+80".
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(UrlFlaw::Port);
    }
    match digits.parse() {
        Ok(0) | Err(_) => Err(UrlFlaw::Port),
        Ok(port) => Ok(port),
    }
}

/// The request target of what follows the authority, without its fragment.
fn parse_target(rest: &str) -> Result<PathAndQuery, UrlFlaw> {
    let rest = rest.split('#').next().unwrap_or_default();
    let slash = if rest.starts_with('/') { "" } else { "/" };
    let mut target = String::with_capacity(slash.len() + rest.len());
    target.push_str(slash);
    let query_start = rest.find('?').unwrap_or(rest.len());
    for (at, character) in rest.char_indices() {
        if is_sent_as_is(character, at > query_start) {
            target.push(character);
        } else {
            let mut buffer = [0; 4];
            for byte in character.encode_utf8(&mut buffer).bytes() {
                target.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    PathAndQuery::from_maybe_shared(bytes::Bytes::from(target)).map_err(|_| UrlFlaw::ControlCharacter)
}

/// Whether a character may stand in a request line. Browsers encode the same ones.
fn is_sent_as_is(character: char, in_query: bool) -> bool {
    match character {
        '"' | '<' | '>' => false,
        '^' | '`' | '|' => in_query,
        _ => character.is_ascii(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flaw(raw: &str) -> UrlFlaw {
        match HttpUrl::parse(raw) {
            Err(SourceError::Url(flaw)) => flaw,
            other => panic!("{raw:?} gave {other:?}"),
        }
    }

    fn url(raw: &str) -> HttpUrl {
        HttpUrl::parse(raw).unwrap_or_else(|error| panic!("{raw:?} gave {error}"))
    }

    #[test]
    fn what_a_parser_would_have_to_mend_is_refused() {
        for (raw, expected) in [
            ("http:///x.png", UrlFlaw::NoHost),
            ("http://", UrlFlaw::NoHost),
            ("http://:80/x.png", UrlFlaw::NoHost),
            ("http://./x.png", UrlFlaw::Host),
            ("http:/127.0.0.1/x.png", UrlFlaw::NoSlashes),
            ("http:127.0.0.1/x.png", UrlFlaw::NoSlashes),
            ("http:\\\\127.0.0.1\\x.png", UrlFlaw::Backslash),
            ("http://127.0.0.1\\@example.com/x.png", UrlFlaw::Backslash),
            ("http://example.com/a\\b", UrlFlaw::Backslash),
            ("http://127.0.\t0.1/x.png", UrlFlaw::WhiteSpace),
            ("http://127.0.\n0.1/x.png", UrlFlaw::WhiteSpace),
            ("http://example.com/a b", UrlFlaw::WhiteSpace),
            ("http://example.com/a\u{a0}b", UrlFlaw::WhiteSpace),
            ("http://127.0.0.1\0.example.com/x.png", UrlFlaw::ControlCharacter),
            ("http://example.com/\u{85}", UrlFlaw::WhiteSpace),
            ("http://example.com/\u{9b}", UrlFlaw::ControlCharacter),
            ("http://example.com:80@127.0.0.1/x.png", UrlFlaw::UserInfo),
            ("http://u:p@example.com/x.png", UrlFlaw::UserInfo),
            ("http://a@127.0.0.1@example.com/", UrlFlaw::UserInfo),
            ("http://@example.com/", UrlFlaw::UserInfo),
            ("http://%31%32%37.0.0.1/x.png", UrlFlaw::Host),
            ("http://[fe80::1%25eth0]/x.png", UrlFlaw::Host),
            ("http://[::1/x.png", UrlFlaw::Host),
            ("http://[::1]x/x.png", UrlFlaw::Host),
            ("http://[127.0.0.1]/x.png", UrlFlaw::Host),
            ("http://a..b/x.png", UrlFlaw::Host),
            ("http://*.example.com/x.png", UrlFlaw::Host),
            ("http://a;b.example.com/x.png", UrlFlaw::Host),
            ("http://a,b/x.png", UrlFlaw::Host),
            ("http://example.com../x.png", UrlFlaw::Host),
            ("http://4294967297/x.png", UrlFlaw::Host),
            ("http://1.2.3.4.5/x.png", UrlFlaw::Host),
            ("http://127.0.0.1:0/x.png", UrlFlaw::Port),
            ("http://127.0.0.1:65536/x.png", UrlFlaw::Port),
            ("http://example.com:/x.png", UrlFlaw::Port),
            ("http://example.com:+80/x.png", UrlFlaw::Port),
            ("http://example.com:８０/x.png", UrlFlaw::Port),
            ("http://example.com:80:80/x.png", UrlFlaw::Port),
        ] {
            assert_eq!(flaw(raw), expected, "{raw:?}");
        }
        assert_eq!(flaw(&format!("http://example.com/{}", "a".repeat(MAX_URL_BYTES))), UrlFlaw::TooLong);
    }

    #[test]
    fn names_are_compared_in_one_form() {
        for raw in ["http://Example.COM/x", "http://example.com./x", "HTTP://EXAMPLE.com:80/x"] {
            assert_eq!(url(raw).host, Host::Name("example.com".into()), "{raw}");
            assert_eq!(url(raw).authority(), "example.com", "{raw}");
        }
        assert_eq!(url("https://example.com:8443/").authority(), "example.com:8443");
        assert_eq!(url("http://[2606:4700::1111]:81/").authority(), "[2606:4700::1111]:81");
    }

    #[test]
    fn path_and_query_stay_as_they_are() {
        for target in [
            "/path%2Fto%2Ffile.png?X-Amz-Signature=ab%2Bcd%3D",
            "/f.png?sig=a+b%20c&x=1&x=2",
            "/a%2fb.png",
            "/a/../b/./c",
            "/%2e%2e/x",
            "//double//slash",
            "/x?a='b'&c=d|e^f`g{h}",
            "/x?u=http://127.0.0.1:80/@x",
            "/%zz?%",
            "/;,:@&=+$!*'()~",
        ] {
            assert_eq!(url(&format!("https://example.com{target}")).target(), target);
        }
        assert_eq!(url("https://example.com").target(), "/");
        assert_eq!(url("https://example.com?a=1").target(), "/?a=1");
        assert_eq!(url("https://example.com/x?y#z").target(), "/x?y");
        assert_eq!(url("https://example.com#z?y").target(), "/");
    }

    #[test]
    fn what_http_has_no_place_for_is_encoded() {
        assert_eq!(url("https://example.com/été.png?q=é").target(), "/%C3%A9t%C3%A9.png?q=%C3%A9");
        assert_eq!(url("https://example.com/a\"<>^`|b?\"<>").target(), "/a%22%3C%3E%5E%60%7Cb?%22%3C%3E");
    }

    /// Every ASCII character is either sent as it is or encoded, and never makes the request impossible.
    #[test]
    fn every_printable_character_can_be_sent() {
        for character in ('!'..='~').filter(|character| !matches!(character, '\\' | '#')) {
            url(&format!("https://example.com/{character}?{character}"));
        }
    }

    /// Why the URL that is fetched is not a `url::Url` (and hence not reqwest): it would not be the one that was signed.
    #[test]
    fn the_url_crate_changes_what_was_written() {
        for raw in ["https://h.example/a/../b", "https://h.example/%2e%2e/b", "https://h.example/x?sig='a'"] {
            assert_ne!(url::Url::parse(raw).unwrap().as_str(), raw);
            assert!(raw.ends_with(url(raw).target()));
        }
    }

    #[test]
    fn logs_never_show_the_query() {
        let url = url("https://example.com/x.png?X-Amz-Signature=secret");
        assert_eq!(url.to_string(), "https://example.com/x.png?…");
        assert!(!format!("{url:?}").contains("secret"));
        assert_eq!(url.raw(), "https://example.com/x.png?X-Amz-Signature=secret");
    }

    #[test]
    fn logs_show_the_beginning_of_a_long_path() {
        let shown = url(&format!("https://example.com/{}?secret", "p".repeat(10_000))).to_string();
        assert_eq!(shown, format!("https://example.com/{}…?…", "p".repeat(MAX_SHOWN_PATH_BYTES - 1)));
    }

    #[test]
    fn urls_are_equal_only_if_their_text_is() {
        assert_ne!(url("http://example.com/A.png"), url("http://example.com/a.png"));
        assert_eq!(url("http://example.com/A.png"), url("http://example.com/A.png"));
    }
}
