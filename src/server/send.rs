//! One attempt: a request goes to one worker, its pictures beside it.
//!
//! Each picture is pushed into the worker's landing memory while the request is on its way, and the request names it by
//! reference. A worker that granted no memory gets the same pixels inline, as a data: URI of binary PPM, under the same
//! uuid: exact, and in the list of formats that vLLM reads. A file that we do not decode goes as it came, without a uuid.
//! A picture that the worker is believed to hold processed already goes as its uuid alone.

use std::{collections::HashMap, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use http::{HeaderMap, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;

use super::{app::App, deadline::Deadline, surface::Surface};
use crate::{
    media::{
        content::MediaId,
        picture::{Media, Picture},
        resize::SmartResize,
        url_names::UrlIdentity,
    },
    memory::BudgetError,
    observe,
    request::{ClientRequest, OtherContent, rewrite::Edits},
    transfer::{Landing, LandingError, LandingSlot, Pin, PushError, PushReport, agent::PushRequest},
    worker::{Belief, Worker, circuit::Phase, client::is_closed},
};

/// A refusal of our own plugin is short; what is longer is not one.
const MAX_REFUSAL_BYTES: usize = 16 << 10;

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

/// How an attempt ended.
pub enum Attempt {
    /// In the way that it was sent, or in any.
    Over(End),
    /// The worker refused a request that named pictures by uuid alone; whatever the reason, the same with pixels is
    /// worth a try.
    NotKnown { ids: Vec<MediaId>, belief: Arc<Belief> },
    /// The worker's plugin refused a reference, for a reason that concerns the gateway alone.
    Refused { kind: RefusalKind, landing: Arc<Landing> },
    /// A push failed; the request was withdrawn.
    PushFailed { error: PushError, landing: Arc<Landing> },
}

/// What becomes of a request on one worker, whatever the way of its pictures.
pub enum End {
    /// The worker answered, and its answer is the client's.
    Answer(Box<Answer>),
    /// The worker has no room for a picture, and none came free within the wait; nothing was sent.
    NoRoom,
    /// There is no memory for the body that the worker would get, not in time or not ever; nothing was sent.
    NoMemory(BudgetError),
    /// No connection could be made.
    Unreachable,
    /// The connection was closed when no answer had begun.
    Unanswered,
    /// The worker hangs, or what came was no answer.
    Broken,
}

/// An answer whose head is there.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: AnswerBody,
    pub transfers: Vec<Transfer>,
    pub times: SendTimes,
    /// Hold the places on the worker until the answer is over.
    pub slots: Vec<Arc<LandingSlot>>,
}

pub struct AnswerBody {
    /// Read already, to see whether it was a refusal of our own; it was not.
    pub begun: Bytes,
    /// `None` if that was all.
    pub rest: Option<reqwest::Response>,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SendTimes {
    /// Waiting for landing slots, and writing the new body.
    pub prepare: Duration,
    /// The longest push.
    pub push: Duration,
    /// From sending the request to the head of the answer.
    pub worker: Duration,
}

/// Kinds of refusal of docs/PROTOCOL.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    Bad,
    Stale,
    Gone,
    Late,
}

impl RefusalKind {
    /// The kind that an answer of this status may be, and the words with which its message then begins.
    fn suspected(status: StatusCode) -> Option<(Self, &'static str)> {
        match status {
            StatusCode::UNPROCESSABLE_ENTITY => Some((RefusalKind::Bad, "mediagate bad: ")),
            StatusCode::CONFLICT => Some((RefusalKind::Stale, "mediagate stale: ")),
            StatusCode::GONE => Some((RefusalKind::Gone, "mediagate gone: ")),
            StatusCode::SERVICE_UNAVAILABLE => Some((RefusalKind::Late, "mediagate late: ")),
            _ => None,
        }
    }

    /// What the metric of transfers calls it.
    pub fn outcome(self) -> Transfer {
        match self {
            RefusalKind::Bad => "refused_bad",
            RefusalKind::Stale => "refused_stale",
            RefusalKind::Gone => "refused_gone",
            RefusalKind::Late => "refused_late",
        }
    }

    fn of(status: StatusCode, body: &[u8]) -> Option<Self> {
        let (kind, word) = Self::suspected(status)?;
        let body: serde_json::Value = serde_json::from_slice(body).ok()?;
        body["error"]["message"].as_str().filter(|message| message.starts_with(word)).map(|_| kind)
    }
}

/// A request whose media are loaded.
pub struct LoadedRequest<'a> {
    pub surface: &'static Surface,
    pub body: &'a Bytes,
    pub request: &'a ClientRequest<'a>,
    /// `media[i]` is `request.images[i]`.
    pub media: &'a [Media],
    /// What each image is called.
    pub names: &'a [MediaId],
    /// What was fetched for `request.others[i]`, in frontend decoding; what goes as it is has nothing here.
    pub others: &'a [Option<Bytes>],
    pub deadline: Deadline,
    /// The rule by which its images were resized: workers of another one would make other pixels of them.
    pub resize: Option<SmartResize>,
}

