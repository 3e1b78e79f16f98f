//! Memory that a decoder uses beside its output, kept for the next picture.

/// Memory fresh from the system costs a fault a page: for a WebP picture with transparency, up to a tenth of decoding it. So whoever
/// decodes picture after picture keeps one of these, and counts it.
#[derive(Debug, Default)]
pub struct Scratch(Vec<u8>);

impl Scratch {
    /// So many bytes, with what the last one left in them.
    pub(in crate::media) fn bytes(&mut self, length: usize) -> &mut [u8] {
        if self.0.len() < length {
            // Not grown: that would copy what is of no use.
            self.0 = Vec::new();
            self.0 = vec![0; length];
        }
        &mut self.0[..length]
    }

    /// What it keeps from the system.
    pub fn held_bytes(&self) -> usize {
        self.0.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_memory_serves_again_until_more_is_wanted() {
        let mut scratch = Scratch::default();
        assert_eq!(scratch.held_bytes(), 0);
        scratch.bytes(8).fill(7);
        assert_eq!(scratch.bytes(5), [7; 5]);
        assert_eq!(scratch.bytes(8), [7; 8]);
        assert_eq!(scratch.held_bytes(), 8);
        assert_eq!(scratch.bytes(9), [0; 9]);
        assert_eq!(scratch.held_bytes(), 9);
    }
}
