//! How long to wait before the next attempt.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use rand::Rng;

/// A random time (full jitter), up to 200 ms before the first retry and twice as much before each one after, at most 2 s:
/// gateways that failed together do not come back together.
pub(super) fn back_off(retries: u32) -> Duration {
    const FIRST_MS: u64 = 200;
    const MOST_MS: u64 = 2000;

    let most = FIRST_MS.saturating_mul(1 << retries.min(10)).min(MOST_MS);
    Duration::from_millis(rand::rng().random_range(0..=most))
}

/// `Retry-After`, in seconds or as a date. What cannot be read counts as absent.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_grows_and_stays_bounded() {
        for retries in [0, 1, 5, u32::MAX] {
            assert!(back_off(retries) <= Duration::from_secs(2));
        }
        assert!((0..100).all(|_| back_off(0) <= Duration::from_millis(200)));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let of = |value: &'static str| {
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, http::HeaderValue::from_static(value))]))
        };
        assert_eq!(of("3"), Some(Duration::from_secs(3)));
        assert_eq!(of("Thu, 01 Jan 1970 00:00:00 GMT"), Some(Duration::ZERO));
        assert!(of("Fri, 31 Dec 9999 23:59:59 GMT").unwrap() > Duration::from_secs(1 << 30));
        assert_eq!(of("soon"), None);
        assert_eq!(of("-1"), None);
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
