//! The image cases that lie beside the repository, each a test of its own name: pixels as vLLM makes them, refusals as it
//! refuses. Where the cases are not there, one ignored test says so; `decode_reference` has images of its own in any case.

#[allow(dead_code, reason = "shared with another test")]
mod decode_support;

use std::path::{Path, PathBuf};

use decode_support::{Outcome, decode};
use libtest_mimic::{Arguments, Failed, Trial};
use mediagate::{
    error::Fault,
    media::decode::{DecodeLimits, Format},
};
use serde_json::Value;

/// Cases of formats that we decode which go to the worker as bytes nevertheless, as docs/SEMANTICS.md says.
const OPAQUE: &[&str] = &["tiff_group4_1bit", "tiff_lab"];

fn main() {
    let arguments = Arguments::from_args();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cases");
    let trials = match std::fs::read(folder.join("cases.json")) {
        Ok(cases) => trials(&serde_json::from_slice(&cases).expect("the cases are JSON"), &folder),
        Err(_) => vec![Trial::test("the_cases_are_not_beside_the_repository", || Ok(())).with_ignored_flag(true)],
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn trials(cases: &Value, folder: &Path) -> Vec<Trial> {
    let cases = cases["cases"].as_array().expect("a list of cases").iter().filter(|case| case["kind"] == "image");
    let trial = |case: &Value| {
        let text = |key: &str| case[key].as_str().expect("a text").to_owned();
        let (name, file, expected) = (text("name"), folder.join(text("file")), case["expected"].clone());
        Trial::test(name.clone(), move || check(&name, &file, &expected).map_err(Failed::from)).with_kind(text("group"))
    };
    cases.map(trial).collect()
}

fn check(name: &str, file: &PathBuf, expected: &Value) -> Result<(), String> {
    let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let (format, outcome) = decode(&bytes, &DecodeLimits::default());
    let status = expected["status"].as_str().unwrap_or_default();
    match (status, outcome) {
        ("ok" | "ok_or_client_error", Outcome::Pixels { height, width, rgb_sha256 }) => {
            let equal =
                expected["height"] == height && expected["width"] == width && expected["rgb_sha256"] == *rgb_sha256;
            if equal { Ok(()) } else { Err(format!("{height} x {width} of {rgb_sha256}, expected {expected}")) }
        }
        ("client_error" | "ok_or_client_error", Outcome::Refused(error)) if error.status().is_client_error() => Ok(()),
        (_, Outcome::Opaque) if !is_decoded(format) || OPAQUE.contains(&name) => Ok(()),
        (_, outcome) => Err(format!("{outcome:?}, expected {expected}")),
    }
}

fn is_decoded(format: Option<Format>) -> bool {
    use Format::{Bmp, Gif, Ico, Jpeg, Png, Pnm, Qoi, Tga, Tiff, WebP};
    matches!(format, Some(Jpeg | Png | WebP | Gif | Bmp | Tiff | Ico | Pnm | Tga | Qoi))
}
