//! Asks each worker how busy it is, as long as it is on the list.

use std::time::Duration;

use tokio::{sync::mpsc::UnboundedReceiver, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{Worker, WorkerClient, changes::Change, client::whole, load::Report};

const TIMEOUT: Duration = Duration::from_secs(2);

/// vLLM's metrics are some 60 KB.
const MAX_BYTES: usize = 4 << 20;

/// Asks all workers until `stop`, each so often.
pub async fn ask(
    client: WorkerClient,
    mut changes: UnboundedReceiver<Change>,
    interval: Duration,
    stop: CancellationToken,
) {
    let mut workers = JoinSet::new();
    while let Some(Some(change)) = stop.run_until_cancelled(changes.recv()).await {
        if let Change::Joined(worker) = change {
            let client = client.clone();
            workers.spawn(async move {
                let asking = async {
                    loop {
                        worker.load.set_report(report(&client, &worker).await);
                        sleep(interval).await;
                    }
                };
                worker.left.run_until_cancelled(asking).await
            });
        }
        while workers.try_join_next().is_some() {}
    }
}

async fn report(client: &WorkerClient, worker: &Worker) -> Option<Report> {
    if !worker.is_healthy() {
        return None;
    }
    let response = client.http().get(worker.url("/metrics")).timeout(TIMEOUT).send().await.ok()?;
    Report::parse(str::from_utf8(&whole(response, MAX_BYTES).await.ok()?).ok()?)
}
