//! Attach, renew, void, detach: the gateway's side of docs/PROTOCOL.md.

use std::time::Duration;

use bytes::Bytes;
use rand::RngCore;
use reqwest::{Response, StatusCode, header::CONTENT_TYPE};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    client::{WorkerClient, whole},
    state::Worker,
};
use crate::transfer::{Grant, NixlAgent, PushError, lane::Whereabouts, mac::Key};

const PROTOCOL: u32 = 2;
const MAC_HEADER: &str = "x-mediagate-mac";

/// The answers are small; attach answers hold metadata of some hundred bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Attach connects NIXL on the worker's side, which takes milliseconds; this is for one that hangs.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a worker is not attached, or is no longer.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A plain vLLM server.
    #[error("it has no mediagate plugin")]
    NoPlugin,
    #[error("no attach key is set, and it is not on this machine: set --attach-key-file on both sides")]
    KeyNeeded,
    #[error("it does not accept our key")]
    Denied,
    #[error("it does not prove that it knows the attach key")]
    NotAuthentic,
    /// `gone`: another incarnation, or a grant that ended.
    #[error("it does not know this grant")]
    Gone,
    /// `late`: its lander is not up yet, or all its landing memory is granted.
    #[error("it cannot grant landing memory now: {0}")]
    NotNow(String),
    #[error("unexpected answer: {0}")]
    Protocol(String),
    #[error("no answer: {0}")]
    Unreachable(#[source] reqwest::Error),
    #[error("NIXL cannot take the worker's metadata: {0}")]
    Nixl(nixl_sys::NixlError),
    #[error("the first transfer did not arrive: {0}")]
    Transfer(PushError),
}

impl AttachError {
    /// Whether it stays so until somebody sets up the worker or the gateway otherwise.
    pub fn needs_an_operator(&self) -> bool {
        matches!(self, AttachError::NoPlugin | AttachError::KeyNeeded | AttachError::Denied | AttachError::NotAuthentic)
    }
}

/// Who attaches, and with which key.
#[derive(Debug, Clone)]
pub struct Identity {
    /// 16 hex digits, new at each start.
    pub incarnation: String,
    pub key: Key,
    /// Whether the key is that of a file; without one, only loopback workers are attached.
    pub has_secret: bool,
}

impl Identity {
    pub fn new(secret: Option<&[u8]>) -> Self {
        let incarnation = random_hex::<8>();
        Identity { incarnation, key: Key::of_secret(secret.unwrap_or_default()), has_secret: secret.is_some() }
    }
}

/// What a worker says on attach, beside the grant.
#[derive(Debug)]
pub struct Attached {
    pub grant: Grant,
    pub lease: Duration,
    pub facts: WorkerFacts,
}

/// What a worker says of itself.
#[derive(Debug, Deserialize)]
pub struct WorkerFacts {
    pub models: Vec<String>,
    pub api_processes: u32,
    pub processor_cache: ProcessorCache,
    /// As the worker says it; `model::tested` judges it.
    #[serde(default)]
    pub image_processor: Option<serde_json::Value>,
    /// Whether it keeps responses, with the pictures of their requests as these came. Plugins that cannot tell say nothing.
    pub keeps_responses: Option<bool>,
    pub engine: Engine,
    /// Where its lander runs; plugins that cannot tell say nothing.
    pub whereabouts: Option<Whereabouts>,
}

/// vLLM's cache of processed images: its kind, `none` if there is none, and what it may take.
#[derive(Debug, Deserialize)]
pub struct ProcessorCache {
    pub kind: String,
    pub bytes: u64,
}

/// What serves, for the log.
#[derive(Debug, Deserialize)]
pub struct Engine {
    pub name: String,
    pub version: String,
}

#[derive(Serialize)]
struct Hello<'a> {
    protocol: u32,
    gateway: &'a str,
    nonce: &'a str,
}

#[derive(Deserialize)]
struct HelloAnswer {
    worker: String,
    nonce: String,
    proof: String,
}

#[derive(Serialize)]
struct AttachCall<'a> {
    protocol: u32,
    gateway: &'a str,
    nonce: &'a str,
    worker: &'a str,
    worker_nonce: &'a str,
    agent: &'a str,
    metadata: String,
    want_bytes: u64,
}

#[derive(Deserialize)]
struct AttachAnswer {
    worker: String,
    agent: String,
    metadata: String,
    grant: GrantAnswer,
    lease_seconds: f64,
    #[serde(flatten)]
    facts: WorkerFacts,
}

