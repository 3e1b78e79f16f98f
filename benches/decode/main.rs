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
};

use codecs::codec;
use criterion::{BenchmarkId, Criterion, Throughput};
use mediagate::media::{
    content::{ContentHash, MediaId, Scope},
    decode::{DecodeLimits, Format, Probe, decode_into, probe},
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
    let mut criterion = Criterion::default().configure_from_args();
    decoding(&mut criterion);
    hashing(&mut criterion);
    criterion.final_summary();
}

fn decoding(criterion: &mut Criterion) {
    let photograph = Pixels::photograph();
    let pillow = RefCell::new(Pillow::start());
    for picture in PICTURES {
        let mut group = criterion.benchmark_group(picture.name);
        group.throughput(Throughput::Elements((picture.width * picture.height) as u64)).sample_size(10);
        let size = format!("{}x{}", picture.width, picture.height);
        // Made when it is first asked for: a filter passes over most.
        let file = OnceCell::new();
        let file = || file.get_or_init(|| picture.encode(&photograph)).as_slice();
        group.bench_function(BenchmarkId::new("header", &size), |bencher| {
            let file = file();
            bencher.iter(|| probe(black_box(file), &DecodeLimits::default()));
        });
        group.bench_function(BenchmarkId::new("ours", &size), |bencher| {
            let file = file();
            let Ok(Probe::Decodable(header)) = probe(file, &DecodeLimits::default()) else { panic!("decodable") };
            let mut out = vec![0; header.rgb_bytes()];
            bencher.iter(|| decode_into(file, &header, &mut out).expect("a whole picture"));
        });
        // For the others, the decoder is ours.
        if ["JPEG", "PNG", "WebP"].iter().any(|format| picture.name.starts_with(format)) {
            group.bench_function(BenchmarkId::new("codec", &size), |bencher| {
                let file = file();
                let codec = Format::sniff(file).and_then(|format| codec(format, file)).expect("a codec");
                let mut out = vec![0; picture.width * picture.height * 4];
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
