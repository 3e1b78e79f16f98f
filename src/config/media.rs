//! Settings of images: where they may come from, what they may be, what they may cost.

use std::{path::PathBuf, time::Duration};

use bytesize::ByteSize;
use clap::{ArgAction, Args};

use super::{ConfigError, budgets, size, usize_of};
use crate::{
    media::{
        decode::DecodeLimits,
        fetch::{Cidr, FetchConfig},
        loader::MediaConfig,
    },
    memory::Layout,
};

/// What images may be, and where they may come from.
#[derive(Debug, Args)]
pub struct MediaArgs {
    /// Network whose hosts may be fetched from although it is not public (repeatable)
    #[arg(long, env = "MEDIAGATE_MEDIA_ALLOW_CIDR", value_name = "CIDR", value_delimiter = ',')]
    pub media_allow_cidr: Vec<Cidr>,
    /// Host, name or address, that may be fetched from although it is not public (repeatable)
    #[arg(long, env = "MEDIAGATE_MEDIA_ALLOW_HOST", value_name = "NAME", value_delimiter = ',')]
    pub media_allow_host: Vec<String>,
    /// Port that may be fetched from besides 80 and 443 (repeatable)
    #[arg(long, env = "MEDIAGATE_MEDIA_ALLOW_PORT", value_name = "PORT", value_delimiter = ',')]
    pub media_allow_port: Vec<u16>,
    /// If any are named, only these are fetched from: `example.com` that name, `.example.com` all below it (repeatable)
    #[arg(long, env = "MEDIAGATE_MEDIA_ALLOWED_DOMAIN", value_name = "NAME", value_delimiter = ',')]
    pub media_allowed_domain: Vec<String>,
    /// Largest image file
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_BYTES", value_name = "BYTES", value_parser = size, default_value = "20MiB")]
    pub media_max_bytes: ByteSize,
    /// Largest image, in pixels
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_PIXELS", value_name = "N", default_value = "50000000")]
    pub media_max_pixels: u64,
    /// Longest side of an image, in pixels
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_SIDE", value_name = "N", default_value = "16384")]
    pub media_max_side: u32,
    /// Scans of a progressive JPEG, times its pixels: each visits the whole picture, and can be ten bytes
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_SCAN_PIXELS", value_name = "N", default_value = "1000000000")]
    pub media_max_scan_pixels: u64,
    /// Compressed texts and profiles of a PNG, inflated, in all
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_METADATA_BYTES", value_name = "BYTES", value_parser = size, default_value = "4MiB")]
    pub media_max_metadata_bytes: ByteSize,
    /// Memory that decoding one image may use beside its pixels; never more than --media-scratch-budget-bytes
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_SCRATCH_BYTES", value_name = "BYTES", value_parser = size, default_value = "512MiB")]
    pub media_max_scratch_bytes: ByteSize,
    /// Time for one fetch in all: DNS, redirects and retries
    #[arg(long, env = "MEDIAGATE_MEDIA_TIMEOUT_MS", value_name = "MS", default_value = "10000")]
    pub media_timeout_ms: u64,
    /// Time to connect to an origin
    #[arg(long, env = "MEDIAGATE_MEDIA_CONNECT_TIMEOUT_MS", value_name = "MS", default_value = "3000")]
    pub media_connect_timeout_ms: u64,
    /// Time for an origin to begin its answer
    #[arg(long, env = "MEDIAGATE_MEDIA_FIRST_BYTE_TIMEOUT_MS", value_name = "MS", default_value = "5000")]
    pub media_first_byte_timeout_ms: u64,
    /// Redirects followed in one fetch
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_REDIRECTS", value_name = "N", default_value = "5")]
    pub media_max_redirects: u32,
    /// Attempts after the first for what is transient
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_RETRIES", value_name = "N", default_value = "2")]
    pub media_max_retries: u32,
    /// Fetches under way at once
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_CONCURRENT", value_name = "N", default_value = "256")]
    pub media_max_concurrent: usize,
    /// Fetches under way at once to one host
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_CONCURRENT_PER_HOST", value_name = "N", default_value = "32")]
    pub media_max_concurrent_per_host: usize,
    /// What origins are told about who asks; some answer 403 to clients that do not say
    #[arg(
        long,
        env = "MEDIAGATE_MEDIA_USER_AGENT",
        value_name = "TEXT",
        default_value = concat!("mediagate/", env!("CARGO_PKG_VERSION"), " (image fetcher of an AI inference gateway)")
    )]
    pub media_user_agent: String,
    /// Largest head of an origin's answer
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_HEADER_BYTES", value_name = "BYTES", value_parser = size, default_value = "64KiB")]
    pub media_max_header_bytes: ByteSize,
    /// Names being looked up at once
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_CONCURRENT_LOOKUPS", value_name = "N", default_value = "64")]
    pub media_max_concurrent_lookups: usize,
    /// Connections to origins kept for the next fetch, in all
    #[arg(long, env = "MEDIAGATE_MEDIA_MAX_IDLE_CONNECTIONS", value_name = "N", default_value = "64")]
    pub media_max_idle_connections: usize,
    /// How long such a connection is kept
    #[arg(long, env = "MEDIAGATE_MEDIA_IDLE_TIMEOUT_MS", value_name = "MS", default_value = "15000")]
    pub media_idle_timeout_ms: u64,
    /// PEM file with certificate authorities to trust for fetching, besides the system's (repeatable)
    #[arg(long, env = "MEDIAGATE_MEDIA_CA_FILE", value_name = "FILE", value_delimiter = ',')]
    pub media_ca_file: Vec<PathBuf>,
    /// How long a URL's image is used without asking again, where the origin does not say
    #[arg(long, env = "MEDIAGATE_MEDIA_FRESH_MS", value_name = "MS", default_value = "60000")]
    pub media_fresh_ms: u64,
    /// The longest that an origin's own max-age is believed
    #[arg(long, env = "MEDIAGATE_MEDIA_FRESH_MAX_MS", value_name = "MS", default_value = "3600000")]
    pub media_fresh_max_ms: u64,
    /// The shortest that a URL's image is used without asking again, whatever its origin says (but `no-store` and `private`)
    #[arg(long, env = "MEDIAGATE_MEDIA_FRESH_MIN_MS", value_name = "MS", default_value = "0")]
    pub media_fresh_min_ms: u64,
    /// How long the failure of an origin is told again without asking it; 0 for not at all
    #[arg(long, env = "MEDIAGATE_MEDIA_NEGATIVE_MS", value_name = "MS", default_value = "2000")]
    pub media_negative_ms: u64,
    /// Image files held at once while they are fetched and decoded, in all [default: an eighth of the memory that the process
    /// may have, at most 1 GiB]
    #[arg(long, env = "MEDIAGATE_MEDIA_ENCODED_BUDGET_BYTES", value_name = "BYTES", value_parser = size)]
    pub media_encoded_budget_bytes: Option<ByteSize>,
    /// Memory that decoders use beside the pixels themselves, in all [default: an eighth of the memory that the process may
    /// have, at most 1 GiB]
    #[arg(long, env = "MEDIAGATE_MEDIA_SCRATCH_BUDGET_BYTES", value_name = "BYTES", value_parser = size)]
    pub media_scratch_budget_bytes: Option<ByteSize>,
    /// Whether a JPEG of at least twice the size to which it is brought is decoded at a half, a quarter or an eighth of its
    /// size. Faster, and nearly the same: the model sees pixels that differ by a few levels (docs/PERFORMANCE.md)
    #[arg(long, env = "MEDIAGATE_MEDIA_JPEG_SCALING", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub media_jpeg_scaling: bool,
    /// Threads that decode; one more does while large images take all of them [default: the machine's cores]
    #[arg(long, env = "MEDIAGATE_MEDIA_DECODERS", value_name = "N")]
    pub media_decoders: Option<usize>,
}

