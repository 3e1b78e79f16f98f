//! MediaLoader: a source in, pixels in the arena out; each thing is done once however many ask for it.
//!
//! A load goes: cache, else join whoever is at it already, else admit, fetch, read the header, admit the pixels, decode
//! into a slot, hash, keep. Concurrent loads of one source share one future: it runs as long as anybody waits for it, so
//! the first client may leave without harm to the others, and when all have left the work is dropped.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use http::StatusCode;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    cache::{Known, MediaCache, SourceKey},
    content::{Name, Scope},
    decode::{self, DecodeError, DecodeLimits, Probe},
    fetch::{FetchConfig, FetchConfigError, FetchError, Fetched, Fetcher, Freshness, Revalidated, Validators},
    picture::{Media, Original, Picture},
    source::{HttpUrl, Source, SourceError},
};
use crate::{
    error::Fault,
    memory::{Arena, Budget, BudgetError, SlotMut},
    observe,
};

/// What a load may use.
#[derive(Debug, Clone)]
pub struct MediaConfig {
    pub fetch: FetchConfig,
    pub decode: DecodeLimits,
    /// Fetched files that are held at once, in all.
    pub encoded_bytes: usize,
    /// Memory beyond the pixels themselves that decoders may use at once, in all.
    pub scratch_bytes: usize,
    /// Threads that decode at once.
    pub decoders: usize,
    /// How long a URL's picture is used without asking again, where the origin does not say.
    pub fresh: Duration,
    /// The longest that an origin's own max-age is believed.
    pub fresh_max: Duration,
}

/// Why an image was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("the image needs more memory than the gateway has: {0}")]
    TooLarge(String),
    #[error("no memory became free in time: {0}")]
    Overloaded(String),
    #[error("the decoder ended without a result")]
    Lost,
}

impl Fault for MediaError {
    fn status(&self) -> StatusCode {
        match self {
            MediaError::Source(error) => error.status(),
            MediaError::Fetch(error) => error.status(),
            MediaError::Decode(error) => error.status(),
            MediaError::TooLarge(_) => StatusCode::BAD_REQUEST,
            MediaError::Overloaded(_) => StatusCode::SERVICE_UNAVAILABLE,
            MediaError::Lost => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            MediaError::Source(error) => error.code(),
            MediaError::Fetch(error) => error.code(),
            MediaError::Decode(error) => error.code(),
            MediaError::TooLarge(_) => "image_too_large",
            MediaError::Overloaded(_) => "media_overloaded",
            MediaError::Lost => "internal_error",
        }
    }

    fn public(&self) -> Cow<'static, str> {
        match self {
            MediaError::Source(error) => error.public(),
            MediaError::Fetch(error) => error.public(),
            MediaError::Decode(error) => error.public(),
            MediaError::TooLarge(_) => "The image is larger than this server takes.".into(),
            MediaError::Overloaded(_) => "The server has no memory for more images right now; try again.".into(),
            MediaError::Lost => "The image could not be decoded because of an internal error.".into(),
        }
    }

    fn retryable(&self) -> bool {
        match self {
            MediaError::Source(error) => error.retryable(),
            MediaError::Fetch(error) => error.retryable(),
            MediaError::Decode(error) => error.retryable(),
            MediaError::TooLarge(_) => false,
            MediaError::Overloaded(_) | MediaError::Lost => true,
        }
    }
}

impl From<BudgetError> for MediaError {
    fn from(error: BudgetError) -> Self {
        match error {
            BudgetError::NeverFits { .. } => MediaError::TooLarge(error.to_string()),
            BudgetError::Busy { .. } => MediaError::Overloaded(error.to_string()),
        }
    }
}

/// What a load took, for whoever wants to tell the client.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadTimes {
    pub fetch: Duration,
    pub admission: Duration,
    pub decode: Duration,
}

/// A loaded image, and how it came.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub media: Media,
    pub times: LoadTimes,
}

type Flight = Shared<BoxFuture<'static, Result<Loaded, Arc<MediaError>>>>;
type WeakFlight = WeakShared<BoxFuture<'static, Result<Loaded, Arc<MediaError>>>>;

/// See the module's documentation. Cheap to clone.
#[derive(Clone)]
pub struct MediaLoader {
    shared: Arc<Loader>,
}

