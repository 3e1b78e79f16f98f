//! How large pictures are whose pixels are not looked at.
//!
//! Routing counts an image's tokens by its size. Where images pass by URL, the size is read from the beginning of the
//! file: a ranged GET within the policy of [`fetch`](super::fetch), grown until the header is complete. An origin that does
//! not know ranges sends everything; it is read as far as [`WITHOUT_RANGES`] and left. A data: URI is decoded as far as
//! its header goes.
//!
//! Sizes are remembered by URL, and one who asks for a size that is being read waits with the other. What could not be
//! read is not remembered: the next request tries again.

mod header;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use moka::future::Cache;
use tokio::sync::Semaphore;

pub use header::{PictureSize, Reading, read};

use super::{
    content::MediaId,
    fetch::{FetchError, Fetcher},
    source::{DataUri, HttpUrl, Source, SourceError, SourceText},
};
use crate::observe;

/// What is asked for of a file: the first is enough for nearly all, the last for a photograph with a preview, a colour
/// profile and an editor's history before its size.
const PREFIXES: [NonZeroUsize; 3] =
    [NonZeroUsize::new(16 << 10).unwrap(), NonZeroUsize::new(64 << 10).unwrap(), NonZeroUsize::new(256 << 10).unwrap()];

/// How far an origin is read that answers a ranged request with everything.
const WITHOUT_RANGES: usize = 64 << 10;

const REMEMBERED: u64 = 100_000;
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 3600);

/// Headers being read at once: what they take of memory is 256 KiB times this.
const AT_ONCE: usize = 64;

/// Memory of it all: the files' beginnings, and an entry of the cache with what moka keeps beside it.
pub const MEMORY_BYTES: u64 = (AT_ONCE as u64) * (256 << 10) + REMEMBERED * 300;

/// Reads and remembers sizes. Cheap to clone.
#[derive(Clone)]
pub struct Dimensions {
    fetcher: Arc<Fetcher>,
    sizes: Cache<MediaId, PictureSize>,
    turns: Arc<Semaphore>,
    patience: Duration,
}

/// Why a size is not known. For logs and metrics: no client is told.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NoSize {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("the beginning of the file does not say it")]
    NotInHeader,
    #[error("it took longer than a request waits for it")]
    Late,
}

impl NoSize {
    /// For the metric.
    fn outcome(&self) -> &'static str {
        match self {
            NoSize::Source(_) => "bad_source",
            NoSize::Fetch(_) => "fetch_failed",
            NoSize::NotInHeader => "not_in_header",
            NoSize::Late => "late",
        }
    }
}

impl Dimensions {
    /// `patience` is how long a request waits for one; the reading goes on for the next.
    pub fn new(fetcher: Arc<Fetcher>, patience: Duration) -> Self {
        let sizes = Cache::builder().max_capacity(REMEMBERED).time_to_live(REMEMBERED_FOR).build();
        Dimensions { fetcher, sizes, turns: Arc::new(Semaphore::new(AT_ONCE)), patience }
    }

    /// The size of the picture at `url`, which is called `name`.
    ///
    /// # Errors
    ///
    /// [`NoSize`].
    pub async fn of(&self, name: MediaId, url: &SourceText) -> Result<PictureSize, NoSize> {
        let found = match url.parse() {
            Ok(Source::Data(uri)) => in_data(&uri),
            Ok(Source::Http(url)) => self.at(name, url).await,
            Err(error) => Err(error.into()),
        };
        observe::size_read(found.as_ref().map_or_else(NoSize::outcome, |_| "known"));
        found
    }

    async fn at(&self, name: MediaId, url: HttpUrl) -> Result<PictureSize, NoSize> {
        if let Some(size) = self.sizes.get(&name).await {
            return Ok(size);
        }
        // On a task of its own, so that what one request has no patience for is there for the next.
        let this = self.clone();
        let reading = tokio::spawn(async move {
            let from_origin = this.fetched(&url);
            this.sizes.try_get_with(name, from_origin).await.map_err(|error| NoSize::clone(&error))
        });
        match tokio::time::timeout(self.patience, reading).await {
            Ok(Ok(found)) => found,
            // The task panicked, or the gateway is ending.
            Ok(Err(_)) => Err(NoSize::NotInHeader),
            Err(_) => Err(NoSize::Late),
        }
    }

    async fn fetched(&self, url: &HttpUrl) -> Result<PictureSize, NoSize> {
        // Never closed.
        let _turn = self.turns.acquire().await.map_err(|_| NoSize::NotInHeader)?;
        for most in PREFIXES {
            let file = self.fetcher.fetch_prefix(url, most).await?;
            match header::read(&file.bytes, file.is_whole) {
                Reading::Size(size) => return Ok(size),
                Reading::Unknown => break,
                Reading::Incomplete if file.is_ranged || most.get() < WITHOUT_RANGES => {}
                Reading::Incomplete => break,
            }
        }
        Err(NoSize::NotInHeader)
    }
}

/// The size by a data: URI, decoded no further than it takes.
fn in_data(uri: &DataUri<'_>) -> Result<PictureSize, NoSize> {
    for most in PREFIXES {
        let (bytes, whole) = uri.decode_prefix(most.get())?;
        match header::read(&bytes, whole) {
            Reading::Size(size) => return Ok(size),
            Reading::Unknown => break,
            Reading::Incomplete => {}
        }
    }
    Err(NoSize::NotInHeader)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_uri_is_read_by_its_beginning() {
        let file = include_bytes!("../../../tests/data/paris.jpg");
        let Reading::Size(expected) = read(file, true) else { panic!("no size") };
        let text = format!("data:image/jpeg;base64,{}", base64_simd::STANDARD.encode_to_string(file));
        let of = |text: &str| match Source::parse(text) {
            Ok(Source::Data(uri)) => in_data(&uri).ok(),
            _ => panic!("no data URI"),
        };
        assert_eq!(of(&text), Some(expected));
        // What comes after the header is not looked at, base64 or not.
        let mut broken = text.clone();
        broken.replace_range(text.len() - 9.., "!!!!!!!!!");
        assert_eq!(of(&broken), Some(expected));
        assert_eq!(of("data:;base64,AAAA"), None);
        assert_eq!(of("data:;base64,!!!!"), None);
    }
}
