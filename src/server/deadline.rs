//! How long a request may take until the first byte of its answer: as the server says, or less, as the client says in
//! `x-request-timeout`. It covers every stage: the body, fetching, waiting for memory, all attempts on workers.

use std::time::Duration;

use http::{HeaderMap, HeaderName, StatusCode};
use tokio::time::{Instant, timeout_at};

use super::answer::Refusal;

/// In seconds, such as `30` or `2.5`.
pub const REQUEST_TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout");

/// See the module's documentation.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
    /// Whether the client chose it.
    chosen: bool,
}

impl Deadline {
    /// From now on.
    pub fn of(headers: &HeaderMap, most: Duration) -> Result<Self, Refusal> {
        let asked = match headers.get(REQUEST_TIMEOUT) {
            None => None,
            Some(value) => Some(value.to_str().ok().and_then(seconds).ok_or_else(|| {
                let message = "The header x-request-timeout must be a number of seconds above 0, such as 30 or 2.5.";
                Refusal::new(StatusCode::BAD_REQUEST, "invalid_request_timeout", message)
            })?),
        };
        let limit = asked.map_or(most, |asked| asked.min(most));
        Ok(Deadline { at: Instant::now() + limit, limit, chosen: limit < most })
    }

    /// When the server itself gives up; `None` where the client's own limit comes first, which says nothing of a worker.
    pub fn of_server(&self) -> Option<Instant> {
        (!self.chosen).then_some(self.at)
    }

    /// The outcome of `work`, unless the deadline comes first: then the work is dropped.
    pub async fn within<T>(&self, work: impl Future<Output = Result<T, Box<Refusal>>>) -> Result<T, Box<Refusal>> {
        match timeout_at(self.at, work).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let message = format!("No answer within {} seconds.", self.limit.as_secs_f64());
                Err(Box::new(Refusal::new(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", message)))
            }
        }
    }
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    // A day, so that no sum overflows.
    (seconds > 0.0).then(|| Duration::from_secs_f64(seconds.min(86_400.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const MOST: Duration = Duration::from_secs(60);

    fn limit(value: &str) -> Option<Duration> {
        let headers = HeaderMap::from_iter([(REQUEST_TIMEOUT, HeaderValue::from_str(value).unwrap())]);
        Deadline::of(&headers, MOST).ok().map(|deadline| deadline.limit)
    }

    #[test]
    fn a_client_can_ask_for_less_than_the_server_gives_and_not_for_more() {
        assert_eq!(Deadline::of(&HeaderMap::new(), MOST).unwrap().limit, MOST);
        for (value, expected) in
            [("30", 30.0), ("2.5", 2.5), (" 1 ", 1.0), ("600", 60.0), ("1e300", 60.0), ("inf", 60.0)]
        {
            assert_eq!(limit(value), Some(Duration::from_secs_f64(expected)), "{value}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for value in ["", "0", "-1", "nan", "5s", "1,5"] {
            assert_eq!(limit(value), None, "{value}");
        }
    }

    #[tokio::test]
    async fn work_that_takes_too_long_is_dropped() {
        let deadline = Deadline::of(&HeaderMap::new(), Duration::from_millis(50)).unwrap();
        assert_eq!(deadline.within(async { Ok(1) }).await.unwrap(), 1);
        let refusal = deadline.within(std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert_eq!((refusal.status.as_u16(), refusal.code), (504, "deadline_exceeded"));
    }
}
