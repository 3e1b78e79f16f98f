//! How many tokens of a prompt an image becomes.
//!
//! The rule is the image processor's of the model's family, as transformers has it and vLLM asks it. `llm-multimodal`
//! computes it; what is done around it here is what it does not know:
//!
//! - Defaults and older spellings of settings are filled in as transformers fills them in. Left out, the crate takes others
//!   (for Qwen2-VL it does not look at `size` at all, and its smallest picture is 64 times transformers').
//! - LLaVA-NeXT's rows are counted here: the crate rounds to the nearest where transformers cuts off, and so is off by
//!   two rows for some sizes.
//! - A family counts only if `tests/image_tokens.rs` holds it against transformers. With any other, prompts are known by
//!   their texts and images alone.

use llm_multimodal::{
    LlavaNextProcessor, LlavaProcessor, PreProcessorConfig, VisionPreProcessor, VisionProcessorRegistry,
    vision::preprocessor_config::PatchSize,
};
use serde_json::Value;

use super::ModelFiles;

/// vLLM takes no larger picture (VLLM_MAX_IMAGE_PIXELS), so none has a count.
const MAX_PIXELS: u64 = 178_956_970;

/// Above what any model has: keeps arithmetic on settings far from overflow.
const MAX_SETTING: u64 = 1 << 32;

/// Counts the tokens of images of one model.
pub struct ImageTokens {
    rule: Rule,
    placeholder: &'static str,
}

enum Rule {
    /// Resized to a multiple of patches within bounds of pixels; a token for each square of merged patches.
    Qwen { processors: VisionProcessorRegistry, model_type: &'static str, config: Box<PreProcessorConfig> },
    /// Always as many.
    Llava { tokens: usize },
    /// An overview, and tiles of the picture without their padding, with a token at the end of each row.
    LlavaNext { processor: LlavaNextProcessor, class_token: i64 },
}

/// Why images of a model cannot be counted. For operators: it stands at start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageTokensError {
    #[error(
        "its model_type {0:?} is none whose image tokens can be counted (qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe, llava, llava_next)"
    )]
    Family(String),
    #[error("it has no preprocessor_config.json")]
    NoProcessor,
    #[error("its image processor is {0}, which is not the one of its family")]
    Processor(String),
    #[error("{0} has a value that cannot be counted with")]
    Setting(&'static str),
}

/// Why one image has no token count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a picture of height {height} and width {width} is none that the model takes")]
pub struct UncountableSize {
    pub height: u32,
    pub width: u32,
}

impl ImageTokens {
    /// The rule of a model.
    ///
    /// # Errors
    ///
    /// [`ImageTokensError`] if it is of a family that is not known, or has settings that make no sense.
    pub fn new(files: &ModelFiles) -> Result<Self, ImageTokensError> {
        let model_type = files.model_type().unwrap_or_default();
        let (rule, placeholder) = match model_type {
            "qwen2_vl" | "qwen2_5_vl" => (qwen(files, "qwen2_vl")?, "<|image_pad|>"),
            "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe" => (qwen(files, "qwen3_vl")?, "<|image_pad|>"),
            "llava" => {
                let (config, class_token) = llava(&files.config)?;
                let patches = LlavaProcessor::from_config(&config);
                let squares = patches.calculate_num_tokens(1, 1, &PreProcessorConfig::default());
                let squares = squares.map_err(|_| ImageTokensError::Setting("vision_config"))?;
                let tokens = squares.saturating_add_signed(class_token as isize);
                (Rule::Llava { tokens }, "<image>")
            }
            "llava_next" => {
                let (config, class_token) = llava(&files.config)?;
                (Rule::LlavaNext { processor: LlavaNextProcessor::from_config(&config), class_token }, "<image>")
            }
            other => return Err(ImageTokensError::Family(other.to_owned())),
        };
        Ok(ImageTokens { rule, placeholder })
    }

    /// Tokens of an image of this size.
    ///
    /// # Errors
    ///
    /// [`UncountableSize`] if the model refuses it (Qwen: sides more than 200 to 1), or vLLM does.
    pub fn count(&self, height: u32, width: u32) -> Result<usize, UncountableSize> {
        let refused = UncountableSize { height, width };
        if height == 0 || width == 0 || u64::from(height) * u64::from(width) > MAX_PIXELS {
            return Err(refused);
        }
        match &self.rule {
            Rule::Qwen { processors, model_type, config } => {
                let processor = processors.find(model_type, None).ok_or(refused)?;
                processor.calculate_num_tokens(width, height, config).map_err(|_| refused)
            }
            Rule::Llava { tokens } => Ok(*tokens),
            Rule::LlavaNext { processor, class_token } => {
                let tokens = llava_next_tokens(processor, height, width) + class_token;
                usize::try_from(tokens).map_err(|_| refused)
            }
        }
    }

