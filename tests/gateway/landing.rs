//! Pushes over real NIXL into the stand-in worker, and what happens when they cannot be.

use serde_json::{Value, json};

use super::support::{
    bodies, eventually,
    gateway::{self, Gateway},
    pictures::{self, Pixels, data_uri},
    soon,
    standin::{Sight, Standin, sights},
};

/// A worker that keeps no processed images: what it says is what it saw this time, and every picture is pushed.
const FORGETFUL: &[&str] = &["--cache-bytes", "0"];

/// A picture as a data: URI, and its pixels.
fn picture(seed: u32, width: u32, height: u32) -> (String, Pixels) {
    let (file, pixels) = pictures::png(seed, width, height);
    (data_uri("image/png", &file), pixels)
}

async fn see(gateway: &Gateway, uris: &[&str]) -> Vec<Sight> {
    let (status, answer) = gateway.chat(bodies::with_images(uris.iter().copied())).await;
    assert_eq!(status, 200, "{answer}");
    sights(&answer)
}

fn pushed(pixels: &Pixels) -> Sight {
    Sight { pixels: pixels.clone(), transfer: "push".into() }
}

fn inline(pixels: &Pixels) -> Sight {
    Sight { pixels: pixels.clone(), transfer: "original".into() }
}

/// Every place on every worker is the gateway's again.
async fn all_slots_come_back(gateway: &Gateway) {
    eventually("all slots to come back", || async { gateway.metric("mediagate_landing_open", "").await == 0.0 }).await;
}

