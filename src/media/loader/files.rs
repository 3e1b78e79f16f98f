//! The files of a request: admitted together, fetched side by side, each of them once for all who ask.
//!
//! First the heads: they tell how large the files are. Then one admission for all of them, and only then the bodies. A request
//! for more images than it may have connections for is admitted to a share for the rest, and goes on within that.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{FutureExt, StreamExt, future::try_join_all, stream::FuturesUnordered};

use super::{
    Flight, Keep, LoadTimes, Loader, Patience, Reliance, SOURCE_HIT, Waiting,
    fetches::{Begun, Fetch, FetchFlight, File, Found, begin, fetch},
    gate::grown,
    identify::{Origin, Wanted},
};
use crate::{
    media::{
        cache::{Known, SourceKey},
        error::{LoadError, MediaError},
        fetch::Validators,
        picture::Content,
    },
    memory::{Admission, BudgetError},
    observe,
};

/// Images of one request that are asked for before it is admitted to their bytes.
const HEADS_AT_ONCE: usize = 16;

/// What a request has of an image once its files are there.
pub enum Have {
    /// Its content's name; that was in the cache when last seen.
    Named {
        content: Content,
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
    /// The admission to its bytes, held as long as they are.
    pub encoded: Arc<Admission>,
    pub times: LoadTimes,
}

impl Got {
    /// The file, which is there.
    pub fn file(&self) -> Option<&File> {
        match &*self.found {
            Found::File(file) => Some(file),
            Found::Unchanged(..) => None,
        }
    }
}

/// An image that the cache does not have.
struct Missing {
    /// Among the distinct ones.
    place: usize,
    stale: Option<(Content, Validators)>,
    /// The largest that its file can be.
    most_bytes: usize,
}

/// A fetch that has begun.
struct UnderWay<F = Arc<FetchFlight>> {
    place: usize,
    begun: Begun<F>,
    /// So far.
    took: Duration,
}

/// The same for a request that is not admitted to its bytes.
type Asked = UnderWay<Waiting<SourceKey, Fetch>>;

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
        let stale = match known {
            Some(Known::Fresh(content)) => {
                have.push(Some(Have::Named { content, from: SOURCE_HIT, times: LoadTimes::default() }));
                continue;
            }
            Some(Known::Stale(content, validators)) => Some((content, validators)),
            Some(Known::Failed(_)) | None => None,
        };
        missing.push_back(Missing { place, stale, most_bytes });
        have.push(None);
    }
    if let Some(first) = missing.front() {
        let index = wanted[first.place].index;
        let refused = |what, error: &BudgetError| LoadError::new(index, MediaError::admission(what, error));
        let connections = first_heads(loader, wanted, &missing);
        let held = loader.heads.admit(connections, patience.deadline).await;
        let held = held.map_err(|error| refused("connections to origins", &error))?;
        let start = Instant::now();
        let begun = begin_first(loader, wanted, &mut missing, connections, reliance).await?;
        patience.deadline += start.elapsed();

        let start = Instant::now();
        let share = share_bytes(loader, wanted, &begun, &missing);
        let share = loader.encoded.admit(share, patience.deadline).await;
        let share = share.map_err(|error| refused("image files", &error))?;
        let admission = start.elapsed();
        observe::admitted("encoded", admission);
        drop(held);
        let start = Instant::now();
        let work = Work { loader, wanted, reliance, admission };
        work.fetch_all(begun, missing, share, &mut have).await?;
        patience.deadline += start.elapsed();
    }
    Ok(have.into_iter().flatten().collect())
}

/// How many images of a request are asked for before it is admitted to their bytes.
fn first_heads(loader: &Loader, wanted: &[Wanted], missing: &VecDeque<Missing>) -> usize {
    let urls = missing.iter().filter(|image| matches!(wanted[image.place].origin, Origin::Url(_))).count();
    urls.min(HEADS_AT_ONCE).min(loader.heads.total_bytes())
}

/// Asks for the first images by URL, as many as `connections`, and waits until their sizes are known.
async fn begin_first(
    loader: &Arc<Loader>,
    wanted: &[Wanted],
    missing: &mut VecDeque<Missing>,
    connections: usize,
    reliance: Reliance,
) -> Result<Vec<Asked>, LoadError> {
    let (mut first, mut later) = (Vec::with_capacity(connections), VecDeque::new());
    for image in missing.drain(..) {
        if first.len() < connections && matches!(wanted[image.place].origin, Origin::Url(_)) {
            first.push(image);
        } else {
            later.push_back(image);
        }
    }
    *missing = later;
    try_join_all(first.into_iter().map(|image| async move {
        let start = Instant::now();
        let begun = begin(loader, &wanted[image.place], image.stale, reliance).await;
        let begun = begun.map_err(|error| LoadError::new(wanted[image.place].index, error))?;
        Ok(UnderWay { place: image.place, begun: begun.waiting(), took: start.elapsed() })
    }))
    .await
}

/// What a request is admitted to: what it needs at most, but no more than its share where it cannot know.
fn share_bytes(loader: &Loader, wanted: &[Wanted], begun: &[Asked], missing: &VecDeque<Missing>) -> usize {
    let (mut known, mut unknown) = (0, 0);
    for image in begun {
        if let Begun::File { bytes, .. } = image.begun {
            known += bytes;
        }
    }
    for image in missing {
        match wanted[image.place].origin {
            Origin::Url(_) => unknown += image.most_bytes,
            Origin::Data(..) => known += image.most_bytes,
        }
    }
    let share = loader.config.request_share_bytes();
    // Room for the largest file beside what is known.
    known + unknown.min(share.saturating_sub(known).max(loader.config.fetch.max_bytes))
}

