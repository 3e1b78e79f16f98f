//! Damaged images: no panic, no abort, and never a byte of another picture.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use mediagate::media::decode::{DecodeLimits, Probe, Scratch, decode_into, probe};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// One way in which a file gets damaged.
#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    Flip(Index, u8),
    Remove(Index, u8),
    Repeat(Index, u8),
    Cut(Index),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let run = |at: usize, length: u8, bytes: &Vec<u8>| at..(at + usize::from(length)).min(bytes.len());
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Set(at, value) => {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            Self::Flip(at, bit) => {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << (bit & 7);
            }
            Self::Remove(at, length) => drop(bytes.drain(run(at.index(bytes.len()), *length, bytes))),
            Self::Repeat(at, length) => {
                let range = run(at.index(bytes.len()), *length, bytes);
                let copy = bytes[range.clone()].to_vec();
                bytes.splice(range.start..range.start, copy);
            }
            Self::Cut(at) => bytes.truncate(at.index(bytes.len())),
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, value)| Damage::Set(at, value)),
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, length)| Damage::Remove(at, length)),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, length)| Damage::Repeat(at, length)),
        1 => any::<Index>().prop_map(Damage::Cut),
    ]
}

fn images() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/images");
    let mut images: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(path).unwrap()))
        .collect();
    images.sort();
    images
}

/// Small, so that a damaged size field costs no time.
fn limits() -> DecodeLimits {
    DecodeLimits { max_pixels: 1 << 20, max_scratch_bytes: 64 << 20, ..DecodeLimits::default() }
}

thread_local! {
    /// With what the pictures before left in it.
    static USED: RefCell<Scratch> = RefCell::default();
}

/// Decodes over memory of two patterns, with scratch that is new and scratch that is not: what comes out may not depend on what
/// was there before.
fn decode_twice(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Ok(Probe::Decodable(header)) = probe(bytes, &limits()) else { return Ok(()) };
    let length = header.rgb_bytes();
    prop_assert_eq!(length, header.height() as usize * header.width() as usize * 3);
    let (mut first, mut second) = (vec![0x55; length], vec![0xaa; length]);
    let results = [
        decode_into(bytes, &header, &mut first, &mut Scratch::default()),
        USED.with_borrow_mut(|used| decode_into(bytes, &header, &mut second, used)),
    ];
    prop_assert_eq!(results[0].is_ok(), results[1].is_ok());
    if results[0].is_ok() {
        prop_assert!(first == second, "bytes that were not written, or differ from run to run");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_images_are_decoded_wholly_or_refused(damages in vec(damage(), 1..6)) {
        for (_, mut bytes) in images() {
            damages.iter().for_each(|damage| damage.apply(&mut bytes));
            decode_twice(&bytes)?;
        }
    }
}

/// Every prefix of every image.
#[test]
fn cut_images_are_decoded_wholly_or_refused() {
    for (name, bytes) in images() {
        for length in 0..=bytes.len() {
            decode_twice(&bytes[..length]).unwrap_or_else(|error| panic!("{name}, {length} bytes: {error}"));
        }
    }
}

/// Another picture's header: sizes that disagree are an error, not a write beyond the buffer.
#[test]
fn a_header_of_another_image_is_an_error_or_its_own_size() {
    let images = images();
    let headers = images.iter().filter_map(|(_, bytes)| match probe(bytes, &limits()) {
        Ok(Probe::Decodable(header)) => Some(header),
        _ => None,
    });
    for header in headers {
        let (mut out, mut scratch) = (vec![0; header.rgb_bytes()], Scratch::default());
        for (_, bytes) in &images {
            let _ = decode_into(bytes, &header, &mut out, &mut scratch);
        }
        assert!(decode_into(&images[0].1, &header, &mut out[1..], &mut scratch).is_err());
    }
}
