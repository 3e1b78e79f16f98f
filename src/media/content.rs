//! What a picture is called: the content hash and the media id, both functions of the shipped pixels alone.
//!
//! The content hash is the canonical multimodal key that Dynamo computes as well: xxh3-64 over a frame (rank, each
//! dimension, dtype) and the pixels. Without the frame a 30x150 picture passes for a 150x30 one (CVE-2025-46722). It
//! guards against torn pixels on the worker; it does not withstand an attacker, since xxh3 collisions can be made at will.
//!
//! The media id is what vLLM gets as `uuid`, which it uses verbatim as the only key of its processor, encoder and prefix
//! caches. So it must withstand one: 64 bits of content hash, then 192 of BLAKE3 keyed by the scope.

use std::{fmt, hash::Hasher, str::FromStr};

use twox_hash::XxHash3_64;

use super::source::Pieces;

/// xxh3-64 of the frame and the pixels; written as 16 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(u64);

/// The name of a picture within a [`Scope`]; written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MediaId([u8; 32]);

/// All that names one picture: its shape and its two hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    pub height: u32,
    pub width: u32,
    pub content_hash: ContentHash,
    pub media_id: MediaId,
}

/// Within which equal pixels may share caches: everything, or one tenant, or one `cache_salt`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope([u8; 32]);

/// dtype code of the frame: 0 is uint8.
const DTYPE_U8: u8 = 0;

/// Length of the frame of a rank-3 tensor: rank, three dimensions, dtype.
const FRAME_BYTES: usize = 8 + 3 * 8 + 1;

fn frame(height: u32, width: u32) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    for (field, value) in frame.chunks_exact_mut(8).zip([3, u64::from(height), u64::from(width), 3]) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    frame[FRAME_BYTES - 1] = DTYPE_U8;
    frame
}

impl ContentHash {
    /// Of RGB8 pixels of shape (height, width, 3).
    pub fn of(height: u32, width: u32, pixels: &[u8]) -> Self {
        debug_assert_eq!(pixels.len(), height as usize * width as usize * 3);
        let mut hasher = XxHash3_64::with_seed(0);
        hasher.write(&frame(height, width));
        hasher.write(pixels);
        ContentHash(hasher.finish())
    }
}

impl MediaId {
    /// Of RGB8 pixels of shape (height, width, 3) whose content hash is known.
    pub fn of(scope: &Scope, content_hash: ContentHash, height: u32, width: u32, pixels: &[u8]) -> Self {
        // BLAKE3 is fastest in groups of 2^n blocks of 1 KiB that begin at a multiple of their size. Behind the frame they would
        // begin anywhere, and be hashed in small groups for long; so the frame and the first pixels make a group together.
        const GROUP_BYTES: usize = 16 << 10;
        let mut first = [0; GROUP_BYTES];
        let (frame_part, pixel_part) = first.split_at_mut(FRAME_BYTES);
        let (first_pixels, rest) = pixels.split_at(pixels.len().min(pixel_part.len()));
        frame_part.copy_from_slice(&frame(height, width));
        pixel_part[..first_pixels.len()].copy_from_slice(first_pixels);
        let mut hasher = blake3::Hasher::new_keyed(&scope.0);
        hasher.update(&first[..FRAME_BYTES + first_pixels.len()]);
        hasher.update(rest);
        let mut id = [0; 32];
        id[..8].copy_from_slice(&content_hash.0.to_be_bytes());
        id[8..].copy_from_slice(&hasher.finalize().as_bytes()[..24]);
        MediaId(id)
    }

    /// Of what is at a URL, for whoever does not look at the pixels. No pixels have the same id: a frame does not begin
    /// as a URL does.
    pub fn of_url(scope: &Scope, url: &str) -> Self {
        MediaId(*blake3::keyed_hash(&scope.0, url.as_bytes()).as_bytes())
    }

    /// As [`Self::of_url`] of what is written there, of a URL as it stands within a JSON string.
    pub fn of_escaped_url(scope: &Scope, raw: &str) -> Self {
        // BLAKE3 is several times as fast in parts as piece by piece.
        const PART_BYTES: usize = 16 << 10;
        let mut hasher = blake3::Hasher::new_keyed(&scope.0);
        let mut part = Vec::with_capacity(PART_BYTES);
        for piece in Pieces::new(raw) {
            let mut buffer = [0; 4];
            let piece = piece.as_bytes(&mut buffer);
            if part.len() + piece.len() > PART_BYTES {
                hasher.update(&part);
                part.clear();
            }
            if piece.len() > PART_BYTES {
                hasher.update(piece);
            } else {
                part.extend_from_slice(piece);
            }
        }
        MediaId(*hasher.update(&part).finalize().as_bytes())
    }

