//! Files of a few bytes that announce gigapixels: refused by their headers, before memory is taken for them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;

use mediagate::error::Fault;
use mediagate::media::decode::{DecodeLimits, Format, probe};

/// What refusing one file may allocate, all allocations added up.
const MAX_ALLOCATED_BYTES: usize = 1 << 20;

thread_local! {
    // Const and without a destructor, so that the allocator may touch it at any time.
    static ALLOCATED_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator; adds up what the current thread asks of it.
struct Counting;

// SAFETY: everything goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + layout.size());
        // SAFETY: the caller's promises are those that it asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn bombs_are_refused_by_their_headers() {
    // The counter counts: else what follows proves nothing. In one test, since each has a thread, which maps memory.
    let before = ALLOCATED_BYTES.get();
    drop(std::hint::black_box(vec![0u8; 12_345]));
    assert!(ALLOCATED_BYTES.get() - before >= 12_345);
    let limits = DecodeLimits::default();
    for (name, format, bytes) in bombs() {
        assert_eq!(Format::sniff(&bytes), Some(format), "{name}");
        let address_space_before = peak_address_space_bytes();
        let before = ALLOCATED_BYTES.get();
        let outcome = probe(&bytes, &limits);
        let allocated = ALLOCATED_BYTES.get() - before;
        // C libraries allocate beside the counter: what is large shows here.
        let mapped = peak_address_space_bytes() - address_space_before;
        let error = outcome.err().unwrap_or_else(|| panic!("{name}: accepted"));
        println!("{name}: {} bytes of file, {allocated} allocated, {mapped} mapped: {error}", bytes.len());
        assert_eq!(error.code(), "image_too_large", "{name}: {error}");
        assert!(error.status().is_client_error(), "{name}");
        assert!(allocated < MAX_ALLOCATED_BYTES, "{name}: {allocated} bytes allocated");
        assert!(mapped < MAX_ALLOCATED_BYTES, "{name}: {mapped} bytes mapped");
    }
}

/// The most address space that this process ever had; 0 where the system does not say.
fn peak_address_space_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
    kibibytes.unwrap_or(0) << 10
}

fn bombs() -> Vec<(&'static str, Format, Vec<u8>)> {
    vec![
        ("PNG 50,000 x 50,000", Format::Png, png(50_000, 0)),
        ("interlaced PNG 50,000 x 50,000", Format::Png, png(50_000, 1)),
        ("PNG of the largest sides", Format::Png, png(0x7fff_ffff, 0)),
        ("PNG of texts that inflate to 16 MiB", Format::Png, png_of_texts()),
        ("JPEG 65,500 x 65,500", Format::Jpeg, jpeg(0xc0)),
        ("progressive JPEG 65,500 x 65,500", Format::Jpeg, jpeg(0xc2)),
        ("GIF 65,535 x 65,535", Format::Gif, gif([u16::MAX; 2], [1; 2])),
        ("GIF with a frame that makes its canvas grow", Format::Gif, gif([1; 2], [u16::MAX; 2])),
        ("lossless WebP 16,383 x 16,383", Format::WebP, webp_lossless()),
        ("lossy WebP 16,383 x 16,383", Format::WebP, webp_lossy()),
        ("TIFF 100,000 x 100,000", Format::Tiff, tiff(1)),
        ("LZW TIFF 100,000 x 100,000", Format::Tiff, tiff(5)),
        ("BMP 60,000 x 60,000", Format::Bmp, bmp(60_000, 0)),
        ("BMP without a file header, 60,000 x 60,000", Format::Bmp, bitmap_header(60_000, 60_000, 0)),
        ("BMP of the largest sides", Format::Bmp, bmp(i32::MAX, 0)),
        ("run-length BMP 60,000 x 60,000", Format::Bmp, bmp(60_000, 1)),
        ("QOI 100,000 x 100,000", Format::Qoi, qoi()),
        ("PPM 100,000 x 100,000", Format::Pnm, b"P6\n100000 100000\n255\n\0\0\0".to_vec()),
        ("PGM 100,000 x 100,000", Format::Pnm, b"P5 100000 100000 65535\n\0\0".to_vec()),
        ("PBM 100,000 x 100,000", Format::Pnm, b"P4 100000 100000\n\0".to_vec()),
        ("text PPM 100,000 x 100,000", Format::Pnm, b"P3 100000 100000 255\n0 0 0".to_vec()),
        ("TGA 65,535 x 65,535", Format::Tga, tga(2)),
        ("run-length TGA 65,535 x 65,535", Format::Tga, tga(10)),
        ("ICO of a bitmap 60,000 x 60,000", Format::Ico, ico(&bitmap_header(60_000, 120_000, 0))),
        ("ICO of a PNG 50,000 x 50,000", Format::Ico, ico(&png(50_000, 0))),
    ]
}

