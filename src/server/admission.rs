//! How many requests are under way at once, in all: more are refused at once rather than kept waiting.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::StatusCode;

use super::{answer::Refusal, app::App, held::Held};

/// Places for requests. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Places {
    most: usize,
    taken: Arc<AtomicUsize>,
}

/// A place, until it is dropped.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Places {
    /// So many at once.
    pub fn new(most: usize) -> Self {
        Places { most, taken: Arc::default() }
    }

    /// Requests under way.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    pub fn most(&self) -> usize {
        self.most
    }

    fn take(&self) -> Option<Place> {
        let place = Place(self.taken.clone());
        // Taken first, so that no two requests see the last place free; given back on drop if it was none.
        (self.taken.fetch_add(1, Ordering::Relaxed) < self.most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lets a request through if there is a place, which it keeps until the last byte of its answer.
pub async fn admit(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(place) = app.places.take() else {
        let message = "The server has as many requests as it may; try again.";
        return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "gateway_overloaded", message).into_response();
    };
    next.run(request).await.map(|body| Body::new(Held::new(body, place)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_it_is_dropped_and_a_refusal_takes_none() {
        let places = Places::new(2);
        let (first, second) = (places.take(), places.take());
        assert!(first.is_some() && second.is_some());
        assert!(places.take().is_none() && places.take().is_none());
        assert_eq!(places.taken(), 2);
        drop(first);
        assert!(places.take().is_some());
        assert_eq!(places.taken(), 1);
    }
}