impl LoadedRequest<'_> {
    /// Whether a worker makes of the images what they were resized for.
    pub fn fits(&self, worker: &Worker) -> bool {
        self.resize.is_none() || self.resize == worker.resize()
    }

    /// The best way in which its pictures may travel to a worker.
    pub fn best_way(&self, worker: &Worker) -> Way {
        // A response that is kept is kept with the pictures of its request as they came, and shown again to who goes on
        // from it: long after a reference has been used, or a cache has forgotten what a uuid names.
        let kept = self.surface.makes_responses && !self.request.store_off && worker.keeps_responses();
        if kept { Way::Inline } else { self.surface.best_way }
    }

    /// A worker has answered: it holds these pictures now.
    pub fn teach(&self, belief: &Belief) {
        if !self.surface.fills_caches() {
            return;
        }
        for media in self.media {
            if let Media::Picture(picture) = media {
                belief.learn(&picture.name);
            }
        }
    }
}

type Push = BoxFuture<'static, Result<PushReport, PushError>>;

/// What one worker is to get.
pub struct Delivery<'a> {
    pub app: &'a App,
    pub worker: &'a Arc<Worker>,
    pub headers: &'a HeaderMap,
    pub request: &'a LoadedRequest<'a>,
    /// Whether another worker may take it: then this one is not sent what it has no room for.
    pub elsewhere: bool,
}

impl Delivery<'_> {
    /// Sends the request over a connection of `client`, its pictures by `way`.
    pub async fn attempt(&self, client: &reqwest::Client, way: Way) -> Attempt {
        let &Delivery { app, worker, headers, request, elsewhere } = self;
        let start = Instant::now();
        let belief = worker.belief();
        let Some(plan) = Plan::make(app, worker, request.media, way, belief.as_deref(), elsewhere).await else {
            return Attempt::Over(End::NoRoom);
        };
        let deadline = start + app.limits.admission_timeout;
        let body = match plan.edits(app, request).apply_within(&app.worker_bodies, request.body, deadline).await {
            Ok(body) => body,
            Err(error) => return Attempt::Over(End::NoMemory(error)),
        };
        let Plan { slots, transfers, pushes: ready, known, .. } = plan;
        let mut times = SendTimes { prepare: start.elapsed(), ..SendTimes::default() };
        let landing = slots.first().map(|slot| slot.landing().clone());

        let start = Instant::now();
        let mut pushes: FuturesUnordered<Push> = ready.into_iter().map(|push| push()).collect();
        let post = client.post(worker.url(request.surface.path)).headers(headers.clone());
        let mut answer = post.body(sent_once(body)).send().boxed();
        let mut hangs = pin!(worker.hangs());
        let response = loop {
            tokio::select! {
                response = &mut answer => break response,
                () = &mut hangs => {
                    tracing::info!(worker = %worker.label, "the worker hangs, its request is withdrawn");
                    return Attempt::Over(End::Broken);
                }
                Some(pushed) = pushes.next() => match (pushed, &landing) {
                    (Ok(report), _) => times.push = times.push.max(record(report)),
                    (Err(error), Some(landing)) => return Attempt::PushFailed { error, landing: landing.clone() },
                    (Err(_), None) => unreachable!("a push has a slot, and a slot its landing"),
                },
            }
        };
        // Reports that came in with the answer.
        while let Some(Some(Ok(report))) = pushes.next().now_or_never() {
            times.push = times.push.max(record(report));
        }
        times.worker = start.elapsed();
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                let end = if error.is_connect() {
                    End::Unreachable
                } else if is_closed(&error) {
                    End::Unanswered
                } else {
                    End::Broken
                };
                // By itself it says only that there was an error.
                let error: &dyn std::error::Error = &error.without_url();
                tracing::info!(worker = %worker.label, error, "the worker did not answer");
                return Attempt::Over(end);
            }
        };
        for transfer in &transfers {
            observe::transfer(transfer);
        }
        let (status, headers) = (response.status(), response.headers().clone());
        if let Some(belief) = belief {
            if !known.is_empty() && (status.is_client_error() || status.is_server_error()) {
                return Attempt::NotKnown { ids: known, belief };
            }
            if status.is_success() {
                if !known.is_empty() {
                    belief.was_right();
                }
                request.teach(&belief);
            }
        }
        if status.is_informational() {
            // 101: another protocol, which nobody asked for.
            tracing::info!(worker = %worker.label, %status, "the worker changed the protocol");
            return Attempt::Over(End::Broken);
        }
        let body = match landing.filter(|_| RefusalKind::suspected(status).is_some()) {
            Some(landing) => match beginning(response).await {
                Ok(body) => match RefusalKind::of(status, &body.begun) {
                    Some(kind) => return Attempt::Refused { kind, landing },
                    None => body,
                },
                Err(()) => return Attempt::Over(End::Broken),
            },
            None => AnswerBody { begun: Bytes::new(), rest: Some(response) },
        };
        Attempt::Over(End::Answer(Box::new(Answer { status, headers, body, transfers, times, slots })))
    }
}

