//! Processes that stand still, and workers that are full: nobody waits for them longer than must be.

use super::support::{
    bodies, eventually,
    gateway::{self, Gateway},
    pictures::{self, Pixels, data_uri},
    signal, soon,
    standin::{Sight, Standin, sights},
    worker::{self, FakeWorker},
};

const TCP: &[(&str, &str)] = &[("UCX_TLS", "tcp,self")];

fn picture(seed: u32, width: u32, height: u32) -> (String, Pixels) {
    let (file, pixels) = pictures::png(seed, width, height);
    (data_uri("image/png", &file), pixels)
}

/// Sends a picture, which must be seen as it is.
async fn send(gateway: &Gateway, (uri, pixels): &(String, Pixels)) -> Sight {
    let (status, answer) = gateway.chat(bodies::with_images([uri.as_str()])).await;
    assert_eq!(status, 200, "{answer}");
    let seen = sights(&answer).remove(0);
    assert_eq!(seen.pixels, *pixels);
    seen
}

#[tokio::test]
async fn a_worker_that_hangs_pins_a_part_of_the_arena_and_the_others_get_on() {
    // Its lease outlasts that it stands still.
    let flags = &["--cache-bytes", "0", "--lease-seconds", "120"];
    let (Some(stuck), Some(other)) = (Standin::start(flags).await, Standin::start(flags).await) else { return };
    // All of the arena is for pictures like these. Until the first push is given up there is time for more of them than one
    // worker may pin.
    let flags = ["--worker", &other.url(), "--push-timeout-ms", "5000", "--media-max-pixels", "300000"];
    // Over TCP a WRITE needs the other side's help, and does not end while that stands still.
    let gateway = Gateway::with_nixl_and(&stuck.url(), &flags, TCP).await;
    gateway.log.wait_for_another(" attached ", 1).await;
    let lander = stuck.lander();
    signal(lander, libc::SIGSTOP);
    // In all more than the arena holds, of 32 MiB, of which one worker may pin four.
    let pictures: Vec<_> = (0..60).map(|seed| picture(seed, 600, 400)).collect();
    let watch = async {
        let mut most: f64 = 0.0;
        loop {
            let label = format!("worker=\"{}\"", stuck.address);
            most = most.max(gateway.metric("mediagate_landing_pinned_bytes", &label).await);
            assert!(most <= 4_400_000.0, "an eighth of the arena: {most}");
            if most > 0.0 && gateway.metric("mediagate_transfers_total", "outcome=\"no_room\"").await > 0.0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let requests = futures_util::future::join_all(pictures.iter().map(|picture| send(&gateway, picture)));
    soon("all answers", async { tokio::join!(requests, watch) }).await;
    signal(lander, libc::SIGCONT);
    eventually("all sources to be free", || async {
        gateway.metric("mediagate_landing_pinned_bytes", "").await == 0.0
            && gateway.metric("mediagate_landing_open", "").await == 0.0
    })
    .await;
    // And it is pushed to again.
    eventually("pushes to both", || async {
        let before = gateway.metric("mediagate_transfers_total", "outcome=\"push\"").await;
        for picture in &pictures[..10] {
            send(&gateway, picture).await;
        }
        gateway.metric("mediagate_transfers_total", "outcome=\"push\"").await - before == 10.0
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_takes_requests_and_lets_nothing_land_is_pushed_to_no_more_until_pushes_land_again() {
    let Some(lander) = Standin::start(&["--cache-bytes", "0"]).await else { return };
    let worker = FakeWorker::landing_at(lander.address).await;
    let gateway = Gateway::with_nixl_at(&worker.url(), &[]).await;
    gateway.log.wait_for(" attached ").await;
    let ask = |seed| {
        let uri = picture(seed, 40, 30).0;
        tokio::spawn(gateway::answer(gateway.request(bodies::with_images([uri.as_str()]))))
    };
    let is_pushed =
        |exchange: &worker::Exchange| String::from_utf8_lossy(&exchange.request.bytes).contains("mediagate://");
    let late = worker::json("503 Service Unavailable", r#"{"error":{"message":"mediagate late: x"}}"#);
    let circuit = "mediagate_worker_landing_circuit_open";
    for seed in 0..3 {
        assert_eq!(gateway.metric(circuit, "").await, 0.0);
        let request = ask(seed);
        let exchange = worker.next().await;
        assert!(is_pushed(&exchange), "{seed}");
        exchange.answer(&late).await;
        worker.next().await.answer(worker::ok_json("{}")).await;
        assert_eq!(request.await.unwrap().0, 200);
    }
    gateway.log.wait_for("landing circuit opened").await;
    // Nobody waits for it any more, and it is the gateway that tries it, with no request.
    let request = ask(3);
    let exchange = worker.next().await;
    assert!(!is_pushed(&exchange) || gateway.log.count("landing circuit closed") > 0);
    exchange.answer(worker::ok_json("{}")).await;
    assert_eq!(request.await.unwrap().0, 200);
    gateway.log.wait_for("landing circuit closed").await;
    assert_eq!(gateway.metric("mediagate_landing_circuit_opened_total", "").await, 1.0);
    assert_eq!(gateway.metric("mediagate_circuit_opened_total", "").await, 0.0, "its answers are as good as ever");
    let request = ask(4);
    let exchange = worker.next().await;
    assert!(is_pushed(&exchange));
    exchange.answer(worker::ok_json("{}")).await;
    assert_eq!(request.await.unwrap().0, 200);
    eventually("all slots to come back", || async { gateway.metric("mediagate_landing_open", "").await == 0.0 }).await;
}

#[tokio::test]
async fn what_waits_for_a_worker_that_stands_still_is_answered_by_another_and_it_is_taken_back_when_it_goes_on() {
    let flags = &["--cache-bytes", "0"];
    let (Some(still), Some(other)) = (Standin::start(flags).await, Standin::start(flags).await) else { return };
    let gateway = Gateway::with_nixl_and(
        &still.url(),
        &["--worker", &other.url(), "--circuit-failures", "1", "--media-max-pixels", "300000"],
        &[],
    )
    .await;
    gateway.log.wait_for_another(" attached ", 1).await;
    for pid in [still.pid(), still.lander()] {
        signal(pid, libc::SIGSTOP);
    }
    // Some of them wait for it, and keep their pictures; together they are more than the arena holds.
    let pictures: Vec<_> = (0..40).map(|seed| picture(seed, 600, 400)).collect();
    soon("all answers", futures_util::future::join_all(pictures.iter().map(|picture| send(&gateway, picture)))).await;
    gateway.log.wait_for("the worker hangs, its request is withdrawn").await;
    gateway.log.wait_for("circuit opened").await;
    for picture in &pictures {
        send(&gateway, picture).await;
    }
    for pid in [still.pid(), still.lander()] {
        signal(pid, libc::SIGCONT);
    }
    let mut seeds = 100..;
    eventually("pushes to both", || {
        let fresh: Vec<_> = seeds.by_ref().take(10).map(|seed| picture(seed, 300, 200)).collect();
        let gateway = &gateway;
        async move {
            let mut pushed = true;
            for picture in &fresh {
                pushed &= send(gateway, picture).await.transfer == "push";
            }
            pushed
                && gateway.log.count("circuit closed: the worker") > 0
                && gateway.metric("mediagate_worker_circuit_open", "").await == 0.0
                && gateway.metric("mediagate_worker_attached", "").await == 2.0
        }
    })
    .await;
    eventually("all slots to come back", || async { gateway.metric("mediagate_landing_open", "").await == 0.0 }).await;
}

#[tokio::test]
async fn a_request_for_a_worker_without_room_goes_to_one_that_has_room() {
    let small = &["--cache-bytes", "0", "--landing-bytes", "1048576", "--grant-bytes", "1048576"];
    let (Some(lander), Some(roomy)) = (Standin::start(small).await, Standin::start(&["--cache-bytes", "0"]).await)
    else {
        return;
    };
    let full = FakeWorker::landing_at(lander.address).await;
    let gateway = Gateway::with_nixl_at(&full.url(), &["--worker", &roomy.url()]).await;
    gateway.log.wait_for_another(" attached ", 1).await;
    // Each takes most of the small worker's memory. The first that goes there stays.
    let ask = |(uri, _): &(String, Pixels)| {
        tokio::spawn(gateway::answer(gateway.request(bodies::with_images([uri.as_str()]))))
    };
    let mut seeds = 0..;
    let (held, waiting) = loop {
        let mut request = ask(&picture(seeds.next().unwrap(), 600, 400));
        tokio::select! {
            exchange = full.next() => break (exchange, request),
            answer = &mut request => assert_eq!(answer.unwrap().0, 200),
        }
    };
    for seed in seeds.take(20) {
        assert_eq!(send(&gateway, &picture(seed, 600, 400)).await.transfer, "push");
    }
    assert!(gateway.metric("mediagate_transfers_total", "outcome=\"no_room\"").await > 0.0);
    held.answer(worker::ok_json("{}")).await;
    assert_eq!(waiting.await.unwrap().0, 200);
}

#[tokio::test]
async fn a_gateway_that_wakes_after_its_memory_was_granted_to_another_harms_nobody() {
    let flags = &["--cache-bytes", "0", "--landing-bytes", "1048576", "--grant-bytes", "1048576"];
    let times = &["--lease-seconds", "1", "--grace-seconds", "0"];
    let Some(worker) = Standin::start(&[&flags[..], times].concat()).await else { return };
    let sleeper = Gateway::pushing(&worker, &["--health-interval-ms", "100"]).await;
    let pictures: Vec<_> = (0..40).map(|seed| picture(seed, 200, 150)).collect();
    // It falls asleep in the midst of work.
    let dreaming = futures_util::future::join_all(pictures[..20].iter().map(|(uri, pixels)| {
        let request = sleeper.request(bodies::with_images([uri.as_str()]));
        async move { (gateway::answer(request).await, pixels) }
    }));
    let waking = async {
        let mut looks = 1_u32..;
        eventually("work", || {
            // All of those may have gone inline, if it got no processor for a second and lost its lease.
            let ask = looks.next().is_some_and(|look| look % 100 == 0);
            let (sleeper, picture) = (&sleeper, &pictures[0]);
            async move {
                if ask {
                    send(sleeper, picture).await;
                }
                sleeper.metric("mediagate_pushed_bytes_total", "").await > 0.0
            }
        })
        .await;
        signal(sleeper.pid(), libc::SIGSTOP);
        // There is memory for one, so this one has what was the sleeper's.
        let heir = Gateway::pushing(&worker, &[]).await;
        let work = futures_util::future::join_all(pictures[20..].iter().map(|picture| send(&heir, picture)));
        let wake = async { signal(sleeper.pid(), libc::SIGCONT) };
        tokio::join!(work, wake);
        for picture in &pictures[20..] {
            if send(&heir, picture).await.transfer != "push" {
                // It may have got no processor for a second, and lost its own lease.
                heir.log.wait_for("attachment over").await;
            }
        }
        drop(heir);
    };
    let (answers, ()) = soon("both", async { tokio::join!(dreaming, waking) }).await;
    for ((status, answer), pixels) in answers {
        assert_eq!(status, 200, "{answer}");
        assert_eq!(sights(&answer)[0].pixels, *pixels);
    }
    // The heir is gone without a word; its lease ends, and the sleeper gets memory again.
    eventually("pushes again", || async { send(&sleeper, &pictures[0]).await.transfer == "push" }).await;
}
