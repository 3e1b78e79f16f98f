//! Reading a request body within its limit and the budget of all bodies.
//!
//! A body is admitted as it arrives, in steps that double: what a client announces and does not send takes nothing from
//! others. Otherwise a handful of connections that announce large bodies would hold the whole budget.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header::CONTENT_LENGTH};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::{
    answer::Refusal,
    app::{App, Limits},
};
use crate::memory::{Admission, BudgetError};

/// The first step of admission, enough for most requests without pictures.
const FIRST_STEP_BYTES: usize = 64 << 10;

/// A whole body, counted against the budget until it is dropped.
#[derive(Debug)]
pub struct WholeBody {
    pub bytes: Bytes,
    _held: Held,
}

/// What a body holds of the budget.
#[derive(Debug, Default)]
struct Held {
    steps: Vec<(Admission, usize)>,
    bytes: usize,
}

impl Held {
    /// Waits until `bytes` are held in all, and some more, up to `most`.
    async fn grow_to(&mut self, app: &App, bytes: usize, most: usize) -> Result<(), BudgetError> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let target = bytes.max(self.bytes * 2).max(FIRST_STEP_BYTES).min(most.max(bytes));
        let step = target - self.bytes;
        let admission = app.bodies.admit(step, Instant::now() + app.limits.admission_timeout).await?;
        self.steps.push((admission, step));
        self.bytes = target;
        Ok(())
    }

    /// Gives back what is held beyond `bytes`.
    fn shrink_to(&mut self, bytes: usize) {
        while let Some((admission, step)) = self.steps.last_mut() {
            let before = self.bytes - *step;
            if before < bytes {
                admission.shrink_to(bytes - before);
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
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| too_slow())?;
        match frame {
            None => break,
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    let length = whole.len() + data.len();
                    if length > limits.body_bytes {
                        return Err(too_large(&limits));
                    }
                    held.grow_to(app, length, most).await.map_err(overloaded(&limits))?;
                    whole.reserve(held.bytes - whole.len());
                    whole.extend_from_slice(&data);
                }
            }
            Some(Err(_)) => return Err(broken()),
        }
    }
    held.shrink_to(whole.len());
    Ok(WholeBody { bytes: whole.freeze(), _held: held })
}

pub fn too_large(limits: &Limits) -> Refusal {
    let message = format!("The request body is larger than the limit of {} bytes.", limits.body_bytes);
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

pub fn too_slow() -> Refusal {
    Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "The request body did not arrive in time.")
}

pub fn broken() -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "body_broken", "The request body broke off.")
}

/// What it means that the budget of all bodies has no room.
pub fn overloaded(limits: &Limits) -> impl Fn(BudgetError) -> Refusal {
    let limits = *limits;
    move |error| match error {
        BudgetError::NeverFits { .. } => too_large(&limits),
        BudgetError::Busy { .. } => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "bodies_overloaded",
            "The server holds as many request bodies as it may; try again.",
        ),
    }
}
