//! What must hold when an origin, a name server or a client means ill, each tried over real sockets.

#[path = "fetch_support/mod.rs"]
mod support;

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use mediagate::error::Fault;
use mediagate::media::fetch::{FetchConfig, FetchError, Fetcher, PolicyRefusal, Refusal, Revalidated};
use mediagate::media::source::{HttpUrl, Source};

use crate::support::names::{NameAnswer, Names};
use crate::support::origin::Origin;
use crate::support::script::{Action, Behaviour, Bodies, Condition, Headers, Transfer};
use crate::support::tls::{Authority, Flaw};
use crate::support::{fetch, loopback_config, url};

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

// Policy.

#[tokio::test]
async fn the_canary_sees_nobody_when_the_policy_refuses() {
    let canary = Origin::canary().await;
    let port = canary.port();
    let names = || {
        Names::new([
            ("evil.example", vec![NameAnswer::of(&["127.0.0.1"])]),
            ("mapped.example", vec![NameAnswer::of(&["::ffff:127.0.0.1"])]),
            ("localhost", vec![NameAnswer::of(&["127.0.0.1"])]),
        ])
    };
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "localhost",
        "LOCALHOST.",
        "x.localhost",
        "evil.example",
        "mapped.example",
    ] {
        let config = FetchConfig { allow_ports: [port].into(), ..FetchConfig::default() };
        let fetcher = Fetcher::with_resolver(&config, names()).unwrap();
        let error = fetcher.fetch(&url(&format!("http://{host}:{port}/"))).await.unwrap_err();
        assert!(matches!(error, FetchError::Refused(_)), "{host}: {error:?}");
        assert_eq!(error.status().as_u16(), 400);
    }
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn a_redirect_is_judged_like_a_first_url() {
    let canary = Origin::canary().await;
    let target = |host: &str| format!("http://{host}:{}/", canary.port());
    for (location, refusal) in [
        (target("127.0.0.3"), PolicyRefusal::IpLiteral),
        (target("localhost"), PolicyRefusal::LocalName),
        (target("evil.example"), PolicyRefusal::Address(Refusal::Loopback)),
        ("http://mixed.example/".to_owned(), PolicyRefusal::Address(Refusal::Metadata)),
        ("http://169.254.169.254/latest/meta-data/".to_owned(), PolicyRefusal::IpLiteral),
        ("http://example.com:22/".to_owned(), PolicyRefusal::Port(22)),
    ] {
        let origin = origin(vec![redirect(&location)]).await;
        let mut config = loopback_config(&[origin.port(), canary.port()]);
        config.allow_cidrs = vec!["127.0.0.1".parse().unwrap()];
        let names = Names::new([
            ("evil.example", vec![NameAnswer::of(&["127.0.0.3"])]),
            ("mixed.example", vec![NameAnswer::of(&["127.0.0.1", "169.254.169.254"])]),
        ]);
        let fetcher = Fetcher::with_resolver(&config, names).unwrap();
        let error = fetcher.fetch(&url(&origin.url("/"))).await.unwrap_err();
        assert!(matches!(&error, FetchError::Refused(actual) if *actual == refusal), "{location}: {error:?}");
        assert_eq!(origin.requests().len(), 1, "{location}: a refusal is not retried");
    }
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn one_bad_address_keeps_all_addresses_of_a_name_from_being_dialled() {
    let canary = Origin::canary().await;
    let config = FetchConfig { allow_cidrs: vec!["127.0.0.1".parse().unwrap()], ..loopback_config(&[canary.port()]) };
    let names = Names::new([("mixed.example", vec![NameAnswer::of(&["127.0.0.1", "10.0.0.1"])])]);
    let fetcher = Fetcher::with_resolver(&config, names).unwrap();
    let error = fetcher.fetch(&url(&format!("http://mixed.example:{}/", canary.port()))).await.unwrap_err();
    assert!(matches!(error, FetchError::Refused(PolicyRefusal::Address(Refusal::Private))));
    assert_eq!(canary.connections(), 0);
}

/// 127.0.0.2 stands for the internet, 127.0.0.1 for the inside.
#[tokio::test]
async fn a_name_that_changes_its_mind_gains_nothing() {
    for script in [
        // The second lookup is that of a retry, of a redirect, of another fetch.
        vec![Behaviour { transfer: Transfer::Close, ..status(503) }],
        vec![Behaviour { transfer: Transfer::Close, ..redirect("/again") }],
        vec![Behaviour { transfer: Transfer::Close, ..image() }],
    ] {
        let canary = Origin::canary().await;
        let port = canary.port();
        let outside = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), port);
        let origin = Origin::play_on(outside, script, bodies(), 0, None).await;
        let config = FetchConfig { allow_cidrs: vec!["127.0.0.2".parse().unwrap()], ..loopback_config(&[port]) };
        let answers = vec![NameAnswer::of(&["127.0.0.2"]), NameAnswer::of(&["127.0.0.1"])];
        let names = Names::new([("rebind.example", answers)]);
        let fetcher = Fetcher::with_resolver(&config, Arc::clone(&names) as Arc<_>).unwrap();
        let url = url(&format!("http://rebind.example:{port}/"));
        let mut result = fetcher.fetch(&url).await;
        if result.is_ok() {
            result = fetcher.fetch(&url).await;
        }
        let error = result.unwrap_err();
        assert!(matches!(error, FetchError::Refused(PolicyRefusal::Address(Refusal::Loopback))), "{error:?}");
        assert_eq!((names.lookups(), origin.connections(), canary.connections()), (2, 1, 0));
    }
}

