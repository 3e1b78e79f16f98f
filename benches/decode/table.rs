//! The tables of docs/PERFORMANCE.md: everything interleaved in one run, the best of many rounds, in the time of the thread, so
//! that a busy machine changes the ratios as little as can be.

use std::{hint::black_box, time::Duration};

use mediagate::media::{
    content::{ContentHash, MediaId, Scope},
    decode::{DecodeLimits, Probe, Scratch, decode_into, probe},
};

use crate::{
    codecs::codec,
    pictures::{PICTURES, Picture, Pixels},
    pillow::Pillow,
    slot,
};

/// Rounds are fewer for large pictures, of which each takes long enough to be measured well.
const MOST_ROUNDS: usize = 41;
const FEWEST_ROUNDS: usize = 11;
const MEGAPIXELS_IN_ALL: f64 = 60.0;
/// Pillow takes longer, and is measured every so many rounds.
const PILLOW_EVERY: usize = 2;

/// Prints the tables, of the pictures whose name has `filter` in it.
pub fn print(filter: &str) {
    let photograph = Pixels::photograph();
    let mut pillow = Pillow::start();
    println!("| picture | bytes a pixel | ours | codec | ours / codec | Pillow | Pillow / ours |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut largest = Vec::new();
    for picture in PICTURES.iter().filter(|picture| picture.name.contains(filter)) {
        let pixels = measure(picture, &picture.encode(&photograph), pillow.as_mut());
        if pixels.len() > largest.len() {
            largest = pixels;
        }
    }
    println!();
    measure_hashes(&largest);
}

/// Prints a row; returns the pixels.
fn measure(picture: &Picture, file: &[u8], mut pillow: Option<&mut Pillow>) -> Vec<u8> {
    let Ok(Probe::Decodable(header)) = probe(file, &DecodeLimits::default()) else { panic!("{}", picture.name) };
    let mut out = slot(header.rgb_bytes());
    let mut scratch = Scratch::default();
    let mut for_codec = slot(header.rgb_bytes() / 3 * 4);
    let codec = codec(header.format(), file);
    if let Some(pillow) = &mut pillow {
        pillow.open(file);
    }
    let [mut ours, mut codecs, mut pillows] = [Duration::MAX; 3];
    let rounds = ((MEGAPIXELS_IN_ALL / picture.megapixels()) as usize).clamp(FEWEST_ROUNDS, MOST_ROUNDS);
    for round in 0..rounds {
        ours = ours.min(time(|| decode_into(file, &header, &mut out, &mut scratch).expect("a whole picture")));
        if let Some(codec) = codec {
            codecs = codecs.min(time(|| codec(file, &mut for_codec)));
        }
        if let Some(pillow) = pillow.as_mut().filter(|_| round % PILLOW_EVERY == 0) {
            pillows = pillows.min(pillow.decode(1).thread);
        }
    }
    let milliseconds = |taken: Duration| match taken {
        Duration::MAX => String::new(),
        taken => format!("{:.2}", taken.as_secs_f64() * 1e3 / picture.megapixels()),
    };
    let ratio = |over: Duration, under: Duration| match (over, under) {
        (Duration::MAX, _) | (_, Duration::MAX) => String::new(),
        _ => format!("{:.2}", over.as_secs_f64() / under.as_secs_f64()),
    };
    println!(
        "| {}, {} x {} | {:.2} | {} | {} | {} | {} | {} |",
        picture.name,
        picture.width,
        picture.height,
        file.len() as f64 / 1e6 / picture.megapixels(),
        milliseconds(ours),
        milliseconds(codecs),
        ratio(ours, codecs),
        milliseconds(pillows),
        ratio(pillows, ours),
    );
    out.to_vec()
}

/// The two names of a picture beside their hash functions called directly.
fn measure_hashes(pixels: &[u8]) {
    println!("| pixels | content hash | of xxh3-64 | media id | of BLAKE3 |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let scope = Scope::new(None, None);
    for megapixels in [0.25, 1.0, 2.0, 12.0] {
        let (height, width) = (250, (megapixels * 4000.0) as u32);
        let Some(pixels) = pixels.get(..height as usize * width as usize * 3) else { continue };
        let content_hash = ContentHash::of(height, width, pixels);
        let mut best = [Duration::MAX; 4];
        for _ in 0..MOST_ROUNDS {
            let taken = [
                time(|| _ = black_box(ContentHash::of(height, width, pixels))),
                time(|| _ = black_box(twox_hash::XxHash3_64::oneshot(pixels))),
                time(|| _ = black_box(MediaId::of(&scope, content_hash, height, width, pixels))),
                time(|| _ = black_box(blake3::keyed_hash(&[7; 32], pixels))),
            ];
            best.iter_mut().zip(taken).for_each(|(best, taken)| *best = (*best).min(taken));
        }
        let [content, xxh3, media, blake3] = best.map(|taken| taken.as_secs_f64() * 1e3 / megapixels);
        println!("| {megapixels} MP | {content:.3} | {:.2} | {media:.3} | {:.2} |", content / xxh3, media / blake3);
    }
}

/// What this thread worked.
fn time(work: impl FnOnce()) -> Duration {
    let start = thread_time();
    work();
    thread_time() - start
}

fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock is there on every Linux, and the time is written to.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(read, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
