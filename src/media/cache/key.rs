//! What a source is called within the cache.

use crate::media::content::Scope;

/// The exact source of an image, within a scope: BLAKE3, keyed by the scope, of the exact text.
///
/// A digest of 256 bits that nobody can make collide: to compare two is to compare the texts. It has one size, while a
/// URL may have kilobytes, so that the memory of a hundred thousand of them is known beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceKey([u8; 32]);

impl SourceKey {
    /// Of a URL as the client wrote it.
    pub fn url(scope: &Scope, exact: &str) -> Self {
        Self::of(scope, b'u', exact)
    }

    /// Of the base64 text of a data: URI.
    pub fn data(scope: &Scope, payload: &str) -> Self {
        Self::of(scope, b'd', payload)
    }

    fn of(scope: &Scope, kind: u8, text: &str) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(scope.as_bytes());
        hasher.update(&[kind]);
        hasher.update(text.as_bytes());
        SourceKey(*hasher.finalize().as_bytes())
    }

    /// A byte of it, for spreading keys over locks.
    pub fn spread(&self) -> u8 {
        self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_its_exact_text_its_kind_and_its_scope() {
        let scope = Scope::default();
        let key = SourceKey::url(&scope, "https://h/A?x=1");
        assert_eq!(key, SourceKey::url(&scope, "https://h/A?x=1"));
        for other in [
            SourceKey::url(&scope, "https://h/a?x=1"),
            SourceKey::url(&Scope::new(Some("tenant"), None), "https://h/A?x=1"),
            SourceKey::url(&Scope::new(None, Some("salt")), "https://h/A?x=1"),
            SourceKey::data(&scope, "https://h/A?x=1"),
        ] {
            assert_ne!(key, other);
        }
    }
}
