//! The files that are decoded, made from a photograph in this repository, so that everybody measures the same.

use std::{fs, path::Path, ptr, slice};

use mediagate::media::decode::{DecodeLimits, Probe, Scratch, decode_into, probe};

/// A file to decode.
pub struct Picture {
    pub name: &'static str,
    pub width: usize,
    pub height: usize,
    make: fn(&Pixels) -> Vec<u8>,
}

impl Picture {
    pub fn megapixels(&self) -> f64 {
        (self.width * self.height) as f64 / 1e6
    }

    pub fn encode(&self, photograph: &Pixels) -> Vec<u8> {
        (self.make)(&photograph.tiled(self.width, self.height))
    }
}

const fn small(name: &'static str, make: fn(&Pixels) -> Vec<u8>) -> Picture {
    Picture { name, width: 640, height: 480, make }
}

const fn medium(name: &'static str, make: fn(&Pixels) -> Vec<u8>) -> Picture {
    Picture { name, width: 1920, height: 1080, make }
}

const fn large(name: &'static str, make: fn(&Pixels) -> Vec<u8>) -> Picture {
    Picture { name, width: 4000, height: 3000, make }
}

pub const PICTURES: &[Picture] = &[
    small("JPEG 4:2:0", jpeg_420),
    medium("JPEG 4:2:0", jpeg_420),
    large("JPEG 4:2:0", jpeg_420),
    medium("JPEG 4:4:4", |rgb| jpeg(rgb, Jpeg { subsampling: tj::TJSAMP_TJSAMP_444, progressive: false })),
    medium("JPEG grey", |rgb| jpeg(&rgb.grey(), Jpeg { subsampling: tj::TJSAMP_TJSAMP_GRAY, progressive: false })),
    medium("JPEG progressive", |rgb| jpeg(rgb, Jpeg { subsampling: tj::TJSAMP_TJSAMP_420, progressive: true })),
    small("JPEG on its side (orientation 6)", |rgb| on_its_side(&jpeg_420(rgb))),
    medium("JPEG on its side (orientation 6)", |rgb| on_its_side(&jpeg_420(rgb))),
    large("JPEG on its side (orientation 6)", |rgb| on_its_side(&jpeg_420(rgb))),
    small("PNG RGB", |rgb| png(rgb, png::ColorType::Rgb)),
    medium("PNG RGB", |rgb| png(rgb, png::ColorType::Rgb)),
    large("PNG RGB", |rgb| png(rgb, png::ColorType::Rgb)),
    medium("PNG screenshot", |rgb| png(&rgb.screenshot(), png::ColorType::Rgb)),
    medium("PNG RGBA", |rgb| png(&rgb.with_alpha(), png::ColorType::Rgba)),
    medium("PNG palette", |rgb| png(&rgb.indexed(), png::ColorType::Indexed)),
    medium("PNG grey", |rgb| png(&rgb.grey(), png::ColorType::Grayscale)),
    small("WebP lossy", |rgb| webp(rgb, false)),
    medium("WebP lossy", |rgb| webp(rgb, false)),
    large("WebP lossy", |rgb| webp(rgb, false)),
    medium("WebP lossless", |rgb| webp(rgb, true)),
    medium("WebP lossy with alpha", |rgb| webp(&rgb.with_alpha(), false)),
    medium("GIF", |rgb| gif(&rgb.indexed())),
    medium("BMP 24 bits", bmp),
    medium("PPM", |rgb| [format!("P6\n{} {}\n255\n", rgb.width, rgb.height).as_bytes(), &rgb.bytes].concat()),
    medium("TGA 32 bits", |rgb| tga(&rgb.with_alpha())),
    medium("TIFF raw RGB", |rgb| tiff(rgb, 1, <[u8]>::to_vec)),
    medium("TIFF raw RGBA", |rgb| tiff(&rgb.with_alpha(), 1, <[u8]>::to_vec)),
    medium("TIFF LZW RGB", |rgb| tiff(rgb, 5, lzw)),
    medium("TIFF deflate RGB", |rgb| tiff(rgb, 8, deflate)),
];

use turbojpeg_sys as tj;

/// Rows of pixels of one, three or four bytes.
pub struct Pixels {
    pub width: usize,
    pub height: usize,
    channels: usize,
    pub bytes: Vec<u8>,
}

