//! Images go to workers in the size that the model will see, where all workers make the same of them.

use mediagate::media::{
    decode::{DecodeLimits, Probe, probe},
    resize::{Scratch, SmartResize, decode_resized},
};
use serde_json::{Value, json};

use super::support::{
    bodies, eventually,
    gateway::{self, Gateway},
    pictures::{self, Pixels, data_uri, sha256},
    standin::{Sight, Standin, sights},
    worker::{FakeWorker, ok_json},
};

/// A processor that tests cover, with few pixels.
fn processor() -> Value {
    json!({
        "class": "Qwen2VLImageProcessor",
        "size": {"shortest_edge": 3136, "longest_edge": 50176},
        "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "resample": 3, "do_resize": true,
        "call": {}, "device": "cpu", "machine": "x86_64",
        "versions": {"transformers": "5.19.0", "torch": "2.13.0", "torchvision": "0.28.0"},
    })
}

async fn standin(processor: &Value) -> Option<Standin> {
    Standin::start(&["--image-processor", &processor.to_string()]).await
}

/// What the processor's own resize would make of a file.
fn resized(file: &[u8]) -> Pixels {
    let rule = SmartResize::new(28, 3136, 50176).unwrap();
    let Ok(Probe::Decodable(header)) = probe(file, &DecodeLimits::default()) else { panic!("not decodable") };
    let target = rule.target(header.size()).expect("it is to be shrunk");
    let mut rgb = vec![0; target.rgb_bytes()];
    decode_resized(file, &header, target, &mut rgb, &mut Scratch::default()).unwrap();
    Pixels { height: target.height, width: target.width, rgb_sha256: sha256(&rgb) }
}

async fn seen(gateway: &Gateway, body: impl Into<String>) -> Vec<Sight> {
    let (status, answer) = gateway::answer(gateway.request(body.into())).await;
    assert_eq!(status, 200, "{answer}");
    sights(&answer)
}

#[tokio::test]
async fn a_worker_sees_what_its_processor_would_have_made_of_the_image() {
    let Some(worker) = standin(&processor()).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let (file, full) = pictures::png(1, 400, 300);
    let uri = data_uri("image/png", &file);
    let expected = resized(&file);
    assert!(expected.height < full.height && expected.width < full.width);

    let first = seen(&gateway, bodies::with_images([uri.as_str()])).await;
    assert_eq!(first, [Sight { pixels: expected.clone(), transfer: "push".into() }]);
    let again = seen(&gateway, bodies::with_images([uri.as_str()])).await;
    assert_eq!(again, [Sight { pixels: expected.clone(), transfer: "uuid".into() }]);
    assert_eq!(gateway.metric("mediagate_resized_images_total", "").await, 1.0);
    let saved = full.height * full.width * 3 - expected.height * expected.width * 3;
    assert_eq!(gateway.metric("mediagate_resize_saved_bytes_total", "").await, f64::from(saved));

    // The processor would enlarge it: it does that itself.
    let (small, pixels) = pictures::png(2, 40, 30);
    let seen_small = seen(&gateway, bodies::with_images([data_uri("image/png", &small).as_str()])).await;
    assert_eq!(seen_small[0].pixels, pixels);

    // Told to work otherwise, the processor may want more pixels than that.
    let mut asked: Value = serde_json::from_str(&bodies::with_images([uri.as_str()])).unwrap();
    asked["mm_processor_kwargs"] = json!({"max_pixels": 12845056});
    assert_eq!(seen(&gateway, asked.to_string()).await[0].pixels, full);
}

#[tokio::test]
async fn in_any_doubt_images_go_as_they_are() {
    let (file, full) = pictures::png(3, 400, 300);
    let body = || bodies::with_images([data_uri("image/png", &file).as_str()]);
    let Some(worker) = standin(&processor()).await else { return };
    let off = Gateway::pushing(&worker, &["--resize", "off"]).await;
    assert_eq!(seen(&off, body()).await[0].pixels, full);

    // One whose versions no test covers, alone and beside another.
    let mut untested = processor();
    untested["versions"]["torchvision"] = json!("0.99.0");
    let Some(other) = standin(&untested).await else { return };
    let alone = Gateway::pushing(&other, &[]).await;
    assert_eq!(seen(&alone, body()).await[0].pixels, full);
    alone.log.wait_for("0.99.0").await;
    let both = Gateway::pushing(&worker, &["--worker", &other.url()]).await;
    both.log.wait_for("0.99.0").await;
    assert_eq!(seen(&both, body()).await[0].pixels, full);
}

#[tokio::test]
async fn a_worker_that_was_out_of_reach_and_is_the_same_is_sent_what_it_was_sent_before() {
    let Some(lander) = standin(&processor()).await else { return };
    let worker = FakeWorker::landing_at(lander.address).await;
    let gateway = Gateway::with_nixl_at(&worker.url(), &[]).await;
    gateway.log.wait_for(" attached ").await;
    let uri = data_uri("image/png", &pictures::png(4, 400, 300).0);
    let is_resized = || async {
        let request = gateway.request(bodies::with_images([uri.as_str()])).header("x-mediagate-debug", "1");
        let asked = tokio::spawn(request.send());
        worker.next().await.answer(ok_json("{}")).await;
        asked.await.unwrap().unwrap().headers()["x-mediagate-route"].to_str().unwrap().contains("resize=auto")
    };
    assert!(is_resized().await);
    worker.set_health("503 Service Unavailable");
    gateway.log.wait_for_another("worker health changed", 1).await;
    worker.set_health("200 OK");
    gateway.log.wait_for_another("worker health changed", 2).await;
    eventually("images in the size that the model will see", is_resized).await;
    assert_eq!(gateway.log.count(" attached "), 1);
}
