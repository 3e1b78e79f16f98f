//! A strict, non-recursive reader of JSON text (RFC 8259).
//!
//! It exists for positions: the rest of the gateway needs to know where in the body a string stands, not what the body
//! means. It checks the whole grammar nevertheless, and refuses what parsers read differently (trailing bytes, NaN, a byte
//! order mark, keys that occur twice where they matter), because the worker parses the same bytes with another parser, and
//! a part that we overlook is a URL that the worker fetches. `tokens` reads strings, numbers and words.

mod tokens;

use std::borrow::Cow;

use http::StatusCode;

pub use tokens::Text;

use crate::error::Fault;

/// Nested arrays and objects. serde_json's limit; far above what any request needs.
pub const MAX_DEPTH: usize = 128;

/// Of a string with escapes that is read for what it says: a name, or a URL, which may have 16 KiB.
pub const MAX_UNESCAPED_BYTES: usize = 32 << 10;

/// Why a body is not read. Positions are byte offsets into the body.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum JsonError {
    #[error("the body is not UTF-8")]
    NotUtf8,
    #[error("invalid JSON at byte {at}: {expected} expected")]
    Syntax { at: usize, expected: &'static str },
    #[error("JSON nested deeper than {MAX_DEPTH} levels at byte {at}")]
    TooDeep { at: usize },
    #[error(
        "a string with escapes, longer than {MAX_UNESCAPED_BYTES} bytes where a short one is expected, at byte {at}"
    )]
    LongEscapes { at: usize },
    #[error("bytes after the JSON value at byte {at}")]
    Trailing { at: usize },
    #[error("the key `{key}` occurs twice in one object, at byte {at}")]
    Duplicate { key: &'static str, at: usize },
    #[error("`{what}` at byte {at} must be {expected}")]
    Type { what: &'static str, at: usize, expected: &'static str },
}

impl Fault for JsonError {
    fn status(&self) -> StatusCode {
        StatusCode::BAD_REQUEST
    }

    fn code(&self) -> &'static str {
        match self {
            JsonError::Duplicate { .. } => "duplicate_key",
            JsonError::Type { .. } => "invalid_type",
            _ => "invalid_json",
        }
    }

    fn public(&self) -> Cow<'static, str> {
        // Positions and our own words only: nothing of the body is repeated.
        match self {
            JsonError::NotUtf8 => "The body is not UTF-8.".into(),
            JsonError::Syntax { at, expected } => {
                format!("The body is not valid JSON: at byte {at}, {expected} was expected.").into()
            }
            JsonError::TooDeep { at } => {
                format!("The body is JSON nested deeper than {MAX_DEPTH} levels, at byte {at}.").into()
            }
            JsonError::LongEscapes { at } => format!(
                "At byte {at} a string with escapes is longer than {MAX_UNESCAPED_BYTES} bytes where a short one is expected."
            )
            .into(),
            JsonError::Trailing { at } => format!("Other bytes follow the JSON value, at byte {at}.").into(),
            JsonError::Duplicate { key, at } => {
                format!("The key `{key}` occurs twice in one object, at byte {at}.").into()
            }
            JsonError::Type { what, at, expected } => format!("At byte {at}, `{what}` must be {expected}.").into(),
        }
    }
}

/// Reads values one after another.
pub struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// Levels that the caller has entered.
    depth: usize,
}

impl<'a> Reader<'a> {
    pub fn new(body: &'a [u8]) -> Result<Self, JsonError> {
        let text = str::from_utf8(body).map_err(|_| JsonError::NotUtf8)?;
        Ok(Reader { text, at: 0, depth: 0 })
    }

