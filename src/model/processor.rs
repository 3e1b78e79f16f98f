//! What sizes an image processor gives to pictures, as far as that is a rule that is known to the last pixel.
//!
//! Known are the processors of Qwen2-VL, Qwen2.5-VL and Qwen3-VL in their torchvision form, which are one class. Anything
//! else, and any setting of these that is not understood, is no rule: pictures then go in full to the worker.

use serde_json::{Map, Value};

use crate::media::resize::SmartResize;

/// The torchvision form of `Qwen2VLImageProcessor`: transformers 4 tells it by a suffix, transformers 5 has it by default
/// (and the slow one is `Qwen2VLImageProcessorPil`).
const CLASSES: [&str; 2] = ["Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast"];

/// `PIL.Image.Resampling.BICUBIC`.
const BICUBIC: u64 = 3;

/// What the class has where nothing is set.
mod default {
    pub const MIN_PIXELS: u64 = 56 * 56;
    pub const MAX_PIXELS: u64 = 28 * 28 * 1280;
    pub const PATCH_SIZE: u64 = 14;
    pub const MERGE_SIZE: u64 = 2;
}

/// The rule by the settings of a model's folder (preprocessor_config.json). Whether a worker runs this processor, in which
/// version and with which overrides, they do not tell.
pub fn rule_of_files(settings: &Value) -> Option<SmartResize> {
    rule(settings.as_object()?, "image_processor_type")
}

/// The rule by settings as [`rule_of_files`] takes them, with the class under the name `class`.
pub(super) fn rule(settings: &Map<String, Value>, class: &str) -> Option<SmartResize> {
    let class = settings.get(class)?.as_str()?;
    let number = |name: &str, default: u64| match settings.get(name) {
        None | Some(Value::Null) => Some(default),
        Some(value) => value.as_u64(),
    };
    let resizes = matches!(settings.get("do_resize"), None | Some(Value::Null | Value::Bool(true)));
    if !CLASSES.contains(&class) || !resizes || number("resample", BICUBIC)? != BICUBIC {
        return None;
    }
    // As in the class's constructor: min_pixels and max_pixels go before the edges of `size`, which replaces the default.
    let edge = |pixels: &str, edge: &str, default: u64| match (settings.get(pixels), settings.get("size")) {
        (Some(pixels), _) if !pixels.is_null() => pixels.as_u64(),
        (_, None | Some(Value::Null)) => Some(default),
        (_, Some(size)) => size.get(edge)?.as_u64(),
    };
    let min_pixels = edge("min_pixels", "shortest_edge", default::MIN_PIXELS)?;
    let max_pixels = edge("max_pixels", "longest_edge", default::MAX_PIXELS)?;
    let patch_size = number("patch_size", default::PATCH_SIZE)?;
    let merge_size = number("merge_size", default::MERGE_SIZE)?;
    let factor = u32::try_from(patch_size.checked_mul(merge_size)?).ok()?;
    SmartResize::new(factor, min_pixels, max_pixels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(mut settings: Value) -> Option<SmartResize> {
        settings["image_processor_type"] = json!("Qwen2VLImageProcessorFast");
        rule_of_files(&settings)
    }

    #[test]
    fn limits_are_found_in_each_of_their_spellings() {
        for (settings, factor, min, max) in [
            (json!({}), 28, 3136, 1_003_520),
            (json!({"min_pixels": 4, "max_pixels": 5_000, "patch_size": 16}), 32, 4, 5_000),
            (json!({"size": {"shortest_edge": 6, "longest_edge": 7_000}, "merge_size": 1}), 14, 6, 7_000),
            (json!({"size": {"shortest_edge": 6, "longest_edge": 7_000}, "max_pixels": 8_000}), 28, 6, 8_000),
            (json!({"size": {"max_pixels": 1}, "min_pixels": 4, "max_pixels": 8_000}), 28, 4, 8_000),
            (json!({"size": null, "resample": 3, "do_resize": true}), 28, 3136, 1_003_520),
        ] {
            assert_eq!(of(settings.clone()), SmartResize::new(factor, min, max), "{settings}");
        }
    }

    #[test]
    fn what_is_not_understood_is_no_rule() {
        for settings in [
            json!({"do_resize": false}),
            json!({"resample": 2}),
            json!({"size": {"height": 224, "width": 224}}),
            json!({"size": {"shortest_edge": 6}}),
            json!({"size": 224}),
            json!({"max_pixels": 1e6}),
            json!({"max_pixels": -1}),
            json!({"max_pixels": "1"}),
            json!({"patch_size": 0}),
            json!({"patch_size": u64::MAX}),
            json!({"min_pixels": 9, "max_pixels": 8}),
        ] {
            assert_eq!(of(settings.clone()), None, "{settings}");
        }
        for class in ["Qwen2VLImageProcessorPil", "CLIPImageProcessor", ""] {
            assert_eq!(rule_of_files(&json!({"image_processor_type": class})), None);
        }
        assert_eq!(rule_of_files(&json!({"patch_size": 14})), None);
        assert_eq!(rule_of_files(&json!([])), None);
    }
}
