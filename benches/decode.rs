//! What decoding into a slot costs beside the codec alone, and how large a share of it the hashes would be.
//!
//! `cargo bench --bench decode -- FILE...` prints, for each file, milliseconds a megapixel and the ratio to the bare
//! codec (libjpeg-turbo's own interface, the `png` crate, libwebp), in one run, interleaved, the best of many rounds.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs};

use mediagate::media::decode::{DecodeLimits, Format, Header, Probe, decode_into, probe};

const ROUNDS: usize = 41;

fn main() {
    let files: Vec<_> = env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if files.is_empty() {
        println!("usage: cargo bench --bench decode -- FILE...");
    }
    println!("{:>28} {:>9} {:>7} {:>7} {:>6} {:>8}", "file", "size", "ours", "codec", "ratio", "probe us");
    for file in files {
        let bytes = fs::read(&file).unwrap();
        let Ok(Probe::Decodable(header)) = probe(&bytes, &DecodeLimits::default()) else {
            println!("{file}: not decoded");
            continue;
        };
        measure(&file, &bytes, &header);
    }
}

fn measure(file: &str, bytes: &[u8], header: &Header) {
    let mut out = vec![0; header.rgb_bytes()];
    let (mut ours, mut codec, mut probing) = (Duration::MAX, None, Duration::MAX);
    for _ in 0..ROUNDS {
        probing = probing.min(time(|| drop(black_box(probe(bytes, &DecodeLimits::default())))));
        ours = ours.min(time(|| decode_into(bytes, header, &mut out).unwrap()));
        if let Some(taken) = bare(bytes, header, &mut out) {
            codec = Some(codec.map_or(taken, |best: Duration| best.min(taken)));
        }
    }
    let megapixels = f64::from(header.height()) * f64::from(header.width()) / 1e6;
    let milliseconds = |taken: Duration| taken.as_secs_f64() * 1e3 / megapixels;
    let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
    print!("{name:>28} {:>9} {:>7.2}", format!("{}x{}", header.width(), header.height()), milliseconds(ours));
    match codec {
        Some(codec) => print!(" {:>7.2} {:>6.3}", milliseconds(codec), ours.as_secs_f64() / codec.as_secs_f64()),
        None => print!(" {:>7} {:>6}", "-", "-"),
    }
    println!(" {:>8.1}", probing.as_secs_f64() * 1e6);
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
            let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
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
