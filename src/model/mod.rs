//! The served models, as far as their folders tell: how they size images, and how they write prompts.
//!
//! vLLM reads the same files. They are read once, at start: a model that changes under a running worker is another model,
//! and gets another start.

mod files;
#[cfg(feature = "mm-routing")]
mod image_tokens;
mod path;
pub mod processor;
pub mod tested;

use std::sync::Arc;

pub use files::{ModelFiles, ModelFilesError};
#[cfg(feature = "mm-routing")]
pub use image_tokens::{ImageTokens, ImageTokensError, UncountableSize};
pub use path::{ModelPath, ModelPathError};

/// The models of the workers whose files are known.
#[derive(Debug, Clone)]
pub struct Models<M = ModelFiles>(Vec<(Option<String>, Arc<M>)>);

impl<M> Default for Models<M> {
    fn default() -> Self {
        Models(Vec::new())
    }
}

impl Models {
    /// Reads all files: disk work, to be done off the async threads.
    ///
    /// # Errors
    ///
    /// What is missing or not readable; and two folders for one name.
    pub fn read(paths: &[ModelPath]) -> Result<Self, ModelFilesError> {
        let mut models = Models::default();
        for path in paths {
            if models.0.iter().any(|(name, _)| *name == path.name) {
                return Err(ModelFilesError::Twice { name: path.name.clone() });
            }
            models.0.push((path.name.clone(), Arc::new(ModelFiles::read(&path.dir)?)));
        }
        Ok(models)
    }
}

impl<M> Models<M> {
    /// The model that a request asks for: by its name, else the one that was given without a name. A request that names no
    /// model means the only one there is, as with vLLM.
    pub fn get(&self, name: Option<&str>) -> Option<&Arc<M>> {
        let by_name = |wanted: Option<&str>| self.0.iter().find(|(known, _)| known.as_deref() == wanted);
        let found = match (name, self.0.as_slice()) {
            (None, [only]) => Some(only),
            (Some(name), _) => by_name(Some(name)).or_else(|| by_name(None)),
            (None, _) => by_name(None),
        };
        found.map(|(_, model)| model)
    }

    /// Each with its served name; `None` stands for every name that is not another's.
    pub fn all(&self) -> impl Iterator<Item = (Option<&str>, &Arc<M>)> {
        self.0.iter().map(|(name, model)| (name.as_deref(), model))
    }

    /// Something made of each.
    pub fn map<N>(&self, mut make: impl FnMut(Option<&str>, &Arc<M>) -> N) -> Models<N> {
        Models(self.0.iter().map(|(name, model)| (name.clone(), Arc::new(make(name.as_deref(), model)))).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(names: &[Option<&str>]) -> Models<usize> {
        Models(names.iter().enumerate().map(|(index, name)| (name.map(Into::into), Arc::new(index))).collect())
    }

    #[test]
    fn a_request_gets_the_model_that_it_names() {
        let found = |names: &[Option<&str>], wanted| models(names).get(wanted).map(|model| **model);
        assert_eq!(found(&[Some("a"), Some("b")], Some("b")), Some(1));
        assert_eq!(found(&[Some("a"), Some("b")], Some("c")), None);
        assert_eq!(found(&[Some("a"), Some("b")], None), None);
        assert_eq!(found(&[Some("a"), None], Some("a")), Some(0));
        assert_eq!(found(&[Some("a"), None], Some("c")), Some(1));
        assert_eq!(found(&[Some("a"), None], None), Some(1));
        assert_eq!(found(&[Some("a")], None), Some(0));
        assert_eq!(found(&[], None), None);
    }

    #[test]
    fn two_folders_for_one_name_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        let path = |name: Option<&str>| ModelPath { name: name.map(Into::into), dir: dir.path().into() };
        assert_eq!(Models::read(&[path(Some("a")), path(None)]).unwrap().all().count(), 2);
        for name in [Some("a"), None] {
            let error = Models::read(&[path(name), path(name)]).unwrap_err();
            assert!(matches!(error, ModelFilesError::Twice { .. }), "{error}");
        }
    }
}
