//! What the sources of a request are, and what they are called.

use std::collections::HashMap;

use futures_util::future::try_join_all;

use super::{Loaded, Loader, SharedText, pool::Urgency};
use crate::media::{
    cache::SourceKey,
    content::Scope,
    error::{LoadError, MediaError},
    resize::SmartResize,
    source::{HttpUrl, Source, SourceError},
};

/// Hashing more would hold up a connection's thread for longer than handing it over takes.
const MAX_HASHED_HERE_BYTES: usize = 64 << 10;

/// An image that a request wants, and where it is.
pub struct Wanted {
    /// Its place, or the first of them, among the request's images.
    pub index: usize,
    pub key: SourceKey,
    pub scope: Scope,
    /// By which it is resized.
    pub resize: Option<SmartResize>,
    pub origin: Origin,
}

pub enum Origin {
    Url(HttpUrl),
    /// A data: URI that parsed, and the bytes that it will have.
    Data(SharedText, usize),
}

/// The images of a request without repetitions, and for each of its places which of them stands there.
pub struct AllWanted {
    pub distinct: Vec<Wanted>,
    pub places: Vec<usize>,
}

impl AllWanted {
    /// Gives each place what was loaded for the image that stands there.
    pub fn spread(self, loaded: Vec<Loaded>) -> Vec<Loaded> {
        if self.places.len() == loaded.len() {
            return loaded;
        }
        self.places.into_iter().map(|place| loaded[place].clone()).collect()
    }
}

/// The scope of what a source shows in the size of a rule: under each it has another content.
fn of_rule(scope: &Scope, resize: Option<&SmartResize>) -> Scope {
    resize.map_or(*scope, |rule| scope.within(&rule.to_bytes()))
}

/// Parses and names the sources.
pub async fn all(
    loader: &Loader,
    sources: &[SharedText],
    scope: &Scope,
    resize: Option<&SmartResize>,
) -> Result<AllWanted, LoadError> {
    if let [text] = sources {
        let only = one(loader, 0, text, scope, resize).await.map_err(|error| LoadError::new(0, error))?;
        return Ok(AllWanted { distinct: vec![only], places: vec![0] });
    }
    let named = sources.iter().enumerate().map(|(index, text)| async move {
        let named = one(loader, index, text, scope, resize).await;
        named.map_err(|error| LoadError::new(index, error))
    });
    let named = try_join_all(named).await?;
    let mut first = HashMap::with_capacity(named.len());
    let mut wanted = AllWanted { distinct: Vec::with_capacity(named.len()), places: Vec::with_capacity(named.len()) };
    for image in named {
        let next = wanted.distinct.len();
        let place = *first.entry(image.key).or_insert(next);
        wanted.places.push(place);
        if place == next {
            wanted.distinct.push(image);
        }
    }
    Ok(wanted)
}

async fn one(
    loader: &Loader,
    index: usize,
    text: &SharedText,
    scope: &Scope,
    resize: Option<&SmartResize>,
) -> Result<Wanted, MediaError> {
    let key_scope = of_rule(scope, resize);
    let (key, origin) = match Source::parse(text.as_str())? {
        Source::Http(url) => (SourceKey::url(&key_scope, url.raw()), Origin::Url(url)),
        Source::Data(uri) => {
            let (bytes, max_bytes) = (uri.decoded_len(), loader.config.fetch.max_bytes);
            if bytes > max_bytes {
                return Err(SourceError::TooLarge { max_bytes }.into());
            }
            let key = if bytes <= MAX_HASHED_HERE_BYTES {
                SourceKey::data(&key_scope, uri.payload())
            } else {
                let text = text.clone();
                let hash = move || data_key(text.as_str(), &key_scope);
                loader.pool.run(Urgency::Short, hash).await.map_err(|_| MediaError::Lost)??
            };
            (key, Origin::Data(text.clone(), bytes))
        }
    };
    Ok(Wanted { index, key, scope: *scope, resize: resize.copied(), origin })
}

fn data_key(text: &str, scope: &Scope) -> Result<SourceKey, SourceError> {
    Ok(match Source::parse(text)? {
        Source::Http(url) => SourceKey::url(scope, url.raw()),
        Source::Data(uri) => SourceKey::data(scope, uri.payload()),
    })
}
