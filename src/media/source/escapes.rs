//! Text within a JSON string (RFC 8259, 7), read piece by piece, so that megabytes of it need no copy without the escapes.
//!
//! Some clients write `/` as `\/`, which is every sixty-fourth character of base64.

/// What comes next of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// As it stands, and never empty.
    Run(&'a str),
    /// What an escape says.
    Char(char),
}

impl Piece<'_> {
    /// Its bytes in UTF-8.
    pub fn as_bytes<'b>(&'b self, buffer: &'b mut [u8; 4]) -> &'b [u8] {
        match self {
            Piece::Run(run) => run.as_bytes(),
            Piece::Char(char) => char.encode_utf8(buffer).as_bytes(),
        }
    }
}

/// The pieces of the text between the quotes of a valid JSON string.
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    raw: &'a str,
    at: usize,
}

impl<'a> Pieces<'a> {
    pub fn new(raw: &'a str) -> Self {
        Pieces { raw, at: 0 }
    }

    /// What is not read yet.
    pub fn rest(&self) -> &'a str {
        &self.raw[self.at..]
    }

    /// Whether the text begins with `ascii`, in any case.
    pub fn begins_with(self, ascii: &str) -> bool {
        let mut left = ascii;
        for piece in self {
            let mut buffer = [0; 4];
            let piece = piece.as_bytes(&mut buffer);
            let common = piece.len().min(left.len());
            if !piece[..common].eq_ignore_ascii_case(&left.as_bytes()[..common]) {
                return false;
            }
            left = &left[common..];
            if left.is_empty() {
                return true;
            }
        }
        false
    }

    /// Reads up to the first `end`, which is ASCII, and over it. Gives the last `N` bytes before it, zeroes before those.
    pub fn skip_past<const N: usize>(&mut self, end: u8) -> Option<[u8; N]> {
        let mut last = [0; N];
        loop {
            match self.next()? {
                Piece::Char(char) if char == char::from(end) => return Some(last),
                Piece::Char(char) => push(&mut last, char.encode_utf8(&mut [0; 4]).as_bytes()),
                Piece::Run(run) => match memchr::memchr(end, run.as_bytes()) {
                    None => push(&mut last, run.as_bytes()),
                    Some(before) => {
                        push(&mut last, &run.as_bytes()[..before]);
                        self.at -= run.len() - before - 1;
                        return Some(last);
                    }
                },
            }
        }
    }

    /// After the `u` of an escape: what its four digits say.
    fn unit(&mut self) -> Option<u16> {
        let digits = self.raw.get(self.at..self.at + 4)?;
        self.at += 4;
        u16::from_str_radix(digits, 16).ok()
    }

    fn escaped(&mut self) -> Option<char> {
        let letter = self.rest().chars().nth(1)?;
        self.at += 1 + letter.len_utf8();
        Some(match letter {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let first = self.unit()?;
                let mut units = vec![first];
                let low = self.raw[self.at..].starts_with("\\u").then(|| self.clone()).and_then(|mut ahead| {
                    ahead.at += 2;
                    ahead.unit().map(|unit| (unit, ahead.at))
                });
                if let Some((low @ 0xdc00..0xe000, after)) = low.filter(|_| (0xd800..0xdc00).contains(&first)) {
                    units.push(low);
                    self.at = after;
                }
                // A surrogate that stands alone is no character.
                char::decode_utf16(units).next()?.unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            other => other,
        })
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        let rest = self.rest();
        match memchr::memchr(b'\\', rest.as_bytes()) {
            Some(0) => self.escaped().map(Piece::Char),
            _ if rest.is_empty() => None,
            found => {
                let run = &rest[..found.unwrap_or(rest.len())];
                self.at += run.len();
                Some(Piece::Run(run))
            }
        }
    }
}

/// Keeps the last bytes of all that was pushed.
fn push<const N: usize>(last: &mut [u8; N], bytes: &[u8]) {
    let bytes = &bytes[bytes.len().saturating_sub(N)..];
    last.rotate_left(bytes.len() % N);
    last[N - bytes.len()..].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(raw: &str) -> String {
        let mut text = String::new();
        for piece in Pieces::new(raw) {
            match piece {
                Piece::Run(run) => text.push_str(run),
                Piece::Char(char) => text.push(char),
            }
        }
        text
    }

    #[test]
    fn escapes_say_what_json_says() {
        for (raw, expected) in [
            ("", ""),
            ("a\\/b", "a/b"),
            ("\\\"\\\\\\b\\f\\n\\r\\t", "\"\\\u{8}\u{c}\n\r\t"),
            ("\\u0041\\u00e9\\ud83d\\ude00!", "Aé😀!"),
            ("\\ud83dx\\ude00\\ud83d\\u0041", "\u{fffd}x\u{fffd}\u{fffd}A"),
        ] {
            assert_eq!(text(raw), expected, "{raw}");
        }
    }

    #[test]
    fn the_beginning_is_told_in_any_case_and_however_it_is_written() {
        for (raw, expected) in
            [("data:x", true), ("DA\\u0074a:", true), ("\\u0064ata\\u003a,", true), ("dat", false), ("dato:", false)]
        {
            assert_eq!(Pieces::new(raw).begins_with("data:"), expected, "{raw}");
        }
    }

    #[test]
    fn what_comes_before_a_mark_is_skipped_but_for_its_end() {
        let mut pieces = Pieces::new("image\\/p\\u006eg;base64,QU\\/,");
        assert_eq!(&pieces.skip_past::<9>(b',').unwrap(), b"ng;base64");
        assert_eq!(pieces.rest(), "QU\\/,");
        let mut pieces = Pieces::new("a\\u002cb");
        assert_eq!(pieces.skip_past::<2>(b','), Some([0, b'a']));
        assert_eq!(pieces.rest(), "b");
        assert_eq!(Pieces::new("ab").skip_past::<1>(b','), None);
    }

    proptest! {
        #[test]
        fn the_text_is_what_a_parser_says(said in any::<String>()) {
            let json = serde_json::to_string(&said).unwrap();
            prop_assert_eq!(text(&json[1..json.len() - 1]), said);
        }

        #[test]
        fn no_text_makes_it_panic_valid_or_not(raw in "[\\\\uad89é0-9]{0,12}") {
            text(&raw);
            let _ = Pieces::new(&raw).begins_with("data:");
            let _ = Pieces::new(&raw).skip_past::<3>(b'8');
        }
    }
}
