//! What decoding into a slot costs beside the codec alone and beside Pillow, and what the two hashes cost.
//!
//! `cargo bench --bench decode` lets criterion measure each. `cargo bench --bench decode -- --table` prints the tables of
//! docs/PERFORMANCE.md, whose ratios are of one interleaved run; a word after it chooses pictures by name. Pillow is asked
//! where `.venv`, or the Python that `PILLOW_PYTHON` names, has it.

mod codecs;
mod pictures;
mod pillow;
mod table;

use std::{
    cell::{OnceCell, RefCell},
    env,
    hint::black_box,
    time::Duration,
};

use codecs::codec;
use criterion::{BenchmarkId, Criterion, Throughput};
use mediagate::{
    media::{
        content::{ContentHash, MediaId, Scope},
        decode::{DecodeLimits, Format, Probe, Scratch, decode_into, probe},
    },
    memory::{Arena, SlotMut},
};
use pictures::{PICTURES, Pixels};
use pillow::Pillow;

fn main() {
    let mut arguments = env::args().skip_while(|argument| argument != "--table");
    if arguments.next().is_some() {
        let filter = arguments.find(|argument| !argument.starts_with('-'));
        table::print(&filter.unwrap_or_default());
        return;
    }
    // More than a hundred measurements of milliseconds each: four minutes in all.
    let (warm_up, measurement) = (Duration::from_millis(300), Duration::from_millis(1500));
    let criterion = Criterion::default().warm_up_time(warm_up).measurement_time(measurement);
    let mut criterion = criterion.configure_from_args();
    decoding(&mut criterion);
    hashing(&mut criterion);
    criterion.final_summary();
}

/// Memory such as pictures are decoded into: in huge pages, where the system gives some, and there before it is needed.
fn slot(bytes: usize) -> SlotMut {
    Arena::new(Arena::charge(bytes)).ok().and_then(|arena| arena.allocate(bytes)).expect("memory for a picture")
}

fn decoding(criterion: &mut Criterion) {
    let photograph = Pixels::photograph();
    let pillow = RefCell::new(Pillow::start());
    for picture in PICTURES {
        let mut group = criterion.benchmark_group(picture.name);
        group.sample_size(10);
        let size = format!("{}x{}", picture.width, picture.height);
        // Made when it is first asked for: a filter passes over most.
        let file = OnceCell::new();
        let file = || file.get_or_init(|| picture.encode(&photograph)).as_slice();
        group.bench_function(BenchmarkId::new("header", &size), |bencher| {
            let file = file();
            bencher.iter(|| probe(black_box(file), &DecodeLimits::default()));
        });
        group.throughput(Throughput::Elements((picture.width * picture.height) as u64));
        group.bench_function(BenchmarkId::new("ours", &size), |bencher| {
            let file = file();
            let Ok(Probe::Decodable(header)) = probe(file, &DecodeLimits::default()) else { panic!("decodable") };
            let (mut out, mut scratch) = (slot(header.rgb_bytes()), Scratch::default());
            bencher.iter(|| decode_into(file, &header, &mut out, &mut scratch).expect("a whole picture"));
        });
        // For the others, the decoder is ours.
        if ["JPEG", "PNG", "WebP"].iter().any(|format| picture.name.starts_with(format)) {
            group.bench_function(BenchmarkId::new("codec", &size), |bencher| {
                let file = file();
                let codec = Format::sniff(file).and_then(|format| codec(format, file)).expect("a codec");
                let mut out = slot(picture.width * picture.height * 4);
                bencher.iter(|| codec(file, &mut out));
            });
        }
        if pillow.borrow().is_some() {
            group.bench_function(BenchmarkId::new("pillow", &size), |bencher| {
                let mut pillow = pillow.borrow_mut();
                let pillow = pillow.as_mut().expect("it was there");
                pillow.open(file());
                bencher.iter_custom(|times| pillow.decode(times).wall);
            });
        }
        group.finish();
    }
}

fn hashing(criterion: &mut Criterion) {
    let pixels: Vec<u8> = (0..12_000_000 * 3u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
    let scope = Scope::new(None, None);
    for (height, width) in [(480, 640), (1080, 1920), (3000, 4000)] {
        let pixels = &pixels[..height as usize * width as usize * 3];
        let mut group = criterion.benchmark_group(format!("hash {width}x{height}"));
        group.throughput(Throughput::Bytes(pixels.len() as u64));
        group.bench_function("content hash", |bencher| bencher.iter(|| ContentHash::of(height, width, pixels)));
        group.bench_function("xxh3-64", |bencher| bencher.iter(|| twox_hash::XxHash3_64::oneshot(pixels)));
        let content_hash = ContentHash::of(height, width, pixels);
        group.bench_function("media id", |bencher| {
            bencher.iter(|| MediaId::of(&scope, content_hash, height, width, pixels));
        });
        group.bench_function("BLAKE3", |bencher| bencher.iter(|| blake3::keyed_hash(&[7; 32], pixels)));
        group.finish();
    }
}
