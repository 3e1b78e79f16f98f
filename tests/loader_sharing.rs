//! Each thing is done once, for those who may share it, and for as long as it holds.
#![cfg(not(feature = "shuttle"))]

mod loader_support;

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use loader_support::{Origin, at_rest, avif, data_uri, late, loader, picture, pixels};
use mediagate::{
    error::Fault,
    media::{
        content::Scope,
        loader::{Loaded, MediaConfig},
        picture::Media,
        resize::SmartResize,
    },
};

const ARENA_BYTES: usize = 16 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_who_ask_at_once_cause_one_fetch_and_share_one_slot() {
    let origin = Origin::start().await;
    let loader = loader(origin.config(), ARENA_BYTES);
    let path = "/1/64/64?delay=50";
    let (source, scope) = (origin.url(path), Scope::default());
    let all = join_all((0..100).map(|_| {
        let (loader, source) = (loader.clone(), source.clone());
        tokio::spawn(async move { loader.load(source, &scope, late()).await.unwrap() })
    }))
    .await;
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    assert_eq!(origin.requests(path), 1);
    let (expected, address) = (pixels(1, 64, 64), picture(&all[0]).1);
    for loaded in &all {
        assert_eq!(picture(loaded), (&expected[..], address));
    }
    assert_eq!(loader.arena().usage().used_bytes, expected.len().next_multiple_of(4096));
    drop(all);
    at_rest(&loader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_first_client_leaves_the_others_go_on_and_when_all_leave_the_work_ends() {
    let origin = Origin::start().await;
    let loader = loader(origin.config(), ARENA_BYTES);
    let (path, scope) = ("/1/64/64?gate=1", Scope::default());
    let ask = || {
        let (loader, source) = (loader.clone(), origin.url(path));
        tokio::spawn(async move { loader.load(source, &scope, late()).await })
    };
    let first = ask();
    while origin.requests(path) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut second = pin!(loader.load(origin.url(path), &scope, late()));
    // As far as it gets without an answer: it waits with the first.
    for _ in 0..20 {
        assert!(poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
        tokio::task::yield_now().await;
    }
    first.abort();
    origin.open("1");
    assert_eq!(picture(&second.await.unwrap()).0, pixels(1, 64, 64));
    assert_eq!(origin.requests(path), 1);

    let (path, ask) = ("/1/64/64?gate=2", || {
        let (loader, source) = (loader.clone(), origin.url("/1/64/64?gate=2"));
        tokio::spawn(async move { loader.load(source, &scope, late()).await })
    });
    let only = ask();
    while origin.requests(path) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    only.abort();
    let _ = only.await;
    assert_eq!(loader.held(), Default::default(), "a fetch that nobody waits for is over at once");
    at_rest(&loader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_pixels_share_a_slot_within_a_scope_and_never_across() {
    let origin = Origin::start().await;
    let loader = loader(origin.config(), ARENA_BYTES);
    let sources =
        [origin.url("/1/64/64"), origin.url("/1/64/64?etag=x"), data_uri(1, 64, 64).into(), data_uri(1, 64, 64).into()];
    let one = loader.load_all(&sources, &Scope::default(), late()).await.unwrap();
    let first = picture(&one[0]);
    assert!(one.iter().all(|loaded| picture(loaded) == first));

    let tenant = Scope::new(Some("tenant"), None);
    let other = loader.load_all(&sources, &tenant, late()).await.unwrap();
    assert_eq!(picture(&other[0]).0, first.0);
    assert_ne!(picture(&other[0]).1, first.1, "another tenant's picture lies in another slot");
    assert_eq!(origin.requests("/1/64/64"), 2, "and is fetched anew, so that no time tells that it was there");
    drop((one, other));
    at_rest(&loader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_reaches_all_and_is_told_again_for_a_moment_if_it_is_the_origins() {
    let origin = Origin::start().await;
    let scope = Scope::default();
    for (how, code) in [
        ("status=502", "media_origin_failed"),
        ("status=404", "media_origin_refused"),
        ("broken=true", "image_truncated"),
    ] {
        // The longer it is told, the longer this takes; on a busy machine a short moment may be over too soon.
        let mut moments = [200, 2_000, 10_000].map(Duration::from_millis).into_iter();
        loop {
            let negative = moments.next().expect("the machine was too busy each time");
            let loader = loader(MediaConfig { negative, ..origin.config() }, ARENA_BYTES);
            let path = format!("/1/8/8?{how}&delay=50&moment={}", negative.as_millis());
            let start = Instant::now();
            let all = join_all((0..8).map(|_| loader.load(origin.url(&path), &scope, late()))).await;
            for error in all.into_iter().map(Result::unwrap_err) {
                assert_eq!(error.code(), code);
            }
            let again = loader.load(origin.url(&path), &scope, late()).await.unwrap_err();
            if origin.requests(&path) > 1 && start.elapsed() >= negative {
                continue;
            }
            assert_eq!((again.code(), origin.requests(&path)), (code, 1));
            tokio::time::sleep(negative).await;
            assert!(loader.load(origin.url(&path), &scope, late()).await.is_err());
            assert_eq!(origin.requests(&path), 2);
            break;
        }
    }
    let loader = loader(origin.config(), ARENA_BYTES);
    // A refusal by our own policy is not the origin's.
    let forbidden = "http://127.0.0.1:1/x.png";
    let refused = loader.load(forbidden.into(), &scope, late()).await.unwrap_err();
    assert_eq!(refused.code(), "media_port_not_allowed");
    at_rest(&loader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_private_is_fetched_by_everybody_for_himself() {
    let origin = Origin::start().await;
    let loader = loader(origin.config(), ARENA_BYTES);
    let scope = Scope::default();
    for path in ["/1/64/64?cc=no-store&delay=50", "/1/64/64?cc=private&delay=50"] {
        let all = join_all((0..4).map(|_| loader.load(origin.url(path), &scope, late()))).await;
        for loaded in all {
            assert_eq!(picture(&loaded.unwrap()).0, pixels(1, 64, 64));
        }
        assert_eq!(origin.requests(path), 4);
        assert_eq!(loader.arena().usage().used_bytes, 0, "nothing is kept");
    }
    at_rest(&loader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stale_is_asked_about_and_what_is_fresh_is_not() {
    let origin = Origin::start().await;
    let loader = loader(origin.config(), ARENA_BYTES);
    let scope = Scope::default();
    let twice = async |path: &str| {
        let first = loader.load(origin.url(path), &scope, late()).await.unwrap();
        let second = loader.load(origin.url(path), &scope, late()).await.unwrap();
        assert_eq!(picture(&first), picture(&second));
        origin.requests(path)
    };
    assert_eq!(twice("/1/8/8").await, 1);
    assert_eq!(twice("/2/8/8?cc=max-age=60").await, 1);
    assert_eq!(twice("/3/8/8?cc=max-age=0").await, 2);
    assert_eq!(twice("/4/8/8?cc=no-cache&etag=x").await, 2);
    at_rest(&loader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_is_not_decoded_is_fetched_once_kept_and_asked_about_as_a_picture_is() {
    let origin = Origin::start().await;
    let loader = loader(origin.config(), ARENA_BYTES);
    let scope = Scope::default();
    let file = |loaded: &Loaded| match &loaded.media {
        Media::Original(original) => (original.bytes(), original.slot.address()),
        Media::Picture(_) => panic!("decoded"),
    };
    let fresh = "/1/1/1?avif=true&delay=50";
    let all = join_all((0..20).map(|_| {
        let (loader, source) = (loader.clone(), origin.url(fresh));
        tokio::spawn(async move { loader.load(source, &scope, late()).await.unwrap() })
    }))
    .await;
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    let first = file(&all[0]);
    assert_eq!(first.0, avif(1));
    assert!(all.iter().all(|loaded| file(loaded) == first), "one slot for all");
    // The same file by another way, and in the arena while it is held: for each who holds it.
    let data = format!("data:image/avif;base64,{}", base64_simd::STANDARD.encode_to_string(avif(1)));
    let by_data = loader.load(data.as_str().into(), &scope, late()).await.unwrap();
    assert_eq!(file(&by_data), first);
    assert_eq!(loader.held().small_pixels_bytes, 21 * avif(1).len().next_multiple_of(4096));
    assert_eq!(loader.held().encoded_bytes, 0);
    let other_tenant = loader.load(data.as_str().into(), &Scope::new(Some("tenant"), None), late()).await.unwrap();
    assert_ne!(file(&other_tenant).1, first.1);
    drop((all, by_data, other_tenant, first));
    loader.load(origin.url(fresh), &scope, late()).await.unwrap();
    assert_eq!(origin.requests(fresh), 1);

    for (path, requests) in [("/2/1/1?avif=true&cc=no-cache&etag=x", 2), ("/3/1/1?avif=true&cc=no-store", 2)] {
        for _ in 0..2 {
            let loaded = loader.load(origin.url(path), &scope, late()).await.unwrap();
            assert_eq!(file(&loaded).0.len(), avif(1).len());
        }
        assert_eq!(origin.requests(path), requests);
    }
    at_rest(&loader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_named_twice_in_a_request_is_loaded_once() {
    let origin = Origin::start().await;
    let loader = loader(origin.config(), ARENA_BYTES);
    let (a, b) = (origin.url("/1/64/64"), origin.url("/2/64/64"));
    let sources = [a.clone(), b.clone(), a, b];
    let loaded = loader.load_all(&sources, &Scope::default(), late()).await.unwrap();
    for (loaded, seed) in loaded.iter().zip([1, 2, 1, 2]) {
        assert_eq!(picture(loaded).0, pixels(seed, 64, 64));
    }
    assert_eq!((origin.requests("/1/64/64"), origin.requests("/2/64/64")), (1, 1));
    assert_eq!(loader.held().small_pixels_bytes, 2 * (64 * 64 * 3));
    drop(loaded);
    at_rest(&loader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_failure_names_its_image() {
    let origin = Origin::start().await;
    let loader = loader(origin.config(), ARENA_BYTES);
    let sources = [origin.url("/1/64/64"), origin.url("/1/64/64"), origin.url("/2/8/8?status=500")];
    let failed = loader.load_all(&sources, &Scope::default(), late()).await.unwrap_err();
    assert_eq!((failed.index, failed.error.code()), (2, "media_origin_failed"));
    let sources = [origin.url("/1/64/64"), "nothing".into()];
    let failed = loader.load_all(&sources, &Scope::default(), late()).await.unwrap_err();
    assert_eq!(failed.index, 1);
    assert!(Arc::strong_count(&failed.error) >= 1);
    at_rest(&loader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_has_one_content_for_each_rule_and_a_rule_that_changes_nothing_shares_it() {
    let origin = Origin::start().await;
    let loader = loader(origin.config(), ARENA_BYTES);
    let scope = Scope::default();
    let [quarter, half, none] = [12_544, 50_176, 1 << 20].map(|most| SmartResize::new(28, 3136, most));
    let sources = [origin.url("/1/280/280"), data_uri(2, 280, 280).into()];
    let load = |rule: Option<SmartResize>| {
        let (loader, sources) = (&loader, &sources);
        async move { loader.load_resized(sources, &scope, rule.as_ref(), late()).await.unwrap() }
    };
    let mut held = Vec::new();
    for (rule, side) in [(quarter, 112), (half, 224), (none, 280), (None, 280)] {
        assert!(rule.is_some() || side == 280);
        for _ in 0..2 {
            let loaded = load(rule).await;
            for (loaded, seed) in loaded.iter().zip(1..) {
                let rgb = picture(loaded).0;
                assert_eq!(rgb.len(), side * side * 3);
                assert_eq!(side == 280, rgb == pixels(seed, 280, 280));
            }
            held.push(loaded);
        }
    }
    // Once for each rule, then from the cache.
    assert_eq!(origin.requests("/1/280/280"), 4);
    // Equal pixels are kept once, and others apart.
    let slots: Vec<[usize; 2]> = held.iter().map(|load| [picture(&load[0]).1, picture(&load[1]).1]).collect();
    assert_eq!(slots[4], slots[7]);
    assert_eq!(slots[0], slots[1]);
    assert!(slots[0] != slots[2] && slots[2] != slots[4]);
    drop(held);
    at_rest(&loader).await;
}
