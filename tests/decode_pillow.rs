//! Random images, whole and damaged, against Pillow itself.
//!
//! Needs a Python with pillow==13.0.0 and numpy: the one in `MEDIAGATE_PILLOW_PYTHON`, or that of `.venv`. Without one,
//! the test says so and passes. `MEDIAGATE_PILLOW_IMAGES` and `MEDIAGATE_PILLOW_SEED` choose how many images, and which.

#[allow(dead_code, reason = "shared with another test")]
mod decode_support;

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use decode_support::{Table, generous};
use serde_json::Value;

/// A whole file and two damaged ones each.
const IMAGES: &str = "400";

#[test]
fn random_images_are_decoded_as_pillow_decodes_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = env::var_os("MEDIAGATE_PILLOW_PYTHON").unwrap_or_else(|| root.join(".venv/bin/python").into());
    let version = Command::new(&python).args(["-c", "import PIL, numpy; print(PIL.__version__)"]).output();
    if !version.is_ok_and(|output| output.stdout == b"13.0.0\n") {
        println!("skipped: {} has no pillow 13.0.0 and numpy", python.display());
        return;
    }
    let choice = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.into());
    let output = Command::new(&python)
        .arg(root.join("tests/pillow/generate.py"))
        .args([choice("MEDIAGATE_PILLOW_SEED", "1"), choice("MEDIAGATE_PILLOW_IMAGES", IMAGES)])
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success());
    let mut table = Table::default();
    for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let image: Value = serde_json::from_slice(line).unwrap();
        let bytes = base64_simd::STANDARD.decode_to_vec(image["file"].as_str().unwrap()).unwrap();
        table.count(image["name"].as_str().unwrap(), &bytes, &image, &generous());
    }
    table.print_and_check();
}