/// A body that is let go of when it is sent. Of one that it may clone, the client keeps one until the answer begins, in case
/// it should follow a redirect.
fn sent_once(body: Bytes) -> reqwest::Body {
    reqwest::Body::wrap(Full::new(body))
}

fn record(report: PushReport) -> Duration {
    observe::pushed(report.took, report.bytes);
    report.took
}

/// An error answer, whole if it is as short as a refusal of ours.
async fn beginning(mut response: reqwest::Response) -> Result<AnswerBody, ()> {
    let mut begun = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(drop)? {
        begun.extend_from_slice(&chunk);
        if begun.len() > MAX_REFUSAL_BYTES {
            return Ok(AnswerBody { begun: begun.into(), rest: Some(response) });
        }
    }
    Ok(AnswerBody { begun: begun.into(), rest: None })
}

/// How each image of a request travels to one worker.
struct Plan {
    /// For each picture that is pushed: its reference.
    references: HashMap<MediaId, String>,
    slots: Vec<Arc<LandingSlot>>,
    /// Started by calling them.
    pushes: Vec<Box<dyn FnOnce() -> Push + Send>>,
    /// Named by uuid alone.
    known: Vec<MediaId>,
    transfers: Vec<Transfer>,
}

impl Plan {
    /// `None` if the worker has no room now and the request may go `elsewhere`.
    async fn make(
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
                note: descriptor.landed_note(),
                deadline: std::time::Instant::now() + timeout,
                hold: Box::new(pin),
            };
            let push = landing.agent().push(request);
            async move {
                let result = push.await;
                if matches!(result, Err(PushError::Deadline)) {
                    slot.overdue();
                }
                result
            }
            .boxed()
        }));
    }

    /// What becomes of the client's body: its images are replaced, all else stays as it came.
    fn edits(&self, app: &App, request: &LoadedRequest<'_>) -> Edits {
        let mut edits = request.request.edits();
        let by_url = request.media.is_empty() && app.url_names.identity == UrlIdentity::Immutable;
        if by_url && request.surface.uuid {
            for (part, id) in request.request.images.iter().zip(request.names) {
                part.place.put_uuid(&mut edits, &id.to_string());
            }
        }
        for (part, media) in request.request.images.iter().zip(request.media) {
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
        for (part, fetched) in request.request.others.iter().zip(request.others) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_plugins_refusals_are_taken_for_ours() {
        let ours = br#"{"error":{"message":"mediagate stale: x","type":"Conflict","param":null,"code":409}}"#;
        assert_eq!(RefusalKind::of(StatusCode::CONFLICT, ours), Some(RefusalKind::Stale));
        assert_eq!(RefusalKind::of(StatusCode::GONE, ours), None);
        assert_eq!(RefusalKind::of(StatusCode::CONFLICT, br#"{"error":{"message":"other"}}"#), None);
        assert_eq!(RefusalKind::of(StatusCode::CONFLICT, b"not json"), None);
    }
}
