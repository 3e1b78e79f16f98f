//! Keyed hashes of the landing protocol (docs/PROTOCOL.md, "MACs").

/// 32 bytes that both sides know: of the attach secret, or of one grant.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of an attach secret: the content of the key file, or nothing.
    pub fn of_secret(secret: &[u8]) -> Self {
        Key(blake3::derive_key("mediagate 2026-11 attach secret v1", secret.trim_ascii()))
    }

    /// A key derived from this one and what both sides know.
    pub fn derive(&self, label: &str, fields: &[&[u8]]) -> Self {
        Key(self.tag(label, fields))
    }

    /// The 32 bytes of `mac(key, label, fields...)`.
    pub fn tag(&self, label: &str, fields: &[&[u8]]) -> [u8; 32] {
        *self.hash(label, fields).as_bytes()
    }

    /// `mac(key, label, fields...)` as 64 hex digits.
    pub fn mac(&self, label: &str, fields: &[&[u8]]) -> String {
        self.hash(label, fields).to_hex().to_string()
    }

    /// Whether `given` is the MAC, in constant time.
    pub fn verify(&self, label: &str, fields: &[&[u8]], given: &str) -> bool {
        // blake3::Hash compares in constant time.
        blake3::Hash::from_hex(given).is_ok_and(|given| given == self.hash(label, fields))
    }

    fn hash(&self, label: &str, fields: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(label.as_bytes()).update(&[0]);
        for field in fields {
            // Fields are nonces, names and bodies of at most megabytes; a longer one would only fail to verify.
            let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
            hasher.update(&length.to_le_bytes()).update(field);
        }
        hasher.finalize()
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_around_a_secret_does_not_count() {
        assert_eq!(Key::of_secret(b"secret secret 16\n"), Key::of_secret(b"  secret secret 16"));
        assert_ne!(Key::of_secret(b"secret secret 16"), Key::of_secret(b""));
    }

    /// The same file is checked by python/tests: both sides compute the same.
    #[test]
    fn the_vectors_of_the_protocol_hold() {
        let vectors: serde_json::Value = serde_json::from_str(include_str!("../../python/tests/vectors.json")).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let hex = |key: &Key| blake3::Hash::from_bytes(key.0).to_hex().to_string();
        let key = Key::of_secret(text(&vectors["secret"]).as_bytes());
        assert_eq!(hex(&key), vectors["secret_key"]);
        assert_eq!(hex(&Key::of_secret(b"")), vectors["secret_key_of_no_secret"]);
        for vector in vectors["mac"].as_array().unwrap() {
            assert_eq!(hex(&key), vector["key"]);
            let fields: Vec<String> = vector["fields"].as_array().unwrap().iter().map(text).collect();
            let fields: Vec<&[u8]> = fields.iter().map(String::as_bytes).collect();
            assert_eq!(key.mac(&text(&vector["label"]), &fields), vector["mac"]);
        }
        let handshake = &vectors["handshake"];
        let parties = ["gateway", "nonce", "worker", "worker_nonce"].map(|name| text(&handshake[name]));
        let parties: Vec<&[u8]> = parties.iter().map(String::as_bytes).collect();
        assert_eq!(key.mac("mediagate worker v1", &parties), handshake["proof"]);
        let grant_key = key.derive("mediagate grant key v1", &parties);
        assert_eq!(hex(&grant_key), handshake["grant_key"]);
        let answer = text(&handshake["answer_body"]);
        assert_eq!(grant_key.mac("mediagate answer v1", &[answer.as_bytes()]), handshake["answer_mac"]);
    }

    #[test]
    fn fields_are_framed() {
        let key = Key::of_secret(b"");
        assert_ne!(key.mac("x", &[b"ab", b"c"]), key.mac("x", &[b"a", b"bc"]));
        assert_ne!(key.mac("x", &[b""]), key.mac("x", &[]));
        let mac = key.mac("x", &[b"a"]);
        assert!(key.verify("x", &[b"a"], &mac));
        assert!(!key.verify("y", &[b"a"], &mac));
        assert!(!key.verify("x", &[b"a"], "not hex"));
    }
}
