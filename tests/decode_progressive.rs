//! Refinement scans of progressive JPEGs, which are read by code of our own, give what libjpeg makes of them by itself: of
//! whole files, and of files damaged in every way that libjpeg gets over.

use std::{ptr, slice};

use mediagate::media::decode::{DecodeLimits, Probe, Scratch, decode_into, probe};
use rand::{Rng, SeedableRng, rngs::StdRng};
use turbojpeg_sys as tj;

const SUBSAMPLINGS: [tj::TJSAMP; 4] =
    [tj::TJSAMP_TJSAMP_444, tj::TJSAMP_TJSAMP_420, tj::TJSAMP_TJSAMP_422, tj::TJSAMP_TJSAMP_GRAY];

/// A progressive file, from flat to noisy.
fn file(random: &mut StdRng) -> Vec<u8> {
    let (height, width): (i32, i32) = (random.random_range(1..70), random.random_range(1..70));
    let noise = [1u8, 8, 64, 255][random.random_range(0..4)];
    let pixels: Vec<u8> = (0..height * width * 3)
        .map(|at| ((at / 3 % width * 3 + at / 3 / width * 2) as u8).wrapping_add(random.random_range(0..noise)))
        .collect();
    let settings = [
        (tj::TJPARAM_TJPARAM_QUALITY, [10, 50, 85, 100][random.random_range(0..4)]),
        (tj::TJPARAM_TJPARAM_SUBSAMP, SUBSAMPLINGS[random.random_range(0..4)]),
        (tj::TJPARAM_TJPARAM_PROGRESSIVE, 1),
        (tj::TJPARAM_TJPARAM_RESTARTBLOCKS, if random.random_range(0..4) == 0 { 3 } else { 0 }),
    ];
    let (mut file, mut length) = (ptr::null_mut(), 0);
    // SAFETY: the pixels are height rows of width, without padding; the buffer is TurboJPEG's own, and freed once.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as _);
        for (name, value) in settings {
            assert_eq!(tj::tj3Set(handle, name as _, value as _), 0);
        }
        let format = tj::TJPF_TJPF_RGB as _;
        assert_eq!(tj::tj3Compress8(handle, pixels.as_ptr(), width, 0, height, format, &mut file, &mut length), 0);
        let bytes = slice::from_raw_parts(file, length as usize).to_vec();
        tj::tj3Free(file.cast());
        tj::tj3Destroy(handle);
        bytes
    }
}

/// Damage of one kind or another, anywhere behind the frame header.
fn damage(file: &mut Vec<u8>, random: &mut StdRng) {
    let scans: Vec<usize> = (2..file.len()).filter(|&at| file[at - 2..at] == [0xff, 0xda]).collect();
    let tables: Vec<usize> = (2..file.len()).filter(|&at| file[at - 2..at] == [0xff, 0xc4]).collect();
    let at = random.random_range(scans[0]..file.len() - 2);
    match random.random_range(0..7) {
        0 => file[at] ^= 1 << random.random_range(0..8),
        1 => file[at] = random.random(),
        2 => drop(file.drain(at..(at + random.random_range(1..20)).min(file.len() - 2))),
        3 => drop(file.splice(at..at, [0xff, random.random_range(0xd0..0xd8)])),
        4 => drop(file.splice(at..at, [0xff, 0xff, 0])),
        // The band or the bits of a scan. A number of components, a table for each, the band, the bits.
        5 => {
            let scan = scans[random.random_range(0..scans.len())];
            let band = scan + 3 + usize::from(file[scan + 2]) * 2;
            let (at, value) = match random.random_range(0..3) {
                0 => (band, random.random_range(0..64)),
                1 => (band + 1, random.random_range(0..64)),
                _ => (band + 2, [0x10, 0x21, 0x32, 0x43, 0xed, 0, 1, 13][random.random_range(0..8)]),
            };
            set(file, at, value);
        }
        // Symbols of a code.
        _ => {
            let table = tables[random.random_range(0..tables.len())];
            set(file, table + 19 + random.random_range(0..4), random.random());
        }
    }
}

/// Earlier damage may have led beyond the end.
fn set(file: &mut [u8], at: usize, value: u8) {
    if let Some(byte) = file.get_mut(at) {
        *byte = value;
    }
}

/// What libjpeg makes of a file by itself, warnings or not.
fn by_libjpeg(file: &[u8], rgb_bytes: usize) -> Vec<u8> {
    let mut out = vec![0; rgb_bytes];
    // SAFETY: pointers and lengths are those of slices; the output has room for the rows, which are not padded.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as _);
        tj::tj3DecompressHeader(handle, file.as_ptr(), file.len() as _);
        tj::tj3Decompress8(handle, file.as_ptr(), file.len() as _, out.as_mut_ptr(), 0, tj::TJPF_TJPF_RGB as _);
        tj::tj3Destroy(handle);
    }
    out
}

#[test]
fn refined_coefficients_are_those_of_libjpeg() {
    let mut random = StdRng::seed_from_u64(3);
    let rounds = 3000;
    let (mut whole, mut damaged, mut refused) = (0, 0, 0);
    for round in 0..rounds {
        let mut file = file(&mut random);
        let damages = random.random_range(0..4);
        (0..damages).for_each(|_| damage(&mut file, &mut random));
        let Ok(Probe::Decodable(header)) = probe(&file, &DecodeLimits::default()) else {
            refused += 1;
            continue;
        };
        let mut out = vec![0; header.rgb_bytes()];
        if decode_into(&file, &header, &mut out, &mut Scratch::default()).is_err() {
            refused += 1;
            continue;
        }
        *if damages == 0 { &mut whole } else { &mut damaged } += 1;
        assert!(out == by_libjpeg(&file, out.len()), "round {round}, {damages} damages");
    }
    println!("{whole} whole, {damaged} damaged, {refused} refused");
    assert!(whole > rounds / 8 && damaged > rounds / 4, "{whole} whole, {damaged} damaged, {refused} refused");
}
