//! Video and audio that a request names by http URL, in frontend decoding: no URL of a client reaches a worker there, which
//! gets the bytes instead, as they are.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::time::Instant;

use super::{answer::Refusal, app::App, forward::about_other};
use crate::{
    media::{error::MediaError, source::Source},
    memory::{Admission, BudgetError},
    request::{ClientRequest, OtherContent},
};

const FILES: &str = "video and audio files";

/// The files, for as long as a request needs them.
#[derive(Default)]
pub struct OtherFiles {
    /// `files[i]` is `request.others[i]`; what goes as it is has nothing here.
    pub files: Vec<Option<Bytes>>,
    _held: Option<Admission>,
}

/// Fetches them side by side, within one admission: as many at once as it has room for, each reckoned at its largest until it
/// is there.
pub async fn fetch(app: &App, client: &ClientRequest<'_>, deadline: Instant) -> Result<OtherFiles, Box<Refusal>> {
    let about = |index: usize, error: MediaError| about_other(&client.others[index].param, &error);
    let mut missing = VecDeque::new();
    for (index, part) in client.others.iter().enumerate() {
        let OtherContent::Url { url, .. } = &part.content else { continue };
        match Source::parse(url).map_err(|error| about(index, error.into()))? {
            Source::Http(url) => missing.push_back((index, url)),
            Source::Data(_) => {}
        }
    }
    let mut files = vec![None; client.others.len()];
    let Some(&(first, _)) = missing.front() else { return Ok(OtherFiles { files, _held: None }) };
    let most_bytes = app.fetcher.max_bytes();
    let budget = &app.other_media;
    // Room for the largest beside another, or for a good part of all.
    let share_bytes = (2 * most_bytes).max(budget.total_bytes() / 4).min(budget.total_bytes());
    let share = budget.admit(share_bytes.min(missing.len() * most_bytes), deadline).await;
    let mut share = share.map_err(|error| {
        let cause = error.to_string().into();
        about(
            first,
            match error {
                BudgetError::NeverFits { .. } => MediaError::TooLarge { what: FILES, cause },
                BudgetError::Busy { .. } => MediaError::Overloaded { what: FILES, cause },
            },
        )
    })?;
    let mut held = share.split(0);
    let mut running = FuturesUnordered::new();
    loop {
        while !missing.is_empty()
            && let Some(room) = share.split(most_bytes)
            && let Some((index, url)) = missing.pop_front()
        {
            let fetch = async move { (index, app.fetcher.fetch(&url).await, room) };
            running.push(fetch.boxed());
        }
        match running.next().await {
            Some((index, fetched, mut room)) => {
                let bytes = fetched.map_err(|error| about(index, error.into()))?.bytes;
                if let (Some(held), Some(kept)) = (&mut held, room.split(bytes.len())) {
                    held.merge(kept);
                }
                share.merge(room);
                files[index] = Some(bytes);
            }
            None => match missing.front() {
                None => return Ok(OtherFiles { files, _held: held }),
                Some(&(index, _)) => {
                    let cause = "they exceed one request's share".into();
                    return Err(about(index, MediaError::TooLarge { what: FILES, cause }));
                }
            },
        }
    }
}
