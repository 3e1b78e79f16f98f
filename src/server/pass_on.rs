//! A worker's answer on its way to the client: status, headers, bytes and trailers as they come.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};

use super::{headers, responses::Made, told::Told};
use crate::{
    transfer::LandingSlot,
    worker::{InFlight, circuit::Outcome},
};

/// An answer with this body.
pub fn answer(status: StatusCode, worker: &HeaderMap, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers::to_client(worker);
    response
}

/// The rest of an answer, with what is given back when its last byte is through, or the client has left.
pub struct Rest {
    /// Read already.
    begun: Option<Bytes>,
    worker: reqwest::Body,
    /// Looks for the id of the response that it is about.
    made: Option<Made>,
    /// Hears what it tells routing.
    told: Option<Told>,
    /// Hears whether the worker keeps to it until it is whole.
    in_flight: InFlight,
    _slots: Vec<Arc<LandingSlot>>,
}

impl Rest {
    /// The body of `response` after what of it is in `begun`. When it is dropped, the connection to the worker is closed if
    /// there was more to come, which ends its work.
    pub fn body(
        begun: Bytes,
        response: reqwest::Response,
        made: Option<Made>,
        told: Option<Told>,
        in_flight: InFlight,
        slots: Vec<Arc<LandingSlot>>,
    ) -> Body {
        let worker = http::Response::<reqwest::Body>::from(response).into_body();
        let begun = (!begun.is_empty()).then_some(begun);
        let mut rest = Rest { begun, worker, made, told, in_flight, _slots: slots };
        rest.whole_if_over();
        Body::new(rest)
    }

    /// Nobody asks for more once the end is known, and then no other end is seen.
    fn whole_if_over(&mut self) {
        if http_body::Body::is_end_stream(self) {
            self.in_flight.ended(Outcome::Success);
        }
    }
}

impl http_body::Body for Rest {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        let this = self.get_mut();
        let frame = match this.begun.take() {
            Some(begun) => Some(Ok(Frame::data(begun))),
            None => ready!(Pin::new(&mut this.worker).poll_frame(cx)),
        };
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    if this.made.as_mut().is_some_and(|made| made.look(data)) {
                        this.made = None;
                    }
                    if let Some(told) = &mut this.told {
                        told.chunk(data);
                    }
                }
                this.in_flight.answering();
                this.whole_if_over();
            }
            Some(Err(error)) => {
                tracing::info!(worker = %this.in_flight.worker().label, %error, "the worker broke off its answer");
                this.in_flight.ended(Outcome::Failure);
            }
            None => this.in_flight.ended(Outcome::Success),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_none() && self.worker.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
