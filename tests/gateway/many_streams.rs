//! Hundreds of streams at once, and a worker that dies in the middle of its half.

use std::sync::Arc;

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::support::{
    bodies, eventually,
    gateway::Gateway,
    soon,
    worker::{FakeWorker, LAST_CHUNK, SSE_HEAD, chunk},
};

const STREAMS: usize = 500;
const FIRST: &str = "data: first\n\n";
const LAST: &str = "data: [DONE]\n\n";

/// Begins to answer whatever comes, and ends each answer when told to.
fn work(worker: Arc<FakeWorker>, finish: watch::Receiver<bool>, begun: mpsc::UnboundedSender<()>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut answers = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let mut exchange = worker.next().await;
            let (mut finish, begun) = (finish.clone(), begun.clone());
            answers.spawn(async move {
                exchange.write(format!("{SSE_HEAD}{}", chunk(FIRST))).await;
                begun.send(()).unwrap();
                let _ = finish.wait_for(|finish| *finish).await;
                exchange.answer(format!("{}{LAST_CHUNK}", chunk(LAST))).await;
            });
        }
    });
    tasks
}

#[tokio::test]
async fn of_five_hundred_streams_those_of_a_worker_that_dies_break_and_all_others_end_well() {
    let workers = [Arc::new(FakeWorker::by_hand().await), Arc::new(FakeWorker::by_hand().await)];
    let flags = ["--worker", &workers[1].url(), "--route-policy", "least-loaded"];
    let gateway = Arc::new(Gateway::passthrough(&workers[0].url(), &flags).await);
    gateway.log.wait_for_another("worker health changed", 1).await;
    let (finish, finished) = watch::channel(false);
    let (begun, mut has_begun) = mpsc::unbounded_channel();
    let dying = work(workers[0].clone(), finished.clone(), begun.clone());
    let _living = work(workers[1].clone(), finished, begun);

    let mut clients = JoinSet::new();
    for _ in 0..STREAMS {
        let gateway = gateway.clone();
        clients.spawn(async move {
            let answer = soon("an answer", gateway.request(bodies::plain()).send()).await.unwrap();
            assert_eq!(answer.status(), 200);
            soon("the end of an answer", answer.text()).await.ok()
        });
    }
    for _ in 0..STREAMS {
        soon("a stream to begin", has_begun.recv()).await.unwrap();
    }
    let halves = workers.each_ref().map(|worker| worker.seen().len());
    assert!(halves.iter().sum::<usize>() == STREAMS && halves.iter().all(|half| *half > STREAMS / 4), "{halves:?}");

    // All of its connections close.
    drop(dying);
    workers[0].set_health("503 Service Unavailable");
    gateway.log.wait_for("healthy=false").await;
    finish.send(true).unwrap();
    let mut outcomes = [0, 0];
    while let Some(outcome) = clients.join_next().await {
        match outcome.unwrap() {
            Some(text) => {
                assert_eq!(text, format!("{FIRST}{LAST}"));
                outcomes[1] += 1;
            }
            None => outcomes[0] += 1,
        }
    }
    assert_eq!(outcomes, halves, "a stream breaks if, and only if, its worker died");

    // Nothing is left of any of them, and whoever comes now is served by who lives.
    assert_eq!(gateway.chat_text(bodies::plain()).await, format!("{FIRST}{LAST}"));
    eventually("all memory for bodies to be free", || async {
        let free = gateway.metric("mediagate_budget_free_bytes", "bodies").await;
        free == gateway.metric("mediagate_budget_bytes", "bodies").await
    })
    .await;
}
