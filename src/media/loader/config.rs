//! What loading may use, and how long what it found holds.

use std::time::Duration;

use crate::media::{
    decode::DecodeLimits,
    fetch::{FetchConfig, Freshness},
};

/// What a load may use.
#[derive(Debug, Clone)]
pub struct MediaConfig {
    pub fetch: FetchConfig,
    pub decode: DecodeLimits,
    /// Fetched files that are held at once, in all.
    pub encoded_bytes: usize,
    /// Memory beyond the pixels themselves that decoders may use at once, in all.
    pub scratch_bytes: usize,
    /// Whether a JPEG that is to be resized is decoded at a fraction of its size, which changes its pixels a little.
    pub jpeg_scaling: bool,
    /// Threads that decode, but for [one](Self::decode_threads).
    pub decoders: usize,
    /// How long a URL's picture is used without asking again, where the origin does not say.
    pub fresh: Duration,
    /// The shortest that a picture is used without asking again, whatever its origin says, unless that is "keep nothing".
    pub fresh_min: Duration,
    /// The longest that an origin's own max-age is believed.
    pub fresh_max: Duration,
    /// How long the failure of an origin is told again without asking it; zero for not at all.
    pub negative: Duration,
}

/// Whether and how long what a source gave may be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Not at all, nor by others who ask at the same time: `no-store` or `private`.
    No,
    /// For this long without asking.
    For(Duration),
    /// A data: URI is what it is.
    Forever,
}

impl MediaConfig {
    /// What an origin said, within our own bounds.
    pub(super) fn keep(&self, said: &Freshness) -> Keep {
        if said.no_store || said.private {
            return Keep::No;
        }
        let fresh = said.fresh_for().unwrap_or(self.fresh);
        Keep::For(fresh.max(self.fresh_min).min(self.fresh_max))
    }

    /// One more than decode as a rule: see [`pool`](super::pool).
    pub fn decode_threads(&self) -> usize {
        self.decoders.max(1) + 1
    }

    /// What one request may hold of the budget of files while it does not know their sizes: a quarter, so that a request for
    /// many does not make all others wait for its origins, but room for the largest file beside those it has already.
    pub(super) fn request_share_bytes(&self) -> usize {
        (self.fetch.max_bytes.saturating_mul(2)).max(self.encoded_bytes / 4).min(self.encoded_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_origins_say_is_believed_within_bounds() {
        let config = MediaConfig {
            fetch: FetchConfig::default(),
            decode: DecodeLimits::default(),
            encoded_bytes: 1 << 30,
            scratch_bytes: 1 << 30,
            jpeg_scaling: false,
            decoders: 1,
            fresh: Duration::from_secs(60),
            fresh_min: Duration::from_secs(2),
            fresh_max: Duration::from_secs(3600),
            negative: Duration::from_secs(2),
        };
        let aged = |max_age, age| Freshness {
            max_age: Some(Duration::from_secs(max_age)),
            age: Duration::from_secs(age),
            ..Freshness::default()
        };
        let secs = |secs| Keep::For(Duration::from_secs(secs));
        assert_eq!(config.keep(&Freshness::default()), secs(60));
        assert_eq!(config.keep(&aged(100, 30)), secs(70));
        assert_eq!(config.keep(&aged(100, 200)), secs(2));
        assert_eq!(config.keep(&aged(1_000_000, 0)), secs(3600));
        assert_eq!(config.keep(&Freshness { no_cache: true, ..Freshness::default() }), secs(2));
        for never in [Freshness { no_store: true, ..aged(100, 0) }, Freshness { private: true, ..aged(100, 0) }] {
            assert_eq!(config.keep(&never), Keep::No);
        }
    }
}
