//! Whether what a worker says of its image processor (docs/PROTOCOL.md, `image_processor`) is covered by a test.
//!
//! Equality to the bit hangs on code of three libraries, so a processor counts as known only with versions that
//! `tests/resize_transformers.rs` ran with. A worker with others gets pictures in full, and the log says why.

use serde_json::{Map, Value};

use super::processor;
use crate::media::resize::SmartResize;

/// Versions that were tested together, by major and minor number.
struct Tested {
    transformers: &'static str,
    torch: &'static str,
    torchvision: &'static str,
}

const TESTED: [Tested; 1] = [Tested { transformers: "5.19", torch: "2.13", torchvision: "0.28" }];

/// Processors compute on another machine's CPU: PyTorch has other code for other architectures.
const TESTED_MACHINES: [&str; 2] = ["x86_64", "AMD64"];

/// Settings for each call that change sizes, which the effective `size` says already, or what is done to each pixel once the
/// size is right.
const HARMLESS: [&str; 8] =
    ["size", "min_pixels", "max_pixels", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"];

/// Why pictures go to a worker in full. For operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotCovered {
    #[error("the worker does not say which image processor it has")]
    Unknown,
    #[error("the worker's plugin is older than the gateway and does not say enough of its image processor")]
    Incomplete,
    #[error("no rule is known for {class} with its settings")]
    NoRule { class: String },
    #[error("the image processor runs on {0}, not on the CPU")]
    Device(String),
    #[error("the image processor runs on {0}, for which there is no test")]
    Machine(String),
    #[error("--mm-processor-kwargs sets {0}, which the gateway does not know")]
    Override(String),
    #[error("there is no test with transformers {transformers}, torch {torch} and torchvision {torchvision}")]
    Versions { transformers: String, torch: String, torchvision: String },
}

/// The rule by which a worker's image processor sizes pictures.
///
/// # Errors
///
/// What keeps the gateway from resizing for this worker.
pub fn rule_of_worker(says: Option<&Value>) -> Result<SmartResize, NotCovered> {
    let says = says.and_then(Value::as_object).ok_or(NotCovered::Unknown)?;
    let text = |of: &Map<String, Value>, name: &str| of.get(name).and_then(Value::as_str).map(str::to_owned);
    let class = text(says, "class").ok_or(NotCovered::Unknown)?;
    let of_call = says.get("call").and_then(Value::as_object).ok_or(NotCovered::Incomplete)?;
    let (device, machine) = (text(says, "device"), text(says, "machine"));
    let (device, machine) = device.zip(machine).ok_or(NotCovered::Incomplete)?;
    if device != "cpu" {
        return Err(NotCovered::Device(device));
    }
    if !TESTED_MACHINES.contains(&machine.as_str()) {
        return Err(NotCovered::Machine(machine));
    }
    if let Some(other) = of_call.keys().find(|name| !HARMLESS.contains(&name.as_str())) {
        return Err(NotCovered::Override(other.clone()));
    }
    let versions = says.get("versions").and_then(Value::as_object).ok_or(NotCovered::Incomplete)?;
    let version = |name: &str| text(versions, name).unwrap_or_else(|| "(none)".into());
    let (transformers, torch, torchvision) = (version("transformers"), version("torch"), version("torchvision"));
    let is_tested = |tested: &Tested| {
        is_of(&transformers, tested.transformers)
            && is_of(&torch, tested.torch)
            && is_of(&torchvision, tested.torchvision)
    };
    if !TESTED.iter().any(is_tested) {
        return Err(NotCovered::Versions { transformers, torch, torchvision });
    }
    processor::rule(says, "class").ok_or(NotCovered::NoRule { class })
}

/// Whether a version is one of a major and minor number, and no preview of it.
fn is_of(version: &str, major_and_minor: &str) -> bool {
    let patch = version.strip_prefix(major_and_minor).and_then(|rest| rest.strip_prefix('.'));
    // A local part (`+cpu`) says how it was built.
    let patch = patch.map(|patch| patch.split_once('+').map_or(patch, |(patch, _)| patch));
    patch.is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn covered() -> Value {
        json!({
            "class": "Qwen2VLImageProcessor",
            "size": {"shortest_edge": 65536, "longest_edge": 16777216},
            "patch_size": 16,
            "merge_size": 2,
            "temporal_patch_size": 2,
            "resample": 3,
            "do_resize": true,
            "device": "cpu",
            "machine": "x86_64",
            "call": {"max_pixels": 16777216, "do_normalize": false},
            "versions": {"transformers": "5.19.0", "torch": "2.13.0+cpu", "torchvision": "0.28.0"},
        })
    }

    #[test]
    fn a_processor_that_a_test_covers_has_a_rule() {
        assert_eq!(rule_of_worker(Some(&covered())).ok(), SmartResize::new(32, 65536, 16777216));
    }

    #[test]
    fn any_doubt_leaves_pictures_as_they_are() {
        for (member, value, because) in [
            ("class", json!("Qwen2VLImageProcessorPil"), "no rule"),
            ("class", Value::Null, "does not say which"),
            ("size", json!({"height": 5, "width": 5}), "no rule"),
            ("do_resize", json!(false), "no rule"),
            ("resample", json!(2), "no rule"),
            ("device", json!("cuda:0"), "cuda:0"),
            ("machine", json!("aarch64"), "aarch64"),
            ("machine", Value::Null, "older"),
            ("call", json!({"do_resize": false}), "do_resize"),
            ("call", Value::Null, "older"),
            ("versions", json!({"transformers": "5.20.0", "torch": "2.13.0", "torchvision": "0.28.0"}), "5.20.0"),
            ("versions", json!({"transformers": "5.19.0.dev0", "torch": "2.13.0", "torchvision": "0.28.0"}), "dev0"),
            ("versions", json!({"transformers": "5.19.0", "torch": "2.13.0"}), "(none)"),
            ("versions", json!({"transformers": "5.190.0", "torch": "2.13.0", "torchvision": "0.28.0"}), "5.190"),
        ] {
            let mut says = covered();
            says[member] = value;
            let error = rule_of_worker(Some(&says)).unwrap_err().to_string();
            assert!(error.contains(because), "{member}: {error}");
        }
        for nothing in [None, Some(&Value::Null), Some(&json!([]))] {
            assert_eq!(rule_of_worker(nothing), Err(NotCovered::Unknown));
        }
    }
}