#[tokio::test]
async fn each_picture_is_pushed_and_seen_as_inspect_sees_it() {
    let Some(worker) = Standin::start(FORGETFUL).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    for name in ["baseline_420.jpg", "exif_6.jpg", "rgba.png", "lossy.webp"] {
        let path = format!("{}/tests/data/images/{name}", env!("CARGO_MANIFEST_DIR"));
        let inspected = gateway::command().args(["inspect", "--json", &path]).output().unwrap();
        let inspected: Value = serde_json::from_slice(&inspected.stdout).unwrap();
        let uri = data_uri("image/png", &pictures::file(name));
        let seen = see(&gateway, &[&uri]).await;
        assert_eq!((seen.len(), seen[0].transfer.as_str()), (1, "push"), "{name}");
        assert_eq!(inspected["rgb_sha256"], seen[0].pixels.rgb_sha256, "{name}");
        assert_eq!(inspected["height"], seen[0].pixels.height, "{name}");
    }
    assert_eq!(gateway.metric("mediagate_transfers_total", "outcome=\"push\"").await, 4.0);
    all_slots_come_back(&gateway).await;
    let metrics = gateway.metrics().await;
    for name in [
        "mediagate_push_seconds",
        "mediagate_pushed_bytes_total",
        "mediagate_landing_wait_seconds",
        "mediagate_landing_open",
        "mediagate_worker_push_bytes_per_second",
    ] {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "{name} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn large_pictures_go_in_pieces() {
    let Some(worker) = Standin::start(FORGETFUL).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    // Above four mebibytes, not a multiple of anything.
    let (uri, pixels) = picture(1, 1531, 1021);
    assert_eq!(see(&gateway, &[&uri]).await, [pushed(&pixels)]);
    all_slots_come_back(&gateway).await;
}

#[tokio::test]
async fn one_picture_named_twice_is_one_push_with_two_uses() {
    let Some(worker) = Standin::start(FORGETFUL).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let ((one, one_pixels), (two, two_pixels)) = (picture(1, 40, 30), picture(2, 30, 40));
    let before = gateway.metric("mediagate_pushed_bytes_total", "").await;
    let seen = see(&gateway, &[&one, &two, &one]).await;
    assert_eq!(seen, [pushed(&one_pixels), pushed(&two_pixels), pushed(&one_pixels)]);
    let bytes = gateway.metric("mediagate_pushed_bytes_total", "").await - before;
    assert_eq!(bytes, f64::from(2 * 40 * 30 * 3), "two pushes");
    all_slots_come_back(&gateway).await;
}

#[tokio::test]
async fn streamed_answers_come_through() {
    let Some(worker) = Standin::start(FORGETFUL).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let (uri, pixels) = picture(1, 40, 30);
    let mut body: Value = serde_json::from_str(&bodies::with_images([uri.as_str()])).unwrap();
    body["stream"] = true.into();
    let response = gateway.request(body.to_string()).send().await.unwrap();
    let text = String::from_utf8(soon("a stream", response.bytes()).await.unwrap().to_vec()).unwrap();
    let events: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let deltas = events[..events.len() - 1].iter().map(|event| serde_json::from_str::<Value>(event).unwrap());
    let content: String =
        deltas.map(|delta| delta["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()).collect();
    assert!(content.contains(&pixels.rgb_sha256) && content.contains("\"push\""), "{content}");
    all_slots_come_back(&gateway).await;
}

#[tokio::test]
async fn many_at_once_each_see_their_own_picture() {
    let Some(worker) = Standin::start(FORGETFUL).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let pictures: Vec<_> = (0..64).map(|seed| picture(seed, 100 + seed, 200 - seed)).collect();
    let requests = pictures.iter().map(|(uri, pixels)| {
        let gateway = &gateway;
        async move { assert_eq!(see(gateway, &[uri]).await[0].pixels, *pixels) }
    });
    futures_util::future::join_all(requests).await;
    assert!(gateway.metric("mediagate_transfers_total", "outcome=\"push\"").await > 0.0);
    all_slots_come_back(&gateway).await;
}

#[tokio::test]
async fn where_landing_memory_is_scarce_pictures_wait_or_go_inline_and_none_is_lost() {
    let Some(worker) =
        Standin::start(&["--cache-bytes", "0", "--landing-bytes", "1048576", "--grant-bytes", "1048576"]).await
    else {
        return;
    };
    let gateway = Gateway::pushing(&worker, &[]).await;
    // Each takes over a third of the memory.
    let pictures: Vec<_> = (0..24).map(|seed| picture(seed, 400 + seed, 300)).collect();
    let requests = pictures.chunks(2).map(|pair| {
        let gateway = &gateway;
        async move {
            let seen = see(gateway, &[&pair[0].0, &pair[1].0]).await;
            let pixels: Vec<_> = seen.into_iter().map(|sight| sight.pixels).collect();
            assert_eq!(pixels, [pair[0].1.clone(), pair[1].1.clone()]);
        }
    });
    futures_util::future::join_all(requests).await;
    // And what never fits.
    let (uri, pixels) = picture(99, 700, 600);
    assert_eq!(see(&gateway, &[&uri]).await, [inline(&pixels)]);
    all_slots_come_back(&gateway).await;
    let (uri, pixels) = picture(100, 400, 300);
    assert_eq!(see(&gateway, &[&uri]).await, [pushed(&pixels)], "the memory is as good as new");
}

#[tokio::test]
async fn a_worker_that_was_killed_is_pushed_to_again_when_it_is_back() {
    let Some(mut worker) = Standin::start(FORGETFUL).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let (uri, pixels) = picture(1, 300, 300);
    assert_eq!(see(&gateway, &[&uri]).await, [pushed(&pixels)]);
    worker.kill();
    let (status, answer) = gateway.chat(bodies::with_images([uri.as_str()])).await;
    assert!([502, 503].contains(&status), "{status}: {answer}");
    worker.restart().await;
    // From the first answer on, the pixels are right; and before long they are pushed.
    eventually("pushes again", || async {
        let (status, answer) = gateway.chat(bodies::with_images([uri.as_str()])).await;
        if status != 200 {
            assert!([502, 503].contains(&status), "{status}: {answer}");
            return false;
        }
        let seen = sights(&answer);
        assert_eq!(seen[0].pixels, pixels);
        seen[0].transfer == "push"
    })
    .await;
    all_slots_come_back(&gateway).await;
}

#[tokio::test]
async fn a_worker_that_is_killed_under_load_harms_only_the_requests_on_it() {
    // With a cache, so that some pictures go by uuid alone to a worker that has just forgotten them.
    let Some(mut worker) = Standin::start(&[]).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let (killed, _) = tokio::sync::watch::channel(false);
    let clients = (0..8_u32).map(|client| {
        let (gateway, mut killed) = (&gateway, killed.subscribe());
        async move {
            let (mut good_since, mut broken) = (0, 0);
            for round in 0.. {
                // Each picture three times.
                let (uri, pixels) = picture(client * 1000 + round / 3, 300, 200 + client);
                let request = gateway.request(bodies::with_images([uri.as_str()]));
                let Some((status, answer)) = gateway::answer_unless_broken(request).await else {
                    broken += 1;
                    assert_eq!(broken, 1, "only the answer that was on its way when the worker died");
                    continue;
                };
                if status != 200 {
                    assert!([502, 503].contains(&status), "{status}: {answer}");
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                    continue;
                }
                let seen = &sights(&answer)[0];
                assert_eq!(seen.pixels, pixels);
                if *killed.borrow_and_update() && seen.transfer != "original" {
                    good_since += 1;
                }
                if good_since == 6 {
                    return;
                }
            }
        }
    });
    let crash = async {
        eventually("some pushes", || async {
            gateway.metric("mediagate_transfers_total", "outcome=\"push\"").await > 20.0
        })
        .await;
        worker.restart().await;
        killed.send(true).unwrap();
    };
    soon("everybody to be served as before", async { tokio::join!(futures_util::future::join_all(clients), crash) })
        .await;
    all_slots_come_back(&gateway).await;
}

#[tokio::test]
async fn a_gateway_whose_arena_is_full_of_pictures_attaches_all_the_same() {
    let Some(mut worker) = Standin::start(FORGETFUL).await else { return };
    let gateway = Gateway::pushing(&worker, &["--arena-bytes", "2MiB", "--media-max-pixels", "100000"]).await;
    for seed in 0..12 {
        let (uri, pixels) = picture(seed, 300, 300);
        assert_eq!(see(&gateway, &[&uri]).await, [pushed(&pixels)]);
    }
    worker.restart().await;
    gateway.log.wait_for_another(" attached ", 1).await;
    let (uri, pixels) = picture(11, 300, 300);
    assert_eq!(see(&gateway, &[&uri]).await, [pushed(&pixels)]);
}

#[tokio::test]
async fn a_picture_that_the_worker_holds_goes_by_uuid_alone() {
    let Some(worker) = Standin::start(&[]).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let ((one, one_pixels), (two, two_pixels)) = (picture(1, 40, 30), picture(2, 30, 40));
    let known = |pixels: &Pixels| Sight { pixels: pixels.clone(), transfer: "uuid".into() };
    assert_eq!(see(&gateway, &[&one]).await, [pushed(&one_pixels)]);
    assert_eq!(see(&gateway, &[&one]).await, [known(&one_pixels)]);
    let seen = see(&gateway, &[&one, &two, &one]).await;
    assert_eq!(seen, [known(&one_pixels), pushed(&two_pixels), known(&one_pixels)]);
    all_slots_come_back(&gateway).await;
}

#[tokio::test]
async fn what_the_worker_has_forgotten_is_sent_again_unseen_by_the_client() {
    let Some(worker) = Standin::start(&["--cache-items", "1"]).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let pictures = [picture(1, 40, 30), picture(2, 30, 40)];
    for (uri, pixels) in pictures.iter().cycle().take(30) {
        assert_eq!(see(&gateway, &[uri]).await[0].pixels, *pixels);
    }
    // A belief that is mostly wrong is given up.
    let misses = gateway.metric("mediagate_transfers_total", "outcome=\"uuid_miss\"").await;
    assert!((1.0..28.0).contains(&misses), "{misses}");
    all_slots_come_back(&gateway).await;
}

#[tokio::test]
async fn a_gateway_that_comes_anew_attaches_anew() {
    let Some(worker) =
        Standin::start(&["--cache-bytes", "0", "--landing-bytes", "2097152", "--grant-bytes", "1048576"]).await
    else {
        return;
    };
    let (uri, pixels) = picture(1, 300, 300);
    let first = Gateway::pushing(&worker, &[]).await;
    assert_eq!(see(&first, &[&uri]).await, [pushed(&pixels)]);
    // Crashes: its grant is not given back.
    drop(first);
    let second = Gateway::pushing(&worker, &[]).await;
    assert_eq!(see(&second, &[&uri]).await, [pushed(&pixels)]);
    // Leaves in order: its grant is free at once, or there would be no memory for the next.
    second.signal(libc::SIGTERM);
    assert_eq!(second.ended().await.0.code(), Some(0));
    let third = Gateway::with_nixl(&worker, &[]).await;
    assert_eq!(see(&third, &[&uri]).await[0].pixels, pixels);
}

#[tokio::test]
async fn two_gateways_push_to_one_worker_side_by_side() {
    let Some(worker) = Standin::start(FORGETFUL).await else { return };
    let gateways = [Gateway::pushing(&worker, &[]).await, Gateway::pushing(&worker, &[]).await];
    let pictures: Vec<_> = (0..16).map(|seed| picture(seed, 200, 100 + seed)).collect();
    let requests = pictures.iter().zip(gateways.iter().cycle()).map(|((uri, pixels), gateway)| async move {
        assert_eq!(see(gateway, &[uri]).await, [pushed(pixels)]);
    });
    futures_util::future::join_all(requests).await;
    for gateway in &gateways {
        all_slots_come_back(gateway).await;
    }
}

#[tokio::test]
async fn with_a_wrong_attach_key_the_same_pixels_go_inline() {
    let (ours, theirs) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(ours.path(), "a secret of sixteen bytes at least").unwrap();
    std::fs::write(theirs.path(), "another secret, just as long as that").unwrap();
    let [ours, theirs] = [&ours, &theirs].map(|file| file.path().to_str().unwrap().to_owned());
    let Some(worker) = Standin::start(&["--cache-bytes", "0", "--attach-key-file", &theirs]).await else { return };
    let (uri, pixels) = picture(1, 40, 30);
    for flags in [&["--attach-key-file", &ours][..], &[]] {
        let gateway = Gateway::with_nixl(&worker, flags).await;
        gateway.log.wait_for("it does not prove that it knows the attach key").await;
        assert_eq!(see(&gateway, &[&uri]).await, [inline(&pixels)]);
        assert_eq!(gateway.log.count("attach key"), 1, "said once");
    }
    let gateway = Gateway::pushing(&worker, &["--attach-key-file", &theirs]).await;
    assert_eq!(see(&gateway, &[&uri]).await, [pushed(&pixels)]);
}

#[tokio::test]
async fn a_worker_without_the_plugin_gets_the_same_pixels_inline() {
    let Some(worker) = Standin::start(&["--no-nixl", "--cache-bytes", "0"]).await else { return };
    let gateway = Gateway::with_nixl(&worker, &[]).await;
    gateway.log.wait_for("no mediagate plugin").await;
    let (uri, pixels) = picture(1, 40, 30);
    assert_eq!(see(&gateway, &[&uri]).await, [inline(&pixels)]);
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_slots_back() {
    let Some(worker) = Standin::start(FORGETFUL).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    for seed in 0..10 {
        let (uri, _) = picture(seed, 600, 400);
        let mut client = gateway.raw().await;
        client.post("/v1/chat/completions", "", &bodies::with_images([uri.as_str()])).await;
        // At another moment of the request each time.
        for _ in 0..seed * 50 {
            tokio::task::yield_now().await;
        }
        drop(client);
    }
    all_slots_come_back(&gateway).await;
    let (uri, pixels) = picture(1, 40, 30);
    assert_eq!(see(&gateway, &[&uri]).await, [pushed(&pixels)]);
}

#[tokio::test]
async fn a_request_that_the_worker_refuses_gives_its_slots_back() {
    let Some(worker) = Standin::start(FORGETFUL).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let (uri, _) = picture(1, 40, 30);
    let mut body: Value = serde_json::from_str(&bodies::with_images([uri.as_str()])).unwrap();
    body["model"] = json!("of somebody else");
    let (status, answer) = gateway.chat(body.to_string()).await;
    assert_eq!(status, 404, "{answer}");
    all_slots_come_back(&gateway).await;
}

#[tokio::test]
async fn a_worker_that_dies_for_a_moment_is_looked_after_without_an_operator() {
    let Some(mut worker) = Standin::start(&["--cache-bytes", "0", "--lease-seconds", "1"]).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    for life in 1..3 {
        worker.restart().await;
        // Nobody sends anything: the lease tells.
        gateway.log.wait_for_another(" attached ", life).await;
    }
    // A gateway that gets no processor for a second loses the lease once more, and heals again.
    let (uri, pixels) = picture(1, 40, 30);
    eventually("a picture to be pushed", || async {
        let seen = see(&gateway, &[&uri]).await;
        assert_eq!(seen[0].pixels, pixels);
        seen == [pushed(&pixels)]
    })
    .await;
}
