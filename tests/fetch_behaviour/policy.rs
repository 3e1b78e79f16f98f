//! Where it connects.

use crate::support::loopback_config;
use crate::support::names::NameAnswer;
use crate::support::names::Names;
use crate::support::origin::Origin;
use crate::support::script::Behaviour;
use crate::support::script::Transfer;
use crate::support::url;
use crate::{bodies, image, origin, play, redirect, status};
use mediagate::error::Fault;
use mediagate::media::fetch::FetchConfig;
use mediagate::media::fetch::FetchError;
use mediagate::media::fetch::Fetcher;
use mediagate::media::fetch::PolicyRefusal;
use mediagate::media::fetch::Refusal;
use std::net::Ipv4Addr;
use std::net::SocketAddrV4;
use std::sync::Arc;

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
    child.args(["--exact", "policy::no_proxy_of_the_environment_is_asked"]).env(CHILD, "1");
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
