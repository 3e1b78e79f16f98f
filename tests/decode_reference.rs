//! Every image of the public test suites and of our own cases against what vLLM made of it.
//!
//! The images are not part of this repository; where they are not found beside it, the tests say so and pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use mediagate::media::decode::{DecodeError, DecodeLimits, Format, Probe, decode_into, probe};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Where we differ on purpose: (file, reason).
const EXCEPTIONS: &[(&str, &str)] = &[];

/// What became of one image.
#[derive(Debug)]
enum Outcome {
    Pixels { height: u32, width: u32, rgb_sha256: String },
    Opaque,
    Refused(DecodeError),
}

fn decode(bytes: &[u8], limits: &DecodeLimits) -> (Option<Format>, Outcome) {
    let format = Format::sniff(bytes);
    let outcome = match probe(bytes, limits) {
        Err(error) => Outcome::Refused(error),
        Ok(Probe::Opaque(_)) => Outcome::Opaque,
        Ok(Probe::Decodable(header)) => {
            let mut rgb = vec![0xa5; header.rgb_bytes()];
            match decode_into(bytes, &header, &mut rgb) {
                Err(error) => Outcome::Refused(error),
                Ok(()) => {
                    let rgb_sha256 = Sha256::digest(&rgb).iter().map(|byte| format!("{byte:02x}")).collect();
                    Outcome::Pixels { height: header.height(), width: header.width(), rgb_sha256 }
                }
            }
        }
    };
    (format, outcome)
}

/// One line of the table.
#[derive(Default)]
struct Tally {
    equal: usize,
    both_refused: usize,
    opaque: usize,
    listed: usize,
    different: Vec<String>,
    wrongly_accepted: Vec<String>,
    wrongly_refused: Vec<String>,
}

#[derive(Default)]
struct Table {
    formats: BTreeMap<String, Tally>,
    excused: BTreeSet<String>,
}

impl Table {
    /// Counts one image. `expected` has status, width, height and `rgb_sha256`.
    fn count(&mut self, name: &str, bytes: &[u8], expected: &Value, limits: &DecodeLimits) {
        let (format, outcome) = decode(bytes, limits);
        let tally = self.formats.entry(format.map_or("none".into(), |format| format.name().into())).or_default();
        let accepted = expected["status"] == "ok";
        let complaint = match outcome {
            Outcome::Opaque => {
                tally.opaque += 1;
                return;
            }
            Outcome::Pixels { height, width, rgb_sha256 } if accepted => {
                if expected["height"] == height && expected["width"] == width && expected["rgb_sha256"] == *rgb_sha256 {
                    tally.equal += 1;
                    return;
                }
                let wanted = format!("{}x{}", expected["width"], expected["height"]);
                (&mut tally.different, format!("{name}: {width}x{height}, wanted {wanted}"))
            }
            Outcome::Refused(error) if accepted => (&mut tally.wrongly_refused, format!("{name}: {error}")),
            Outcome::Pixels { .. } => (&mut tally.wrongly_accepted, format!("{name}: {}", expected["msg"])),
            Outcome::Refused(_) => {
                tally.both_refused += 1;
                return;
            }
        };
        if EXCEPTIONS.iter().any(|(file, _)| *file == name) {
            self.excused.insert(name.into());
            tally.listed += 1;
        } else {
            complaint.0.push(complaint.1);
        }
    }

    fn print_and_check(&self) {
        println!(
            "{:>10} {:>6} {:>12} {:>7} {:>7} {:>10} {:>16} {:>15}",
            "format", "equal", "both refused", "opaque", "listed", "different", "wrongly accepted", "wrongly refused"
        );
        let mut complaints = Vec::new();
        for (format, tally) in &self.formats {
            let Tally { equal, both_refused, opaque, listed, different, wrongly_accepted, wrongly_refused } = tally;
            println!(
                "{format:>10} {equal:>6} {both_refused:>12} {opaque:>7} {listed:>7} {:>10} {:>16} {:>15}",
                different.len(),
                wrongly_accepted.len(),
                wrongly_refused.len()
            );
            for (kind, names) in
                [("different", different), ("wrongly accepted", wrongly_accepted), ("wrongly refused", wrongly_refused)]
            {
                complaints.extend(names.iter().map(|name| format!("{format} {kind}: {name}")));
            }
        }
        assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
    }
}

fn shared(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not here", path.display());
    None
}

/// vLLM's own limit, so that size alone refuses nothing that it takes.
fn generous() -> DecodeLimits {
    DecodeLimits { max_pixels: 178_956_970, max_side: u32::MAX, max_scratch_bytes: 4 << 30, ..DecodeLimits::default() }
}

#[test]
fn the_corpus_is_decoded_as_vllm_decodes_it() {
    let Some(reference) = shared("corpus/reference.jsonl") else { return };
    let folder = reference.parent().unwrap();
    let mut table = Table::default();
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
    let mut table = Table::default();
    for (name, expected) in &expected {
        let bytes = fs::read(folder.join("images").join(name)).unwrap();
        table.count(name, &bytes, expected, &DecodeLimits::default());
    }
    table.print_and_check();
}

#[test]
fn our_cases_are_decoded_as_vllm_decodes_them() {
    let Some(cases) = shared("cases/cases.json") else { return };
    let folder = cases.parent().unwrap();
    let cases: Value = serde_json::from_str(&fs::read_to_string(&cases).unwrap()).unwrap();
    let mut table = Table::default();
    for case in cases["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == "image") {
        let bytes = fs::read(folder.join(case["file"].as_str().unwrap())).unwrap();
        let name = case["name"].as_str().unwrap();
        match case["expected"]["status"].as_str() {
            // Allowed to be refused, at our limits.
            Some("ok_or_client_error") => continue,
            _ => table.count(name, &bytes, &case["expected"], &DecodeLimits::default()),
        }
    }
    table.print_and_check();
}
