//! What workers call images that pass by URL.
//!
//! Such an image has no name that we gave: a worker fetches it and hashes what it got (vLLM: BLAKE3 of the file and of the
//! model's name), and its events carry that hash. [`super::sent`] finds out which image it is of. From then on, prompts with
//! the same URL are looked up under the worker's name.
//!
//! The picture behind a URL may change, and then the worker's next event about that URL carries another hash, which takes the
//! place of the one before. Until then the gateway expects a worker to hold what it does not, which costs a detour and no more:
//! nothing but the choice of a worker depends on it.

use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use lru::LruCache;
use twox_hash::XxHash3_64;

use crate::{routing::prompt::MmHash, sync::Mutex};

/// Names that are remembered; those that were used least recently go.
const MAX_NAMES: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// How long a name is believed: as long as the size of an image behind a URL is.
const LIFE: Duration = Duration::from_secs(24 * 3600);

/// What all of it takes at most, about.
pub const MAX_BYTES: u64 = MAX_NAMES.get() as u64 * 200;

/// A model and our name of an image: workers of different models name the same picture differently.
type Key = (u64, MmHash);

/// See the module's documentation.
#[derive(Debug)]
pub struct ImageNames {
    names: Mutex<LruCache<Key, Name>>,
}

#[derive(Debug, Clone, Copy)]
struct Name {
    theirs: MmHash,
    learned: Instant,
}

/// What a worker's name for an image was before it was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    Unknown,
    /// The same.
    Known,
    /// Another: the picture behind the URL has changed, or what was learned was wrong.
    Another,
}

impl Default for ImageNames {
    fn default() -> Self {
        ImageNames { names: Mutex::new(LruCache::new(MAX_NAMES)) }
    }
}

impl ImageNames {
    /// What workers call our image.
    pub fn get(&self, model: Option<&str>, ours: MmHash) -> Option<MmHash> {
        let mut names = self.names.lock();
        let name = names.get(&key(model, ours))?;
        (name.learned.elapsed() < LIFE).then_some(name.theirs)
    }

    /// A worker calls our image so.
    pub fn learn(&self, model: Option<&str>, ours: MmHash, theirs: MmHash) -> Before {
        let name = Name { theirs, learned: Instant::now() };
        match self.names.lock().put(key(model, ours), name) {
            None => Before::Unknown,
            Some(before) if before.theirs == theirs => Before::Known,
            Some(_) => Before::Another,
        }
    }
}

fn key(model: Option<&str>, ours: MmHash) -> Key {
    (model.map_or(0, |model| XxHash3_64::oneshot(model.as_bytes())), ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(name: &str) -> MmHash {
        MmHash::of_identifier(name)
    }

    #[test]
    fn a_name_is_of_one_model_and_the_newest_counts() {
        let names = ImageNames::default();
        assert_eq!(names.learn(Some("m"), hash("url"), hash("a")), Before::Unknown);
        assert_eq!(names.learn(Some("m"), hash("url"), hash("a")), Before::Known);
        assert_eq!(names.get(Some("m"), hash("url")), Some(hash("a")));
        assert_eq!((names.get(None, hash("url")), names.get(Some("m"), hash("other"))), (None, None));
        assert_eq!(names.learn(Some("m"), hash("url"), hash("b")), Before::Another);
        assert_eq!(names.get(Some("m"), hash("url")), Some(hash("b")));
    }

    #[test]
    fn memory_is_bounded_and_what_is_not_used_goes() {
        let names = ImageNames::default();
        let image = |nth: usize| {
            MmHash::from(crate::media::content::MediaId::from_bytes({
                let mut bytes = [0; 32];
                bytes[..8].copy_from_slice(&nth.to_le_bytes());
                bytes
            }))
        };
        for nth in 0..=MAX_NAMES.get() {
            names.learn(None, image(nth), hash("x"));
            assert!(names.get(None, image(0)).is_some());
        }
        assert_eq!(names.get(None, image(1)), None);
    }
}
