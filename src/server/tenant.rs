//! Whose request it is, where tenants must not learn of one another.
//!
//! The tenant is part of the scope of everything that is cached: of the keys of sources, of what is under way for several
//! at once, and of the names of pictures. So no answer, and no time that an answer takes, tells one tenant what another
//! has sent, nor does a worker's prefix cache, which goes by those names.

use std::str::FromStr;

use http::{HeaderMap, HeaderName, header::AUTHORIZATION};

use super::headers::API_KEY;

/// What tells tenants apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Tenancy {
    /// Nothing: all share.
    #[default]
    Shared,
    /// The credentials in `Authorization`, or in `x-api-key`, which says the same as `Bearer`.
    ApiKey,
    /// A header, set by whoever stands before the gateway. Requests without it are one tenant more.
    Header(HeaderName),
}

impl FromStr for Tenancy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Tenancy::Shared),
            "api-key" => Ok(Tenancy::ApiKey),
            _ => {
                let name = text.strip_prefix("header:").and_then(|name| name.parse().ok());
                name.map(Tenancy::Header).ok_or("must be `none`, `api-key` or `header:NAME`")
            }
        }
    }
}

impl Tenancy {
    /// The tenant of a request, in a form in which no two are alike; `None` if all share.
    pub fn of(&self, headers: &HeaderMap) -> Option<String> {
        let name = match self {
            Tenancy::Shared => return None,
            Tenancy::ApiKey => &AUTHORIZATION,
            Tenancy::Header(name) => name,
        };
        if *self == Tenancy::ApiKey && !headers.contains_key(AUTHORIZATION) {
            let keys = headers.get_all(API_KEY).iter();
            return Some(keys.map(|key| line(&[b"Bearer ", key.as_bytes()].concat())).collect());
        }
        // There may be several.
        Some(headers.get_all(name).iter().map(|value| line(value.as_bytes())).collect())
    }

    /// The tenant whose header has this value.
    pub fn named(&self, value: &str) -> Option<String> {
        (*self != Tenancy::Shared).then(|| line(value.as_bytes()))
    }
}

/// A value may be any bytes but a line break.
fn line(value: &[u8]) -> String {
    value.iter().map(|byte| char::from(*byte)).chain(['\n']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn tenants_are_told_apart_by_what_is_configured() {
        let header = Tenancy::from_str("header:x-tenant").unwrap();
        let headers = |pairs: &[(&'static str, &'static [u8])]| -> HeaderMap {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
            }
            map
        };
        let (a, b) = (headers(&[("x-tenant", b"a")]), headers(&[("x-tenant", b"b"), ("authorization", b"Bearer k")]));
        let twice = headers(&[("x-tenant", b"a"), ("x-tenant", b"b")]);
        let odd = headers(&[("x-tenant", b"\xff")]);
        let all = [&a, &b, &twice, &odd, &HeaderMap::new()].map(|headers| header.of(headers));
        for (index, tenant) in all.iter().enumerate() {
            assert!(tenant.is_some() && !all[..index].contains(tenant), "{tenant:?}");
        }
        assert_eq!(header.of(&a), header.named("a"));
        assert_eq!(Tenancy::ApiKey.of(&a), Tenancy::ApiKey.of(&HeaderMap::new()));
        assert_ne!(Tenancy::ApiKey.of(&a), Tenancy::ApiKey.of(&b));
        assert_eq!(Tenancy::ApiKey.of(&b), Tenancy::ApiKey.of(&headers(&[("x-api-key", b"k")])));
        assert_ne!(Tenancy::ApiKey.of(&a), Tenancy::ApiKey.of(&headers(&[("x-api-key", b"k")])));
        assert_eq!(Tenancy::Shared.of(&b), None);
    }

    #[test]
    fn what_is_no_tenancy_is_refused() {
        assert_eq!("none".parse(), Ok(Tenancy::Shared));
        assert_eq!("api-key".parse(), Ok(Tenancy::ApiKey));
        for text in ["", "header", "header:", "header:a b", "cookie"] {
            assert!(Tenancy::from_str(text).is_err(), "{text}");
        }
    }
}
