//! Reading a request body within its limit and the budget of all bodies.
//!
//! A body is admitted as it arrives, in steps that double: what a client announces and does not send takes nothing from
//! others. Otherwise a handful of connections that announce large bodies would hold the whole budget.
//!
//! So a body waits for its next step while it holds the earlier ones, and bodies could wait for one another. That they do
//! not is up to the lane: as much of the budget as the largest body needs, for one body at a time that finds no room
//! elsewhere. Who has the lane needs nothing more, and makes room for the others when it is done; who stops sending in it
//! has to leave.

use std::{future::pending, time::Duration};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header::CONTENT_LENGTH};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::{
    answer::Refusal,
    app::{App, Limits},
};
use crate::{
    memory::{Admission, Budget, BudgetError},
    observe,
};

/// The first step of admission, enough for most requests without pictures.
const FIRST_STEP_BYTES: usize = 64 << 10;

/// How long a body in the lane may pause.
const LANE_PAUSE: Duration = Duration::from_secs(2);

/// Request bodies that are held at once, in all.
#[derive(Debug)]
pub struct Bodies {
    shared: Budget,
    lane: Budget,
}

/// A whole body, counted against the budget until it is dropped.
#[derive(Debug)]
pub struct WholeBody {
    pub bytes: Bytes,
    _held: Held,
}

/// What a body holds of the budget.
#[derive(Debug, Default)]
struct Held {
    steps: Vec<Admission>,
    /// Of the steps.
    bytes: usize,
    /// For all beyond the steps.
    lane: Option<Admission>,
}

impl Bodies {
    /// `largest_bytes` of `total_bytes` are the lane.
    pub fn new(total_bytes: usize, largest_bytes: usize) -> Self {
        let lane_bytes = largest_bytes.min(total_bytes);
        Bodies { shared: Budget::new(total_bytes - lane_bytes), lane: Budget::new(lane_bytes) }
    }

    /// Records how full they are.
    pub fn observe(&self) {
        observe::budget("bodies", &self.shared);
        observe::budget("bodies_lane", &self.lane);
    }
}

impl Held {
    /// Waits until there is room for `bytes` in all, and some more, up to `most`.
    async fn grow_to(
        &mut self,
        bodies: &Bodies,
        bytes: usize,
        most: usize,
        deadline: Instant,
    ) -> Result<(), BudgetError> {
        if bytes <= self.bytes || self.lane.is_some() {
            return Ok(());
        }
        let target = bytes.max(self.bytes * 2).max(FIRST_STEP_BYTES).min(most.max(bytes));
        let step = target - self.bytes;
        let shared = async {
            match bodies.shared.admit(step, deadline).await {
                // There may be nothing but the lane.
                Err(BudgetError::NeverFits { .. }) => pending().await,
                settled => settled,
            }
        };
        tokio::select! {
            biased;
            admission = shared => {
                self.steps.push(admission?);
                self.bytes = target;
            }
            lane = bodies.lane.admit(bodies.lane.total_bytes(), deadline) => self.lane = Some(lane?),
        }
        Ok(())
    }

    /// Gives back what is held beyond `bytes`, which is all that there is.
    fn settle(&mut self, bodies: &Bodies, bytes: usize) {
        if self.lane.is_some()
            && let Some(rest) = bytes.checked_sub(self.bytes)
            && let Ok(step) = bodies.shared.try_admit(rest)
        {
            self.steps.push(step);
            self.bytes = bytes;
            self.lane = None;
        }
        while let Some(step) = self.steps.last_mut() {
            let before = self.bytes - step.bytes();
            if before < bytes {
                step.shrink_to(bytes - before);
                break;
            }
            self.bytes = before;
            self.steps.pop();
        }
    }
}

/// Reads a body whole: at most `body_bytes`, within `body_timeout`, and only when the budget has room for it.
pub async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<WholeBody, Refusal> {
    let limits = app.limits;
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > limits.body_bytes) {
        return Err(too_large(&limits));
    }
    let most = announced.unwrap_or(limits.body_bytes);
    let deadline = Instant::now() + limits.body_timeout;
    let mut body = body;
    let mut held = Held::default();
    let mut whole = BytesMut::new();
    loop {
        let patience = if held.lane.is_some() { deadline.min(Instant::now() + LANE_PAUSE) } else { deadline };
        let frame = timeout_at(patience, body.frame()).await.map_err(|_| too_slow())?;
        match frame {
            None => break,
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    let length = whole.len() + data.len();
                    if length > limits.body_bytes {
                        return Err(too_large(&limits));
                    }
                    let admission_deadline = Instant::now() + limits.admission_timeout;
                    let admitted = held.grow_to(&app.bodies, length, most, admission_deadline).await;
                    admitted.map_err(overloaded(&limits))?;
                    whole.reserve(held.bytes.max(length) - whole.len());
                    whole.extend_from_slice(&data);
                }
            }
            Some(Err(_)) => return Err(broken()),
        }
    }
    held.settle(&app.bodies, whole.len());
    Ok(WholeBody { bytes: whole.freeze(), _held: held })
}

/// 413: the body is above the limit.
pub fn too_large(limits: &Limits) -> Refusal {
    let message = format!("The request body is larger than the limit of {} bytes.", limits.body_bytes);
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

/// 408: the body was not there in time.
pub fn too_slow() -> Refusal {
    Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "The request body did not arrive in time.")
}

/// 400: the client went away in the midst, or its chunks make no sense.
pub fn broken() -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "body_broken", "The request body broke off.")
}

/// What it means that the budget of all bodies has no room.
pub fn overloaded(limits: &Limits) -> impl Fn(BudgetError) -> Refusal {
    let limits = *limits;
    move |error| match error {
        BudgetError::NeverFits { .. } => too_large(&limits),
        BudgetError::Busy { .. } => busy(),
    }
}

/// Room for a body did not come free in time.
pub fn busy() -> Refusal {
    let message = "The server holds as many request bodies as it may; try again.";
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "bodies_overloaded", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, future::join_all};

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Without the lane they hold half of what they need each, and wait for the other half for ever.
    #[tokio::test]
    async fn bodies_that_fill_the_budget_half_way_are_all_read_in_the_end() {
        let most = 1 << 20;
        let bodies = Bodies::new(4 << 20, most);
        let reading = (0..20).map(|_| async {
            let mut held = Held::default();
            for arrived in (0..=most).step_by(32 << 10) {
                held.grow_to(&bodies, arrived, most, far()).await.unwrap();
                tokio::task::yield_now().await;
            }
            held.settle(&bodies, most);
            assert!(held.lane.is_some() || held.bytes == most);
        });
        tokio::time::timeout(Duration::from_secs(20), join_all(reading)).await.expect("bodies wait for one another");
        assert_eq!((bodies.shared.free_bytes(), bodies.lane.free_bytes()), (3 << 20, 1 << 20));
    }

    #[tokio::test]
    async fn a_body_that_is_done_leaves_the_lane_if_there_is_room_elsewhere() {
        let bodies = Bodies::new(300_000, 100_000);
        let other = bodies.shared.try_admit(200_000).unwrap();
        let mut held = Held::default();
        held.grow_to(&bodies, 10, 100_000, far()).await.unwrap();
        assert!(held.lane.is_some());
        let mut late = Held::default();
        assert!(late.grow_to(&bodies, 10, 100_000, far()).now_or_never().is_none(), "one at a time");
        drop(other);
        held.settle(&bodies, 10);
        assert!(held.lane.is_none());
        assert_eq!((held.bytes, bodies.shared.free_bytes()), (10, 199_990));
    }
}
