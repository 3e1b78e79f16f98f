//! Logs: one line an event on standard error, as text or as JSON.

use std::io::IsTerminal;

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// nixl-sys logs each failed call by itself, which says less than our own line about it.
const QUIET: &str = "nixl_sys=off";

/// Whether this is a filter of log lines.
pub fn is_filter(text: &str) -> bool {
    EnvFilter::try_new(text).is_ok()
}

/// Starts logging. `filter` is in the syntax of tracing-subscriber's EnvFilter, such as `info` or `mediagate=debug`.
pub fn start(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::try_new(format!("{QUIET},{filter}")).map_err(|error| error.to_string())?;
    let registry = tracing_subscriber::registry().with(filter);
    let colours = std::io::stderr().is_terminal();
    let result = match format {
        LogFormat::Text => {
            let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(colours).with_target(false);
            registry.with(lines).try_init()
        }
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(std::io::stderr)).try_init(),
    };
    result.map_err(|error| error.to_string())
}
