//! Files that Pillow reads and does not write: odd headers, depths, palettes, orders and layouts of the simple formats.
//!
//! Those that were once decoded otherwise, as tests/pillow/make_kinds.py wrote them down. And some at random, whole and damaged,
//! against Pillow itself, which needs what `decode_pillow` needs; without it, the test says so and passes.

#[allow(dead_code, reason = "shared with another test")]
mod decode_support;

use std::fs;
use std::path::Path;

use decode_support::{Table, pillow};
use mediagate::media::decode::DecodeLimits;
use serde_json::Value;

/// A whole file and two damaged ones each.
const IMAGES: &str = "600";
/// As in tests/pillow/variants.py.
const MAX_PIXELS: u64 = 2_000_000;

#[test]
fn kinds_that_were_once_decoded_otherwise_are_decoded_as_vllm_decodes_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kinds.json");
    let kinds: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut table = Table::default();
    for (name, kind) in kinds.as_object().unwrap() {
        let bytes = base64_simd::STANDARD.decode_to_vec(kind["file"].as_str().unwrap()).unwrap();
        table.count(name, &bytes, kind, &DecodeLimits::default());
    }
    table.print_and_check();
}

#[test]
fn variants_that_pillow_does_not_write_are_decoded_as_it_decodes_them() {
    let limits = DecodeLimits { max_pixels: MAX_PIXELS, max_side: u32::MAX, ..DecodeLimits::default() };
    pillow::compare("variants.py", IMAGES, &limits);
}
