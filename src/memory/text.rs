//! A part of a request's body that is text, shared and not copied.

use std::fmt;

use bytes::Bytes;

/// Text, such as an image's URL. A clone shares it, so that megabytes of base64 go to another thread without a copy.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SharedText(Bytes);

impl SharedText {
    /// `text`, without a copy if it is a part of `body`.
    pub fn within(body: &Bytes, text: &str) -> Self {
        let (outer, inner) = (body.as_ptr_range(), text.as_bytes().as_ptr_range());
        let is_part = outer.start <= inner.start && inner.end <= outer.end;
        SharedText(if is_part { body.slice_ref(text.as_bytes()) } else { Bytes::copy_from_slice(text.as_bytes()) })
    }

    pub fn as_str(&self) -> &str {
        // SAFETY: every constructor takes a str, and the bytes are never changed.
        unsafe { str::from_utf8_unchecked(&self.0) }
    }
}

impl From<String> for SharedText {
    fn from(text: String) -> Self {
        SharedText(text.into())
    }
}

impl From<&str> for SharedText {
    fn from(text: &str) -> Self {
        SharedText(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl fmt::Debug for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What a client wrote may hold a secret, and may be long.
        f.debug_struct("SharedText").field("bytes", &self.0.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_body_is_shared_and_anything_else_copied() {
        let body = Bytes::from_static(b"{\"url\": \"data:,x\"}");
        let part = str::from_utf8(&body[9..16]).unwrap();
        let shared = SharedText::within(&body, part);
        assert_eq!((shared.as_str(), shared.0.as_ptr()), ("data:,x", part.as_ptr()));
        let unescaped = String::from("data:,y");
        assert_eq!(SharedText::within(&body, &unescaped).as_str(), "data:,y");
        assert_eq!(SharedText::within(&body, "").as_str(), "");
    }
}
