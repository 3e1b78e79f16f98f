//! Counting what the decoders make of images against what vLLM makes of them.

pub mod pillow;

use std::collections::BTreeMap;

use mediagate::media::decode::{DecodeError, DecodeLimits, Format, Probe, Scratch, decode_into, probe};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// What became of one image.
#[derive(Debug)]
pub enum Outcome {
    Pixels { height: u32, width: u32, rgb_sha256: String },
    Opaque,
    Refused(DecodeError),
}

/// Decodes over memory that is not zero.
pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> (Option<Format>, Outcome) {
    let format = Format::sniff(bytes);
    let outcome = match probe(bytes, limits) {
        Err(error) => Outcome::Refused(error),
        Ok(Probe::Opaque(_)) => Outcome::Opaque,
        Ok(Probe::Decodable(header)) => {
            let mut rgb = vec![0xa5; header.rgb_bytes()];
            match decode_into(bytes, &header, &mut rgb, &mut Scratch::default()) {
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

/// Counts by format.
#[derive(Default)]
pub struct Table {
    /// Files where we differ on purpose, and why.
    exceptions: &'static [(&'static str, &'static str)],
    formats: BTreeMap<String, Tally>,
}

impl Table {
    /// With files where we differ on purpose, and why.
    pub fn with_exceptions(exceptions: &'static [(&'static str, &'static str)]) -> Self {
        Self { exceptions, ..Self::default() }
    }

    /// Counts one image. `expected` has status, width, height and `rgb_sha256`.
    pub fn count(&mut self, name: &str, bytes: &[u8], expected: &Value, limits: &DecodeLimits) {
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
        if self.exceptions.iter().any(|(file, _)| *file == name) {
            tally.listed += 1;
        } else {
            complaint.0.push(complaint.1);
        }
    }

    /// Prints the table; fails if a file is in one of its last three columns.
    pub fn print_and_check(&self) {
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

/// vLLM's own limit, so that size alone refuses nothing that it takes.
pub fn generous() -> DecodeLimits {
    DecodeLimits { max_pixels: 178_956_970, max_side: u32::MAX, max_scratch_bytes: 4 << 30, ..DecodeLimits::default() }
}
