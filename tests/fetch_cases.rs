//! Plays the table of cases that lies beside the repository, if it does: every URI and every behaviour of an origin is a
//! test of its own name. Without the table one line says so; `fetch_behaviour` has the most important ones in any case.

#[path = "fetch_support/mod.rs"]
mod support;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use mediagate::error::Fault;
use mediagate::media::fetch::{FetchConfig, FetchError, Fetched, Fetcher, judge};
use mediagate::media::source::{Host, HttpUrl, Source};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::support::names::{NameAnswer, Names};
use crate::support::origin::{Origin, closed_port};
use crate::support::script::{Action, Behaviour, Bodies};
use crate::support::tls::{Authority, Flaw, tls10_only};
use crate::support::{loopback_config, url};

#[derive(Deserialize)]
struct Table {
    base_body_b64: String,
    other_body_b64: String,
    cases: Vec<serde_json::Value>,
}

#[derive(Clone, Deserialize)]
struct Case {
    name: String,
    group: String,
    #[serde(default)]
    literal: String,
    #[serde(default)]
    server: Vec<Behaviour>,
    expected: Expected,
}

#[derive(Clone, Deserialize)]
struct Expected {
    status: String,
    rgb_sha256: Option<String>,
    lenient_ok: Option<Box<Expected>>,
    concurrency: Option<usize>,
}

/// What became of a case.
#[derive(Debug)]
enum Outcome {
    Bytes(Vec<u8>),
    Refused { status: u16, message: String },
}

