//! Which models there are: what `GET /v1/models` says, and which workers a request may go to.
//!
//! Each worker is asked for its list from time to time, since adapters come and go, and before a model is said not to
//! exist. A worker whose list is not known may serve anything.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use axum::{Json, extract::State};
use futures_util::future::join_all;
use http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{answer::Refusal, app::App, extract::Path};
use crate::worker::{Worker, WorkerId, client::whole};

/// Listing models is cheap; a worker that takes longer is left out.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A list of models takes some hundred bytes each.
const MAX_BYTES: usize = 4 << 20;

/// How often lists are asked for.
const INTERVAL: Duration = Duration::from_secs(10);

/// How often it is looked whether a worker has come of which no list is known.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How old lists may be when a model is said not to exist: whoever asks for such models does not make us ask more often.
const MAX_AGE: Duration = Duration::from_secs(1);

/// OpenAI's list of models, whose entries pass as they are.
#[derive(Debug, Serialize, Deserialize)]
pub struct ModelList {
    object: String,
    data: Vec<Value>,
}

/// When the lists were asked for last. Held while they are asked for.
#[derive(Debug, Default)]
pub struct Asked(Arc<Mutex<Option<Instant>>>);

impl Asked {
    /// Does `asking`, unless that was done within `max_age`. Once it has begun it is done to its end, even if the client
    /// leaves for whom it was begun: else clients that leave at once would have workers asked over and over.
    async fn unless_within(&self, max_age: Duration, asking: impl Future<Output = ()> + Send + 'static) {
        let mut asked = self.0.clone().lock_owned().await;
        if asked.is_some_and(|asked| asked.elapsed() < max_age) {
            return;
        }
        let begun = tokio::spawn(async move {
            asking.await;
            *asked = Some(Instant::now());
        });
        // A panic in it has been reported where it was.
        let _ = begun.await;
    }
}

/// `GET /v1/models`: the models of all available workers, each once.
pub async fn models(State(app): State<App>, headers: HeaderMap) -> Result<Json<ModelList>, Refusal> {
    app.keys.check(&headers)?;
    Ok(Json(ModelList { object: "list".into(), data: merged(&app, &headers).await? }))
}

/// `GET /v1/models/{id}`: the same entry. Ids may have slashes.
pub async fn model(State(app): State<App>, Path(id): Path<String>, headers: HeaderMap) -> Result<Json<Value>, Refusal> {
    app.keys.check(&headers)?;
    // No model is called so; somebody tries what becomes of such a path.
    if id.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        return Err(Refusal::not_found());
    }
    let found = merged(&app, &headers).await?.into_iter().find(|model| model["id"].as_str() == Some(&id));
    found.map(Json).ok_or_else(|| not_found(&id))
}

async fn merged(app: &App, headers: &HeaderMap) -> Result<Vec<Value>, Refusal> {
    let workers = app.registry.available();
    if workers.is_empty() {
        return Err(Refusal::no_worker());
    }
    let lists = join_all(workers.iter().map(|worker| list(app, worker, headers))).await;
    let mut seen = HashSet::new();
    let mut data = Vec::new();
    let mut answered = false;
    for list in lists.into_iter().flatten() {
        answered = true;
        for model in list {
            if model["id"].as_str().is_some_and(|id| seen.insert(id.to_owned())) {
                data.push(model);
            }
        }
    }
    if answered { Ok(data) } else { Err(Refusal::bad_gateway()) }
}

/// The entries of a worker's list, which is kept.
async fn list(app: &App, worker: &Worker, headers: &HeaderMap) -> Option<Vec<Value>> {
    let mut request = app.client.kept().get(worker.url("/v1/models")).timeout(TIMEOUT);
    if let Some(authorization) = app.authorization(headers) {
        request = request.header(AUTHORIZATION, authorization);
    }
    let response = request.send().await.ok()?.error_for_status().ok()?;
    let list: ModelList = serde_json::from_slice(&whole(response, MAX_BYTES).await.ok()?).ok()?;
    worker.set_models(list.data.iter().filter_map(|model| model["id"].as_str().map(str::to_owned)).collect());
    Some(list.data)
}

