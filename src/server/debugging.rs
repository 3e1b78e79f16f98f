//! What `x-mediagate-debug: 1` shows: where the time went, which worker, and how the pictures travelled.

use std::{fmt::Write, time::Duration};

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use super::{
    headers,
    loaded::LoadedRequest,
    send::{Answer, SendTimes},
};
use crate::{
    media::{loader::LoadTimes, picture::Media},
    routing::Decision,
};

/// Times of one request, for the header `server-timing`.
pub struct Stages {
    start: Instant,
    last: Instant,
    stages: Vec<(&'static str, Duration)>,
}

impl Stages {
    /// The first stage begins.
    pub fn begin() -> Self {
        let now = Instant::now();
        Stages { start: now, last: now, stages: Vec::new() }
    }

    /// A stage ends, and the next begins.
    pub fn end(&mut self, stage: &'static str) {
        let now = Instant::now();
        self.stages.push((stage, now - self.last));
        self.last = now;
    }

    /// Images load side by side: each stage by the longest.
    pub fn loaded(&mut self, times: impl Iterator<Item = LoadTimes>) {
        let longest = times.fold(LoadTimes::default(), |a, b| LoadTimes {
            fetch: a.fetch.max(b.fetch),
            admission: a.admission.max(b.admission),
            decode: a.decode.max(b.decode),
        });
        self.stages.push(("fetch", longest.fetch));
        self.stages.push(("admission", longest.admission));
        self.stages.push(("decode", longest.decode));
        self.last = Instant::now();
    }
}

/// What `x-mediagate-debug: 1` shows.
pub struct Debugging {
    timing: HeaderValue,
    route: HeaderValue,
}

impl Debugging {
    /// Of an answer whose head is there.
    pub fn of(stages: &Stages, answer: &Answer, decision: &Decision, loaded: &LoadedRequest<'_>) -> Self {
        let SendTimes { prepare, push, worker: answered } = answer.times;
        let mut timing = String::new();
        let sent = [("prepare", prepare), ("push", push), ("worker", answered), ("total", stages.start.elapsed())];
        for (name, took) in stages.stages.iter().copied().chain(sent) {
            let comma = if timing.is_empty() { "" } else { ", " };
            // Writing to a String cannot fail.
            let _ = write!(timing, "{comma}{name};dur={:.3}", took.as_secs_f64() * 1000.0);
        }
        let transfers = if answer.transfers.is_empty() { "none".to_owned() } else { answer.transfers.join("+") };
        let mut route = format!("worker={}; transfer={transfers}; {decision}", decision.index);
        let sizes: Vec<_> = loaded.media.iter().filter_map(shipped_size).collect();
        if !sizes.is_empty() {
            let resize = if loaded.resize.is_some() { "auto" } else { "off" };
            let _ = write!(route, "; resize={resize}; sizes={}", sizes.join("+"));
        }
        // ASCII letters, digits and punctuation only.
        let header = |text: String| HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
        Debugging { timing: header(timing), route: header(route) }
    }

    /// Adds the headers.
    pub fn show(self, headers: &mut HeaderMap) {
        headers.insert(headers::SERVER_TIMING, self.timing);
        headers.insert(headers::ROUTE, self.route);
    }
}

/// Width and height as they go to the worker.
fn shipped_size(media: &Media) -> Option<String> {
    match media {
        Media::Picture(picture) => Some(format!("{}x{}", picture.name.width, picture.name.height)),
        Media::Original(_) => None,
    }
}
