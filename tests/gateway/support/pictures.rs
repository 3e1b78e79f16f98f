//! Pictures, and what they must look like.

use std::path::Path;

use sha2::{Digest, Sha256};

/// A picture, and its pixels as vLLM would see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pixels {
    pub height: u32,
    pub width: u32,
    pub rgb_sha256: String,
}

/// A PNG of its own for each seed.
pub fn png(seed: u32, width: u32, height: u32) -> (Vec<u8>, Pixels) {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let rgb: Vec<u8> = (0..width * height * 3)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    // Noise does not compress; trying takes longer than everything else.
    encoder.set_compression(png::Compression::NoCompression);
    encoder.write_header().unwrap().write_image_data(&rgb).unwrap();
    (file, Pixels { height, width, rgb_sha256: sha256(&rgb) })
}

/// The pixels of such a PNG as binary PPM.
pub fn ppm(png: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut rgb).unwrap();
    [format!("P6\n{} {}\n255\n", info.width, info.height).as_bytes(), &rgb].concat()
}

/// A file of tests/data/images.
pub fn file(name: &str) -> Vec<u8> {
    std::fs::read(data().join("images").join(name)).unwrap()
}

/// A file of tests/data/images and what Pillow makes of it.
pub fn known(name: &str) -> (Vec<u8>, Pixels) {
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(data().join("expected.json")).unwrap()).unwrap();
    let expected = &expected[name];
    let number = |key: &str| u32::try_from(expected[key].as_u64().unwrap()).unwrap();
    let rgb_sha256 = expected["rgb_sha256"].as_str().unwrap().to_owned();
    (file(name), Pixels { height: number("height"), width: number("width"), rgb_sha256 })
}

fn data() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn data_uri(mime: &str, bytes: &[u8]) -> String {
    format!("data:{mime};base64,{}", base64_simd::STANDARD.encode_to_string(bytes))
}

/// The bytes of a data: URI that a worker got, which must have this type.
pub fn decode_data_uri(uri: &str, mime: &str) -> Vec<u8> {
    let payload = uri.strip_prefix(&format!("data:{mime};base64,"));
    let payload = payload.unwrap_or_else(|| panic!("no data: URI of {mime}: {}", &uri[..uri.len().min(100)]));
    base64_simd::STANDARD.decode_to_vec(payload).unwrap()
}

/// What a worker would see of a data: URI of binary PPM.
pub fn read_ppm(uri: &str) -> Pixels {
    let bytes = decode_data_uri(uri, "image/x-portable-pixmap");
    let mut lines = bytes.splitn(4, |&byte| byte == b'\n');
    let mut line = || lines.next().unwrap();
    assert_eq!(line(), b"P6");
    let size = String::from_utf8(line().to_vec()).unwrap();
    let (width, height) = size.split_once(' ').unwrap();
    assert_eq!(line(), b"255");
    let rgb = line();
    let (width, height): (u32, u32) = (width.parse().unwrap(), height.parse().unwrap());
    assert_eq!(rgb.len(), (width * height * 3) as usize);
    Pixels { height, width, rgb_sha256: sha256(rgb) }
}
