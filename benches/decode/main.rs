//! What decoding into a slot costs beside the codec alone and beside Pillow, and what the two hashes cost.
//!
//! `cargo bench --bench decode -- FILE...` prints, for each file, milliseconds a megapixel and ratios, all of one run,
//! interleaved, the best of many rounds. Pillow is asked where `PILLOW_PYTHON` names a Python that has it. The codec is
//! libjpeg-turbo's own interface, the `png` crate (expanding palettes), or libwebp, without a check or conversion more.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use mediagate::media::content::{ContentHash, MediaId, Scope};
use mediagate::media::decode::{DecodeLimits, Format, Header, Probe, decode_into, probe};

const ROUNDS: usize = 41;

fn main() {
    let files: Vec<_> = env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if files.is_empty() {
        println!("usage: cargo bench --bench decode -- FILE...");
    }
    let mut pillow = env::var("PILLOW_PYTHON").ok().map(Pillow::start);
    println!(
        "{:>28} {:>9} {:>7} {:>7} {:>6} {:>8} {:>6} {:>8}",
        "file", "size", "ours", "codec", "ratio", "Pillow", "times", "probe us"
    );
    let mut largest = Vec::new();
    for file in files {
        let bytes = fs::read(&file).unwrap();
        let Ok(Probe::Decodable(header)) = probe(&bytes, &DecodeLimits::default()) else {
            println!("{file}: not decoded");
            continue;
        };
        let pixels = measure(&file, &bytes, &header, pillow.as_mut());
        if pixels.len() > largest.len() {
            largest = pixels;
        }
    }
    measure_hashes(&largest);
}

/// Prints a line; returns the pixels.
fn measure(file: &str, bytes: &[u8], header: &Header, mut pillow: Option<&mut Pillow>) -> Vec<u8> {
    let (mut out, mut bare_out) = (vec![0; header.rgb_bytes()], vec![0; header.rgb_bytes()]);
    let (mut ours, mut codec, mut theirs, mut probing) = (Duration::MAX, None, None, Duration::MAX);
    let keep = |best: &mut Option<Duration>, taken: Duration| *best = Some(best.map_or(taken, |best| best.min(taken)));
    for round in 0..ROUNDS {
        probing = probing.min(time(|| drop(black_box(probe(bytes, &DecodeLimits::default())))));
        ours = ours.min(time(|| decode_into(bytes, header, &mut out).unwrap()));
        if let Some(taken) = bare(bytes, header, &mut bare_out) {
            keep(&mut codec, taken);
        }
        if let Some(pillow) = pillow.as_mut().filter(|_| round % 4 == 0) {
            keep(&mut theirs, pillow.decode(file));
        }
    }
    let megapixels = f64::from(header.height()) * f64::from(header.width()) / 1e6;
    let milliseconds = |taken: Duration| format!("{:.2}", taken.as_secs_f64() * 1e3 / megapixels);
    let times = |over: Duration, under: Duration| format!("{:.3}", over.as_secs_f64() / under.as_secs_f64());
    let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
    let dash = || "-".to_owned();
    println!(
        "{name:>28} {:>9} {:>7} {:>7} {:>6} {:>8} {:>6} {:>8.1}",
        format!("{}x{}", header.width(), header.height()),
        milliseconds(ours),
        codec.map_or_else(dash, milliseconds),
        codec.map_or_else(dash, |codec| times(ours, codec)),
        theirs.map_or_else(dash, milliseconds),
        theirs.map_or_else(dash, |theirs| times(theirs, ours)),
        probing.as_secs_f64() * 1e6
    );
    out
}

/// The two names of a picture beside their hash functions called directly.
fn measure_hashes(pixels: &[u8]) {
    let scope = Scope::new(None, None);
    for megapixels in [0.25, 1.0, 2.0, 12.0] {
        let (height, width) = (250, (megapixels * 4000.0) as u32);
        let Some(pixels) = pixels.get(..height as usize * width as usize * 3) else { continue };
        let mut best = [Duration::MAX; 4];
        for _ in 0..ROUNDS {
            let content_hash = ContentHash::of(height, width, pixels);
            let key = [7; 32];
            let taken = [
                time(|| _ = black_box(ContentHash::of(height, width, pixels))),
                time(|| _ = black_box(twox_hash::XxHash3_64::oneshot(pixels))),
                time(|| _ = black_box(MediaId::of(&scope, content_hash, height, width, pixels))),
                time(|| _ = black_box(blake3::keyed_hash(&key, pixels))),
            ];
            best.iter_mut().zip(taken).for_each(|(best, taken)| *best = (*best).min(taken));
        }
        let [content, xxh3, media, blake3] = best.map(|taken| taken.as_secs_f64() * 1e3 / megapixels);
        println!("{megapixels} MP: content hash {content:.3} ms/MP, {:.3} of xxh3-64's", content / xxh3);
        println!("{megapixels} MP: media id     {media:.3} ms/MP, {:.3} of BLAKE3's", media / blake3);
    }
}

/// A Python that decodes on request.
struct Pillow {
    python: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Pillow {
    fn start(python: String) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/pillow.py");
        let mut python = Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let requests = python.stdin.take().unwrap();
        let answers = BufReader::new(python.stdout.take().unwrap());
        Self { python, requests, answers }
    }

    fn decode(&mut self, file: &str) -> Duration {
        writeln!(self.requests, "{file}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        Duration::from_nanos(answer.trim().parse().unwrap())
    }
}

impl Drop for Pillow {
    fn drop(&mut self) {
        let _ = self.python.kill();
        let _ = self.python.wait();
    }
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// The codec called directly, for pictures that need nothing else done to them.
fn bare(bytes: &[u8], header: &Header, out: &mut [u8]) -> Option<Duration> {
    match header.format() {
        Format::Jpeg => Some(time(|| bare_jpeg(bytes, header, out))),
        Format::Png => Some(time(|| {
            let mut decoder = png::Decoder::new(std::io::Cursor::new(bytes));
            decoder.set_transformations(png::Transformations::EXPAND);
            let mut reader = decoder.read_info().unwrap();
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut pixels).unwrap();
            black_box(pixels);
        })),
        Format::WebP => Some(time(|| {
            let stride = header.width() as i32 * 3;
            // SAFETY: pointers and lengths are those of slices, and the output has room for the picture.
            let done = unsafe {
                libwebp_sys::WebPDecodeRGBInto(bytes.as_ptr(), bytes.len(), out.as_mut_ptr(), out.len(), stride)
            };
            assert!(!done.is_null());
        })),
        _ => None,
    }
}

/// TurboJPEG on a handle of its own.
fn bare_jpeg(bytes: &[u8], header: &Header, out: &mut [u8]) {
    use turbojpeg_sys::{
        TJINIT_TJINIT_DECOMPRESS, TJPF_TJPF_RGB, tj3Decompress8, tj3DecompressHeader, tj3Destroy, tj3Init,
    };
    // SAFETY: pointers and lengths are those of slices; the output has room for height rows of the pitch.
    unsafe {
        let handle = tj3Init(TJINIT_TJINIT_DECOMPRESS as _);
        assert_eq!(tj3DecompressHeader(handle, bytes.as_ptr(), bytes.len() as _), 0);
        let pitch = header.width() as i32 * 3;
        tj3Decompress8(handle, bytes.as_ptr(), bytes.len() as _, out.as_mut_ptr(), pitch, TJPF_TJPF_RGB);
        tj3Destroy(handle);
    }
}
