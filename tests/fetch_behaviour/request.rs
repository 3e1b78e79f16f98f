//! What it sends.

use crate::support::fetch;
use crate::support::loopback_config;
use crate::support::names::NameAnswer;
use crate::support::names::Names;
use crate::support::origin::Origin;
use crate::support::script::Behaviour;
use crate::support::script::Condition;
use crate::support::script::Transfer;
use crate::support::url;
use crate::{bodies, headers, image, origin, play, redirect, status};
use mediagate::media::fetch::FetchConfig;
use mediagate::media::fetch::FetchError;
use mediagate::media::fetch::Fetcher;
use mediagate::media::fetch::PolicyRefusal;
use mediagate::media::fetch::Refusal;
use mediagate::media::fetch::Revalidated;
use std::num::NonZeroUsize;
use std::time::Duration;

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
