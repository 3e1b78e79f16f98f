//! Places in the arena for the pictures of a request: all at once, or none.

use std::{sync::Arc, time::Instant};

use futures_util::FutureExt;
use tokio::{
    sync::Mutex,
    time::{Instant as Deadline, timeout_at},
};

use super::{
    Flight, Joined, Keep, LoadTimes, Loader, Patience,
    decoding::{self, Decoded},
    files::{Got, Have},
    identify::Wanted,
    sizing,
};
use crate::{
    media::{
        cache::{Known, SourceKey},
        error::{LoadError, MediaError},
        picture::Media,
    },
    memory::{Arena, BudgetError, Lease, SlotMut, ZoneId},
    observe,
};

const PIXELS: &str = "pixels";

/// Who may look for places now, a zone. Others wait in line with nothing but their admission, so that two who find half of
/// their places each do not chase one another for ever.
#[derive(Debug, Default)]
pub struct Turns {
    small: Mutex<()>,
    large: Mutex<()>,
}

/// An image that is there, or will be.
pub enum Place {
    Pinned(Media, &'static str),
    Decoding { flight: Arc<Flight<SourceKey, Decoded>>, lease: Arc<Lease>, led: bool },
}

/// A place, and what it took so far.
pub struct Placed {
    pub place: Place,
    pub times: LoadTimes,
}

/// A picture of the request, its pixels, and the right to hold them.
struct Leased<'a> {
    have: &'a Have,
    wanted: &'a Wanted,
    /// Among the distinct images.
    at: usize,
    bytes: usize,
    zone: ZoneId,
    lease: Arc<Lease>,
}

/// Why not all were placed.
enum Blocked {
    /// No room until somebody gives some back.
    Full,
    /// A picture is no longer in the cache.
    Gone(SourceKey),
}

/// Admits the request to its pixels and finds a place for each picture. `None` if a cached one went away.
pub async fn take(
    loader: &Arc<Loader>,
    wanted: &[Wanted],
    have: Vec<Have>,
    patience: &Patience,
) -> Result<Option<Vec<Placed>>, LoadError> {
    let start = Instant::now();
    let leased = admit(loader, wanted, &have, patience.deadline).await?;
    let waited = start.elapsed();
    observe::admitted("pixels", waited);
    let mut places: Vec<Option<Place>> = Vec::with_capacity(have.len());
    places.resize_with(have.len(), || None);
    for zone in ZoneId::ALL {
        let here: Vec<_> = leased.iter().filter(|leased| leased.zone == zone).collect();
        match place_zone(loader, zone, &here, patience.deadline).await? {
            Some(found) => here.iter().zip(found).for_each(|(leased, place)| places[leased.at] = Some(place)),
            None => return Ok(None),
        }
    }
    drop(leased);
    let placed = have.into_iter().zip(places).filter_map(|(have, place)| {
        let times = match have {
            Have::Named { times, .. } | Have::File(Got { times, .. }) => times,
        };
        let times = LoadTimes { admission: times.admission + waited, ..times };
        place.map(|place| Placed { place, times })
    });
    Ok(Some(placed.collect()))
}

/// Bytes of the slot that an image has or will have.
fn slot_bytes(loader: &Loader, wanted: &Wanted, have: &Have) -> Option<usize> {
    match have {
        Have::Named { content, .. } => Some(content.slot_bytes()),
        Have::File(got) => got.file().map(|file| sizing::slot_bytes(loader, wanted, file)),
    }
}

/// One admission a zone for all pictures, cut into a lease for each.
async fn admit<'a>(
    loader: &Arc<Loader>,
    wanted: &'a [Wanted],
    have: &'a [Have],
    deadline: Deadline,
) -> Result<Vec<Leased<'a>>, LoadError> {
    let arena = &loader.arena;
    let pictures: Vec<_> = have
        .iter()
        .enumerate()
        .filter_map(|(at, have)| {
            slot_bytes(loader, &wanted[at], have).map(|bytes| (at, have, bytes, arena.zone_of(bytes)))
        })
        .collect();
    let needs = ZoneId::ALL.map(|zone| {
        let here = pictures.iter().filter(|(.., of)| *of == zone);
        let largest = here.clone().max_by_key(|(_, _, bytes, _)| *bytes).map_or(0, |(at, ..)| *at);
        let need: usize = here.map(|(_, _, bytes, _)| Arena::charge(*bytes)).sum();
        (zone, need, largest)
    });
    let refused =
        |at: usize, error: &BudgetError| LoadError::new(wanted[at].index, MediaError::admission(PIXELS, error));
    // Before waiting for any of it.
    for (zone, wanted_bytes, largest) in needs {
        let total_bytes = if wanted_bytes > 0 { arena.budget(zone).total_bytes() } else { 0 };
        if wanted_bytes > total_bytes {
            return Err(refused(largest, &BudgetError::NeverFits { wanted_bytes, total_bytes }));
        }
    }
    let mut leased = Vec::with_capacity(pictures.len());
    for (zone, need, largest) in needs.into_iter().filter(|(_, need, _)| *need > 0) {
        let admitted = arena.budget(zone).admit(need, deadline).await;
        let mut admission = admitted.map_err(|error| refused(largest, &error))?;
        for &(at, have, bytes, _) in pictures.iter().filter(|(.., of)| *of == zone) {
            // The sum of the charges was admitted.
            let Some(piece) = admission.split(Arena::charge(bytes)) else { continue };
            let lease = Arc::new(Lease::new(piece));
            leased.push(Leased { have, wanted: &wanted[at], at, bytes, zone, lease });
        }
    }
    Ok(leased)
}

