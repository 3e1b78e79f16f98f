//! Responses that a worker keeps: who made one is asked for it, and nobody else.

use serde_json::json;

use super::support::{
    eventually,
    gateway::{self, Gateway},
    wire::Message,
    worker::{FakeWorker, LAST_CHUNK, SSE_HEAD, chunk, ok_json},
};

/// A worker that makes responses with ids that begin with its name.
async fn maker(name: &'static str) -> FakeWorker {
    FakeWorker::answering(move |request: &Message| {
        let made = request.target() == "/v1/responses";
        let asked = request.json_or_null();
        if made && asked["stream"] == true {
            let event =
                format!("event: response.created\ndata: {{\"response\":{{\"id\":\"resp_{name}_stream\"}}}}\n\n");
            return format!("{SSE_HEAD}{}{LAST_CHUNK}", chunk(&event)).into_bytes();
        }
        ok_json(&format!(r#"{{"id":"resp_{name}","object":"response","worker":"{name}"}}"#))
    })
    .await
}

async fn two() -> ([FakeWorker; 2], Gateway) {
    let workers = [maker("one").await, maker("two").await];
    let gateway =
        Gateway::passthrough(&workers[0].url(), &["--worker", &workers[1].url(), "--tenancy", "header:x-tenant"]).await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    (workers, gateway)
}

/// Makes a response; its id and who made it.
async fn make(gateway: &Gateway, input: &str) -> (String, usize) {
    let (status, answer) = gateway.post("/v1/responses", json!({"input": input})).await;
    assert_eq!(status, 200, "{answer}");
    (answer["id"].as_str().unwrap().to_owned(), usize::from(answer["worker"] == "two"))
}

#[tokio::test]
async fn what_is_about_a_response_goes_to_the_worker_that_made_it() {
    let (workers, gateway) = two().await;
    let mut made = [false; 2];
    for index in 0..64 {
        let (id, maker) = make(&gateway, &format!("question {index}")).await;
        made[maker] = true;
        let before = workers.each_ref().map(|worker| worker.seen().len());
        let (status, answer) =
            gateway.post("/v1/responses", json!({"input": format!("more {index}"), "previous_response_id": id})).await;
        assert_eq!(status, 200, "{answer}");
        let answer = gateway.get(&format!("/v1/responses/{id}?stream=false&starting_after=3&x=../sleep")).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(gateway.post(&format!("/v1/responses/{id}/cancel"), "").await.0, 200);
        let after = workers.each_ref().map(|worker| worker.seen().len());
        assert_eq!([after[0] - before[0], after[1] - before[1]], if maker == 0 { [3, 0] } else { [0, 3] });
        let seen = workers[maker].seen();
        let [.., got, cancelled] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(got.start, format!("GET /v1/responses/{id}?stream=false&starting_after=3 HTTP/1.1"));
        assert_eq!(cancelled.start, format!("POST /v1/responses/{id}/cancel HTTP/1.1"));
        if made == [true; 2] {
            return;
        }
    }
    panic!("one worker made them all");
}

#[tokio::test]
async fn the_id_of_a_streamed_response_counts_as_soon_as_it_has_passed() {
    let (workers, gateway) = two().await;
    let request = reqwest::Client::new().post(gateway.url("/v1/responses")).body(r#"{"input":"a","stream":true}"#);
    let text = request.send().await.unwrap().text().await.unwrap();
    let id = text.split('"').find(|word| word.starts_with("resp_")).unwrap();
    assert_eq!(gateway.get(&format!("/v1/responses/{id}")).await.status(), 200);
    let name = if id.contains("one") { 0 } else { 1 };
    assert_eq!(workers[name].seen().len(), 2);
}

#[tokio::test]
async fn a_response_that_nobody_here_knows_is_404_and_no_worker_is_asked() {
    let (workers, gateway) = two().await;
    let (id, _) = make(&gateway, "a").await;
    let others = |request: reqwest::RequestBuilder| gateway::answer(request.header("x-tenant", "another"));
    let http = reqwest::Client::new();
    for (status, answer) in [
        gateway.post("/v1/responses", json!({"input": "a", "previous_response_id": "resp_unknown"})).await,
        gateway.post("/v1/responses/resp_unknown/cancel", "").await,
        gateway::answer(http.get(gateway.url("/v1/responses/resp_unknown"))).await,
        gateway::answer(http.get(gateway.url("/v1/responses/..%2F..%2Fsleep"))).await,
        // Another tenant's.
        others(http.get(gateway.url(&format!("/v1/responses/{id}")))).await,
        others(http.post(gateway.url(&format!("/v1/responses/{id}/cancel")))).await,
        others(http.post(gateway.url("/v1/responses")).body(json!({"previous_response_id": id}).to_string())).await,
    ] {
        assert_eq!((status, &answer["error"]["code"]), (404, &json!("response_not_found")), "{answer}");
    }
    assert_eq!(workers.each_ref().map(|worker| worker.seen().len()).iter().sum::<usize>(), 1);
}

#[tokio::test]
async fn when_the_maker_is_gone_nobody_else_is_asked() {
    let (workers, gateway) = two().await;
    let (id, maker) = make(&gateway, "a").await;
    let [one, two] = workers;
    let (gone, left) = if maker == 0 { (one, two) } else { (two, one) };
    gone.stop().await;
    eventually("a refusal", || async {
        let (status, _) = gateway.post("/v1/responses", json!({"input": "b", "previous_response_id": id})).await;
        assert!(matches!(status, 502 | 503), "{status}");
        gateway.post(&format!("/v1/responses/{id}/cancel"), "").await.0 == 503
    })
    .await;
    assert!(left.seen().is_empty(), "{:?}", left.seen());
}

#[tokio::test]
async fn a_worker_that_says_nothing_of_its_responses_is_left_alone() {
    let worker = FakeWorker::by_hand().await;
    let flags = ["--request-timeout-ms", "3000", "--circuit-failures", "1"];
    let gateway = Gateway::passthrough(&worker.url(), &flags).await;
    let answer = async { worker.next().await.answer(ok_json(r#"{"id":"resp_one","worker":"one"}"#)).await };
    let ((id, _), ()) = tokio::join!(make(&gateway, "question"), answer);
    let path = format!("/v1/responses/{id}");
    let (asked, _exchange) = tokio::join!(gateway.get(&path), worker.next());
    assert_eq!(asked.status(), 504);
    gateway.log.wait_for("circuit opened").await;
}
