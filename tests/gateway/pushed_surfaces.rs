//! Pixels are pushed on every surface whose worker understands references, over real NIXL.

use serde_json::{Value, json};

use super::support::{
    gateway::Gateway,
    pictures::{self, data_uri},
    standin::{Sight, Standin, sights_in},
};

/// What the worker saw, by the surface's kind of answer.
fn seen(answer: &Value) -> Vec<Sight> {
    let text = answer["content"][0]["text"].as_str().or(answer["output"][0]["content"][0]["text"].as_str());
    sights_in(text.unwrap_or_else(|| panic!("no text in {answer}")))
}

#[tokio::test]
async fn a_worker_that_keeps_responses_gets_pixels_that_it_can_keep() {
    let Some(worker) = Standin::start(&["--keeps-responses"]).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let (file, pixels) = pictures::png(1, 40, 30);
    let image = json!({"type": "input_image", "image_url": data_uri("image/png", &file), "detail": "auto"});
    let ask = async |store: Value| {
        let (status, answer) = gateway
            .post("/v1/responses", json!({"input": [{"role": "user", "content": [image]}], "store": store}))
            .await;
        assert_eq!(status, 200, "{answer}");
        let sight = seen(&answer).remove(0);
        assert_eq!(sight.pixels, pixels);
        sight.transfer
    };
    for store in [Value::Null, json!(true), json!("false")] {
        assert_eq!(ask(store.clone()).await, "original", "{store}");
    }
    // What it was shown is in its cache, and may be named where nothing is kept.
    assert_eq!(ask(json!(false)).await, "uuid");
}

#[tokio::test]
async fn pixels_are_pushed_to_responses_and_messages_and_known_ones_are_named_where_a_uuid_has_a_place() {
    let Some(worker) = Standin::start(&[]).await else { return };
    let gateway = Gateway::pushing(&worker, &[]).await;
    let (file, pixels) = pictures::png(1, 40, 30);
    let uri = data_uri("image/png", &file);
    let input = json!({"type": "input_image", "image_url": uri, "detail": "auto"});
    let responses = json!({"input": [
        {"role": "user", "content": [input]},
        {"type": "function_call_output", "call_id": "c", "output": [input]},
    ]});
    let data = base64_simd::STANDARD.encode_to_string(&file);
    let block = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    let tool = json!({"type": "tool_result", "tool_use_id": "t", "content": [block]});
    let messages = json!({"max_tokens": 1, "messages": [{"role": "user", "content": [block, tool]}]});
    for (path, body, transfer) in [
        ("/v1/responses", &responses, "push"),
        ("/v1/responses", &responses, "uuid"),
        ("/v1/messages", &messages, "push"),
        ("/v1/messages", &messages, "push"),
    ] {
        let (status, answer) = gateway.post(path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        assert_eq!(seen(&answer), vec![Sight { pixels: pixels.clone(), transfer: transfer.into() }; 2], "{path}");
    }
    assert_eq!(gateway.metric("mediagate_pushed_bytes_total", "").await, f64::from(40 * 30 * 3 * 3));
}
