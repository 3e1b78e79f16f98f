//! The last stage: pixels into their places, and names for them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use tokio::time::timeout_at;

use super::{
    Keep, LoadTimes, Loaded, Loader, Patience,
    fetches::Found,
    files::Got,
    identify::{Origin, Wanted},
    places::{Place, Placed},
    sizing::{Stash, Treatment},
};
use crate::{
    media::{
        content::{MediaId, Name, Scope},
        decode::{DecodeError, Probe, Size},
        error::{LoadError, MediaError},
        picture::{Media, Original, OriginalName, Picture},
    },
    memory::{Lease, SlotMut},
    observe,
};

/// What a decode ends with.
pub type Decoded = Result<Outcome, Arc<MediaError>>;

#[derive(Debug, Clone)]
pub struct Outcome {
    media: Media,
    /// Whether the same was there already.
    was_there: bool,
    took: Duration,
}

/// Decodes a file into a slot, or copies it there if that is all that can be done with it, and keeps the result if it may be
/// kept.
///
/// Everything that the work needs is counted for as long as it runs, by the leader's admission, even if the leader leaves.
/// Of scratch memory there is always enough to come: those who have some are decoding, and wait for nothing.
pub fn begin(
    loader: &Arc<Loader>,
    wanted: &Wanted,
    got: &Got,
    slot: SlotMut,
    lease: Arc<Lease>,
) -> impl Future<Output = Decoded> + Send + 'static + use<> {
    let loader = loader.clone();
    let (key, scope, resize) = (wanted.key, wanted.scope, wanted.resize);
    let is_url = matches!(wanted.origin, Origin::Url(_));
    let (flight, found, encoded) = (got.flight.clone(), got.found.clone(), got.encoded.clone());
    async move {
        let Found::File(file) = &*found else { return Err(Arc::new(MediaError::Lost)) };
        let result = async {
            let treatment = Treatment::of(&loader, resize.as_ref(), &file.probe);
            let scratch = loader.scratch.acquire(treatment.scratch_bytes()).await;
            let scratch = scratch.map_err(|error| MediaError::admission("decoding", &error))?;
            let (found, flight, encoded, of_job) = (found.clone(), flight.clone(), encoded.clone(), loader.clone());
            let urgency = treatment.urgency();
            let job = move || {
                let start = Instant::now();
                let Found::File(file) = &*found else { return Err(MediaError::Lost) };
                let media = into_slot(&file.bytes, &treatment, slot, &scope, &of_job.stash)?;
                drop((scratch, flight, encoded, lease));
                Ok((media, start.elapsed()))
            };
            loader.pool.run(urgency, job).await.map_err(|_| MediaError::Lost)?
        };
        let (media, took) = match result.await {
            Ok(done) => done,
            Err(error) if is_url => return Err(loader.failed(key, error)),
            Err(error) => return Err(Arc::new(error)),
        };
        if let Probe::Decodable(header) = &file.probe {
            observe::decoded(header.format().name(), took);
        }
        if file.keep == Keep::No {
            return Ok(Outcome { media, was_there: false, took });
        }
        let (media, was_there) = loader.contents.keep(media, Instant::now());
        loader.remember(key, media.content(), file.keep, file.validators.clone());
        loader.sources.found(&key, &media, Instant::now());
        drop(flight);
        Ok(Outcome { media, was_there, took })
    }
}

fn into_slot(
    file: &[u8],
    treatment: &Treatment,
    mut slot: SlotMut,
    scope: &Scope,
    stash: &Stash,
) -> Result<Media, DecodeError> {
    match treatment {
        Treatment::Decode(sizing) => {
            sizing.decode(file, &mut slot, stash)?;
            // While the pixels are warm.
            let Size { height, width } = sizing.size();
            let name = Name::of(scope, height, width, &slot);
            if let Some(saved_bytes) = sizing.saved_bytes() {
                observe::resized(saved_bytes);
            }
            Ok(Media::Picture(Picture { name, slot: slot.freeze() }))
        }
        Treatment::Copy(format) => {
            slot.copy_from_slice(file);
            let (format, file_bytes, id) = (*format, slot.len(), MediaId::of_file(scope, &slot));
            Ok(Media::Original(Original { name: OriginalName { format, file_bytes, id }, slot: slot.freeze() }))
        }
    }
}

/// Waits for what is being decoded.
pub async fn finish(
    loader: &Loader,
    wanted: &[Wanted],
    places: Vec<Placed>,
    patience: &Patience,
) -> Result<Vec<Loaded>, LoadError> {
    let deadline = patience.deadline;
    let finished = wanted.iter().zip(places).map(|(wanted, Placed { place, times })| async move {
        let (media, from, decode) = match place {
            Place::Pinned(media, from) => (media, from, Duration::ZERO),
            Place::Decoding { flight, lease, led } => {
                let decoded = timeout_at(deadline, flight.result()).await.map_err(|_| {
                    let cause = "the decoders are busy".into();
                    LoadError::new(wanted.index, MediaError::Overloaded { what: "decoding", cause })
                })?;
                let Outcome { media, was_there, took } =
                    decoded.map_err(|error| LoadError::new(wanted.index, error))?;
                let from = match (led, was_there, &media) {
                    (false, ..) => "shared",
                    (true, true, _) => "content_hit",
                    (true, false, Media::Picture(_)) => "decoded",
                    (true, false, Media::Original(_)) => "original",
                };
                (media.leased(lease), from, took)
            }
        };
        loader.came(from);
        Ok(Loaded { media, times: LoadTimes { decode, ..times } })
    });
    try_join_all(finished).await
}
