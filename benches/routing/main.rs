//! Routing without workers: `cargo bench --bench routing` (or, built already, with one of `cost`, `hits` as an argument).
//!
//! - `cost`: a million blocks on 64 workers: what a decision costs, with a tenth and with all of the blocks, events a
//!   second on one core, bytes a block. Times are given as they are, and depend on the machine.
//! - `hits`: a fleet of 64 simulated workers with caches of different sizes under a trace of conversations about images:
//!   which share of the prompts' tokens was cached where the policy sent them. Writes `target/routing_hits.csv`, of which
//!   benches/routing/plot.py makes docs/routing_hits.svg.

mod cost;
mod fleet;
mod trace;

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    if wanted("cost") {
        cost::measure();
    }
    if wanted("hits") {
        fleet::simulate();
    }
}