    /// What stands for an image in a prompt's text, where a template does not write it itself: vLLM's `get_placeholder_str`.
    pub fn placeholder_text(&self) -> &'static str {
        match self.rule {
            Rule::Qwen { .. } => "<|vision_start|><|image_pad|><|vision_end|>",
            Rule::Llava { .. } | Rule::LlavaNext { .. } => self.placeholder,
        }
    }

    /// The id of the token that stands for an image in a prompt: by config.json, else by the name that it has in the
    /// vocabulary. config.json says it under several keys, and says -1 or another negative for "not this one".
    pub fn placeholder_id(&self, config: &Value, vocabulary: impl Fn(&str) -> Option<u32>) -> Option<u32> {
        let said = |key| config.get(key).and_then(Value::as_i64).and_then(|id| u32::try_from(id).ok());
        ["image_token_id", "image_token_index", "media_placeholder_token_id"]
            .into_iter()
            .find_map(said)
            .or_else(|| vocabulary(self.placeholder))
    }
}

/// A setting that counts something: absent, or from 1 to [`MAX_SETTING`].
fn setting(within: &Value, key: &'static str) -> Result<Option<usize>, ImageTokensError> {
    match within.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number @ 1..=MAX_SETTING) => {
                usize::try_from(number).map(Some).map_err(|_| ImageTokensError::Setting(key))
            }
            _ => Err(ImageTokensError::Setting(key)),
        },
    }
}

/// transformers: `Qwen2VLImageProcessor`, which Qwen2.5-VL and Qwen3-VL have too, with other settings.
fn qwen(files: &ModelFiles, model_type: &'static str) -> Result<Rule, ImageTokensError> {
    let given = files.image_processor.as_ref().ok_or(ImageTokensError::NoProcessor)?;
    if let Some(class) = given.get("image_processor_type").and_then(Value::as_str)
        && !class.starts_with("Qwen2VLImageProcessor")
    {
        return Err(ImageTokensError::Processor(class.to_owned()));
    }
    if given.get("do_resize") == Some(&Value::Bool(false)) {
        return Err(ImageTokensError::Setting("do_resize"));
    }
    let size = given.get("size").unwrap_or(&Value::Null);
    // min_pixels and max_pixels are the older spelling and go before. A size replaces the whole default.
    let bound = |older, newer, default| match (setting(given, older)?, setting(size, newer)?, size.is_null()) {
        (Some(pixels), ..) | (None, Some(pixels), _) => Ok(pixels),
        (None, None, true) => Ok(default),
        (None, None, false) => Err(ImageTokensError::Setting("size")),
    };
    let (min_pixels, max_pixels) =
        (bound("min_pixels", "shortest_edge", 56 * 56)?, bound("max_pixels", "longest_edge", 28 * 28 * 1280)?);
    let patch = setting(given, "patch_size")?.unwrap_or(14);
    let merge = setting(given, "merge_size")?.unwrap_or(2);
    if patch > 1024 || merge > 64 {
        return Err(ImageTokensError::Setting("patch_size"));
    }
    let patch = u32::try_from(patch).ok();
    let config = PreProcessorConfig {
        min_pixels: Some(min_pixels),
        max_pixels: Some(max_pixels),
        patch_size: Some(PatchSize { height: patch, width: patch }),
        merge_size: Some(merge),
        ..PreProcessorConfig::default()
    };
    Ok(Rule::Qwen { processors: VisionProcessorRegistry::with_defaults(), model_type, config: Box::new(config) })
}

/// A LLaVA's config with its vision tower's settings spelled out, and the tokens that its class token adds: vLLM's
/// `get_num_selected_vision_tokens` on `CLIPEncoderInfo` and `SiglipEncoderInfo`.
fn llava(config: &Value) -> Result<(Value, i64), ImageTokensError> {
    let null = Value::Null;
    let tower = config.get("vision_config").unwrap_or(&null);
    // Those of transformers' `LlavaConfig`, which speaks of CLIP.
    let kind = tower.get("model_type").and_then(Value::as_str).unwrap_or("clip_vision_model");
    let has_class_token = match kind {
        "clip_vision_model" => 1,
        "siglip_vision_model" => 0,
        _ => return Err(ImageTokensError::Setting("vision_config.model_type")),
    };
    let dropped = match config.get("vision_feature_select_strategy").and_then(Value::as_str) {
        None | Some("default") => 1,
        Some("full") => 0,
        Some(_) => return Err(ImageTokensError::Setting("vision_feature_select_strategy")),
    };
    let image = setting(tower, "image_size")?.unwrap_or(336);
    let patch = setting(tower, "patch_size")?.unwrap_or(14);
    if !image.is_multiple_of(patch) || image > 1 << 16 {
        return Err(ImageTokensError::Setting("vision_config.image_size"));
    }
    let mut spelled = serde_json::json!({ "vision_config": { "image_size": image, "patch_size": patch } });
    if let Some(pinpoints) = config.get("image_grid_pinpoints") {
        let pairs =
            pinpoints.as_array().filter(|pairs| !pairs.is_empty() && pairs.iter().all(|pair| is_grid(pair, image)));
        let pairs = pairs.ok_or(ImageTokensError::Setting("image_grid_pinpoints"))?;
        spelled["image_grid_pinpoints"] = Value::Array(pairs.clone());
    }
    Ok((spelled, has_class_token - dropped))
}

