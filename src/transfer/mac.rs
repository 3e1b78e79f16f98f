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
        Key(*self.hash(label, fields).as_bytes())
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
