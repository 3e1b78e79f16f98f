//! The whole configuration: command line, environment, TOML file, in this order of precedence.
//!
//! Every setting is one field here, with its flag `--like-this`, its variable `MEDIAGATE_LIKE_THIS` and its key
//! `like-this` in the file. docs/CONFIGURATION.md is the reference for users.

mod budgets;
mod show;

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use bytesize::ByteSize;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use budgets::{BASE_BYTES, Budgets};

use crate::{
    media::{
        decode::DecodeLimits,
        fetch::{Cidr, FetchConfig},
        loader::MediaConfig,
    },
    memory::{Layout, SLOT_ALIGNMENT_BYTES},
    observe::tracing::LogFormat,
    server::{app::Limits, tenant::Tenancy},
};

/// A gateway in front of vLLM workers that decodes every image once.
///
/// `mediagate serve` is the same as `mediagate`.
#[derive(Debug, Parser)]
#[command(name = "mediagate", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub serve: ServeArgs,
    /// For `config show`: every setting as it is in effect.
    #[arg(skip)]
    pub shown: String,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows what the gateway makes of images: size, hashes, or why it refuses them
    Inspect(Box<InspectArgs>),
    /// Has a running gateway load a list of images before clients ask for them
    Warm(WarmArgs),
    /// Shows the configuration: `mediagate config show`, followed by flags as for serving
    Config(ConfigArgs),
}

#[derive(Debug, Args)]
pub struct WarmArgs {
    /// File with a URL a line; blank lines and lines that begin with # do not count
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Admin listener of the gateway
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    pub admin_url: String,
    /// Images loaded at once
    #[arg(long, value_name = "N", default_value = "16")]
    pub concurrency: usize,
    /// For this tenant alone: the value of the header that the gateway's --tenancy names
    #[arg(long)]
    pub tenant: Option<String>,
    /// For requests with this cache_salt alone
    #[arg(long)]
    pub cache_salt: Option<String>,
}

