//! What a client reads.

use crate::support::fetch;
use crate::support::loopback_config;
use crate::support::origin::Origin;
use crate::support::script::Behaviour;
use crate::support::script::Transfer;
use crate::{bodies, headers, image, redirect, status};
use mediagate::error::Fault;
use mediagate::media::fetch::FetchConfig;
use mediagate::media::source::HttpUrl;
use mediagate::media::source::Source;

#[tokio::test]
async fn no_error_shows_a_query_a_body_or_an_inner_host() {
    let canary = Origin::canary().await;
    let scripts = [
        vec![Behaviour { body: "secret-body".into(), ..status(403) }],
        vec![Behaviour { body: "secret-body".into(), ..status(503) }],
        vec![redirect("http://secret-host.internal/?secret-query")],
        vec![redirect("http://u:secret-password@{host}/")],
        vec![redirect("secret-scheme:x")],
        vec![Behaviour { raw: Some("secret-body".into()), ..Behaviour::default() }],
        vec![Behaviour { transfer: Transfer::ChunkedBad, body: "secret-body".into(), ..status(200) }],
        vec![Behaviour { headers: headers([("Content-Encoding", "secret-coding")]), ..image() }],
        vec![Behaviour { headers: headers([("Content-Encoding", "gzip")]), ..image() }],
    ];
    for script in scripts {
        let origin = Origin::play(script.clone(), bodies(), canary.port()).await;
        let config = FetchConfig { max_retries: 0, ..loopback_config(&[origin.port()]) };
        let error = fetch(&config, &origin.url("/x?secret-signature=1")).await.unwrap_err();
        for text in [error.public().into_owned(), error.to_string()] {
            assert!(!text.contains("secret") && !text.contains("127.0.0.1"), "{script:?}: {text}");
        }
        assert!(error.public().contains("fetch"), "{}", error.public());
    }
}

#[test]
fn a_url_in_a_log_has_no_query() {
    let Ok(Source::Http(url)) = Source::parse("https://example.com/x?secret=1") else { panic!() };
    assert!(!format!("{url} {url:?} {:?}", HttpUrl::parse(url.raw())).contains("secret"));
}
