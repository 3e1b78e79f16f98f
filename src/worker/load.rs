//! How busy a worker is: what this gateway has given it, and what it says itself.
//!
//! Work is counted in tokens of prompts, images by what they become, since that is what a worker's time goes by: an image
//! is a few hundred bytes of JSON and thousands of tokens. A request is queued until its answer begins, and then weighs
//! less: decoding shares steps with others. What other gateways have given the worker shows in its own metrics alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;

/// What a token of a request that is being answered weighs, against one that is still to be computed: an answer is some hundred
/// tokens where a prompt with images is thousands.
const RUNNING_SHARE: f64 = 0.1;

/// A report that is older says nothing of now.
const REPORT_AGE: Duration = Duration::from_secs(10);

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Load {
    queued_tokens: AtomicU64,
    running_tokens: AtomicU64,
    requests: AtomicUsize,
    report: ArcSwapOption<Report>,
}

/// What a worker says of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    pub running: u32,
    pub waiting: u32,
    /// Share of its KV cache that is in use, 0 to 1.
    pub kv_usage: f64,
    /// Requests of this gateway that were on it at the time.
    ours: usize,
    at: Instant,
}

/// How busy a worker is, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Busy {
    /// Work of ours, in tokens that are still to be computed.
    pub tokens: f64,
    /// Requests of others.
    pub others: usize,
    /// Share of its KV cache that is in use, 0 to 1.
    pub kv_usage: f64,
}

/// A request on a worker, for as long as it is kept.
#[derive(Debug)]
pub struct Work {
    load: Arc<Load>,
    new_tokens: u64,
    prompt_tokens: u64,
    running: bool,
}

impl Load {
    /// A request is sent: so many tokens of its prompt are to be computed, of so many in all.
    pub fn begin(self: &Arc<Self>, new_tokens: usize, prompt_tokens: usize) -> Work {
        let work = Work {
            load: self.clone(),
            new_tokens: new_tokens as u64,
            prompt_tokens: prompt_tokens as u64,
            running: false,
        };
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.queued_tokens.fetch_add(work.new_tokens, Ordering::Relaxed);
        work
    }

    /// How busy it is now.
    pub fn busy(&self) -> Busy {
        let queued = self.queued_tokens.load(Ordering::Relaxed) as f64;
        let running = self.running_tokens.load(Ordering::Relaxed) as f64;
        let report = self.report.load();
        let report = report.as_ref().filter(|report| report.at.elapsed() < REPORT_AGE);
        Busy {
            tokens: queued + running * RUNNING_SHARE,
            others: report
                .map_or(0, |r| ((r.running as usize).saturating_add(r.waiting as usize)).saturating_sub(r.ours)),
            kv_usage: report.map_or(0.0, |report| report.kv_usage),
        }
    }

    /// What the worker says now, or that it says nothing.
    pub fn set_report(&self, report: Option<Report>) {
        let ours = self.requests.load(Ordering::Relaxed);
        self.report.store(report.map(|report| Arc::new(Report { ours, ..report })));
    }
}

impl Report {
    /// Of vLLM's `/metrics`; the engines of several ranks are added up, and the fullest cache counts. `None` if that is
    /// not what it is.
    pub fn parse(metrics: &str) -> Option<Self> {
        let (mut running, mut waiting, mut kv_usage) = (None, None, 0.0_f64);
        for line in metrics.lines() {
            let Some((name, rest)) = line.split_once(['{', ' ']).filter(|(name, _)| name.starts_with("vllm:")) else {
                continue;
            };
            let sum = match name {
                "vllm:num_requests_running" => &mut running,
                "vllm:num_requests_waiting" => &mut waiting,
                "vllm:kv_cache_usage_perc" => {
                    kv_usage = kv_usage.max(value(rest)?);
                    continue;
                }
                _ => continue,
            };
            // As casts do: what is below 0 or no number is 0.
            *sum = Some(sum.unwrap_or(0_u32).saturating_add(value(rest)? as u32));
        }
        Some(Report { running: running?, waiting: waiting?, kv_usage: kv_usage.min(1.0), ours: 0, at: Instant::now() })
    }
}

/// The value of a sample: the last word of its line. (Time stamps, which may follow it, vLLM does not write.)
fn value(rest: &str) -> Option<f64> {
    rest.split_whitespace().last()?.parse().ok()
}

impl Work {
    /// Its answer has begun: the prompt is computed.
    pub fn answering(&mut self) {
        if !std::mem::replace(&mut self.running, true) {
            self.load.queued_tokens.fetch_sub(self.new_tokens, Ordering::Relaxed);
            self.load.running_tokens.fetch_add(self.prompt_tokens, Ordering::Relaxed);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        match self.running {
            true => self.load.running_tokens.fetch_sub(self.prompt_tokens, Ordering::Relaxed),
            false => self.load.queued_tokens.fetch_sub(self.new_tokens, Ordering::Relaxed),
        };
        self.load.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_weighs_less_once_its_answer_has_begun_and_nothing_when_it_is_over() {
        let load = Arc::new(Load::default());
        let mut work = load.begin(300, 1000);
        let other = load.begin(50, 50);
        assert_eq!(load.busy().tokens, 350.0);
        work.answering();
        work.answering();
        assert_eq!(load.busy().tokens, 50.0 + 1000.0 * RUNNING_SHARE);
        drop((work, other));
        assert_eq!(load.busy(), Busy::default());
    }

    #[test]
    fn a_report_tells_of_requests_that_are_not_ours() {
        let metrics = "# HELP vllm:num_requests_running Number\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a b\"} 3.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"a b\"} 2.0\n\
            vllm:num_requests_waiting{engine=\"0\"} 4.0\nvllm:num_requests_waiting_by_reason{reason=\"x\"} 9.0\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\nother 1\n";
        let report = Report::parse(metrics).unwrap();
        assert_eq!((report.running, report.waiting, report.kv_usage), (5, 4, 0.75));
        let load = Arc::new(Load::default());
        let _work = load.begin(1, 1);
        load.set_report(Some(report));
        assert_eq!((load.busy().others, load.busy().kv_usage), (8, 0.75));
        load.set_report(None);
        assert_eq!(load.busy().others, 0);
    }

    #[test]
    fn what_is_no_report_is_none() {
        let extremes = "vllm:num_requests_running 1e300\nvllm:num_requests_waiting -1";
        assert_eq!(Report::parse(extremes).map(|report| (report.running, report.waiting)), Some((u32::MAX, 0)));
        for metrics in ["", "vllm:num_requests_running", "vllm:num_requests_running x\nvllm:num_requests_waiting 1"] {
            assert_eq!(Report::parse(metrics), None);
        }
    }
}
