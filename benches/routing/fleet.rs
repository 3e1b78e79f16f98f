//! A fleet of workers that compute nothing: each keeps blocks as vLLM does, the least recently used going first, and tells
//! what it keeps by events.

use std::{
    collections::{BTreeSet, HashMap},
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
    println!("hits: {WORKERS} workers, {REQUESTS} requests; share of prompt tokens that were cached, and the busiest");
    println!("worker's tokens against the mean");
    let mut csv = String::from("policy,tokens_per_worker,hit_rate,imbalance\n");
    for (name, policy, images) in POLICIES {
        print!("{name:>15}");
        for blocks in SIZES {
            let (hit_rate, imbalance) = run(&trace, policy, images, blocks);
            print!("  {blocks}: {:.1} % ({imbalance:.2})", hit_rate * 100.0);
            // Writing to a String cannot fail.
            let _ = writeln!(csv, "{name},{},{hit_rate:.4},{imbalance:.3}", blocks * BLOCK);
        }
        println!();
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/routing_hits.csv");
    std::fs::write(&path, csv).expect("target/ can be written");
}

fn run(trace: &[Request], policy: RoutePolicy, images: bool, blocks: usize) -> (f64, f64) {
    let index = Arc::new(KvIndex::new(WORKERS * blocks * 2));
    let router = Router::new(policy, Weights::default(), index.clone());
    let mut workers: Vec<Worker> = (0..WORKERS).map(|id| Worker::new(&index, id, blocks, images)).collect();
    let (mut cached, mut total) = (0, 0);
    for (nth, request) in trace.iter().enumerate() {
        router.let_time_pass(BETWEEN);
        for worker in &mut workers {
            worker.queued = (worker.queued - TOKENS_PER_SECOND * BETWEEN.as_secs_f64()).max(0.0);
        }
        let candidates: Vec<Candidate> = workers.iter().enumerate().map(|(id, worker)| worker.candidate(id)).collect();
        let decision = router.choose(&request.asked(images), &candidates).expect("there are workers");
        let hit = workers[decision.index].serve(&request.prompt);
        if nth >= WARM_UP {
            cached += hit;
            total += request.prompt.ids.len();
        }
    }
    let most = workers.iter().map(|worker| worker.served).max().unwrap_or(0);
    let mean = workers.iter().map(|worker| worker.served).sum::<usize>() as f64 / WORKERS as f64;
    (cached as f64 / total as f64, most as f64 / mean)
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
    queued: f64,
    served: usize,
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
            served: 0,
        }
    }

    fn candidate(&self, index: usize) -> Candidate {
        let requests = (self.queued / 2000.0) as usize;
        Candidate {
            index,
            name: index as u64 * 0x1234_5678_9abc_def1,
            in_flight: requests,
            busy: Busy { tokens: self.queued, ..Busy::default() },
            belief: None,
        }
    }

    /// Computes what is not cached; how many tokens were.
    fn serve(&mut self, prompt: &PromptTokens) -> usize {
        self.clock += 1;
        let hashes = BlockHasher::default().of_prompt(CacheScope::default(), prompt, BLOCK);
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
        self.served += prompt.ids.len();
        cached
    }

    fn extra(&self, media: &[MediaSpan], block: usize) -> BlockExtra {
        let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
        let within = media.iter().filter(|span| self.images && span.offset < end && span.offset + span.length > start);
        let media = within.map(|span| (span.hash, span.offset as i64 - start as i64)).collect();
        BlockExtra { media, ..BlockExtra::default() }
    }
}
