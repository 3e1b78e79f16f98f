//! TLS.

use crate::support::loopback_config;
use crate::support::names::NameAnswer;
use crate::support::names::Names;
use crate::support::origin::Origin;
use crate::support::tls::Authority;
use crate::support::tls::Flaw;
use crate::support::url;
use crate::{bodies, image};
use mediagate::media::fetch::FetchConfig;
use mediagate::media::fetch::FetchError;
use mediagate::media::fetch::Fetcher;
use std::net::Ipv4Addr;
use std::net::SocketAddrV4;

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
