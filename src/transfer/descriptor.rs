//! What stands in a request in place of an image: where its pixels will be on the worker, and what they must be.

use std::fmt;

use super::{mac::Key, mark::Mark};
use crate::media::content::{ContentHash, MediaId};

/// The scheme of references. Clients may not use it.
pub const SCHEME: &str = "mediagate://";

/// One picture that is pushed to one worker (docs/PROTOCOL.md, "References").
///
/// `Display` of [`Self::reference`] is what the worker's media connector takes as an image's URL: under 256 bytes,
/// whatever the picture is, and authentic: a client cannot make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaMediaDataDescriptor {
    /// Incarnation of the worker's lander.
    pub worker: String,
    pub grant: u64,
    /// Names the push; counted per grant from 1.
    pub generation: u64,
    /// Of the slot within the grant, in bytes, page-aligned.
    pub offset: u64,
    /// Pixels are RGB8 of shape (height, width, 3).
    pub height: u32,
    pub width: u32,
    pub content_hash: ContentHash,
    pub media_id: MediaId,
    /// How many image parts of the request name this push.
    pub uses: u32,
    /// How long the worker may wait for the pixels, in milliseconds.
    pub wait_ms: u32,
}

impl RdmaMediaDataDescriptor {
    /// Bytes that are pushed.
    pub fn length(&self) -> u64 {
        u64::from(self.height) * u64::from(self.width) * 3
    }

    /// The reference URL, authenticated with the grant's key.
    pub fn reference(&self, key: &Key) -> String {
        let text = self.to_string();
        let mac = key.mac("mediagate reference v1", &[text.as_bytes()]);
        format!("{SCHEME}{text}/{}", &mac[..32])
    }

    /// What says that all of it is there.
    pub fn mark(&self, key: &Key) -> Mark {
        Mark::new(key, self.grant, self.generation, self.offset, self.length())
    }
}

impl fmt::Display for RdmaMediaDataDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, grant, generation, offset, height, width, content_hash, media_id, uses, wait_ms } = self;
        write!(f, "{worker}/{grant}/{generation}/{offset}/{height}x{width}/{content_hash}/{media_id}/{uses}/{wait_ms}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::content::Scope;

    fn descriptor(pixels: &[u8], height: u32, width: u32) -> RdmaMediaDataDescriptor {
        let content_hash = ContentHash::of(height, width, pixels);
        let media_id = MediaId::of(&Scope::default(), content_hash, height, width, pixels);
        RdmaMediaDataDescriptor {
            worker: "0123456789abcdef".into(),
            grant: 7,
            generation: 42,
            offset: 8192,
            height,
            width,
            content_hash,
            media_id,
            uses: 1,
            wait_ms: 2000,
        }
    }

    #[test]
    fn a_reference_stays_under_256_bytes_for_the_largest_values_that_occur() {
        let mut d = descriptor(&[0; 6], 1, 2);
        d.grant = 1 << 32;
        d.generation = 1 << 40;
        d.offset = 1 << 40;
        d.height = 16384;
        d.width = 16384;
        d.uses = 999;
        d.wait_ms = 600_000;
        assert!(d.reference(&Key::of_secret(b"")).len() < 256);
    }

    #[test]
    fn the_vector_of_the_protocol_holds() {
        let vectors: serde_json::Value = serde_json::from_str(include_str!("../../python/tests/vectors.json")).unwrap();
        let reference = &vectors["reference"];
        let number = |name: &str| reference[name].as_u64().unwrap();
        let media_id: String = reference["media_id"].as_str().unwrap().into();
        let d = RdmaMediaDataDescriptor {
            worker: reference["worker"].as_str().unwrap().into(),
            grant: number("grant"),
            generation: number("generation"),
            offset: number("offset"),
            height: number("height") as u32,
            width: number("width") as u32,
            content_hash: reference["content_hash"].as_str().unwrap().parse().unwrap(),
            media_id: media_id.parse().unwrap(),
            uses: number("uses") as u32,
            wait_ms: number("wait_ms") as u32,
        };
        let handshake = &vectors["handshake"];
        let parties = ["gateway", "nonce", "worker", "worker_nonce"].map(|name| handshake[name].as_str().unwrap());
        let secret = Key::of_secret(vectors["secret"].as_str().unwrap().as_bytes());
        let key = secret.derive("mediagate grant key v1", &parties.map(str::as_bytes));
        assert_eq!(d.reference(&key), reference["url"].as_str().unwrap());
    }

    #[test]
    fn a_reference_depends_on_the_key_and_on_every_field() {
        let d = descriptor(&[0; 6], 1, 2);
        let key = Key::of_secret(b"0123456789abcdef");
        let mac = |d: &RdmaMediaDataDescriptor, key: &Key| d.reference(key).rsplit_once('/').unwrap().1.to_owned();
        let other = RdmaMediaDataDescriptor { generation: 43, ..d.clone() };
        assert_ne!(mac(&d, &key), mac(&other, &key));
        assert_ne!(mac(&d, &key), mac(&d, &Key::of_secret(b"")));
    }
}
