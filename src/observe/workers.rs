//! Every metric of a single worker, by a function that records it in the worker's [`Series`].

use ::metrics::{Unit, describe_counter, describe_gauge};

use super::series::{self, Series};

const UP: &str = "mediagate_worker_up";
const ATTACHED: &str = "mediagate_worker_attached";
const CIRCUIT: &str = "mediagate_worker_circuit_open";
const CIRCUIT_OPENED: &str = "mediagate_circuit_opened_total";
const LANDING_CIRCUIT: &str = "mediagate_worker_landing_circuit_open";
const LANDING_CIRCUIT_OPENED: &str = "mediagate_landing_circuit_opened_total";
const IN_FLIGHT: &str = "mediagate_worker_requests_in_flight";
const LANDING_OPEN: &str = "mediagate_landing_open";
const LANDING_PINNED: &str = "mediagate_landing_pinned_bytes";
const SPEED: &str = "mediagate_worker_push_bytes_per_second";
const LANE: &str = "mediagate_worker_lane";
const INLINE: &str = "mediagate_worker_prefers_inline";
const KV_VIEW: &str = "mediagate_kv_view_completeness";
const KV_BLOCKS: &str = "mediagate_kv_known_blocks";
const KV_AGED: &str = "mediagate_kv_aged_blocks_total";
const KV_BATCHES: &str = "mediagate_kv_event_batches_total";

/// All that was recorded of these workers, as /metrics shows it.
pub fn render_workers<'a>(workers: impl IntoIterator<Item = &'a Series>) -> String {
    series::render(workers, describe)
}

fn describe() {
    describe_gauge!(UP, "Whether a worker is healthy");
    describe_gauge!(ATTACHED, "Whether a worker granted landing memory");
    describe_gauge!(CIRCUIT, "Whether a worker is left alone: 0 no, 0.5 a request is tried, 1 yes");
    describe_counter!(CIRCUIT_OPENED, "Times that a worker began to be left alone");
    describe_gauge!(LANDING_CIRCUIT, "1 while nothing is pushed to a worker, since pushes did not land in time");
    describe_counter!(LANDING_CIRCUIT_OPENED, "Times that this began");
    describe_gauge!(IN_FLIGHT, "Requests on a worker");
    describe_gauge!(LANDING_OPEN, "Pushes whose place on the worker is in use");
    describe_gauge!(LANDING_PINNED, Unit::Bytes, "Pixels in the arena that a push to the worker may still read");
    describe_gauge!(SPEED, "Speed of the transfer that measured the connection on attach");
    describe_gauge!(LANE, "1 for the lane by which pixels go: cma, shared_memory, rdma or tcp");
    describe_gauge!(INLINE, "1 where pixels inside the request were measured to be there sooner than pushed ones");
    describe_gauge!(KV_VIEW, "What is known of a worker's KV cache: 0 nothing, 1 a part, 2 everything");
    describe_gauge!(KV_BLOCKS, "Blocks of a worker's KV cache that are known");
    describe_counter!(
        KV_AGED,
        "Blocks that were forgotten, the oldest first, to stay within the worker's share of the index"
    );
    describe_counter!(KV_BATCHES, "Batches of KV events, by outcome");
}

pub fn worker_healthy(worker: &Series, healthy: bool) {
    worker.set(UP, f64::from(u8::from(healthy)));
}

pub fn worker_attached(worker: &Series, attached: bool) {
    worker.set(ATTACHED, f64::from(u8::from(attached)));
}

pub fn worker_in_flight(worker: &Series, requests: usize) {
    worker.set(IN_FLIGHT, requests as f64);
}

pub fn worker_circuit(worker: &Series, open: f64) {
    worker.set(CIRCUIT, open);
    // There from the start, so that its first rise is seen.
    worker.add(CIRCUIT_OPENED, None, 0);
}

pub fn circuit_opened(worker: &Series) {
    worker.add(CIRCUIT_OPENED, None, 1);
}

pub fn worker_landing_circuit(worker: &Series, open: f64) {
    worker.set(LANDING_CIRCUIT, open);
    worker.add(LANDING_CIRCUIT_OPENED, None, 0);
}

pub fn landing_circuit_opened(worker: &Series) {
    worker.add(LANDING_CIRCUIT_OPENED, None, 1);
}

pub fn landing_open(worker: &Series, pushes: usize) {
    worker.set(LANDING_OPEN, pushes as f64);
}

pub fn landing_pinned(worker: &Series, bytes: u64) {
    worker.set(LANDING_PINNED, bytes as f64);
}

pub fn worker_push_speed(worker: &Series, bytes_per_second: u64) {
    worker.set(SPEED, bytes_per_second as f64);
}

pub fn worker_lane(worker: &Series, lane: &'static str, taken: bool) {
    worker.set_of(LANE, ("lane", lane), f64::from(u8::from(taken)));
}

pub fn worker_prefers_inline(worker: &Series, inline: bool) {
    worker.set(INLINE, f64::from(u8::from(inline)));
}

pub fn kv_view(worker: &Series, view: u8, blocks: usize) {
    worker.set(KV_VIEW, f64::from(view));
    worker.set(KV_BLOCKS, blocks as f64);
}

pub fn kv_events(worker: &Series, batches: u64, malformed: u64, lost: u64, restarts: u64) {
    for (outcome, count) in
        [("applied", batches - malformed.min(batches)), ("malformed", malformed), ("lost", lost), ("restart", restarts)]
    {
        if count > 0 {
            worker.add(KV_BATCHES, Some(("outcome", outcome)), count);
        }
    }
}

/// Known blocks that were given up for new ones.
pub fn kv_aged(worker: &Series, blocks: usize) {
    if blocks > 0 {
        worker.add(KV_AGED, None, blocks as u64);
    }
}