#[derive(Deserialize)]
struct GrantAnswer {
    id: u64,
    address: u64,
    bytes: u64,
}

impl GrantAnswer {
    /// Addresses within it are counted on.
    fn is_possible(&self) -> bool {
        self.bytes > 0 && self.address.checked_add(self.bytes).is_some()
    }
}

#[derive(Serialize)]
struct GrantCall<'a> {
    worker: &'a str,
    grant: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generations: Option<&'a [u64]>,
}

#[derive(Serialize)]
struct ProbeCall<'a> {
    worker: &'a str,
    grant: u64,
    url: &'a str,
}

#[derive(Deserialize)]
struct ProbeAnswer {
    content_hash: String,
}

#[derive(Deserialize)]
struct LeaseAnswer {
    lease_seconds: f64,
}

#[derive(Deserialize)]
struct VoidAnswer {
    void: Vec<u64>,
}

/// Attaches to a worker: mutual proof of the secret, exchange of metadata, a grant.
pub async fn attach(
    worker: &Worker,
    client: &WorkerClient,
    identity: &Identity,
    agent: &NixlAgent,
    want_bytes: u64,
) -> Result<Attached, AttachError> {
    if !identity.has_secret && !worker.base().is_loopback() {
        return Err(AttachError::KeyNeeded);
    }
    let (gateway, nonce) = (identity.incarnation.as_str(), random_hex::<32>());
    let hello = json(&Hello { protocol: PROTOCOL, gateway, nonce: &nonce });
    let answer = post(worker, client, "/mediagate/attach/hello", hello, None).await?;
    let hello: HelloAnswer = parse(&answer.body)?;
    let parties = [gateway, &nonce, &hello.worker, &hello.nonce].map(str::as_bytes);
    if !identity.key.verify("mediagate worker v1", &parties, &hello.proof) {
        return Err(AttachError::NotAuthentic);
    }

    let path = "/mediagate/attach";
    let call = json(&AttachCall {
        protocol: PROTOCOL,
        gateway,
        nonce: &nonce,
        worker: &hello.worker,
        worker_nonce: &hello.nonce,
        agent: agent.name(),
        metadata: base64_simd::STANDARD.encode_to_string(agent.connection_metadata()),
        want_bytes,
    });
    let mac = identity.key.mac("mediagate gateway v1", &[path.as_bytes(), &call]);
    let answer = post(worker, client, path, call, Some(mac)).await?;
    let grant_key = identity.key.derive("mediagate grant key v1", &parties);
    if !grant_key.verify("mediagate answer v1", &[&answer.body], &answer.mac) {
        return Err(AttachError::NotAuthentic);
    }
    let answer: AttachAnswer = parse(&answer.body)?;
    if answer.worker != hello.worker || !answer.grant.is_possible() {
        return Err(AttachError::Protocol("another incarnation, or a grant that cannot be".into()));
    }
    let lease = lease(answer.lease_seconds)?;
    let metadata = base64_simd::STANDARD
        .decode_to_vec(answer.metadata)
        .map_err(|_| AttachError::Protocol("metadata is not base64".into()))?;
    let GrantAnswer { id, address, bytes } = answer.grant;
    let grant = Grant { worker: answer.worker, peer: answer.agent.into(), id, address, bytes, key: grant_key };
    let problem = match agent.connect(metadata).await {
        Ok(peer) if *peer == *grant.peer => return Ok(Attached { grant, lease, facts: answer.facts }),
        Ok(peer) => {
            agent.forget(peer.into());
            AttachError::Protocol("its metadata names another agent".into())
        }
        Err(error) => AttachError::Nixl(error),
    };
    give_back(worker, client, &grant).await;
    Err(problem)
}

/// Gives back what cannot be used, so that its range need not wait for the lease to end.
pub async fn give_back(worker: &Worker, client: &WorkerClient, grant: &Grant) {
    if let Err(error) = detach(worker, client, grant).await {
        tracing::debug!(worker = %worker.label, %error, "detach failed");
    }
}

/// Renews a lease. `seq` rises with each call for a grant.
pub async fn renew(worker: &Worker, client: &WorkerClient, grant: &Grant, seq: u64) -> Result<Duration, AttachError> {
    let body = json(&GrantCall { worker: &grant.worker, grant: grant.id, seq: Some(seq), generations: None });
    let answer: LeaseAnswer = call(worker, client, grant, "/mediagate/renew", body).await?;
    lease(answer.lease_seconds)
}

