//! What a header says of a decoder's memory is no less than what the decoder takes. Counted is what Rust allocates; libjpeg's
//! and libwebp's own memory is beside it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;

use mediagate::media::decode::{DecodeLimits, Probe, decode_into, probe};

thread_local! {
    // Const and without destructors, so that the allocator may touch them at any time.
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
    static MOST_BYTES: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator; knows what the current thread holds, and the most that it held.
struct Counting;

fn count(bytes: isize) {
    let held = HELD_BYTES.get() + bytes;
    HELD_BYTES.set(held);
    MOST_BYTES.set(MOST_BYTES.get().max(held));
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
        decode_into(&bytes, &header, &mut out).unwrap();
        let taken = (MOST_BYTES.get() - before) as usize;
        let said = header.scratch_bytes();
        println!("{}: {taken} bytes, {said} by the header", path.display());
        assert!(taken <= said, "{}: {taken} bytes, {said} by the header", path.display());
        decoded += 1;
    }
    assert!(decoded > 20);
}
