//! What the sources of a request are, and what they are called.

use std::collections::HashMap;

use futures_util::future::try_join_all;

use super::{Loaded, Loader, pool::Urgency};
use crate::media::{
    cache::SourceKey,
    content::Scope,
    error::{LoadError, MediaError},
    resize::SmartResize,
    source::{HttpUrl, Source, SourceError, SourceText},
};

/// Hashing more would hold up a connection's thread for longer than handing it over takes.
const MAX_HASHED_HERE_BYTES: usize = 64 << 10;

/// For whom images are loaded, and in which size.
#[derive(Debug, Clone, Copy)]
pub struct View {
    scope: Scope,
    /// Of the sources' names: what a source shows is another content in the size of each rule.
    of_sources: Scope,
    resize: Option<SmartResize>,
}

impl View {
    pub fn new(scope: &Scope, resize: Option<&SmartResize>) -> Self {
        let of_sources = resize.map_or(*scope, |rule| scope.within(&rule.to_bytes()));
        View { scope: *scope, of_sources, resize: resize.copied() }
    }
}

/// What a source is called, if that is told at once: a URL by its text alone, well formed or not, a data: URI if it is
/// short.
pub fn key(text: &SourceText, view: &View) -> Option<SourceKey> {
    if let Some(url) = text.as_url() {
        return Some(SourceKey::url(&view.of_sources, url));
    }
    match text.parse() {
        Ok(Source::Data(uri)) if uri.payload().len() <= MAX_HASHED_HERE_BYTES => {
            Some(SourceKey::data(&view.of_sources, uri.payload()))
        }
        _ => None,
    }
}

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
    /// A data: URI that parsed, and the bytes that it will have at most.
    Data(SourceText, usize),
}

/// The images of a request without repetitions, and for each of its places which of them stands there.
pub struct AllWanted {
    pub distinct: Vec<Wanted>,
    pub places: Vec<usize>,
}

impl AllWanted {
    /// Gives each place what was loaded for the image that stands there.
    pub fn spread(self, loaded: Vec<Loaded>) -> Vec<Loaded> {
        spread(&self.places, loaded)
    }
}

/// Gives each place a clone of what stands there.
pub fn spread(places: &[usize], loaded: Vec<Loaded>) -> Vec<Loaded> {
    if places.len() == loaded.len() {
        return loaded;
    }
    places.iter().map(|place| loaded[*place].clone()).collect()
}

/// The first place of each of the different keys, and for each place which of those stands there.
pub fn distinct(keys: impl ExactSizeIterator<Item = SourceKey>) -> (Vec<usize>, Vec<usize>) {
    let mut seen = HashMap::with_capacity(keys.len());
    let (mut firsts, mut places) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
    for (at, key) in keys.enumerate() {
        let place = *seen.entry(key).or_insert(firsts.len());
        places.push(place);
        if place == firsts.len() {
            firsts.push(at);
        }
    }
    (firsts, places)
}

/// Parses the sources, and names those that have no name yet.
pub async fn all(
    loader: &Loader,
    sources: &[SourceText],
    keys: Vec<Option<SourceKey>>,
    view: &View,
) -> Result<AllWanted, LoadError> {
    let named = sources.iter().zip(keys).enumerate().map(|(index, (text, key))| async move {
        let named = one(loader, index, text, key, view).await;
        named.map_err(|error| LoadError::new(index, error))
    });
    let named = try_join_all(named).await?;
    let (firsts, places) = distinct(named.iter().map(|image| image.key));
    let mut firsts = firsts.into_iter().peekable();
    let first = |(at, image)| firsts.next_if_eq(&at).map(|_| image);
    Ok(AllWanted { distinct: named.into_iter().enumerate().filter_map(first).collect(), places })
}

async fn one(
    loader: &Loader,
    index: usize,
    text: &SourceText,
    key: Option<SourceKey>,
    view: &View,
) -> Result<Wanted, MediaError> {
    let (key, origin) = match (text.parse()?, key) {
        (Source::Http(url), key) => {
            (key.unwrap_or_else(|| SourceKey::url(&view.of_sources, url.raw())), Origin::Url(url))
        }
        (Source::Data(uri), Some(key)) => (key, Origin::Data(text.clone(), uri.most_decoded_len())),
        (Source::Data(_), None) => {
            let (long, view) = (text.clone(), *view);
            let name = move || name(&long, &view);
            let (key, bytes) = loader.pool.run(Urgency::Short, name).await.map_err(|_| MediaError::Lost)??;
            (key, Origin::Data(text.clone(), bytes))
        }
    };
    let max_bytes = loader.config.fetch.max_bytes;
    if matches!(origin, Origin::Data(_, bytes) if bytes > max_bytes) {
        return Err(SourceError::TooLarge { max_bytes }.into());
    }
    Ok(Wanted { index, key, scope: view.scope, resize: view.resize, origin })
}

/// What a long data: URI is called, and the bytes that it will have.
fn name(text: &SourceText, view: &View) -> Result<(SourceKey, usize), MediaError> {
    match text.parse()? {
        Source::Data(uri) => Ok((SourceKey::data(&view.of_sources, uri.payload()), uri.decoded_len())),
        Source::Http(_) => Err(MediaError::Lost),
    }
}