/// A place for each picture of a zone, in their order. `None` if a cached one went away.
async fn place_zone(
    loader: &Arc<Loader>,
    zone: ZoneId,
    pictures: &[&Leased<'_>],
    deadline: Deadline,
) -> Result<Option<Vec<Place>>, LoadError> {
    let Some(first) = pictures.iter().find(|picture| matches!(picture.have, Have::File(_))) else {
        // Nothing to look for: pinning needs no room.
        return Ok(settle(loader, place_all(loader, zone, pictures)).flatten());
    };
    let late = |_| {
        let cause = "the arena is too full or too fragmented".into();
        LoadError::new(first.wanted.index, MediaError::Overloaded { what: PIXELS, cause })
    };
    let turn = match zone {
        ZoneId::Small => &loader.turns.small,
        ZoneId::Large => &loader.turns.large,
    };
    let _turn = timeout_at(deadline, turn.lock()).await.map_err(late)?;
    loop {
        let watch = loader.arena.watch(zone);
        if let Some(settled) = settle(loader, place_all(loader, zone, pictures)) {
            return Ok(settled);
        }
        timeout_at(deadline, watch.changed()).await.map_err(late)?;
    }
}

/// `None` if there is to be another try, `Some(None)` if the request has to start over.
fn settle(loader: &Loader, placed: Result<Vec<Place>, Blocked>) -> Option<Option<Vec<Place>>> {
    match placed {
        Ok(places) => Some(Some(places)),
        Err(Blocked::Gone(key)) => {
            loader.sources.forget(&key);
            Some(None)
        }
        Err(Blocked::Full) => None,
    }
}

/// All or none: what was found before one is blocked is let go of again.
fn place_all(loader: &Arc<Loader>, zone: ZoneId, pictures: &[&Leased<'_>]) -> Result<Vec<Place>, Blocked> {
    let mut places = Vec::with_capacity(pictures.len());
    for picture in pictures {
        places.push(place_one(loader, zone, picture)?);
    }
    Ok(places)
}

fn place_one(loader: &Arc<Loader>, zone: ZoneId, picture: &Leased<'_>) -> Result<Place, Blocked> {
    let &Leased { wanted, bytes, ref lease, .. } = picture;
    let now = Instant::now();
    let got = match picture.have {
        Have::Named { content, from, .. } => {
            let pinned = loader.contents.pin(content, lease, now).ok_or(Blocked::Gone(wanted.key))?;
            loader.sources.found(&wanted.key, &pinned, now);
            return Ok(Place::Pinned(pinned, from));
        }
        Have::File(got) => got,
    };
    // Whoever has a lease has one.
    let Some(file) = got.file() else { return Err(Blocked::Gone(wanted.key)) };
    if file.keep == Keep::No {
        let slot = room(loader, zone, bytes).ok_or(Blocked::Full)?;
        let flight = Flight::alone(|()| decoding::begin(loader, wanted, got, slot, lease.clone()).boxed());
        return Ok(Place::Decoding { flight, lease: lease.clone(), led: true });
    }
    // Others who have the same file may have decoded it by now.
    let ready = || match loader.known(&wanted.key, Instant::now()) {
        Some(Known::Fresh(content)) if content.slot_bytes() == bytes => {
            loader.contents.pin(&content, lease, Instant::now())
        }
        _ => None,
    };
    if let Some(pinned) = ready() {
        return Ok(Place::Pinned(pinned, "shared"));
    }
    if let Some(flight) = loader.decodes.find(&wanted.key) {
        return Ok(Place::Decoding { flight, lease: lease.clone(), led: false });
    }
    let slot = room(loader, zone, bytes).ok_or(Blocked::Full)?;
    let work = |()| decoding::begin(loader, wanted, got, slot, lease.clone()).boxed();
    Ok(match loader.decodes.join(wanted.key, ready, work) {
        Joined::Ready(pinned) => Place::Pinned(pinned, "shared"),
        Joined::Led(flight) => Place::Decoding { flight, lease: lease.clone(), led: true },
        Joined::Followed(flight) => Place::Decoding { flight, lease: lease.clone(), led: false },
    })
}

/// A slot, by evicting what nobody holds if need be.
fn room(loader: &Loader, zone: ZoneId, bytes: usize) -> Option<SlotMut> {
    loop {
        if let Some(slot) = loader.arena.allocate(bytes) {
            return Some(slot);
        }
        if !loader.contents.evict_one(zone) {
            return None;
        }
    }
}
