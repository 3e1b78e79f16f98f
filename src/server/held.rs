//! Bodies of answers that hold something until they are through, and that give up on clients that stop reading.
//!
//! Over HTTP/1 a client that reads nothing stops the socket, which has a time limit of its own. Over HTTP/2 it stops one
//! stream of a connection that is well: nothing asks that stream's body for more, so the body cannot notice by itself.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::{
    task::AbortHandle,
    time::{Instant, sleep, sleep_until},
};

/// A body, and what is held until it is through or dropped.
pub struct Held<G> {
    body: Body,
    _held: G,
}

impl<G> Held<G> {
    pub fn new(body: Body, held: G) -> Self {
        Held { body, _held: held }
    }
}

impl<G: Unpin> HttpBody for Held<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The client has not read for too long.
#[derive(Debug, thiserror::Error)]
#[error("the client stopped reading")]
struct Stalled;

/// A body that is dropped, with all that it holds, once a piece of it was not taken for too long.
pub struct Attended {
    shared: Arc<Mutex<State>>,
    attendant: AbortHandle,
}

struct State {
    /// `None` once it was given up.
    body: Option<Body>,
    /// Since when a piece is with whoever sends it.
    given: Option<Instant>,
}

impl Attended {
    /// Must be called in a runtime.
    pub fn new(body: Body, patience: Duration) -> Self {
        let shared = Arc::new(Mutex::new(State { body: Some(body), given: None }));
        let attendant = tokio::spawn(attend(shared.clone(), patience)).abort_handle();
        Attended { shared, attendant }
    }
}

async fn attend(shared: Arc<Mutex<State>>, patience: Duration) {
    loop {
        let given = lock(&shared).given;
        match given {
            None => sleep(patience).await,
            Some(given) if given.elapsed() < patience => sleep_until(given + patience).await,
            Some(_) => {
                tracing::info!("a client stopped reading its answer: given up");
                // Dropped after the lock is free.
                let body = lock(&shared).body.take();
                drop(body);
                return;
            }
        }
    }
}

fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    // A body that panicked is not asked again by anyone but its own reader.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.attendant.abort();
    }
}

impl HttpBody for Attended {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut state = lock(&self.shared);
        let Some(body) = &mut state.body else { return Poll::Ready(Some(Err(axum::Error::new(Stalled)))) };
        let frame = Pin::new(body).poll_frame(cx);
        state.given = matches!(frame, Poll::Ready(Some(_))).then(Instant::now);
        frame
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.shared).body.as_ref().is_some_and(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.shared).body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::BodyExt;

    fn pieces(held: &Arc<()>) -> Body {
        let held = held.clone();
        Body::from_stream(stream::iter((0..3).map(move |_| {
            let _ = &held;
            Ok::<_, std::io::Error>(Bytes::from_static(b"x"))
        })))
    }

    #[tokio::test]
    async fn a_body_that_is_not_taken_is_given_up_with_all_that_it_holds() {
        let held = Arc::new(());
        let mut body = Attended::new(pieces(&held), Duration::from_millis(20));
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(Arc::strong_count(&held), 2);
        while Arc::strong_count(&held) > 1 {
            sleep(Duration::from_millis(5)).await;
        }
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn who_waits_for_a_slow_worker_is_waited_with() {
        let slow = Body::from_stream(stream::unfold(0, |count| async move {
            sleep(Duration::from_millis(60)).await;
            (count < 2).then(|| (Ok::<_, std::io::Error>(Bytes::from_static(b"x")), count + 1))
        }));
        let whole = Attended::new(slow, Duration::from_millis(10)).collect().await.unwrap().to_bytes();
        assert_eq!(&whole[..], b"xx");
    }
}
