//! Settings of serving: access, transfers, limits of a request, logs; beside listeners, workers and images, which have
//! files of their own.

use std::{path::PathBuf, str::FromStr, time::Duration};

use bytesize::ByteSize;
use clap::{ArgAction, Args};

use super::{Budgets, ConfigError, FleetArgs, ListenArgs, MediaArgs, RoutingArgs, budgets, size, usize_of};
use crate::{
    media::url_names::{UrlIdentity, UrlNames},
    memory::{Layout, SLOT_ALIGNMENT_BYTES},
    model::ModelPath,
    observe::{self, tracing::LogFormat},
    routing::RoutingSettings,
    server::{app::Limits, extra::ExtraRoute, resize::Resize, tenant::Tenancy},
};

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// TOML file with settings; flags and environment variables go before it
    #[arg(long, env = "MEDIAGATE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub listening: ListenArgs,
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Decode images here and push the pixels to the workers; without it, image URLs pass to the workers
    #[arg(long, env = "MEDIAGATE_FRONTEND_DECODING", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub frontend_decoding: bool,
    /// Whether images are brought to the size that the model will see before they are sent: `auto` where it changes nothing
    /// for the model (docs/SEMANTICS.md says when that is), or `off`
    #[arg(long, env = "MEDIAGATE_RESIZE", value_name = "auto|off", default_value = "auto", value_parser = Resize::from_str)]
    pub resize: Resize,
    #[command(flatten)]
    pub routing: RoutingArgs,
    /// Folder of a served model, as vLLM was given it: `DIR`, or `NAME=DIR` with the served model name (repeatable; in the
    /// variable separated by commas). Its files say how many tokens an image is
    #[arg(long = "model-path", id = "model_path", env = "MEDIAGATE_MODEL_PATH", value_name = "[NAME=]DIR", value_delimiter = ',',
          value_parser = ModelPath::from_str)]
    pub model_paths: Vec<ModelPath>,
    /// Time that a request waits for the size of an image that passes by URL, which tells routing its tokens
    #[cfg(feature = "mm-routing")]
    #[arg(long, env = "MEDIAGATE_IMAGE_SIZE_TIMEOUT_MS", value_name = "MS", default_value = "500")]
    pub image_size_timeout_ms: u64,
    /// What the URL of an image says where images pass by URL: `exact`, where it is; or `immutable`, which it is: then it shows
    /// the same picture forever, and workers keep what they made of it under a hash of the URL, as vLLM's uuid
    #[arg(long, env = "MEDIAGATE_URL_IDENTITY", value_name = "KIND", default_value = "exact")]
    pub url_identity: UrlIdentity,
    /// Query parameter that does not tell images apart, such as a signature (repeatable)
    #[arg(long, env = "MEDIAGATE_URL_IDENTITY_IGNORE", value_name = "NAME", value_delimiter = ',')]
    pub url_identity_ignore: Vec<String>,
    /// With --frontend-decoding, let video and audio pass: data: URIs as they are, http URLs as the bytes fetched by the
    /// same rules as images; without it, they are refused
    #[arg(long, env = "MEDIAGATE_PASS_OTHER_MEDIA", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub pass_other_media: bool,
    /// A route of the workers that clients may use beside those of the API: a method and a path, such as
    /// `POST /v1/load_lora_adapter` (repeatable; in the variable separated by commas). Bodies pass unseen
    #[arg(long = "extra-route", id = "extra_route", env = "MEDIAGATE_EXTRA_ROUTE", value_name = "ROUTE", value_delimiter = ',',
          value_parser = ExtraRoute::from_str)]
    pub extra_routes: Vec<ExtraRoute>,
    /// File with the API keys of clients, one a line, and after it the words `debug` or `admin` for what
    /// it may beyond the API [default: no key needed]
    #[arg(long, env = "MEDIAGATE_API_KEY_FILE", value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// What tells tenants apart, who share no cached images: `none`, `api-key`, or `header:NAME`. A header must be set by a
    /// proxy that clients cannot go around
    #[arg(long, env = "MEDIAGATE_TENANCY", value_name = "TENANCY", default_value = "none", value_parser = Tenancy::from_str)]
    pub tenancy: Tenancy,

    /// Memory for pixels, registered with NIXL [default: a quarter of the memory that the process may have, at most 4 GiB
    /// and what it may lock]
    #[arg(long, env = "MEDIAGATE_ARENA_BYTES", value_name = "BYTES", value_parser = size)]
    pub arena_bytes: Option<ByteSize>,
    /// Landing memory to ask each worker for
    #[arg(long, env = "MEDIAGATE_LANDING_BYTES", value_name = "BYTES", value_parser = size, default_value = "256MiB")]
    pub landing_bytes: ByteSize,
    /// Send pixels inside the request to a worker that is reached over TCP alone, where that was measured to be faster than a
    /// push; with `false` they are always pushed, which costs the worker less CPU
    #[arg(long, env = "MEDIAGATE_INLINE_WHERE_FASTER", value_name = "BOOL", default_value = "true",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub inline_where_faster: bool,
    /// Directory of libnixl_capi.so [default: looked for in $VIRTUAL_ENV, beside python3, on the loader's path]
    #[arg(long, env = "MEDIAGATE_NIXL_LIB_DIR", value_name = "DIR")]
    pub nixl_lib_dir: Option<PathBuf>,
    /// File with the secret that gateways and workers share [default: none, and only workers on this machine attach]
    #[arg(long, env = "MEDIAGATE_ATTACH_KEY_FILE", value_name = "FILE")]
    pub attach_key_file: Option<PathBuf>,

    /// Largest request body
    #[arg(long, env = "MEDIAGATE_MAX_BODY_BYTES", value_name = "BYTES", value_parser = size, default_value = "64MiB")]
    pub max_body_bytes: ByteSize,
    /// Request bodies held at once, in all [default: an eighth of the memory that the process may have, at most 1 GiB]
    #[arg(long, env = "MEDIAGATE_BODY_BUDGET_BYTES", value_name = "BYTES", value_parser = size)]
    pub body_budget_bytes: Option<ByteSize>,
    /// Request bodies that are written anew for workers, held at once, in all, until they are sent: with pixels inline they
    /// are four thirds of those [default: an eighth of the memory that the process may have, at most 1 GiB]
    #[arg(long, env = "MEDIAGATE_WORKER_BODY_BUDGET_BYTES", value_name = "BYTES")]
    pub worker_body_budget_bytes: Option<ByteSize>,
    /// Time for a request body to arrive
    #[arg(long, env = "MEDIAGATE_BODY_TIMEOUT_MS", value_name = "MS", default_value = "30000")]
    pub body_timeout_ms: u64,
    /// Requests under way at once, in all; more get 503
    #[arg(long, env = "MEDIAGATE_MAX_REQUESTS", value_name = "N", default_value = "4096")]
    pub max_requests: usize,
    /// Time from a request to the first byte of its answer, which is the whole answer where it is not streamed. A client
    /// can ask for less with the header x-request-timeout, in seconds
    #[arg(long, env = "MEDIAGATE_REQUEST_TIMEOUT_MS", value_name = "MS", default_value = "600000")]
    pub request_timeout_ms: u64,
    /// Time to wait for memory before a request is answered with 503
    #[arg(long, env = "MEDIAGATE_ADMISSION_TIMEOUT_MS", value_name = "MS", default_value = "10000")]
    pub admission_timeout_ms: u64,
    /// Time to wait for a landing slot on a worker before pixels go inline
    #[arg(long, env = "MEDIAGATE_LANDING_TIMEOUT_MS", value_name = "MS", default_value = "50")]
    pub landing_timeout_ms: u64,
    /// Time for pixels to reach a worker before they are sent another way
    #[arg(long, env = "MEDIAGATE_PUSH_TIMEOUT_MS", value_name = "MS", default_value = "5000")]
    pub push_timeout_ms: u64,

    /// How often the files that SIGHUP reads again are looked at, to read them again by themselves once they have changed
    /// [default: never]
    #[arg(long, env = "MEDIAGATE_WATCH_FILES_MS", value_name = "MS")]
    pub watch_files_ms: Option<u64>,

    /// What is logged, such as `info` or `mediagate=debug`
    #[arg(long, env = "MEDIAGATE_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,
    /// How log lines look
    #[arg(long, env = "MEDIAGATE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    #[command(flatten)]
    pub media: MediaArgs,
}

