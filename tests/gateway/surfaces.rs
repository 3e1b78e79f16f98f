//! Every surface: its images are loaded wherever it takes them, and its errors are in its dialect.

use serde_json::{Value, json};

use super::support::{
    files::Files,
    gateway::{self, Gateway},
    pictures::{self, Pixels, data_uri, read_ppm},
    raw::RawClient,
    worker::FakeWorker,
};

/// How a surface names an image.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// `image_url` with `url`, and room for a uuid.
    Part,
    /// `image_url` with `url`, no room for a uuid.
    Plain,
    /// A bare string.
    Bare,
    /// Anthropic's `source`.
    Source,
}

/// Each surface with a body that has the image wherever it can stand, and how many times that is.
fn bodies(url: &str) -> Vec<(&'static str, Form, usize, Value)> {
    let part = json!({"type": "image_url", "image_url": {"url": url, "detail": "low"}});
    let with_uuid = json!({"uuid": "client's", "type": "image_url", "image_url": {"url": url}});
    let input = json!({"type": "input_image", "image_url": url, "detail": "auto"});
    let block = json!({"type": "image", "source": {"type": "url", "url": url}});
    let conversation = json!([
        {"role": "system", "content": [part]},
        {"role": "user", "content": [{"type": "text", "text": "x"}, with_uuid]},
        {"role": "assistant", "content": [part]},
        {"role": "tool", "tool_call_id": "c", "content": [part]},
    ]);
    let scored = json!({"content": [part]});
    vec![
        ("/v1/chat/completions", Form::Part, 4, json!({"messages": conversation})),
        ("/v1/chat/completions/batch", Form::Part, 8, json!({"messages": [conversation, conversation]})),
        (
            "/v1/responses",
            Form::Part,
            4,
            json!({"input": [
                {"role": "system", "content": [input]},
                {"role": "user", "content": [input]},
                {"role": "assistant", "content": [input]},
                {"type": "function_call_output", "call_id": "c", "output": [input]},
            ]}),
        ),
        (
            "/v1/messages",
            Form::Source,
            2,
            json!({"messages": [
                {"role": "user", "content": [block]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]},
            ]}),
        ),
        ("/v1/messages/count_tokens", Form::Source, 1, json!({"messages": [{"role": "user", "content": [block]}]})),
        ("/tokenize", Form::Part, 4, json!({"messages": conversation})),
        ("/v1/embeddings", Form::Part, 4, json!({"messages": conversation})),
        ("/v1/embeddings", Form::Part, 8, json!({"input": [conversation, conversation]})),
        ("/v2/embed", Form::Bare, 2, json!({"images": [url, url]})),
        ("/v2/embed", Form::Plain, 1, json!({"inputs": [{"content": [part]}]})),
        ("/pooling", Form::Part, 4, json!({"messages": conversation})),
        ("/classify", Form::Part, 4, json!({"messages": conversation})),
        ("/score", Form::Part, 2, json!({"text_1": scored, "text_2": ["a", scored]})),
        ("/v1/score", Form::Part, 2, json!({"data_1": scored, "data_2": [scored]})),
        ("/score", Form::Part, 2, json!({"queries": [scored], "items": [scored]})),
        ("/rerank", Form::Part, 2, json!({"query": scored, "documents": [scored, "b"]})),
        ("/v1/rerank", Form::Part, 1, json!({"query": "a", "documents": [scored]})),
        ("/v2/rerank", Form::Part, 1, json!({"query": "a", "documents": [scored]})),
    ]
}