/// Whether this is a (height, width) of at least one tile.
fn is_grid(pair: &Value, tile: usize) -> bool {
    let sides = pair.as_array().map(|sides| sides.iter().map(Value::as_u64).collect::<Vec<_>>());
    matches!(sides.as_deref(), Some([Some(height), Some(width)])
        if [height, width].iter().all(|&&side| side >= tile as u64 && side <= 1 << 20))
}

/// transformers' `LlavaNextProcessor._get_number_of_features`, without class token.
fn llava_next_tokens(processor: &LlavaNextProcessor, height: u32, width: u32) -> i64 {
    let patches = i64::from(processor.base.image_size / processor.base.patch_size);
    let (across, down) = processor.get_anyres_grid_shape((width, height));
    let (mut rows, mut columns) = (patches * i64::from(down), patches * i64::from(across));
    let (height, width) = (f64::from(height), f64::from(width));
    // What the padding to the grid's shape has left of one side, in patches: cut off, after a rounding to seven places
    // that mends what the division did to whole numbers.
    let cut = |side: f64, scale: f64| ((side * scale * 1e7).round_ties_even() / 1e7) as i64;
    if width / height > columns as f64 / rows as f64 {
        let filled = cut(height, columns as f64 / width);
        rows -= (rows - filled).div_euclid(2) * 2;
    } else {
        let filled = cut(width, rows as f64 / height);
        columns -= (columns - filled).div_euclid(2) * 2;
    }
    // A token at the end of each row, and the overview.
    rows * columns + rows + patches * patches
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokens(config: Value, image_processor: Option<Value>) -> Result<ImageTokens, ImageTokensError> {
        ImageTokens::new(&ModelFiles { config, image_processor, ..ModelFiles::default() })
    }

    #[test]
    fn a_family_that_is_not_tested_is_refused_by_name() {
        for config in [json!({"model_type": "pixtral"}), json!({}), json!({"model_type": 7}), Value::Null] {
            assert!(matches!(tokens(config, Some(json!({}))), Err(ImageTokensError::Family(_))));
        }
        let other = json!({"image_processor_type": "PixtralImageProcessor"});
        assert!(matches!(tokens(json!({"model_type": "qwen3_vl"}), Some(other)), Err(ImageTokensError::Processor(_))));
        assert_eq!(tokens(json!({"model_type": "qwen3_vl"}), None).err(), Some(ImageTokensError::NoProcessor));
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_and_none_panics() {
        let values = [json!(0), json!(-1), json!(u64::MAX), json!(1.5), json!("14"), json!([14]), json!({})];
        for value in &values {
            for key in ["patch_size", "merge_size", "min_pixels", "max_pixels"] {
                let refused = tokens(json!({"model_type": "qwen2_vl"}), Some(json!({ key: value })));
                assert!(matches!(refused, Err(ImageTokensError::Setting(_))), "{key} {value}");
            }
            for key in ["patch_size", "image_size"] {
                let config = json!({"model_type": "llava_next", "vision_config": { key: value }});
                assert!(matches!(tokens(config, None), Err(ImageTokensError::Setting(_))), "{key} {value}");
            }
            let config = json!({"model_type": "llava_next", "image_grid_pinpoints": [[336, 336], [336, value]]});
            assert!(matches!(tokens(config, None), Err(ImageTokensError::Setting(_))), "{value}");
        }
        let size = json!({"size": {"longest_edge": 7}});
        assert!(tokens(json!({"model_type": "qwen2_vl"}), Some(size)).is_err(), "half a size has no other half");
    }

    #[test]
    fn sizes_that_no_worker_takes_have_no_count() {
        let qwen = tokens(json!({"model_type": "qwen2_vl"}), Some(json!({}))).unwrap();
        let next = tokens(json!({"model_type": "llava_next"}), None).unwrap();
        for (height, width) in [(0, 1), (1, 0), (u32::MAX, u32::MAX), (20_000, 20_000), (201, 1)] {
            assert_eq!(qwen.count(height, width), Err(UncountableSize { height, width }));
        }
        assert!(next.count(201, 1).is_ok() && next.count(1, 4000).is_ok());
        assert!(next.count(u32::MAX, 1).is_err());
    }

    #[test]
    fn the_placeholder_is_the_first_id_that_is_none_else_the_vocabularys() {
        let qwen = tokens(json!({"model_type": "qwen2_5_vl"}), Some(json!({}))).unwrap();
        let found = |config| qwen.placeholder_id(&config, |token| (token == "<|image_pad|>").then_some(151_655));
        assert_eq!(found(json!({"image_token_id": 1, "vision_token_id": 151_654})), Some(1));
        assert_eq!(found(json!({"image_token_id": -1, "image_token_index": 2})), Some(2));
        assert_eq!(found(json!({"image_token_index": -200, "media_placeholder_token_id": 3})), Some(3));
        assert_eq!(found(json!({"vision_token_id": 151_654})), Some(151_655));
        assert_eq!(qwen.placeholder_id(&Value::Null, |_| None), None);
    }
}
