//! MediaLoader: the sources of a request in, pixels in the arena out; each thing is done once however many ask for it.
//!
//! A request's images are loaded together, in stages that it passes in one order. Each hands out
//! memory of its own kind once, so requests cannot wait for one another in a circle, whatever images they share.
//!
//! 1. `identify`: what the sources are called. Equal ones of a request are loaded once.
//! 2. The cache: what is fresh needs no file. A failure of an origin a moment ago is told again. If all is there, and
//!    nobody has to wait, that is all.
//! 3. `files` and, for each of them, `fetches`: the missing ones are asked for; who asks either leads the fetch of a source
//!    or follows one that is under way. When the heads of the responses have told how large they are, one admission of encoded
//!    bytes for all of them, shared ones counted in full; then their bodies are read, and their own headers. At its `gate` a
//!    fetch goes on when one who waits for it was admitted, and from there on only who was admitted holds it.
//! 4. `places`: one admission of pixels a zone for all pictures, those in the cache and those that others are decoding
//!    counted in full, then a place for each: the cached one pinned, a decode followed, or a slot of our own. All or
//!    none: who has to wait for one lets go of the others.
//! 5. `decoding`: those with slots decode into them, on threads of their own, and hash and keep the result. A file of a format
//!    that is not decoded is copied into its slot, and from there on it is what a picture is. A picture that is wanted
//!    in a model's size is brought to it there (`sizing`), and its slot was of that size from the start.
//!
//! Fetches and decodes are [`flights`]: futures that run as long as anybody waits for them. The first client may leave
//! without harm to the others; when all have left, the work is dropped. What comes out holds its admission as long as
//! anybody holds it.

mod config;
mod decoding;
mod fetches;
mod files;
mod flights;
mod gate;
mod identify;
mod places;
mod pool;
mod sizing;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tokio::time::Instant as Deadline;

pub use config::{Keep, MediaConfig};
pub use flights::{Flight, Flights, Joined};
pub use gate::{Gate, Waiting};
pub use pool::{Lost, Pool, Urgency};

use self::{
    decoding::Decoded,
    fetches::Fetch,
    identify::{View, Wanted},
};
use super::{
    cache::{Contents, Known, SourceKey, Sources},
    content::Scope,
    error::{LoadError, MediaError},
    fetch::{FetchConfigError, Fetcher},
    picture::Media,
    resize::SmartResize,
    source::SourceText,
};
use crate::{
    memory::{Arena, Budget, ZoneId},
    observe::{self, Tally},
};

/// The metric's word for what was in the cache and fresh.
const SOURCE_HIT: &str = "source_hit";

/// What a request relies on for what is in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reliance {
    /// That it will still be there when the request is admitted to its pixels. It holds nothing of it until then, so it
    /// may be evicted in favour of others.
    Cache,
    /// On nothing: it gets the files of all its images first, and then has all that it needs, in the cache or not. Taken when
    /// the first did not work out, so that a request in an arena that is too small for its load cannot starve.
    Files,
}

/// What a load took, for whoever wants to tell the client.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadTimes {
    pub fetch: Duration,
    pub admission: Duration,
    pub decode: Duration,
}

/// A loaded image. What it holds is counted against the gateway's memory until the last clone of it is dropped.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub media: Media,
    pub times: LoadTimes,
}

impl Loaded {
    /// Whether it was decoded for this request.
    pub fn is_new(&self) -> bool {
        !self.times.decode.is_zero()
    }
}

/// See the module's documentation. Cheap to clone.
#[derive(Clone)]
pub struct MediaLoader(Arc<Loader>);

struct Loader {
    config: MediaConfig,
    fetcher: Fetcher,
    arena: Arc<Arena>,
    sources: Sources,
    contents: Contents,
    /// Connections that may wait for memory, of requests that are not yet admitted to any.
    heads: Budget,
    encoded: Budget,
    scratch: Budget,
    stash: sizing::Stash,
    pool: Pool,
    fetches: Arc<Flights<SourceKey, Fetch, Gate>>,
    decodes: Arc<Flights<SourceKey, Decoded>>,
    turns: places::Turns,
    hits: Tally,
}

