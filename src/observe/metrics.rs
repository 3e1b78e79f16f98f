//! Every metric, by a function that records it. docs/METRICS.md tells what each is for.
//!
//! Labels have few values: never a URL, a client or a model of a client's choice.

use std::time::Duration;

use ::metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};

use crate::memory::{ArenaUse, Budget};

const REQUESTS: &str = "mediagate_requests_total";
const ERRORS: &str = "mediagate_errors_total";
const REQUEST_SECONDS: &str = "mediagate_first_byte_seconds";
const MEDIA: &str = "mediagate_media_total";
const FETCH_SECONDS: &str = "mediagate_fetch_seconds";
const FETCHED_BYTES: &str = "mediagate_fetched_bytes";
const DECODE_SECONDS: &str = "mediagate_decode_seconds";
const RESIZED: &str = "mediagate_resized_images_total";
const RESIZE_SAVED: &str = "mediagate_resize_saved_bytes_total";
const ADMISSION_SECONDS: &str = "mediagate_admission_wait_seconds";
const TRANSFERS: &str = "mediagate_transfers_total";
const PUSH_SECONDS: &str = "mediagate_push_seconds";
const PUSHED_BYTES: &str = "mediagate_pushed_bytes_total";
const LANDING_SECONDS: &str = "mediagate_landing_wait_seconds";
const RELOADS: &str = "mediagate_reloads_total";
const IN_FLIGHT: &str = "mediagate_requests_in_flight";
const ARENA_BYTES: &str = "mediagate_arena_bytes";
const ARENA_USED: &str = "mediagate_arena_used_bytes";
const ARENA_LARGEST_FREE: &str = "mediagate_arena_largest_free_bytes";
const ARENA_FRAGMENTATION: &str = "mediagate_arena_fragmentation_ratio";
const BUDGET_BYTES: &str = "mediagate_budget_bytes";
const BUDGET_FREE: &str = "mediagate_budget_free_bytes";
const BUDGET_WAITING: &str = "mediagate_budget_waiting_requests";
const ROUTED: &str = "mediagate_routed_total";
const ROUTE_PROMPT: &str = "mediagate_route_prompt_tokens_total";
const ROUTE_PREDICTED: &str = "mediagate_route_predicted_tokens_total";
const ROUTE_CACHED: &str = "mediagate_route_cached_tokens_total";
const ROUTE_ERROR: &str = "mediagate_route_error_ratio";
const KV_NAMES: &str = "mediagate_kv_image_names_total";
const CACHED_SOURCES: &str = "mediagate_cached_sources";
const SIZES: &str = "mediagate_image_sizes_total";
const PROMPTS: &str = "mediagate_prompts_total";
const PROMPT_CHECKS: &str = "mediagate_prompt_checks_total";
const PROMPT_MODELS_OFF: &str = "mediagate_prompt_models_off";
const CACHED_PICTURES: &str = "mediagate_cached_pictures";

/// How often [`upkeep`] looks: at 20,000 images a second, two megabytes of samples gather meanwhile.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// From microseconds (a cache hit) to minutes (a long prompt).
const SECONDS: [f64; 16] =
    [0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0, 30.0, 120.0];
const RATIOS: [f64; 7] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
const BYTES: [f64; 8] = [1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7];

