//! What is read of a model's folder.
//!
//! Where a thing may stand in several files, they are asked in the order of transformers 5
//! (`ImageProcessingMixin.get_image_processor_dict`, `ProcessorMixin.get_processor_dict`): the settings of an image
//! processor nested in processor_config.json go before preprocessor_config.json, and a chat template in a file of its own
//! goes before one in tokenizer_config.json.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// A model's folder, read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelFiles {
    pub dir: PathBuf,
    /// config.json.
    pub config: Value,
    /// Settings of the image processor, if the model has one.
    pub image_processor: Option<Value>,
    /// Settings of the video processor, if the model has one.
    pub video_processor: Option<Value>,
    /// tokenizer.json as it is, if the model has one (some have a tokenizer of another kind).
    pub tokenizer: Option<Vec<u8>>,
    /// tokenizer_config.json.
    pub tokenizer_config: Option<Value>,
    /// The Jinja source of the chat template, if the model has one.
    pub chat_template: Option<String>,
    /// The one for requests with tools: vLLM then asks the tokenizer, which does not know of chat_template.json.
    pub tool_template: Option<String>,
}

/// What keeps a model's folder from being used. For operators: it stands at start.
#[derive(Debug, thiserror::Error)]
pub enum ModelFilesError {
    #[error("cannot read {path}: {source}; --model-path takes the folder that vLLM was given as its model")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not valid JSON: {source}")]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{path}: a chat template must be a text")]
    Template { path: PathBuf },
    #[error("--model-path is given twice {}; give each served model name one folder", match name {
        Some(name) => format!("for {name}"),
        None => "without a name".to_owned(),
    })]
    Twice { name: Option<String> },
}

impl ModelFiles {
    /// Reads a folder: disk work, to be done off the async threads.
    ///
    /// # Errors
    ///
    /// [`ModelFilesError`] if there is no config.json, or if a file that is there cannot be read for what it is.
    pub fn read(dir: &Path) -> Result<Self, ModelFilesError> {
        let path = dir.join("config.json");
        let Some(config) = json(&path)? else {
            return Err(ModelFilesError::Read { path, source: ErrorKind::NotFound.into() });
        };
        let processor = json(&dir.join("processor_config.json"))?;
        let nested = |key: &str| processor.as_ref().and_then(|processor| processor.get(key)).cloned();
        let image_processor = match nested("image_processor") {
            Some(nested) => Some(nested),
            None => json(&dir.join("preprocessor_config.json"))?,
        };
        let video_processor = match nested("video_processor") {
            Some(nested) => Some(nested),
            None => json(&dir.join("video_preprocessor_config.json"))?,
        };
        let tokenizer_config = json(&dir.join("tokenizer_config.json"))?;
        let (chat_template, tool_template) = chat_templates(dir, tokenizer_config.as_ref())?;
        let tokenizer = bytes(&dir.join("tokenizer.json"))?;
        Ok(ModelFiles {
            dir: dir.into(),
            config,
            image_processor,
            video_processor,
            tokenizer,
            tokenizer_config,
            chat_template,
            tool_template,
        })
    }

    /// `model_type` of config.json, such as `qwen3_vl`.
    pub fn model_type(&self) -> Option<&str> {
        self.config.get("model_type").and_then(Value::as_str)
    }
}

/// The template, and the one for requests with tools.
fn chat_templates(
    dir: &Path,
    tokenizer_config: Option<&Value>,
) -> Result<(Option<String>, Option<String>), ModelFilesError> {
    let path = dir.join("chat_template.jinja");
    if let Some(bytes) = bytes(&path)? {
        let template = String::from_utf8(bytes).map_err(|_| ModelFilesError::Template { path })?;
        return Ok((Some(template.clone()), Some(template)));
    }
    let in_config = tokenizer_config.and_then(|config| config.get("chat_template"));
    let of_tokenizer = |purpose: &str| match in_config {
        Some(Value::String(template)) => Some(template.clone()),
        // Several, each under a name of its own.
        Some(Value::Array(named)) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some(purpose))
            .and_then(|entry| entry.get("template"))
            .and_then(Value::as_str)
            .map(str::to_owned),
        _ => None,
    };
    let for_tools = of_tokenizer("tool_use").or_else(|| of_tokenizer("default"));
    let path = dir.join("chat_template.json");
    let template = match json(&path)? {
        Some(legacy) => {
            let template = legacy.get("chat_template").and_then(Value::as_str).map(str::to_owned);
            Some(template.ok_or(ModelFilesError::Template { path })?)
        }
        None => of_tokenizer("default"),
    };
    Ok((template, for_tools))
}

