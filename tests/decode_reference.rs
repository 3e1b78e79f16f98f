//! Every image of the public test suites, and of this repository, against what vLLM made of it.
//!
//! The images are not part of this repository; where they are not found beside it, the tests say so and pass.

#[allow(dead_code, reason = "shared with another test")]
mod decode_support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use decode_support::{Outcome, Table, decode, generous};
use mediagate::media::decode::DecodeLimits;
use serde_json::Value;

/// Where we differ on purpose: (file, reason).
const EXCEPTIONS: &[(&str, &str)] = &[];

fn table() -> Table {
    Table::with_exceptions(EXCEPTIONS)
}

fn shared(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not here", path.display());
    None
}

#[test]
fn the_corpus_is_decoded_as_vllm_decodes_it() {
    let Some(reference) = shared("corpus/reference.jsonl") else { return };
    let folder = reference.parent().unwrap();
    let mut table = table();
    for line in fs::read_to_string(&reference).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        // A broken file that vLLM takes for a partial picture by accident: refused here, and in no table.
        if row["status"] == "ok_quirk" {
            continue;
        }
        let name = row["file"].as_str().unwrap();
        let bytes = fs::read(folder.join(name)).unwrap();
        table.count(name, &bytes, &row, &generous());
    }
    table.print_and_check();
}

#[test]
fn broken_files_that_vllm_takes_by_accident_are_refused() {
    let Some(reference) = shared("corpus/reference.jsonl") else { return };
    let folder = reference.parent().unwrap();
    let mut accepted = Vec::new();
    let mut count = 0;
    for line in fs::read_to_string(&reference).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        if row["status"] != "ok_quirk" {
            continue;
        }
        count += 1;
        let name = row["file"].as_str().unwrap();
        if let (format, Outcome::Pixels { .. }) = decode(&fs::read(folder.join(name)).unwrap(), &generous()) {
            accepted.push(format!("{format:?} {name}"));
        }
    }
    println!("{count} files");
    assert!(accepted.is_empty(), "accepted: {accepted:#?}");
}

#[test]
fn the_images_of_this_repository_are_decoded_as_vllm_decodes_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let expected = fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_str(&expected).unwrap();
    let mut table = table();
    for (name, expected) in &expected {
        let bytes = fs::read(folder.join("images").join(name)).unwrap();
        table.count(name, &bytes, expected, &DecodeLimits::default());
    }
    table.print_and_check();
}