/// All images in a body that a worker got: the object around the URL, and the URL.
fn images(value: &Value, found: &mut Vec<(Value, String)>) {
    match value {
        Value::Object(members) => {
            let url = |value: &Value| value["url"].as_str().or(value.as_str()).map(str::to_owned);
            for key in ["image_url", "source"] {
                if let Some(url) = members.get(key).and_then(url) {
                    found.push((value.clone(), url));
                }
            }
            members.values().for_each(|value| images(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| images(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn wherever_a_surface_takes_an_image_the_worker_gets_its_pixels_and_never_the_url() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let gateway = Gateway::fetching(&worker.url(), &files).await;
    let (file, pixels) = pictures::png(1, 9, 7);
    let url = files.put("/a.png", file);
    for (index, (path, form, count, body)) in bodies(&url).into_iter().enumerate() {
        let (status, answer) = gateway.post(path, &body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        let request = worker.seen().swap_remove(index);
        assert_eq!(request.target(), path);
        assert!(!request.holds("http://") && !request.holds("client's"), "{path}: {}", request.text());
        let sent = request.json();
        let mut found = Vec::new();
        if form == Form::Bare {
            found
                .extend(sent["images"].as_array().unwrap().iter().map(|url| (json!({}), url.as_str().unwrap().into())));
        } else {
            images(&sent, &mut found);
        }
        let seen: Vec<Pixels> = found.iter().map(|(_, url)| read_ppm(url)).collect();
        assert_eq!(seen, vec![pixels.clone(); count], "{path}");
        for (part, _) in &found {
            assert_eq!(part["uuid"].is_string(), form == Form::Part, "{path}: {part}");
            if form == Form::Source {
                assert_eq!(part["source"]["type"], "url");
            }
        }
    }
    assert_eq!(files.count("/a.png"), 1, "all of them share the picture");
}

#[tokio::test]
async fn anthropics_base64_is_decoded_as_a_data_uri_of_the_same_picture() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    let (file, pixels) = pictures::png(1, 9, 7);
    let data = base64_simd::STANDARD.encode_to_string(&file);
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let body = json!({"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]});
    assert_eq!(gateway.post("/v1/messages", &body).await.0, 200);
    let mut found = Vec::new();
    images(&worker.only().json(), &mut found);
    assert_eq!(read_ppm(&found[0].1), pixels);
    // A picture that is none is about its source, in Anthropic's words.
    let source = json!({"type": "base64", "media_type": "image/png", "data": "bm8gcGljdHVyZQ=="});
    let body = json!({"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]});
    let (status, answer) = gateway.post("/v1/messages", &body).await;
    assert_eq!(status, 400);
    assert_eq!(answer["type"], "error");
    assert_eq!(answer["error"]["type"], "invalid_request_error");
    assert_eq!(answer["error"]["param"], "messages[0].content[0].source");
    assert!(answer["error"]["code"].is_string() && answer["error"]["message"].is_string(), "{answer}");
}

#[tokio::test]
async fn without_images_bodies_of_every_surface_pass_byte_for_byte() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    let body = "{ \"prompt\":\"http://x\", \"input\" : \"a\",\"tokens\":[1,2 ],\"messages\":[{\"role\":\"user\",\"content\":\"a\"}] , \"unknown\":{\"a\":[1e9]}}";
    let paths = [
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/completions",
        "/tokenize",
        "/detokenize",
        "/v1/embeddings",
        "/v2/embed",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
    ];
    for (index, path) in paths.into_iter().enumerate() {
        assert_eq!(gateway.post(path, body).await.0, 200, "{path}");
        let seen = worker.seen().swap_remove(index);
        assert_eq!(seen.start, format!("POST {path} HTTP/1.1"));
        assert_eq!(String::from_utf8(seen.body).unwrap(), body);
    }
}

/// Every route, its methods, and the dialect of its errors.
const ROUTES: [(&str, &str, bool); 24] = [
    ("/v1/chat/completions", "POST", false),
    ("/v1/chat/completions/batch", "POST", false),
    ("/v1/responses", "POST", false),
    ("/v1/responses/resp_1", "GET,HEAD", false),
    ("/v1/responses/resp_1/cancel", "POST", false),
    ("/v1/messages", "POST", true),
    ("/v1/messages/count_tokens", "POST", true),
    ("/v1/completions", "POST", false),
    ("/tokenize", "POST", false),
    ("/detokenize", "POST", false),
    ("/v1/embeddings", "POST", false),
    ("/v2/embed", "POST", false),
    ("/pooling", "POST", false),
    ("/classify", "POST", false),
    ("/score", "POST", false),
    ("/v1/score", "POST", false),
    ("/rerank", "POST", false),
    ("/v1/rerank", "POST", false),
    ("/v2/rerank", "POST", false),
    ("/v1/audio/transcriptions", "POST", false),
    ("/v1/audio/translations", "POST", false),
    ("/v1/models", "GET,HEAD", false),
    ("/health", "GET,HEAD", false),
    ("/ready", "GET,HEAD", false),
];

#[tokio::test]
async fn every_route_takes_its_methods_and_no_other_and_says_so_in_its_dialect() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for (path, allowed, anthropic) in ROUTES {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
            if allowed.split(',').any(|allowed| allowed == method) {
                continue;
            }
            let mut client = RawClient::connect(gateway.public).await;
            client.send(format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")).await;
            let answer = client.answer().await;
            assert_eq!(answer.status(), 405, "{method} {path}");
            assert_eq!(answer.header("allow"), Some(allowed), "{method} {path}");
            let answer = answer.json();
            assert_eq!(answer["error"]["code"], "method_not_allowed");
            assert_eq!(answer["type"] == "error", anthropic, "{path}: {answer}");
        }
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn errors_are_in_the_dialect_of_whoever_asks() {
    let gateway = Gateway::passthrough(&FakeWorker::start().await.url(), &[]).await;
    for (path, body, status, code, kind) in [
        ("/v1/messages", "{", 400, "invalid_json", "invalid_request_error"),
        ("/v1/messages/count_tokens", "[]", 400, "invalid_json", "invalid_request_error"),
        ("/v1/messages/batches", "{}", 404, "not_found", "not_found_error"),
        ("/v1/responses", "{", 400, "invalid_json", "invalid_request_error"),
        ("/v1/embeddings", "{", 400, "invalid_json", "invalid_request_error"),
        ("/v1/images", "{}", 404, "not_found", "not_found_error"),
    ] {
        let (answered, answer) = gateway.post(path, body).await;
        assert_eq!(answered, status, "{path}");
        assert_eq!((&answer["error"]["code"], &answer["error"]["type"]), (&json!(code), &json!(kind)), "{path}");
        assert_eq!(answer["type"] == "error", path.starts_with("/v1/messages"), "{answer}");
    }
}

#[tokio::test]
async fn no_client_says_where_workers_fetch_kv_blocks_from() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"] {
        let body = json!({"prompt": "a", "kv_transfer_params": {"remote_host": "10.0.0.1", "remote_port": 1}});
        let (status, answer) = gateway.post(path, &body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("transfer_params_forbidden")), "{path}");
        assert_eq!(answer["error"]["param"], "kv_transfer_params");
    }
    assert!(worker.seen().is_empty());
}

fn video(url: &str) -> Value {
    json!({"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": url}}]}]})
}

#[tokio::test]
async fn other_media_are_refused_unless_they_may_pass() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let url = files.put("/a.mp4", "bytes of a video");
    let gateway = Gateway::fetching(&worker.url(), &files).await;
    let audio = json!({"messages": [{"role": "user", "content": [
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}]}]});
    for body in [video(&url), video("data:video/mp4;base64,QUJD"), audio.clone()] {
        let (status, answer) = gateway.post("/v1/chat/completions", &body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("unsupported_media")), "{answer}");
        assert_eq!(answer["error"]["param"], "messages[0].content[0]");
    }
    assert!(worker.seen().is_empty());
    assert_eq!(files.count("/a.mp4"), 0);

    let allowed = files.allowed();
    let flags = [&["--pass-other-media"], &allowed.each_ref().map(String::as_str)[..]].concat();
    let gateway = Gateway::decoding(&worker.url(), &flags).await;
    assert_eq!(gateway.post("/v1/chat/completions", &video(&url)).await.0, 200);
    let data = data_uri("video/mp4", b"bytes of a video");
    assert_eq!(worker.seen()[0].json(), video(&data), "fetched here, by the same rules");
    for body in [video("data:video/mp4;base64,QUJD"), audio] {
        assert_eq!(gateway.post("/v1/chat/completions", &body).await.0, 200);
        assert_eq!(worker.seen().pop().unwrap().json(), body);
    }
    for (url, code) in
        [("http://169.254.169.254/x", "media_ip_literal_not_allowed"), ("file:///etc/passwd", "unsupported_scheme")]
    {
        let (status, answer) = gateway.post("/v1/chat/completions", &video(url)).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(code)), "{answer}");
        assert_eq!(answer["error"]["param"], "messages[0].content[0]");
    }
    // Embeddings are tensors that a worker trusts.
    let body = json!({"messages": [{"role": "user", "content": [{"type": "image_embeds", "image_embeds": "QUJD"}]}]});
    assert_eq!(gateway.post("/v1/chat/completions", &body).await.1["error"]["code"], "unsupported_media");
    assert_eq!(worker.seen().len(), 3);
}