#[tokio::test]
async fn allowed_domains_hold_at_every_hop() {
    let origin = origin(vec![redirect("http://other.example/")]).await;
    let names = Names::new([
        ("a.example", vec![NameAnswer::of(&["127.0.0.1"])]),
        ("other.example", vec![NameAnswer::of(&["127.0.0.1"])]),
    ]);
    let config = FetchConfig { allowed_domains: vec!["a.example".into()], ..loopback_config(&[origin.port()]) };
    let fetcher = Fetcher::with_resolver(&config, Arc::clone(&names) as Arc<_>).unwrap();
    let fetch = async |host: &str| fetcher.fetch(&url(&format!("http://{host}:{}/", origin.port()))).await;

    assert!(matches!(fetch("other.example").await, Err(FetchError::Refused(PolicyRefusal::Domain))));
    assert_eq!(names.lookups(), 0, "a host that is not allowed is not even looked up");
    assert!(matches!(fetch("a.example").await, Err(FetchError::Refused(PolicyRefusal::Domain))));
    assert_eq!((names.lookups(), origin.requests().len()), (1, 1));
}

#[tokio::test]
async fn an_allowed_host_is_fetched_at_its_private_address() {
    let origin = origin(vec![image()]).await;
    let names = Names::new([("minio", vec![NameAnswer::of(&["127.0.0.1"])])]);
    let config = FetchConfig {
        allow_hosts: vec!["minio".into()],
        allow_ports: [origin.port()].into(),
        ..FetchConfig::default()
    };
    let fetcher = Fetcher::with_resolver(&config, names).unwrap();
    let fetched = fetcher.fetch(&url(&format!("http://MinIO:{}/x", origin.port()))).await.unwrap();
    assert_eq!(fetched.bytes, bodies().base);
}

/// Runs itself once more with the variables that proxies are configured with, all naming the canary.
#[tokio::test]
async fn no_proxy_of_the_environment_is_asked() {
    const CHILD: &str = "MEDIAGATE_TEST_PROXY_CHILD";

    if std::env::var_os(CHILD).is_some() {
        let (_origin, result) = play(vec![image()], |_| ()).await;
        assert_eq!(result.unwrap().bytes, bodies().base);
        return;
    }
    let canary = Origin::canary().await;
    let proxy = canary.url("/");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "no_proxy_of_the_environment_is_asked"]).env(CHILD, "1");
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, &proxy);
    }
    let status = tokio::task::spawn_blocking(move || child.status()).await.unwrap();
    assert!(status.unwrap().success());
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn an_address_that_does_not_answer_leaves_the_others() {
    let origin = origin(vec![image()]).await;
    let names = Names::new([("two.example", vec![NameAnswer::of(&["127.0.0.9", "127.0.0.1"])])]);
    let fetcher = Fetcher::with_resolver(&loopback_config(&[origin.port()]), names).unwrap();
    let fetched = fetcher.fetch(&url(&format!("http://two.example:{}/", origin.port()))).await.unwrap();
    assert_eq!((fetched.retries, fetched.bytes.len()), (0, bodies().base.len()));
}

// The request.

#[tokio::test]
async fn the_request_is_what_was_written_and_nothing_else() {
    for target in ["/a/../b/%2e%2e/c%2Fd?sig='a+b%20c'&x=1&x=2&u=http://h/@|^`", "//double", "/?"] {
        let origin = origin(vec![image()]).await;
        let config = FetchConfig { user_agent: "tester/1".into(), ..loopback_config(&[origin.port()]) };
        fetch(&config, &origin.url(target)).await.unwrap();
        let expected = format!(
            "GET {target} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\nuser-agent: tester/1\r\naccept: */*\r\naccept-encoding: identity\r\n\r\n",
            origin.port()
        );
        assert_eq!(origin.requests(), [expected]);
    }
}

