//! What it may cost.

use crate::support::loopback_config;
use crate::support::names::NameAnswer;
use crate::support::names::Names;
use crate::support::script::Action;
use crate::support::script::Behaviour;
use crate::support::script::Headers;
use crate::support::script::Transfer;
use crate::support::url;
use crate::{bodies, headers, image, origin, play, status};
use mediagate::error::Fault;
use mediagate::media::fetch::FetchConfig;
use mediagate::media::fetch::FetchError;
use mediagate::media::fetch::Fetcher;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn the_byte_limit_is_exact_however_a_body_is_framed() {
    let len = bodies().base.len();
    for transfer in [Transfer::ContentLength, Transfer::Chunked, Transfer::Close] {
        let script = || vec![Behaviour { transfer, ..image() }];
        let (_origin, result) = play(script(), |config| config.max_bytes = len).await;
        assert_eq!(result.unwrap().bytes.len(), len, "{transfer:?}");
        let (_origin, result) = play(script(), |config| config.max_bytes = len - 1).await;
        assert!(matches!(result, Err(FetchError::TooLarge { .. })), "{transfer:?}");
    }
}

#[tokio::test]
async fn an_endless_body_ends_at_the_limit() {
    let (_origin, result) = play(vec![Behaviour { transfer: Transfer::ChunkedInfinite, ..image() }], |_| ()).await;
    let error = result.unwrap_err();
    assert!(matches!(error, FetchError::TooLarge { .. }), "{error:?}");
    assert_eq!((error.status().as_u16(), error.code()), (400, "media_too_large"));
}

#[tokio::test]
async fn an_announced_giant_is_refused_before_it_is_read() {
    let giant = Behaviour { headers: headers([("Content-Length", "10737418240")]), transfer: Transfer::Raw, ..image() };
    let (_origin, result) = play(vec![giant], |_| ()).await;
    assert!(matches!(result, Err(FetchError::TooLarge { .. })));
}

#[tokio::test]
async fn a_gzip_bomb_ends_at_the_limit() {
    let bomb =
        Behaviour { headers: headers([("Content-Encoding", "gzip")]), body: "gzip(zeros*1GiB)".into(), ..status(200) };
    let (_origin, result) = play(vec![bomb], |_| ()).await;
    assert!(matches!(result, Err(FetchError::TooLarge { max_bytes: 20_971_520 })));
}

#[tokio::test]
async fn a_head_is_bounded() {
    let big = Behaviour { headers: headers([("X-Big", "abcdefgh*131072")]), ..image() };
    let many = Behaviour { headers: Headers::List(vec![("X".to_owned(), "1".to_owned()); 5000]), ..image() };
    for script in [big, many] {
        let (_origin, result) = play(vec![script], |_| ()).await;
        assert!(matches!(result, Err(FetchError::Protocol(_))), "{result:?}");
    }
}

#[tokio::test]
async fn a_flood_of_early_hints_is_bounded_by_time() {
    let flood = Behaviour { pre: "HTTP/1.1 103 Early Hints\r\n\r\n".into(), pre_repeat: Some(usize::MAX), ..image() };
    let (_origin, result) = play(vec![flood], |config| config.first_byte_timeout = Duration::from_millis(300)).await;
    assert!(matches!(result, Err(FetchError::FirstByteTimeout(_))), "{result:?}");
}

#[tokio::test]
async fn a_slow_origin_is_given_up_wherever_it_is_slow() {
    let slow = [
        Behaviour { drip_headers_ms: Some(200), ..image() },
        Behaviour { drip_body_ms: Some(200), ..image() },
        Behaviour { transfer: Transfer::ContentLength, stall_at: Some(-1), ..image() },
        Behaviour { action: Some(Action::Hang), ..image() },
    ];
    // Time enough to ask, however busy the machine is; all of them wait for it together.
    let plays = slow.map(|behaviour| play(vec![behaviour], |config| config.total_timeout = Duration::from_secs(4)));
    for (origin, result) in futures_util::future::join_all(plays).await {
        let error = result.unwrap_err();
        assert!(matches!(error, FetchError::TotalTimeout(_)), "{error:?}");
        assert_eq!((error.status().as_u16(), error.code()), (504, "media_fetch_timeout"));
        assert_eq!(origin.requests().len(), 1);
    }
    let (_origin, result) = play(vec![Behaviour { action: Some(Action::Hang), ..image() }], |config| {
        config.first_byte_timeout = Duration::from_millis(200);
    })
    .await;
    assert!(matches!(result, Err(FetchError::FirstByteTimeout(_))));
}

