//! Fetching images from URLs that strangers send.
//!
//! A fetch is made of attempts, an attempt of hops, and a hop of the steps below, in this order. Each file knows one of
//! them; `hop` puts them together, `attempts` is the loop around.
//!
//! 1. `policy` judges the URL: domain, port, kind of host.
//! 2. `turns` gives the right to have one more request under way.
//! 3. `pool` may have a connection to that origin. If not, `resolver` finds all addresses of the name, `policy` judges all
//!    of them by `address`, and `connect` dials one that passed. A name is resolved and judged anew for each connection, and
//!    a connection serves the scheme, host and port that it was made for: a name that changes its mind gains nothing.
//! 4. The request goes out: GET, no cookies, no credentials, no referrer, no proxy of the environment.
//! 5. A `gate` may make a success wait until there is memory for what its head announces.
//! 6. A redirect becomes the URL of the next hop (`redirect`) and starts at step 1. An image is counted while it is read
//!    (`body`), and again while a content coding is undone that nobody asked for (`coding`).
//!
//! `trail` tells whoever asks which URLs it went to. One time limit covers all of it, waiting for turns and resolving
//! included, waiting at the gate not. Dropping the future of a fetch closes its connection at once.
//!
//! # Why hyper and not reqwest
//!
//! reqwest takes a `url::Url`, which is not what the client wrote: dot segments vanish, `%2e%2e` counts as `..`, a quote in
//! a query becomes `%27` (the test `the_url_crate_changes_what_was_written` shows it). A signature over the original then fails. It also dials IP
//! literals without asking its resolver, and keeps idle connections per host without a bound in all. hyper's client
//! connection is the part of it that is needed here; what is around it, is policy.
//!
//! HTTP/1.1 is enough: every image host speaks it, one response at a time is what is wanted, closing the socket stops a
//! sender at once, and the attacks that HTTP/2's multiplexing made possible have no place to happen.

mod address;
mod allow;
mod attempts;
mod body;
mod coding;
mod config;
mod connect;
mod error;
mod freshness;
mod gate;
mod hop;
mod policy;
mod pool;
mod redirect;
mod resolver;
mod retry;
mod trail;
mod turns;

use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

pub use address::{Refusal, judge};
pub use allow::Cidr;
pub use config::{FetchConfig, FetchConfigError};
pub use error::{Cause, FetchError};
pub use freshness::{Freshness, Validators};
pub use gate::{Announced, Gate};
pub use policy::PolicyRefusal;
pub use resolver::{Answer, Resolve};
pub use trail::Trail;

use self::attempts::Outcome;
use self::connect::Connector;
use self::hop::Want;
use self::policy::Policy;
use self::pool::Pool;
use self::turns::Turns;
use crate::media::source::HttpUrl;

/// Fetches images within a policy and limits. One for the whole gateway.
pub struct Fetcher {
    config: FetchConfig,
    user_agent: HeaderValue,
    policy: Arc<Policy>,
    connector: Connector,
    pool: Pool,
    turns: Turns,
}

/// An image as its origin has it: encoded bytes, not yet known to be an image.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The body, without any content coding.
    pub bytes: Bytes,
    /// What the origin can be asked with whether it has changed.
    pub validators: Validators,
    /// How long it may be used without asking.
    pub freshness: Freshness,
    /// Bytes of the body on the wire: more or fewer than `bytes.len()` if there was a content coding.
    pub wire_bytes: usize,
    /// Redirects on the way to it.
    pub redirects: u32,
    /// Attempts that failed before.
    pub retries: u32,
    /// Whether `bytes` is all of it. Always so, but for [`Fetcher::fetch_prefix`].
    pub is_whole: bool,
    /// Whether the origin sent no more than was asked for: it knows ranges. Never so, but for [`Fetcher::fetch_prefix`].
    pub is_ranged: bool,
}

/// What became of an image that is already known.
#[derive(Clone, Debug)]
pub enum Revalidated {
    /// It is another one now, or the origin does not say. The new one replaces it.
    Changed(Fetched),
    /// It is the same one, and holds for this much longer.
    NotModified(Freshness),
}

