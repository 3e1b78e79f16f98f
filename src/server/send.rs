//! One attempt: a request goes to one worker, its pictures beside it.
//!
//! Each picture is pushed into the worker's landing memory while the request is on its way, and the request names it by
//! reference. A worker that granted no memory gets the same pixels inline, as a data: URI of binary PPM, under the same
//! uuid: exact, and in the list of formats that vLLM reads. A file that we do not decode goes as it came, without a uuid.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use super::app::App;
use crate::{
    media::{
        content::MediaId,
        picture::{Media, Picture},
    },
    observe,
    request::{ChatRequest, rewrite::Edits},
    transfer::{LandingSlot, PushError, PushReport, agent::PushRequest},
    worker::Worker,
};

/// A refusal of our own plugin is short; what is longer is not one.
const MAX_REFUSAL_BYTES: usize = 16 << 10;

/// How pictures are to travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Pushed where the worker has room, inline else.
    Push,
    Inline,
}

/// How one image did travel; the metric's label and the debugging header's word.
pub type Transfer = &'static str;

/// How an attempt ended.
pub enum Attempt {
    /// The worker answered, and its answer is the client's.
    Answer(Box<Answer>),
    /// The worker's plugin refused a reference, for a reason that concerns the gateway alone.
    Refused(RefusalKind),
    /// A push failed; the request was withdrawn.
    PushFailed(PushError),
    /// No connection, or none that lasted until the answer began.
    Unreachable { connected: bool },
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
    /// What was read already, to see whether it was a refusal of our own; it was not.
    pub begun: Bytes,
    /// What is still to come, if anything is.
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
    fn of(status: StatusCode, body: &[u8]) -> Option<Self> {
        let (kind, word) = match status {
            StatusCode::UNPROCESSABLE_ENTITY => (RefusalKind::Bad, "mediagate bad: "),
            StatusCode::CONFLICT => (RefusalKind::Stale, "mediagate stale: "),
            StatusCode::GONE => (RefusalKind::Gone, "mediagate gone: "),
            StatusCode::SERVICE_UNAVAILABLE => (RefusalKind::Late, "mediagate late: "),
            _ => return None,
        };
        let body: serde_json::Value = serde_json::from_slice(body).ok()?;
        body["error"]["message"].as_str().filter(|message| message.starts_with(word)).map(|_| kind)
    }
}

/// A chat request whose images are loaded: `media[i]` is `request.images[i]`.
pub struct LoadedChat<'a> {
    pub body: &'a Bytes,
    pub request: &'a ChatRequest<'a>,
    pub media: &'a [Media],
}

type Push = BoxFuture<'static, Result<PushReport, PushError>>;