#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Every setting as it is in effect, and the memory that they add up to
    Show,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// One JSON object a line (the only form there is today)
    #[arg(long)]
    pub json: bool,
    /// Files, or http, https or data URLs
    #[arg(required = true)]
    pub inputs: Vec<String>,
    #[command(flatten)]
    pub media: MediaArgs,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// TOML file with settings; flags and environment variables go before it
    #[arg(long, env = "MEDIAGATE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where clients connect: the API, /health and /ready
    #[arg(long, env = "MEDIAGATE_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where operators connect: /metrics. Keep it off public networks
    #[arg(long, env = "MEDIAGATE_ADMIN_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:9090")]
    pub admin_listen: SocketAddr,
    /// Base URL of a `vllm serve` (repeatable; in the variable separated by commas)
    #[arg(
        long = "worker",
        id = "worker",
        env = "MEDIAGATE_WORKER",
        value_name = "URL",
        value_delimiter = ',',
        required = true
    )]
    pub workers: Vec<String>,
    /// Decode images here and push the pixels to the workers; without it, image URLs pass to the workers
    #[arg(long, env = "MEDIAGATE_FRONTEND_DECODING", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub frontend_decoding: bool,
    /// File with the API keys of clients, one a line [default: no key needed]
    #[arg(long, env = "MEDIAGATE_API_KEY_FILE", value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// File with the API key of the workers (vLLM's --api-key) [default: the client's Authorization passes]
    #[arg(long, env = "MEDIAGATE_WORKER_API_KEY_FILE", value_name = "FILE")]
    pub worker_api_key_file: Option<PathBuf>,

    /// What tells tenants apart, who share no cached images: `none`, `api-key`, or `header:NAME`. A header must be set by a
    /// proxy that clients cannot go around
    #[arg(long, env = "MEDIAGATE_TENANCY", value_name = "TENANCY", default_value = "none", value_parser = Tenancy::from_str)]
    pub tenancy: Tenancy,

    /// Memory for pixels, registered with NIXL [default: a quarter of the memory that the process may have, at most 4 GiB
    /// and what it may lock]
    #[arg(long, env = "MEDIAGATE_ARENA_BYTES", value_name = "BYTES")]
    pub arena_bytes: Option<ByteSize>,
    /// Landing memory to ask each worker for
    #[arg(long, env = "MEDIAGATE_LANDING_BYTES", value_name = "BYTES", default_value = "256MiB")]
    pub landing_bytes: ByteSize,
    /// Directory of libnixl_capi.so [default: looked for in $VIRTUAL_ENV, beside python3, on the loader's path]
    #[arg(long, env = "MEDIAGATE_NIXL_LIB_DIR", value_name = "DIR")]
    pub nixl_lib_dir: Option<PathBuf>,
    /// File with the secret that gateways and workers share [default: none, and only workers on this machine attach]
    #[arg(long, env = "MEDIAGATE_ATTACH_KEY_FILE", value_name = "FILE")]
    pub attach_key_file: Option<PathBuf>,

    /// Largest request body
    #[arg(long, env = "MEDIAGATE_MAX_BODY_BYTES", value_name = "BYTES", default_value = "64MiB")]
    pub max_body_bytes: ByteSize,
    /// Request bodies held at once, in all [default: an eighth of the memory that the process may have, at most 1 GiB]
    #[arg(long, env = "MEDIAGATE_BODY_BUDGET_BYTES", value_name = "BYTES")]
    pub body_budget_bytes: Option<ByteSize>,
    /// Time for a request body to arrive
    #[arg(long, env = "MEDIAGATE_BODY_TIMEOUT_MS", value_name = "MS", default_value = "30000")]
    pub body_timeout_ms: u64,
    /// Time to wait for memory before a request is answered with 503
    #[arg(long, env = "MEDIAGATE_ADMISSION_TIMEOUT_MS", value_name = "MS", default_value = "10000")]
    pub admission_timeout_ms: u64,
    /// Time to wait for a landing slot on a worker before pixels go inline
    #[arg(long, env = "MEDIAGATE_LANDING_TIMEOUT_MS", value_name = "MS", default_value = "50")]
    pub landing_timeout_ms: u64,
    /// Time for pixels to reach a worker before they are sent another way
    #[arg(long, env = "MEDIAGATE_PUSH_TIMEOUT_MS", value_name = "MS", default_value = "5000")]
    pub push_timeout_ms: u64,
    /// How often each worker's health is asked for
    #[arg(long, env = "MEDIAGATE_HEALTH_INTERVAL_MS", value_name = "MS", default_value = "1000")]
    pub health_interval_ms: u64,
    /// Time for the head of a request to arrive, on a new connection or after the answer before; keep it above the idle
    /// time of a load balancer in front
    #[arg(long, env = "MEDIAGATE_IDLE_TIMEOUT_MS", value_name = "MS", default_value = "75000")]
    pub idle_timeout_ms: u64,
    /// Time for requests under way to end on shutdown
    #[arg(long, env = "MEDIAGATE_SHUTDOWN_GRACE_MS", value_name = "MS", default_value = "30000")]
    pub shutdown_grace_ms: u64,

    /// What is logged, such as `info` or `mediagate=debug`
    #[arg(long, env = "MEDIAGATE_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,
    /// How log lines look
    #[arg(long, env = "MEDIAGATE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    #[command(flatten)]
    pub media: MediaArgs,
}

