//! The hit path of the loader: what a request pays for an image that is there.
//!
//! `cargo bench --bench loader`. Nearly flat from a hundred entries to a hundred thousand: what rises is the price of
//! memory that is in no cache of the processor, which `bare_lru` pays as well, a lookup of as many entries and no more.
//! And no slower per image when sixteen ask at once than the cores account for.

use std::{
    hint::black_box,
    num::NonZeroUsize,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures_util::FutureExt;
use mediagate::{
    media::{
        content::Scope,
        decode::DecodeLimits,
        fetch::FetchConfig,
        loader::{MediaConfig, MediaLoader},
        source::SourceText,
    },
    memory::Arena,
};
use tokio::time::Instant as Deadline;

/// A picture of one pixel in a data: URI: a source as short as an image URL, and an entry like any other.
fn source(number: u32) -> String {
    let [_, red, green, blue] = number.to_be_bytes();
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, 1, 1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&[red, green, blue]).unwrap();
    writer.finish().unwrap();
    format!("data:image/png;base64,{}", base64_simd::STANDARD.encode_to_string(file))
}

fn filled(entries: u32) -> (MediaLoader, Vec<String>) {
    let config = MediaConfig {
        fetch: FetchConfig::default(),
        decode: DecodeLimits::default(),
        encoded_bytes: 64 << 20,
        scratch_bytes: 64 << 20,
        jpeg_scaling: false,
        decoders: 2,
        fresh: Duration::from_secs(60),
        fresh_min: Duration::ZERO,
        fresh_max: Duration::from_secs(3600),
        negative: Duration::ZERO,
    };
    let arena = Arena::new((entries as usize + 1024) * 4096).unwrap();
    let loader = MediaLoader::new(config, arena).unwrap();
    let sources: Vec<_> = (0..entries).map(source).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for batch in sources.chunks(256) {
            let deadline = Deadline::now() + Duration::from_secs(60);
            loader.load_all(&texts(batch), &Scope::default(), deadline).await.unwrap();
        }
    });
    (loader, sources)
}

fn texts(sources: &[String]) -> Vec<SourceText> {
    sources.iter().map(|source| source.as_str().into()).collect()
}

/// A hit waits for nothing, so it is there at the first poll.
fn hit(loader: &MediaLoader, source: &SourceText, scope: &Scope, deadline: Deadline) {
    let loaded = loader.load(source.clone(), scope, deadline).now_or_never().expect("a hit").unwrap();
    black_box(loaded);
}

/// Visits all, in an order that no cache of the processor foresees.
fn order<T>(sources: &[T], mut at: usize) -> impl Iterator<Item = &T> {
    std::iter::repeat_with(move || {
        at = (at + 7919) % sources.len();
        &sources[at]
    })
}

fn hits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hit");
    let (scope, deadline) = (Scope::default(), Deadline::now() + Duration::from_secs(3600));
    for entries in [100, 1_000, 10_000, 100_000] {
        let (loader, sources) = filled(entries);
        let mut sources = order(&sources, 0);
        group.bench_function(BenchmarkId::from_parameter(entries), |bencher| {
            // A request has just been read when its images are loaded: the texts are at hand, the entries are not.
            let text = || SourceText::from(sources.next().unwrap().as_str());
            bencher.iter_batched_ref(
                text,
                |source| hit(&loader, source, &scope, deadline),
                BatchSize::NumIterations(64),
            );
        });
    }
    group.finish();
}

/// What no cache can do without: one lookup in the LRU map that everybody uses, and a reference to what is found.
fn bare_lookups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bare_lru");
    for entries in [100, 1_000, 10_000, 100_000] {
        let key = |number: usize| *blake3::hash(&number.to_le_bytes()).as_bytes();
        let mut map = lru::LruCache::new(NonZeroUsize::new(entries).unwrap());
        for number in 0..entries {
            // As much as the loader knows of a picture.
            map.put(key(number), ([number; 8], Arc::new([number; 8])));
        }
        let keys: Vec<_> = (0..entries).map(|at| key(at * 7919 % entries)).collect();
        let mut keys = keys.iter().cycle();
        group.bench_function(BenchmarkId::from_parameter(entries), |bencher| {
            bencher.iter(|| black_box(map.get(keys.next().unwrap()).cloned()));
        });
    }
    group.finish();
}

fn hits_side_by_side(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hits_side_by_side");
    group.throughput(Throughput::Elements(1));
    let (scope, deadline) = (Scope::default(), Deadline::now() + Duration::from_secs(3600));
    let (loader, sources) = filled(1_000);
    let sources = texts(&sources);
    for threads in [1, 2, 4, 16] {
        group.bench_function(BenchmarkId::from_parameter(threads), |bencher| {
            bencher.iter_custom(|hits| {
                let each = hits.div_ceil(threads);
                let start = Instant::now();
                thread::scope(|scope_of_threads| {
                    for thread in 0..threads {
                        let (loader, sources, scope) = (&loader, &sources, &scope);
                        // Not all at the same picture at once.
                        let start = (thread * 61) as usize;
                        scope_of_threads.spawn(move || {
                            for source in order(sources, start).take(each as usize) {
                                hit(loader, source, scope, deadline);
                            }
                        });
                    }
                });
                start.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, hits, bare_lookups, hits_side_by_side);
criterion_main!(benches);
