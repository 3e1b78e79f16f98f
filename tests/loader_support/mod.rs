//! What the tests of the loader share: an origin that draws pictures to order and counts, and loaders that may ask it.

// Each test binary uses a part of it.
#![allow(dead_code)]

use std::{
    collections::{HashMap, HashSet},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use futures_util::stream;
use mediagate::{
    media::{
        decode::DecodeLimits,
        fetch::FetchConfig,
        loader::{Loaded, MediaConfig, MediaLoader},
        picture::Media,
        source::SourceText,
    },
    memory::{Arena, Layout},
};
use serde::Deserialize;
use tokio::{sync::watch, time::Instant};

/// No event that a test waits for takes nearly as long, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// An origin on loopback. `/{seed}/{width}/{height}` is a PNG of those; the query says how it is to be answered.
pub struct Origin {
    address: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Requests by path and query.
    requests: Mutex<HashMap<String, usize>>,
    under_way: Mutex<(usize, usize)>,
    /// Bodies that are being sent, and the most at once.
    bodies: Mutex<(usize, usize)>,
    /// Which gates are open.
    open: watch::Sender<HashSet<String>>,
}

#[derive(Deserialize)]
struct Manner {
    /// `Cache-Control`.
    cc: Option<String>,
    etag: Option<String>,
    /// Milliseconds before the answer.
    delay: Option<u64>,
    /// Instead of a picture.
    status: Option<u16>,
    /// A file that breaks off.
    broken: Option<bool>,
    /// Milliseconds between the head of the answer, which tells the length, and its body.
    pause: Option<u64>,
    /// The body comes when this gate is opened ([`Origin::open`]).
    gate: Option<String>,
    /// The head does not tell the length.
    chunked: Option<bool>,
    /// A file of a format that is not decoded.
    avif: Option<bool>,
}

impl Origin {
    pub async fn start() -> Self {
        let seen = Arc::<Seen>::default();
        let app = Router::new().route("/{seed}/{width}/{height}", get(answer)).with_state(seen.clone());
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Origin { address, seen }
    }

    pub fn url(&self, path: &str) -> SourceText {
        format!("http://{}{path}", self.address).into()
    }

    pub fn requests(&self, path: &str) -> usize {
        self.seen.requests.lock().unwrap().get(path).copied().unwrap_or(0)
    }

    /// The most requests that were under way at once.
    pub fn most_under_way(&self) -> usize {
        self.seen.under_way.lock().unwrap().1
    }

    /// The most bodies that were being sent at once, of those with a pause.
    pub fn most_bodies(&self) -> usize {
        self.seen.bodies.lock().unwrap().1
    }

    /// Lets the bodies go that wait at this gate, and those that come there.
    pub fn open(&self, gate: &str) {
        self.seen.open.send_if_modified(|open| open.insert(gate.to_owned()));
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn config(&self) -> MediaConfig {
        config(self.port())
    }
}

/// What a loader is told if it may ask an origin on this port. Times are such that a slow machine is no failure.
pub fn config(port: u16) -> MediaConfig {
    MediaConfig {
        fetch: FetchConfig {
            allow_cidrs: vec!["127.0.0.0/8".parse().unwrap()],
            allow_ports: [port].into_iter().collect(),
            connect_timeout: PATIENCE,
            first_byte_timeout: PATIENCE,
            total_timeout: PATIENCE,
            max_bytes: 1 << 20,
            max_retries: 0,
            max_concurrent_per_host: 256,
            ..FetchConfig::default()
        },
        decode: DecodeLimits::default(),
        encoded_bytes: 64 << 20,
        scratch_bytes: 64 << 20,
        jpeg_scaling: false,
        decoders: 2,
        fresh: Duration::from_secs(60),
        fresh_min: Duration::ZERO,
        fresh_max: Duration::from_secs(3600),
        negative: Duration::from_secs(60),
    }
}

async fn answer(
    State(seen): State<Arc<Seen>>,
    Path((seed, width, height)): Path<(u64, u32, u32)>,
    Query(manner): Query<Manner>,
    uri: axum::http::Uri,
    headers: HeaderMap,
) -> Response {
    *seen.requests.lock().unwrap().entry(uri.to_string()).or_default() += 1;
    {
        let mut under_way = seen.under_way.lock().unwrap();
        under_way.0 += 1;
        under_way.1 = under_way.1.max(under_way.0);
    }
    tokio::time::sleep(Duration::from_millis(manner.delay.unwrap_or(0))).await;
    seen.under_way.lock().unwrap().0 -= 1;
    let mut said = HeaderMap::new();
    if let Some(cc) = &manner.cc {
        said.insert(header::CACHE_CONTROL, cc.parse().unwrap());
    }
    if let Some(etag) = &manner.etag {
        said.insert(header::ETAG, format!("\"{etag}\"").parse().unwrap());
        if headers.get(header::IF_NONE_MATCH) == said.get(header::ETAG) {
            return (StatusCode::NOT_MODIFIED, said).into_response();
        }
    }
    if let Some(status) = manner.status {
        return StatusCode::from_u16(status).unwrap().into_response();
    }
    let mut file = if manner.avif == Some(true) { avif(seed) } else { png(seed, width, height) };
    if manner.broken == Some(true) {
        file.truncate(file.len() / 2);
    }
    if manner.pause.is_none() && manner.gate.is_none() {
        return (said, file).into_response();
    }
    if manner.chunked != Some(true) {
        said.insert(header::CONTENT_LENGTH, file.len().into());
    }
    let body = async move {
        {
            let mut bodies = seen.bodies.lock().unwrap();
            bodies.0 += 1;
            bodies.1 = bodies.1.max(bodies.0);
        }
        tokio::time::sleep(Duration::from_millis(manner.pause.unwrap_or(0))).await;
        if let Some(gate) = manner.gate {
            // The sender is in `seen`.
            let _ = seen.open.subscribe().wait_for(|open| open.contains(&gate)).await;
        }
        seen.bodies.lock().unwrap().0 -= 1;
        Ok::<_, std::convert::Infallible>(file)
    };
    (said, Body::from_stream(stream::once(body))).into_response()
}

/// A file that is told to be AVIF by its first bytes, and is nothing beyond.
pub fn avif(seed: u64) -> Vec<u8> {
    [b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf".as_slice(), &seed.to_le_bytes().repeat(1000)].concat()
}

/// Pixels that tell one seed from another, and one place from another.
pub fn pixels(seed: u64, width: u32, height: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..width as usize * height as usize * 3)
        .map(|index| {
            if index % 256 == 0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            }
            (state >> 56) as u8
        })
        .collect()
}

pub fn png(seed: u64, width: u32, height: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&pixels(seed, width, height)).unwrap();
    writer.finish().unwrap();
    file
}

