//! API keys of clients.
//!
//! A key file has one key a line, and after it, if the key may see debugging headers, the word `debug`. Blank lines and
//! lines that begin with `#` do not count. Keys are kept and compared as hashes, so comparing tells nothing about them.

use std::collections::HashMap;

use http::{HeaderMap, StatusCode, header::AUTHORIZATION};

use super::{answer::Refusal, headers::API_KEY};

/// The keys that are accepted. None: everybody is let in.
#[derive(Debug, Clone, Default)]
pub struct ApiKeys {
    by_hash: Option<HashMap<blake3::Hash, Rights>>,
}

/// What a client may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights {
    /// May see timings and routing, which tell what others have cached.
    pub debug: bool,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ApiKeysError {
    #[error("the API key file has no keys")]
    Empty,
    #[error("line {line} of the API key file: after the key only the word `debug` may stand")]
    Word { line: usize },
    #[error("line {line} of the API key file: keys have at least 8 printable ASCII characters")]
    Key { line: usize },
}

impl ApiKeys {
    pub fn parse(text: &str) -> Result<Self, ApiKeysError> {
        let mut by_hash = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split_ascii_whitespace();
            let Some(key) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            if key.len() < 8 || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(ApiKeysError::Key { line: index + 1 });
            }
            let debug = match words.next() {
                None => false,
                Some("debug") if words.next().is_none() => true,
                Some(_) => return Err(ApiKeysError::Word { line: index + 1 }),
            };
            by_hash.insert(blake3::hash(key.as_bytes()), Rights { debug });
        }
        if by_hash.is_empty() { Err(ApiKeysError::Empty) } else { Ok(ApiKeys { by_hash: Some(by_hash) }) }
    }

    /// Whether clients need a key.
    pub fn required(&self) -> bool {
        self.by_hash.is_some()
    }

    /// Who is asking.
    pub fn check(&self, headers: &HeaderMap) -> Result<Rights, Refusal> {
        let Some(by_hash) = &self.by_hash else { return Ok(Rights { debug: true }) };
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer =
            given.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        // Anthropic's clients have a header of their own.
        let api_key = || headers.get(API_KEY).and_then(|value| value.to_str().ok());
        bearer
            .map(|(_, key)| key)
            .or_else(api_key)
            .and_then(|key| by_hash.get(&blake3::hash(key.trim().as_bytes())))
            .copied()
            .ok_or_else(|| {
                Refusal::new(
                    StatusCode::UNAUTHORIZED,
                    "invalid_api_key",
                    "A valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY.",
                )
            })
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
        assert_eq!(ApiKeys::default().check(&HeaderMap::new()).unwrap(), Rights { debug: true });
    }

    #[test]
    fn only_listed_keys_pass_and_only_marked_ones_may_debug() {
        let keys = ApiKeys::parse("# ours\n\nfirst-key-1\nsecond-key-2 debug\n").unwrap();
        assert_eq!(keys.check(&with("Bearer first-key-1")).unwrap(), Rights { debug: false });
        assert_eq!(keys.check(&with("bearer second-key-2")).unwrap(), Rights { debug: true });
        for bad in ["Bearer other-key", "first-key-1", "Basic first-key-1", "Bearer "] {
            assert_eq!(keys.check(&with(bad)).unwrap_err().status, StatusCode::UNAUTHORIZED, "{bad}");
        }
        assert!(keys.check(&HeaderMap::new()).is_err());
        let anthropics = |key| HeaderMap::from_iter([(API_KEY, http::HeaderValue::from_static(key))]);
        assert_eq!(keys.check(&anthropics("second-key-2")).unwrap(), Rights { debug: true });
        assert!(keys.check(&anthropics("other-key")).is_err());
    }

    #[test]
    fn a_file_that_would_let_nobody_or_anybody_in_is_refused() {
        assert_eq!(ApiKeys::parse("\n# none\n").unwrap_err(), ApiKeysError::Empty);
        assert_eq!(ApiKeys::parse("long-enough admin").unwrap_err(), ApiKeysError::Word { line: 1 });
        assert_eq!(ApiKeys::parse("short").unwrap_err(), ApiKeysError::Key { line: 1 });
    }
}