/// What images may be, and where they may come from.
#[derive(Debug, Args)]
pub struct MediaArgs {
    /// Network whose hosts may be fetched from although it is not public (repeatable)
    #[arg(
        long = "media-allow-cidr",
        id = "media_allow_cidr",
        env = "MEDIAGATE_MEDIA_ALLOW_CIDR",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub allow_cidrs: Vec<Cidr>,
    /// Host, name or address, that may be fetched from although it is not public (repeatable)
    #[arg(
        long = "media-allow-host",
        id = "media_allow_host",
        env = "MEDIAGATE_MEDIA_ALLOW_HOST",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub allow_hosts: Vec<String>,
    /// Port that may be fetched from besides 80 and 443 (repeatable)
    #[arg(
        long = "media-allow-port",
        id = "media_allow_port",
        env = "MEDIAGATE_MEDIA_ALLOW_PORT",
        value_name = "PORT",
        value_delimiter = ','
    )]
    pub allow_ports: Vec<u16>,
    /// If any are named, only these are fetched from: `example.com` that name, `.example.com` all below it (repeatable)
    #[arg(
        long = "media-allowed-domain",
        id = "media_allowed_domain",
        env = "MEDIAGATE_MEDIA_ALLOWED_DOMAIN",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub allowed_domains: Vec<String>,
    /// Largest image file
    #[arg(
        long = "media-max-bytes",
        id = "media_max_bytes",
        env = "MEDIAGATE_MEDIA_MAX_BYTES",
        value_name = "BYTES",
        default_value = "20MiB"
    )]
    pub max_bytes: ByteSize,
    /// Largest image, in pixels
    #[arg(
        long = "media-max-pixels",
        id = "media_max_pixels",
        env = "MEDIAGATE_MEDIA_MAX_PIXELS",
        value_name = "N",
        default_value = "50000000"
    )]
    pub max_pixels: u64,
    /// Longest side of an image, in pixels
    #[arg(
        long = "media-max-side",
        id = "media_max_side",
        env = "MEDIAGATE_MEDIA_MAX_SIDE",
        value_name = "N",
        default_value = "16384"
    )]
    pub max_side: u32,
    /// Time for one fetch in all: DNS, redirects and retries
    #[arg(
        long = "media-timeout-ms",
        id = "media_timeout_ms",
        env = "MEDIAGATE_MEDIA_TIMEOUT_MS",
        value_name = "MS",
        default_value = "10000"
    )]
    pub timeout_ms: u64,
    /// Time to connect to an origin
    #[arg(
        long = "media-connect-timeout-ms",
        id = "media_connect_timeout_ms",
        env = "MEDIAGATE_MEDIA_CONNECT_TIMEOUT_MS",
        value_name = "MS",
        default_value = "3000"
    )]
    pub connect_timeout_ms: u64,
    /// Time for an origin to begin its answer
    #[arg(
        long = "media-first-byte-timeout-ms",
        id = "media_first_byte_timeout_ms",
        env = "MEDIAGATE_MEDIA_FIRST_BYTE_TIMEOUT_MS",
        value_name = "MS",
        default_value = "5000"
    )]
    pub first_byte_timeout_ms: u64,
    /// Redirects followed in one fetch
    #[arg(
        long = "media-max-redirects",
        id = "media_max_redirects",
        env = "MEDIAGATE_MEDIA_MAX_REDIRECTS",
        value_name = "N",
        default_value = "5"
    )]
    pub max_redirects: u32,
    /// Attempts after the first for what is transient
    #[arg(
        long = "media-max-retries",
        id = "media_max_retries",
        env = "MEDIAGATE_MEDIA_MAX_RETRIES",
        value_name = "N",
        default_value = "2"
    )]
    pub max_retries: u32,
    /// Fetches under way at once
    #[arg(
        long = "media-max-concurrent",
        id = "media_max_concurrent",
        env = "MEDIAGATE_MEDIA_MAX_CONCURRENT",
        value_name = "N",
        default_value = "256"
    )]
    pub max_concurrent: usize,
    /// Fetches under way at once to one host
    #[arg(
        long = "media-max-concurrent-per-host",
        id = "media_max_concurrent_per_host",
        env = "MEDIAGATE_MEDIA_MAX_CONCURRENT_PER_HOST",
        value_name = "N",
        default_value = "32"
    )]
    pub max_concurrent_per_host: usize,
    /// What origins are told about who asks; some answer 403 to clients that do not say
    #[arg(
        long = "media-user-agent",
        id = "media_user_agent",
        env = "MEDIAGATE_MEDIA_USER_AGENT",
        value_name = "TEXT",
        default_value = concat!("mediagate/", env!("CARGO_PKG_VERSION"), " (image fetcher of an AI inference gateway)")
    )]
    pub user_agent: String,
    /// Largest head of an origin's answer
    #[arg(
        long = "media-max-header-bytes",
        id = "media_max_header_bytes",
        env = "MEDIAGATE_MEDIA_MAX_HEADER_BYTES",
        value_name = "BYTES",
        default_value = "64KiB"
    )]
    pub max_header_bytes: ByteSize,
    /// Names being looked up at once
    #[arg(
        long = "media-max-concurrent-lookups",
        id = "media_max_concurrent_lookups",
        env = "MEDIAGATE_MEDIA_MAX_CONCURRENT_LOOKUPS",
        value_name = "N",
        default_value = "64"
    )]
    pub max_concurrent_lookups: usize,
    /// Connections to origins kept for the next fetch, in all
    #[arg(
        long = "media-max-idle-connections",
        id = "media_max_idle_connections",
        env = "MEDIAGATE_MEDIA_MAX_IDLE_CONNECTIONS",
        value_name = "N",
        default_value = "64"
    )]
    pub max_idle_connections: usize,
    /// How long such a connection is kept
    #[arg(
        long = "media-idle-timeout-ms",
        id = "media_idle_timeout_ms",
        env = "MEDIAGATE_MEDIA_IDLE_TIMEOUT_MS",
        value_name = "MS",
        default_value = "15000"
    )]
    pub idle_timeout_ms: u64,
    /// PEM file with certificate authorities to trust for fetching, besides the system's (repeatable)
    #[arg(
        long = "media-ca-file",
        id = "media_ca_file",
        env = "MEDIAGATE_MEDIA_CA_FILE",
        value_name = "FILE",
        value_delimiter = ','
    )]
    pub ca_files: Vec<PathBuf>,
    /// How long a URL's image is used without asking again, where the origin does not say
    #[arg(
        long = "media-fresh-ms",
        id = "media_fresh_ms",
        env = "MEDIAGATE_MEDIA_FRESH_MS",
        value_name = "MS",
        default_value = "60000"
    )]
    pub fresh_ms: u64,
    /// The longest that an origin's own max-age is believed
    #[arg(
        long = "media-fresh-max-ms",
        id = "media_fresh_max_ms",
        env = "MEDIAGATE_MEDIA_FRESH_MAX_MS",
        value_name = "MS",
        default_value = "3600000"
    )]
    pub fresh_max_ms: u64,
    /// The shortest that a URL's image is used without asking again, whatever its origin says (but `no-store` and `private`)
    #[arg(
        long = "media-fresh-min-ms",
        id = "media_fresh_min_ms",
        env = "MEDIAGATE_MEDIA_FRESH_MIN_MS",
        value_name = "MS",
        default_value = "0"
    )]
    pub fresh_min_ms: u64,
    /// How long the failure of an origin is told again without asking it; 0 for not at all
    #[arg(
        long = "media-negative-ms",
        id = "media_negative_ms",
        env = "MEDIAGATE_MEDIA_NEGATIVE_MS",
        value_name = "MS",
        default_value = "2000"
    )]
    pub negative_ms: u64,
    /// Image files held at once while they are fetched and decoded, in all [default: an eighth of the memory that the process
    /// may have, at most 1 GiB]
    #[arg(
        long = "media-encoded-budget-bytes",
        id = "media_encoded_budget_bytes",
        env = "MEDIAGATE_MEDIA_ENCODED_BUDGET_BYTES",
        value_name = "BYTES"
    )]
    pub encoded_budget_bytes: Option<ByteSize>,
    /// Memory that decoders use beside the pixels themselves, in all [default: an eighth of the memory that the process may
    /// have, at most 1 GiB]
    #[arg(
        long = "media-scratch-budget-bytes",
        id = "media_scratch_budget_bytes",
        env = "MEDIAGATE_MEDIA_SCRATCH_BUDGET_BYTES",
        value_name = "BYTES"
    )]
    pub scratch_budget_bytes: Option<ByteSize>,
    /// Threads that decode [default: the machine's cores]
    #[arg(long = "media-decoders", id = "media_decoders", env = "MEDIAGATE_MEDIA_DECODERS", value_name = "N")]
    pub decoders: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// clap's own message, which says what to do; also how --help and --version end.
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not valid TOML: {source}")]
    Toml { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{path}: there is no setting `{key}`; `mediagate --help` lists them by their flags, without the dashes")]
    Unknown { path: PathBuf, key: String },
    #[error("{path}: `{key}` must be a string, a number, a boolean, or a list of these")]
    Value { path: PathBuf, key: String },
    #[error("{0}")]
    Invalid(String),
}

