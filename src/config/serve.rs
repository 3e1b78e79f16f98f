//! The settings of serving: the groups, and what no group can see alone.

use std::{path::PathBuf, time::Duration};

use bytesize::ByteSize;
use clap::Args;

use super::{
    AccessArgs, Budgets, ConfigError, FleetArgs, ImageArgs, ListenArgs, MediaArgs, RequestArgs, RoutingArgs,
    TransferArgs, budgets, usize_of,
};
use crate::{
    memory::{Layout, SLOT_ALIGNMENT_BYTES},
    observe::{self, tracing::LogFormat},
    server::app::Limits,
};

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// TOML file with settings; flags and environment variables go before it
    #[arg(long, env = "MEDIAGATE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
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
    pub listening: ListenArgs,
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub fleet: FleetArgs,
    #[command(flatten)]
    pub routing: RoutingArgs,
    #[command(flatten)]
    pub requests: RequestArgs,
    #[command(flatten)]
    pub images: ImageArgs,
    #[command(flatten)]
    pub transfer: TransferArgs,
    #[command(flatten)]
    pub media: MediaArgs,
}

impl ServeArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            body_bytes: usize_of(self.requests.max_body_bytes),
            body_timeout: Duration::from_millis(self.requests.body_timeout_ms),
            request_timeout: Duration::from_millis(self.requests.request_timeout_ms),
            admission_timeout: Duration::from_millis(self.requests.admission_timeout_ms),
            landing_timeout: Duration::from_millis(self.transfer.landing_timeout_ms),
            push_timeout: Duration::from_millis(self.transfer.push_timeout_ms),
        }
    }

    /// What memory the settings add up to.
    pub fn budgets(&self) -> Budgets {
        Budgets::of(self)
    }

    /// Size of the arena, and how it is cut.
    pub fn arena_layout(&self) -> Layout {
        let bytes = usize_of(self.transfer.arena_bytes.unwrap_or_else(|| ByteSize(budgets::default_arena_bytes())));
        let largest_image =
            usize::try_from(self.media.decoding.media_max_pixels.saturating_mul(3)).unwrap_or(usize::MAX);
        Layout::new(bytes, largest_image.min(u32::MAX as usize * SLOT_ALIGNMENT_BYTES / 2))
    }

    /// Video and audio that is fetched for workers, held at once, in all, in bytes: as much as of images.
    pub fn other_media_bytes(&self) -> usize {
        let fetches = self.images.frontend_decoding && self.images.pass_other_media;
        if fetches { self.media.config().encoded_bytes } else { 0 }
    }

    /// What no single field can see.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::Invalid(message.into()));
        self.listening.validate()?;
        self.access.validate()?;
        self.fleet.validate()?;
        self.requests.validate()?;
        self.routing.validate()?;
        self.images.validate()?;
        if self.listening.admin_on_public && self.access.api_key_file.is_none() {
            return invalid(
                "--admin-on-public needs --api-key-file with a key that is marked `admin`: else anybody is one",
            );
        }
        if self.watch_files_ms.is_some_and(|period| period < 100) {
            return invalid(
                "--watch-files-ms must be at least 100; leave it out to have files read again on SIGHUP alone",
            );
        }
        if !observe::tracing::is_filter(&self.log) {
            return invalid(
                "--log must be a level such as info or debug, or levels of parts, such as info,mediagate=debug",
            );
        }
        self.media.validate(self.images.frontend_decoding.then(|| self.arena_layout()))
    }
}