/// Starts recording; the handle renders what /metrics shows.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets(&SECONDS)?
        .set_buckets_for_metric(metrics_exporter_prometheus::Matcher::Full(FETCHED_BYTES.into()), &BYTES)?
        .set_buckets_for_metric(metrics_exporter_prometheus::Matcher::Full(ROUTE_ERROR.into()), &RATIOS)?
        .install_recorder()?;
    describe_counter!(REQUESTS, "Requests by route and status");
    describe_counter!(ERRORS, "Errors that the gateway itself answered with, by code");
    describe_histogram!(REQUEST_SECONDS, Unit::Seconds, "From the last byte of a request to the first of its answer");
    describe_counter!(
        MEDIA,
        "Images by where they came from: source_hit, revalidated, shared, content_hit, decoded, ..."
    );
    describe_histogram!(FETCH_SECONDS, Unit::Seconds, "Fetching one image by URL, redirects and retries included");
    describe_histogram!(FETCHED_BYTES, Unit::Bytes, "Size of a fetched file");
    describe_histogram!(DECODE_SECONDS, Unit::Seconds, "Decoding and hashing one image, by format");
    describe_counter!(RESIZED, "Images that were decoded to the size that the model will see");
    describe_counter!(RESIZE_SAVED, Unit::Bytes, "Pixels that these have less than the images");
    describe_histogram!(ADMISSION_SECONDS, Unit::Seconds, "Waiting for memory, by budget");
    describe_counter!(TRANSFERS, "Images sent to workers, by outcome: push, inline, original, push_failed, ...");
    describe_histogram!(PUSH_SECONDS, Unit::Seconds, "One push over NIXL");
    describe_counter!(PUSHED_BYTES, Unit::Bytes, "Pixels pushed over NIXL");
    describe_histogram!(LANDING_SECONDS, Unit::Seconds, "Waiting for a landing slot on the worker");
    describe_counter!(RELOADS, "Times that the configuration was read again, by outcome");
    describe_gauge!(IN_FLIGHT, "Requests under way");
    describe_gauge!(ARENA_BYTES, Unit::Bytes, "Size of the arena, by zone");
    describe_gauge!(ARENA_USED, Unit::Bytes, "Bytes of the arena that hold pixels or wait for them, by zone");
    describe_gauge!(ARENA_LARGEST_FREE, Unit::Bytes, "Largest picture that fits without evicting one, by zone");
    describe_gauge!(ARENA_FRAGMENTATION, "Share of the free bytes that is not in the largest free range, by zone");
    describe_gauge!(BUDGET_BYTES, Unit::Bytes, "Bytes that may be held at once, by budget");
    describe_gauge!(BUDGET_FREE, Unit::Bytes, "Bytes of it that nobody holds, by budget");
    describe_gauge!(BUDGET_WAITING, "Requests that wait for some of it, by budget");
    describe_counter!(ROUTED, "Choices of a worker, by reason");
    describe_counter!(ROUTE_PROMPT, "Tokens of prompts whose worker said how many it had cached");
    describe_counter!(ROUTE_PREDICTED, "Of these, tokens that routing believed the worker to hold");
    describe_counter!(ROUTE_CACHED, "Of these, tokens that the worker did have cached");
    describe_histogram!(ROUTE_ERROR, "By how much of a prompt the two differ");
    describe_counter!(
        KV_NAMES,
        "Images that pass by URL whose names on workers were looked for in KV events, by outcome"
    );
    describe_gauge!(CACHED_SOURCES, "Sources that are remembered, failures included");
    describe_counter!(SIZES, "Sizes of images that pass by URL, as routing asked for them, by outcome");
    describe_counter!(PROMPTS, "Prompts of models with files, by what is known of them: tokens, or why those are not");
    describe_counter!(PROMPT_CHECKS, "Predicted tokens compared with a worker's, by whether they agree");
    describe_gauge!(PROMPT_MODELS_OFF, "Models whose tokens are predicted no more because they were wrong");
    gauge!(PROMPT_MODELS_OFF).set(0.0);
    describe_gauge!(CACHED_PICTURES, "Pictures that are kept");
    begin_at_zero();
    Ok(handle)
}

/// Sums up what histograms were given, each `interval` anew. They keep each sample until somebody looks, so that without
/// this a gateway whose metrics nobody asks for would fill its memory with them.
pub async fn upkeep(metrics: PrometheusHandle, interval: Duration) {
    let mut interval = tokio::time::interval(interval);
    loop {
        interval.tick().await;
        metrics.run_upkeep();
    }
}

/// What may never happen is there from the start, so that the first time is seen as a rise.
fn begin_at_zero() {
    for name in [RESIZED, RESIZE_SAVED, ROUTE_PROMPT, ROUTE_PREDICTED, ROUTE_CACHED] {
        counter!(name).increment(0);
    }
    for outcome in ["ok", "failed"] {
        counter!(RELOADS, "outcome" => outcome).increment(0);
    }
    for outcome in ["known", "fetch_failed", "late", "not_in_header", "bad_source"] {
        counter!(SIZES, "outcome" => outcome).increment(0);
    }
    for known_by in
        ["tokens", "image_size", "unusual", "template", "tokenizer", "placeholders", "too_long", "surface", "off"]
    {
        counter!(PROMPTS, "known_by" => known_by).increment(0);
    }
    for outcome in ["learned", "changed", "ambiguous"] {
        counter!(KV_NAMES, "outcome" => outcome).increment(0);
    }
    for agrees in [true, false] {
        counter!(PROMPT_CHECKS, "agrees" => agrees.to_string()).increment(0);
    }
}

