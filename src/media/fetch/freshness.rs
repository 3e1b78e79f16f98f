//! What a response says about how long it holds and how to ask whether it still does (RFC 9110, RFC 9111).
//!
//! Both have to be right through redirects, or a cache shows another picture: an image holds no longer than the redirects
//! that led to it, and its validators mean nothing to any other URL (two pictures may well have the tag "1").

use std::time::{Duration, SystemTime};

use http::header::{AGE, CACHE_CONTROL, DATE, ETAG, EXPIRES, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::media::source::HttpUrl;

/// What an origin can be asked with whether a picture has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validators {
    /// The entity tag, weak or strong, quotes included.
    pub etag: Option<HeaderValue>,
    /// The date of the last change, as the origin wrote it.
    pub last_modified: Option<HeaderValue>,
    /// The URL that said so, the last one of the redirects. No other one is asked with them. `None` stands for any.
    pub from: Option<Box<HttpUrl>>,
}

impl Validators {
    pub(super) fn of(url: &HttpUrl, headers: &HeaderMap) -> Self {
        // A copy: the value itself is a part of the whole head, and would keep that in memory.
        let copy = |value: &HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
        let kept = |name: HeaderName| headers.get(name).filter(|value| !value.is_empty()).and_then(copy);
        Self { etag: kept(ETAG), last_modified: kept(LAST_MODIFIED), from: Some(Box::new(url.clone())) }
    }

    /// Whether there is anything to ask with.
    pub fn is_empty(&self) -> bool {
        self.etag.is_none() && self.last_modified.is_none()
    }

    /// Memory that they take, about.
    pub fn bytes(&self) -> usize {
        let fields = [&self.etag, &self.last_modified].into_iter().flatten();
        let url = self.from.as_ref().map_or(0, |url| size_of::<HttpUrl>() + url.raw().len() + url.target().len());
        fields.map(|value| value.len()).sum::<usize>() + url
    }

    /// Whether a URL can be asked with them.
    pub(super) fn are_from(&self, url: &HttpUrl) -> bool {
        self.from.as_ref().is_none_or(|from| **from == *url)
    }

    /// Adds the conditions to a request.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        if let Some(etag) = &self.etag {
            headers.insert(IF_NONE_MATCH, etag.clone());
        }
        if let Some(date) = &self.last_modified {
            headers.insert(IF_MODIFIED_SINCE, date.clone());
        }
    }
}

/// How long a response may be used without asking again, in the origin's own words.
///
/// The gateway is a cache shared by all its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// Lifetime from the moment when the origin made the response: `s-maxage`, else `max-age`, else `Expires` less `Date`.
    /// Zero behind a temporary redirect that does not say how long it holds: the next request may be led elsewhere.
    pub max_age: Option<Duration>,
    /// How old the response already was when it came (`Age`).
    pub age: Duration,
    /// `no-store`: keep nothing.
    pub no_store: bool,
    /// `no-cache`: ask before every use.
    pub no_cache: bool,
    /// `private`: meant for one user; a shared cache keeps nothing.
    pub private: bool,
    /// `must-revalidate` or `proxy-revalidate`: never use it when stale, not even if the origin is away.
    pub must_revalidate: bool,
    /// `immutable`: will not change while fresh.
    pub immutable: bool,
}

impl Freshness {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut freshness = Self { age: seconds(text(headers, &AGE)).unwrap_or_default(), ..Self::default() };
        let mut max_age = None;
        let mut shared_max_age = None;
        let fields = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
        for directive in fields.flat_map(|field| field.split(',')) {
            let (name, argument) = directive.split_once('=').unwrap_or((directive, ""));
            match name.trim().to_ascii_lowercase().as_str() {
                "max-age" => max_age = lifetime(argument),
                "s-maxage" => shared_max_age = lifetime(argument),
                "no-store" => freshness.no_store = true,
                "no-cache" => freshness.no_cache = true,
                "private" => freshness.private = true,
                "must-revalidate" | "proxy-revalidate" => freshness.must_revalidate = true,
                "immutable" => freshness.immutable = true,
                _ => {}
            }
        }
        freshness.max_age = shared_max_age.or(max_age).or_else(|| expires(headers));
        freshness
    }

    /// What a redirect says. One that is temporary and does not say holds for this time only.
    pub(super) fn of_redirect(status: StatusCode, headers: &HeaderMap) -> Self {
        let mut freshness = Self::of(headers);
        if !matches!(status, StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT) {
            freshness.max_age.get_or_insert(Duration::ZERO);
        }
        freshness
    }

    /// What an image holds for behind a redirect: the shorter and the stricter of both.
    pub(super) fn behind(self, redirect: Self) -> Self {
        let shorter = match (self.remaining(), redirect.remaining()) {
            (_, None) => self,
            (Some(own), Some(redirect)) if own <= redirect => self,
            _ => redirect,
        };
        Self {
            max_age: shorter.max_age,
            age: shorter.age,
            no_store: self.no_store || redirect.no_store,
            no_cache: self.no_cache || redirect.no_cache,
            private: self.private || redirect.private,
            must_revalidate: self.must_revalidate || redirect.must_revalidate,
            immutable: self.immutable && redirect.immutable,
        }
    }

    /// How long from now the response may be used without asking: zero if not at all, `None` if the origin does not say.
    pub fn fresh_for(&self) -> Option<Duration> {
        if self.no_store || self.no_cache || self.private {
            return Some(Duration::ZERO);
        }
        self.remaining()
    }

    fn remaining(&self) -> Option<Duration> {
        self.max_age.map(|max_age| max_age.saturating_sub(self.age))
    }
}

