//! The head of a worker's answer, or why there is none.

use std::error::Error;

use super::answer::Refusal;
use crate::worker::{InFlight, Worker, circuit::Outcome, client::is_closed};

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// No connection could be made: the worker has seen nothing of the request.
    Unreachable,
    /// The connection was closed when no answer had begun.
    Unanswered,
    /// The worker hangs, or what came was no answer.
    Broken,
}

impl NoAnswer {
    /// Records what it says of the worker, which is to be looked at now.
    pub fn ended(self, request: &mut InFlight) {
        request.ended(Outcome::Failure);
        match self {
            NoAnswer::Unreachable => request.worker().unreachable(),
            NoAnswer::Unanswered | NoAnswer::Broken => request.worker().look.notify_one(),
        }
    }
}

impl From<NoAnswer> for Refusal {
    fn from(_: NoAnswer) -> Self {
        Refusal::bad_gateway()
    }
}

/// Sends a request to a worker, and waits for as long as the worker does not hang.
pub async fn answer(request: reqwest::RequestBuilder, worker: &Worker) -> Result<reqwest::Response, NoAnswer> {
    let answered = tokio::select! {
        answered = request.send() => answered,
        () = worker.hangs() => {
            tracing::info!(worker = %worker.label, "the worker hangs, its request is withdrawn");
            return Err(NoAnswer::Broken);
        }
    };
    match answered {
        // 101: another protocol, which nobody asked for.
        Ok(response) if response.status().is_informational() => {
            tracing::info!(worker = %worker.label, status = %response.status(), "the worker changed the protocol");
            Err(NoAnswer::Broken)
        }
        Ok(response) => Ok(response),
        Err(error) => {
            let reason = if error.is_connect() {
                NoAnswer::Unreachable
            } else if is_closed(&error) {
                NoAnswer::Unanswered
            } else {
                NoAnswer::Broken
            };
            // By itself it says only that there was an error. Its URL may have a client's query.
            let error: &dyn Error = &error.without_url();
            tracing::info!(worker = %worker.label, error, "the worker did not answer");
            Err(reason)
        }
    }
}
