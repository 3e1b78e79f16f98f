//! Frontend decoding towards a worker without the plugin: the same pixels, inline.

use serde_json::{Value, json};

use super::support::{
    bodies,
    files::Files,
    gateway::Gateway,
    pictures::{self, Pixels, data_uri, read_ppm},
    wire::Message,
    worker::FakeWorker,
};

/// The parts of the first message that have an image, as a worker got them.
fn image_parts(request: &Message) -> Vec<Value> {
    let body = request.json();
    let parts = body["messages"].as_array().unwrap().iter().filter_map(|message| message["content"].as_array());
    parts.flatten().filter(|part| part.get("image_url").is_some()).cloned().collect()
}

fn url_of(part: &Value) -> &str {
    let image = &part["image_url"];
    image["url"].as_str().or(image.as_str()).unwrap()
}

fn pixels_of(part: &Value) -> Pixels {
    read_ppm(url_of(part))
}

#[tokio::test]
async fn the_worker_gets_the_exact_pixels_under_a_uuid_of_ours() {
    for (name, mime) in [
        ("rgb.png", "image/png"),
        ("rgba.png", "image/png"),
        ("interlaced_rgb.png", "image/png"),
        ("exif_5.png", "image/png"),
        ("baseline_420.jpg", "image/jpeg"),
        ("progressive.jpg", "image/jpeg"),
        ("exif_6.jpg", "image/jpeg"),
        ("cmyk.jpg", "image/jpeg"),
        ("lossy.webp", "image/webp"),
        ("lossless.webp", "image/webp"),
        ("exif_8.webp", "image/webp"),
        // The bytes decide, not the type.
        ("rgb.png", "text/html"),
    ] {
        let worker = FakeWorker::start().await;
        let gateway = Gateway::decoding(&worker.url(), &[]).await;
        let (file, expected) = pictures::known(name);
        assert_eq!(gateway.chat(bodies::with_images([data_uri(mime, &file).as_str()])).await.0, 200, "{name}");
        let parts = image_parts(&worker.only());
        assert_eq!(pixels_of(&parts[0]), expected, "{name}");
        let uuid = parts[0]["uuid"].as_str().unwrap();
        assert!(uuid.len() == 64 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit()), "{uuid}");
    }
}

#[tokio::test]
async fn a_url_is_fetched_once_for_many_requests_and_reaches_no_worker() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let gateway = Gateway::fetching(&worker.url(), &files).await;
    let (file, expected) = pictures::known("baseline_444.jpg");
    let url = format!("{}?signature=s3cret", files.put("/photos/one.jpg", file));
    let requests = (0..8).map(|_| gateway.chat(bodies::with_images([url.as_str()])));
    for (status, body) in futures_util::future::join_all(requests).await {
        assert_eq!(status, 200, "{body}");
    }
    assert_eq!(files.count("/photos/one.jpg"), 1);
    let seen = worker.seen();
    assert_eq!(seen.len(), 8);
    for request in seen {
        assert_eq!(pixels_of(&image_parts(&request)[0]), expected);
        for word in ["http:", "photos", "s3cret", &files.address.to_string()] {
            assert!(!request.holds(word), "{word}");
        }
    }
}

