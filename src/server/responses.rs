//! Responses that workers keep: who made one is asked for it, and nobody else.
//!
//! vLLM keeps responses in the memory of the process that made them (VLLM_ENABLE_RESPONSES_API_STORE). The gateway
//! remembers which worker that was, for the latest [`REMEMBERED`]; of others it says that they are not there, as it does
//! after a restart, and as another gateway would.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::{
    body::Body,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, Method, StatusCode};
use lru::LruCache;

use super::{
    answer::Refusal,
    app::App,
    dispatch::Target,
    extract::Path,
    relay::{self, Outgoing},
};
use crate::worker::{Worker, WorkerId};

/// Responses whose workers are remembered: some 8 MB at most.
const REMEMBERED: usize = 1 << 16;

/// What is longer is no id; vLLM's own have 21 characters.
const MAX_ID_BYTES: usize = 128;

/// How far into an answer its id is looked for. vLLM writes it first, in a stream within the first event.
const LOOK_BYTES: usize = 4096;

/// Of a response and its tenant: tenants have responses of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key(blake3::Hash);

impl Key {
    /// A hash, since a tenant's name may be as long as a header.
    fn new(tenant: Option<&str>, id: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        // An id has no line break, and a tenant ends with one.
        hasher.update(tenant.unwrap_or_default().as_bytes()).update(id.as_bytes());
        Key(hasher.finalize())
    }
}

/// Which worker made which response. Cheap to clone.
#[derive(Clone)]
pub struct Responses(Arc<Mutex<LruCache<Key, WorkerId>>>);

impl Default for Responses {
    fn default() -> Self {
        // Takes memory as it fills, not all of it now.
        Responses(Arc::new(Mutex::new(LruCache::unbounded())))
    }
}

impl Responses {
    /// The worker that made a response for this tenant.
    pub fn worker(&self, tenant: Option<&str>, id: &str) -> Option<WorkerId> {
        self.remembered().get(&Key::new(tenant, id)).copied()
    }

    fn remember(&self, key: Key, worker: WorkerId) {
        let mut remembered = self.remembered();
        remembered.put(key, worker);
        if remembered.len() > REMEMBERED {
            remembered.pop_lru();
        }
    }

    fn remembered(&self) -> MutexGuard<'_, LruCache<Key, WorkerId>> {
        // An entry more or less does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer that may be a response, until its id has passed.
pub struct Made {
    responses: Responses,
    tenant: Option<String>,
    worker: WorkerId,
    seen: Vec<u8>,
}

impl Made {
    pub fn new(app: &App, tenant: Option<String>, worker: &Worker) -> Self {
        Made { responses: app.responses.clone(), tenant, worker: worker.id, seen: Vec::new() }
    }

    /// Sees more of the answer; whether there is no more to look for.
    pub fn look(&mut self, data: &[u8]) -> bool {
        let room = LOOK_BYTES - self.seen.len();
        self.seen.extend_from_slice(&data[..data.len().min(room)]);
        match id_in(&self.seen) {
            Some(id) => {
                self.responses.remember(Key::new(self.tenant.as_deref(), id), self.worker);
                true
            }
            None => self.seen.len() >= LOOK_BYTES,
        }
    }
}

/// The first value of a key `id` in this beginning of an answer, if all of it is there.
fn id_in(beginning: &[u8]) -> Option<&str> {
    const KEY: &[u8] = b"\"id\"";
    let after = &beginning[memchr::memmem::find(beginning, KEY)? + KEY.len()..];
    let after = after.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"\"")?;
    let id = &after[..memchr::memchr(b'"', after)?];
    str::from_utf8(id).ok().filter(|id| is_id(id))
}

fn is_id(id: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// The worker that made the response, as the only one for a request about it.
///
/// # Errors
///
/// 404 if nobody here knows it, or its worker is there no more.
pub fn maker<'a>(app: &App, tenant: Option<&str>, id: &str) -> Result<Target<'a>, Refusal> {
    let worker = app.responses.worker(tenant, id).and_then(|worker| app.registry.get(worker));
    worker.map(Target::Worker).ok_or_else(|| {
        Refusal::new(
            StatusCode::NOT_FOUND,
            "response_not_found",
            "There is no such response here. Responses are kept by the worker that made them, and known to the gateway \
             through which they were made.",
        )
    })
}

/// `GET /v1/responses/{id}`.
pub async fn retrieve(
    State(app): State<App>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let path = format!("/v1/responses/{id}");
    about(&app, id, Method::GET, path, query.as_deref().and_then(allowed_query), &headers).await
}

/// `POST /v1/responses/{id}/cancel`.
pub async fn cancel(State(app): State<App>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    let path = format!("/v1/responses/{id}/cancel");
    about(&app, id, Method::POST, path, None, &headers).await
}

async fn about(
    app: &App,
    id: String,
    method: Method,
    path: String,
    query: Option<String>,
    headers: &HeaderMap,
) -> Response {
    let answer = async {
        app.keys.check(headers)?;
        // What is no id would make another path of it.
        let target = maker(app, app.tenancy.of(headers).as_deref(), if is_id(&id) { &id } else { "" })?;
        let outgoing = Outgoing { method, path, query, body: Body::empty() };
        relay::relay(app, headers, target, outgoing).await
    };
    answer.await.unwrap_or_else(IntoResponse::into_response)
}

/// What vLLM's route knows of a query, and nothing else of it.
fn allowed_query(query: &str) -> Option<String> {
    let known = query.split('&').filter(|pair| match pair.split_once('=') {
        Some(("stream", value)) => matches!(value, "true" | "false" | "1" | "0" | "True" | "False"),
        Some(("starting_after", value)) => (1..=20).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_digit()),
        _ => false,
    });
    let known: Vec<_> = known.collect();
    (!known.is_empty()).then(|| known.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_as_soon_as_all_of_it_is_there() {
        for (beginning, id) in [
            (r#"{"id":"resp_1a","object":"response"}"#, Some("resp_1a")),
            ("event: response.created\ndata: {\"response\":{\"id\" : \"resp_2\",", Some("resp_2")),
            (r#"{"id":"resp_1"#, None),
            (r#"{"id":7}"#, None),
            (r#"{"id":"../../sleep"}"#, None),
            (r#"{"error":{}}"#, None),
        ] {
            assert_eq!(id_in(beginning.as_bytes()), id, "{beginning}");
        }
    }

    #[test]
    fn no_more_is_remembered_than_is_promised() {
        let responses = Responses::default();
        for index in 0..=REMEMBERED {
            responses.remember(Key::new(None, &index.to_string()), WorkerId(1));
        }
        assert_eq!(responses.worker(None, "0"), None);
        assert_eq!(responses.worker(None, "1"), Some(WorkerId(1)));
        assert_eq!(responses.worker(Some("another tenant\n"), "1"), None);
    }

    #[test]
    fn of_a_query_only_what_is_known_passes() {
        assert_eq!(
            allowed_query("stream=true&x=1&starting_after=12&starting_after=1x").as_deref(),
            Some("stream=true&starting_after=12")
        );
        assert_eq!(allowed_query("x=../../sleep"), None);
    }
}
