//! What must hold when an origin, a name server or a client means ill, each tried over real sockets.

mod errors;
mod leaving;
mod limits;
mod policy;
mod request;
mod retries;
#[path = "../fetch_support/mod.rs"]
mod support;
mod tls;

use crate::support::fetch;
use crate::support::loopback_config;
use crate::support::origin::Origin;
use crate::support::script::Behaviour;
use crate::support::script::Bodies;
use crate::support::script::Headers;
use mediagate::media::fetch::FetchConfig;
use mediagate::media::fetch::FetchError;

fn bodies() -> Bodies {
    Bodies { base: (0..2000u32).map(|at| (at % 251) as u8).collect(), other: b"another picture".to_vec() }
}

fn headers<const N: usize>(fields: [(&str, &str); N]) -> Headers {
    Headers::List(fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
}

fn image() -> Behaviour {
    Behaviour { status: 200, body: "BASE".into(), ..Behaviour::default() }
}

fn status(status: u16) -> Behaviour {
    Behaviour { status, ..Behaviour::default() }
}

fn redirect(location: &str) -> Behaviour {
    Behaviour { status: 302, headers: headers([("Location", location)]), ..Behaviour::default() }
}

async fn origin(script: Vec<Behaviour>) -> Origin {
    Origin::play(script, bodies(), 0).await
}

/// Plays a script and fetches once.
async fn play(
    script: Vec<Behaviour>,
    change: impl FnOnce(&mut FetchConfig),
) -> (Origin, Result<mediagate::media::fetch::Fetched, FetchError>) {
    let origin = origin(script).await;
    let mut config = loopback_config(&[origin.port()]);
    change(&mut config);
    let result = fetch(&config, &origin.url("/x.png")).await;
    (origin, result)
}
