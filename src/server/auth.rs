//! API keys of clients.
//!
//! A key file has one key a line, and after it what it may beyond the API: `debug`, to see debugging headers; `admin`, to
//! reach what operators reach where that is on the public listener. Blank lines and lines that begin with `#` do not
//! count. The file is read again on a reload.
//!
//! Keys are kept and compared as blake3 hashes, which blake3 compares in constant time, and of which nobody can choose a
//! part: how long a comparison takes tells nothing about a key.

use std::collections::HashMap;

use arc_swap::ArcSwapOption;

use http::{HeaderMap, StatusCode, header::AUTHORIZATION};

use super::{answer::Refusal, headers::API_KEY};

/// The keys that are accepted. None: everybody is let in.
#[derive(Debug, Default)]
pub struct ApiKeys {
    by_hash: ArcSwapOption<HashMap<blake3::Hash, Rights>>,
}

/// What a client may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights {
    /// May see timings and routing, which tell what others have cached.
    pub debug: bool,
    /// May administrate over the public listener.
    pub admin: bool,
}

/// What is wrong with a key file. No key is shown.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ApiKeysError {
    #[error("the API key file has no keys")]
    Empty,
    #[error("line {line} of the API key file: after the key only the words `debug` and `admin` may stand")]
    Word { line: usize },
    #[error("line {line} of the API key file: keys have at least 8 printable ASCII characters")]
    Key { line: usize },
}

impl ApiKeys {
    /// Reads a key file.
    pub fn parse(text: &str) -> Result<Self, ApiKeysError> {
        let mut by_hash = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split_ascii_whitespace();
            let Some(key) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            if key.len() < 8 || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(ApiKeysError::Key { line: index + 1 });
            }
            let mut rights = Rights::default();
            for word in words {
                match word {
                    "debug" => rights.debug = true,
                    "admin" => rights.admin = true,
                    _ => return Err(ApiKeysError::Word { line: index + 1 }),
                }
            }
            by_hash.insert(blake3::hash(key.as_bytes()), rights);
        }
        if by_hash.is_empty() {
            return Err(ApiKeysError::Empty);
        }
        Ok(ApiKeys { by_hash: ArcSwapOption::from_pointee(by_hash) })
    }

    /// Whether clients need a key.
    pub fn required(&self) -> bool {
        self.by_hash.load().is_some()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_hash.load().as_ref().map_or(0, |keys| keys.len())
    }

    /// Takes over other keys, for requests from now on.
    pub fn replace(&self, others: ApiKeys) {
        self.by_hash.store(others.by_hash.into_inner());
    }

    /// Who is asking.
    pub fn check(&self, headers: &HeaderMap) -> Result<Rights, Refusal> {
        let by_hash = self.by_hash.load();
        let Some(by_hash) = &*by_hash else { return Ok(Rights { debug: true, admin: false }) };
        let rights = key(headers).and_then(|key| by_hash.get(&blake3::hash(key.as_bytes()))).copied();
        rights.ok_or_else(|| {
            let message = "A valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY.";
            Refusal::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
        })
    }
}

/// The key that a client shows, as OpenAI's clients do or as Anthropic's do.
fn key(headers: &HeaderMap) -> Option<&str> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match text(AUTHORIZATION).and_then(|value| value.split_once(' ')) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => Some(key.trim()),
        _ => text(API_KEY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(authorization: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, http::HeaderValue::from_static(authorization))])
    }

    #[test]
    fn without_a_file_everybody_is_let_in() {
        assert_eq!(ApiKeys::default().check(&HeaderMap::new()).unwrap(), Rights { debug: true, admin: false });
    }

    #[test]
    fn only_listed_keys_pass_and_only_marked_ones_may_debug() {
        let keys = ApiKeys::parse("# ours\n\nfirst-key-1\nsecond-key-2 debug\nthird-key-3 admin debug\n").unwrap();
        assert_eq!(keys.check(&with("Bearer first-key-1")).unwrap(), Rights::default());
        assert_eq!(keys.check(&with("bearer second-key-2")).unwrap(), Rights { debug: true, admin: false });
        assert_eq!(keys.check(&with("Bearer third-key-3")).unwrap(), Rights { debug: true, admin: true });
        let anthropic = HeaderMap::from_iter([(API_KEY, http::HeaderValue::from_static("first-key-1"))]);
        assert!(keys.check(&anthropic).is_ok());
        for bad in ["Bearer other-key", "first-key-1", "Basic first-key-1", "Bearer "] {
            assert_eq!(keys.check(&with(bad)).unwrap_err().status, StatusCode::UNAUTHORIZED, "{bad}");
        }
        assert!(keys.check(&HeaderMap::new()).is_err());
    }

    #[test]
    fn replaced_keys_count_from_the_next_request_on() {
        let keys = ApiKeys::parse("first-key-1").unwrap();
        keys.replace(ApiKeys::parse("second-key-2").unwrap());
        assert!(keys.check(&with("Bearer first-key-1")).is_err() && keys.check(&with("Bearer second-key-2")).is_ok());
        assert_eq!(keys.count(), 1);
    }

    #[test]
    fn a_file_that_would_let_nobody_or_anybody_in_is_refused() {
        assert_eq!(ApiKeys::parse("\n# none\n").unwrap_err(), ApiKeysError::Empty);
        assert_eq!(ApiKeys::parse("long-enough root").unwrap_err(), ApiKeysError::Word { line: 1 });
        assert_eq!(ApiKeys::parse("short").unwrap_err(), ApiKeysError::Key { line: 1 });
    }
}