impl Cli {
    /// Reads the command line, the environment, and the TOML file that they name.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, ConfigError> {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        // The long form of the command that is run when none is named.
        if arguments.get(1).is_some_and(|word| word == "serve") {
            arguments.remove(1);
        }
        // What would be served with is asked for in the same words.
        let show = arguments.get(1..3).is_some_and(|words| words == ["config", "show"]);
        if show {
            arguments.drain(1..3);
        }
        let mut command = Cli::command();
        if let Some(path) = config_file(&arguments) {
            command = with_file(command, &path)?;
        }
        if show {
            command = command.mut_arg("worker", |argument| argument.required(false));
        }
        let matches = command.try_get_matches_from_mut(arguments)?;
        let mut cli = Cli::from_arg_matches(&matches)?;
        if show {
            cli.shown = show::effective(&command, &matches);
            cli.command = Some(Command::Config(ConfigArgs { command: ConfigCommand::Show }));
        }
        Ok(cli)
    }
}

/// The file that `--config` or its variable names: it must be known before the other settings are.
fn config_file(arguments: &[OsString]) -> Option<PathBuf> {
    let mut words = arguments.iter().skip(1);
    while let Some(word) = words.next() {
        if word == "--config" {
            return words.next().map(PathBuf::from);
        }
        if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    std::env::var_os("MEDIAGATE_CONFIG").map(PathBuf::from)
}

/// Settings of a file become the defaults of their flags, so that flags and variables go before them.
fn with_file(mut command: clap::Command, path: &Path) -> Result<clap::Command, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    let table: toml::Table =
        text.parse().map_err(|source| ConfigError::Toml { path: path.into(), source: Box::new(source) })?;
    for (key, value) in table {
        let id = key.replace('-', "_");
        let known = id != "config" && command.get_arguments().any(|argument| argument.get_id() == id.as_str());
        if !known {
            return Err(ConfigError::Unknown { path: path.into(), key });
        }
        let values = match value {
            toml::Value::Array(values) => values.iter().map(scalar).collect(),
            value => scalar(&value).map(|value| vec![value]),
        };
        let values: Vec<String> = values.ok_or(ConfigError::Value { path: path.into(), key })?;
        command = command.mut_arg(id, |argument| argument.default_values(values).required(false));
    }
    Ok(command)
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}

