//! From a request whose images are loaded to a worker's answer: choose a worker, attempt, and go on to another way or
//! another worker where that is safe.

use std::sync::Arc;

use http::HeaderMap;

use super::{
    answer::Refusal,
    app::App,
    send::{Answer, Attempt, LoadedRequest, RefusalKind, Way, attempt},
    surface::Again,
};
use crate::{
    media::content::MediaId,
    routing::{Affinity, Candidate, choose},
    transfer::Landing,
    worker::{Belief, InFlight, Worker},
};

/// Attempts until a worker answers. A worker that cannot be connected to is passed over, and so is, once, one whose
/// connection broke before the first byte of its answer, where the surface says that this is safe. A refusal of
/// its plugin is answered by pushing once more (what it may cure) and then by going inline, unseen by the client.
pub async fn dispatch(
    app: &App,
    to_worker: HeaderMap,
    request: &LoadedRequest<'_>,
    affinity: Affinity,
) -> Result<(Box<Answer>, Arc<Worker>, InFlight), Box<Refusal>> {
    let mut unreachable: Vec<usize> = Vec::new();
    let mut broke_off = false;
    loop {
        let healthy = app.registry.healthy().filter(|worker| !unreachable.contains(&worker.index));
        let candidates: Vec<_> =
            healthy.map(|worker| Candidate { index: worker.index, in_flight: worker.in_flight() }).collect();
        let Some(index) = choose(&candidates, affinity) else {
            return Err(Box::new(match unreachable.is_empty() {
                true => Refusal::no_worker(),
                false => Refusal::bad_gateway(),
            }));
        };
        let worker = &app.registry.all()[index];
        let in_flight = worker.enter();
        let mut way = request.surface.best_way;
        let mut not_known: Option<(Vec<MediaId>, Arc<Belief>)> = None;
        let mut pushed_again = false;
        loop {
            match attempt(app, worker, to_worker.clone(), request, way).await {
                Attempt::Answer(answer) => {
                    // Only an answer to the same request with pixels shows that it was the belief that was wrong.
                    if let Some((ids, belief)) = not_known.filter(|_| answer.status.is_success()) {
                        crate::observe::transfer("uuid_miss");
                        belief.was_wrong(&ids);
                        // That they were not there is past: they were processed just now.
                        request.teach(&belief);
                    }
                    return Ok((answer, worker.clone(), in_flight));
                }
                Attempt::NotKnown { ids, belief } => {
                    not_known = Some((ids, belief));
                    way = Way::Push;
                }
                Attempt::Unreachable { connected } => {
                    // One that broke off may have been ended by this very request: others see it once more at most.
                    let again = request.surface.again == Again::Safe;
                    if connected && (!again || std::mem::replace(&mut broke_off, true)) {
                        return Err(Box::new(Refusal::bad_gateway()));
                    }
                    if !connected {
                        worker.set_healthy(false);
                    }
                    worker.look.notify_one();
                    unreachable.push(index);
                    break;
                }
                Attempt::Refused { kind: RefusalKind::Stale, .. } if !pushed_again => {
                    crate::observe::transfer("stale");
                    pushed_again = true;
                    way = Way::Push;
                }
                Attempt::Refused { kind, landing } => {
                    tracing::info!(worker = %worker.label, ?kind, "reference refused, going inline");
                    crate::observe::transfer(match kind {
                        RefusalKind::Bad => "refused_bad",
                        RefusalKind::Stale => "refused_stale",
                        RefusalKind::Gone => "refused_gone",
                        RefusalKind::Late => "refused_late",
                    });
                    if kind == RefusalKind::Gone {
                        give_up(&landing, worker);
                    }
                    way = Way::Inline;
                }
                Attempt::PushFailed { error, landing } => {
                    tracing::info!(worker = %worker.label, %error, "push failed, going inline");
                    crate::observe::transfer("push_failed");
                    give_up(&landing, worker);
                    way = Way::Inline;
                }
            }
        }
    }
}

/// Closes a landing, which may no longer be the worker's; the monitor attaches anew.
fn give_up(landing: &Landing, worker: &Worker) {
    landing.close();
    worker.look.notify_one();
}