/// Whether a worker may serve a model; vLLM serves its first one where none is named, or nothing by that.
pub fn may_serve(worker: &Worker, model: Option<&str>) -> bool {
    serves(&worker.models(), model)
}

fn serves(models: &[String], model: Option<&str>) -> bool {
    model.is_none_or(|model| model.is_empty() || models.is_empty() || models.iter().any(|served| served == model))
}

/// Whether it makes no difference for a request's model which worker it goes to.
pub fn all_serve_the_same(app: &App) -> bool {
    let workers = app.registry.available();
    let sets = workers.iter().map(|worker| worker.models().iter().cloned().collect::<HashSet<_>>());
    let sets: Vec<_> = sets.collect();
    sets.windows(2).all(|pair| pair[0] == pair[1])
}

/// # Errors
///
/// 404 if no worker serves the model.
pub async fn check(app: &App, model: Option<&str>) -> Result<(), Refusal> {
    let Some(model) = model else { return Ok(()) };
    if is_served(app, model) {
        return Ok(());
    }
    ask_all(app, MAX_AGE).await;
    if is_served(app, model) { Ok(()) } else { Err(not_found(model)) }
}

fn is_served(app: &App, model: &str) -> bool {
    let workers = app.registry.all();
    // Without workers it is not the model that is missing.
    workers.is_empty() || workers.iter().any(|worker| may_serve(worker, Some(model)))
}

fn not_found(model: &str) -> Refusal {
    // What a client wrote may be long.
    let named: String = model.chars().take(200).collect();
    Refusal::new(StatusCode::NOT_FOUND, "model_not_found", format!("The model `{named}` does not exist."))
        .about("model")
}

/// Asks all available workers for their lists, unless that was done within `max_age`.
async fn ask_all(app: &App, max_age: Duration) {
    let asking = {
        let app = app.clone();
        async move {
            let (workers, nobody) = (app.registry.available(), HeaderMap::new());
            join_all(workers.iter().map(|worker| list(&app, worker, &nobody))).await;
        }
    };
    app.asked_for_models.unless_within(max_age, asking).await;
}

/// Keeps the lists current until `stop`.
pub async fn watch(app: App, stop: CancellationToken) {
    let nobody = HeaderMap::new();
    let watching = async {
        let mut next = Instant::now() + INTERVAL;
        let mut tried: HashMap<WorkerId, Instant> = HashMap::new();
        loop {
            if Instant::now() >= next {
                ask_all(&app, Duration::ZERO).await;
                next = Instant::now() + INTERVAL;
            }
            // One that has just come is asked at once; one that does not say, from time to time.
            let mut unknown = app.registry.available();
            unknown.retain(|worker| worker.models().is_empty());
            tried.retain(|id, at| at.elapsed() < MAX_AGE && unknown.iter().any(|worker| worker.id == *id));
            unknown.retain(|worker| !tried.contains_key(&worker.id));
            tried.extend(unknown.iter().map(|worker| (worker.id, Instant::now())));
            join_all(unknown.iter().map(|worker| list(&app, worker, &nobody))).await;
            sleep(LOOK_INTERVAL).await;
        }
    };
    stop.run_until_cancelled(watching).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use tokio::sync::Notify;

    use super::*;

    #[test]
    fn a_worker_of_which_no_model_is_known_may_serve_any() {
        let models = ["a".to_owned(), "b".to_owned()];
        for model in [Some("b"), Some(""), None] {
            assert!(serves(&models, model), "{model:?}");
        }
        assert!(serves(&[], Some("c")) && !serves(&models, Some("c")));
    }

    #[tokio::test]
    async fn clients_that_leave_do_not_have_workers_asked_again() {
        let (asked, answer, times) = (Asked::default(), Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let ask = || {
            let (answer, times) = (answer.clone(), times.clone());
            asked.unless_within(Duration::from_secs(60), async move {
                times.fetch_add(1, Ordering::Relaxed);
                answer.notified().await;
            })
        };
        for _ in 0..3 {
            assert!(ask().now_or_never().is_none(), "and so it is dropped");
        }
        answer.notify_one();
        ask().await;
        assert_eq!(times.load(Ordering::Relaxed), 1);
    }
}