#[tokio::test]
async fn signed_redirects_are_followed_to_the_letter() {
    let script = vec![redirect("/a%2Fb/../c?sig='x+y'&z=%2b#top"), image()];
    let (origin, result) = play(script, |_| ()).await;
    assert_eq!(result.unwrap().redirects, 1);
    assert!(origin.requests()[1].starts_with("GET /a%2Fb/../c?sig='x+y'&z=%2b HTTP/1.1\r\n"));
    assert!(!origin.requests()[1].to_ascii_lowercase().contains("referer"));
}

#[tokio::test]
async fn a_known_image_is_asked_for_by_its_validators() {
    let conditional = Condition { header: Some("if-none-match".into()), ..Condition::default() };
    let fields = headers([
        ("ETag", "\"v1\""),
        ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
        ("Cache-Control", "max-age=60"),
        ("Age", "20"),
    ]);
    let script = vec![
        Behaviour { headers: fields, ..image() },
        Behaviour {
            status: 304,
            headers: headers([("Cache-Control", "max-age=90")]),
            require: Some(conditional),
            ..Behaviour::default()
        },
        Behaviour { body: "OTHER".into(), ..image() },
    ];
    let origin = origin(script).await;
    let fetcher = Fetcher::new(&loopback_config(&[origin.port()])).unwrap();
    let url = url(&origin.url("/x.png"));

    let first = fetcher.fetch(&url).await.unwrap();
    assert_eq!(first.validators.etag.as_ref().unwrap(), "\"v1\"");
    assert_eq!(first.freshness.fresh_for(), Some(Duration::from_secs(40)));
    match fetcher.fetch_if_changed(&url, &first.validators).await.unwrap() {
        Revalidated::NotModified(freshness) => assert_eq!(freshness.max_age, Some(Duration::from_secs(90))),
        Revalidated::Changed(_) => panic!("304 means not modified"),
    }
    match fetcher.fetch_if_changed(&url, &first.validators).await.unwrap() {
        Revalidated::Changed(fetched) => assert_eq!(fetched.bytes, bodies().other),
        Revalidated::NotModified(_) => panic!("200 means changed"),
    }
    assert!(origin.requests()[2].contains("if-modified-since: Thu, 01 Jan 2026 00:00:00 GMT\r\n"));
    assert_eq!(origin.connections(), 1, "one connection serves all three");
}

/// A redirect that leads to another picture with the same tag, as counters make them.
#[tokio::test]
async fn validators_are_for_the_url_that_gave_them_and_redirects_have_a_say() {
    let tagged = |body: &str| Behaviour {
        headers: headers([("ETag", "\"1\""), ("Cache-Control", "max-age=60, immutable")]),
        forbid: Some(Condition { header: Some("if-none-match".into()), ..Condition::default() }),
        body: body.into(),
        ..status(200)
    };
    let script = vec![redirect("/v1"), tagged("BASE"), redirect("/v2"), tagged("OTHER"), redirect("/v2"), status(304)];
    let origin = origin(script).await;
    let fetcher = Fetcher::new(&loopback_config(&[origin.port()])).unwrap();
    let url = url(&origin.url("/latest"));

    let first = fetcher.fetch(&url).await.unwrap();
    assert_eq!(first.freshness.fresh_for(), Some(Duration::ZERO));
    let Revalidated::Changed(second) = fetcher.fetch_if_changed(&url, &first.validators).await.unwrap() else {
        panic!("it is another picture")
    };
    assert_eq!(second.bytes, bodies().other);
    let third = fetcher.fetch_if_changed(&url, &second.validators).await.unwrap();
    assert!(matches!(third, Revalidated::NotModified(freshness) if freshness.fresh_for() == Some(Duration::ZERO)));
    assert!(origin.requests()[5].contains("if-none-match: \"1\"\r\n"));
}

#[tokio::test]
async fn the_beginning_of_an_image_is_had_with_and_without_ranges() {
    const MOST: NonZeroUsize = NonZeroUsize::new(100).unwrap();

    let partial = |range: &str| Behaviour {
        headers: headers([("Content-Range", range), ("Content-Length", "100")]),
        transfer: Transfer::Raw,
        ..status(206)
    };
    let gzip = Behaviour { headers: headers([("Content-Encoding", "gzip")]), body: "gzip(BASE)".into(), ..image() };
    let fetch = async |behaviour: Behaviour| {
        let origin = origin(vec![behaviour]).await;
        let fetcher = Fetcher::new(&loopback_config(&[origin.port()])).unwrap();
        let result = fetcher.fetch_prefix(&url(&origin.url("/")), MOST).await;
        assert!(origin.requests()[0].contains("\r\nrange: bytes=0-99\r\n"));
        result
    };
    let base = bodies().base;
    for (behaviour, len, is_whole) in [
        (Behaviour { body: "BASE".into(), ..partial("bytes 0-99/2000") }, 100, false),
        (Behaviour { body: "BASE".into(), ..partial("bytes 0-99/*") }, 100, false),
        (Behaviour { body: "BASE".into(), ..partial("bytes 0-99/100") }, 100, true),
        // Origins that do not know ranges.
        (image(), 100, false),
        (Behaviour { transfer: Transfer::Chunked, ..image() }, 100, false),
        (Behaviour { transfer: Transfer::ChunkedInfinite, ..image() }, 100, false),
        (Behaviour { body: "OTHER".into(), ..image() }, bodies().other.len(), true),
        (gzip, base.len(), true),
    ] {
        let fetched = fetch(behaviour.clone()).await.unwrap_or_else(|error| panic!("{behaviour:?}: {error:?}"));
        assert_eq!((fetched.bytes.len(), fetched.is_whole), (len, is_whole), "{behaviour:?}");
        if behaviour.body != "OTHER" && behaviour.transfer != Transfer::ChunkedInfinite {
            assert_eq!(fetched.bytes, base[..len], "{behaviour:?}");
        }
    }
    // Another part than the one that was asked for.
    let other = fetch(Behaviour { body: "BASE".into(), ..partial("bytes 100-199/2000") }).await;
    assert!(matches!(other, Err(FetchError::OriginRefused(_))), "{other:?}");
}