impl ServeArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            body_bytes: usize_of(self.max_body_bytes),
            body_timeout: Duration::from_millis(self.body_timeout_ms),
            request_timeout: Duration::from_millis(self.request_timeout_ms),
            admission_timeout: Duration::from_millis(self.admission_timeout_ms),
            landing_timeout: Duration::from_millis(self.landing_timeout_ms),
            push_timeout: Duration::from_millis(self.push_timeout_ms),
        }
    }

    pub fn routing(&self) -> RoutingSettings {
        self.routing.settings(!self.model_paths.is_empty())
    }

    /// How images are named by their URLs.
    pub fn url_names(&self) -> UrlNames {
        UrlNames { identity: self.url_identity, ignored_parameters: self.url_identity_ignore.clone() }
    }

    /// What memory the settings add up to.
    pub fn budgets(&self) -> Budgets {
        Budgets::of(self)
    }

    /// Size of the arena, and how it is cut.
    pub fn arena_layout(&self) -> Layout {
        let bytes = usize_of(self.arena_bytes.unwrap_or_else(|| ByteSize(budgets::default_arena_bytes())));
        let largest_image = usize::try_from(self.media.media_max_pixels.saturating_mul(3)).unwrap_or(usize::MAX);
        Layout::new(bytes, largest_image.min(u32::MAX as usize * SLOT_ALIGNMENT_BYTES / 2))
    }

    /// Request bodies held at once, in all, in bytes.
    pub fn body_budget_bytes(&self) -> usize {
        usize_of(self.body_budget_bytes.unwrap_or_else(budgets::default_eighth))
    }

    /// Bodies that are written anew for workers, held at once, in all, in bytes.
    pub fn worker_body_budget_bytes(&self) -> usize {
        usize_of(self.worker_body_budget_bytes.unwrap_or_else(budgets::default_eighth))
    }

    /// Video and audio that is fetched for workers, held at once, in all, in bytes: as much as of images.
    pub fn other_media_bytes(&self) -> usize {
        if self.frontend_decoding && self.pass_other_media { self.media.config().encoded_bytes } else { 0 }
    }

    /// What no single field can see.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::Invalid(message.into()));
        self.listening.validate()?;
        self.fleet.validate()?;
        if self.listening.admin_on_public && self.api_key_file.is_none() {
            return invalid(
                "--admin-on-public needs --api-key-file with a key that is marked `admin`: else anybody is one",
            );
        }
        if self.max_requests == 0 {
            return invalid("--max-requests is 0, so that every request would be refused");
        }
        if self.request_timeout_ms == 0 {
            return invalid("--request-timeout-ms is 0, so that no request would ever be answered");
        }
        if self.watch_files_ms.is_some_and(|period| period < 100) {
            return invalid(
                "--watch-files-ms must be at least 100; leave it out to have files read again on SIGHUP alone",
            );
        }
        if usize_of(self.max_body_bytes) > self.body_budget_bytes() {
            return invalid("--max-body-bytes is above --body-budget-bytes, so that no such body would ever be taken");
        }
        if usize_of(self.max_body_bytes) > self.worker_body_budget_bytes() {
            return invalid(
                "--max-body-bytes is above --worker-body-budget-bytes, so that no such body could be changed for a worker",
            );
        }
        for (at, route) in self.extra_routes.iter().enumerate() {
            if self.extra_routes[..at].contains(route) {
                let ExtraRoute { method, path } = route;
                return invalid(&format!("--extra-route {method} {path} is given twice; give it once"));
            }
        }
        self.routing.validate()?;
        if !observe::tracing::is_filter(&self.log) {
            return invalid(
                "--log must be a level such as info or debug, or levels of parts, such as info,mediagate=debug",
            );
        }
        if self.frontend_decoding && self.url_identity == UrlIdentity::Immutable {
            return invalid(
                "--url-identity immutable is for images that pass by URL; with --frontend-decoding their pixels name them",
            );
        }
        self.media.validate(self.frontend_decoding.then(|| self.arena_layout()))
    }
}
