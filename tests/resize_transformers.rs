//! Pictures resized by the gateway against the image processors of transformers themselves: what they make of a picture
//! and of the resized one must be equal, bit for bit.
//!
//! Needs a Python with transformers and torchvision: the one in `MEDIAGATE_TRANSFORMERS_PYTHON`, or that of `.venv`.
//! Without one, the test says so and passes. `MEDIAGATE_RESIZE_IMAGES` and `MEDIAGATE_RESIZE_SEED` choose how many
//! pictures, and which.

use std::{
    cell::RefCell,
    env,
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use mediagate::{
    media::{
        decode::{self, DecodeLimits, Header, Probe, Size, decode_into, probe},
        resize::{Scratch, SmartResize, decode_resized},
    },
    model::processor,
};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};
use serde_json::{Value, json};

const IMAGES: &str = "50";

/// The settings of preprocessor_config.json, in each spelling that the models come with.
fn settings() -> Vec<Value> {
    let of = |patch: u32, sizes: Value| {
        let mut settings = json!({
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "patch_size": patch,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.481, 0.457, 0.408],
            "image_std": [0.268, 0.261, 0.275],
        });
        settings.as_object_mut().unwrap().extend(sizes.as_object().unwrap().clone());
        settings
    };
    vec![
        // Qwen2-VL and Qwen2.5-VL as published, and with the limits that servers set.
        of(14, json!({"min_pixels": 3136, "max_pixels": 12_845_056})),
        of(14, json!({"size": {"min_pixels": 3136, "max_pixels": 1}, "min_pixels": 200_704, "max_pixels": 1_003_520})),
        of(14, json!({})),
        // Qwen3-VL as published, and with limits.
        of(16, json!({"size": {"longest_edge": 16_777_216, "shortest_edge": 65_536}})),
        of(16, json!({"size": {"longest_edge": 1_310_720, "shortest_edge": 65_536}})),
        of(16, json!({"size": {"longest_edge": 16_777_216, "shortest_edge": 65_536}, "max_pixels": 262_144})),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Content {
    Photograph,
    Screenshot,
    Noise,
    Ramp,
}

#[derive(Debug, Clone)]
struct Case {
    settings: usize,
    size: Size,
    content: Content,
    seed: u64,
}

fn any_case(max_pixels: u64) -> impl Strategy<Value = Case> {
    let side = || prop_oneof![1u32..300, 300u32..3000, 1000u32..5000];
    // A multiple of half a token's side, and a pixel beside it.
    let edge = || (1u32..300, prop_oneof![Just(14u32), Just(16)], 0u32..3).prop_map(|(n, half, d)| n * half + d - 1);
    let sizes = prop_oneof![
        3 => (side(), side()),
        3 => (edge(), edge()),
        1 => (side(), edge()),
        // Around the largest number of pixels that stays as it is.
        1 => (990u32..1010, 990u32..1010),
        // Long and thin, beyond what is refused too.
        1 => (1u32..120, 1000u32..16_384),
        1 => (1000u32..16_384, 1u32..120),
    ];
    let contents =
        prop_oneof![Just(Content::Photograph), Just(Content::Screenshot), Just(Content::Noise), Just(Content::Ramp)];
    let fits = move |(height, width): &(u32, u32)| *height > 0 && u64::from(*height) * u64::from(*width) <= max_pixels;
    (0..settings().len(), sizes.prop_filter("too many pixels", fits), contents, any::<u64>()).prop_map(
        |(settings, (height, width), content, seed)| Case { settings, size: Size { height, width }, content, seed },
    )
}

#[test]
fn processors_make_the_same_of_a_resized_picture_as_of_the_picture() {
    let Some(python) = Python::start() else { return };
    let choice = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.into()).parse::<u64>().unwrap();
    let images = choice("MEDIAGATE_RESIZE_IMAGES", IMAGES);
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&choice("MEDIAGATE_RESIZE_SEED", "1").to_le_bytes());
    let config = Config { cases: images as u32, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let photograph = Picture::photograph();
    let (python, scratch, resized) = (RefCell::new(python), RefCell::new(Scratch::default()), RefCell::new(0u32));
    let result = runner.run(&any_case(if images > 100 { 16_000_000 } else { 4_000_000 }), |case| {
        let settings = &settings()[case.settings];
        let rule = processor::rule_of_files(settings).expect("a rule for these settings");
        let full = photograph.or_made(&case);
        let done = resize(&full, case.size, &rule, &mut scratch.borrow_mut());
        let answer = python.borrow_mut().ask(settings, case.size, &full, done.as_ref());
        let chosen = rule.processed(case.size).map(|size| json!([size.height, size.width]));
        prop_assert_eq!(chosen.unwrap_or(Value::Null), answer["size"].clone(), "the size that the processor chose");
        prop_assert_eq!(&answer["difference"], &Value::Null);
        *resized.borrow_mut() += u32::from(done.is_some());
        Ok::<_, TestCaseError>(())
    });
    println!("{images} pictures, of which {} were resized", resized.borrow());
    result.unwrap();
    assert!(u64::from(*resized.borrow()) * 10 > images, "most of the test's pictures had no target");
}