#[tokio::test]
async fn the_rest_of_the_body_is_left_as_it_came() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let gateway = Gateway::fetching(&worker.url(), &files).await;
    let (file, _) = pictures::known("rgb.png");
    let (http, data) = (files.put("/a.png", file.clone()), data_uri("image/png", &file));
    let escaped = http.replace('/', "\\/").replace("a.png", "\\u0061.png");
    let before = " {\"zeta\" : [1E+2,{}],\"messages\":[\n{\"role\":\"tool\",\"content\":[ {\"uuid\":\"evil\",\"type\":\"image_url\",\"image_url\" : { \"detail\":\"low\", \"url\":";
    let between = ",\"x\":\"\\u00e4\"} } ,\t{\"image_url\":";
    let after = ", \"type\" : \"image_url\" }]}], \"model\":\"m\\u006f\" }\n";
    let body = format!("{before}\"{escaped}\"{between}\"{data}\"{after}");
    let (status, answer) = gateway.chat(body).await;
    assert_eq!(status, 200, "{answer}");

    let request = worker.only();
    let sent = String::from_utf8(request.body.clone()).unwrap();
    let parts = image_parts(&request);
    let (ppm, uuid) = (url_of(&parts[0]), parts[0]["uuid"].as_str().unwrap());
    assert_eq!(parts[1]["uuid"], uuid, "equal pixels have one name");
    let before = before.replace("\"uuid\":\"evil\",", "");
    let between = between.replace("} }", &format!("}} ,\"uuid\":\"{uuid}\"}}"));
    let after = after.replace("\"image_url\" }", &format!("\"image_url\" ,\"uuid\":\"{uuid}\"}}"));
    assert_eq!(sent, format!("{before}\"{ppm}\"{between}\"{ppm}\"{after}"));
}

#[tokio::test]
async fn images_are_found_in_messages_of_every_role() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let gateway = Gateway::fetching(&worker.url(), &files).await;
    let roles = ["system", "developer", "user", "assistant", "tool"];
    let mut expected = Vec::new();
    let messages: Vec<Value> = roles
        .iter()
        .zip(1..)
        .map(|(role, seed)| {
            let (file, pixels) = pictures::png(seed, 5, 7);
            expected.push(pixels);
            json!({"role": role, "content": [bodies::image(&files.put(&format!("/{role}.png"), file))]})
        })
        .collect();
    let (status, answer) = gateway.chat(json!({"model": "m", "messages": messages}).to_string()).await;
    assert_eq!(status, 200, "{answer}");
    let request = worker.only();
    let got: Vec<Pixels> = image_parts(&request).iter().map(pixels_of).collect();
    assert_eq!(got, expected);
    assert!(!request.holds("http"));
}

#[tokio::test]
async fn a_bare_string_stays_a_string_and_detail_stays_where_it_was() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    let (file, expected) = pictures::known("rgb.png");
    let uri = data_uri("image/png", &file);
    let parts = [
        json!({"type": "image_url", "image_url": uri}),
        json!({"type": "input_image", "image_url": uri, "detail": "high"}),
        json!({"type": "image_url", "image_url": {"url": uri, "detail": "low"}}),
    ];
    assert_eq!(gateway.chat(bodies::chat(&parts)).await.0, 200);
    let got = image_parts(&worker.only());
    assert!(got[0]["image_url"].is_string() && got[1]["image_url"].is_string());
    assert_eq!(got[1]["detail"], "high");
    assert_eq!(got[2]["image_url"]["detail"], "low");
    for part in &got {
        assert_eq!(pixels_of(part), expected);
    }
}

#[tokio::test]
async fn a_format_that_is_not_decoded_goes_as_the_bytes_that_were_fetched() {
    let (worker, files) = (FakeWorker::start().await, Files::start().await);
    let gateway = Gateway::fetching(&worker.url(), &files).await;
    // A fax TIFF beside TIFFs that are decoded; of a JPEG 2000, its signature is all that is looked at.
    let jpeg_2000 = b"\0\0\0\x0cjP  \r\n\x87\n and what follows".to_vec();
    let all = [
        ("/a.avif", pictures::file("rgba.avif"), "image/avif"),
        ("/a.tif", pictures::file("group4.tif"), "image/tiff"),
        ("/a.jp2", jpeg_2000, "image/jp2"),
    ];
    for (path, file, _) in &all {
        let url = files.put(path, file.clone());
        let part = json!({"type": "image_url", "image_url": {"url": url}, "uuid": "a client's"});
        assert_eq!(gateway.chat(bodies::chat(&[part])).await.0, 200);
    }
    for (request, (_, file, media_type)) in worker.seen().iter().zip(&all) {
        let part = &image_parts(request)[0];
        assert_eq!(pictures::decode_data_uri(url_of(part), media_type), *file);
        assert_eq!(part.get("uuid"), None);
        assert!(!request.holds("http"));
    }
    assert_eq!(gateway.metric("mediagate_media_total", "original").await, 3.0);
    assert_eq!(gateway.metric("mediagate_transfers_total", "original").await, 3.0);
}

