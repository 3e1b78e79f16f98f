//! One `--model-path`.

use std::{fmt, path::PathBuf, str::FromStr};

/// `DIR`, or `NAME=DIR` where `NAME` is the served model name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelPath {
    /// `None`: for every model that no other path names.
    pub name: Option<String>,
    pub dir: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelPathError {
    #[error("there is no folder in it; write DIR, or NAME=DIR with the served model name")]
    NoFolder,
    #[error("there is no name before the `=`; write DIR, or NAME=DIR with the served model name")]
    NoName,
}

impl FromStr for ModelPath {
    type Err = ModelPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, dir) = match text.split_once('=') {
            Some(("", _)) => return Err(ModelPathError::NoName),
            Some((name, dir)) => (Some(name.to_owned()), dir),
            None => (None, text),
        };
        if dir.is_empty() { Err(ModelPathError::NoFolder) } else { Ok(ModelPath { name, dir: dir.into() }) }
    }
}

impl fmt::Display for ModelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}={}", self.dir.display()),
            None => write!(f, "{}", self.dir.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_path_is_a_folder_with_or_without_a_name() {
        for (text, name, dir) in [
            ("/models/tiny", None, "/models/tiny"),
            ("Qwen/Qwen3-VL-8B=/models/qwen", Some("Qwen/Qwen3-VL-8B"), "/models/qwen"),
            ("/served=as/path=with=signs", Some("/served"), "as/path=with=signs"),
        ] {
            let path: ModelPath = text.parse().unwrap();
            assert_eq!((path.name.as_deref(), path.dir.to_str()), (name, Some(dir)));
            assert_eq!(path.to_string(), text);
        }
        for text in ["", "name=", "=/dir"] {
            assert!(text.parse::<ModelPath>().is_err(), "{text}");
        }
    }
}
