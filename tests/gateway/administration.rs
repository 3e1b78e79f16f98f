//! What operators do to a running gateway.

use serde_json::{Value, json};

use super::support::{
    bodies, eventually,
    gateway::{self, Gateway, answer},
    soon,
    worker::{self, FakeWorker},
};

fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

fn admin(gateway: &Gateway, method: &str, target: &str) -> reqwest::RequestBuilder {
    http().request(method.parse().unwrap(), format!("http://{}{target}", gateway.admin))
}

async fn add(gateway: &Gateway, url: &str) -> (u16, Value) {
    let body = json!({"url": url}).to_string();
    answer(admin(gateway, "POST", "/workers").header("content-type", "application/json").body(body)).await
}

/// A gateway that knows no worker, and was told where there may be some.
async fn without_workers() -> (Gateway, tempfile::NamedTempFile) {
    let list = tempfile::NamedTempFile::new().unwrap();
    let gateway = Gateway::start(&["--workers-file", list.path().to_str().unwrap()], &[]).await;
    (gateway, list)
}

#[tokio::test]
async fn a_worker_that_is_added_serves_and_one_that_is_removed_ends_what_it_has() {
    let (gateway, _list) = without_workers().await;
    assert_eq!(gateway.chat(bodies::plain()).await.0, 503);
    let worker = FakeWorker::by_hand().await;
    let (status, added) = add(&gateway, &worker.url()).await;
    assert_eq!((status, added["id"].as_u64(), added["draining"].as_bool()), (201, Some(0), Some(false)));
    let gateway = gateway.ready().await;

    let asked = tokio::spawn(gateway.request(bodies::plain()).send());
    let exchange = worker.next().await;
    let (status, removed) = answer(admin(&gateway, "DELETE", "/workers/0")).await;
    assert_eq!((status, removed["in_flight"].as_u64(), removed["draining"].as_bool()), (200, Some(1), Some(true)));
    let (status, refused) = gateway.chat(bodies::plain()).await;
    assert_eq!((status, refused["error"]["code"].as_str()), (503, Some("no_worker")));
    exchange.answer(worker::ok_json(r#"{"late":true}"#)).await;
    assert_eq!(&asked.await.unwrap().unwrap().bytes().await.unwrap()[..], br#"{"late":true}"#);
    let (_, list) = answer(admin(&gateway, "GET", "/workers")).await;
    assert_eq!(list, json!({"workers": []}));
    // It may come back, as another one.
    assert_eq!(add(&gateway, &worker.url()).await.1["id"], 1);
}

#[tokio::test]
async fn a_worker_that_has_left_leaves_no_metrics_behind() {
    let (worker, other) = (FakeWorker::by_hand().await, FakeWorker::start().await);
    let gateway = Gateway::passthrough(&worker.url(), &["--worker", &other.url()]).await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    let label = format!("worker=\"{}\"", worker.address);
    assert_eq!(gateway.metric("mediagate_worker_up", &label).await, 1.0);
    answer(admin(&gateway, "POST", "/workers/1/drain")).await;
    let asked = tokio::spawn(gateway.request(bodies::plain()).send());
    let exchange = worker.next().await;
    answer(admin(&gateway, "DELETE", "/workers/0")).await;
    assert!(!gateway.metrics().await.contains(&label));
    // Nor does the end of what was on it bring them back.
    exchange.answer(worker::json("503 Service Unavailable", "{}")).await;
    assert_eq!(asked.await.unwrap().unwrap().status(), 503);
    assert!(!gateway.metrics().await.contains(&label));
    assert_eq!(gateway.metric("mediagate_worker_up", "").await, 1.0);
}

#[tokio::test]
async fn a_worker_that_is_drained_gets_nothing_new_until_it_is_wanted_again() {
    let (worker, other) = (FakeWorker::start().await, FakeWorker::start().await);
    let gateway = Gateway::passthrough(&worker.url(), &["--worker", &other.url()]).await;
    gateway.log.wait_for_another("worker health changed", 1).await;
    let (status, drained) = answer(admin(&gateway, "POST", "/workers/0/drain")).await;
    assert_eq!((status, drained["draining"].as_bool()), (200, Some(true)));
    for number in 0..10 {
        assert_eq!(gateway.chat(bodies::chat(&[bodies::text(&number.to_string())])).await.0, 200);
    }
    assert_eq!((worker.seen().len(), other.seen().len()), (0, 10));
    answer(admin(&gateway, "POST", "/workers/1/drain")).await;
    assert_eq!(gateway.get("/ready").await.status(), 503);
    answer(admin(&gateway, "DELETE", "/workers/0/drain")).await;
    assert_eq!(gateway.chat(bodies::plain()).await.0, 200);
    assert_eq!(worker.seen().len(), 1);
}

#[tokio::test]
async fn orders_that_make_no_sense_are_refused_with_a_code() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let json_body = |body: &str| {
        admin(&gateway, "POST", "/workers").header("content-type", "application/json").body(body.to_owned())
    };
    let url = format!(r#"{{"url":"{}/"}}"#, worker.url());
    for (request, status, code) in [
        (json_body(&url), 409, "worker_exists"),
        (json_body(r#"{"url":"10.0.0.1:8000"}"#), 400, "invalid_worker_url"),
        (json_body(r#"{"url":"http://user:secret@x"}"#), 400, "invalid_worker_url"),
        (json_body(r#"{"uri":"http://x"}"#), 422, "invalid_order"),
        (json_body("{"), 400, "invalid_order"),
        (admin(&gateway, "POST", "/workers").body("{}"), 415, "invalid_order"),
        (admin(&gateway, "DELETE", "/workers/7"), 404, "worker_not_found"),
        (admin(&gateway, "GET", "/workers/7"), 404, "worker_not_found"),
        (admin(&gateway, "POST", "/workers/7/drain"), 404, "worker_not_found"),
        (admin(&gateway, "PUT", "/workers"), 405, "method_not_allowed"),
        // What a web site could have an operator's browser send without asking.
        (admin(&gateway, "POST", "/workers/0/drain").header("origin", "https://evil.example"), 403, "from_web_page"),
        (admin(&gateway, "POST", "/reload").header("origin", "null"), 403, "from_web_page"),
    ] {
        let (got, answer) = answer(request).await;
        assert_eq!((got, answer["error"]["code"].as_str()), (status, Some(code)), "{answer}");
        assert!(!answer.to_string().contains("secret"), "{answer}");
    }
}

#[tokio::test]
async fn on_sighup_lists_and_keys_are_read_again_and_a_mistake_changes_nothing() {
    let (first, second, extra) = (FakeWorker::start().await, FakeWorker::start().await, FakeWorker::start().await);
    let dir = tempfile::tempdir().unwrap();
    let (list, keys) = (dir.path().join("workers"), dir.path().join("keys"));
    std::fs::write(&list, format!("# ours\n{}\n", first.url())).unwrap();
    std::fs::write(&keys, "first-key-1\n").unwrap();
    let flags = ["--workers-file", list.to_str().unwrap(), "--api-key-file", keys.to_str().unwrap()];
    let gateway = Gateway::start(&flags, &[]).await.ready().await;
    let ask = async |key: &str| answer(gateway.request(bodies::plain()).bearer_auth(key)).await.0;
    assert_eq!((ask("first-key-1").await, ask("second-key-2").await), (200, 401));
    assert_eq!(add(&gateway, &extra.url()).await.0, 201);

    std::fs::write(&list, format!("{}\n", second.url())).unwrap();
    std::fs::write(&keys, "second-key-2\n").unwrap();
    gateway.signal(libc::SIGHUP);
    gateway.log.wait_for("configuration read again").await;
    assert_eq!((ask("first-key-1").await, ask("second-key-2").await), (401, 200));
    let (_, workers) = answer(admin(&gateway, "GET", "/workers")).await;
    let urls: Vec<_> = workers["workers"].as_array().unwrap().iter().map(|worker| worker["url"].clone()).collect();
    assert_eq!(urls, [json!(format!("{}/", extra.url())), json!(format!("{}/", second.url()))]);

    std::fs::write(&list, "nonsense\n").unwrap();
    std::fs::write(&keys, "third-key-3\n").unwrap();
    let (status, refused) = answer(admin(&gateway, "POST", "/reload")).await;
    assert_eq!((status, refused["error"]["code"].as_str()), (409, Some("reload_failed")));
    assert!(refused["error"]["message"].as_str().unwrap().contains("nonsense"), "{refused}");
    assert_eq!((ask("second-key-2").await, ask("third-key-3").await), (200, 401));
    assert_eq!(gateway.metric("mediagate_reloads_total", "failed").await, 1.0);
}

#[tokio::test]
async fn files_that_are_watched_are_read_again_when_they_change_as_kubernetes_changes_them() {
    let (first, second) = (FakeWorker::start().await, FakeWorker::start().await);
    let dir = tempfile::tempdir().unwrap();
    // As a ConfigMap is mounted: files are links through a folder that is a link.
    let publish = |version: &str, worker: &str, key: &str| {
        let folder = dir.path().join(version);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("workers"), worker).unwrap();
        std::fs::write(folder.join("keys"), key).unwrap();
        std::os::unix::fs::symlink(version, dir.path().join("..data_tmp")).unwrap();
        std::fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    };
    publish("..1", &first.url(), "first-key-1");
    let path = |name: &str| {
        let path = dir.path().join(name);
        std::os::unix::fs::symlink(format!("..data/{name}"), &path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (list, keys) = (path("workers"), path("keys"));
    let flags = ["--workers-file", &list, "--api-key-file", &keys, "--watch-files-ms", "100"];
    let gateway = Gateway::start(&flags, &[]).await.ready().await;
    let ask = async |key: &str| answer(gateway.request(bodies::plain()).bearer_auth(key)).await.0;
    assert_eq!((ask("first-key-1").await, ask("second-key-2").await), (200, 401));

    publish("..2", &second.url(), "second-key-2");
    gateway.log.wait_for("configuration read again").await;
    eventually("the new worker", || async { ask("second-key-2").await == 200 }).await;
    assert_eq!(ask("first-key-1").await, 401);
    assert_eq!((first.seen().len(), second.seen().len()), (1, 1));

    publish("..3", "nonsense", "third-key-3");
    gateway.log.wait_for("everything stays as it is").await;
    assert_eq!((ask("second-key-2").await, ask("third-key-3").await), (200, 401));
    assert_eq!(gateway.metric("mediagate_reloads_total", "").await, 2.0, "once for each change");
}

#[tokio::test]
async fn what_operators_reach_is_on_the_public_listener_only_where_asked_and_for_their_keys() {
    let worker = FakeWorker::start().await;
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "client-key-0001\noperator-key-0002 admin\n").unwrap();
    let flags = ["--api-key-file", keys.path().to_str().unwrap()];
    let closed = Gateway::passthrough(&worker.url(), &flags).await;
    let open = Gateway::passthrough(&worker.url(), &[&flags[..], &["--admin-on-public"]].concat()).await;
    let get = async |gateway: &Gateway, target: &str, key: &str| {
        http().get(gateway.url(target)).bearer_auth(key).send().await.unwrap().status().as_u16()
    };
    for target in ["/admin/workers", "/admin/metrics", "/admin/", "/workers", "/metrics", "/reload"] {
        assert_eq!(get(&closed, target, "operator-key-0002").await, 404, "{target}");
    }
    for target in ["/admin/workers", "/admin/metrics"] {
        assert_eq!(get(&open, target, "operator-key-0002").await, 200, "{target}");
        assert_eq!(get(&open, target, "client-key-0001").await, 403, "{target}");
        assert_eq!(get(&open, target, "no-such-key").await, 401, "{target}");
    }
    assert_eq!(get(&open, "/metrics", "operator-key-0002").await, 404);
}

#[tokio::test]
async fn a_web_site_whose_name_leads_to_this_machine_reads_nothing_from_the_admin_listener() {
    let worker = FakeWorker::start().await;
    let local = Gateway::passthrough(&worker.url(), &[]).await;
    let open = Gateway::passthrough(&worker.url(), &["--admin-listen", "0.0.0.0:0"]).await;
    let status = async |gateway: &Gateway, host: &str| {
        admin(gateway, "GET", "/workers").header("host", host).send().await.unwrap().status().as_u16()
    };
    for host in ["localhost:9090", "LOCALHOST", "127.0.0.1", "[::1]:9090", "192.0.2.1"] {
        assert_eq!(status(&local, host).await, 200, "{host}");
    }
    for host in ["evil.example", "evil.example:9090", "localhost.evil.example", "127.0.0.1.evil.example"] {
        assert_eq!(status(&local, host).await, 403, "{host}");
        assert_eq!(status(&open, host).await, 200, "{host}: who listens to others has names of its own");
    }
}

#[tokio::test]
async fn the_status_page_shows_workers_errors_and_budgets_and_nobodys_markup() {
    let worker = FakeWorker::start().await;
    let gateway = Gateway::decoding(&worker.url(), &[]).await;
    let response = gateway.request("{").header("x-request-id", "the-broken-one").send().await.unwrap();
    assert_eq!(response.status(), 400);
    let page = admin(&gateway, "GET", "/").send().await.unwrap();
    assert!(page.headers()["content-type"].to_str().unwrap().starts_with("text/html"));
    assert!(page.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    let page = page.text().await.unwrap();
    for text in [&worker.address.to_string(), "frontend decoding", "the-broken-one", "bodies", "arena, small", "closed"]
    {
        assert!(page.contains(text), "{text} is not in\n{page}");
    }
    assert!(!page.contains("<script") && !page.contains("src="), "{page}");
}

#[test]
fn a_check_of_the_configuration_says_what_is_wrong_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (keys, short) = (put("keys", "client-key-0001\n"), put("short", "x\n"));
    let check = |flags: &[&str]| {
        let mut command = gateway::command();
        // What the tests themselves are set by would be warned of.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MEDIAGATE_")) {
            command.env_remove(name);
        }
        let output = command.args(["config", "check"]).args(flags).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let sound = ["--worker", "http://127.0.0.1:8000", "--api-key-file", &keys];
    assert_eq!(check(&sound), (Some(0), "the configuration is sound\n".to_owned()));
    for (flags, said) in [
        (vec![], "error: there is no worker"),
        (vec!["--worker", "10.0.0.1:8000"], "base URLs such as"),
        (vec!["--worker", "http://x:1", "--api-key-file", "/nonexistent"], "error: cannot read /nonexistent"),
        (vec!["--worker", "http://x:1", "--api-key-file", &short], "at least 8"),
        (vec!["--worker", "http://x:1", "--attach-key-file", &short], "openssl rand"),
        (vec!["--worker", "http://x:1", "--tls-cert", &keys, "--tls-key", &keys], "certificate"),
        (vec!["--worker", "http://x:1", "--worker-ca-file", &keys], "--worker-ca-file"),
        (vec!["--worker", "http://x:1", "--admin-on-public"], "--api-key-file"),
    ] {
        let (code, text) = check(&flags);
        assert_eq!(code, Some(1), "{flags:?}: {text}");
        assert!(text.contains(said) && text.contains("would not start"), "{flags:?}: {text}");
    }
    let (code, text) = check(&["--worker", "http://10.0.0.1:1", "--listen", "0.0.0.0:80", "--frontend-decoding"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("warning: --listen") && text.contains("warning: worker 10.0.0.1:1"), "{text}");
}

#[tokio::test]
async fn readiness_is_gone_at_once_when_the_gateway_is_told_to_end() {
    let worker = FakeWorker::by_hand().await;
    let gateway = Gateway::passthrough(&worker.url(), &[]).await;
    let asked = tokio::spawn(gateway.request(bodies::plain()).send());
    let exchange = worker.next().await;
    gateway.signal(libc::SIGTERM);
    // Operators, and whoever asks them for readiness, can watch the last request go.
    eventually("not ready", || async { admin(&gateway, "GET", "/ready").send().await.unwrap().status() == 503 }).await;
    exchange.answer(worker::ok_json("{}")).await;
    assert_eq!(soon("an answer", asked).await.unwrap().unwrap().status(), 200);
    assert_eq!(gateway.ended().await.0.code(), Some(0));
}