impl ServeArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            body_bytes: usize_of(self.max_body_bytes),
            body_timeout: Duration::from_millis(self.body_timeout_ms),
            admission_timeout: Duration::from_millis(self.admission_timeout_ms),
            landing_timeout: Duration::from_millis(self.landing_timeout_ms),
            push_timeout: Duration::from_millis(self.push_timeout_ms),
        }
    }

    /// What memory the settings add up to.
    pub fn budgets(&self) -> Budgets {
        Budgets::of(self)
    }

    /// Size of the arena, and how it is cut.
    pub fn arena_layout(&self) -> Layout {
        let bytes = usize_of(self.arena_bytes.unwrap_or_else(|| ByteSize(budgets::default_arena_bytes())));
        let largest_image = usize::try_from(self.media.max_pixels.saturating_mul(3)).unwrap_or(usize::MAX);
        Layout::new(bytes, largest_image.min(u32::MAX as usize * SLOT_ALIGNMENT_BYTES / 2))
    }

    /// Request bodies held at once, in all, in bytes.
    pub fn body_budget_bytes(&self) -> usize {
        usize_of(self.body_budget_bytes.unwrap_or_else(budgets::default_eighth))
    }

    /// What no single field can see.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::Invalid(message.into()));
        if self.listen == self.admin_listen && self.listen.port() != 0 {
            return invalid("--listen and --admin-listen are the same address; give each its own");
        }
        if usize_of(self.max_body_bytes) > self.body_budget_bytes() {
            return invalid("--max-body-bytes is above --body-budget-bytes, so that no such body would ever be taken");
        }
        if self.health_interval_ms < 10 {
            return invalid("--health-interval-ms is below 10, which would keep the workers busy answering it");
        }
        self.media.validate(self.frontend_decoding.then(|| self.arena_layout()))
    }
}

