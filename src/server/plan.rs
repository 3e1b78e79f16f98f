//! How each image of a request travels to one worker: places for it are claimed, and the body is written anew.
//!
//! Each picture is pushed into the worker's landing memory while the request is on its way, and the request names it by
//! reference. A worker that granted no memory gets the same pixels inline, as a data: URI of binary PPM, under the same
//! uuid: exact, and in the list of formats that vLLM reads. A file that we do not decode goes as it came, without a uuid.
//! A picture that the worker is believed to hold processed already goes as its uuid alone.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::Instant;

use super::{app::App, loaded::LoadedRequest};
use crate::{
    media::{
        content::MediaId,
        picture::{Media, Picture},
        url_names::UrlIdentity,
    },
    observe,
    request::{OtherContent, rewrite::Edits},
    transfer::{Landing, LandingError, LandingSlot, Pin, PushError, PushReport, agent::PushRequest},
    worker::{Belief, Worker, circuit::Phase},
};

/// Of a data: URI of binary PPM.
const INLINE_PREFIX: &str = "data:image/x-portable-pixmap;base64,";

/// How pictures are to travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By uuid alone where the worker is believed to hold it, else as [`Way::Push`].
    Known,
    /// Pushed where the worker has room, inline else.
    Push,
    Inline,
}

/// How one image did travel; the metric's label and the debugging header's word.
pub type Transfer = &'static str;

/// A push under way.
pub type Push = BoxFuture<'static, Result<PushReport, FailedPush>>;

/// A push that did not arrive, and where it was meant to.
pub struct FailedPush {
    pub error: PushError,
    pub landing: Arc<Landing>,
}

/// How each image of a request travels to one worker.
pub struct Plan {
    /// For each picture that is pushed: its reference.
    references: HashMap<MediaId, String>,
    pub slots: Vec<Arc<LandingSlot>>,
    /// Started by calling them.
    pub pushes: Vec<Box<dyn FnOnce() -> Push + Send>>,
    /// Named by uuid alone.
    pub known: Vec<MediaId>,
    pub transfers: Vec<Transfer>,
}

impl Plan {
    /// `None` if the worker has no room now and the request may go `elsewhere`.
    pub async fn make(
        app: &App,
        worker: &Worker,
        media: &[Media],
        way: Way,
        belief: Option<&Belief>,
        elsewhere: bool,
    ) -> Option<Plan> {
        let mut plan = Plan {
            references: HashMap::new(),
            slots: Vec::new(),
            pushes: Vec::new(),
            known: Vec::new(),
            transfers: Vec::new(),
        };
        let belief = belief.filter(|_| way == Way::Known);
        let mut uses: HashMap<MediaId, u32> = HashMap::new();
        for media in media {
            if let Media::Picture(picture) = media {
                *uses.entry(picture.name.media_id).or_default() += 1;
            }
        }
        let may_push = way != Way::Inline && worker.landing_circuit() == Phase::Closed;
        let landing = worker.landing().filter(|landing| may_push && !landing.inline_is_faster());
        let deadline = Instant::now() + app.limits.landing_timeout;
        for media in media {
            let Media::Picture(picture) = media else {
                plan.transfers.push("original");
                continue;
            };
            let id = picture.name.media_id;
            // First, since another request may have taught us better since this picture's first part was looked at.
            if plan.references.contains_key(&id) {
                plan.transfers.push("push");
                continue;
            }
            if plan.known.contains(&id) || belief.is_some_and(|belief| belief.holds(&id)) {
                plan.known.push(id);
                plan.transfers.push("uuid");
                continue;
            }
            let Some(landing) = &landing else {
                plan.transfers.push("inline");
                continue;
            };
            let start = Instant::now();
            let claimed = landing.claim(picture.slot.len() as u64, uses[&id], deadline).await;
            observe::landing_wait(start.elapsed());
            match claimed {
                Ok((slot, pin)) => {
                    plan.push(app, picture, slot, pin, uses[&id]);
                    plan.transfers.push("push");
                }
                Err(LandingError::Busy | LandingError::Stuck) if elsewhere => return None,
                Err(error) => {
                    tracing::debug!(worker = %worker.label, %error, "no landing slot, going inline");
                    plan.transfers.push("inline");
                }
            }
        }
        Some(plan)
    }

    fn push(&mut self, app: &App, picture: &Picture, slot: Arc<LandingSlot>, pin: Pin, uses: u32) {
        let timeout = app.limits.push_timeout;
        let wait_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let descriptor = slot.descriptor(&picture.name, uses, wait_ms);
        let landing = slot.landing().clone();
        self.references.insert(picture.name.media_id, descriptor.reference(&landing.grant().key));
        self.slots.push(slot.clone());
        let source = picture.slot.clone();
        self.pushes.push(Box::new(move || {
            let request = PushRequest {
                source,
                peer: landing.grant().peer.clone(),
                address: slot.address(),
                mark: Some(descriptor.mark(&landing.grant().key)),
                keeps_order: landing.keeps_order(),
                deadline: std::time::Instant::now() + timeout,
                hold: Box::new(pin),
            };
            let push = landing.agent().push(request);
            async move {
                let result = push.await;
                if matches!(result, Err(PushError::Deadline)) {
                    slot.overdue();
                }
                result.map_err(|error| FailedPush { error, landing })
            }
            .boxed()
        }));
    }

    /// What becomes of the client's body: its images are replaced, all else stays as it came.
    pub fn edits(&self, app: &App, request: &LoadedRequest<'_>) -> Edits {
        let mut edits = request.client.edits();
        let by_url = request.media.is_empty() && app.url_names.identity == UrlIdentity::Immutable;
        if by_url && request.surface.uuid {
            for (part, id) in request.client.images.iter().zip(request.names) {
                part.place.put_uuid(&mut edits, &id.to_string());
            }
        }
        for (part, media) in request.client.images.iter().zip(request.media) {
            let place = &part.place;
            match media {
                Media::Original(original) => {
                    // The worker looks at the bytes, not at this type.
                    let prefix = format!("data:{};base64,", original.name.format.media_type());
                    place.put_base64(&mut edits, &prefix, [original.bytes(), Bytes::new()]);
                }
                Media::Picture(picture) => {
                    let id = &picture.name.media_id;
                    match self.references.get(id) {
                        _ if self.known.contains(id) => place.put_null(&mut edits),
                        // References have no character that JSON would escape.
                        Some(reference) => place.put_url(&mut edits, reference),
                        None => {
                            let header = picture.name.ppm_header();
                            let pixels = Bytes::from_owner(picture.slot.clone());
                            place.put_base64(&mut edits, INLINE_PREFIX, [header.into(), pixels]);
                        }
                    }
                    if request.surface.uuid {
                        place.put_uuid(&mut edits, &id.to_string());
                    }
                }
            }
        }
        for (part, fetched) in request.client.others.iter().zip(request.others) {
            if let (OtherContent::Url { span, .. }, Some(fetched)) = (&part.content, fetched) {
                // Any type of this kind: the worker looks at the bytes.
                let kind = if part.kind == "video_url" { "video/mp4" } else { "audio/wav" };
                let parts = [fetched.clone(), Bytes::new()];
                edits.replace_with_base64(span.clone(), format!("\"data:{kind};base64,"), parts, "\"");
            }
        }
        edits
    }
}