/// What a request is at once it was admitted to its files.
#[derive(Clone, Copy)]
struct Work<'a> {
    loader: &'a Arc<Loader>,
    wanted: &'a [Wanted],
    reliance: Reliance,
    admission: Duration,
}

/// What comes of a step, and bytes that it did not need.
enum Step {
    /// The size of an image is known.
    Begun(UnderWay, Admission),
    /// An image is there.
    Done(usize, Have, Admission),
}

impl Work<'_> {
    /// Reads the bodies of what has begun, and fetches the rest: as many at once as the share has room for, each reckoned at
    /// its largest until its size is known.
    async fn fetch_all(
        self,
        begun: Vec<Asked>,
        mut missing: VecDeque<Missing>,
        mut share: Admission,
        have: &mut [Option<Have>],
    ) -> Result<(), LoadError> {
        let mut running = FuturesUnordered::new();
        for image in begun {
            let bytes = image.begun.bytes();
            // The sum of them was admitted.
            let Some(encoded) = share.split(bytes) else { return Err(self.failed(image.place, MediaError::Lost)) };
            running.push(self.go_on(image, encoded).boxed());
        }
        loop {
            while let Some(next) = missing.front()
                && let Some(encoded) = share.split(next.most_bytes)
                && let Some(next) = missing.pop_front()
            {
                running.push(self.start(next, encoded).boxed());
            }
            match running.next().await.transpose()? {
                Some(Step::Begun(image, encoded)) => {
                    let bytes = image.begun.bytes();
                    share.merge(encoded);
                    // Larger only if it was asked for again and is another one by now.
                    let Some(encoded) = share.split(bytes) else {
                        return Err(self.failed(image.place, MediaError::from(grown())));
                    };
                    running.push(self.finish(image, encoded).boxed());
                }
                Some(Step::Done(place, found, excess)) => {
                    have[place] = Some(found);
                    share.merge(excess);
                }
                None => match missing.front() {
                    None => return Ok(()),
                    Some(next) => {
                        let cause = "they exceed one request's share".into();
                        return Err(self.failed(next.place, MediaError::TooLarge { what: "image files", cause }));
                    }
                },
            }
        }
    }

    /// From the admission to the file, for what was asked for before. Who follows a fetch that others have ended meanwhile
    /// starts again: most often it finds what came of it in the cache.
    async fn go_on(self, image: Asked, encoded: Admission) -> Result<Step, LoadError> {
        let UnderWay { place, begun, took } = image;
        let begun = match begun {
            Begun::Named(content, from) => Begun::Named(content, from),
            Begun::File { flight, followed, bytes } => match flight.admitted(bytes) {
                Some(flight) => Begun::File { flight, followed, bytes },
                None => {
                    let stale = match self.loader.known(&self.wanted[place].key, Instant::now()) {
                        Some(Known::Stale(content, validators)) => Some((content, validators)),
                        _ => None,
                    };
                    return self.start(Missing { place, stale, most_bytes: bytes }, encoded).await;
                }
            },
        };
        self.finish(UnderWay { place, begun, took }, encoded).await
    }

    /// From nothing to the size.
    async fn start(self, image: Missing, encoded: Admission) -> Result<Step, LoadError> {
        let start = Instant::now();
        let begun = begin(self.loader, &self.wanted[image.place], image.stale, self.reliance).await;
        let begun = begun.map_err(|error| self.failed(image.place, error))?;
        Ok(Step::Begun(UnderWay { place: image.place, begun, took: start.elapsed() }, encoded))
    }

    /// From the size to the file.
    async fn finish(self, image: UnderWay, mut encoded: Admission) -> Result<Step, LoadError> {
        let UnderWay { place, begun, took } = image;
        let start = Instant::now();
        let (mut flight, followed) = match begun {
            Begun::Named(content, from) => {
                let times = LoadTimes { fetch: took, admission: self.admission, decode: Duration::ZERO };
                return Ok(Step::Done(place, Have::Named { content, from, times }, encoded));
            }
            Begun::File { flight, followed, .. } => (flight, followed),
        };
        let mut found = self.read(place, &flight, &encoded).await?;
        if followed && found.keep() == Keep::No {
            // Meant for whoever asked, which a redirect told and not the head. Ask for ourselves.
            flight = Flight::alone(|gate| fetch(self.loader, &self.wanted[place], None, gate));
            found = self.read(place, &flight, &encoded).await?;
        }
        let bytes = match &*found {
            Found::File(file) => file.bytes.len(),
            Found::Unchanged(..) => return Err(self.failed(place, MediaError::Lost)),
        };
        let excess_bytes = encoded.bytes().checked_sub(bytes);
        let excess = excess_bytes.and_then(|bytes| encoded.split(bytes));
        // No gate lets more through than it was opened with.
        let Some(excess) = excess else { return Err(self.failed(place, MediaError::from(grown()))) };
        let times = LoadTimes { fetch: took + start.elapsed(), admission: self.admission, decode: Duration::ZERO };
        let got = Got { flight, found, encoded: Arc::new(encoded), times };
        Ok(Step::Done(place, Have::File(got), excess))
    }

    /// Waits for a file, within what the request is admitted to.
    async fn read(self, place: usize, flight: &Arc<FetchFlight>, encoded: &Admission) -> Result<Arc<Found>, LoadError> {
        flight.beside().open(encoded.bytes());
        flight.result().await.map_err(|error| self.failed(place, error))
    }

    fn failed(self, place: usize, error: impl Into<Arc<MediaError>>) -> LoadError {
        LoadError::new(self.wanted[place].index, error)
    }
}
