//! A refused request's body is read to its end, and thrown away.
//!
//! Most clients send a whole request before they look for an answer. Where an answer is final before the body was read
//! (no such route, a wrong key, a body too large), closing the connection with bytes unread makes the kernel reset it, and
//! the client sees that instead of why it was refused. So what is left of a body when its reader lets go of it is read
//! here for a while, into nothing. HTTP/2 has a way to say "no more of this", and a client that waits for
//! `100 Continue` sends nothing: both are let be.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Version, header::EXPECT};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// For the rest of a refused body to come in.
const LINGER: Duration = Duration::from_secs(10);

/// A body whose rest is read when it is dropped.
#[derive(Debug)]
pub struct Lingering {
    /// `None` once it is over or broken.
    body: Option<Incoming>,
    /// Whether the client sends the body without being asked to.
    unasked: bool,
}

impl Lingering {
    /// A request whose body lingers.
    pub fn request(request: Request<Incoming>) -> Request<Self> {
        let unasked = request.version() < Version::HTTP_2 && !request.headers().contains_key(EXPECT);
        request.map(|body| Lingering { body: Some(body), unasked })
    }
}

impl Body for Lingering {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        match &frame {
            Poll::Ready(None | Some(Err(_))) => self.body = None,
            // Whoever asked for the body has it coming now.
            Poll::Ready(Some(Ok(_))) => self.unasked = true,
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if let Some(mut rest) = self.body.take().filter(|body| self.unasked && !body.is_end_stream())
            // A connection that is taken down with the runtime has nobody to read for.
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                let drain = async { while let Some(Ok(_)) = rest.frame().await {} };
                let _ = tokio::time::timeout(LINGER, drain).await;
            });
        }
    }
}
