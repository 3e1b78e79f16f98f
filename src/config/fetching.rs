//! Settings of fetching: where images may come from, how long that may take, how long they are believed.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Args;

use super::size;
use crate::media::fetch::Cidr;

#[derive(Debug, Args)]
#[command(next_help_heading = "Fetching images")]
pub struct FetchingArgs {
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
    /// Image files held at once while they are fetched and decoded, in all [default: an eighth of the memory that the process
    /// may have, at most 1 GiB]
    #[arg(long, env = "MEDIAGATE_MEDIA_ENCODED_BUDGET_BYTES", value_name = "BYTES", value_parser = size)]
    pub media_encoded_budget_bytes: Option<ByteSize>,
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
}