impl Pixels {
    /// The photograph of which everything is made.
    pub fn photograph() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/paris.jpg");
        let file = fs::read(file).expect("the photograph is in this repository");
        let Ok(Probe::Decodable(header)) = probe(&file, &DecodeLimits::default()) else { panic!("a JPEG") };
        let mut bytes = vec![0; header.rgb_bytes()];
        decode_into(&file, &header, &mut bytes, &mut Scratch::default()).expect("a whole JPEG");
        Self { width: header.width() as usize, height: header.height() as usize, channels: 3, bytes }
    }

    /// Mirrored until it fills a size, so that a pixel has the neighbours that it has in a photograph, and with the noise
    /// of a sensor, so that the repetition helps no codec.
    fn tiled(&self, width: usize, height: usize) -> Self {
        let mirrored = |at: usize, length: usize| match at % (2 * length) {
            at if at < length => at,
            at => 2 * length - 1 - at,
        };
        let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
        let mut bytes = Vec::with_capacity(width * height * 3);
        for row in 0..height {
            let from = &self.bytes[mirrored(row, self.height) * self.width * 3..][..self.width * 3];
            for column in 0..width {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                // Between -2 and 2, most often 0.
                let noise = (noise & 3) as i16 - (noise >> 2 & 3) as i16;
                let pixel = &from[mirrored(column, self.width) * 3..][..3];
                bytes.extend(pixel.iter().map(|&channel| (i16::from(channel) + noise / 2).clamp(0, 255) as u8));
            }
        }
        Self { width, height, channels: 3, bytes }
    }

    fn map<const N: usize>(&self, pixel: impl Fn(usize, [u8; 3]) -> [u8; N]) -> Self {
        let pixels = self.bytes.as_chunks::<3>().0.iter().enumerate();
        let bytes = pixels.flat_map(|(at, &rgb)| pixel(at, rgb)).collect();
        Self { channels: N, bytes, ..*self }
    }

    fn grey(&self) -> Self {
        self.map(|_, [_, green, _]| [green])
    }

    /// With an alpha that grows from left to right.
    fn with_alpha(&self) -> Self {
        self.map(|at, [red, green, blue]| [red, green, blue, (at % self.width * 256 / self.width) as u8])
    }

    /// Indices into [`cube`].
    fn indexed(&self) -> Self {
        self.map(|_, rgb| {
            let [red, green, blue] = rgb.map(|channel| channel / 43);
            [red * 36 + green * 6 + blue]
        })
    }

    /// Windows of flat colour with lines of what could be letters.
    fn screenshot(&self) -> Self {
        self.map(|at, _| {
            let (row, column) = (at / self.width, at % self.width);
            let window = (row / 270 + column / 480) as u8;
            let letter = (row / 2 * 7 + column / 3 * 13 + row * column / 97) % 5 < 2;
            let is_text = row % 20 > 8 && column % 480 > 40 && (column / 60 + row / 20) % 7 != 0;
            if row % 270 < 24 {
                [60, 70 + window, 90]
            } else if is_text && letter {
                [40; 3]
            } else {
                [250 - window; 3]
            }
        })
    }
}

/// Six steps of each colour.
fn cube() -> Vec<u8> {
    (0..216u8).flat_map(|index| [index / 36, index / 6 % 6, index % 6].map(|step| step * 51)).collect()
}

struct Jpeg {
    subsampling: tj::TJSAMP,
    progressive: bool,
}

fn jpeg_420(rgb: &Pixels) -> Vec<u8> {
    jpeg(rgb, Jpeg { subsampling: tj::TJSAMP_TJSAMP_420, progressive: false })
}

fn jpeg(pixels: &Pixels, options: Jpeg) -> Vec<u8> {
    let format = if pixels.channels == 1 { tj::TJPF_TJPF_GRAY } else { tj::TJPF_TJPF_RGB };
    let (width, height) = (pixels.width as i32, pixels.height as i32);
    let (mut file, mut length) = (ptr::null_mut(), 0);
    // SAFETY: the pixels are height rows of width, without padding; the buffer is TurboJPEG's own, and freed once.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as _);
        tj::tj3Set(handle, tj::TJPARAM_TJPARAM_QUALITY as _, 85);
        tj::tj3Set(handle, tj::TJPARAM_TJPARAM_SUBSAMP as _, options.subsampling as _);
        tj::tj3Set(handle, tj::TJPARAM_TJPARAM_PROGRESSIVE as _, options.progressive.into());
        let done = tj::tj3Compress8(handle, pixels.bytes.as_ptr(), width, 0, height, format, &mut file, &mut length);
        assert_eq!(done, 0);
        let bytes = slice::from_raw_parts(file, length as usize).to_vec();
        tj::tj3Free(file.cast());
        tj::tj3Destroy(handle);
        bytes
    }
}

/// With an EXIF block that has an orientation and nothing else.
fn on_its_side(jpeg: &[u8]) -> Vec<u8> {
    let exif = b"Exif\0\0II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let length = (exif.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, 0xe1], &length, exif, &jpeg[2..]].concat()
}

fn png(pixels: &Pixels, colour: png::ColorType) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, pixels.width as u32, pixels.height as u32);
    encoder.set_color(colour);
    encoder.set_depth(png::BitDepth::Eight);
    if colour == png::ColorType::Indexed {
        encoder.set_palette(cube());
    }
    let mut writer = encoder.write_header().expect("a header in memory");
    writer.write_image_data(&pixels.bytes).expect("pixels in memory");
    writer.finish().expect("an end in memory");
    file
}