pub fn request(route: &'static str, status: u16) {
    counter!(REQUESTS, "route" => route, "status" => status.to_string()).increment(1);
}

pub fn error(code: &'static str) {
    counter!(ERRORS, "code" => code).increment(1);
}

pub fn first_byte(route: &'static str, took: Duration) {
    histogram!(REQUEST_SECONDS, "route" => route).record(took);
}

pub fn media(from: &'static str) {
    counter!(MEDIA, "from" => from).increment(1);
}

/// How many came from the cache so far: counted elsewhere, since it is done for each of very many.
pub fn source_hits(sum: u64) {
    counter!(MEDIA, "from" => "source_hit").absolute(sum);
}

pub fn fetched(took: Duration, bytes: usize) {
    histogram!(FETCH_SECONDS).record(took);
    histogram!(FETCHED_BYTES).record(bytes as f64);
}

pub fn decoded(format: &'static str, took: Duration) {
    histogram!(DECODE_SECONDS, "format" => format).record(took);
}

pub fn resized(saved_bytes: usize) {
    counter!(RESIZED).increment(1);
    counter!(RESIZE_SAVED).increment(saved_bytes as u64);
}

pub fn admitted(budget: &'static str, waited: Duration) {
    histogram!(ADMISSION_SECONDS, "budget" => budget).record(waited);
}

pub fn transfer(outcome: &'static str) {
    counter!(TRANSFERS, "outcome" => outcome).increment(1);
}

pub fn pushed(took: Duration, bytes: usize) {
    histogram!(PUSH_SECONDS).record(took);
    counter!(PUSHED_BYTES).increment(bytes as u64);
}

pub fn landing_wait(waited: Duration) {
    histogram!(LANDING_SECONDS).record(waited);
}

pub fn reloaded(well: bool) {
    counter!(RELOADS, "outcome" => if well { "ok" } else { "failed" }).increment(1);
}

pub fn in_flight(requests: usize) {
    gauge!(IN_FLIGHT).set(requests as f64);
}

pub fn arena(zone: &'static str, usage: &ArenaUse) {
    gauge!(ARENA_BYTES, "zone" => zone).set(usage.total_bytes as f64);
    gauge!(ARENA_USED, "zone" => zone).set(usage.used_bytes as f64);
    gauge!(ARENA_LARGEST_FREE, "zone" => zone).set(usage.largest_free_bytes as f64);
    gauge!(ARENA_FRAGMENTATION, "zone" => zone).set(usage.fragmentation());
}

pub fn budget(name: &'static str, budget: &Budget) {
    gauge!(BUDGET_BYTES, "budget" => name).set(budget.total_bytes() as f64);
    gauge!(BUDGET_FREE, "budget" => name).set(budget.free_bytes() as f64);
    gauge!(BUDGET_WAITING, "budget" => name).set(budget.waiting() as f64);
}

pub fn routed(reason: &'static str) {
    counter!(ROUTED, "reason" => reason).increment(1);
}

/// A worker has said how much of a prompt it had cached.
pub fn route_cached(predicted: usize, cached: usize, tokens: usize) {
    counter!(ROUTE_PROMPT).increment(tokens as u64);
    counter!(ROUTE_PREDICTED).increment(predicted as u64);
    counter!(ROUTE_CACHED).increment(cached as u64);
    histogram!(ROUTE_ERROR).record(predicted.abs_diff(cached) as f64 / tokens.max(1) as f64);
}

/// What an event told of the worker's name for an image that passes by URL.
pub fn image_name(outcome: &'static str) {
    counter!(KV_NAMES, "outcome" => outcome).increment(1);
}

pub fn size_read(outcome: &'static str) {
    counter!(SIZES, "outcome" => outcome).increment(1);
}

pub fn prompt(known_by: &'static str) {
    counter!(PROMPTS, "known_by" => known_by).increment(1);
}

pub fn prompt_check(agrees: bool) {
    counter!(PROMPT_CHECKS, "agrees" => agrees.to_string()).increment(1);
}

pub fn prompt_model_off() {
    gauge!(PROMPT_MODELS_OFF).increment(1.0);
}

pub fn cached(sources: usize, pictures: usize) {
    gauge!(CACHED_SOURCES).set(sources as f64);
    gauge!(CACHED_PICTURES).set(pictures as f64);
}
