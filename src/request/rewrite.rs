//! A body again, with some spans replaced and every other byte as it came.

use std::ops::Range;

use bytes::Bytes;
use tokio::time::Instant;

use crate::memory::{Admission, Budget, BudgetError};

/// From so many bytes on, writing them is left to another thread: 1080p as base64 takes 0.5 ms (benches/transfer.rs), and a
/// request of many large images as many times that.
const OFF_THREAD_BYTES: usize = 256 << 10;

/// What to put into a body, and where. Edits must not overlap; they may come in any order.
#[derive(Debug, Default)]
pub struct Edits {
    edits: Vec<(Range<usize>, Replacement)>,
}

#[derive(Debug)]
enum Replacement {
    Text(String),
    /// `prefix`, the base64 of header and pixels, `suffix`: written straight into the new body.
    Base64 {
        prefix: String,
        parts: [Bytes; 2],
        suffix: &'static str,
    },
}

impl Edits {
    /// Puts `text` in place of `span`; an empty span inserts.
    pub fn replace(&mut self, span: Range<usize>, text: String) {
        self.edits.push((span, Replacement::Text(text)));
    }

    /// Puts `prefix`, the base64 of the two parts in a row, and `suffix` in place of `span`.
    pub fn replace_with_base64(&mut self, span: Range<usize>, prefix: String, parts: [Bytes; 2], suffix: &'static str) {
        self.edits.push((span, Replacement::Base64 { prefix, parts, suffix }));
    }

    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The new body. `body` itself, unchanged, if there is nothing to do.
    pub fn apply(mut self, body: &Bytes) -> Bytes {
        if self.edits.is_empty() {
            return body.clone();
        }
        self.edits.sort_by_key(|(span, _)| span.start);
        let mut out = Vec::with_capacity(self.edited_bytes(body));
        let mut done = 0;
        for (span, replacement) in self.edits {
            debug_assert!(span.start >= done, "edits overlap");
            out.extend_from_slice(&body[done..span.start]);
            replacement.write(&mut out);
            done = span.end;
        }
        out.extend_from_slice(&body[done..]);
        out.into()
    }
}

impl Edits {
    /// As [`Self::apply`], counted against `budget` as long as anybody holds the new body, and not on the thread that polls
    /// where much is to be written.
    ///
    /// # Errors
    ///
    /// If there is no room for it until `deadline`, or never.
    pub async fn apply_within(self, budget: &Budget, body: &Bytes, deadline: Instant) -> Result<Bytes, BudgetError> {
        if self.edits.is_empty() {
            return Ok(body.clone());
        }
        let bytes = self.edited_bytes(body);
        let admission = budget.admit(bytes, deadline).await?;
        let body = body.clone();
        let write = move || Bytes::from_owner(Counted { bytes: self.apply(&body), _admission: admission });
        if bytes < OFF_THREAD_BYTES {
            return Ok(write());
        }
        match tokio::task::spawn_blocking(write).await {
            Ok(edited) => Ok(edited),
            // It was not cancelled, so it has panicked, which is passed on as if there were no other thread.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// How long the new body will be.
    fn edited_bytes(&self, body: &Bytes) -> usize {
        let added: usize = self.edits.iter().map(|(_, replacement)| replacement.length()).sum();
        let removed: usize = self.edits.iter().map(|(span, _)| span.len()).sum();
        body.len() - removed + added
    }
}

/// A new body, and what it holds of the budget.
struct Counted {
    bytes: Bytes,
    _admission: Admission,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Replacement {
    fn length(&self) -> usize {
        match self {
            Replacement::Text(text) => text.len(),
            Replacement::Base64 { prefix, parts: [a, b], suffix } => {
                prefix.len() + base64_length(a.len() + b.len()) + suffix.len()
            }
        }
    }

    fn write(self, out: &mut Vec<u8>) {
        match self {
            Replacement::Text(text) => out.extend_from_slice(text.as_bytes()),
            Replacement::Base64 { prefix, parts: [a, b], suffix } => {
                out.extend_from_slice(prefix.as_bytes());
                // The join falls inside a group of three: encode the seam by itself, so that nothing large is copied.
                let whole = a.len() / 3 * 3;
                let borrowed = (3 - (a.len() - whole)) % 3;
                let borrowed = borrowed.min(b.len());
                let seam = [&a[whole..], &b[..borrowed]].concat();
                for part in [&a[..whole], &seam[..], &b[borrowed..]] {
                    base64_simd::STANDARD.encode_append(part, out);
                }
                out.extend_from_slice(suffix.as_bytes());
            }
        }
    }
}

fn base64_length(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_to_do_gives_the_same_allocation_back() {
        let body = Bytes::from_static(b"{}");
        assert_eq!(Edits::default().apply(&body).as_ptr(), body.as_ptr());
    }

    proptest! {
        #[test]
        fn bytes_outside_of_edits_stay(body in proptest::collection::vec(any::<u8>(), 20..60), cut in 0usize..10, at in 10usize..20) {
            let body = Bytes::from(body);
            let mut edits = Edits::default();
            edits.replace(at..at, "new".into());
            edits.replace(0..cut, String::new());
            let out = edits.apply(&body);
            let expected = [&body[cut..at], b"new", &body[at..]].concat();
            prop_assert_eq!(&out[..], &expected[..]);
        }

        #[test]
        fn base64_of_two_parts_is_that_of_their_join(a in proptest::collection::vec(any::<u8>(), 0..40), b in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut edits = Edits::default();
            edits.replace_with_base64(0..1, "<".into(), [a.clone().into(), b.clone().into()], ">");
            let out = edits.apply(&Bytes::from_static(b"x"));
            let expected = format!("<{}>", base64_simd::STANDARD.encode_to_string([a, b].concat()));
            prop_assert_eq!(str::from_utf8(&out).unwrap(), expected);
        }
    }
}
