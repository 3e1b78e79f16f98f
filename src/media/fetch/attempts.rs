//! The loop around hops: redirects inside an attempt, attempts inside a fetch, all inside one time limit.

use std::pin::pin;

use tokio::time::{Instant, sleep, timeout_at};

use super::error::FetchError;
use super::freshness::Freshness;
use super::gate::{Gate, Passage};
use super::hop::{Hop, Want};
use super::retry::back_off;
use super::{Fetched, Fetcher, Trail};
use crate::media::source::HttpUrl;

/// What a fetch came to.
pub(super) enum Outcome {
    Image(Fetched),
    NotModified(Freshness),
}

impl Fetcher {
    pub(super) async fn run(
        &self,
        url: &HttpUrl,
        want: Want<'_>,
        gate: Option<&dyn Gate>,
        trail: Option<&Trail>,
    ) -> Result<Outcome, FetchError> {
        let passage = Passage::new(gate, self.config.total_timeout);
        let mut attempts = pin!(self.attempts(url, want, &passage, trail));
        loop {
            let outcome = timeout_at(passage.deadline(), &mut attempts).await;
            match outcome {
                Ok(outcome) => return outcome,
                // It waits at the gate, or did.
                Err(_) if Instant::now() < passage.deadline() => {}
                Err(_) => return Err(FetchError::TotalTimeout(self.config.total_timeout)),
            }
        }
    }

    /// Tries again what is transient, if there is time for it. An attempt starts at the first URL: a redirect may lead
    /// elsewhere next time.
    async fn attempts(
        &self,
        url: &HttpUrl,
        want: Want<'_>,
        passage: &Passage<'_>,
        trail: Option<&Trail>,
    ) -> Result<Outcome, FetchError> {
        let mut retries = 0;
        loop {
            let error = match self.follow(url, want, passage, retries, trail).await {
                Err(error) if error.is_transient() && retries < self.config.max_retries => error,
                result => return result,
            };
            let pause = back_off(retries).max(error.retry_after().unwrap_or_default());
            if pause >= passage.deadline().saturating_duration_since(Instant::now()) {
                // It would end as a timeout, and say less.
                return Err(error);
            }
            tracing::debug!(%url, %error, ?pause, "fetching again");
            sleep(pause).await;
            retries += 1;
        }
    }

    async fn follow(
        &self,
        url: &HttpUrl,
        want: Want<'_>,
        passage: &Passage<'_>,
        retries: u32,
        trail: Option<&Trail>,
    ) -> Result<Outcome, FetchError> {
        let mut url = url.clone();
        let mut redirects = 0;
        // What the redirects so far say about how long they hold.
        let mut path: Option<Freshness> = None;
        let behind =
            |freshness: Freshness, path: Option<Freshness>| path.map_or(freshness, |path| freshness.behind(path));
        loop {
            if let Some(trail) = trail {
                trail.add(&url);
            }
            let hop = self.hop(&url, want, passage).await.inspect_err(|error| {
                if let FetchError::Refused(refusal) = error {
                    tracing::info!(%url, %refusal, redirects, "the fetch policy refuses an image");
                }
            });
            match hop? {
                Hop::Redirect(..) if redirects == self.config.max_redirects => {
                    return Err(FetchError::TooManyRedirects { max: redirects });
                }
                Hop::Redirect(next, freshness) => {
                    url = next;
                    redirects += 1;
                    path = Some(behind(freshness, path));
                }
                Hop::NotModified(freshness) => return Ok(Outcome::NotModified(behind(freshness, path))),
                Hop::Image(fetched) => {
                    let freshness = behind(fetched.freshness, path);
                    return Ok(Outcome::Image(Fetched { redirects, retries, freshness, ..fetched }));
                }
            }
        }
    }
}
