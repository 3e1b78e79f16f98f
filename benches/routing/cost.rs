//! What decisions and events cost.

use std::{sync::Arc, time::Duration};

use mediagate::{
    routing::{
        Affinity, Asked, Candidate, RoutePolicy, Router, Weights,
        kv::{
            KvIndex, Lane, View,
            events::{BlockExtra, KvEvent, Removed, Stored},
        },
        prompt::{MediaSpan, MmHash, MmImage, MmRoutingInfo, Prompt, PromptTokens},
    },
    worker::load::Busy,
};

const WORKERS: usize = 64;
const SIZE: usize = 16;
/// A prompt: text, an image of 1080p, text.
const PROMPT_BLOCKS: usize = 160;
const IMAGE: (usize, usize) = (320, 2040);
const BLOCKS: usize = 1_000_000;
const DECISIONS: usize = 20_000;

pub fn measure() {
    println!("cost: {WORKERS} workers, prompts of {PROMPT_BLOCKS} blocks of {SIZE} tokens with an image each");
    let before = resident_bytes();
    let index = Arc::new(KvIndex::new(2 * BLOCKS));
    let router = Router::new(RoutePolicy::MmKv, Weights::default(), index.clone());
    let mut lanes: Vec<Lane> = (0..WORKERS)
        .map(|worker| {
            let mut lane = index.lane(worker, &worker.to_string()).expect("there is room for the workers");
            lane.set_view(View::Complete);
            lane
        })
        .collect();
    let prompts = BLOCKS / PROMPT_BLOCKS;
    let (mut busy, mut blocks) = (Duration::ZERO, 0);
    for prompt in 0..prompts {
        let event = KvEvent::Stored(stored(prompt));
        let start = cpu_time();
        lanes[prompt % WORKERS].apply(event);
        busy += cpu_time() - start;
        blocks += PROMPT_BLOCKS;
        if prompt == prompts / 10 {
            decisions(&router, &index, prompt);
        }
    }
    let after = resident_bytes();
    decisions(&router, &index, prompts);
    println!("  stored: {:.0} blocks a second", blocks as f64 / busy.as_secs_f64());
    println!(
        "  memory: {:.0} bytes a block, tables of the workers' names included",
        (after - before) as f64 / blocks as f64
    );
    let start = cpu_time();
    for prompt in 0..prompts / 2 {
        let removed = Removed { hashes: stored(prompt).hashes, ..Removed::default() };
        lanes[prompt % WORKERS].apply(KvEvent::Removed(removed));
    }
    let rate = (prompts / 2 * PROMPT_BLOCKS) as f64 / (cpu_time() - start).as_secs_f64();
    println!("  removed: {rate:.0} blocks a second");
    let lane = lanes.pop();
    let start = cpu_time();
    drop(lane);
    println!(
        "  a worker with {} blocks gone: {:.2} ms",
        BLOCKS / WORKERS / 2,
        (cpu_time() - start).as_secs_f64() * 1e3
    );
}

/// Times of decisions, half of them about prompts that a worker holds.
fn decisions(router: &Router, index: &KvIndex, known: usize) {
    let candidates: Vec<Candidate> = (0..WORKERS)
        .map(|index| Candidate {
            index,
            name: index as u64 * 0x1234_5678_9abc_def1,
            busy: Busy { tokens: (index * 37 % 500) as f64, ..Busy::default() },
            ..Candidate::default()
        })
        .collect();
    let blocks: usize = (0..WORKERS).map(|worker| index.blocks(worker)).sum();
    let mut times: Vec<Duration> = (0..DECISIONS)
        .map(|nth| {
            let prompt = if nth % 2 == 0 { nth * 7 % known.max(1) } else { 1_000_000 + nth };
            let asked = asked(prompt);
            let start = cpu_time();
            let decision = router.choose(&asked, &candidates);
            let took = cpu_time() - start;
            assert!(decision.is_some());
            took
        })
        .collect();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!("  decision, {blocks} blocks known: p50 {:.1} us, p99 {:.1} us", at(0.5), at(0.99));
}

fn tokens(prompt: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..PROMPT_BLOCKS * SIZE).map(|token| token as u32 % 1000).collect();
    ids[IMAGE.0..IMAGE.0 + IMAGE.1].fill(5);
    // What is before the image is shared by all, what follows it is not.
    ids[IMAGE.0 + IMAGE.1..].fill(prompt as u32 + 10_000);
    ids
}

fn image(prompt: usize) -> MmHash {
    MmHash::of_identifier(blake3::hash(&prompt.to_le_bytes()).to_hex().as_str())
}

fn stored(prompt: usize) -> Stored {
    let hash = image(prompt);
    let extra = (0..PROMPT_BLOCKS).map(|block| {
        let start = block * SIZE;
        let within = start + SIZE > IMAGE.0 && start < IMAGE.0 + IMAGE.1;
        let media = within.then_some((hash, IMAGE.0 as i64 - start as i64)).into_iter().collect();
        BlockExtra { media, ..BlockExtra::default() }
    });
    let name = |block: usize| Affinity::new((prompt * PROMPT_BLOCKS + block) as u64).score(1);
    Stored {
        hashes: (0..PROMPT_BLOCKS).map(name).collect(),
        token_ids: tokens(prompt),
        block_size: SIZE,
        extra: extra.collect(),
        ..Stored::default()
    }
}

fn asked(prompt: usize) -> Asked {
    let hash = image(prompt);
    Asked {
        affinity: Affinity::new(hash.prefix()),
        images: vec![hash],
        mm: Some(MmRoutingInfo::new(vec![MmImage { hash, tokens: IMAGE.1 }])),
        prompt: Prompt::Tokens(Arc::new(PromptTokens {
            ids: tokens(prompt),
            media: vec![MediaSpan { hash, offset: IMAGE.0, length: IMAGE.1 }],
        })),
        model: None,
        salt: None,
        named: true,
        checked: false,
    }
}

/// Time of a CPU that this thread has had: what else runs on the machine does not count.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to the struct that it is given, which outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Memory of this process.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