fn main() {
    let arguments = Arguments::from_args();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cases/cases.json");
    let trials = match std::fs::read(&path) {
        Ok(table) => trials(&table),
        Err(_) => {
            println!("the table of cases is not beside the repository: nothing to play");
            Vec::new()
        }
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn trials(table: &[u8]) -> Vec<Trial> {
    let table: Table = serde_json::from_slice(table).unwrap();
    let decode = |text: &str| base64_simd::STANDARD.decode_to_vec(text).unwrap();
    let bodies = Bodies { base: decode(&table.base_body_b64), other: decode(&table.other_body_b64) };
    let cases = table.cases.into_iter().filter(|case| matches!(case["kind"].as_str(), Some("uri" | "http-behaviour")));
    let trial = |case: serde_json::Value| {
        let case: Case = serde_json::from_value(case.clone()).unwrap_or_else(|error| panic!("{case}: {error}"));
        let bodies = bodies.clone();
        Trial::test(case.name.clone(), move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(play(&case, &bodies)).map_err(Failed::from)
        })
    };
    cases.map(trial).collect()
}

async fn play(case: &Case, bodies: &Bodies) -> Result<(), String> {
    match case.group.as_str() {
        "data-uri" => expect(&case.expected, &[data_uri(&case.literal)], bodies),
        "url-blocked" => blocked(&case.literal).await,
        "url-allowed" => allowed(&case.literal),
        "http-dns" => expect(&case.expected, &[dns(&case.server[0], bodies).await], bodies),
        "http-tls" => expect(&case.expected, &[tls(&case.server[0], bodies).await], bodies),
        _ => http(case, bodies).await,
    }
}

fn outcome<E: Fault>(result: Result<impl Into<Vec<u8>>, E>) -> Outcome {
    match result {
        Ok(bytes) => Outcome::Bytes(bytes.into()),
        Err(error) => Outcome::Refused { status: error.status().as_u16(), message: error.public().into_owned() },
    }
}

fn fetched(result: Result<Fetched, FetchError>) -> Outcome {
    outcome(result.map(|fetched| fetched.bytes))
}

/// Compares outcomes with the table. Where the bytes are no picture, a decoder would refuse them: a client error.
fn expect(expected: &Expected, outcomes: &[Outcome], bodies: &Bodies) -> Result<(), String> {
    let class = |outcome: &Outcome| match outcome {
        Outcome::Bytes(bytes) => match rgb_sha256(bytes) {
            Some(sha256) if expected.rgb_sha256.is_none() || expected.rgb_sha256.as_ref() == Some(&sha256) => "ok",
            Some(_) => "another picture",
            None => "client_error",
        },
        Outcome::Refused { status: 400..=499, .. } => "client_error",
        Outcome::Refused { status: 502 | 504, message } if message.contains("fetch") => "upstream_error",
        Outcome::Refused { .. } => "opaque",
    };
    let classes: Vec<_> = outcomes.iter().map(class).collect();
    let all = |accepted: &[&str]| classes.iter().all(|class| accepted.contains(class));
    let right = match expected.status.as_str() {
        "ok" => all(&["ok"]),
        "client_error" => all(&["client_error"]) || expected.lenient_ok.is_some() && all(&["ok"]),
        "upstream_error" => all(&["upstream_error"]),
        "ok_or_client_error" => all(&["ok", "client_error"]),
        "ok_or_upstream_error" => all(&["ok", "upstream_error"]),
        "client_error_or_upstream" => all(&["client_error", "upstream_error"]),
        "ok_or_client_error_or_upstream" => all(&["ok", "client_error", "upstream_error"]),
        "two_images" => {
            let bytes = |at: usize| match &outcomes[at] {
                Outcome::Bytes(bytes) => bytes.as_slice(),
                Outcome::Refused { .. } => &[],
            };
            bytes(0) == bodies.base && bytes(1) == bodies.other
        }
        status => return Err(format!("unknown status {status}")),
    };
    if right { Ok(()) } else { Err(format!("expected {}, got {classes:?}: {outcomes:?}", expected.status)) }
}

/// The pixels of a PNG of sane size.
fn rgb_sha256(bytes: &[u8]) -> Option<String> {
    const MOST_PIXELS: u64 = 50_000_000;

    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().ok()?;
    let (width, height) = reader.info().size();
    if u64::from(width) * u64::from(height) > MOST_PIXELS {
        return None;
    }
    let mut pixels = vec![0; reader.output_buffer_size()?];
    let info = reader.next_frame(&mut pixels).ok()?;
    (info.color_type == png::ColorType::Rgb).then(|| {
        let digest = Sha256::digest(&pixels[..info.buffer_size()]);
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    })
}

fn data_uri(literal: &str) -> Outcome {
    const MAX_BYTES: usize = 20 << 20;

    outcome(Source::parse(literal).and_then(|source| match source {
        Source::Data(uri) => uri.decode(MAX_BYTES),
        Source::Http(url) => panic!("{url} is no data URI"),
    }))
}

/// The URL is refused as it stands; with the canary's port in it and that port allowed; and with every name leading to the
/// canary. The canary sees nobody.
async fn blocked(literal: &str) -> Result<(), String> {
    let canary = Origin::canary().await;
    let mut urls = Vec::new();
    match Source::parse(literal) {
        Err(error) if error.status().is_client_error() => {}
        Err(error) => return Err(format!("{error} is no client error")),
        Ok(Source::Data(_)) => return Err("taken as a data URI".to_owned()),
        Ok(Source::Http(url)) => {
            urls.push(HttpUrl::parse(&format!("http://{}:{}/x.png", url.host(), canary.port())).unwrap());
            urls.push(url);
        }
    }
    for url in urls {
        let config = FetchConfig { allow_ports: [canary.port()].into(), ..FetchConfig::default() };
        let host = url.host().to_string();
        let names = Names::new([(host.as_str(), vec![NameAnswer::of(&["127.0.0.1"])])]);
        match fetched(Fetcher::with_resolver(&config, names).unwrap().fetch(&url).await) {
            Outcome::Refused { status: 400..=499, .. } => {}
            outcome => return Err(format!("{url}: {outcome:?}")),
        }
    }
    if canary.connections() == 0 { Ok(()) } else { Err("the canary was reached".to_owned()) }
}

/// The policy function allows the address.
fn allowed(literal: &str) -> Result<(), String> {
    match Source::parse(literal).map_err(|error| error.to_string())? {
        Source::Http(url) => match url.host() {
            Host::Ip(ip) => judge(*ip).map_err(|refusal| refusal.to_string()),
            Host::Name(name) => Err(format!("{name} is no address")),
        },
        Source::Data(_) => Err("taken as a data URI".to_owned()),
    }
}

async fn http(case: &Case, bodies: &Bodies) -> Result<(), String> {
    let canary = Origin::canary().await;
    let origin = Origin::play(case.server.clone(), bodies.clone(), canary.port()).await;
    let refuses = case.server[0].action == Some(Action::Refuse);
    let port = if refuses { closed_port().await } else { origin.port() };
    // The canary's port is allowed, so that it is the host that keeps it from being reached.
    let mut config = loopback_config(&[port, canary.port()]);
    config.allow_cidrs = vec!["127.0.0.1".parse().unwrap()];
    if case.group == "http-time" && case.expected.status == "upstream_error" {
        config.total_timeout = Duration::from_millis(1500);
    }
    let fetcher = Fetcher::new(&config).unwrap();
    let paths: Vec<_> = case.server.iter().filter_map(|behaviour| behaviour.path.as_deref()).collect();
    let require = case.server[0].require.as_ref().and_then(|condition| condition.raw_target.as_deref());
    let first = case.server[0].path.as_deref().or(require).unwrap_or("/x.png");
    let fetch = async |target: &str| fetched(fetcher.fetch(&url(&format!("http://127.0.0.1:{port}{target}"))).await);

    let outcomes = match case.name.as_str() {
        // An error is not remembered: the first fetch fails, the second finds the image.
        "h_error_not_cached" => {
            let failed = fetch(first).await;
            if matches!(failed, Outcome::Bytes(_)) {
                return Err("the first fetch ought to fail".to_owned());
            }
            vec![fetch(first).await]
        }
        "h_case_sensitive_paths" | "h_url_cache_buster" => vec![fetch(paths[0]).await, fetch(paths[1]).await],
        "h_url_content_changes" | "h_same_url_twice" | "h_stale_keepalive" => {
            vec![fetch(first).await, fetch(first).await]
        }
        // One fetch for all of them is the loader's; here they all get it.
        _ => futures_util::future::join_all((0..case.expected.concurrency.unwrap_or(1)).map(|_| fetch(first))).await,
    };
    let targets =
        origin.requests().iter().filter_map(|head| head.split(' ').nth(1).map(str::to_owned)).collect::<Vec<_>>();
    if paths.iter().any(|path| !targets.iter().any(|target| target == path)) {
        return Err(format!("asked for {targets:?} and not for {paths:?}"));
    }
    if canary.connections() > 0 {
        return Err("the canary was reached".to_owned());
    }
    expect(&case.expected, &outcomes, bodies)
}

/// A stand-in for the public internet: 127.0.0.2, the only address that is allowed. 127.0.0.1 is the inside.
async fn dns(behaviour: &Behaviour, bodies: &Bodies) -> Outcome {
    let canary = Origin::canary().await;
    let port = canary.port();
    let image = Behaviour { status: 200, body: "BASE".into(), ..Behaviour::default() };
    let busy = Behaviour { status: 503, ..Behaviour::default() };
    let word = behaviour.dns.as_deref().unwrap();
    let (answers, script, host) = match word {
        "rebinding" => (vec![NameAnswer::of(&["127.0.0.2"]), NameAnswer::of(&["127.0.0.1"])], busy, "example.test"),
        "cname_to_internal" => (vec![NameAnswer::of(&["127.0.0.1"])], image, "example.test"),
        "nxdomain" => (vec![NameAnswer::Nothing], image, "example.test"),
        "timeout" => (vec![NameAnswer::Silence], image, "example.test"),
        "aaaa_mapped" => (vec![NameAnswer::of(&["::ffff:127.0.0.1"])], image, "example.test"),
        "trailing_dot" => (vec![NameAnswer::of(&["127.0.0.2"])], image, "example.test."),
        word => panic!("unknown word {word}"),
    };
    let public = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), port);
    let _origin = Origin::play_on(public, vec![script], bodies.clone(), 0, None).await;
    let mut config = loopback_config(&[port]);
    config.allow_cidrs = vec!["127.0.0.2".parse().unwrap()];
    config.allowed_domains = vec!["example.test".to_owned()];
    // Each request makes a new connection, and so a new lookup.
    config.max_idle_connections = 0;
    if word == "timeout" {
        config.connect_timeout = Duration::from_millis(100);
    }
    let names = Names::new([("example.test", answers)]);
    let fetcher = Fetcher::with_resolver(&config, Arc::clone(&names) as Arc<_>).unwrap();
    let outcome = fetched(fetcher.fetch(&url(&format!("http://{host}:{port}/x.png"))).await);
    assert_eq!(canary.connections(), 0, "the canary was reached");
    assert!(names.lookups() > 0);
    outcome
}

async fn tls(behaviour: &Behaviour, bodies: &Bodies) -> Outcome {
    let authority = Authority::new();
    let image = Behaviour { status: 200, body: "BASE".into(), ..Behaviour::default() };
    let serve = async |flaw| {
        let acceptor = authority.acceptor("example.test", flaw);
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        Origin::play_on(address, vec![image.clone()], bodies.clone(), 0, Some(acceptor)).await
    };
    let (origin, port);
    match behaviour.tls.as_deref().unwrap() {
        "expired" => {
            origin = serve(Flaw::Expired).await;
            port = origin.port();
        }
        "sni_required" => {
            origin = serve(Flaw::None).await;
            port = origin.port();
        }
        "tls10_only" => port = tls10_only().await,
        word => panic!("unknown word {word}"),
    }
    let config = FetchConfig { ca_files: vec![authority.file()], ..loopback_config(&[port]) };
    let names = Names::new([("example.test", vec![NameAnswer::of(&["127.0.0.1"])])]);
    let fetcher = Fetcher::with_resolver(&config, names).unwrap();
    fetched(fetcher.fetch(&url(&format!("https://example.test:{port}/x.png"))).await)
}
