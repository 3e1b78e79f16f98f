//! Sizes of pictures by the beginning of their files, over real sockets.

#![cfg(feature = "mm-routing")]

#[path = "fetch_support/mod.rs"]
mod support;

use std::{sync::Arc, time::Duration};

use mediagate::media::{
    content::{MediaId, Scope},
    dimensions::{Dimensions, NoSize, PictureSize},
    fetch::{FetchConfig, FetchError, Fetcher},
};

use crate::support::{
    loopback_config,
    origin::Origin,
    script::{Action, Behaviour, Bodies, Headers, Transfer},
};

const SIZE: PictureSize = PictureSize { height: 23, width: 37 };

/// A JPEG whose size stands behind 100 kB of metadata (`base`), and one whose does not (`other`).
fn pictures() -> Bodies {
    let plain = include_bytes!("data/images/baseline_420.jpg").to_vec();
    let mut late = plain[..2].to_vec();
    for _ in 0..2 {
        late.extend([0xff, 0xed, 0xc3, 0x52]);
        late.extend([7; 50_000]);
    }
    late.extend(&plain[2..]);
    late.resize(400_000, 0);
    let mut other = plain;
    other.resize(400_000, 0);
    Bodies { base: late, other }
}

/// The first bytes of a picture of 400,000, as an origin sends them that knows ranges.
fn part(body: &str, bytes: usize) -> Behaviour {
    let fields = [("Content-Range", format!("bytes 0-{}/400000", bytes - 1)), ("Content-Length", bytes.to_string())];
    let headers = Headers::List(fields.map(|(name, value)| (name.to_owned(), value)).to_vec());
    Behaviour { status: 206, headers, body: body.into(), transfer: Transfer::Raw, ..Behaviour::default() }
}

fn whole(body: &str) -> Behaviour {
    Behaviour { status: 200, body: body.into(), ..Behaviour::default() }
}

fn dimensions(config: &FetchConfig, patience: Duration) -> Dimensions {
    Dimensions::new(Arc::new(Fetcher::new(config).unwrap()), patience)
}

async fn ask(dimensions: &Dimensions, url: &str) -> Result<PictureSize, NoSize> {
    dimensions.of(MediaId::of_url(&Scope::default(), url), &url.into()).await
}

async fn play(script: Vec<Behaviour>) -> (Origin, Result<PictureSize, NoSize>) {
    let origin = Origin::play(script, pictures(), 0).await;
    let dimensions = dimensions(&loopback_config(&[origin.port()]), Duration::from_secs(60));
    let found = ask(&dimensions, &origin.url("/x.jpg")).await;
    (origin, found)
}

fn ranges(origin: &Origin) -> Vec<String> {
    let range = |head: &String| {
        let (_, rest) = head.split_once("\r\nrange: bytes=0-")?;
        rest.split_once("\r\n").map(|(last, _)| last.to_owned())
    };
    origin.requests().iter().filter_map(range).collect()
}

#[tokio::test]
async fn one_small_part_is_enough_for_most() {
    let (origin, found) = play(vec![part("OTHER", 16 << 10)]).await;
    assert_eq!(found.unwrap(), SIZE);
    assert_eq!(ranges(&origin), ["16383"]);
}

#[tokio::test]
async fn the_part_grows_until_the_header_is_complete() {
    let (origin, found) = play([16, 64, 256].map(|kib| part("BASE", kib << 10)).to_vec()).await;
    assert_eq!(found.unwrap(), SIZE);
    assert_eq!(ranges(&origin), ["16383", "65535", "262143"]);
}

#[tokio::test]
async fn an_origin_without_ranges_is_read_for_a_bit_and_left() {
    let (_, found) = play(vec![whole("OTHER")]).await;
    assert_eq!(found.unwrap(), SIZE);
    // 64 KiB are not enough, and more is not asked for.
    let (origin, found) = play(vec![whole("BASE"); 4]).await;
    assert!(matches!(found, Err(NoSize::NotInHeader)), "{found:?}");
    assert_eq!(origin.requests().len(), 2);
}

#[tokio::test]
async fn what_is_no_picture_is_asked_for_once() {
    let (origin, found) =
        play(vec![whole("<!DOCTYPE html><html><body>not a picture, but long enough to tell</body>"); 4]).await;
    assert!(matches!(found, Err(NoSize::NotInHeader)), "{found:?}");
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn the_policy_of_fetching_holds_for_every_byte() {
    let canary = Origin::canary().await;
    let dimensions = dimensions(&FetchConfig::default(), Duration::from_secs(60));
    let found = ask(&dimensions, &canary.url("/x.jpg")).await;
    assert!(matches!(found, Err(NoSize::Fetch(FetchError::Refused(_)))), "{found:?}");
    assert_eq!(canary.connections(), 0);
    // A redirect to where it may not go, too.
    let origin = Origin::play(
        vec![Behaviour {
            status: 302,
            headers: Headers::List(vec![("Location".into(), canary.url("/x.jpg"))]),
            ..Behaviour::default()
        }],
        pictures(),
        0,
    )
    .await;
    let found =
        ask(&self::dimensions(&loopback_config(&[origin.port()]), Duration::from_secs(60)), &origin.url("/")).await;
    assert!(matches!(found, Err(NoSize::Fetch(FetchError::Refused(_)))), "{found:?}");
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn one_size_is_read_once_for_all_who_ask_and_remembered() {
    let origin = Origin::play(vec![Behaviour { delay_ms: Some(200), ..part("OTHER", 16 << 10) }], pictures(), 0).await;
    let dimensions = dimensions(&loopback_config(&[origin.port()]), Duration::from_secs(60));
    let url = origin.url("/x.jpg");
    let all = futures_util::future::join_all((0..20).map(|_| ask(&dimensions, &url))).await;
    assert!(all.into_iter().all(|found| found.is_ok_and(|size| size == SIZE)));
    assert_eq!(ask(&dimensions, &url).await.unwrap(), SIZE);
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn a_failure_is_not_remembered() {
    let refusal = Behaviour { status: 404, ..Behaviour::default() };
    let origin = Origin::play(vec![refusal, part("OTHER", 16 << 10)], pictures(), 0).await;
    let dimensions = dimensions(&loopback_config(&[origin.port()]), Duration::from_secs(60));
    let url = origin.url("/x.jpg");
    assert!(matches!(ask(&dimensions, &url).await, Err(NoSize::Fetch(_))));
    assert_eq!(ask(&dimensions, &url).await.unwrap(), SIZE);
}

#[tokio::test]
async fn a_request_waits_no_longer_than_its_patience() {
    let hangs = Behaviour { action: Some(Action::Hang), ..Behaviour::default() };
    let origin = Origin::play(vec![hangs], pictures(), 0).await;
    let dimensions = dimensions(&loopback_config(&[origin.port()]), Duration::from_millis(50));
    let found = ask(&dimensions, &origin.url("/x.jpg")).await;
    assert!(matches!(found, Err(NoSize::Late)), "{found:?}");
}
