//! From a request whose images are loaded to a worker's answer: choose a worker, attempt, and go on to another way or
//! another worker where that is safe.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::{
    answer::Refusal,
    app::App,
    body, models,
    send::{Answer, Attempt, LoadedRequest, RefusalKind, Way, attempt},
    surface::Again,
};
use crate::{
    media::{content::MediaId, error::MediaError},
    memory::BudgetError,
    observe,
    routing::{Asked, Candidate, Decision},
    transfer::{Landing, PushError},
    worker::{Belief, InFlight, Worker, WorkerId, circuit::Outcome, load::Work},
};

/// Who may get a request.
#[derive(Debug, Clone)]
pub enum Target<'a> {
    /// Whoever serves this model, or its own where none is named.
    Model(Option<&'a str>),
    /// One worker and no other: it keeps what the request is about.
    Worker(Arc<Worker>),
}

impl Target<'_> {
    pub fn allows(&self, worker: &Worker) -> bool {
        match self {
            Target::Model(model) => models::may_serve(worker, *model),
            Target::Worker(only) => only.id == worker.id,
        }
    }
}

/// A request that a worker has answered.
pub struct Dispatched {
    pub answer: Box<Answer>,
    /// Counts it as being on the worker for as long as it is kept.
    pub in_flight: InFlight,
    /// What it has to do there.
    pub work: Work,
    pub decision: Decision,
}