struct Loader {
    config: MediaConfig,
    fetcher: Fetcher,
    arena: Arc<Arena>,
    cache: MediaCache,
    encoded: Budget,
    scratch: Budget,
    decoders: Arc<Semaphore>,
    flights: Mutex<HashMap<SourceKey, WeakFlight>>,
}

impl MediaLoader {
    pub fn new(config: MediaConfig, arena: Arc<Arena>) -> Result<Self, FetchConfigError> {
        let fetcher = Fetcher::new(&config.fetch)?;
        let shared = Arc::new(Loader {
            encoded: Budget::new(config.encoded_bytes),
            scratch: Budget::new(config.scratch_bytes),
            decoders: Arc::new(Semaphore::new(config.decoders.max(1))),
            cache: MediaCache::default(),
            flights: Mutex::default(),
            fetcher,
            arena,
            config,
        });
        Ok(MediaLoader { shared })
    }

    /// Loads one image. `text` is the exact source as the client wrote it.
    ///
    /// Waiting for memory ends at `deadline` of whoever came first for this source; fetching has limits of its own.
    pub async fn load(&self, text: &str, scope: &Scope, deadline: Instant) -> Result<Loaded, Arc<MediaError>> {
        let source = Source::parse(text).map_err(MediaError::from)?;
        let key = match &source {
            Source::Http(url) => SourceKey::url(scope, url.raw()),
            Source::Data(uri) => SourceKey::data(scope, uri.payload()),
        };
        let known = self.shared.cache.lookup(&key);
        if let Some(Known::Fresh(picture)) = known {
            observe::media("source_hit");
            return Ok(Loaded { media: Media::Picture(picture), times: LoadTimes::default() });
        }
        let flight = self.join(key, known, source, scope, deadline)?;
        flight.await
    }

    /// The flight that is at this source already, or a new one.
    fn join(
        &self,
        key: SourceKey,
        known: Option<Known>,
        source: Source<'_>,
        scope: &Scope,
        deadline: Instant,
    ) -> Result<Flight, MediaError> {
        let find = |flights: &HashMap<SourceKey, WeakFlight>| flights.get(&key).and_then(WeakShared::upgrade);
        if let Some(flight) = find(&self.flights()) {
            observe::media("shared");
            return Ok(flight);
        }
        // Outside of the lock: decoding base64 takes a while.
        let origin = match source {
            Source::Http(url) => Origin::Url(url),
            Source::Data(uri) => Origin::Bytes(uri.decode(self.shared.config.fetch.max_bytes)?),
        };
        let mut flights = self.flights();
        if let Some(flight) = find(&flights) {
            observe::media("shared");
            return Ok(flight);
        }
        let (loader, scope, own_key) = (self.shared.clone(), *scope, key.clone());
        let work = async move {
            let result = loader.load(&own_key, known, origin, scope, deadline).await.map_err(Arc::new);
            loader.flights.lock().unwrap_or_else(PoisonError::into_inner).remove(&own_key);
            result
        };
        let flight = work.boxed().shared();
        // Those that were dropped before they ended are swept here, now and then.
        if flights.len() >= 1024 && flights.len().is_power_of_two() {
            flights.retain(|_, flight| flight.upgrade().is_some());
        }
        if let Some(weak) = flight.downgrade() {
            flights.insert(key, weak);
        }
        Ok(flight)
    }

    fn flights(&self) -> std::sync::MutexGuard<'_, HashMap<SourceKey, WeakFlight>> {
        self.shared.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn arena(&self) -> &Arc<Arena> {
        &self.shared.arena
    }
}

enum Origin {
    Url(HttpUrl),
    Bytes(Bytes),
}

/// A file, and for how long its source may be taken to show it: `None` to keep nothing.
struct File {
    bytes: Bytes,
    fresh: Option<Duration>,
    validators: Validators,
}