/// Has generations voided; gives those that nobody reads any more.
pub async fn void(
    worker: &Worker,
    client: &WorkerClient,
    grant: &Grant,
    generations: &[u64],
) -> Result<Vec<u64>, AttachError> {
    let body = json(&GrantCall { worker: &grant.worker, grant: grant.id, seq: None, generations: Some(generations) });
    let answer: VoidAnswer = call(worker, client, grant, "/mediagate/void", body).await?;
    Ok(answer.void)
}

/// Has the worker take one picture, by reference or inline, as it would take it in a request; gives the content hash of what
/// it saw.
pub async fn probe(worker: &Worker, client: &WorkerClient, grant: &Grant, url: &str) -> Result<String, AttachError> {
    let body = json(&ProbeCall { worker: &grant.worker, grant: grant.id, url });
    // Over the digest alone: the picture itself stays with the process that took the call.
    let digest = blake3::hash(&body).to_hex();
    let mac = grant.key.mac("mediagate probe v1", &[digest.as_bytes()]);
    let answer: ProbeAnswer = parse(&post(worker, client, "/mediagate/probe", body, Some(mac)).await?.body)?;
    Ok(answer.content_hash)
}

/// Gives a grant back, so that its range need not wait for the lease to end.
pub async fn detach(worker: &Worker, client: &WorkerClient, grant: &Grant) -> Result<(), AttachError> {
    let body = json(&GrantCall { worker: &grant.worker, grant: grant.id, seq: None, generations: None });
    let _: serde_json::Value = call(worker, client, grant, "/mediagate/detach", body).await?;
    Ok(())
}

async fn call<T: DeserializeOwned>(
    worker: &Worker,
    client: &WorkerClient,
    grant: &Grant,
    path: &'static str,
    body: Vec<u8>,
) -> Result<T, AttachError> {
    let mac = grant.key.mac("mediagate call v1", &[path.as_bytes(), &body]);
    parse(&post(worker, client, path, body, Some(mac)).await?.body)
}

struct Answer {
    body: Bytes,
    mac: String,
}

async fn post(
    worker: &Worker,
    client: &WorkerClient,
    path: &'static str,
    body: Vec<u8>,
    mac: Option<String>,
) -> Result<Answer, AttachError> {
    let mut request = client.kept().post(worker.url(path)).header(CONTENT_TYPE, "application/json").body(body);
    if let Some(mac) = mac {
        request = request.header(MAC_HEADER, mac);
    }
    let response = request.timeout(CALL_TIMEOUT).send().await.map_err(AttachError::Unreachable)?;
    let status = response.status();
    let mac = response.headers().get(MAC_HEADER).and_then(|mac| mac.to_str().ok()).unwrap_or_default().to_owned();
    match status {
        StatusCode::OK => Ok(Answer { body: limited(response).await?, mac }),
        // vLLM answers unknown paths with 404 and known ones of another method with 405.
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Err(AttachError::NoPlugin),
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => Err(AttachError::Denied),
        StatusCode::GONE => Err(AttachError::Gone),
        _ => {
            let body = limited(response).await.unwrap_or_default();
            let words = words_of(&body);
            Err(match status {
                StatusCode::SERVICE_UNAVAILABLE => AttachError::NotNow(words),
                _ => AttachError::Protocol(format!("{status}: {words}")),
            })
        }
    }
}

/// What an error answer says: its message, or whatever it is, for the log.
fn words_of(body: &[u8]) -> String {
    let message = serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|body| body["error"]["message"].as_str().map(str::to_owned));
    message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned()).chars().take(200).collect()
}

async fn limited(response: Response) -> Result<Bytes, AttachError> {
    whole(response, MAX_ANSWER_BYTES).await.map_err(|error| match error.downcast::<reqwest::Error>() {
        Ok(error) => AttachError::Unreachable(*error),
        Err(error) => AttachError::Protocol(error.to_string()),
    })
}

fn lease(seconds: f64) -> Result<Duration, AttachError> {
    if (1.0..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(AttachError::Protocol(format!("a lease of {seconds} seconds")))
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Structs of strings and numbers: serialising them cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, AttachError> {
    serde_json::from_slice(body).map_err(|error| AttachError::Protocol(error.to_string()))
}

fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0; BYTES];
    rand::rng().fill_bytes(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_lies_in_memory_that_there_can_be() {
        let possible = |address, bytes| GrantAnswer { id: 1, address, bytes }.is_possible();
        assert!(possible(1 << 40, 1 << 20));
        assert!(!possible(1 << 40, 0));
        assert!(possible(u64::MAX - 4096, 4096));
        assert!(!possible(u64::MAX - 4096, 8192));
    }
}
