//! The request cases that are kept beside the repository, each by its name; where they are not, the tests say so and pass.

use serde_json::Value;

use super::support::{
    gateway::Gateway,
    pictures::{Pixels, read_ppm},
    worker::FakeWorker,
};

fn case(name: &str) -> Option<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/cases/cases.json");
    let Ok(text) = std::fs::read(path) else {
        eprintln!("skipped: no ../shared/cases/cases.json");
        return None;
    };
    let cases: Value = serde_json::from_slice(&text).unwrap();
    let of_this_name = |case: &&Value| case["name"] == name && case["kind"] == "request";
    Some(cases["cases"].as_array().unwrap().iter().find(of_this_name).expect("the case is on the list").clone())
}

/// The body that a case sends.
fn body(case: &Value) -> Vec<u8> {
    let request = &case["request"];
    if let Some(raw) = request.get("_raw") {
        return raw.as_str().unwrap().into();
    }
    if request.get("_note").is_some_and(|note| note == "100 MiB body of base64") {
        let start =
            br#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:image/png;base64,"#;
        return [&start[..], &vec![b'A'; 100 << 20], br#""}]}]}"#].concat();
    }
    request.to_string().into_bytes()
}

/// Sends a case in frontend decoding, and holds the outcome against the list.
async fn check(name: &str) {
    let Some(case) = case(name) else { return };
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    let (status, answer) = gateway.chat(body(&case)).await;
    let expected = &case["expected"];
    let ok = match expected["status"].as_str().unwrap() {
        "ok" | "two_images" => true,
        "client_error" => false,
        "ok_or_client_error" => status == 200,
        // docs: a client's uuid alone is refused.
        "documented" => false,
        other => panic!("{name}: {other} is new"),
    };
    if !ok {
        assert!((400..500).contains(&status), "{name}: {status} {answer}");
        assert!(worker.seen().is_empty(), "{name} reached the worker");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(!message.contains("0x"), "{name}: {message}");
        return;
    }
    assert_eq!(status, 200, "{name}: {answer}");
    let request = worker.only();
    let sent = request.json();
    let messages = sent["messages"].as_array().unwrap();
    let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let seen: Vec<Pixels> = parts.filter_map(|part| part["image_url"]["url"].as_str()).map(read_ppm).collect();
    if let Some(sha) = expected["rgb_sha256"].as_str() {
        assert_eq!(seen[0].rgb_sha256, sha, "{name}");
    }
    if name == "r_two_images_order" {
        assert!(seen.len() == 2 && seen[0] != seen[1], "{name}");
    }
}

macro_rules! cases {
    ($($name:ident)*) => {
        $(#[tokio::test] async fn $name() { check(stringify!($name)).await })*

        /// A case that is added to the list is added here.
        #[test]
        fn every_request_case_has_a_test() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/cases/cases.json");
            let Ok(text) = std::fs::read(path) else { return };
            let cases: Value = serde_json::from_slice(&text).unwrap();
            let cases = cases["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == "request");
            let listed: std::collections::BTreeSet<_> = cases.map(|case| case["name"].as_str().unwrap()).collect();
            assert_eq!(listed, [$(stringify!($name)),*].into());
        }
    };
}

cases! {
    r_ok r_image_first r_missing_url r_null_image_url r_uuid_without_url r_url_number r_url_empty r_detail_bogus
    r_unknown_field r_two_images_order r_one_good_one_bad r_image_in_system r_image_in_assistant_history r_image_in_tool
    r_content_string_with_url r_json_escaped_slash r_invalid_json r_deep_nesting r_body_too_large
    r_error_no_heap_address r_video_url r_image_pil_part r_image_embeds_part
}
