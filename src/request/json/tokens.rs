//! What JSON text is made of: strings, numbers and words.

use std::{borrow::Cow, ops::Range};

use super::{JsonError, MAX_UNESCAPED_BYTES, Reader};

/// A JSON string in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// With its quotes.
    pub span: Range<usize>,
    pub has_escapes: bool,
}

impl<'a> Reader<'a> {
    /// Reads a string.
    pub fn string(&mut self, expected: &'static str) -> Result<Text, JsonError> {
        self.skip_space();
        let start = self.at;
        self.take(b'"', expected)?;
        let bytes = self.text.as_bytes();
        let mut has_escapes = false;
        loop {
            let from = self.at;
            let Some(found) = memchr::memchr2(b'"', b'\\', &bytes[from..]) else {
                self.at = bytes.len();
                return Err(self.syntax("the end of the string"));
            };
            let until = from + found;
            // A separate pass, which the compiler vectorises; control characters must be escaped (RFC 8259, 7).
            if bytes[from..until].iter().fold(false, |any, &byte| any | (byte < 0x20)) {
                self.at = from;
                return Err(self.syntax("no control character within a string"));
            }
            self.at = until + 1;
            if bytes[until] == b'"' {
                return Ok(Text { span: start..self.at, has_escapes });
            }
            has_escapes = true;
            self.escape()?;
        }
    }

    /// A string as it stands, without its quotes.
    pub fn raw(&self, text: &Text) -> &'a str {
        &self.text[text.span.start + 1..text.span.end - 1]
    }

    /// What a string says. With escapes it is a copy, and so must not be longer than [`MAX_UNESCAPED_BYTES`].
    pub fn unescape(&self, text: &Text) -> Result<Cow<'a, str>, JsonError> {
        if !text.has_escapes {
            return Ok(Cow::Borrowed(self.raw(text)));
        }
        if text.span.len() > MAX_UNESCAPED_BYTES {
            return Err(JsonError::LongEscapes { at: text.span.start });
        }
        let quoted = &self.text[text.span.clone()];
        // Fails for surrogates that stand alone, which no Rust string can hold.
        let unescaped = serde_json::from_str(quoted);
        unescaped.map(Cow::Owned).map_err(|_| JsonError::Syntax { at: text.span.start, expected: "a valid string" })
    }

    /// After a backslash.
    fn escape(&mut self) -> Result<(), JsonError> {
        match self.byte() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                let digits = self.text.as_bytes().get(self.at + 1..self.at + 5);
                if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    return Err(self.syntax("four hex digits"));
                }
                self.at += 5;
            }
            _ => return Err(self.syntax("an escape")),
        }
        Ok(())
    }

    pub(super) fn literal(&mut self, word: &'static str) -> Result<(), JsonError> {
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.syntax("a value"))
        }
    }

    pub(super) fn number(&mut self) -> Result<(), JsonError> {
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        match self.byte() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.syntax("a digit")),
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.byte() {
            self.at += 1;
        }
        if self.at == start { Err(self.syntax("a digit")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_with_escapes_is_copied_up_to_a_length_and_any_other_of_any_length() {
        let read = |text: &str| {
            let mut reader = Reader::new(text.as_bytes()).unwrap();
            let string = reader.string("a string").unwrap();
            reader.unescape(&string).map(|text| text.len())
        };
        let escaped = |bytes: usize| format!("\"\\/{}\"", "a".repeat(bytes - 4));
        assert_eq!(read(&escaped(MAX_UNESCAPED_BYTES)), Ok(MAX_UNESCAPED_BYTES - 3));
        assert_eq!(read(&escaped(MAX_UNESCAPED_BYTES + 1)), Err(JsonError::LongEscapes { at: 0 }));
        assert_eq!(read(&format!("\"{}\"", "a".repeat(1 << 20))), Ok(1 << 20));
    }

    #[test]
    fn strings_are_found_with_their_escapes() {
        let mut reader = Reader::new(br#" "a\/b\u0041" "#).unwrap();
        let text = reader.string("a string").unwrap();
        assert_eq!(text.span, 1..13);
        assert_eq!(reader.unescape(&text).unwrap(), "a/bA");
    }
}