impl MediaArgs {
    pub fn config(&self) -> MediaConfig {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let budget = |configured: Option<ByteSize>| usize_of(configured.unwrap_or_else(budgets::default_eighth));
        let scratch_bytes = budget(self.scratch_budget_bytes);
        MediaConfig {
            fetch: FetchConfig {
                allow_hosts: self.allow_hosts.clone(),
                allow_cidrs: self.allow_cidrs.clone(),
                allow_ports: self.allow_ports.iter().copied().collect(),
                allowed_domains: self.allowed_domains.clone(),
                max_bytes: usize_of(self.max_bytes),
                max_redirects: self.max_redirects,
                max_retries: self.max_retries,
                connect_timeout: Duration::from_millis(self.connect_timeout_ms),
                first_byte_timeout: Duration::from_millis(self.first_byte_timeout_ms),
                total_timeout: Duration::from_millis(self.timeout_ms),
                max_concurrent: self.max_concurrent,
                max_concurrent_per_host: self.max_concurrent_per_host,
                ca_files: self.ca_files.clone(),
                user_agent: self.user_agent.clone(),
                max_header_bytes: usize_of(self.max_header_bytes),
                max_concurrent_lookups: self.max_concurrent_lookups,
                max_idle_connections: self.max_idle_connections,
                idle_timeout: Duration::from_millis(self.idle_timeout_ms),
            },
            decode: DecodeLimits {
                max_pixels: self.max_pixels,
                max_side: self.max_side,
                max_scratch_bytes: scratch_bytes.min(DecodeLimits::default().max_scratch_bytes),
                ..DecodeLimits::default()
            },
            encoded_bytes: budget(self.encoded_budget_bytes),
            scratch_bytes,
            decoders: self.decoders.unwrap_or_else(cores),
            fresh: Duration::from_millis(self.fresh_ms),
            fresh_min: Duration::from_millis(self.fresh_min_ms),
            fresh_max: Duration::from_millis(self.fresh_max_ms),
            negative: Duration::from_millis(self.negative_ms),
        }
    }

    fn validate(&self, arena: Option<Layout>) -> Result<(), ConfigError> {
        if usize_of(self.max_bytes) > self.config().encoded_bytes / 2 {
            return Err(ConfigError::Invalid(
                "--media-max-bytes is above half of --media-encoded-budget-bytes, so that two images could not be fetched for \
                 one request"
                    .into(),
            ));
        }
        if self.fresh_min_ms > self.fresh_max_ms {
            return Err(ConfigError::Invalid("--media-fresh-min-ms is above --media-fresh-max-ms".into()));
        }
        if let Some(arena) = arena.filter(|arena| !arena.is_possible()) {
            return Err(ConfigError::Invalid(format!(
                "an arena of {} bytes has no room for an image of --media-max-pixels {} ({} bytes) beside smaller ones: \
                 raise --arena-bytes, or ulimit -l (LimitMEMLOCK) if that is what bounds it, or lower --media-max-pixels",
                arena.bytes,
                self.max_pixels,
                self.max_pixels.saturating_mul(3),
            )));
        }
        Ok(())
    }
}

/// A secret in a file: its content without white space around it.
pub fn read_secret(path: &Path) -> Result<String, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    Ok(text.trim_ascii().to_owned())
}