impl Fetcher {
    /// A fetcher that resolves names as the system does.
    ///
    /// # Errors
    ///
    /// A setting that makes no sense, or a file of certificates that cannot be read.
    pub fn new(config: &FetchConfig) -> Result<Self, FetchConfigError> {
        let resolver = resolver::SystemResolver::new(config.max_concurrent_lookups);
        Self::with_resolver(config, Arc::new(resolver))
    }

    /// A fetcher with a resolver of the caller's. Its answers are judged like any other's.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_resolver(config: &FetchConfig, resolver: Arc<dyn Resolve>) -> Result<Self, FetchConfigError> {
        config.validate()?;
        let policy = Arc::new(Policy::new(config)?);
        Ok(Self {
            user_agent: config.user_agent_header()?,
            connector: Connector::new(config, Arc::clone(&policy), resolver)?,
            policy,
            pool: Pool::new(config.max_idle_connections, config.idle_timeout),
            turns: Turns::new(config.max_concurrent, config.max_concurrent_per_host),
            config: config.clone(),
        })
    }

    /// Fetches an image. Dropping the future cancels the fetch and closes its connection.
    ///
    /// # Errors
    ///
    /// [`FetchError`]. A refusal by the policy is final and comes before any connection to the refused host.
    pub async fn fetch(&self, url: &HttpUrl) -> Result<Fetched, FetchError> {
        self.unconditionally(url, Want::Image, None).await
    }

    /// As [`fetch`](Self::fetch), and tells which URLs were asked for, whatever comes of it.
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_with_trail(&self, url: &HttpUrl, trail: &Trail) -> Result<Fetched, FetchError> {
        self.unconditionally(url, Want::Image, Some(trail)).await
    }

    /// Fetches an image unless it is still the one that `known` describes.
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_if_changed(&self, url: &HttpUrl, known: &Validators) -> Result<Revalidated, FetchError> {
        self.revalidate(url, Some(known), None).await
    }

    /// The same, whether anything is known or not, through a gate: it is asked before the body is read.
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch), and what the gate says.
    pub async fn fetch_through(
        &self,
        gate: &dyn Gate,
        url: &HttpUrl,
        known: Option<&Validators>,
    ) -> Result<Revalidated, FetchError> {
        self.revalidate(url, known, Some(gate)).await
    }

    async fn revalidate(
        &self,
        url: &HttpUrl,
        known: Option<&Validators>,
        gate: Option<&dyn Gate>,
    ) -> Result<Revalidated, FetchError> {
        let known = known.filter(|known| !known.is_empty());
        Ok(match self.run(url, known.map_or(Want::Image, Want::ImageUnless), gate, None).await? {
            Outcome::Image(fetched) => Revalidated::Changed(fetched),
            Outcome::NotModified(freshness) => Revalidated::NotModified(freshness),
        })
    }

    /// Fetches the first `most_bytes` of an image at most, for whoever needs no more than its header. The origin is asked
    /// for that range; if it sends everything, it is stopped.
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_prefix(&self, url: &HttpUrl, most_bytes: NonZeroUsize) -> Result<Fetched, FetchError> {
        self.unconditionally(url, Want::Prefix(most_bytes), None).await
    }

    async fn unconditionally(
        &self,
        url: &HttpUrl,
        want: Want<'_>,
        trail: Option<&Trail>,
    ) -> Result<Fetched, FetchError> {
        match self.run(url, want, None, trail).await? {
            Outcome::Image(fetched) => Ok(fetched),
            // A hop makes this of a 304 only if it was asked for.
            Outcome::NotModified(_) => Err(FetchError::OriginRefused(StatusCode::NOT_MODIFIED)),
        }
    }

    /// The largest body that is fetched.
    pub fn max_bytes(&self) -> usize {
        self.config.max_bytes
    }

    /// Whether the policy allows the URL and all addresses that its host has now. Nothing is dialled.
    ///
    /// This is all that can be said for a URL that somebody else will fetch: it holds for the first hop, and only as long as
    /// the name keeps its addresses.
    ///
    /// # Errors
    ///
    /// [`FetchError::Refused`], or what keeps the name from being resolved.
    pub async fn check(&self, url: &HttpUrl) -> Result<(), FetchError> {
        self.policy.check_url(url)?;
        self.connector.vetted(url).await.map(drop)
    }
}