impl MediaArgs {
    pub fn config(&self) -> MediaConfig {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let budget = |configured: Option<ByteSize>| usize_of(configured.unwrap_or_else(budgets::default_eighth));
        let scratch_bytes = budget(self.media_scratch_budget_bytes);
        MediaConfig {
            fetch: FetchConfig {
                allow_hosts: self.media_allow_host.clone(),
                allow_cidrs: self.media_allow_cidr.clone(),
                allow_ports: self.media_allow_port.iter().copied().collect(),
                allowed_domains: self.media_allowed_domain.clone(),
                max_bytes: usize_of(self.media_max_bytes),
                max_redirects: self.media_max_redirects,
                max_retries: self.media_max_retries,
                connect_timeout: Duration::from_millis(self.media_connect_timeout_ms),
                first_byte_timeout: Duration::from_millis(self.media_first_byte_timeout_ms),
                total_timeout: Duration::from_millis(self.media_timeout_ms),
                max_concurrent: self.media_max_concurrent,
                max_concurrent_per_host: self.media_max_concurrent_per_host,
                ca_files: self.media_ca_file.clone(),
                user_agent: self.media_user_agent.clone(),
                max_header_bytes: usize_of(self.media_max_header_bytes),
                max_concurrent_lookups: self.media_max_concurrent_lookups,
                max_idle_connections: self.media_max_idle_connections,
                idle_timeout: Duration::from_millis(self.media_idle_timeout_ms),
            },
            decode: DecodeLimits {
                max_pixels: self.media_max_pixels,
                max_side: self.media_max_side,
                // An eighth is for what resizing keeps for the next picture.
                max_scratch_bytes: (scratch_bytes / 8 * 7).min(usize_of(self.media_max_scratch_bytes)),
                max_scan_pixels: self.media_max_scan_pixels,
                max_metadata_bytes: usize_of(self.media_max_metadata_bytes),
            },
            encoded_bytes: budget(self.media_encoded_budget_bytes),
            scratch_bytes,
            jpeg_scaling: self.media_jpeg_scaling,
            decoders: self.media_decoders.unwrap_or_else(cores),
            fresh: Duration::from_millis(self.media_fresh_ms),
            fresh_min: Duration::from_millis(self.media_fresh_min_ms),
            fresh_max: Duration::from_millis(self.media_fresh_max_ms),
            negative: Duration::from_millis(self.media_negative_ms),
        }
    }

