//! Settings of pushes: the memory that pixels come from and go to, and how long they may take.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{ArgAction, Args};

use super::size;

#[derive(Debug, Args)]
#[command(next_help_heading = "Pushing pixels to workers")]
pub struct TransferArgs {
    /// File with the secret that gateways and workers share [default: none, and only workers on this machine attach]
    #[arg(long, env = "MEDIAGATE_ATTACH_KEY_FILE", value_name = "FILE")]
    pub attach_key_file: Option<PathBuf>,
    /// Directory of libnixl_capi.so [default: looked for in $VIRTUAL_ENV, beside python3, on the loader's path]
    #[arg(long, env = "MEDIAGATE_NIXL_LIB_DIR", value_name = "DIR")]
    pub nixl_lib_dir: Option<PathBuf>,
    /// Memory for pixels, registered with NIXL [default: a quarter of the memory that the process may have, at most 4 GiB
    /// and what it may lock]
    #[arg(long, env = "MEDIAGATE_ARENA_BYTES", value_name = "BYTES", value_parser = size)]
    pub arena_bytes: Option<ByteSize>,
    /// Landing memory to ask each worker for
    #[arg(long, env = "MEDIAGATE_LANDING_BYTES", value_name = "BYTES", value_parser = size, default_value = "256MiB")]
    pub landing_bytes: ByteSize,
    /// Time to wait for a landing slot on a worker before pixels go inline
    #[arg(long, env = "MEDIAGATE_LANDING_TIMEOUT_MS", value_name = "MS", default_value = "50")]
    pub landing_timeout_ms: u64,
    /// Time for pixels to reach a worker before they are sent another way
    #[arg(long, env = "MEDIAGATE_PUSH_TIMEOUT_MS", value_name = "MS", default_value = "5000")]
    pub push_timeout_ms: u64,
    /// Send pixels inside the request to a worker that is reached over TCP alone, where that was measured to be faster than a
    /// push; with `false` they are always pushed, which costs the worker less CPU
    #[arg(long, env = "MEDIAGATE_INLINE_WHERE_FASTER", value_name = "BOOL", default_value = "true",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub inline_where_faster: bool,
}