impl MediaLoader {
    pub fn new(config: MediaConfig, arena: Arc<Arena>) -> Result<Self, FetchConfigError> {
        let fetcher = Fetcher::new(&config.fetch)?;
        let stash = sizing::Stash::new(&config);
        Ok(MediaLoader(Arc::new(Loader {
            fetcher,
            sources: Sources::default(),
            contents: Contents::new(arena.clone()),
            heads: Budget::new(config.fetch.max_concurrent),
            encoded: Budget::new(config.encoded_bytes),
            scratch: Budget::new(config.scratch_bytes - stash.bytes()),
            stash,
            pool: Pool::new(config.decoders),
            fetches: Arc::default(),
            decodes: Arc::default(),
            turns: places::Turns::default(),
            hits: Tally::default(),
            arena,
            config,
        })))
    }

    /// Loads all images of a request: `sources` are as the request has them, the answer is in the same order.
    ///
    /// What the request waits for memory and for decoders ends at `deadline`, which is put off by the time that it spends on
    /// fetching: that has limits of its own.
    ///
    /// # Errors
    ///
    /// The first failure; what was under way for the request alone is then given up.
    pub async fn load_all(
        &self,
        sources: &[SourceText],
        scope: &Scope,
        deadline: Deadline,
    ) -> Result<Vec<Loaded>, LoadError> {
        self.load_resized(sources, scope, None, deadline).await
    }

    /// As [`load_all`](Self::load_all), with pictures in the size of a rule.
    ///
    /// # Errors
    ///
    /// As [`load_all`](Self::load_all).
    pub async fn load_resized(
        &self,
        sources: &[SourceText],
        scope: &Scope,
        resize: Option<&SmartResize>,
        deadline: Deadline,
    ) -> Result<Vec<Loaded>, LoadError> {
        let view = View::new(scope, resize);
        let keys: Vec<_> = sources.iter().map(|text| identify::key(text, &view)).collect();
        if let Some(loaded) = self.0.all_hits(&keys) {
            return Ok(loaded);
        }
        // Its state is large, and a hit need not carry it.
        self.load_missing(sources, keys, &view, deadline).boxed().await
    }

    async fn load_missing(
        &self,
        sources: &[SourceText],
        keys: Vec<Option<SourceKey>>,
        view: &View,
        deadline: Deadline,
    ) -> Result<Vec<Loaded>, LoadError> {
        let had_all_keys = keys.iter().all(Option::is_some);
        let wanted = identify::all(&self.0, sources, keys, view).await?;
        if !had_all_keys && let Some(loaded) = self.0.hits(wanted.distinct.iter().map(|image| image.key)) {
            return Ok(wanted.spread(loaded));
        }
        let mut patience = Patience { deadline };
        for reliance in [Reliance::Cache, Reliance::Files] {
            if let Some(loaded) = self.0.attempt(&wanted.distinct, reliance, &mut patience).await? {
                return Ok(wanted.spread(loaded));
            }
            observe::media("evicted_meanwhile");
        }
        // Whoever has all files needs no cached picture.
        Err(LoadError::new(0, MediaError::Lost))
    }

    /// Loads one image.
    ///
    /// # Errors
    ///
    /// As [`load_all`](Self::load_all).
    pub async fn load(&self, source: SourceText, scope: &Scope, deadline: Deadline) -> Result<Loaded, Arc<MediaError>> {
        let mut loaded = self.load_all(&[source], scope, deadline).await.map_err(|error| error.error)?;
        // As many as were asked for.
        loaded.pop().ok_or_else(|| Arc::new(MediaError::Lost))
    }

    pub fn arena(&self) -> &Arc<Arena> {
        &self.0.arena
    }

    /// Drops every cached picture that nobody holds.
    pub fn clear(&self) {
        self.0.contents.clear();
    }

