//! The last stage: pixels into their places, and names for them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use tokio::time::timeout_at;

use super::{
    Keep, LoadTimes, Loaded, Loader, Patience, Urgency,
    files::{Found, Got},
    identify::{Origin, Wanted},
    places::{Place, Placed},
    sizing::Sizing,
};
use crate::{
    media::{
        content::Name,
        decode::{Header, Size},
        error::{LoadError, MediaError},
        picture::{Media, Picture},
    },
    memory::{Lease, SlotMut},
    observe,
};

/// What a decode ends with.
pub type Decoded = Result<Pixels, Arc<MediaError>>;

#[derive(Debug, Clone)]
pub struct Pixels {
    picture: Picture,
    /// Whether equal pixels were there already.
    was_there: bool,
    took: Duration,
}

/// Decodes a file into a slot, and keeps the picture if it may be kept.
///
/// Everything that the work needs is counted for as long as it runs, by the leader's admission, even if the leader leaves.
/// Of scratch memory there is always enough to come: those who have some are decoding, and wait for nothing.
pub fn begin(
    loader: &Arc<Loader>,
    wanted: &Wanted,
    got: &Got,
    header: &Header,
    slot: SlotMut,
    lease: Arc<Lease>,
) -> impl Future<Output = Decoded> + Send + 'static + use<> {
    let loader = loader.clone();
    let (key, scope) = (wanted.key, wanted.scope);
    let sizing = Sizing::of(&loader, wanted, header);
    let is_url = matches!(wanted.origin, Origin::Url(_));
    let (flight, found, encoded, header) = (got.flight.clone(), got.found.clone(), got.encoded.clone(), header.clone());
    async move {
        let result = async {
            let scratch = loader.scratch.acquire(sizing.scratch_bytes).await;
            let scratch = scratch.map_err(|error| MediaError::admission("decoding", &error))?;
            let (found, format) = (found.clone(), header.format().name());
            let saved_bytes = sizing.is_resized().then_some(sizing.saved_bytes);
            let of_job = loader.clone();
            let job = move || {
                let start = Instant::now();
                let Found::File(file) = &*found else { return Err(MediaError::Lost) };
                let mut slot = slot;
                sizing.decode(&file.bytes, &mut slot, &of_job.stash)?;
                // While the pixels are warm.
                let Size { height, width } = sizing.size();
                let name = Name::of(&scope, height, width, &slot);
                let picture = Picture { name, slot: slot.freeze() };
                drop((scratch, encoded, lease));
                Ok((picture, start.elapsed()))
            };
            let (picture, took) = loader.pool.run(Urgency::Long, job).await.map_err(|_| MediaError::Lost)??;
            observe::decoded(format, took);
            if let Some(saved_bytes) = saved_bytes {
                observe::resized(saved_bytes);
            }
            Ok((picture, took))
        };
        let (picture, took) = match result.await {
            Ok(decoded) => decoded,
            Err(error) if is_url => return Err(loader.failed(key, error)),
            Err(error) => return Err(Arc::new(error)),
        };
        let Found::File(file) = &*found else { return Err(Arc::new(MediaError::Lost)) };
        if file.keep == Keep::No {
            return Ok(Pixels { picture, was_there: false, took });
        }
        let (picture, was_there) = loader.contents.keep(picture, Instant::now());
        loader.remember(key, picture.name, file.keep, file.validators.clone());
        drop(flight);
        Ok(Pixels { picture, was_there, took })
    }
}

/// Waits for what is being decoded.
pub async fn finish(wanted: &[Wanted], places: Vec<Placed>, patience: &Patience) -> Result<Vec<Loaded>, LoadError> {
    let deadline = patience.deadline;
    let finished = wanted.iter().zip(places).map(|(wanted, Placed { place, times })| async move {
        let (media, from, decode) = match place {
            Place::Pinned(picture, from) => (Media::Picture(picture), from, Duration::ZERO),
            Place::Original(original) => (Media::Original(original), "original", Duration::ZERO),
            Place::Decoding { flight, lease, led } => {
                let decoded = timeout_at(deadline, flight.result()).await.map_err(|_| {
                    let cause = "the decoders are busy".into();
                    LoadError::new(wanted.index, MediaError::Overloaded { what: "decoding", cause })
                })?;
                let pixels = decoded.map_err(|error| LoadError::new(wanted.index, error))?;
                let from = match (led, pixels.was_there) {
                    (false, _) => "shared",
                    (true, true) => "content_hit",
                    (true, false) => "decoded",
                };
                (Media::Picture(pixels.picture.leased(lease)), from, pixels.took)
            }
        };
        observe::media(from);
        Ok(Loaded { media, times: LoadTimes { decode, ..times } })
    });
    try_join_all(finished).await
}