#[tokio::test]
async fn a_url_can_be_checked_without_a_connection() {
    let canary = Origin::canary().await;
    let names = Names::new([
        ("good.example", vec![NameAnswer::of(&["127.0.0.1"])]),
        ("bad.example", vec![NameAnswer::of(&["127.0.0.1", "10.0.0.1"])]),
    ]);
    let config = FetchConfig { allow_cidrs: vec!["127.0.0.1".parse().unwrap()], ..loopback_config(&[canary.port()]) };
    let fetcher = Fetcher::with_resolver(&config, names).unwrap();
    let check = async |host: &str| fetcher.check(&url(&format!("http://{host}:{}/", canary.port()))).await;
    assert!(check("good.example").await.is_ok());
    assert!(matches!(check("bad.example").await, Err(FetchError::Refused(PolicyRefusal::Address(Refusal::Private)))));
    assert!(matches!(check("localhost").await, Err(FetchError::Refused(PolicyRefusal::LocalName))));
    assert!(matches!(check("none.example").await, Err(FetchError::NoSuchHost)));
    assert_eq!(canary.connections(), 0);
}

// Limits.

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
    for behaviour in slow {
        let (origin, result) = play(vec![behaviour], |config| config.total_timeout = Duration::from_millis(500)).await;
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
        total_timeout: Duration::from_millis(400),
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

// Redirects and retries.

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

// Leaving.

#[tokio::test]
async fn a_fetch_that_nobody_waits_for_closes_its_connection() {
    for behaviour in [
        Behaviour { action: Some(Action::Hang), ..image() },
        Behaviour { drip_headers_ms: Some(20), ..image() },
        Behaviour { drip_body_ms: Some(20), ..image() },
    ] {
        let origin = origin(vec![behaviour]).await;
        let fetcher = Fetcher::new(&loopback_config(&[origin.port()])).unwrap();
        let url = url(&origin.url("/"));
        {
            let mut fetch = pin!(fetcher.fetch(&url));
            while origin.requests().is_empty() {
                let pending = poll_fn(|cx| Poll::Ready(fetch.as_mut().poll(cx).is_pending())).await;
                assert!(pending);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        while origin.ended() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(origin.connections(), 1);
    }
}

// TLS.

#[tokio::test]
async fn tls_proves_the_name_and_not_the_address() {
    let authority = Authority::new();
    let acceptor = authority.acceptor("example.test", Flaw::None);
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    let origin = Origin::play_on(address, vec![image()], bodies(), 0, Some(acceptor)).await;
    let names = || {
        Names::new([
            ("example.test", vec![NameAnswer::of(&["127.0.0.1"])]),
            ("other.test", vec![NameAnswer::of(&["127.0.0.1"])]),
        ])
    };
    let config = FetchConfig { ca_files: vec![authority.file()], ..loopback_config(&[origin.port()]) };
    let fetch = async |config: &FetchConfig, host: &str| {
        let fetcher = Fetcher::with_resolver(config, names()).unwrap();
        fetcher.fetch(&url(&format!("https://{host}:{}/", origin.port()))).await
    };
    assert_eq!(fetch(&config, "example.test").await.unwrap().bytes, bodies().base);
    assert_eq!(fetch(&config, "Example.TEST.").await.unwrap().bytes, bodies().base);
    assert!(matches!(fetch(&config, "other.test").await, Err(FetchError::Tls(_))));
    assert!(matches!(fetch(&config, "127.0.0.1").await, Err(FetchError::Tls(_))));
    // Without the authority it is nobody.
    let stranger = loopback_config(&[origin.port()]);
    assert!(matches!(fetch(&stranger, "example.test").await, Err(FetchError::Tls(_))));
}

// What a client reads.

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