/// Attempts until a worker answers. A worker that cannot be connected to is passed over, and so is, once, one whose
/// connection broke before the first byte of its answer, where the surface says that this is safe. A refusal of
/// its plugin is answered by pushing once more (what it may cure) and then by going inline, unseen by the client.
pub async fn dispatch(
    app: &App,
    to_worker: HeaderMap,
    request: &LoadedRequest<'_>,
    target: &Target<'_>,
    asked: &Asked,
) -> Result<Dispatched, Box<Refusal>> {
    let mut passed_over: Vec<WorkerId> = Vec::new();
    // Workers that had no landing memory to spare: passed over as long as there is another.
    let mut full: Vec<WorkerId> = Vec::new();
    let mut unreachable = false;
    let mut broke_off = false;
    let mut unavailable = None;
    // What the gateway itself could not do.
    let mut unable: Option<Refusal> = None;
    loop {
        let workers = app.registry.available();
        let may = |worker: &Worker| target.allows(worker) && request.fits(worker);
        let left = || workers.iter().filter(|worker| !passed_over.contains(&worker.id) && may(worker));
        let with_room = left().filter(|worker| !full.contains(&worker.id)).count();
        let elsewhere = with_room > 1;
        let candidates: Vec<_> = left()
            .filter(|worker| with_room == 0 || !full.contains(&worker.id))
            .map(|worker| candidate(worker))
            .collect();
        let decision = app.router.choose(asked, &candidates);
        let chosen = decision.and_then(|decision| {
            workers.iter().find(|worker| worker.id.index() == decision.index).map(|worker| (decision, worker))
        });
        let Some((decision, worker)) = chosen else {
            if let Some(unavailable) = unavailable {
                return Ok(unavailable);
            }
            if let Some(refusal) = unable {
                return Err(Box::new(refusal));
            }
            return Err(Box::new(match unreachable {
                true => Refusal::bad_gateway(),
                false if app.registry.all().iter().any(|worker| worker.is_full()) => Refusal::workers_overloaded(),
                false => Refusal::no_worker(),
            }));
        };
        let Some(mut in_flight) = worker.enter() else {
            // Another request has become its probe meanwhile, or has taken its last place.
            passed_over.push(worker.id);
            continue;
        };
        in_flight.must_answer_by(request.deadline.of_server());
        tracing::debug!(worker = %worker.label, %decision, terms = ?decision.terms, "routed");
        observe::routed(decision.reason.name());
        let work = worker.load.begin(decision.new_tokens(), decision.tokens);
        let mut way = request.best_way(worker);
        let mut not_known: Option<(Vec<MediaId>, Arc<Belief>)> = None;
        let mut pushed_again = false;
        loop {
            match attempt(app, worker, to_worker.clone(), request, way, elsewhere).await {
                Attempt::Answer(answer) => {
                    in_flight.head(outcome_of(answer.status));
                    if answer.body.rest.is_none() {
                        in_flight.ended(Outcome::Success);
                    }
                    if answer.status.is_success() && !answer.slots.is_empty() {
                        worker.landed();
                    }
                    // Only an answer to the same request with pixels shows that it was the belief that was wrong.
                    if let Some((ids, belief)) = not_known.filter(|_| answer.status.is_success()) {
                        observe::transfer("uuid_miss");
                        belief.was_wrong(&ids);
                        // That they were not there is past: they were processed just now.
                        request.teach(&belief);
                    }
                    let again = request.surface.again == Again::Safe && unavailable.is_none();
                    let others = candidates.len() > 1;
                    let declined = answer.status == StatusCode::SERVICE_UNAVAILABLE;
                    let dispatched = Dispatched { answer, in_flight, work, decision };
                    if declined && again && others {
                        // It said that it did not begin: another may be able to. If none is, this is the answer.
                        passed_over.push(worker.id);
                        unavailable = Some(dispatched);
                        break;
                    }
                    return Ok(dispatched);
                }
                Attempt::NotKnown { ids, belief } => {
                    not_known = Some((ids, belief));
                    way = Way::Push;
                }
                Attempt::NoRoom => {
                    observe::transfer("no_room");
                    full.push(worker.id);
                    break;
                }
                Attempt::NoMemory(error) => {
                    let refusal = no_memory(&error);
                    // Another may have landing memory, and so need no such body.
                    if candidates.len() == 1 || matches!(error, BudgetError::Busy { .. }) {
                        return Err(Box::new(refusal));
                    }
                    unable = Some(refusal);
                    passed_over.push(worker.id);
                    break;
                }
                Attempt::Unreachable { connected } => {
                    in_flight.ended(Outcome::Failure);
                    // One that broke off may have been ended by this very request: others see it once more at most.
                    let again = request.surface.again == Again::Safe;
                    if connected && (!again || std::mem::replace(&mut broke_off, true)) {
                        return Err(Box::new(Refusal::bad_gateway()));
                    }
                    if connected {
                        worker.look.notify_one();
                    } else {
                        worker.unreachable();
                    }
                    unreachable = true;
                    passed_over.push(worker.id);
                    break;
                }
                Attempt::Refused { kind: RefusalKind::Stale, .. } if !pushed_again => {
                    observe::transfer("stale");
                    pushed_again = true;
                    way = Way::Push;
                }
                Attempt::Refused { kind, landing } => {
                    tracing::info!(worker = %worker.label, ?kind, "reference refused, going inline");
                    observe::transfer(match kind {
                        RefusalKind::Bad => "refused_bad",
                        RefusalKind::Stale => "refused_stale",
                        RefusalKind::Gone => "refused_gone",
                        RefusalKind::Late => "refused_late",
                    });
                    match kind {
                        RefusalKind::Gone => give_up(&landing, worker),
                        RefusalKind::Late => worker.did_not_land(&landing),
                        RefusalKind::Bad | RefusalKind::Stale => {}
                    }
                    way = Way::Inline;
                }
                Attempt::PushFailed { error, landing } => {
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
}

/// What routing knows of a worker.
fn candidate(worker: &Worker) -> Candidate {
    Candidate {
        index: worker.id.index(),
        name: worker.name_hash,
        in_flight: worker.in_flight(),
        busy: worker.load.busy(),
        belief: worker.belief(),
    }
}

/// What it means that there is no memory for a body that is written anew.
fn no_memory(error: &BudgetError) -> Refusal {
    match error {
        // Larger than any client's body, so it is the pictures in it.
        BudgetError::NeverFits { .. } => {
            Refusal::of(&MediaError::TooLarge { what: "pictures in requests", cause: error.to_string().into() })
        }
        BudgetError::Busy { .. } => body::busy(),
    }
}

/// What an answer says of the worker: that it answers, unless it, or a proxy before it, says that it cannot.
pub fn outcome_of(status: StatusCode) -> Outcome {
    match status {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Outcome::Failure,
        _ => Outcome::Success,
    }
}

/// Closes a landing, which may no longer be the worker's; the monitor attaches anew.
fn give_up(landing: &Landing, worker: &Worker) {
    landing.close();
    worker.look.notify_one();
}
