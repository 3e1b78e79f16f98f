//! One file: fetched once for all who ask, and what is known of it on the way.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};

use super::{
    Flight, Joined, Keep, Loader, Reliance, Urgency,
    gate::{Gate, Waiting},
    identify::{Origin, Wanted},
};
use crate::{
    media::{
        cache::{Known, SourceKey},
        decode::{self, DecodeLimits, Probe},
        error::MediaError,
        fetch::{Fetched, Revalidated, Validators},
        picture::Content,
        source::{HttpUrl, Source, SourceText},
    },
    observe,
};

/// What a fetch ends with.
pub type Fetch = Result<Arc<Found>, Arc<MediaError>>;
pub type FetchFlight = Flight<SourceKey, Fetch, Gate>;

/// What was found at a source.
pub enum Found {
    File(File),
    /// The content that was known, still.
    Unchanged(Content, Keep),
}

/// A file whose header was read.
pub struct File {
    pub bytes: Bytes,
    pub probe: Probe,
    pub keep: Keep,
    pub validators: Validators,
}

impl Found {
    pub fn keep(&self) -> Keep {
        match self {
            Found::File(file) => file.keep,
            Found::Unchanged(_, keep) => *keep,
        }
    }
}

/// An image whose size is known, or that needs no file after all.
pub enum Begun<F = Arc<FetchFlight>> {
    /// It is in the cache after all, or still.
    Named(Content, &'static str),
    File {
        flight: F,
        followed: bool,
        /// What it is reckoned at.
        bytes: usize,
    },
}

impl<F> Begun<F> {
    pub fn bytes(&self) -> usize {
        match self {
            Begun::Named(..) => 0,
            Begun::File { bytes, .. } => *bytes,
        }
    }
}

impl Begun {
    /// For who is not admitted yet.
    pub fn waiting(self) -> Begun<Waiting<SourceKey, Fetch>> {
        match self {
            Begun::Named(content, from) => Begun::Named(content, from),
            Begun::File { flight, followed, bytes } => Begun::File { flight: Waiting::new(flight), followed, bytes },
        }
    }
}

/// Leads the fetch of an image, or follows one that is under way, until its size is known.
pub async fn begin(
    loader: &Arc<Loader>,
    image: &Wanted,
    stale: Option<(Content, Validators)>,
    reliance: Reliance,
) -> Result<Begun, Arc<MediaError>> {
    let ready = || match loader.known(&image.key, Instant::now()) {
        Some(Known::Fresh(content)) if reliance == Reliance::Cache => Some(Ok(Begun::Named(content, "shared"))),
        Some(Known::Failed(error)) => Some(Err(error)),
        _ => None,
    };
    let (mut flight, mut followed) =
        match loader.fetches.join(image.key, ready, |gate| fetch(loader, image, stale, gate)) {
            Joined::Ready(ready) => return ready,
            Joined::Led(flight) => (flight, false),
            Joined::Followed(flight) => (flight, true),
        };
    let mut size = size(loader, &flight).await?;
    if followed && size.keep() == Keep::No || reliance == Reliance::Files && matches!(size, Size::Unchanged(..)) {
        // An answer that was meant for whoever asked, or that is no file when one is needed. Ask for ourselves.
        flight = Flight::alone(|gate| fetch(loader, image, None, gate));
        followed = false;
        size = self::size(loader, &flight).await?;
    }
    Ok(match size {
        Size::Unchanged(content, _) => Begun::Named(content, "revalidated"),
        Size::File(bytes, _) => Begun::File { flight, followed, bytes },
    })
}

/// What is known of a fetch when its response begins.
enum Size {
    Unchanged(Content, Keep),
    File(usize, Keep),
}

impl Size {
    fn keep(&self) -> Keep {
        match self {
            Size::Unchanged(_, keep) | Size::File(_, keep) => *keep,
        }
    }
}

async fn size(loader: &Loader, flight: &FetchFlight) -> Result<Size, Arc<MediaError>> {
    tokio::select! {
        // Which is what moves it.
        found = flight.result() => Ok(match &*found? {
            Found::Unchanged(content, keep) => Size::Unchanged(*content, *keep),
            // What the head announced even if less has come: who has to ask again is told the same.
            Found::File(file) => Size::File(flight.beside().announced_bytes().unwrap_or(file.bytes.len()), file.keep),
        }),
        announced = flight.beside().announced() => {
            Ok(Size::File(announced.bytes, loader.config.keep(&announced.freshness)))
        }
    }
}

/// The work of a fetch. It asks for no memory: at the gate it waits for one who was admitted to some.
pub fn fetch(
    loader: &Arc<Loader>,
    image: &Wanted,
    stale: Option<(Content, Validators)>,
    gate: Gate,
) -> BoxFuture<'static, Fetch> {
    let (loader, key) = (loader.clone(), image.key);
    match &image.origin {
        Origin::Data(text, bytes) => {
            let text = text.clone();
            let bytes = *bytes;
            async move {
                gate.wait(bytes).await;
                open(&loader, text).await.map(Arc::new).map_err(Arc::new)
            }
            .boxed()
        }
        Origin::Url(url) => {
            let url = url.clone();
            async move {
                match ask(&loader, key, &url, stale, &gate).await {
                    Ok(found) => Ok(Arc::new(found)),
                    Err(error) => Err(loader.failed(key, error)),
                }
            }
            .boxed()
        }
    }
}

