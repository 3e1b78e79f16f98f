//! Reading a request body within its limit and the budget of all bodies.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header::CONTENT_LENGTH};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::{answer::Refusal, app::App};
use crate::memory::{Admission, BudgetError};

/// A whole body, counted against the budget until it is dropped.
#[derive(Debug)]
pub struct WholeBody {
    pub bytes: Bytes,
    _admission: Admission,
}

/// Reads a body whole: at most `body_bytes`, within `body_timeout`, and only when the budget has room for it.
pub async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<WholeBody, Refusal> {
    let limits = app.limits;
    let too_large = || {
        let message = format!("The request body is larger than the limit of {} bytes.", limits.body_bytes);
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > limits.body_bytes) {
        return Err(too_large());
    }
    // A body of unknown length may turn out as large as the limit.
    let most = announced.unwrap_or(limits.body_bytes);
    let wait = Instant::now() + limits.admission_timeout;
    let mut admission = app.bodies.admit(most, wait).await.map_err(|error| match error {
        BudgetError::NeverFits { .. } => too_large(),
        BudgetError::Busy { .. } => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "bodies_overloaded",
            "The server holds as many request bodies as it may; try again.",
        ),
    })?;

    let deadline = Instant::now() + limits.body_timeout;
    let mut body = body;
    let mut whole = BytesMut::with_capacity(announced.unwrap_or(0));
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| {
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "The request body did not arrive in time.")
        })?;
        match frame {
            None => break,
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    if whole.len() + data.len() > limits.body_bytes {
                        return Err(too_large());
                    }
                    whole.extend_from_slice(&data);
                }
            }
            Some(Err(_)) => {
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "body_broken", "The request body broke off."));
            }
        }
    }
    admission.shrink_to(whole.len());
    Ok(WholeBody { bytes: whole.freeze(), _admission: admission })
}