    /// Of a file that is not decoded.
    pub fn of_file(scope: &Scope, bytes: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&scope.0);
        // No frame and no URL begins so.
        hasher.update(b"\0file\0").update(bytes);
        MediaId(*hasher.finalize().as_bytes())
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The id that is written like this, whoever made it.
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        MediaId(bytes)
    }

    /// A byte that no client can choose, since it is of the keyed hash: for spreading names over locks.
    pub fn spread(&self) -> u8 {
        self.0[31]
    }

    /// The first 64 bits, evenly spread: for sharding and rendezvous hashing.
    pub fn prefix(&self) -> u64 {
        u64::from_be_bytes(*self.0.first_chunk().unwrap_or(&[0; 8]))
    }
}

impl Name {
    /// Bytes of the pixels.
    pub fn rgb_bytes(&self) -> usize {
        self.height as usize * self.width as usize * 3
    }

    /// What stands before the pixels in a binary PPM file.
    pub fn ppm_header(&self) -> String {
        format!("P6\n{} {}\n255\n", self.width, self.height)
    }

    /// Of RGB8 pixels of shape (height, width, 3).
    pub fn of(scope: &Scope, height: u32, width: u32, pixels: &[u8]) -> Self {
        let content_hash = ContentHash::of(height, width, pixels);
        let media_id = MediaId::of(scope, content_hash, height, width, pixels);
        Name { height, width, content_hash, media_id }
    }
}

impl Scope {
    /// The scope of a tenant and a `cache_salt`, each of which may be absent.
    pub fn new(tenant: Option<&str>, cache_salt: Option<&str>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("mediagate 2026-11 media scope v1");
        for part in [tenant, cache_salt] {
            // Absent and empty differ, and no two pairs frame to the same bytes.
            hasher.update(&[u8::from(part.is_some())]);
            hasher.update(&(part.unwrap_or("").len() as u64).to_le_bytes());
            hasher.update(part.unwrap_or("").as_bytes());
        }
        Scope(*hasher.finalize().as_bytes())
    }

    /// A scope within this one.
    pub fn within(&self, part: &[u8]) -> Self {
        Scope(*blake3::keyed_hash(&self.0, part).as_bytes())
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Default for Scope {
    fn default() -> Self {
        Scope::new(None, None)
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for MediaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for MediaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A scope is a key derived from what may be a secret salt.
        f.write_str("Scope(..)")
    }
}

impl FromStr for ContentHash {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(ContentHash)
    }
}

impl FromStr for MediaId {
    type Err = blake3::HexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The same form as a hash: 32 bytes as hex digits.
        blake3::Hash::from_hex(text).map(|bytes| MediaId(*bytes.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn content_hash_has_the_published_vector() {
        assert_eq!(ContentHash::of(1, 2, &[0, 1, 2, 3, 4, 5]).to_string(), "7a9bbcb11a898630");
    }

    #[test]
    fn the_same_bytes_in_another_shape_have_another_name() {
        let pixels = vec![7; 30 * 150 * 3];
        let (a, b) = (ContentHash::of(30, 150, &pixels), ContentHash::of(150, 30, &pixels));
        assert_ne!(a, b);
        let scope = Scope::default();
        let (a, b) = (MediaId::of(&scope, a, 30, 150, &pixels), MediaId::of(&scope, b, 150, 30, &pixels));
        assert_ne!(a, b);
        assert_ne!(a.0[8..], b.0[8..], "the keyed part must differ by itself");
    }

    #[test]
    fn a_media_id_is_64_hex_digits_that_begin_with_the_content_hash() {
        let hash = ContentHash::of(1, 2, &[0, 1, 2, 3, 4, 5]);
        let id = MediaId::of(&Scope::default(), hash, 1, 2, &[0, 1, 2, 3, 4, 5]).to_string();
        assert_eq!(id.len(), 64);
        assert!(id.starts_with("7a9bbcb11a898630"));
        assert_eq!(u64::from_str_radix(&id[..16], 16), Ok(hash.0));
    }

    proptest! {
        #[test]
        fn however_a_url_is_written_it_has_one_name(url: String, runs in prop::collection::vec(0usize..40_000, 0..4)) {
            let url = runs.iter().fold(url, |url, &run| format!("{url}{}/", "x".repeat(run)));
            let json = serde_json::to_string(&url).unwrap();
            let (plain, scope) = (&json[1..json.len() - 1], Scope::default());
            for raw in [plain.to_owned(), plain.replace('/', "\\/"), plain.replace('x', "\\u0078")] {
                prop_assert_eq!(MediaId::of_escaped_url(&scope, &raw), MediaId::of_url(&scope, &url));
            }
        }
    }

    #[test]
    fn scopes_separate_media_ids_and_are_framed() {
        let hash = ContentHash::of(1, 1, &[1, 2, 3]);
        let scopes = [
            Scope::new(None, None),
            Scope::new(Some(""), None),
            Scope::new(None, Some("")),
            Scope::new(Some("ab"), Some("c")),
            Scope::new(Some("a"), Some("bc")),
            Scope::new(Some("abc"), None),
        ];
        let ids: std::collections::HashSet<_> =
            scopes.iter().map(|scope| MediaId::of(scope, hash, 1, 1, &[1, 2, 3])).collect();
        assert_eq!(ids.len(), scopes.len());
    }
}
