//! A fleet of workers that compute nothing: each keeps blocks as vLLM does, the least recently used going first, and tells
//! what it keeps by events.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    fmt::Write,
    sync::Arc,
    time::Duration,
};

use mediagate::{
    routing::{
        Candidate, RoutePolicy, Router, Weights,
        kv::{
            KvIndex, Lane, View,
            blocks::{BlockHasher, CacheScope, chain_keys},
            events::{BlockExtra, KvEvent, Removed, Stored},
        },
        prompt::{MediaSpan, PromptTokens},
    },
    worker::load::Busy,
};

use crate::trace::{BLOCK, Request, requests};

const WORKERS: usize = 64;
const REQUESTS: usize = 30_000;
/// Requests whose hits are not counted: the caches are cold.
const WARM_UP: usize = 6_000;

/// Time between two requests.
const BETWEEN: Duration = Duration::from_millis(10);
/// Prompt tokens that a worker computes a second. With it, the fleet is two thirds busy if nothing is cached.
const TOKENS_PER_SECOND: f64 = 10_000.0;
/// Requests between the beginning of an answer and its end: five seconds.
const ANSWERING: usize = 500;
/// What a token of a request that is being answered weighs, as in `worker::load`.
const RUNNING_SHARE: f64 = 0.1;

/// Blocks of a worker's cache.
const SIZES: [usize; 6] = [64, 128, 256, 512, 1024, 2048];

/// Who is compared: name, policy, whether it sees images.
const POLICIES: [(&str, RoutePolicy, bool); 4] = [
    ("round-robin", RoutePolicy::RoundRobin, true),
    ("prefix-only", RoutePolicy::MmKv, false),
    ("media-affinity", RoutePolicy::MediaAffinity, true),
    ("mm-kv", RoutePolicy::MmKv, true),
];

