//! The files of a request: admitted together, fetched side by side, each of them once for all who ask.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};

use super::{
    Flight, Joined, Keep, LoadTimes, Loader, Patience, Reliance, SharedText, Urgency,
    identify::{Origin, Wanted},
};
use crate::{
    media::{
        cache::{Known, SourceKey},
        content::Name,
        decode::{self, DecodeLimits, Probe},
        error::{LoadError, MediaError},
        fetch::{Fetched, Revalidated, Validators},
        source::{HttpUrl, Source},
    },
    memory::Admission,
    observe,
};

/// What a fetch ends with.
pub type Fetch = Result<Arc<Found>, Arc<MediaError>>;
pub type FetchFlight = Flight<SourceKey, Fetch>;

/// What was found at a source.
pub enum Found {
    File(File),
    /// The picture that was known, still.
    Unchanged(Name, Keep),
}

/// A file whose header was read.
pub struct File {
    pub bytes: Bytes,
    pub probe: Probe,
    pub keep: Keep,
    pub validators: Validators,
}

/// What a request has of an image once its files are there.
pub enum Have {
    /// The picture's name; it was in the cache when last seen.
    Named {
        name: Name,
        from: &'static str,
        times: LoadTimes,
    },
    File(Got),
}

/// A file, for as long as a request needs it.
pub struct Got {
    /// Held so that others who ask meanwhile find the file.
    pub flight: Arc<FetchFlight>,
    /// A [`Found::File`].
    pub found: Arc<Found>,
    pub encoded: Arc<Admission>,
    pub times: LoadTimes,
}

impl Found {
    fn keep(&self) -> Keep {
        match self {
            Found::File(file) => file.keep,
            Found::Unchanged(_, keep) => *keep,
        }
    }
}

/// An image that the cache does not have.
struct Missing {
    /// Among the distinct ones.
    place: usize,
    stale: Option<(Name, Validators)>,
    /// The largest that its file can be.
    most_bytes: usize,
}

/// What is known, and files for the rest.
pub async fn gather(
    loader: &Arc<Loader>,
    wanted: &[Wanted],
    known: Vec<Option<Known>>,
    reliance: Reliance,
    patience: &mut Patience,
) -> Result<Vec<Have>, LoadError> {
    let mut have: Vec<Option<Have>> = Vec::with_capacity(wanted.len());
    let mut missing = VecDeque::new();
    for (place, known) in known.into_iter().enumerate() {
        let most_bytes = match &wanted[place].origin {
            Origin::Url(_) => loader.config.fetch.max_bytes,
            Origin::Data(_, bytes) => *bytes,
        };
        have.push(match known {
            Some(Known::Fresh(name)) => Some(Have::Named { name, from: "source_hit", times: LoadTimes::default() }),
            Some(Known::Stale(name, validators)) => {
                missing.push_back(Missing { place, stale: Some((name, validators)), most_bytes });
                None
            }
            _ => {
                missing.push_back(Missing { place, stale: None, most_bytes });
                None
            }
        });
    }
    if let Some(first) = missing.front() {
        let start = Instant::now();
        let index = wanted[first.place].index;
        let share = share_bytes(loader, wanted, &missing);
        let admitted = loader.encoded.admit(share, patience.deadline).await;
        let share = admitted.map_err(|error| LoadError::new(index, MediaError::admission("image files", &error)))?;
        let admission = start.elapsed();
        observe::admitted("encoded", admission);
        let start = Instant::now();
        fetch_all(loader, wanted, missing, reliance, share, admission, &mut have).await?;
        patience.deadline += start.elapsed();
    }
    Ok(have.into_iter().flatten().collect())
}

/// What a request is admitted to: what it needs at most, but no more than its share where it cannot know.
fn share_bytes(loader: &Loader, wanted: &[Wanted], missing: &VecDeque<Missing>) -> usize {
    let (mut data, mut urls) = (0, 0);
    for image in missing {
        match wanted[image.place].origin {
            Origin::Url(_) => urls += image.most_bytes,
            Origin::Data(..) => data += image.most_bytes,
        }
    }
    let share = loader.config.request_share_bytes();
    // Room for the largest file beside what is known.
    data + urls.min(share.saturating_sub(data).max(loader.config.fetch.max_bytes))
}