/// The file in a data: URI.
async fn open(loader: &Loader, text: SourceText) -> Result<Found, MediaError> {
    let (max_bytes, limits) = (loader.config.fetch.max_bytes, loader.config.decode.clone());
    let work = move || {
        let bytes = match text.parse()? {
            Source::Data(uri) => uri.decode(max_bytes)?,
            Source::Http(_) => return Err(MediaError::Lost),
        };
        file(bytes, &limits, Keep::Forever, Validators::default())
    };
    loader.pool.run(Urgency::Short, work).await.map_err(|_| MediaError::Lost)?
}

/// The file at a URL, unless what it was is what it is.
async fn ask(
    loader: &Loader,
    key: SourceKey,
    url: &HttpUrl,
    stale: Option<(Content, Validators)>,
    gate: &Gate,
) -> Result<Found, MediaError> {
    let start = Instant::now();
    let known = stale.as_ref().map(|(_, validators)| validators);
    let fetched = match (loader.fetcher.fetch_through(gate, url, known).await?, stale) {
        (Revalidated::Changed(fetched), _) => fetched,
        (Revalidated::NotModified(said), Some((content, validators))) => {
            let keep = loader.config.keep(&said);
            loader.remember(key, content, keep, validators);
            return Ok(Found::Unchanged(content, keep));
        }
        // Nobody asked for that.
        (Revalidated::NotModified(_), None) => return Err(MediaError::Lost),
    };
    let Fetched { bytes, validators, freshness, .. } = fetched;
    observe::fetched(start.elapsed(), bytes.len());
    let (keep, limits) = (loader.config.keep(&freshness), loader.config.decode.clone());
    let work = move || file(bytes, &limits, keep, validators);
    loader.pool.run(Urgency::Short, work).await.map_err(|_| MediaError::Lost)?
}

fn file(bytes: Bytes, limits: &DecodeLimits, keep: Keep, validators: Validators) -> Result<Found, MediaError> {
    let probe = decode::probe(&bytes, limits)?;
    Ok(Found::File(File { bytes, probe, keep, validators }))
}

impl Loader {
    /// Remembers what a source shows, as long as `keep` says.
    pub(super) fn remember(&self, key: SourceKey, content: Content, keep: Keep, validators: Validators) {
        let fresh = match keep {
            Keep::No => return self.sources.forget(&key),
            Keep::For(fresh) => Some(fresh),
            Keep::Forever => None,
        };
        self.sources.remember(key, content, fresh, validators, Instant::now());
    }

    /// Remembers for a moment that a URL failed, if that is its origin's fault.
    pub(super) fn failed(&self, key: SourceKey, error: MediaError) -> Arc<MediaError> {
        let error = Arc::new(error);
        if error.is_of_the_origin() {
            self.sources.remember_failure(key, error.clone(), self.config.negative, Instant::now());
        }
        error
    }
}