#[tokio::test]
async fn a_silent_name_server_costs_the_connect_timeout() {
    let config = FetchConfig { connect_timeout: Duration::from_millis(50), max_retries: 1, ..FetchConfig::default() };
    let names = Names::new([("silent.example", vec![NameAnswer::Silence])]);
    let fetcher = Fetcher::with_resolver(&config, Arc::clone(&names) as Arc<_>).unwrap();
    let error = fetcher.fetch(&url("http://silent.example/")).await.unwrap_err();
    assert!(matches!(error, FetchError::ConnectTimeout(_)), "{error:?}");
    assert_eq!(names.lookups(), 2, "it is transient");
}

#[tokio::test]
async fn waiting_for_a_turn_is_part_of_the_time_and_says_so() {
    let origin = origin(vec![Behaviour { action: Some(Action::Hang), ..image() }]).await;
    let config = FetchConfig {
        max_concurrent_per_host: 1,
        total_timeout: Duration::from_secs(2),
        ..loopback_config(&[origin.port()])
    };
    let fetcher = Fetcher::new(&config).unwrap();
    let url = url(&origin.url("/"));
    let (first, second) = tokio::join!(fetcher.fetch(&url), fetcher.fetch(&url));
    assert!(matches!(first, Err(FetchError::TotalTimeout(_))), "{first:?}");
    let error = second.unwrap_err();
    assert!(matches!(error, FetchError::Saturated(_)), "{error:?}");
    assert!(error.status().as_u16() == 503 && error.retryable());
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn many_fetches_at_once_use_few_connections() {
    let origin = origin(vec![Behaviour { delay_ms: Some(5), ..image() }]).await;
    let config = FetchConfig { max_concurrent_per_host: 4, ..loopback_config(&[origin.port()]) };
    let fetcher = Fetcher::new(&config).unwrap();
    let url = url(&origin.url("/"));
    let results = futures_util::future::join_all((0..50).map(|_| fetcher.fetch(&url))).await;
    assert!(results.into_iter().all(|result| result.unwrap().bytes == bodies().base));
    assert_eq!(origin.requests().len(), 50);
    assert!(origin.connections() <= 8, "{} connections", origin.connections());
}

#[tokio::test]
async fn idle_connections_are_few_and_do_not_stay() {
    let names = Names::new([
        ("a.example", vec![NameAnswer::of(&["127.0.0.1"])]),
        ("b.example", vec![NameAnswer::of(&["127.0.0.1"])]),
        ("c.example", vec![NameAnswer::of(&["127.0.0.1"])]),
    ]);
    let origin = origin(vec![image()]).await;
    let mut config = FetchConfig { max_idle_connections: 2, ..loopback_config(&[origin.port()]) };
    let fetch_all = async |fetcher: &Fetcher| {
        for host in ["a", "b", "c"] {
            fetcher.fetch(&url(&format!("http://{host}.example:{}/", origin.port()))).await.unwrap();
        }
    };
    let ended = async |connections: usize| {
        while origin.ended() < connections {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let fetcher = Fetcher::with_resolver(&config, Arc::clone(&names) as Arc<_>).unwrap();
    fetch_all(&fetcher).await;
    ended(1).await;
    assert_eq!((origin.connections(), origin.ended()), (3, 1), "the oldest made room");
    drop(fetcher);
    ended(3).await;

    config.idle_timeout = Duration::from_millis(20);
    let fetcher = Fetcher::with_resolver(&config, names).unwrap();
    fetch_all(&fetcher).await;
    ended(origin.connections()).await;
}