fn webp(pixels: &Pixels, lossless: bool) -> Vec<u8> {
    use libwebp_sys::{WebPEncodeLosslessRGB, WebPEncodeRGB, WebPEncodeRGBA, WebPFree};
    const QUALITY: f32 = 80.0;

    let (from, width, height) = (pixels.bytes.as_ptr(), pixels.width as i32, pixels.height as i32);
    let stride = width * pixels.channels as i32;
    let mut file = ptr::null_mut();
    // SAFETY: the pixels are height rows of this stride; the buffer is libwebp's own, and freed once.
    unsafe {
        let length = match (lossless, pixels.channels) {
            (true, 3) => WebPEncodeLosslessRGB(from, width, height, stride, &mut file),
            (false, 3) => WebPEncodeRGB(from, width, height, stride, QUALITY, &mut file),
            (false, 4) => WebPEncodeRGBA(from, width, height, stride, QUALITY, &mut file),
            _ => 0,
        };
        assert_ne!(length, 0);
        let bytes = slice::from_raw_parts(file, length).to_vec();
        WebPFree(file.cast());
        bytes
    }
}

fn words<const N: usize>(words: [usize; N]) -> Vec<u8> {
    words.iter().flat_map(|&word| (word as u16).to_le_bytes()).collect()
}

fn gif(indices: &Pixels) -> Vec<u8> {
    let size = words([indices.width, indices.height]);
    let mut palette = cube();
    palette.resize(256 * 3, 0);
    let codes = weezl::encode::Encoder::new(weezl::BitOrder::Lsb, 8).encode(&indices.bytes).expect("bytes");
    let blocks = codes.chunks(255).flat_map(|block| [&[block.len() as u8], block].concat());
    [&b"GIF89a"[..], &size, &[0xf7, 0, 0], &palette, b",\0\0\0\0", &size, &[0, 8], &blocks.collect::<Vec<_>>(), b"\0;"]
        .concat()
}

fn bmp(rgb: &Pixels) -> Vec<u8> {
    let mut header = [&b"BM"[..], &[0; 8], &54u32.to_le_bytes(), &40u32.to_le_bytes()].concat();
    header.extend((rgb.width as i32).to_le_bytes());
    header.extend((rgb.height as i32).to_le_bytes());
    header.extend(words([1, 24]));
    header.extend([0; 24]);
    // A row is a multiple of four bytes, as it happens.
    let rows = rgb.bytes.chunks_exact(rgb.width * 3).rev();
    header.extend(rows.flat_map(|row| row.as_chunks::<3>().0).flat_map(|&[red, green, blue]| [blue, green, red]));
    header
}

fn tga(rgba: &Pixels) -> Vec<u8> {
    let mut file = [&[0, 0, 2][..], &[0; 9], &words([rgba.width, rgba.height]), &[32, 0x28]].concat();
    let pixels = rgba.bytes.as_chunks::<4>().0.iter();
    file.extend(pixels.flat_map(|&[red, green, blue, alpha]| [blue, green, red, alpha]));
    file
}

fn lzw(strip: &[u8]) -> Vec<u8> {
    weezl::encode::Encoder::with_tiff_size_switch(weezl::BitOrder::Msb, 8).encode(strip).expect("bytes")
}

fn deflate(strip: &[u8]) -> Vec<u8> {
    use std::io::Write;

    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(strip).and_then(|()| encoder.finish()).expect("bytes in memory")
}

/// Strips of sixteen rows.
fn tiff(pixels: &Pixels, compression: u32, compress: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    const ROWS: usize = 16;

    let mut file = b"II\x2a\0\0\0\0\0".to_vec();
    let (mut offsets, mut lengths) = (Vec::new(), Vec::new());
    for strip in pixels.bytes.chunks(ROWS * pixels.width * pixels.channels) {
        let strip = compress(strip);
        offsets.push(file.len() as u32);
        lengths.push(strip.len() as u32);
        file.extend(strip);
    }
    let mut list = |values: &[u32]| {
        let at = file.len() as u32;
        file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        (values.len() as u32, at)
    };
    let (offsets, lengths) = (list(&offsets), list(&lengths));
    let samples = pixels.channels as u32;
    // Alpha that colours were not multiplied by.
    let extra = (samples == 4).then_some((338, (1, 2)));
    let tags = [
        (256, (1, pixels.width as u32)),
        (257, (1, pixels.height as u32)),
        (258, list(&vec![8; samples as usize])),
        (259, (1, compression)),
        (262, (1, 2)),
        (273, offsets),
        (277, (1, samples)),
        (278, (1, ROWS as u32)),
        (279, lengths),
    ];
    let tags: Vec<(u16, (u32, u32))> = tags.into_iter().chain(extra).collect();
    let directory = file.len() as u32;
    file[4..8].copy_from_slice(&directory.to_le_bytes());
    file.extend((tags.len() as u16).to_le_bytes());
    for (tag, (count, value)) in tags {
        // LONG.
        file.extend([&tag.to_le_bytes()[..], &[4, 0], &count.to_le_bytes(), &value.to_le_bytes()].concat());
    }
    file.extend([0; 4]);
    file
}