#[tokio::test]
async fn a_format_that_vllm_does_not_read_is_refused_by_its_name() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    let files: [(&[u8], &str); 4] = [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"\xff\x0a\xfa\x1f", "JPEG XL"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"%PDF-1.7", "PDF"),
    ];
    for (file, name) in files {
        let part = json!({"type": "image_url", "image_url": {"url": data_uri("image/png", file)}});
        let (status, answer) = gateway.chat(bodies::chat(&[part])).await;
        assert_eq!(status, 400, "{name}");
        let error = &answer["error"];
        assert_eq!(error["code"], "unsupported_image_format", "{name}");
        assert!(error["message"].as_str().unwrap().contains(name), "{error}");
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn other_media_are_refused_and_reach_no_worker() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    for part in [
        json!({"type": "video_url", "video_url": {"url": "http://127.0.0.1/x.mp4"}}),
        json!({"type": "audio_url", "audio_url": {"url": "http://127.0.0.1/x.mp3"}}),
        json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        json!({"type": "image_embeds", "image_embeds": "AAAA"}),
        json!({"type": "image_pil", "image_pil": "x"}),
        json!({"type": "prompt_embeds", "prompt_embeds": "AAAA"}),
        json!({"video_url": "http://127.0.0.1/x.mp4"}),
        json!({"type": "text", "text": "x", "audio_url": "http://127.0.0.1/x"}),
        json!({"type": "image", "image": "http://127.0.0.1/x.png"}),
        json!({"type": "file", "file": {"file_data": "x"}}),
    ] {
        let (status, answer) = gateway.chat(bodies::chat(&[bodies::text("a"), part.clone()])).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("unsupported_media")), "{part}: {answer}");
        assert_eq!(answer["error"]["param"], "messages[0].content[1]");
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test]
async fn text_that_holds_urls_is_left_alone() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"see http://169.254.169.254/ and mediagate://x"},{"role":"user","content":[{"type":"text","text":"data:image/png;base64,AAAA"}]}]}"#;
    assert_eq!(gateway.chat(body).await.0, 200);
    assert_eq!(worker.only().body, body.as_bytes());
}

#[tokio::test]
async fn a_salt_gives_equal_pixels_another_name() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    let uri = data_uri("image/png", &pictures::png(3, 4, 4).0);
    let mut uuids = std::collections::HashSet::new();
    for salt in ["", "one", "two", "one"] {
        let mut body: Value = serde_json::from_str(&bodies::with_images([uri.as_str()])).unwrap();
        if !salt.is_empty() {
            body["cache_salt"] = salt.into();
        }
        assert_eq!(gateway.chat(body.to_string()).await.0, 200);
    }
    for request in worker.seen() {
        uuids.insert(image_parts(&request)[0]["uuid"].as_str().unwrap().to_owned());
    }
    assert_eq!(uuids.len(), 3);
}

#[tokio::test]
async fn what_inspect_says_of_a_file_is_what_the_worker_gets() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/images/exif_6.jpg");
    let output = super::support::gateway::command().args(["inspect", "--json", path]).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let uri = data_uri("image/jpeg", &pictures::file("exif_6.jpg"));
    assert_eq!(gateway.chat(bodies::with_images([uri.as_str()])).await.0, 200);
    let part = &image_parts(&worker.only())[0];
    assert_eq!(said["rgb_sha256"], pixels_of(part).rgb_sha256);
    assert_eq!(said["media_id"], part["uuid"]);
}