/// The content of a file, or `None` if there is no such file.
fn bytes(path: &Path) -> Result<Option<Vec<u8>>, ModelFilesError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ModelFilesError::Read { path: path.into(), source }),
    }
}

fn json(path: &Path) -> Result<Option<Value>, ModelFilesError> {
    let Some(bytes) = bytes(path)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|source| ModelFilesError::Json { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(files: &[(&str, &str)]) -> Result<ModelFiles, ModelFilesError> {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        ModelFiles::read(dir.path())
    }

    #[test]
    fn a_folder_needs_a_config_and_may_lack_the_rest() {
        let files = read(&[("config.json", r#"{"model_type": "qwen3_vl"}"#)]).unwrap();
        assert_eq!(files.model_type(), Some("qwen3_vl"));
        assert_eq!((files.image_processor, files.tokenizer, files.chat_template), (None, None, None));
        let error = read(&[]).unwrap_err();
        assert!(error.to_string().contains("config.json") && error.to_string().contains("--model-path"), "{error}");
        for broken in ["config.json", "preprocessor_config.json", "tokenizer_config.json", "chat_template.json"] {
            let error = read(&[("config.json", "{}"), (broken, "{")]).unwrap_err();
            assert!(matches!(&error, ModelFilesError::Json { path, .. } if path.ends_with(broken)), "{error}");
        }
    }

    #[test]
    fn nested_processor_settings_go_before_those_in_a_file_of_their_own() {
        let alone = ("preprocessor_config.json", r#"{"patch_size": 14}"#);
        let video = ("video_preprocessor_config.json", r#"{"fps": 2}"#);
        let files = read(&[("config.json", "{}"), alone, video]).unwrap();
        assert_eq!(files.image_processor, Some(json!({"patch_size": 14})));
        assert_eq!(files.video_processor, Some(json!({"fps": 2})));
        let nested = r#"{"image_processor": {"patch_size": 16}, "video_processor": {"fps": 1}}"#;
        let files = read(&[("config.json", "{}"), alone, video, ("processor_config.json", nested)]).unwrap();
        assert_eq!(files.image_processor, Some(json!({"patch_size": 16})));
        assert_eq!(files.video_processor, Some(json!({"fps": 1})));
        let legacy = r#"{"processor_class": "LlavaProcessor"}"#;
        let files = read(&[("config.json", "{}"), alone, ("processor_config.json", legacy)]).unwrap();
        assert_eq!(files.image_processor, Some(json!({"patch_size": 14})));
    }

    #[test]
    fn chat_templates_are_found_in_each_of_their_places() {
        let config = ("config.json", "{}");
        let jinja = ("chat_template.jinja", "own file");
        let legacy = ("chat_template.json", r#"{"chat_template": "legacy"}"#);
        let tokenizer = ("tokenizer_config.json", r#"{"chat_template": "tokenizer"}"#);
        let named =
            r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        for (files, expected, for_tools) in [
            (vec![config, jinja, legacy, tokenizer], Some("own file"), Some("own file")),
            (vec![config, legacy, tokenizer], Some("legacy"), Some("tokenizer")),
            (vec![config, legacy], Some("legacy"), None),
            (vec![config, tokenizer], Some("tokenizer"), Some("tokenizer")),
            (vec![config, ("tokenizer_config.json", named)], Some("d"), Some("t")),
            (vec![config, ("tokenizer_config.json", "{}")], None, None),
        ] {
            let files = read(&files).unwrap();
            assert_eq!((files.chat_template.as_deref(), files.tool_template.as_deref()), (expected, for_tools));
        }
        let error = read(&[config, ("chat_template.json", r#"{"chat_template": 7}"#)]).unwrap_err();
        assert!(matches!(error, ModelFilesError::Template { .. }), "{error}");
    }
}
