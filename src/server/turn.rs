//! One worker's turn with a request: attempt after attempt, its pictures each time in the next way that may do, unseen by
//! the client.
//!
//! A worker that does not know what went by uuid alone gets the pixels. What a refusal of its plugin says that pushing once
//! more may cure is pushed once more. After any other refusal, or a push that failed, the pixels go inside the request.

use std::sync::Arc;

use super::{
    plan::{FailedPush, Way},
    send::{Attempt, Delivery, End, RefusalKind},
};
use crate::{
    media::content::MediaId,
    observe,
    transfer::{Landing, PushError},
    worker::{Belief, Worker},
};

/// Attempts, over connections of `client`, until there is an answer, or no way is left to this worker.
pub async fn turn(delivery: &Delivery<'_>, client: &reqwest::Client) -> End {
    let worker = delivery.worker;
    let mut way = delivery.request.best_way(worker);
    let mut not_known: Option<(Vec<MediaId>, Arc<Belief>)> = None;
    let mut pushed_again = false;
    loop {
        match delivery.attempt(client, way).await {
            Attempt::Over(End::Answer(answer)) => {
                if answer.status.is_success() {
                    if !answer.slots.is_empty() {
                        worker.landed();
                    }
                    // Only an answer to the same request with pixels shows that it was the belief that was wrong.
                    if let Some((ids, belief)) = not_known {
                        observe::transfer("uuid_miss");
                        belief.was_wrong(&ids);
                        // That they were not there is past: they were processed just now.
                        delivery.request.teach(&belief);
                    }
                }
                return End::Answer(answer);
            }
            Attempt::Over(end) => return end,
            Attempt::NotKnown { ids, belief } => {
                not_known = Some((ids, belief));
                way = Way::Push;
            }
            Attempt::Refused { kind: RefusalKind::Stale, .. } if !pushed_again => {
                observe::transfer("stale");
                pushed_again = true;
                way = Way::Push;
            }
            Attempt::Refused { kind, landing } => {
                tracing::info!(worker = %worker.label, ?kind, "reference refused, going inline");
                observe::transfer(kind.outcome());
                match kind {
                    RefusalKind::Gone => give_up(&landing, worker),
                    RefusalKind::Late => worker.did_not_land(&landing),
                    RefusalKind::Bad | RefusalKind::Stale => {}
                }
                way = Way::Inline;
            }
            Attempt::PushFailed(FailedPush { error, landing }) => {
                tracing::info!(worker = %worker.label, %error, "push failed, going inline");
                observe::transfer("push_failed");
                match error {
                    // It may still arrive, and keeps its source until then.
                    PushError::Deadline => worker.did_not_land(&landing),
                    PushError::Failed | PushError::Forgotten | PushError::AgentGone => give_up(&landing, worker),
                }
                way = Way::Inline;
            }
        }
    }
}

/// Closes a landing, which may no longer be the worker's; the monitor attaches anew.
fn give_up(landing: &Landing, worker: &Worker) {
    landing.close();
    worker.look.notify_one();
}
