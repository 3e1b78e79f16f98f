//! The whole configuration: command line, environment, TOML file, in this order of precedence.
//!
//! Every setting is one field of [`ServeArgs`] or of a group of its own in there, with its flag `--like-this`, its variable `MEDIAGATE_LIKE_THIS` and its key
//! `like-this` in the file. docs/CONFIGURATION.md is the reference for users.

mod access;
mod budgets;
mod check;
mod decoding;
mod fetching;
mod files;
mod fleet;
mod images;
mod listen;
mod media;
mod requests;
mod routing;
mod serve;
mod show;
mod transfer;
mod variables;

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use bytesize::ByteSize;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use access::AccessArgs;
pub use budgets::{BASE_BYTES, Budgets};
pub use check::Findings;
pub use decoding::DecodingArgs;
pub use fetching::FetchingArgs;
pub use files::{FileError, attach_secret, fresh, read_on_reload};
pub use fleet::FleetArgs;
pub use images::ImageArgs;
pub use listen::ListenArgs;
pub use media::MediaArgs;
pub use requests::RequestArgs;
pub use routing::RoutingArgs;
pub use serve::ServeArgs;
pub use transfer::TransferArgs;
pub use variables::unknown_variables;

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
    /// Shows what the gateway makes of images: redirects, times, size, colours, hashes, or why it refuses them
    Inspect(Box<InspectArgs>),
    /// Shows the tokens that routing predicts of a chat completion request's prompt, or why it predicts none
    #[cfg(feature = "mm-routing")]
    Prompt(Box<PromptArgs>),
    /// Has a running gateway load a list of images before clients ask for them
    Warm(WarmArgs),
    /// Shows or checks the configuration: `mediagate config show` or `check`, followed by flags as for serving
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
    /// Served model that the images are for, in whose size they are kept [default: the one that all workers serve]
    #[arg(long)]
    pub model: Option<String>,
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
    /// Every setting as it is in effect, and the memory that they add up to. Takes all flags of `mediagate --help`
    Show,
    /// Says what is wrong with the settings and the files that they name, and what to do; exits with 1 if it would not
    /// start. Takes all flags of `mediagate --help`
    Check,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// One JSON object a line, for programs
    #[arg(long)]
    pub json: bool,
    /// Folder for the decoded pictures, made where it is missing: 1.png for the first input, 2.png for the second, ...
    #[arg(long, value_name = "DIR")]
    pub png_out: Option<PathBuf>,
    /// Files, or http, https or data URLs
    #[arg(required = true)]
    pub inputs: Vec<String>,
    /// Folder of a model, as vLLM is given it: says how many tokens each image is to it, and to which size it would be brought
    #[cfg(feature = "mm-routing")]
    #[arg(long, value_name = "DIR")]
    pub model_path: Option<PathBuf>,
    #[command(flatten)]
    pub media: MediaArgs,
}

#[cfg(feature = "mm-routing")]
#[derive(Debug, Args)]
pub struct PromptArgs {
    /// Folder of the model, as vLLM is given it
    #[arg(long, value_name = "DIR")]
    pub model_path: PathBuf,
    /// Files with the JSON body of a request each
    #[arg(required = true)]
    pub requests: Vec<PathBuf>,
    #[command(flatten)]
    pub media: MediaArgs,
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
    #[error(transparent)]
    File(#[from] FileError),
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
        let asked = match arguments.get(1..3) {
            Some(words) if words == ["config", "show"] => Some(ConfigCommand::Show),
            Some(words) if words == ["config", "check"] => Some(ConfigCommand::Check),
            _ => None,
        };
        let wants_help = || arguments.iter().any(|word| word == "--help" || word == "-h");
        let asked = asked.filter(|_| !wants_help());
        if asked.is_some() {
            arguments.drain(1..3);
        }
        let mut command = Cli::command();
        let mut in_file = Vec::new();
        if let Some(path) = config_file(&arguments) {
            (command, in_file) = with_file(command, &path)?;
        }
        let matches = command.try_get_matches_from_mut(arguments)?;
        let mut cli = Cli::from_arg_matches(&matches)?;
        if let Some(asked) = asked {
            cli.shown = show::effective(&command, &matches, &in_file);
            cli.command = Some(Command::Config(ConfigArgs { command: asked }));
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

/// Settings of a file become the defaults of their flags, so that flags and variables go before them. Gives their ids, too.
fn with_file(mut command: clap::Command, path: &Path) -> Result<(clap::Command, Vec<String>), ConfigError> {
    let mut in_file = Vec::new();
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
        command = command.mut_arg(&id, |argument| argument.default_values(values).required(false));
        in_file.push(id);
    }
    Ok((command, in_file))
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}

/// A size, as a flag gives it.
fn size(text: &str) -> Result<ByteSize, &'static str> {
    text.parse().map_err(|_| "must be a number of bytes, alone or with a unit: 65536, 64MiB, 1GB")
}

/// Where to listen, as a flag gives it.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "must be an IP address and a port, such as 0.0.0.0:8080 or [::1]:8080")
}

fn usize_of(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::{decode::DecodeLimits, fetch::FetchConfig};

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
        assert!(!cli.serve.images.frontend_decoding);
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
        assert!(read(&["serve", WORKER[0], WORKER[1], "--frontend-decoding"]).unwrap().serve.images.frontend_decoding);
        assert!(!read(&["--frontend-decoding=false", WORKER[0], WORKER[1]]).unwrap().serve.images.frontend_decoding);
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
        let text = "worker = [\"http://a:1\", \"http://b:1\"]\nfrontend-decoding = true\nmedia_max_pixels = 7\nroute-load-weight = 0.25\nlog = \"debug\"\n";
        std::fs::write(&path, text).unwrap();
        let cli = read(&["--config", path.to_str().unwrap(), "--log", "warn"]).unwrap();
        assert_eq!(cli.serve.fleet.workers, ["http://a:1", "http://b:1"]);
        assert!(cli.serve.images.frontend_decoding);
        assert_eq!(cli.serve.media.decoding.media_max_pixels, 7);
        assert!((cli.serve.routing.route_load_weight - 0.25).abs() < f64::EPSILON);
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
            (vec!["--frontend-decoding", "--url-identity", "immutable"], "--frontend-decoding"),
            (vec!["--tls-cert", "cert.pem"], "--tls-key"),
            (vec!["--admin-on-public"], "--api-key-file"),
            (vec!["--max-requests", "0"], "--max-requests"),
            (vec!["--max-worker-requests", "0"], "--max-worker-requests"),
            (vec!["--request-timeout-ms", "0"], "--request-timeout-ms"),
            (vec!["--circuit-wait-ms", "60000"], "--circuit-longest-wait-ms"),
            (vec!["--max-header-bytes", "1KiB"], "--max-header-bytes"),
            (vec!["--watch-files-ms", "0"], "--watch-files-ms"),
            (vec!["--log", "bad[filter"], "--log"),
        ] {
            let error = read(&[&WORKER[..], &words[..]].concat()).unwrap().serve.validate().unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
        }
        for (flag, value, hint) in [
            ("--arena-bytes", "1XB", "64MiB"),
            ("--max-body-bytes", "", "64MiB"),
            ("--listen", "localhost:8080", "0.0.0.0:8080"),
        ] {
            let error = read(&[&WORKER[..], &[flag, value]].concat()).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains(hint), "{error}");
        }
        let error = read(&[]).unwrap().serve.validate().unwrap_err();
        assert!(error.to_string().contains("--workers-file"), "a worker is needed: {error}");
        assert!(read(&["--workers-file", "f"]).unwrap().serve.validate().is_ok(), "it may come later");
    }
}
