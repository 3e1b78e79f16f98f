//! Asks each worker how busy it is, as long as it is on the list.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc::UnboundedReceiver, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Worker, WorkerClient,
    changes::{Change, for_each_worker},
    client::whole,
    load::Report,
};

const TIMEOUT: Duration = Duration::from_secs(2);

/// vLLM's metrics are some 60 KB.
const MAX_BYTES: usize = 4 << 20;

/// Asks all workers until `stop`, each so often.
pub async fn ask(
    client: WorkerClient,
    changes: UnboundedReceiver<Change>,
    interval: Duration,
    stop: CancellationToken,
) {
    let asking = |worker: Arc<Worker>| {
        let client = client.clone();
        async move {
            loop {
                worker.load.set_report(report(&client, &worker).await);
                sleep(interval).await;
            }
        }
    };
    for_each_worker(changes, stop, asking).await;
}

async fn report(client: &WorkerClient, worker: &Worker) -> Option<Report> {
    if !worker.is_healthy() {
        return None;
    }
    let response = client.kept().get(worker.url("/metrics")).timeout(TIMEOUT).send().await.ok()?;
    Report::parse(str::from_utf8(&whole(response, MAX_BYTES).await.ok()?).ok()?)
}
