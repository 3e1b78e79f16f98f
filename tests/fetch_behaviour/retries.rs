//! Redirects and retries.

use crate::support::loopback_config;
use crate::support::script::Action;
use crate::support::script::Behaviour;
use crate::support::script::Transfer;
use crate::support::url;
use crate::{bodies, headers, image, origin, play, redirect, status};
use mediagate::error::Fault;
use mediagate::media::fetch::FetchConfig;
use mediagate::media::fetch::FetchError;
use mediagate::media::fetch::Fetcher;

#[tokio::test]
async fn redirects_are_counted() {
    let chain = |redirects: usize| {
        let mut script: Vec<_> = (0..redirects).map(|at| redirect(&format!("/{at}"))).collect();
        script.push(image());
        script
    };
    let (_origin, result) = play(chain(5), |_| ()).await;
    assert_eq!(result.unwrap().redirects, 5);
    let (origin, result) = play(chain(6), |_| ()).await;
    assert!(matches!(result, Err(FetchError::TooManyRedirects { max: 5 })));
    assert_eq!(origin.requests().len(), 6);
    let (origin, result) = play(vec![redirect("/x.png")], |_| ()).await;
    assert!(matches!(result, Err(FetchError::TooManyRedirects { .. })), "a loop");
    assert_eq!(origin.requests().len(), 6);
    let (origin, result) = play(vec![redirect("/x.png")], |config| config.max_redirects = 0).await;
    assert!(matches!(result, Err(FetchError::TooManyRedirects { max: 0 })));
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn what_is_transient_is_tried_again_and_what_is_not_is_not() {
    let reset = Behaviour { action: Some(Action::Reset), ..image() };
    let cut = Behaviour { transfer: Transfer::ChunkedCut, ..image() };
    for transient in [status(429), status(502), status(503), status(504), status(500), status(408), reset, cut] {
        let (origin, result) = play(vec![transient.clone(), image()], |_| ()).await;
        let fetched = result.unwrap_or_else(|error| panic!("{transient:?}: {error:?}"));
        assert_eq!((fetched.retries, fetched.bytes), (1, bodies().base.into()), "{transient:?}");
        assert_eq!(origin.requests().len(), 2);

        let (origin, result) = play(vec![transient.clone()], |_| ()).await;
        assert_eq!(result.unwrap_err().status().as_u16(), 502, "{transient:?}");
        assert_eq!(origin.requests().len(), 3, "{transient:?}");
    }
    for (lasting, expected) in [
        (404, 400),
        (403, 400),
        (410, 400),
        (401, 400),
        (204, 400),
        (206, 400),
        (300, 400),
        (304, 400),
        (501, 502),
        (505, 502),
        (600, 502),
    ] {
        let (origin, result) = play(vec![status(lasting), image()], |_| ()).await;
        assert_eq!(result.unwrap_err().status().as_u16(), expected, "{lasting}");
        assert_eq!(origin.requests().len(), 1, "{lasting}");
    }
}

#[tokio::test]
async fn a_retry_that_the_origin_wants_too_late_is_not_waited_for() {
    let busy = Behaviour { headers: headers([("Retry-After", "3600")]), ..status(503) };
    let (origin, result) = play(vec![busy, image()], |_| ()).await;
    assert!(matches!(result, Err(FetchError::OriginBusy { retry_after: Some(_), .. })));
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn a_body_that_ends_early_is_never_a_shorter_image() {
    let short = Behaviour { headers: headers([("Content-Length", "5000")]), transfer: Transfer::RawClose, ..image() };
    let (_origin, result) = play(vec![short], |config| config.max_retries = 0).await;
    assert!(matches!(result, Err(FetchError::Interrupted(_))), "{result:?}");
}

#[tokio::test]
async fn a_connection_that_died_idle_costs_no_attempt() {
    let closing = Behaviour { keepalive: Some("close-after-response-without-header".into()), ..image() };
    let origin = origin(vec![closing]).await;
    let config = FetchConfig { max_retries: 0, ..loopback_config(&[origin.port()]) };
    let fetcher = Fetcher::new(&config).unwrap();
    for _ in 0..20 {
        assert_eq!(fetcher.fetch(&url(&origin.url("/"))).await.unwrap().retries, 0);
    }
    assert_eq!(origin.requests().len(), 20);
}

/// What follows a response on the wire must not become the answer to another request.
#[tokio::test]
async fn a_second_response_that_nobody_asked_for_is_not_used() {
    let smuggled = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\nanother picture", bodies().other.len());
    let first = format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfirs{smuggled}");
    let origin =
        origin(vec![Behaviour { pre: first, status: 100, transfer: Transfer::Raw, ..Behaviour::default() }, image()])
            .await;
    let fetcher = Fetcher::new(&loopback_config(&[origin.port()])).unwrap();
    assert_eq!(fetcher.fetch(&url(&origin.url("/a"))).await.unwrap().bytes, "firs");
    assert_eq!(fetcher.fetch(&url(&origin.url("/b"))).await.unwrap().bytes, bodies().base);
}
