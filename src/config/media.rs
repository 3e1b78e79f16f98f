//! Settings of fetching and decoding together, as `mediagate inspect` takes them, too.

use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;

use super::{ConfigError, DecodingArgs, FetchingArgs, budgets, usize_of};
use crate::{
    media::{decode::DecodeLimits, fetch::FetchConfig, loader::MediaConfig},
    memory::Layout,
};

/// What images may be, and where they may come from.
#[derive(Debug, Args)]
pub struct MediaArgs {
    #[command(flatten)]
    pub fetching: FetchingArgs,
    #[command(flatten)]
    pub decoding: DecodingArgs,
}

impl MediaArgs {
    pub fn config(&self) -> MediaConfig {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let budget = |configured: Option<ByteSize>| usize_of(configured.unwrap_or_else(budgets::default_eighth));
        let scratch_bytes = budget(self.decoding.media_scratch_budget_bytes);
        MediaConfig {
            fetch: FetchConfig {
                allow_hosts: self.fetching.media_allow_host.clone(),
                allow_cidrs: self.fetching.media_allow_cidr.clone(),
                allow_ports: self.fetching.media_allow_port.iter().copied().collect(),
                allowed_domains: self.fetching.media_allowed_domain.clone(),
                max_bytes: usize_of(self.fetching.media_max_bytes),
                max_redirects: self.fetching.media_max_redirects,
                max_retries: self.fetching.media_max_retries,
                connect_timeout: Duration::from_millis(self.fetching.media_connect_timeout_ms),
                first_byte_timeout: Duration::from_millis(self.fetching.media_first_byte_timeout_ms),
                total_timeout: Duration::from_millis(self.fetching.media_timeout_ms),
                max_concurrent: self.fetching.media_max_concurrent,
                max_concurrent_per_host: self.fetching.media_max_concurrent_per_host,
                ca_files: self.fetching.media_ca_file.clone(),
                user_agent: self.fetching.media_user_agent.clone(),
                max_header_bytes: usize_of(self.fetching.media_max_header_bytes),
                max_concurrent_lookups: self.fetching.media_max_concurrent_lookups,
                max_idle_connections: self.fetching.media_max_idle_connections,
                idle_timeout: Duration::from_millis(self.fetching.media_idle_timeout_ms),
            },
            decode: DecodeLimits {
                max_pixels: self.decoding.media_max_pixels,
                max_side: self.decoding.media_max_side,
                // An eighth is for what resizing keeps for the next picture.
                max_scratch_bytes: (scratch_bytes / 8 * 7).min(usize_of(self.decoding.media_max_scratch_bytes)),
                max_scan_pixels: self.decoding.media_max_scan_pixels,
                max_metadata_bytes: usize_of(self.decoding.media_max_metadata_bytes),
            },
            encoded_bytes: budget(self.fetching.media_encoded_budget_bytes),
            scratch_bytes,
            jpeg_scaling: self.decoding.media_jpeg_scaling,
            decoders: self.decoding.media_decoders.unwrap_or_else(cores),
            fresh: Duration::from_millis(self.fetching.media_fresh_ms),
            fresh_min: Duration::from_millis(self.fetching.media_fresh_min_ms),
            fresh_max: Duration::from_millis(self.fetching.media_fresh_max_ms),
            negative: Duration::from_millis(self.fetching.media_negative_ms),
        }
    }

    pub(super) fn validate(&self, arena: Option<Layout>) -> Result<(), ConfigError> {
        if usize_of(self.fetching.media_max_bytes) > self.config().encoded_bytes / 2 {
            return Err(ConfigError::Invalid(
                "--media-max-bytes is above half of --media-encoded-budget-bytes, so that two images could not be fetched for \
                 one request"
                    .into(),
            ));
        }
        if self.decoding.media_max_pixels == 0 || self.decoding.media_max_side == 0 {
            return Err(ConfigError::Invalid(
                "--media-max-pixels and --media-max-side are at least 1: to take no images, leave out --frontend-decoding"
                    .into(),
            ));
        }
        if self.fetching.media_fresh_min_ms > self.fetching.media_fresh_max_ms {
            return Err(ConfigError::Invalid("--media-fresh-min-ms is above --media-fresh-max-ms".into()));
        }
        if let Some(arena) = arena.filter(|arena| !arena.is_possible()) {
            return Err(ConfigError::Invalid(format!(
                "an arena of {} bytes has no room for an image of --media-max-pixels {} ({} bytes) beside smaller ones: \
                 raise --arena-bytes, or ulimit -l (LimitMEMLOCK) if that is what bounds it, or lower --media-max-pixels",
                arena.bytes,
                self.decoding.media_max_pixels,
                self.decoding.media_max_pixels.saturating_mul(3),
            )));
        }
        Ok(())
    }
}
