//! Clients that leave.

use crate::support::loopback_config;
use crate::support::script::Action;
use crate::support::script::Behaviour;
use crate::support::url;
use crate::{image, origin};
use mediagate::media::fetch::Fetcher;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

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