fn png(side: u32, interlaced: u8) -> Vec<u8> {
    let header = [&side.to_be_bytes()[..], &side.to_be_bytes(), &[8, 2, 0, 0, interlaced]].concat();
    // A zlib stream that goes on for ever in zeros would look no different up to here.
    let data = [0x78, 0x9c, 0xed, 0xc1];
    let chunks = [png_chunk(b"IHDR", &header), png_chunk(b"IDAT", &data), png_chunk(b"IEND", b"")];
    [&b"\x89PNG\r\n\x1a\n"[..], &chunks.concat()].concat()
}

/// A picture of one pixel, with texts of nearly a mebibyte each.
fn png_of_texts() -> Vec<u8> {
    use std::io::Write;

    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![b'a'; (1 << 20) - 1]).unwrap();
    let text = png_chunk(b"zTXt", &[&b"Comment\0\0"[..], &encoder.finish().unwrap()].concat());
    let whole = png(1, 0);
    let after_header = 8 + 25;
    [&whole[..after_header], &text.repeat(16), &whole[after_header..]].concat()
}

fn png_chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let named = [name, content].concat();
    [&(content.len() as u32).to_be_bytes()[..], &named, &crc32fast::hash(&named).to_be_bytes()].concat()
}

fn jpeg(frame_marker: u8) -> Vec<u8> {
    let side = 65_500u16.to_be_bytes();
    let frame = [&[8][..], &side, &side, &[3, 1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0]].concat();
    let scan = [3, 1, 0, 2, 0, 3, 0, 0, 63, 0];
    let segment =
        |marker: u8, content: &[u8]| [&[0xff, marker][..], &(content.len() as u16 + 2).to_be_bytes(), content].concat();
    [&[0xff, 0xd8][..], &segment(frame_marker, &frame), &segment(0xda, &scan), &[0, 0, 0xff, 0xd9]].concat()
}

fn gif(canvas: [u16; 2], frame: [u16; 2]) -> Vec<u8> {
    let sides = |sides: [u16; 2]| sides.map(u16::to_le_bytes).concat();
    [&b"GIF89a"[..], &sides(canvas), &[0, 0, 0], b",\0\0\0\0", &sides(frame), &[0, 8, 1, 0, 0], b";"].concat()
}

fn riff(chunk_name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| (bytes as u32).to_le_bytes();
    let sizes = [length(12 + content.len()), length(content.len())];
    [&b"RIFF"[..], &sizes[0], b"WEBP", chunk_name, &sizes[1], content].concat()
}

fn webp_lossless() -> Vec<u8> {
    let less_one = 16_383u32 - 1;
    let bits = (less_one | less_one << 14).to_le_bytes();
    riff(b"VP8L", &[&[0x2f][..], &bits, &[0; 9]].concat())
}

fn webp_lossy() -> Vec<u8> {
    let side = 16_383u16.to_le_bytes();
    // A key frame that is shown, with a first partition of eight bytes.
    riff(b"VP8 ", &[&[0x10, 1, 0, 0x9d, 0x01, 0x2a][..], &side, &side, &[0; 16]].concat())
}

fn tiff(compression: u32) -> Vec<u8> {
    let side = 100_000u32;
    let tags =
        [(256, side), (257, side), (258, 8), (259, compression), (262, 1), (273, 8), (277, 1), (278, side), (279, 16)];
    let mut bytes = [&b"II\x2a\0\x08\0\0\0"[..], &(tags.len() as u16).to_le_bytes()].concat();
    for (tag, value) in tags {
        // One LONG.
        bytes.extend([&(tag as u16).to_le_bytes()[..], &[4, 0, 1, 0, 0, 0], &value.to_le_bytes()].concat());
    }
    bytes.extend([0; 4]);
    bytes
}

fn bitmap_header(width: i32, height: i32, compression: u32) -> Vec<u8> {
    let depth: u16 = if compression == 0 { 24 } else { 8 };
    let sides = [width.to_le_bytes(), height.to_le_bytes()].concat();
    [&40u32.to_le_bytes()[..], &sides, &[1, 0], &depth.to_le_bytes(), &compression.to_le_bytes(), &[0; 20]].concat()
}

fn bmp(side: i32, compression: u32) -> Vec<u8> {
    [&b"BM"[..], &[0; 8], &54u32.to_le_bytes(), &bitmap_header(side, side, compression), &[0; 16]].concat()
}

fn qoi() -> Vec<u8> {
    let side = 100_000u32.to_be_bytes();
    [&b"qoif"[..], &side, &side, &[3, 0], &[0; 8]].concat()
}

fn tga(kind: u8) -> Vec<u8> {
    let side = u16::MAX.to_le_bytes();
    [&[0, 0, kind][..], &[0; 9], &side, &side, &[24, 0], &[0; 8]].concat()
}

/// One entry, which claims to be of 256 x 256.
fn ico(picture: &[u8]) -> Vec<u8> {
    // As if there were room for the mask of a bitmap.
    let length = u32::MAX.to_le_bytes();
    [&b"\0\0\x01\0\x01\0"[..], &[0, 0, 0, 0, 1, 0, 24, 0], &length, &22u32.to_le_bytes(), picture].concat()
}
