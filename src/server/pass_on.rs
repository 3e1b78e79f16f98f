//! A worker's answer on its way to the client: status, headers, bytes and trailers as they come.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};

use super::{headers, responses::Made, told::Told};

/// An answer with this body, which holds something until its last byte is through, or the client has left.
pub fn answer(status: StatusCode, worker: &HeaderMap, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers::to_client(worker);
    response
}

/// The rest of an answer.
pub struct Rest<T> {
    /// Read already.
    begun: Option<Bytes>,
    worker: reqwest::Body,
    /// Looks for the id of the response that it is about.
    made: Option<Made>,
    /// Hears what it tells routing.
    told: Option<Told>,
    _hold: T,
}

impl<T: Send + Unpin + 'static> Rest<T> {
    /// The body of `response` after what of it is in `begun`. When it is dropped, so is `hold`: and the connection to
    /// the worker is closed if there was more to come, which ends its work.
    pub fn body(begun: Bytes, response: reqwest::Response, made: Option<Made>, told: Option<Told>, hold: T) -> Body {
        let worker = http::Response::<reqwest::Body>::from(response).into_body();
        Body::new(Rest { begun: (!begun.is_empty()).then_some(begun), worker, made, told, _hold: hold })
    }
}

impl<T: Unpin> http_body::Body for Rest<T> {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        let this = self.get_mut();
        let frame = match this.begun.take() {
            Some(begun) => Some(Ok(Frame::data(begun))),
            None => ready!(Pin::new(&mut this.worker).poll_frame(cx)),
        };
        if let (Some(Ok(frame)), Some(made)) = (&frame, &mut this.made)
            && let Some(data) = frame.data_ref()
            && made.look(data)
        {
            this.made = None;
        }
        if let (Some(Ok(frame)), Some(told)) = (&frame, &mut this.told)
            && let Some(data) = frame.data_ref()
        {
            told.chunk(data);
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