/// Resizes as the loader does, from a file; `None` if there is no target.
fn resize(full: &[u8], size: Size, rule: &SmartResize, scratch: &mut Scratch) -> Option<(Size, Vec<u8>)> {
    let target = rule.target(size)?;
    let file = [format!("P6\n{} {}\n255\n", size.width, size.height).as_bytes(), full].concat();
    let mut out = vec![0xa5; target.rgb_bytes()];
    decode_resized(&file, &header(&file), target, &mut out, scratch).unwrap();
    Some((target, out))
}

fn header(file: &[u8]) -> Header {
    let limits = DecodeLimits { max_side: u32::MAX, ..DecodeLimits::default() };
    let Probe::Decodable(header) = probe(file, &limits).unwrap() else { panic!("not decodable") };
    header
}

/// A photograph to cut others from.
struct Picture {
    size: Size,
    rgb: Vec<u8>,
}

impl Picture {
    fn photograph() -> Self {
        let file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/paris.jpg")).unwrap();
        let header = header(&file);
        let mut rgb = vec![0; header.rgb_bytes()];
        decode_into(&file, &header, &mut rgb, &mut decode::Scratch::default()).unwrap();
        Picture { size: header.size(), rgb }
    }

    fn or_made(&self, case: &Case) -> Vec<u8> {
        let Case { size, content, seed, .. } = *case;
        let mut state = seed | 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut rgb = Vec::with_capacity(size.rgb_bytes());
        let shift = random();
        for y in 0..size.height {
            for x in 0..size.width {
                rgb.extend(match content {
                    // Repeated as in a mirror cabinet.
                    Content::Photograph => {
                        let mirrored = |at: u32, side: u32| {
                            let at = (at + (shift % 1000) as u32) % (2 * side);
                            if at < side { at } else { 2 * side - 1 - at }
                        };
                        let (row, column) = (mirrored(y, self.size.height), mirrored(x, self.size.width));
                        let at = (row as usize * self.size.width as usize + column as usize) * 3;
                        [self.rgb[at], self.rgb[at + 1], self.rgb[at + 2]]
                    }
                    // Areas with sharp edges, and lines of a pixel.
                    Content::Screenshot => {
                        let cell = u64::from(x / 90) * 31 + u64::from(y / 40) * 17 + shift % 97;
                        let ink = (x.wrapping_mul(7) ^ y.wrapping_mul(13)) % 11 == 0 && y % 20 < 12;
                        if ink || x % 90 == 0 { [20, 20, 24] } else { [255 - (cell % 5 * 9) as u8, 250, 245] }
                    }
                    Content::Noise => {
                        let bits = random();
                        // Often at the ends, where the filter overshoots.
                        [0, 8, 16].map(|by| match bits >> (40 + by / 4) & 3 {
                            0 => 0,
                            1 => 255,
                            _ => (bits >> by) as u8,
                        })
                    }
                    Content::Ramp => [x as u8, y as u8, (u64::from(x + y) + shift) as u8],
                });
            }
        }
        rgb
    }
}

/// A Python that has the processors.
struct Python {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Python {
    fn start() -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python: OsString =
            env::var_os("MEDIAGATE_TRANSFORMERS_PYTHON").unwrap_or_else(|| root.join(".venv/bin/python").into());
        let has = "import importlib.util as u, sys; sys.exit(not (u.find_spec('transformers') and u.find_spec('torchvision')))";
        let found = Command::new(&python).args(["-c", has]).status();
        if !found.is_ok_and(|status| status.success()) {
            println!("skipped: {} has no transformers and torchvision", Path::new(&python).display());
            return None;
        }
        let mut child = Command::new(&python)
            .arg(root.join("tests/transformers/oracle.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (requests, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Some(Python { child, requests, answers })
    }

    fn ask(&mut self, settings: &Value, size: Size, full: &[u8], resized: Option<&(Size, Vec<u8>)>) -> Value {
        let pair = |size: Size| json!([size.height, size.width]);
        let request =
            json!({"settings": settings, "size": pair(size), "resized": resized.map(|(size, _)| pair(*size))});
        writeln!(self.requests, "{request}").unwrap();
        self.requests.write_all(full).unwrap();
        if let Some((_, resized)) = resized {
            self.requests.write_all(resized).unwrap();
        }
        self.requests.flush().unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).expect("an answer of the processors")
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
