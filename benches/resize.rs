//! What resizing to a model's size costs, on one thread and on two.
//!
//! `cargo bench --bench resize -- FILE...` prints milliseconds for each file, all of one run, interleaved, the best of many
//! rounds. *Decode* is to full size; *whole* decodes and resizes as the gateway does, *two* does that to two pictures on two
//! threads at once; *passes* is the two passes alone over a decoded picture, on one thread, and cut in two for two.

use std::{
    env, fs,
    num::NonZeroU32,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use fast_image_resize::{
    FilterType, ImageView, ImageViewMut, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedImage, TypedImageRef},
    pixels::U8x3,
};
use mediagate::media::{
    decode::{self, DecodeLimits, Probe, Size, decode_into, probe},
    resize::{Scratch, SmartResize, decode_resized},
};

const ROUNDS: usize = 21;
const HALVES: NonZeroU32 = NonZeroU32::new(2).unwrap();

fn main() {
    let files: Vec<_> = env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if files.is_empty() {
        println!("usage: cargo bench --bench resize -- FILE...");
    }
    // Qwen2-VL's patches, and its processor's own limit: about a megapixel.
    let rule = SmartResize::new(28, 3136, 1_003_520).unwrap();
    println!(
        "{:>20} {:>11} {:>11} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "file", "from", "to", "decode", "whole", "two", "passes", "in two"
    );
    for file in files {
        let bytes = fs::read(&file).unwrap();
        let limits = DecodeLimits { max_pixels: 1 << 30, max_scratch_bytes: usize::MAX, ..DecodeLimits::default() };
        let Ok(Probe::Decodable(header)) = probe(&bytes, &limits) else {
            println!("{file}: not decoded");
            continue;
        };
        let Some(target) = rule.target(header.size()) else {
            println!("{file}: not resized");
            continue;
        };
        let mut full = vec![0; header.rgb_bytes()];
        let mut out = vec![0; target.rgb_bytes()];
        let mut other = (vec![0; target.rgb_bytes()], Scratch::default());
        let (mut scratch, mut of_decoder) = (Scratch::default(), decode::Scratch::default());
        let mut passes = Passes::new(header.size(), target);
        let mut best = [Duration::MAX; 5];
        for _ in 0..ROUNDS {
            let taken = [
                time(|| decode_into(&bytes, &header, &mut full, &mut of_decoder).unwrap()),
                time(|| decode_resized(&bytes, &header, target, &mut out, &mut scratch).unwrap()),
                time(|| {
                    thread::scope(|scope| {
                        scope.spawn(|| decode_resized(&bytes, &header, target, &mut other.0, &mut other.1).unwrap());
                        decode_resized(&bytes, &header, target, &mut out, &mut scratch).unwrap();
                    });
                }),
                time(|| passes.on_one_thread(&full)),
                time(|| passes.on_two_threads(&full)),
            ];
            best.iter_mut().zip(taken).for_each(|(best, taken)| *best = (*best).min(taken));
            assert!(passes.out == out, "the passes are those of the gateway");
        }
        let name = Path::new(&file).file_name().unwrap_or_default().to_string_lossy();
        let [decode, whole, two, one_thread, two_threads] = best.map(|taken| taken.as_secs_f64() * 1e3);
        println!(
            "{name:>20} {:>11} {:>11} {decode:>8.2} {whole:>8.2} {two:>8.2} {one_thread:>8.2} {two_threads:>8.2}",
            format!("{}x{}", header.width(), header.height()),
            format!("{}x{}", target.width, target.height),
        );
    }
}

/// The two passes, and what they write to.
struct Passes {
    from: Size,
    target: Size,
    narrow: Vec<u8>,
    out: Vec<u8>,
    options: ResizeOptions,
}

impl Passes {
    fn new(from: Size, target: Size) -> Self {
        Passes {
            from,
            target,
            narrow: vec![0; Size { width: target.width, ..from }.rgb_bytes()],
            out: vec![0; target.rgb_bytes()],
            options: ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom)),
        }
    }

    fn on_one_thread(&mut self, full: &[u8]) {
        let Passes { from, target, narrow, out, options } = self;
        let full = TypedImageRef::<U8x3>::from_buffer(from.width, from.height, full).unwrap();
        let mut between = TypedImage::<U8x3>::from_buffer(target.width, from.height, narrow).unwrap();
        let mut out = TypedImage::<U8x3>::from_buffer(target.width, target.height, out).unwrap();
        Resizer::new().resize_typed(&full, &mut between, &*options).unwrap();
        Resizer::new().resize_typed(&between, &mut out, &*options).unwrap();
    }

    fn on_two_threads(&mut self, full: &[u8]) {
        let Passes { from, target, narrow, out, options } = self;
        let full = TypedImageRef::<U8x3>::from_buffer(from.width, from.height, full).unwrap();
        let mut between = TypedImage::<U8x3>::from_buffer(target.width, from.height, narrow).unwrap();
        let mut out = TypedImage::<U8x3>::from_buffer(target.width, target.height, out).unwrap();
        let side = |side: u32| NonZeroU32::new(side).unwrap();
        let options = &*options;
        thread::scope(|scope| {
            let height = side(from.height);
            let sources = full.split_by_height(0, height, HALVES).unwrap();
            let outs = between.split_by_height_mut(0, height, HALVES).unwrap();
            for (source, mut out) in sources.into_iter().zip(outs) {
                scope.spawn(move || Resizer::new().resize_typed(&source, &mut out, options).unwrap());
            }
        });
        thread::scope(|scope| {
            let width = side(target.width);
            let sources = between.split_by_width(0, width, HALVES).unwrap();
            let outs = out.split_by_width_mut(0, width, HALVES).unwrap();
            for (source, mut out) in sources.into_iter().zip(outs) {
                scope.spawn(move || Resizer::new().resize_typed(&source, &mut out, options).unwrap());
            }
        });
    }
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
