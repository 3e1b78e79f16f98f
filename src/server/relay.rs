//! What goes to a worker as it comes: uploads of audio, questions about responses, and the routes that an operator added.
//!
//! The body is not looked at and not kept: it streams through, so it goes to one worker and to no second once a byte of it
//! was read, and over a connection that nobody is just closing.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, BodyDataStream, Bytes, HttpBody},
    response::Response,
};
use futures_util::Stream;
use http::{HeaderMap, Method, header::CONTENT_LENGTH};
use tokio::time::{Instant, Sleep};

use super::{
    answer::Refusal,
    app::App,
    body::{broken, too_large, too_slow},
    deadline::Deadline,
    dispatch::{Target, nobody_for, outcome_of},
    head::{self, NoAnswer},
    pass_on,
};
use crate::worker::{InFlight, Worker, WorkerId};

/// A request that is to be sent as it is.
pub struct Outgoing {
    pub method: Method,
    /// One of ours, or with nothing in it that could make another of it.
    pub path: String,
    pub query: Option<String>,
    pub body: Body,
}

/// Sends it to a worker that the target allows, and passes the answer on.
pub async fn relay(
    app: &App,
    client: &HeaderMap,
    target: Target<'_>,
    outgoing: Outgoing,
) -> Result<Response, Box<Refusal>> {
    let deadline = Deadline::of(client, app.limits.request_timeout)?;
    // As long as there is a body to come, it may be the client that is slow.
    let answer_by = deadline.of_server().filter(|_| outgoing.body.is_end_stream());
    deadline.within(send(app, client, target, outgoing, answer_by)).await
}

/// `answer_by` is when it is the worker's failure that there is no answer.
async fn send(
    app: &App,
    client: &HeaderMap,
    target: Target<'_>,
    outgoing: Outgoing,
    answer_by: Option<Instant>,
) -> Result<Response, Box<Refusal>> {
    let Outgoing { method, path, query, body } = outgoing;
    let mut to_worker = app.to_worker(client);
    let length = client.get(CONTENT_LENGTH).filter(|_| method != Method::GET);
    if let Some(length) = length {
        let bytes: Option<usize> = length.to_str().ok().and_then(|length| length.parse().ok());
        if bytes.is_none_or(|bytes| bytes > app.limits.body_bytes) {
            return Err(Box::new(too_large(&app.limits)));
        }
        to_worker.insert(CONTENT_LENGTH, length.clone());
    }
    let body = Lent::new(app, body);
    let mut passed_over = Vec::new();
    let mut refusal = None;
    loop {
        let Some((worker, mut in_flight)) = least_loaded(app, &target, &mut passed_over) else {
            return Err(Box::new(refusal.unwrap_or_else(|| nobody_for(app, &target))));
        };
        in_flight.must_answer_by(answer_by);
        let mut url = worker.url(&path);
        url.set_query(query.as_deref());
        let mut request = app.client.recent().request(method.clone(), url).headers(to_worker.clone());
        if method != Method::GET {
            request = request.body(reqwest::Body::wrap_stream(body.clone()));
        }
        match head::answer(request, &worker).await {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers().clone());
                in_flight.head(outcome_of(status));
                let body = pass_on::Rest::body(Bytes::new(), response, None, None, in_flight, Vec::new());
                return Ok(pass_on::answer(status, &headers, body));
            }
            Err(reason) => {
                if let Some(refusal) = body.flaw() {
                    return Err(Box::new(refusal));
                }
                reason.ended(&mut in_flight);
                if reason != NoAnswer::Unreachable {
                    return Err(Box::new(reason.into()));
                }
                refusal = Some(reason.into());
                passed_over.push(worker.id);
            }
        }
    }
}

fn least_loaded(app: &App, target: &Target<'_>, passed_over: &mut Vec<WorkerId>) -> Option<(Arc<Worker>, InFlight)> {
    loop {
        let workers = app.registry.available();
        let allowed = workers.iter().filter(|worker| !passed_over.contains(&worker.id) && target.allows(worker));
        let worker = allowed.min_by_key(|worker| worker.in_flight())?;
        match worker.enter() {
            Some(in_flight) => return Some((worker.clone(), in_flight)),
            // Another request has become its probe meanwhile.
            None => passed_over.push(worker.id),
        }
    }
}

/// A client's body, lent to one attempt after another until a byte of it is read.
#[derive(Clone)]
struct Lent(Arc<Mutex<Source>>);

struct Source {
    body: BodyDataStream,
    read_bytes: usize,
    limits: super::app::Limits,
    deadline: Pin<Box<Sleep>>,
    flaw: Option<Refusal>,
}

impl Lent {
    fn new(app: &App, body: Body) -> Self {
        let deadline = Box::pin(tokio::time::sleep_until(Instant::now() + app.limits.body_timeout));
        let source = Source { body: body.into_data_stream(), read_bytes: 0, limits: app.limits, deadline, flaw: None };
        Lent(Arc::new(Mutex::new(source)))
    }

    /// What was wrong with the body itself.
    fn flaw(&self) -> Option<Refusal> {
        self.source().flaw.take()
    }

    fn source(&self) -> MutexGuard<'_, Source> {
        // A stream that panicked is at fault, and says so again when polled.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream for Lent {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut source = self.source();
        let source = &mut *source;
        let refusal = match Pin::new(&mut source.body).poll_next(cx) {
            Poll::Ready(Some(Ok(data))) => {
                source.read_bytes += data.len();
                if source.read_bytes <= source.limits.body_bytes {
                    return Poll::Ready(Some(Ok(data)));
                }
                too_large(&source.limits)
            }
            Poll::Ready(Some(Err(_))) => broken(),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                ready!(source.deadline.as_mut().poll(cx));
                too_slow()
            }
        };
        source.flaw = Some(refusal);
        Poll::Ready(Some(Err(std::io::ErrorKind::InvalidData.into())))
    }
}