#[tokio::test]
async fn in_passthrough_urls_of_other_media_are_judged_and_the_rest_passes() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    for url in ["http://127.0.0.1:9/a.mp4", "http://169.254.169.254/latest", "file:///etc/passwd"] {
        let (status, answer) = gateway.post("/v1/chat/completions", &video(url)).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("messages[0].content[0]")), "{url}: {answer}");
        let source = json!({"type": "url", "url": url});
        let body = json!({"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]});
        let (status, answer) = gateway.post("/v1/messages", &body).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("messages[0].content[0].source")), "{url}");
    }
    assert!(worker.seen().is_empty());
    let body = video("data:video/mp4;base64,QUJD");
    assert_eq!(gateway.post("/v1/chat/completions", &body).await.0, 200);
    assert_eq!(worker.only().json(), body);
}

#[tokio::test]
async fn what_a_workers_plugin_may_fetch_is_refused_where_no_url_may_pass() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    let (status, answer) = gateway.post("/pooling", &json!({"data": {"url": "http://x"}})).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("unsupported_media")));
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn a_request_goes_to_a_worker_that_serves_its_model() {
    let workers = [FakeWorker::start().await, FakeWorker::start().await];
    workers[0].set_models(&["one", "both"]);
    workers[1].set_models(&["two", "both"]);
    let gateway = Gateway::passthrough(&workers[0].url(), &["--worker", &workers[1].url()]).await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    let ask = async |path, model: &str| gateway.post(path, &json!({"model": model, "messages": []})).await;
    // Until the lists are there, any may serve it.
    super::support::eventually("lists", || async { ask("/v1/chat/completions", "three").await.0 == 404 }).await;
    let counts = || workers.each_ref().map(|worker| worker.seen().len());
    let before = counts();
    for _ in 0..8 {
        assert_eq!(ask("/v1/chat/completions", "one").await.0, 200);
        assert_eq!(ask("/v1/messages", "two").await.0, 200);
    }
    assert_eq!(counts(), before.map(|count| count + 8));
    assert!(workers[0].seen().iter().all(|seen| seen.target() == "/v1/chat/completions"));
    assert_eq!(ask("/v1/chat/completions", "both").await.0, 200);

    let (status, answer) = ask("/v1/chat/completions", "three").await;
    let error = json!({"message": "The model `three` does not exist.", "type": "not_found_error", "param": "model", "code": "model_not_found"});
    assert_eq!((status, answer), (404, json!({"error": error})));
    let (status, answer) = ask("/v1/messages", "three").await;
    assert_eq!((status, answer), (404, json!({"type": "error", "error": error})));
    assert_eq!(counts().iter().sum::<usize>(), before.iter().sum::<usize>() + 17);

    // An adapter that was loaded a moment ago is found.
    workers[1].set_models(&["two", "both", "four"]);
    super::support::eventually("the new model", || async { ask("/v1/chat/completions", "four").await.0 == 200 }).await;
    assert_eq!(workers[1].seen().pop().unwrap().json()["model"], "four");
}

#[tokio::test]
async fn an_anthropic_clients_key_counts_and_reaches_no_worker() {
    use std::io::Write;
    let worker = FakeWorker::start().await;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"first-key-1\n").unwrap();
    let path = file.path().to_str().unwrap();
    let gateway = Gateway::passthrough(&worker.url(), &["--api-key-file", path]).await;
    let ask = |key: &str| {
        let request = reqwest::Client::new().post(gateway.url("/v1/messages")).header("x-api-key", key);
        gateway::answer(request.header("anthropic-version", "2023-06-01").body(r#"{"messages":[]}"#))
    };
    assert_eq!(ask("first-key-1").await.0, 200);
    let seen = worker.only();
    assert_eq!((seen.header("x-api-key"), seen.header("anthropic-version")), (None, Some("2023-06-01")));
    let (status, answer) = ask("another-key").await;
    assert_eq!(
        (status, &answer["error"]["type"], &answer["type"]),
        (401, &json!("authentication_error"), &json!("error"))
    );
}