/// Sends a request to a worker, its pictures by `way`.
pub async fn attempt(app: &App, worker: &Arc<Worker>, headers: HeaderMap, chat: &LoadedChat<'_>, way: Way) -> Attempt {
    let start = Instant::now();
    let plan = Plan::make(app, worker, chat.media, way).await;
    let body = plan.body(chat);
    let Plan { slots, transfers, pushes: ready, .. } = plan;
    let mut times = SendTimes { prepare: start.elapsed(), ..SendTimes::default() };
    let referring = !slots.is_empty();

    let start = Instant::now();
    let mut pushes: FuturesUnordered<Push> = ready.into_iter().map(|push| push()).collect();
    let mut request =
        app.client.http().post(worker.url("/v1/chat/completions")).headers(headers).body(body).send().boxed();
    let response = loop {
        tokio::select! {
            response = &mut request => break response,
            Some(pushed) = pushes.next() => match pushed {
                Ok(report) => times.push = times.push.max(record(report)),
                Err(error) => return Attempt::PushFailed(error),
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
            tracing::info!(worker = %worker.label, %error, "the worker did not answer");
            return Attempt::Unreachable { connected: !error.is_connect() };
        }
    };
    for transfer in &transfers {
        observe::transfer(transfer);
    }
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = AnswerBody { begun: Bytes::new(), rest: Some(response) };
    if referring && !status.is_success() {
        match body.begin().await {
            Ok(()) => {}
            Err(()) => return Attempt::Unreachable { connected: true },
        }
        if let Some(kind) = RefusalKind::of(status, &body.begun) {
            return Attempt::Refused(kind);
        }
    }
    Attempt::Answer(Box::new(Answer { status, headers, body, transfers, times, slots }))
}

fn record(report: PushReport) -> Duration {
    observe::pushed(report.took, report.bytes);
    report.took
}

impl AnswerBody {
    /// Reads an error answer, whole if it is short enough to be a refusal of our plugin.
    async fn begin(&mut self) -> Result<(), ()> {
        let mut begun = Vec::new();
        while let Some(response) = &mut self.rest
            && begun.len() <= MAX_REFUSAL_BYTES
        {
            match response.chunk().await.map_err(drop)? {
                Some(chunk) => begun.extend_from_slice(&chunk),
                None => self.rest = None,
            }
        }
        self.begun = begun.into();
        Ok(())
    }
}

/// How each image of a request travels to one worker.
struct Plan {
    /// For each picture that is pushed: its reference.
    references: HashMap<MediaId, String>,
    slots: Vec<Arc<LandingSlot>>,
    /// Started by calling them.
    pushes: Vec<Box<dyn FnOnce() -> Push + Send>>,
    transfers: Vec<Transfer>,
}

impl Plan {
    async fn make(app: &App, worker: &Worker, media: &[Media], way: Way) -> Plan {
        let mut plan =
            Plan { references: HashMap::new(), slots: Vec::new(), pushes: Vec::new(), transfers: Vec::new() };
        let mut uses: HashMap<MediaId, u32> = HashMap::new();
        for media in media {
            if let Media::Picture(picture) = media {
                *uses.entry(picture.name.media_id).or_default() += 1;
            }
        }
        let landing = worker.landing().filter(|_| way == Way::Push);
        let deadline = Instant::now() + app.limits.landing_timeout;
        for media in media {
            let Media::Picture(picture) = media else {
                plan.transfers.push("original");
                continue;
            };
            let id = picture.name.media_id;
            if plan.references.contains_key(&id) {
                plan.transfers.push("push");
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
                Ok(slot) => {
                    plan.push(app, picture, slot, uses[&id]);
                    plan.transfers.push("push");
                }
                Err(error) => {
                    tracing::debug!(worker = %worker.label, %error, "no landing slot, going inline");
                    plan.transfers.push("inline");
                }
            }
        }
        plan
    }

    fn push(&mut self, app: &App, picture: &Picture, slot: Arc<LandingSlot>, uses: u32) {
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
                hold: Box::new(slot),
            };
            landing.agent().push(request).boxed()
        }));
    }

    /// The client's body with its images replaced, all else as it came.
    fn body(&self, chat: &LoadedChat<'_>) -> Bytes {
        let mut edits = chat.request.edits();
        for (part, media) in chat.request.images.iter().zip(chat.media) {
            let span = part.url_span.clone();
            match media {
                Media::Original(original) => {
                    // The worker looks at the bytes, not at this type.
                    let prefix = format!("\"data:image/{};base64,", original.format.name().to_ascii_lowercase());
                    edits.replace_with_base64(span, prefix, [original.bytes.clone(), Bytes::new()], "\"");
                }
                Media::Picture(picture) => {
                    match self.references.get(&picture.name.media_id) {
                        // References have no character that JSON would escape.
                        Some(reference) => edits.replace(span, format!("\"{reference}\"")),
                        None => inline(&mut edits, span, picture),
                    }
                    edits.replace(part.end..part.end, format!(",\"uuid\":\"{}\"", picture.name.media_id));
                }
            }
        }
        edits.apply(chat.body)
    }
}

fn inline(edits: &mut Edits, span: std::ops::Range<usize>, picture: &Picture) {
    let header = format!("P6\n{} {}\n255\n", picture.name.width, picture.name.height);
    let pixels = Bytes::from_owner(picture.slot.clone());
    edits.replace_with_base64(span, "\"data:image/x-portable-pixmap;base64,".into(), [header.into(), pixels], "\"");
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