pub fn data_uri(seed: u64, width: u32, height: u32) -> String {
    let file = png(seed, width, height);
    format!("data:image/png;base64,{}", base64_simd::STANDARD.encode_to_string(file))
}

/// A loader of an arena of one zone.
pub fn loader(config: MediaConfig, arena_bytes: usize) -> MediaLoader {
    MediaLoader::new(config, Arena::new(arena_bytes).unwrap()).unwrap()
}

/// A loader of an arena with a zone for large images.
pub fn zoned_loader(config: MediaConfig, arena_bytes: usize, largest_bytes: usize) -> MediaLoader {
    let layout = Layout::new(arena_bytes, largest_bytes);
    assert!(layout.is_possible() && layout.large_zone_bytes > 0);
    MediaLoader::new(config, Arena::with_layout(layout).unwrap()).unwrap()
}

/// For what cannot come before it.
pub fn soon() -> Instant {
    Instant::now() + Duration::from_millis(50)
}

pub fn late() -> Instant {
    Instant::now() + PATIENCE
}

/// The pixels of a loaded picture, and where they are.
pub fn picture(loaded: &Loaded) -> (&[u8], usize) {
    match &loaded.media {
        Media::Picture(picture) => (&picture.slot, picture.slot.address()),
        Media::Original(original) => panic!("{} was not decoded", original.name.format.name()),
    }
}

/// Waits until nobody holds anything: what was left runs out on threads of its own.
pub async fn at_rest(loader: &MediaLoader) {
    let deadline = late();
    while loader.held() != Default::default() {
        assert!(Instant::now() < deadline, "{:?}", loader.held());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    loader.clear();
    assert_eq!(loader.arena().usage().used_bytes, 0, "all slots are free");
}