    /// What requests hold or are at now.
    pub fn held(&self) -> Held {
        let held = |budget: &Budget| budget.total_bytes() - budget.free_bytes();
        Held {
            encoded_bytes: held(&self.0.encoded),
            scratch_bytes: held(&self.0.scratch),
            small_pixels_bytes: held(self.0.arena.budget(ZoneId::Small)),
            large_pixels_bytes: held(self.0.arena.budget(ZoneId::Large)),
            fetches: self.0.fetches.len(),
            decodes: self.0.decodes.len(),
        }
    }

    /// Records how full memory is.
    pub fn observe(&self) {
        for zone in ZoneId::ALL {
            let usage = self.0.arena.zone_usage(zone);
            if usage.total_bytes > 0 {
                observe::arena(zone.name(), &usage);
                let name = match zone {
                    ZoneId::Small => "pixels_small",
                    ZoneId::Large => "pixels_large",
                };
                observe::budget(name, self.0.arena.budget(zone));
            }
        }
        observe::budget("encoded", &self.0.encoded);
        observe::budget("scratch", &self.0.scratch);
        observe::cached(self.0.sources.len(), self.0.contents.len());
        observe::source_hits(self.0.hits.sum());
    }
}

/// What requests hold of the budgets, and what is under way for them. All zero when nobody asks for anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    pub encoded_bytes: usize,
    pub scratch_bytes: usize,
    pub small_pixels_bytes: usize,
    /// The same as the small ones if there is but one zone.
    pub large_pixels_bytes: usize,
    pub fetches: usize,
    pub decodes: usize,
}

/// How long a request waits for us.
#[derive(Debug, Clone, Copy)]
struct Patience {
    deadline: Deadline,
}

impl Loader {
    /// All images from the cache, if all have names, are there, are fresh, and nobody has to wait for memory.
    fn all_hits(&self, keys: &[Option<SourceKey>]) -> Option<Vec<Loaded>> {
        if let [key] = keys {
            return self.hits([(*key)?].into_iter());
        }
        let keys = keys.iter().copied().collect::<Option<Vec<_>>>()?;
        let (firsts, places) = identify::distinct(keys.iter().copied());
        let loaded = self.hits(firsts.into_iter().map(|first| keys[first]))?;
        Some(identify::spread(&places, loaded))
    }

    /// The same for different keys.
    fn hits(&self, keys: impl ExactSizeIterator<Item = SourceKey>) -> Option<Vec<Loaded>> {
        let (now, count) = (Instant::now(), keys.len());
        let mut loaded = Vec::with_capacity(count);
        for key in keys {
            let media = self.sources.hit(&key, now, |bytes| self.arena.try_lease(bytes).ok())?;
            self.contents.mark_used(&media, now);
            loaded.push(Loaded { media, times: LoadTimes::default() });
        }
        self.hits.add(count as u64);
        Some(loaded)
    }

    /// All stages after the first. `None` if a cached picture that was relied on went away.
    async fn attempt(
        self: &Arc<Self>,
        wanted: &[Wanted],
        reliance: Reliance,
        patience: &mut Patience,
    ) -> Result<Option<Vec<Loaded>>, LoadError> {
        let now = Instant::now();
        let mut known = Vec::with_capacity(wanted.len());
        for image in wanted {
            known.push(match self.known(&image.key, now) {
                Some(Known::Failed(error)) => {
                    observe::media("failed_before");
                    return Err(LoadError::new(image.index, error));
                }
                known => known.filter(|_| reliance == Reliance::Cache),
            });
        }
        let have = files::gather(self, wanted, known, reliance, patience).await?;
        let Some(places) = places::take(self, wanted, have, patience).await? else { return Ok(None) };
        decoding::finish(self, wanted, places, patience).await.map(Some)
    }

    /// Counts an image by where it came from.
    fn came(&self, from: &'static str) {
        if from == SOURCE_HIT { self.hits.add(1) } else { observe::media(from) }
    }

    /// What level one knows, if level two has the content.
    fn known(&self, key: &SourceKey, now: Instant) -> Option<Known> {
        let known = self.sources.lookup(key, now)?;
        match &known {
            Known::Fresh(content) | Known::Stale(content, _) => self.contents.touch(content, now).then_some(known),
            Known::Failed(_) => Some(known),
        }
    }
}
