//! Files that a program of tests/pillow makes at random, against what it says that Pillow makes of them.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use mediagate::media::decode::DecodeLimits;
use serde_json::Value;

use super::Table;

/// Runs a program of tests/pillow and compares all that it prints. Says so and returns where there is no Python for it.
pub fn compare(program: &str, images: &str, limits: &DecodeLimits) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = env::var_os("MEDIAGATE_PILLOW_PYTHON").unwrap_or_else(|| root.join(".venv/bin/python").into());
    let version = Command::new(&python).args(["-c", "import PIL, numpy; print(PIL.__version__)"]).output();
    if !version.is_ok_and(|output| output.stdout == b"13.0.0\n") {
        println!("skipped: {} has no pillow 13.0.0 and numpy", python.display());
        return;
    }
    let choice = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.into());
    let output = Command::new(&python)
        .arg(root.join("tests/pillow").join(program))
        .args([choice("MEDIAGATE_PILLOW_SEED", "1"), choice("MEDIAGATE_PILLOW_IMAGES", images)])
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success());
    let mut table = Table::default();
    for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let image: Value = serde_json::from_slice(line).unwrap();
        let bytes = base64_simd::STANDARD.decode_to_vec(image["file"].as_str().unwrap()).unwrap();
        table.count(image["name"].as_str().unwrap(), &bytes, &image, limits);
    }
    table.print_and_check();
}
