//! From a request whose images are loaded to a worker's answer: choose a worker, let it have its turn, and go on to
//! another where that is safe.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::{
    answer::Refusal,
    app::App,
    body,
    head::NoAnswer,
    loaded::LoadedRequest,
    models,
    send::{Answer, Delivery, End},
    surface::Again,
    turn::turn,
};
use crate::{
    media::error::MediaError,
    memory::BudgetError,
    observe,
    routing::{Asked, Candidate, Decision},
    worker::{InFlight, Worker, WorkerId, circuit::Outcome, load::Work},
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
    /// Whether a worker may get the request.
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

/// One worker after another, until one answers:
///
/// - One that cannot be connected to is passed over.
/// - So is, once, one whose connection broke before the first byte of its answer, where the surface says that this is
///   safe. Where there is no other it is asked again itself: it may have closed an idle connection just then.
/// - So is, once, one that answers 503, and that is the answer if no other has a better one.
/// - One without landing memory to spare waits for those who have some to be tried.
pub async fn dispatch(
    app: &App,
    to_worker: HeaderMap,
    request: &LoadedRequest<'_>,
    target: &Target<'_>,
    asked: &Asked,
) -> Result<Dispatched, Box<Refusal>> {
    let mut search = Search::new(app, request, target);
    while let Some(Chosen { worker, decision, mut in_flight, others, elsewhere }) = search.next(asked) {
        in_flight.must_answer_by(request.deadline.of_server());
        tracing::debug!(worker = %worker.label, %decision, terms = ?decision.terms, "routed");
        observe::routed(decision.reason.name());
        let work = worker.load.begin(decision.new_tokens(), decision.tokens);
        let delivery = Delivery { app, worker: &worker, headers: &to_worker, request, elsewhere };
        // What may not be sent twice must not meet a connection that is just being closed.
        let client = if request.surface.again == Again::Safe { app.client.kept() } else { app.client.recent() };
        let mut end = turn(&delivery, client).await;
        if matches!(end, End::NoAnswer(NoAnswer::Unanswered)) && !others && search.forgives_a_break() {
            worker.look.notify_one();
            end = turn(&delivery, app.client.fresh()).await;
        }
        match end {
            End::Answer(answer) => {
                in_flight.head(outcome_of(answer.status));
                if answer.body.rest.is_none() {
                    in_flight.ended(Outcome::Success);
                }
                let declined = answer.status == StatusCode::SERVICE_UNAVAILABLE;
                let dispatched = Dispatched { answer, in_flight, work, decision };
                if !(declined && others && search.forgives_a_503()) {
                    return Ok(dispatched);
                }
                search.declined = Some(dispatched);
            }
            End::NoRoom => {
                observe::transfer("no_room");
                search.full.push(worker.id);
                continue;
            }
            End::NoMemory(error) => {
                let refusal = no_memory(&error);
                // Another may have landing memory, and so need no such body.
                if !others || matches!(error, BudgetError::Busy { .. }) {
                    return Err(Box::new(refusal));
                }
                search.refusal = Some(refusal);
            }
            End::NoAnswer(reason) => {
                reason.ended(&mut in_flight);
                if reason != NoAnswer::Unreachable && !search.forgives_a_break() {
                    return Err(Box::new(reason.into()));
                }
                search.refusal.get_or_insert_with(|| reason.into());
            }
        }
        search.passed_over.push(worker.id);
    }
    search.without_answer()
}

/// The search for a worker that answers a request: who is left to be asked, and what is said if nobody is.
struct Search<'a> {
    app: &'a App,
    request: &'a LoadedRequest<'a>,
    target: &'a Target<'a>,
    /// Not asked again.
    passed_over: Vec<WorkerId>,
    /// Had no landing memory to spare: asked again only where no other is left.
    full: Vec<WorkerId>,
    /// Whether a connection broke. The request may have ended a worker, and another sees it once at most.
    broke: bool,
    /// The first answer of 503: who gave it did not begin.
    declined: Option<Dispatched>,
    /// What else went wrong; what the gateway itself could not do comes first.
    refusal: Option<Refusal>,
}

/// A worker whose turn it is, with the request counted as being on it.
struct Chosen {
    worker: Arc<Worker>,
    decision: Decision,
    in_flight: InFlight,
    /// Whether others could have been chosen.
    others: bool,
    /// Whether others could that may have room.
    elsewhere: bool,
}

impl<'a> Search<'a> {
    fn new(app: &'a App, request: &'a LoadedRequest<'a>, target: &'a Target<'a>) -> Self {
        let (passed_over, full) = (Vec::new(), Vec::new());
        Search { app, request, target, passed_over, full, broke: false, declined: None, refusal: None }
    }

    /// The best of those who are left.
    fn next(&mut self, asked: &Asked) -> Option<Chosen> {
        loop {
            let mut left = self.app.registry.available();
            left.retain(|worker| self.may_ask(worker));
            let (full, roomy): (Vec<_>, Vec<_>) = left.into_iter().partition(|worker| self.full.contains(&worker.id));
            let elsewhere = roomy.len() > 1;
            let left = if roomy.is_empty() { full } else { roomy };
            let candidates: Vec<_> = left.iter().map(|worker| candidate(worker)).collect();
            let decision = self.app.router.choose(asked, &candidates)?;
            let worker = left.into_iter().find(|worker| worker.id.index() == decision.index)?;
            match worker.enter() {
                Some(in_flight) => {
                    return Some(Chosen { worker, decision, in_flight, others: candidates.len() > 1, elsewhere });
                }
                // Another request has become its probe meanwhile, or has taken its last place.
                None => self.passed_over.push(worker.id),
            }
        }
    }

    fn may_ask(&self, worker: &Worker) -> bool {
        !self.passed_over.contains(&worker.id) && self.target.allows(worker) && self.request.fits(worker)
    }

    /// Whether the request may be sent again after a connection broke: once, where it has no effects that could happen twice.
    fn forgives_a_break(&mut self) -> bool {
        self.request.surface.again == Again::Safe && !std::mem::replace(&mut self.broke, true)
    }

    /// Whether another may be asked after an answer of 503.
    fn forgives_a_503(&self) -> bool {
        self.request.surface.again == Again::Safe && self.declined.is_none()
    }

    /// What is said when nobody is left.
    fn without_answer(self) -> Result<Dispatched, Box<Refusal>> {
        if let Some(declined) = self.declined {
            return Ok(declined);
        }
        Err(Box::new(self.refusal.unwrap_or_else(|| nobody_for(self.app, self.target))))
    }
}

/// What is said when no worker takes a request.
pub fn nobody_for(app: &App, target: &Target<'_>) -> Refusal {
    match app.registry.all().iter().any(|worker| target.allows(worker) && worker.is_full()) {
        true => Refusal::workers_overloaded(),
        false => Refusal::no_worker(),
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