pub fn simulate() {
    let trace = requests(REQUESTS, 1);
    println!(
        "hits: {WORKERS} workers, {REQUESTS} requests; share of prompt tokens that were cached, and in brackets of the"
    );
    println!(
        "busiest worker against the mean: requests, computed tokens; seconds that the unluckiest percent was queued"
    );
    let mut csv = String::from("policy,tokens_per_worker,hit_rate,most_requests,most_computed,queued_p99\n");
    for (name, policy, images) in POLICIES {
        print!("{name:>15}");
        for blocks in SIZES {
            let Outcome { hit_rate, requests, computed, queued } = run(&trace, policy, images, blocks);
            print!("  {blocks}: {:.1} % ({requests:.2} {computed:.2} {queued:.2})", hit_rate * 100.0);
            // Writing to a String cannot fail.
            let _ = writeln!(csv, "{name},{},{hit_rate:.4},{requests:.3},{computed:.3},{queued:.3}", blocks * BLOCK);
        }
        println!();
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/routing_hits.csv");
    std::fs::write(&path, csv).expect("target/ can be written");
}

struct Outcome {
    hit_rate: f64,
    /// Of the busiest worker against the mean.
    requests: f64,
    computed: f64,
    /// Seconds, of a hundred requests the unluckiest.
    queued: f64,
}

fn run(trace: &[Request], policy: RoutePolicy, images: bool, blocks: usize) -> Outcome {
    let index = Arc::new(KvIndex::new(WORKERS * blocks * 2));
    let router = Router::new(policy, Weights::default(), index.clone());
    let mut workers: Vec<Worker> = (0..WORKERS).map(|id| Worker::new(&index, id, blocks, images)).collect();
    let (mut cached, mut total) = (0, 0);
    let mut queued = Vec::new();
    for (nth, request) in trace.iter().enumerate() {
        router.let_time_pass(BETWEEN);
        for worker in &mut workers {
            worker.go_on(nth);
        }
        let candidates: Vec<Candidate> = workers.iter().enumerate().map(|(id, worker)| worker.candidate(id)).collect();
        let decision = router.choose(&request.asked(images), &candidates).expect("there are workers");
        let worker = &mut workers[decision.index];
        let hit = worker.serve(nth, &request.prompt);
        if nth >= WARM_UP {
            cached += hit;
            total += request.prompt.ids.len();
            worker.requests += 1;
            worker.computed += request.prompt.ids.len() - hit;
            queued.push(worker.queued / TOKENS_PER_SECOND);
        }
    }
    queued.sort_unstable_by(f64::total_cmp);
    Outcome {
        hit_rate: cached as f64 / total as f64,
        requests: most(workers.iter().map(|worker| worker.requests)),
        computed: most(workers.iter().map(|worker| worker.computed)),
        queued: queued[queued.len() * 99 / 100],
    }
}

/// The most against the mean.
fn most(of: impl Iterator<Item = usize> + Clone) -> f64 {
    of.clone().max().unwrap_or(0) as f64 / (of.sum::<usize>() as f64 / WORKERS as f64)
}

struct Worker {
    lane: Lane,
    images: bool,
    capacity: usize,
    clock: u64,
    /// By a block's key: when it was used last, and how deep it stands.
    blocks: HashMap<u64, (u64, u64)>,
    /// The deepest of the least recently used comes first.
    by_age: BTreeSet<(u64, u64, u64)>,
    /// Tokens that are still to be computed.
    queued: f64,
    /// Requests: when each will have been answered, by the number of the request that comes then, and the tokens of its prompt.
    answering: VecDeque<(usize, usize)>,
    requests: usize,
    computed: usize,
}

impl Worker {
    fn new(index: &Arc<KvIndex>, id: usize, capacity: usize, images: bool) -> Self {
        let mut lane = index.lane(id, &id.to_string()).expect("there is room for the workers");
        lane.set_view(View::Complete);
        Worker {
            lane,
            images,
            capacity,
            clock: 0,
            blocks: HashMap::new(),
            by_age: BTreeSet::new(),
            queued: 0.0,
            answering: VecDeque::new(),
            requests: 0,
            computed: 0,
        }
    }

    fn candidate(&self, index: usize) -> Candidate {
        let running: usize = self.answering.iter().map(|&(_, tokens)| tokens).sum();
        Candidate {
            index,
            name: index as u64 * 0x1234_5678_9abc_def1,
            in_flight: self.answering.len(),
            busy: Busy { tokens: self.queued + running as f64 * RUNNING_SHARE, ..Busy::default() },
            belief: None,
        }
    }

    /// Time passes until this request.
    fn go_on(&mut self, now: usize) {
        self.queued = (self.queued - TOKENS_PER_SECOND * BETWEEN.as_secs_f64()).max(0.0);
        while self.answering.front().is_some_and(|&(until, _)| until <= now) {
            self.answering.pop_front();
        }
    }

    /// Computes what is not cached; how many tokens were.
    fn serve(&mut self, now: usize, prompt: &PromptTokens) -> usize {
        self.clock += 1;
        let hashes = BlockHasher::default().of_prompt(CacheScope::default(), &prompt.ids, &prompt.media, BLOCK);
        let names = chain_keys(&hashes);
        let hit = names.iter().take_while(|name| self.blocks.contains_key(name)).count();
        for (depth, &name) in names.iter().enumerate() {
            let age = (self.clock, u64::MAX - depth as u64);
            if let Some((clock, depth)) = self.blocks.insert(name, age) {
                self.by_age.remove(&(clock, depth, name));
            }
            self.by_age.insert((age.0, age.1, name));
        }
        if hit < names.len() {
            let event = Stored {
                hashes: names[hit..].to_vec(),
                parent: hit.checked_sub(1).map(|before| names[before]),
                token_ids: prompt.ids[hit * BLOCK..names.len() * BLOCK].to_vec(),
                block_size: BLOCK,
                extra: (hit..names.len()).map(|block| self.extra(&prompt.media, block)).collect(),
                ..Stored::default()
            };
            self.lane.apply(KvEvent::Stored(event));
        }
        let mut removed = Vec::new();
        while self.blocks.len() > self.capacity {
            let Some((_, _, name)) = self.by_age.pop_first() else { break };
            self.blocks.remove(&name);
            removed.push(name);
        }
        if !removed.is_empty() {
            self.lane.apply(KvEvent::Removed(Removed { hashes: removed, ..Removed::default() }));
        }
        let cached = hit * BLOCK;
        self.queued += (prompt.ids.len() - cached) as f64;
        let queued = self.queued / TOKENS_PER_SECOND / BETWEEN.as_secs_f64();
        self.answering.push_back((now + queued as usize + ANSWERING, prompt.ids.len()));
        cached
    }

    fn extra(&self, media: &[MediaSpan], block: usize) -> BlockExtra {
        let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
        let within = media.iter().filter(|span| self.images && span.offset < end && span.offset + span.length > start);
        let media = within.map(|span| (span.hash, span.offset as i64 - start as i64)).collect();
        BlockExtra { media, ..BlockExtra::default() }
    }
}