fn usize_of(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Cli, ConfigError> {
        Cli::read(std::iter::once("mediagate").chain(words.iter().copied()).map(OsString::from))
    }

    const WORKER: [&str; 2] = ["--worker", "http://127.0.0.1:8000"];

    #[test]
    fn the_command_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_setting_has_an_environment_variable_of_its_name() {
        for argument in Cli::command().get_arguments().filter(|a| !["help", "version"].contains(&a.get_id().as_str())) {
            let flag = argument.get_long().unwrap();
            let expected = format!("MEDIAGATE_{}", flag.replace('-', "_").to_uppercase());
            assert_eq!(argument.get_env().unwrap().to_str(), Some(expected.as_str()));
            assert_eq!(argument.get_id().as_str(), flag.replace('-', "_"), "ids are the keys of the file");
        }
    }

    #[test]
    fn defaults_are_valid() {
        let cli = read(&WORKER).unwrap();
        cli.serve.validate().unwrap();
        cli.serve.media.config().fetch.validate().unwrap();
        assert!(!cli.serve.frontend_decoding);
    }

    #[test]
    fn media_defaults_are_those_of_their_modules() {
        let config =
            read(&[&WORKER[..], &["--media-scratch-budget-bytes", "1GiB"]].concat()).unwrap().serve.media.config();
        let (fetch, decode) = (FetchConfig::default(), DecodeLimits::default());
        assert_eq!(format!("{:?}", config.fetch), format!("{fetch:?}"));
        assert_eq!(format!("{:?}", config.decode), format!("{decode:?}"));
    }

    #[test]
    fn serve_may_be_said_and_left_out() {
        assert!(read(&["serve", WORKER[0], WORKER[1], "--frontend-decoding"]).unwrap().serve.frontend_decoding);
        assert!(!read(&["--frontend-decoding=false", WORKER[0], WORKER[1]]).unwrap().serve.frontend_decoding);
        assert!(matches!(read(&["inspect", "--json", "a.png"]).unwrap().command, Some(Command::Inspect(_))));
    }

    #[test]
    fn config_show_takes_the_words_of_serving_and_needs_no_worker() {
        let cli = read(&["config", "show", "--frontend-decoding", "--tenancy", "header:x-tenant"]).unwrap();
        assert!(matches!(cli.command, Some(Command::Config(_))) && cli.shown.contains("tenancy = \"header:x-tenant\""));
        let (all, bodies) = (cli.serve.budgets(), read(&WORKER).unwrap().serve.budgets());
        assert!(all.sum() > bodies.sum() && all.to_string().contains("# sum"), "{all}");
    }

    #[test]
    fn a_file_gives_defaults_and_flags_go_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mediagate.toml");
        let text = "worker = [\"http://a:1\", \"http://b:1\"]\nfrontend-decoding = true\nmedia_max_pixels = 7\nlog = \"debug\"\n";
        std::fs::write(&path, text).unwrap();
        let cli = read(&["--config", path.to_str().unwrap(), "--log", "warn"]).unwrap();
        assert_eq!(cli.serve.workers, ["http://a:1", "http://b:1"]);
        assert!(cli.serve.frontend_decoding);
        assert_eq!(cli.serve.media.max_pixels, 7);
        assert_eq!(cli.serve.log, "warn");
        std::fs::write(&path, "wroker = \"http://a:1\"").unwrap();
        let error = read(&[&format!("--config={}", path.display())]).unwrap_err();
        assert!(matches!(error, ConfigError::Unknown { ref key, .. } if key == "wroker"), "{error}");
    }

    #[test]
    fn what_cannot_work_is_refused_with_what_to_do() {
        for (words, hint) in [
            (vec!["--listen", "127.0.0.1:9090"], "--admin-listen"),
            (vec!["--max-body-bytes", "2GiB"], "--body-budget-bytes"),
            (vec!["--frontend-decoding", "--arena-bytes", "1MiB"], "--arena-bytes"),
            (vec!["--media-max-bytes", "2GiB"], "--media-encoded-budget-bytes"),
        ] {
            let error = read(&[&WORKER[..], &words[..]].concat()).unwrap().serve.validate().unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
        }
        assert!(read(&[]).is_err(), "a worker is needed");
    }
}