/// An argument that cannot be read means "stale" (RFC 9111, 4.2.1).
fn lifetime(argument: &str) -> Option<Duration> {
    Some(seconds(Some(argument)).unwrap_or_default())
}

/// Delta-seconds, possibly in quotes; what is too large for a number means "for ever".
fn seconds(text: Option<&str>) -> Option<Duration> {
    let digits = text?.trim().trim_matches('"');
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(Duration::from_secs(digits.parse::<u32>().unwrap_or(u32::MAX).into()))
}

fn expires(headers: &HeaderMap) -> Option<Duration> {
    let expires = text(headers, &EXPIRES)?;
    let date = text(headers, &DATE).and_then(|date| httpdate::parse_http_date(date).ok());
    // A date that cannot be read, "0" above all, lies in the past.
    let expires = httpdate::parse_http_date(expires).unwrap_or(SystemTime::UNIX_EPOCH);
    Some(expires.duration_since(date.unwrap_or_else(SystemTime::now)).unwrap_or_default())
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn fresh_for(fields: &[(&'static str, &'static str)]) -> Option<u64> {
        Freshness::of(&headers(fields)).fresh_for().map(|duration| duration.as_secs())
    }

    #[test]
    fn lifetimes_follow_rfc_9111() {
        assert_eq!(fresh_for(&[]), None);
        assert_eq!(fresh_for(&[("cache-control", "max-age=60")]), Some(60));
        assert_eq!(fresh_for(&[("cache-control", "public, MAX-AGE=\"60\"")]), Some(60));
        assert_eq!(fresh_for(&[("cache-control", "max-age=60, s-maxage=10")]), Some(10));
        assert_eq!(fresh_for(&[("cache-control", "max-age=60"), ("age", "50")]), Some(10));
        assert_eq!(fresh_for(&[("cache-control", "max-age=60"), ("age", "70")]), Some(0));
        assert_eq!(fresh_for(&[("cache-control", "max-age=-1")]), Some(0));
        assert_eq!(fresh_for(&[("cache-control", "max-age=99999999999999")]), Some(u32::MAX.into()));
        assert_eq!(fresh_for(&[("cache-control", "no-store, max-age=60")]), Some(0));
        assert_eq!(fresh_for(&[("cache-control", "private, max-age=60")]), Some(0));
        assert_eq!(fresh_for(&[("cache-control", "no-cache")]), Some(0));
        assert_eq!(fresh_for(&[("expires", "0")]), Some(0));
        assert_eq!(
            fresh_for(&[("date", "Thu, 01 Jan 2026 00:00:00 GMT"), ("expires", "Thu, 01 Jan 2026 00:01:00 GMT")]),
            Some(60)
        );
    }

    #[test]
    fn an_image_holds_no_longer_than_the_redirects_to_it() {
        let behind = |image: &'static str, status: u16, redirect: &'static str| {
            let of = |value| headers(&[("cache-control", value)]);
            let redirect = Freshness::of_redirect(StatusCode::from_u16(status).unwrap(), &of(redirect));
            Freshness::of(&of(image)).behind(redirect).fresh_for().map(|duration| duration.as_secs())
        };
        for temporary in [302, 303, 307] {
            assert_eq!(behind("max-age=60", temporary, ""), Some(0));
            assert_eq!(behind("", temporary, ""), Some(0));
        }
        for permanent in [301, 308] {
            assert_eq!(behind("max-age=60", permanent, ""), Some(60));
            assert_eq!(behind("", permanent, ""), None);
        }
        assert_eq!(behind("max-age=60", 302, "max-age=10"), Some(10));
        assert_eq!(behind("max-age=10", 302, "max-age=60"), Some(10));
        assert_eq!(behind("", 302, "max-age=60"), Some(60));
        assert_eq!(behind("max-age=60", 301, "no-store"), Some(0));
        assert_eq!(behind("private", 301, "max-age=60"), Some(0));
    }

    #[test]
    fn validators_go_back_as_they_came() {
        let fields = [("etag", "W/\"a b\""), ("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")];
        let url = HttpUrl::parse("http://a.example/x").unwrap();
        let validators = Validators::of(&url, &headers(&fields));
        assert!(validators.are_from(&url));
        assert!(!validators.are_from(&HttpUrl::parse("http://a.example/y").unwrap()));
        let mut asked = HeaderMap::new();
        validators.ask(&mut asked);
        assert_eq!(asked[IF_NONE_MATCH], "W/\"a b\"");
        assert_eq!(asked[IF_MODIFIED_SINCE], "Thu, 01 Jan 2026 00:00:00 GMT");
        assert!(Validators::of(&url, &headers(&[("etag", "")])).is_empty());
    }
}