    pub(super) fn validate(&self, arena: Option<Layout>) -> Result<(), ConfigError> {
        if usize_of(self.media_max_bytes) > self.config().encoded_bytes / 2 {
            return Err(ConfigError::Invalid(
                "--media-max-bytes is above half of --media-encoded-budget-bytes, so that two images could not be fetched for \
                 one request"
                    .into(),
            ));
        }
        if self.media_max_pixels == 0 || self.media_max_side == 0 {
            return Err(ConfigError::Invalid(
                "--media-max-pixels and --media-max-side are at least 1: to take no images, leave out --frontend-decoding"
                    .into(),
            ));
        }
        if self.media_fresh_min_ms > self.media_fresh_max_ms {
            return Err(ConfigError::Invalid("--media-fresh-min-ms is above --media-fresh-max-ms".into()));
        }
        if let Some(arena) = arena.filter(|arena| !arena.is_possible()) {
            return Err(ConfigError::Invalid(format!(
                "an arena of {} bytes has no room for an image of --media-max-pixels {} ({} bytes) beside smaller ones: \
                 raise --arena-bytes, or ulimit -l (LimitMEMLOCK) if that is what bounds it, or lower --media-max-pixels",
                arena.bytes,
                self.media_max_pixels,
                self.media_max_pixels.saturating_mul(3),
            )));
        }
        Ok(())
    }
}