impl Loader {
    async fn load(
        self: &Arc<Self>,
        key: &SourceKey,
        known: Option<Known>,
        origin: Origin,
        scope: Scope,
        deadline: Instant,
    ) -> Result<Loaded, MediaError> {
        let mut times = LoadTimes::default();
        let start = Instant::now();
        // The size of what a URL gives is not known before it is there.
        let most = match &origin {
            Origin::Url(_) => self.config.fetch.max_bytes,
            Origin::Bytes(bytes) => bytes.len(),
        };
        let mut encoded = self.encoded.admit(most, deadline).await?;
        observe::admitted("encoded", start.elapsed());
        times.admission = start.elapsed();

        let file = match origin {
            Origin::Bytes(bytes) => {
                File { bytes, fresh: Some(self.config.fresh_max), validators: Validators::default() }
            }
            Origin::Url(url) => {
                let start = Instant::now();
                let fetched = match known {
                    Some(Known::Stale(picture, validators)) => {
                        match self.fetcher.fetch_if_changed(&url, &validators).await? {
                            Revalidated::NotModified(said) => {
                                if let Some(fresh) = self.freshness(&said) {
                                    let id = picture.name.media_id;
                                    self.cache.remember(key.clone(), id, fresh, validators);
                                }
                                observe::media("revalidated");
                                times.fetch = start.elapsed();
                                return Ok(Loaded { media: Media::Picture(picture), times });
                            }
                            Revalidated::Changed(fetched) => fetched,
                        }
                    }
                    _ => self.fetcher.fetch(&url).await?,
                };
                times.fetch = start.elapsed();
                observe::fetched(times.fetch, fetched.bytes.len());
                let fresh = self.freshness(&fetched.freshness);
                let Fetched { bytes, validators, .. } = fetched;
                File { bytes, fresh, validators }
            }
        };
        encoded.shrink_to(file.bytes.len());

        let header = match decode::probe(&file.bytes, &self.config.decode)? {
            Probe::Decodable(header) => header,
            Probe::Opaque(format) => {
                observe::media("original");
                return Ok(Loaded { media: Media::Original(Original { format, bytes: file.bytes }), times });
            }
        };
        let start = Instant::now();
        let slot = self.allocate(header.rgb_bytes(), deadline).await?;
        let scratch = self.scratch.admit(header.scratch_bytes(), deadline).await?;
        observe::admitted("pixels", start.elapsed());
        times.admission += start.elapsed();

        let start = Instant::now();
        let format = header.format().name();
        let permit = self.decoders.clone().acquire_owned().await.map_err(|_| MediaError::Lost)?;
        let bytes = file.bytes.clone();
        let decoded = tokio::task::spawn_blocking(move || {
            let picture = decode_and_name(&bytes, &header, slot, &scope);
            drop((permit, scratch, encoded));
            picture
        });
        let picture = decoded.await.map_err(|_| MediaError::Lost)??;
        times.decode = start.elapsed();
        observe::decoded(format, times.decode);

        let (picture, was_there) = self.cache.keep(picture);
        observe::media(if was_there { "content_hit" } else { "decoded" });
        match file.fresh {
            Some(fresh) => self.cache.remember(key.clone(), picture.name.media_id, fresh, file.validators),
            None => self.cache.forget(key),
        }
        let usage = self.arena.usage();
        observe::arena(usage.total_bytes, usage.used_bytes);
        Ok(Loaded { media: Media::Picture(picture), times })
    }

    /// How long an answer of an origin may be used, within our own bounds; `None` if a shared cache may not keep it.
    fn freshness(&self, said: &Freshness) -> Option<Duration> {
        if said.no_store || said.private {
            return None;
        }
        if said.no_cache {
            return Some(Duration::ZERO);
        }
        let fresh = said.max_age.map_or(self.config.fresh, |max_age| max_age.saturating_sub(said.age));
        Some(fresh.min(self.config.fresh_max))
    }

    /// A slot, by evicting what nobody holds, then by waiting for what somebody does.
    async fn allocate(&self, bytes: usize, deadline: Instant) -> Result<SlotMut, MediaError> {
        if bytes > self.arena.bytes() {
            return Err(MediaError::TooLarge(format!("{bytes} bytes, the arena has {}", self.arena.bytes())));
        }
        loop {
            let freed = self.arena.freed();
            if let Some(slot) = self.arena.allocate(bytes) {
                return Ok(slot);
            }
            if self.cache.evict_one() {
                continue;
            }
            if tokio::time::timeout_at(deadline, freed).await.is_err() {
                return Err(MediaError::Overloaded(format!("{bytes} bytes of the arena")));
            }
        }
    }
}

fn decode_and_name(
    bytes: &[u8],
    header: &decode::Header,
    mut slot: SlotMut,
    scope: &Scope,
) -> Result<Picture, DecodeError> {
    decode::decode_into(bytes, header, &mut slot)?;
    // While the pixels are warm.
    let name = Name::of(scope, header.height(), header.width(), &slot);
    Ok(Picture { name, slot: slot.freeze() })
}