    /// Byte offset of what is read next.
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn text(&self) -> &'a str {
        self.text
    }

    /// First byte of the next value, unread.
    pub fn peek(&mut self) -> Result<u8, JsonError> {
        self.skip_space();
        self.byte().ok_or(self.syntax("a value"))
    }

    /// The end of the text, but for white space.
    pub fn end(&mut self) -> Result<(), JsonError> {
        self.skip_space();
        if self.at == self.text.len() { Ok(()) } else { Err(JsonError::Trailing { at: self.at }) }
    }

    /// Reads an object: `member` gets each key with the reader before its value, which it must read. Gives the position
    /// of the closing brace.
    pub fn object<E: From<JsonError>>(
        &mut self,
        mut member: impl FnMut(&str, &mut Self) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.enter(b'{', "an object")?;
        self.skip_space();
        if self.byte() == Some(b'}') {
            return Ok(self.leave());
        }
        loop {
            self.skip_space();
            let key = self.string("a key")?;
            // A longer one is none that anybody knows.
            let key = if key.span.len() > MAX_UNESCAPED_BYTES { self.raw(&key).into() } else { self.unescape(&key)? };
            self.skip_space();
            self.take(b':', "a colon")?;
            member(&key, self)?;
            self.skip_space();
            match self.byte() {
                Some(b',') => self.at += 1,
                Some(b'}') => return Ok(self.leave()),
                _ => return Err(self.syntax("a comma or a closing brace").into()),
            }
        }
    }

    /// Reads an array: `element` gets each index with the reader before the value, which it must read.
    pub fn array<E: From<JsonError>>(
        &mut self,
        mut element: impl FnMut(usize, &mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.enter(b'[', "an array")?;
        self.skip_space();
        if self.byte() == Some(b']') {
            self.leave();
            return Ok(());
        }
        for index in 0.. {
            element(index, self)?;
            self.skip_space();
            match self.byte() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.syntax("a comma or a closing bracket").into()),
            }
        }
        self.leave();
        Ok(())
    }

    /// Reads any value and checks its grammar, without recursion.
    pub fn skip(&mut self) -> Result<(), JsonError> {
        // Which kinds of bracket are open: true for objects.
        let mut open: Vec<bool> = Vec::new();
        loop {
            // Before a value.
            match self.peek()? {
                b'"' => {
                    self.string("a string")?;
                }
                bracket @ (b'{' | b'[') => {
                    if self.depth + open.len() >= MAX_DEPTH {
                        return Err(JsonError::TooDeep { at: self.at });
                    }
                    self.at += 1;
                    self.skip_space();
                    let closing = if bracket == b'{' { b'}' } else { b']' };
                    if self.byte() == Some(closing) {
                        self.at += 1;
                    } else {
                        open.push(bracket == b'{');
                        if bracket == b'{' {
                            self.key()?;
                        }
                        continue;
                    }
                }
                b't' => self.literal("true")?,
                b'f' => self.literal("false")?,
                b'n' => self.literal("null")?,
                b'-' | b'0'..=b'9' => self.number()?,
                _ => return Err(self.syntax("a value")),
            }
            // After a value: close what ends here.
            loop {
                let Some(&in_object) = open.last() else { return Ok(()) };
                self.skip_space();
                match (self.byte(), in_object) {
                    (Some(b','), in_object) => {
                        self.at += 1;
                        if in_object {
                            self.key()?;
                        }
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        open.pop();
                    }
                    _ => return Err(self.syntax("a comma or a closing bracket")),
                }
            }
        }
    }

    /// Reads `null` if it is next.
    pub fn null(&mut self) -> Result<bool, JsonError> {
        let is_null = self.peek()? == b'n';
        if is_null {
            self.literal("null")?;
        }
        Ok(is_null)
    }

    /// Reads a boolean.
    pub fn boolean(&mut self, what: &'static str) -> Result<bool, JsonError> {
        match self.peek()? {
            b't' => self.literal("true").map(|()| true),
            b'f' => self.literal("false").map(|()| false),
            _ => Err(JsonError::Type { what, at: self.at, expected: "a boolean" }),
        }
    }

    fn key(&mut self) -> Result<(), JsonError> {
        self.string("a key")?;
        self.skip_space();
        self.take(b':', "a colon")
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.byte() {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8, expected: &'static str) -> Result<(), JsonError> {
        if self.byte() == Some(byte) {
            self.at += 1;
            Ok(())
        } else {
            Err(self.syntax(expected))
        }
    }

    fn enter(&mut self, bracket: u8, expected: &'static str) -> Result<(), JsonError> {
        self.skip_space();
        if self.depth >= MAX_DEPTH {
            return Err(JsonError::TooDeep { at: self.at });
        }
        self.take(bracket, expected)?;
        self.depth += 1;
        Ok(())
    }

    /// Steps over a closing bracket; gives its position.
    fn leave(&mut self) -> usize {
        self.depth -= 1;
        self.at += 1;
        self.at - 1
    }

    fn syntax(&self, expected: &'static str) -> JsonError {
        JsonError::Syntax { at: self.at, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn accepts(text: &str) -> bool {
        let mut reader = Reader::new(text.as_bytes()).unwrap();
        reader.skip().and_then(|()| reader.end()).is_ok()
    }

    #[test]
    fn what_other_parsers_let_pass_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "-",
            "NaN",
            "Infinity",
            "tru",
            "\"\t\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"abc",
            "1 2",
            "[1}",
            "{\"a\":1]",
            "\u{feff}1",
            "'a'",
            "[1 2]",
        ] {
            assert!(!accepts(text), "{text:?}");
        }
    }

    #[test]
    fn valid_documents_pass() {
        for text in [
            "0",
            "-0.5e+10",
            " [ ] ",
            "{}",
            "[{},[],\"\",null,true,false]",
            "{\"a\":{\"b\":[1,2,{\"c\":\"\\u00e9\\/\"}]}}",
            "\"\\ud800\"",
            "\u{20ac}".to_string().replace('\u{20ac}', "\"\u{20ac}\"").as_str(),
        ] {
            assert!(accepts(text), "{text:?}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_overflow() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = open.repeat(1_000_000);
            let mut reader = Reader::new(deep.as_bytes()).unwrap();
            assert!(matches!(reader.skip(), Err(JsonError::TooDeep { .. })));
            let fits = format!("{}1{}", open.repeat(MAX_DEPTH), close.repeat(MAX_DEPTH));
            assert!(accepts(&fits));
        }
    }

    /// JSON text and near misses: fragments that a generator of valid documents would never put together.
    fn fragments() -> impl Strategy<Value = String> {
        let fragment = prop_oneof![
            Just("{"),
            Just("}"),
            Just("["),
            Just("]"),
            Just(","),
            Just(":"),
            Just("\"a\""),
            Just("\"\\n\""),
            Just("1"),
            Just("-2.5e3"),
            Just("true"),
            Just("null"),
            Just(" "),
            Just("\""),
            Just("\\"),
            Just("0"),
            Just("."),
            Just("e"),
        ];
        proptest::collection::vec(fragment, 0..12).prop_map(|parts| parts.concat())
    }

    #[test]
    fn what_a_client_reads_is_a_sentence() {
        let errors = [
            JsonError::NotUtf8,
            JsonError::Syntax { at: 1, expected: "a value" },
            JsonError::TooDeep { at: 1 },
            JsonError::LongEscapes { at: 1 },
            JsonError::Trailing { at: 1 },
            JsonError::Duplicate { key: "model", at: 1 },
            JsonError::Type { what: "model", at: 1, expected: "a string" },
        ];
        for error in errors {
            let public = error.public();
            assert!(public.starts_with(char::is_uppercase) && public.ends_with('.'), "{public}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn accepts_exactly_what_serde_json_accepts(text in prop_oneof![fragments(), any::<String>()]) {
            let serde = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(accepts(&text), serde, "{:?}", text);
        }

        #[test]
        fn reads_whatever_serde_json_writes(seed in any::<Vec<(String, i64, bool)>>()) {
            let value = serde_json::json!(seed.iter().map(|(s, n, b)| serde_json::json!({s: [n, b, s]})).collect::<Vec<_>>());
            prop_assert!(accepts(&value.to_string()));
        }
    }
}
