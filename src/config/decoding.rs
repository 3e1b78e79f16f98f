//! Settings of decoding: what an image may be, and what it may cost.

use bytesize::ByteSize;
use clap::{ArgAction, Args};

use super::size;

#[derive(Debug, Args)]
#[command(next_help_heading = "Decoding images")]
pub struct DecodingArgs {
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
