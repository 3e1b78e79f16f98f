//! One attempt: a request goes to one worker, and its pictures are pushed while it is on its way.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use http::{HeaderMap, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;

use super::{
    app::App,
    head::{self, NoAnswer},
    loaded::LoadedRequest,
    plan::{FailedPush, Plan, Push, Transfer, Way},
};
use crate::{
    media::content::MediaId,
    memory::BudgetError,
    observe,
    transfer::{Landing, LandingSlot, PushReport},
    worker::{Belief, Worker},
};

/// A refusal of our own plugin is short; what is longer is not one.
const MAX_REFUSAL_BYTES: usize = 16 << 10;

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
    PushFailed(FailedPush),
}

/// What becomes of a request on one worker, whatever the way of its pictures.
pub enum End {
    /// The worker answered, and its answer is the client's.
    Answer(Box<Answer>),
    /// The worker has no room for a picture, and none came free within the wait; nothing was sent.
    NoRoom,
    /// There is no memory for the body that the worker would get, not in time or not ever; nothing was sent.
    NoMemory(BudgetError),
    NoAnswer(NoAnswer),
}

impl From<NoAnswer> for Attempt {
    fn from(reason: NoAnswer) -> Self {
        Attempt::Over(End::NoAnswer(reason))
    }
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

/// The body of an answer, of which a part may have been read.
pub struct AnswerBody {
    /// Read already, to see whether it was a refusal of our own; it was not.
    pub begun: Bytes,
    /// `None` if that was all.
    pub rest: Option<reqwest::Response>,
}

/// Where the time of an attempt went.
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
        let mut answer = pin!(head::answer(post.body(sent_once(body)), worker));
        let response = loop {
            tokio::select! {
                response = &mut answer => break response,
                Some(pushed) = pushes.next() => match pushed {
                    Ok(report) => times.push = times.push.max(record(report)),
                    Err(failed) => return Attempt::PushFailed(failed),
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
            Err(reason) => return reason.into(),
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
        let body = match landing.filter(|_| RefusalKind::suspected(status).is_some()) {
            Some(landing) => match beginning(response).await {
                Ok(body) => match RefusalKind::of(status, &body.begun) {
                    Some(kind) => return Attempt::Refused { kind, landing },
                    None => body,
                },
                Err(()) => return NoAnswer::Broken.into(),
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
