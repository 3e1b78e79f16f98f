//! What a header says of a decoder's memory is no less than what the decoder takes. Counted is what Rust allocates; libjpeg's
//! and libwebp's own memory is beside it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;

use mediagate::media::decode::{DecodeLimits, Probe, Scratch, decode_into, probe};

thread_local! {
    // Const and without destructors, so that the allocator may touch them at any time.
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
    static MOST_BYTES: Cell<isize> = const { Cell::new(0) };
    static ALL_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator; knows what the current thread holds, the most that it held, and all that it ever asked for.
struct Counting;

fn count(bytes: isize) {
    let held = HELD_BYTES.get() + bytes;
    HELD_BYTES.set(held);
    MOST_BYTES.set(MOST_BYTES.get().max(held));
    ALL_BYTES.set(ALL_BYTES.get() + bytes.max(0) as usize);
}

// SAFETY: everything goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that it asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above; the pointer came from it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decoding_takes_no_more_than_its_header_said() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/images");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut decoded = 0;
    for path in files {
        let bytes = fs::read(&path).unwrap();
        let Ok(Probe::Decodable(header)) = probe(&bytes, &DecodeLimits::default()) else { continue };
        let mut out = vec![0; header.rgb_bytes()];
        let before = HELD_BYTES.get();
        MOST_BYTES.set(before);
        decode_into(&bytes, &header, &mut out, &mut Scratch::default()).unwrap();
        let taken = (MOST_BYTES.get() - before) as usize;
        let said = header.scratch_bytes();
        println!("{}: {taken} bytes, {said} by the header", path.display());
        assert!(taken <= said, "{}: {taken} bytes, {said} by the header", path.display());
        decoded += 1;
    }
    assert!(decoded > 20);
}

/// A picture may have thousands of strips of a byte.
#[test]
fn tables_are_made_once_a_picture_and_not_once_a_strip() {
    const STRIPS: u16 = 16_384;
    let strip = weezl::encode::Encoder::with_tiff_size_switch(weezl::BitOrder::Msb, 8).encode(&[7]).unwrap();
    let shorts = |value: u16| value.to_le_bytes().repeat(STRIPS.into());
    let (offsets_at, lengths_at) = (8 + strip.len() as u32, 8 + strip.len() as u32 + u32::from(STRIPS) * 2);
    let directory_at = lengths_at + u32::from(STRIPS) * 2;
    let mut file = [&b"II\x2a\0"[..], &directory_at.to_le_bytes(), &strip].concat();
    file.extend([shorts(8), shorts(strip.len() as u16)].concat());
    let (long, short, strips) = (4u16, 3u16, u32::from(STRIPS));
    let tags = [
        (256u16, long, 1, 1),
        (257, long, 1, strips),
        (258, long, 1, 8),
        (259, long, 1, 5),
        (262, long, 1, 1),
        (273, short, strips, offsets_at),
        (277, long, 1, 1),
        (278, long, 1, 1),
        (279, short, strips, lengths_at),
    ];
    file.extend((tags.len() as u16).to_le_bytes());
    for (tag, kind, count, value) in tags {
        file.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        file.extend([count.to_le_bytes(), value.to_le_bytes()].concat());
    }
    file.extend([0; 4]);
    let Ok(Probe::Decodable(header)) = probe(&file, &DecodeLimits::default()) else { panic!("a TIFF") };
    let mut out = vec![0; header.rgb_bytes()];
    let before = ALL_BYTES.get();
    decode_into(&file, &header, &mut out, &mut Scratch::default()).unwrap();
    let asked_for = ALL_BYTES.get() - before;
    assert!(out.iter().all(|&byte| byte == 7));
    // A list for each strip is 64 bytes; a table would be 32 KiB.
    assert!(asked_for < 2 << 20, "{asked_for} bytes");
}