/// Fetches as many at once as the share has room for, each reckoned at its largest until its size is known.
async fn fetch_all(
    loader: &Arc<Loader>,
    wanted: &[Wanted],
    mut missing: VecDeque<Missing>,
    reliance: Reliance,
    mut share: Admission,
    admission: Duration,
    have: &mut [Option<Have>],
) -> Result<(), LoadError> {
    let mut running = FuturesUnordered::new();
    loop {
        while let Some(next) = missing.front()
            && let Some(mut encoded) = share.split(next.most_bytes)
            && let Some(next) = missing.pop_front()
        {
            running.push(async move {
                let start = Instant::now();
                let image = &wanted[next.place];
                let found = fetch(loader, image, next.stale, reliance).await;
                let found = found.map_err(|error| LoadError::new(image.index, error))?;
                let times = LoadTimes { fetch: start.elapsed(), admission, decode: Duration::ZERO };
                let (excess, found) = match found {
                    Now::Named(name, from) => (Some(encoded), Have::Named { name, from, times }),
                    Now::File(flight, found, bytes) => {
                        let excess = encoded.bytes().checked_sub(bytes).and_then(|excess| encoded.split(excess));
                        (excess, Have::File(Got { flight, found, encoded: Arc::new(encoded), times }))
                    }
                };
                Ok((next.place, found, excess))
            });
        }
        match running.next().await {
            Some(result) => {
                let (place, found, excess) = result?;
                have[place] = Some(found);
                if let Some(excess) = excess {
                    share.merge(excess);
                }
            }
            None => match missing.front() {
                None => return Ok(()),
                Some(next) => {
                    let cause = "they exceed one request's share".into();
                    let error = MediaError::TooLarge { what: "image files", cause };
                    return Err(LoadError::new(wanted[next.place].index, error));
                }
            },
        }
    }
}

/// What came of one image.
enum Now {
    /// It is in the cache after all, or still.
    Named(Name, &'static str),
    /// A file of so many bytes.
    File(Arc<FetchFlight>, Arc<Found>, usize),
}

/// Leads the fetch of an image, or follows one that is under way.
async fn fetch(
    loader: &Arc<Loader>,
    image: &Wanted,
    stale: Option<(Name, Validators)>,
    reliance: Reliance,
) -> Result<Now, Arc<MediaError>> {
    let ready = || match loader.known(&image.key, Instant::now()) {
        Some(Known::Fresh(name)) if reliance == Reliance::Cache => Some(Ok(Now::Named(name, "shared"))),
        Some(Known::Failed(error)) => Some(Err(error)),
        _ => None,
    };
    let (mut flight, followed) = match loader.fetches.join(image.key, ready, || begin(loader, image, stale)) {
        Joined::Ready(ready) => return ready,
        Joined::Led(flight) => (flight, false),
        Joined::Followed(flight) => (flight, true),
    };
    let mut found = flight.result().await?;
    let is_file = matches!(*found, Found::File(_));
    if followed && found.keep() == Keep::No || reliance == Reliance::Files && !is_file {
        // An answer that was meant for whoever asked, or that is no file when one is needed. Ask for ourselves.
        flight = Flight::alone(begin(loader, image, None));
        found = flight.result().await?;
    }
    Ok(match &*found {
        Found::Unchanged(name, _) => Now::Named(*name, "revalidated"),
        Found::File(file) => {
            let bytes = file.bytes.len();
            Now::File(flight, found, bytes)
        }
    })
}

/// The work of a fetch. It asks for no memory: whoever waits for it was admitted before.
fn begin(loader: &Arc<Loader>, image: &Wanted, stale: Option<(Name, Validators)>) -> BoxFuture<'static, Fetch> {
    let (loader, key) = (loader.clone(), image.key);
    match &image.origin {
        Origin::Data(text, _) => {
            let text = text.clone();
            async move { open(&loader, text).await.map(Arc::new).map_err(Arc::new) }.boxed()
        }
        Origin::Url(url) => {
            let url = url.clone();
            async move {
                match ask(&loader, key, &url, stale).await {
                    Ok(found) => Ok(Arc::new(found)),
                    Err(error) => Err(loader.failed(key, error)),
                }
            }
            .boxed()
        }
    }
}

/// The file in a data: URI.
async fn open(loader: &Loader, text: SharedText) -> Result<Found, MediaError> {
    let (max_bytes, limits) = (loader.config.fetch.max_bytes, loader.config.decode.clone());
    let work = move || {
        let bytes = match Source::parse(text.as_str())? {
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
    stale: Option<(Name, Validators)>,
) -> Result<Found, MediaError> {
    let start = Instant::now();
    let fetched = match stale {
        None => loader.fetcher.fetch(url).await?,
        Some((name, validators)) => match loader.fetcher.fetch_if_changed(url, &validators).await? {
            Revalidated::Changed(fetched) => fetched,
            Revalidated::NotModified(said) => {
                let keep = loader.config.keep(&said);
                loader.remember(key, name, keep, validators);
                return Ok(Found::Unchanged(name, keep));
            }
        },
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
    pub(super) fn remember(&self, key: SourceKey, name: Name, keep: Keep, validators: Validators) {
        let fresh = match keep {
            Keep::No => return self.sources.forget(&key),
            Keep::For(fresh) => Some(fresh),
            Keep::Forever => None,
        };
        self.sources.remember(key, name, fresh, validators, Instant::now());
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
